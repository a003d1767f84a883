"""One loop for every method: learn, evaluate, go on; knows a learner by its protocol alone."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from frcl.data.open import benchmark_source
from frcl.data.tasks import Benchmark
from frcl.errors import CheckpointError, OptionError
from frcl.experiment import environment, results
from frcl.experiment.config import Config, read_toml, saved, to_toml
from frcl.experiment.evaluate import final_scores, score
from frcl.experiment.hidden import anonymous, learn_stream, stream_labels
from frcl.experiment.keeper import CHECKPOINT, LOG, PAST_LOG, Keeper, Observer, Progress, new_record, read_checkpoint
from frcl.experiment.networks import build_network
from frcl.files import alone_in, write_atomically
from frcl.learners.frcl import FRCL
from frcl.learners.lockstep import Work, finish, together
from frcl.learners.protocol import Learner
from frcl.methods import make_learner


def never() -> bool:
    return False


def run(
    config: Config, folder: Path, observer: Observer, *, stop: Callable[[], bool] = never, overwrite: bool = False
) -> dict[str, Any]:
    """Carry out a new run in a folder; returns what result.json then holds.

    A folder that already holds a run is refused unless it may be overwritten, and so is, before anything is
    written, a configuration whose device or data are not there.
    """
    _check_free(folder, overwrite=overwrite)
    source = source_of(config)
    source(config.seeds[0])
    folder.mkdir(parents=True, exist_ok=True)
    with alone_in(folder), environment.threads(config.run.threads), environment.products(tf32=config.run.tf32):
        _check_free(folder, overwrite=overwrite)  # reading the data took time
        for name in ("result.json", CHECKPOINT, "report.html", "points.npz", PAST_LOG):
            (folder / name).unlink(missing_ok=True)
        for name in ("figures", "tables"):
            shutil.rmtree(folder / name, ignore_errors=True)
        write_atomically(folder / "config.toml", to_toml(config).encode())
        return _carry_out(Keeper(config, folder, Progress(started=_now()), observer, stop), source, None)


def _check_free(folder: Path, *, overwrite: bool) -> None:
    if (folder / "config.toml").exists() and not overwrite:
        raise OptionError(
            f"{folder} already holds a run; go on with `frcl resume {folder}`, choose another --out, or say --overwrite"
        )


def resume(folder: Path, observer: Observer, *, stop: Callable[[], bool] = never) -> dict[str, Any]:
    """Take up the run in a folder where its last checkpoint left it; ends as if it had not been interrupted."""
    if not (folder / "config.toml").is_file():
        raise CheckpointError(f"{folder} holds no run: there is no config.toml in it")
    with alone_in(folder):
        config = saved(read_toml(folder / "config.toml"))
        progress, states = read_checkpoint(folder)
        progress.started = progress.started or _now()
        with environment.threads(config.run.threads), environment.products(tf32=config.run.tf32):
            return _carry_out(Keeper(config, folder, progress, observer, stop), source_of(config), states)


Source = Callable[[int], Benchmark]


def source_of(config: Config) -> Source:
    """The benchmark of a run as a function of the seed."""
    device = environment.check_device(config.device)
    data = None if config.data is None else Path(config.data)
    source = benchmark_source(config.benchmark, config.stream, data=data, device=device)
    return (lambda seed: anonymous(source(seed))) if config.hidden_boundaries else source


def benchmark_of(config: Config, seed: int) -> Benchmark:
    """The benchmark of a run as it is for one of its seeds."""
    return source_of(config)(seed)


def new_learner(config: Config, benchmark: Benchmark, seed: int) -> Learner:
    """A fresh learner of the method asked for, on a fresh network for the benchmark."""
    hidden = config.hidden_boundaries
    return make_learner(
        build_network(config.network, benchmark.input_shape, seed),
        config.learner,
        seed=seed,
        device=config.device,
        detector=config.detector.detector() if hidden else None,
        labels=list(stream_labels(benchmark)) if hidden else None,
    )


def _carry_out(keeper: Keeper, source: Source, states: list[dict[str, Any]] | None) -> dict[str, Any]:
    config, progress = keeper.config, keeper.progress
    title = ""
    names: list[str] = []
    while progress.position < len(config.seeds):
        group = _group(config, source, progress.position, states)
        if states is not None:
            if len(states) != len(group):
                raise CheckpointError(
                    f"the checkpoint holds {len(states)} learners, config.toml has {len(group)} seeds left; put back "
                    "the seeds with which the run began"
                )
            for one, state in zip(group, states, strict=True):
                one.learner.load_state_dict(state)
            states = None
        if not names:
            title, names = group[0].benchmark.name, list(group[0].benchmark.task_names)
            keeper.observer.begin(config, names)
        _one_group(keeper, group)
    if not names:
        benchmark = source(config.seeds[0])
        title, names = benchmark.name, list(benchmark.task_names)
    return _finish(keeper, title, names)


@dataclass(frozen=True)
class Seed:
    """One seed of the run: its benchmark and its learner."""

    seed: int
    benchmark: Benchmark
    learner: Learner


def _group(config: Config, source: Source, position: int, states: list[dict[str, Any]] | None) -> list[Seed]:
    """The next seeds that are learned together: those whose states there are, or as many as may be."""
    group = []
    for seed in config.seeds[position : position + (seeds_at_once(config) if states is None else len(states))]:
        benchmark = source(seed)
        group.append(Seed(seed, benchmark, new_learner(config, benchmark, seed)))
    return group


def seeds_at_once(config: Config) -> int:
    """How many seeds of a run are learned together.

    A learner that looks for hidden boundaries by itself decides on values as it goes, so it has the floor alone. On the
    CPU convolutions, and methods that keep all data, are not computed as one: together they would only take room.
    """
    gains_nothing = config.device == "cpu" and (config.network.kind == "conv" or config.method == "joint")
    return 1 if config.hidden_boundaries or gains_nothing else config.run.seeds_together


def _one_group(keeper: Keeper, group: list[Seed]) -> None:
    progress, last = keeper.progress, len(keeper.config.seeds)
    while len(progress.records) < progress.position + len(group):
        progress.records.append(new_record())
    records = progress.records[progress.position :]
    if keeper.config.hidden_boundaries:
        only = group[0]
        assert isinstance(only.learner, FRCL)
        learn_stream(keeper, only.learner, only.benchmark, only.seed, records[0])
    else:
        _learn_tasks(keeper, group, records)
    with keeper.timed("evaluate"):
        for one, record in zip(group, records, strict=True):
            record["final"] = final_scores(one.learner, one.benchmark, record["learned_as"]).to_json()
    if progress.position == 0:
        results.write_points(keeper.folder / "points.npz", group[0].learner.kept_inputs())
    progress.position, progress.task, progress.step = progress.position + len(group), 0, 0
    keeper.checkpoint([one.learner for one in group] if progress.position == last else [])


def _learn_tasks(keeper: Keeper, group: list[Seed], records: list[dict[str, Any]]) -> None:
    while keeper.progress.task < len(group[0].benchmark):
        number = keeper.progress.task
        _learn(keeper, group, number)
        with keeper.timed("evaluate"):
            if keeper.config.run.forward_transfer:
                _learn_alone(keeper.config, group, number, records)
            for one, record in zip(group, records, strict=True):
                _evaluate(one, number, record)
        keeper.progress.task, keeper.progress.step = number + 1, 0
        for one, record in zip(group, records, strict=True):
            keeper.observer.evaluated(one.seed, number, record["rows"][-1])
        keeper.checkpoint_if_due([one.learner for one in group])


def _evaluate(one: Seed, number: int, record: dict[str, Any]) -> None:
    """The next row of the accuracy matrix of one seed."""
    record["rows"].append([score(one.learner, one.benchmark.test_split(on), on) for on in range(number + 1)])
    if one.benchmark.test_split(number).y.is_floating_point():
        record["score"] = "r2"
    record["parts"] = one.learner.memory_parts()
    record["bytes"].append(sum(record["parts"].values()))
    record["learned_as"].append(number)


def _learn(keeper: Keeper, group: list[Seed], number: int) -> None:
    """Learn one task with all seeds of the group; the time after its last step is what the selection of points took."""
    seconds = keeper.progress.seconds
    last = time.monotonic()
    for taken in together([_work(one, number) for one in group]):
        now = time.monotonic()
        seconds["train"] += now - last
        last = now
        keeper.progress.step += len(taken)
        keeper.stepped({one.seed: one.learner for one in group}, number, keeper.progress.step, taken)
    seconds["select"] += time.monotonic() - last


def _work(one: Seed, number: int) -> Work[Any]:
    task = one.benchmark.task(number)
    return one.learner.learn(task.train.x, task.train.y, size=task.size)


def _learn_alone(config: Config, group: list[Seed], number: int, records: list[dict[str, Any]]) -> None:
    """Accuracy of a fresh learner on one task alone, for each seed."""
    fresh = [replace(one, learner=new_learner(config, one.benchmark, one.seed)) for one in group]
    finish([_work(one, number) for one in fresh])
    for one, record in zip(fresh, records, strict=True):
        record["alone"].append(score(one.learner, one.benchmark.test_split(number), 0))


def _finish(keeper: Keeper, title: str, names: list[str]) -> dict[str, Any]:
    config, progress = keeper.config, keeper.progress
    seconds = {name: round(value, 3) for name, value in progress.seconds.items()}
    result = results.assemble(config, title, names, progress.records)
    result |= {
        "steps": results.step_curves(keeper.folder / LOG, config.seeds[0]),
        "seconds": {**seconds, "total": round(sum(seconds.values()), 3)},
        "peak_memory_bytes": environment.peak_memory(environment.check_device(config.device)),
        "environment": environment.describe(config.device),
        "command": f"frcl run --config {keeper.folder / 'config.toml'}",
        "started": progress.started,
    }
    results.write_json(keeper.folder / "result.json", result)
    keeper.observer.end(result)
    return result


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
