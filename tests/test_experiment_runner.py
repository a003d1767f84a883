"""Runs: what they write, that they resume exactly, and that a kill at any moment costs nothing."""

import csv
import errno
import itertools
import json
import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from frcl import CheckpointError, DataError, OptionError
from frcl.cli.console import say_result
from frcl.experiment import runner
from frcl.experiment.config import resolve
from frcl.experiment.environment import describe
from frcl.experiment.keeper import CHECKPOINT, Interrupted, Observer, read_checkpoint
from frcl.experiment.metrics import evaluated, score, score_boundaries
from frcl.experiment.results import MEASURED, Result, SeedRecord, read_result
from frcl.files import alone_in, load_state, save_state
from frcl.learners.types import Prediction

TINY = {
    "seeds": [0, 1],
    "network": {"widths": [12]},
    "learner": {"steps": 25, "points": 5, "search_steps": 30, "batch_size": 20},
    "stream": {"tasks": 3},
    "run": {"checkpoint_seconds": 0.02, "log_past_every": 10},
}
HIDDEN = {**TINY, "hidden_boundaries": True, "learner": {**TINY["learner"], "initial_std": 1.0, "steps": 60}}


def tiny(layer: dict = TINY, **more):
    return resolve("split-digits", layer, more)


def comparable(result: Result) -> str:
    return json.dumps({key: value for key, value in result.to_json().items() if key not in MEASURED})


def stopping(after: int) -> Callable[[], bool]:
    """Asks a run to stop once it was asked so many times."""
    calls = itertools.count(1)
    return lambda: next(calls) > after


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> tuple[Path, Result]:
    folder = tmp_path_factory.mktemp("runs") / "whole"
    return folder, runner.run(tiny(), folder, Observer())


def test_what_a_run_writes(finished):
    folder, found = finished
    result = found.to_json()
    assert json.loads((folder / "result.json").read_text()) == result
    assert read_result(folder / "result.json").to_json() == result
    assert set(result) >= {
        "benchmark", "method", "config", "seeds", "accuracy", "average_accuracy", "backward_transfer", "forgetting",
        "nll", "ece", "memory_bytes", "seconds", "environment",
    }  # fmt: skip
    assert np.array(result["accuracy"], dtype=float).shape == (2, 3, 3)
    assert result["accuracy"][0][0][1:] == [None, None]
    assert all(0 <= value <= 1 for row in result["accuracy"][1] for value in row if value is not None)
    assert result["average_accuracy"]["per_seed"] == [sum(m[-1]) / 3 for m in result["accuracy"]]
    assert set(result["seconds"]) == {"train", "select", "evaluate", "total"}
    assert result["seconds"]["total"] == pytest.approx(
        sum(v for k, v in result["seconds"].items() if k != "total"), abs=0.01
    )
    assert result["forward_transfer"] is None
    assert 0.5 < result["auroc"]["mean"] <= 1


def test_bytes_kept_are_those_of_the_summaries(finished):
    _, result = finished
    points, posterior = 5 * 64 + 4 * 17, 4 * (5 + 5 * 5)  # bytes and a table of 17 values; mean and 5×5 factor
    memory = result.memory_bytes
    sums = memory.parts["sums"]  # of the inference of the task
    assert memory.parts == {"points": 3 * points, "posterior": 3 * posterior, "sums": sums}
    assert memory.total == sum(memory.per_task) == 3 * (points + posterior) + sums


def test_every_step_is_logged(finished):
    folder, result = finished
    with (folder / "log.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(int(r["task"]), int(r["step"]), int(r["seed"])) for r in rows] == [
        (task, step, seed) for task in range(3) for step in range(1, 26) for seed in (0, 1)
    ]
    for row in rows:
        total = -float(row["log_likelihood"]) + float(row["kl_now"]) + float(row["kl_past"])
        assert float(row["loss"]) == pytest.approx(total, abs=1e-4)
    with (folder / "kl_past.csv").open() as file:
        past = list(csv.DictReader(file))
    assert {(r["task"], r["past_task"]) for r in past} == {("1", "0"), ("2", "0"), ("2", "1")}
    assert all(float(r["kl"]) > 0 for r in past)
    assert result.steps.step[0] == 1


def test_points_are_images_of_their_tasks(finished):
    folder, _ = finished
    points = np.load(folder / "points.npz", allow_pickle=False)
    benchmark = runner.benchmark_of(tiny(), 0)
    for number in range(3):
        rows = {tuple(row) for row in benchmark.task(number).train.x.tolist()}
        assert all(tuple(row) in rows for row in points[f"task_{number}"].tolist())


def test_same_config_same_result(finished, tmp_path, global_random_state_untouched):
    again = runner.run(tiny(), tmp_path / "again", Observer())
    assert comparable(again) == comparable(finished[1])
    assert (tmp_path / "again" / "log.csv").read_bytes() == (finished[0] / "log.csv").read_bytes()
    other = runner.run(tiny(seeds=[2]), tmp_path / "other", Observer())
    assert not np.array_equal(other.accuracy[0], again.accuracy[0], equal_nan=True)


def test_a_finished_run_resumes_to_the_same_result(finished):
    folder, result = finished
    assert comparable(runner.resume(folder, Observer())) == comparable(result)


def test_seeds_together_and_one_by_one_end_alike(finished, tmp_path):
    _, together = finished
    apart = runner.run(tiny(run={"seeds_together": 1}), tmp_path / "apart", Observer())
    np.testing.assert_allclose(together.accuracy, apart.accuracy, rtol=0, atol=0.02)
    assert together.nll.mean == pytest.approx(apart.nll.mean, rel=1e-3)
    assert together.memory_bytes == apart.memory_bytes


@pytest.mark.parametrize("after", [1, 20, 40, 70])
def test_a_run_stopped_politely_resumes_exactly(finished, tmp_path, after):
    stop = stopping(after)
    with pytest.raises(Interrupted, match="go on with: frcl resume"):
        runner.run(tiny(), tmp_path / "run", Observer(), stop=stop)
    assert not (tmp_path / "run" / "result.json").exists()
    resumed = runner.resume(tmp_path / "run", Observer())
    assert comparable(resumed) == comparable(finished[1])
    for name in ("log.csv", "kl_past.csv"):
        assert (tmp_path / "run" / name).read_bytes() == (finished[0] / name).read_bytes()


def _child(folder: str, begin: bool) -> None:
    torch.set_num_threads(1)
    if begin:
        runner.run(tiny(), Path(folder), Observer())
    else:
        runner.resume(Path(folder), Observer())


def test_sigkill_at_twenty_moments(finished, tmp_path):
    """Killed twenty times without warning, at random moments, resumed each time, it ends as the whole run did."""
    moments = random.Random(3)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["frcl.experiment.runner"])
    kills, runs = 0, 0
    while kills < 20:
        folder = tmp_path / f"run-{runs}"
        begin = True
        for _ in range(100):
            child = context.Process(target=_child, args=(str(folder), begin))
            child.start()
            deadline = time.monotonic() + (moments.uniform(0.0, 0.9) if kills < 20 else 60)
            child.join(max(0.0, deadline - time.monotonic()))
            if child.is_alive():
                os.kill(child.pid, signal.SIGKILL)
                child.join()
                kills += 1
            begin = not (folder / "config.toml").exists()
            if (folder / "result.json").exists():
                break
        assert comparable(read_result(folder / "result.json")) == comparable(finished[1])
        assert (folder / "log.csv").read_bytes() == (finished[0] / "log.csv").read_bytes()
        runs += 1
    assert kills >= 20


def test_a_folder_with_a_run_is_not_overwritten_by_accident(finished):
    folder, _ = finished
    before = (folder / "result.json").read_bytes()
    with pytest.raises(OptionError, match="already holds a run: use `frcl resume"):
        runner.run(tiny(), folder, Observer())
    assert (folder / "result.json").read_bytes() == before


def test_two_processes_do_not_work_in_one_folder(finished):
    folder, result = finished
    with alone_in(folder):
        with pytest.raises(CheckpointError, match="another process is at work"):
            runner.run(tiny(), folder, Observer(), overwrite=True)
        with pytest.raises(CheckpointError, match="another process is at work"):
            runner.resume(folder, Observer())
    assert comparable(read_result(folder / "result.json")) == comparable(result)
    assert comparable(runner.resume(folder, Observer())) == comparable(result)


def test_a_run_that_began_meanwhile_is_not_overwritten(tmp_path, monkeypatch):
    """Another process takes the folder while this one is still reading its data."""
    folder, inner = tmp_path / "run", runner.source_of

    def slow(config):
        folder.mkdir(exist_ok=True)
        (folder / "config.toml").write_text("not ours")
        return inner(config)

    monkeypatch.setattr(runner, "source_of", slow)
    with pytest.raises(OptionError, match="already holds a run"):
        runner.run(tiny(), folder, Observer())
    assert (folder / "config.toml").read_text() == "not ours"


def test_where_there_are_no_locks_nothing_is_checked(tmp_path, monkeypatch):
    def refused(*_):
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr("fcntl.flock", refused)
    with alone_in(tmp_path), alone_in(tmp_path):
        pass


def test_the_commit_can_be_told(monkeypatch):
    monkeypatch.setenv("FRCL_COMMIT", "0123456789ab")
    assert describe("cpu")["commit"] == "0123456789ab"


def test_missing_data_and_devices_show_before_anything_is_written(tmp_path):
    config = resolve("split-digits", {"data": str(tmp_path / "nowhere")})
    with pytest.raises(DataError, match="does not exist"):
        runner.run(config, tmp_path / "run", Observer())
    with pytest.raises(OptionError, match="unknown device 'tpux'"):
        runner.run(tiny(device="tpux"), tmp_path / "run", Observer())
    assert not (tmp_path / "run").exists()


def test_foreign_folders_are_refused(tmp_path, finished):
    with pytest.raises(CheckpointError, match="holds no run"):
        runner.resume(tmp_path, Observer())
    (tmp_path / "config.toml").write_bytes((finished[0] / "config.toml").read_bytes())
    (tmp_path / CHECKPOINT).write_bytes(b"nonsense")
    with pytest.raises(CheckpointError, match="not a checkpoint"):
        runner.resume(tmp_path, Observer())


def test_forward_transfer_compares_with_a_fresh_learner(tmp_path):
    config = tiny({**TINY, "seeds": [0], "run": {"forward_transfer": True}})
    result = runner.run(config, tmp_path / "run", Observer())
    benchmark = runner.benchmark_of(config, 0)
    gains = []
    for number in (1, 2):
        fresh = runner.new_learner(config, benchmark, 0)
        task = benchmark.task(number)
        fresh.fit(task.train.x, task.train.y)
        alone = float((fresh.predict(task.test.x).labels == task.test.y).double().mean())
        gains.append(result.accuracy[0, number, number] - alone)
    assert result.forward_transfer.mean == pytest.approx(sum(gains) / 2)


def test_hidden_boundaries(tmp_path):
    config = tiny(HIDDEN, seeds=[0], detector={"threshold": 5.0})
    result = runner.run(config, tmp_path / "run", Observer())
    found = result.to_json()["boundaries"]
    assert found["true"] == [60, 120]
    assert [score["threshold"] for score in found["scores"]] == [4.0, 5.0, 6.0, 7.0, 8.0]
    assert all(0 <= score["f1"] <= 1 for score in found["scores"])
    recalls = [score["recall"] for score in found["scores"]]
    assert recalls == sorted(recalls, reverse=True)
    assert set(found["found"]) <= set(found["statistic_step"])
    assert found["acted_on"]["f1"] is not None
    assert result.tasks == ("0/1", "2/3", "4/5")
    above = [s for s, v in zip(found["statistic_step"], found["statistic"], strict=True) if v > 5.0]
    assert found["found"] == above


def test_hidden_boundaries_without_the_task(tmp_path, capsys):
    """The open task has its part; the inferred task counts where the tasks found are the true ones, one to one."""
    result = runner.run(tiny(HIDDEN, seeds=[0], scenario="class"), tmp_path / "run", Observer())
    assert np.isfinite(result.agnostic[0][np.tril_indices(3)]).all()
    assert result.agnostic_accuracy.mean > 0.55
    assert result.agnostic_nll is not None
    learned_as = read_checkpoint(tmp_path / "run")[0].records[0].learned_as
    found = len(result.boundaries.found) == 2 and learned_as == [0, 1, 2]
    assert (result.task_accuracy is not None) == found
    say_result(result, tmp_path / "report.html")
    lines = capsys.readouterr().out.splitlines()
    first = next(line for line in lines if line.startswith("average accuracy"))
    assert "without the task" in first


def test_the_inferred_task_is_not_scored_where_tasks_found_are_others():
    """Two true tasks learned as one, or one as two."""
    benchmark = runner.benchmark_of(tiny(), 0)
    learner = runner.new_learner(tiny(), benchmark, 0)
    for number in (0, 1):
        learner.fit(benchmark.task(number).train.x, benchmark.task(number).train.y)
    for learned_as, scored in (([0, 1], True), ([1, 0], True), ([0, 0], False), ([1], False)):
        row = evaluated(learner, benchmark, learned_as, whole=False)[1]
        assert (row.task_accuracy is not None) == scored
        assert len(row.accuracy) == len(learned_as)


def test_a_stream_whose_open_task_has_returned_is_evaluated(tmp_path, monkeypatch):
    monkeypatch.setattr("frcl.learners.streaming.known_task", lambda *_: 0)
    result = runner.run(tiny(HIDDEN, seeds=[0], detector={"threshold": 5.0}), tmp_path / "run", Observer())
    assert len(result.boundaries.found) > 0
    assert read_checkpoint(tmp_path / "run")[0].records[0].learned_as == [0, 0, 0]


def test_labels_are_declared_for_the_papers_test_alone():
    for detector, declared in (({}, None), ({"threshold": 5.0}, (0, 1))):
        config = tiny(HIDDEN, seeds=[0], detector=detector)
        labels = runner.new_learner(config, runner.benchmark_of(config, 0), 0).labels
        assert (None if labels is None else tuple(labels)) == declared


def test_a_test_beside_is_what_the_result_shows(tmp_path):
    layer = {"detector": {"window": 3, "beside": 1, "threshold": 2.0, "thresholds": [2.0]}}
    config = resolve("split-digits", HIDDEN, layer, {"seeds": [0]})
    result = runner.run(config, tmp_path / "beside", Observer()).boundaries
    statistic, step = result.statistic, result.statistic_step
    apart = [at for at, value in zip(step, statistic, strict=True) if value > 2.0]
    expected = [at for place, at in enumerate(apart) if place == 0]
    for at in apart[1:]:
        expected += [at] if at - expected[-1] > config.detector.waits.pause else []
    assert list(result.found) == expected
    own = read_checkpoint(tmp_path / "beside")[0].records[0].found
    assert list(result.found) != own  # the learner acts on the other test
    hits = score_boundaries(result.true, own, 2.0, config.detector.tolerance)
    assert result.acted_on["precision"].mean == pytest.approx(hits.precision)


@pytest.mark.slow
def test_hidden_boundaries_resume_exactly(tmp_path):
    whole = runner.run(tiny(HIDDEN), tmp_path / "whole", Observer())
    with pytest.raises(Interrupted):
        runner.run(tiny(HIDDEN), tmp_path / "run", Observer(), stop=stopping(after=90))
    assert comparable(runner.resume(tmp_path / "run", Observer())) == comparable(whole)


def test_regression_tasks_of_your_own(tmp_path):
    g = np.random.default_rng(0)
    (tmp_path / "tasks").mkdir()
    for name, weight in (("a", [1.0, -1.0]), ("b", [0.5, 2.0])):
        x = g.normal(size=(120, 2))
        np.savez(tmp_path / "tasks" / f"{name}.npz", x=x, y=x @ np.array(weight) + 0.05 * g.normal(size=120))
    (tmp_path / "data.toml").write_text('name = "lines"\nfolder = "tasks"\n')
    layer = {"seeds": [0], "network": {"widths": [20]}, "learner": {"steps": 400, "points": 20, "lr": 5e-3}}
    result = runner.run(resolve(str(tmp_path / "data.toml"), layer), tmp_path / "run", Observer())
    assert result.score == "r2"
    assert result.average_accuracy.mean > 0.9
    assert result.ece is None
    assert result.tasks == ("a", "b")


def test_overwriting_leaves_nothing_of_the_old_run(tmp_path):
    folder = tmp_path / "run"
    runner.run(tiny(), folder, Observer())
    (folder / "figures").mkdir()
    (folder / "figures" / "old.png").write_bytes(b"")
    runner.run(tiny({**TINY, "seeds": [0], "run": {}}), folder, Observer(), overwrite=True)
    assert not (folder / "figures").exists()
    assert not (folder / "kl_past.csv").exists()


def test_targets_without_any_spread_have_a_finite_score():
    def r_squared(mean: torch.Tensor, y: torch.Tensor) -> float:
        return score(Prediction(mean, torch.ones_like(mean), target_mean=mean), y)

    y = torch.full((5,), 2.0)
    assert r_squared(y[:, None], y) == 1.0
    assert r_squared(y[:, None] + 1, y) == 0.0
    assert r_squared(torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([1.0, 2.0, 3.0])) == pytest.approx(0.5)


def test_a_stream_counts_what_it_keeps(tmp_path):
    result = runner.run(tiny(HIDDEN, seeds=[0]), tmp_path / "run", Observer())
    profile = 4 * 64 * (64 + 1)  # mean and covariance of the fixed features of its inputs
    memory = result.memory_bytes
    found = len(memory.per_task)  # tasks that are kept: one that returned, or went on, is none of its own
    parts = {"points": found * (5 * 64 + 4 * 17), "posterior": found * 120, "statistics": found * profile}
    assert {kind: size for kind, size in memory.parts.items() if kind != "sums"} == parts
    assert memory.total == sum(memory.parts.values()) == sum(memory.per_task)
    assert len(np.load(tmp_path / "run" / "points.npz").files) == found
    with pytest.raises(OptionError, match="not measured with hidden boundaries"):
        tiny({**HIDDEN, "run": {"forward_transfer": True}})


@pytest.mark.parametrize("hidden", [False, True])
def test_what_is_kept_besides_summaries_is_counted_with_the_first_task(hidden, tmp_path):
    layer = {**(HIDDEN if hidden else TINY), "method": "frcl-plus", "seeds": [0]}
    config = tiny(layer, learner={**layer["learner"], "fisher_examples": 5, "task_inference": "summaries"})
    memory = runner.run(config, tmp_path / "run", Observer()).memory_bytes
    network, fisher = 4 * (64 * 12 + 12), 4 * (65 * 65 + 12 * 12)  # Kronecker factors of one layer
    one_task = 5 * 64 + 4 * (17 + 5 + 5 * 5 + 13 + 1)
    tasks, inputs, profile = (
        len(memory.per_task),
        4 * 64,
        4 * 64 * (64 + 1),
    )  # mean input; features of a stream's inputs
    assert memory.parts["network"] == memory.parts["anchor"] == network
    assert memory.parts["fisher"] == fisher
    assert memory.parts["statistics"] == tasks * (inputs + hidden * profile)
    besides = 2 * network + fisher + hidden * tasks * inputs  # a stream is counted once, at its end
    each = one_task + (profile if hidden else inputs)
    assert memory.per_task == (each + besides,) + (each,) * (tasks - 1)
    assert sum(memory.parts.values()) == memory.total == sum(memory.per_task)


def test_a_run_of_frcl_plus_that_was_stopped_resumes_exactly(tmp_path):
    layer = {**TINY, "method": "frcl-plus"}
    config = tiny(layer, learner={**TINY["learner"], "fisher_examples": 5})
    whole = runner.run(config, tmp_path / "whole", Observer())
    with pytest.raises(Interrupted):
        runner.run(config, tmp_path / "stopped", Observer(), stop=stopping(after=40))
    assert comparable(runner.resume(tmp_path / "stopped", Observer())) == comparable(whole)


class Named:
    """A benchmark whose tasks are named after its seed."""

    def __init__(self, inner, seed: int) -> None:
        self._inner, self._seed = inner, seed

    def __getattr__(self, name: str):
        return getattr(self._inner, name)

    def __len__(self) -> int:
        return len(self._inner)

    @property
    def task_names(self) -> tuple[str, ...]:
        return tuple(f"{self._seed}: {name}" for name in self._inner.task_names)


def test_a_resumed_run_names_the_tasks_of_the_first_seed(tmp_path, monkeypatch):
    """Where every seed has its own order of tasks, a run resumed at its second seed still reports the first one's."""
    inner = runner.source_of
    monkeypatch.setattr(runner, "source_of", lambda config: lambda seed: Named(inner(config)(seed), seed))
    config = tiny({**TINY, "run": {"seeds_together": 1}})
    with pytest.raises(Interrupted):
        runner.run(config, tmp_path / "run", Observer(), stop=lambda: (tmp_path / "run" / "points.npz").exists())
    assert read_checkpoint(tmp_path / "run")[0].position == 1
    assert runner.resume(tmp_path / "run", Observer()).tasks == ("0: 0/1", "0: 2/3", "0: 4/5")


DAMAGED = {
    "rows": (("records", 0, "rows"), 1),
    "statistic": (("records", 0, "statistic"), ["high"]),
    "seconds": (("seconds", "train"), None),
    "huge": (("task",), 10**400),
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_a_damaged_checkpoint_is_refused_in_one_line(finished, tmp_path, kind):
    (*keys, last), value = DAMAGED[kind]
    meta, tensors = load_state(finished[0] / CHECKPOINT)
    part = meta["progress"]
    for key in keys:
        part = part[key]
    part[last] = value
    (tmp_path / "config.toml").write_bytes((finished[0] / "config.toml").read_bytes())
    save_state(tmp_path / CHECKPOINT, meta, tensors)
    with pytest.raises(CheckpointError, match=f"progress.*{last}") as caught:
        runner.resume(tmp_path, Observer())
    assert "\n" not in str(caught.value)


def test_the_progress_of_a_run_is_read_as_it_was_written(finished):
    progress, _ = read_checkpoint(finished[0])
    assert [type(record) for record in progress.records] == [SeedRecord, SeedRecord]
    assert progress.records[1].rows == [row[: i + 1].tolist() for i, row in enumerate(finished[1].accuracy[1])]
    assert progress.seconds.total == pytest.approx(finished[1].seconds.total, abs=2e-3)


def test_seeds_run_together_where_that_pays_off():
    def at_once(device: str, **layer) -> int:
        return runner.seeds_at_once(resolve("split-digits", layer, {"device": device}))

    assert (at_once("cpu"), at_once("cpu", method="ewc"), at_once("cpu", hidden_boundaries=True)) == (10, 10, 1)
    assert (at_once("cpu", method="joint"), at_once("cuda", method="joint")) == (1, 10)
    for network in ({"kind": "conv", "widths": [4]}, {"kind": "resnet18"}):
        assert (at_once("cpu", network=network), at_once("cuda", network=network)) == (1, 10)
