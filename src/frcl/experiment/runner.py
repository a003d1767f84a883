"""One loop for every method: learn, evaluate, go on; knows a learner by its protocol alone."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from frcl.benchmarks.open import open_benchmark
from frcl.benchmarks.tasks import Benchmark
from frcl.errors import CheckpointError, OptionError
from frcl.experiment import environment, results
from frcl.experiment.config import Config, read_toml, resolve, to_toml
from frcl.experiment.evaluate import final_scores, score
from frcl.experiment.hidden import anonymous, learn_stream, stream_labels
from frcl.experiment.keeper import CHECKPOINT, LOG, PAST_LOG, Keeper, Observer, Progress, new_record, read_checkpoint
from frcl.experiment.networks import build_network
from frcl.files import write_atomically
from frcl.learners.frcl import FRCL
from frcl.learners.methods import make_learner
from frcl.learners.protocol import Learner
from frcl.learners.records import StepLog


def never() -> bool:
    return False


def run(
    config: Config, folder: Path, observer: Observer, *, stop: Callable[[], bool] = never, overwrite: bool = False
) -> dict[str, Any]:
    """Carry out a new run in a folder; returns what result.json then holds.

    A folder that already holds a run is refused unless it may be overwritten, and so is, before anything is
    written, a configuration whose device or data are not there.
    """
    if (folder / "config.toml").exists() and not overwrite:
        raise OptionError(
            f"{folder} already holds a run; go on with `frcl resume {folder}`, choose another --out, or say --overwrite"
        )
    benchmark_of(config, config.seeds[0])
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("result.json", CHECKPOINT, "report.html", "points.npz", PAST_LOG):
        (folder / name).unlink(missing_ok=True)
    for name in ("figures", "tables"):
        shutil.rmtree(folder / name, ignore_errors=True)
    write_atomically(folder / "config.toml", to_toml(config).encode())
    with environment.threads(config.run.threads):
        return _carry_out(Keeper(config, folder, Progress(started=_now()), observer, stop), None)


def resume(folder: Path, observer: Observer, *, stop: Callable[[], bool] = never) -> dict[str, Any]:
    """Take up the run in a folder where its last checkpoint left it; ends as if it had not been interrupted."""
    if not (folder / "config.toml").is_file():
        raise CheckpointError(f"{folder} holds no run: there is no config.toml in it")
    layer = read_toml(folder / "config.toml")
    config = resolve(layer.pop("benchmark", ""), layer)
    progress, learner_state = read_checkpoint(folder)
    progress.started = progress.started or _now()
    with environment.threads(config.run.threads):
        return _carry_out(Keeper(config, folder, progress, observer, stop), learner_state)


def benchmark_of(config: Config, seed: int) -> Benchmark:
    """The benchmark of a run as it is for one of its seeds."""
    device = environment.check_device(config.device)
    data = None if config.data is None else Path(config.data)
    benchmark = open_benchmark(config.benchmark, config.stream, seed=seed, data=data, device=device)
    return anonymous(benchmark) if config.hidden_boundaries else benchmark


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


def _carry_out(keeper: Keeper, learner_state: dict[str, Any] | None) -> dict[str, Any]:
    config, progress = keeper.config, keeper.progress
    title = ""
    names: list[str] = []
    while progress.position < len(config.seeds):
        seed = config.seeds[progress.position]
        benchmark = benchmark_of(config, seed)
        learner = new_learner(config, benchmark, seed)
        if learner_state is not None:
            learner.load_state_dict(learner_state)
            learner_state = None
        if not names:
            title, names = benchmark.name, list(benchmark.task_names)
            keeper.observer.begin(config, names)
        _one_seed(keeper, learner, benchmark, seed)
    if not names:
        benchmark = benchmark_of(config, config.seeds[0])
        title, names = benchmark.name, list(benchmark.task_names)
    return _finish(keeper, title, names)


def _one_seed(keeper: Keeper, learner: Learner, benchmark: Benchmark, seed: int) -> None:
    progress = keeper.progress
    if len(progress.records) == progress.position:
        progress.records.append(new_record())
    record = progress.records[-1]
    if keeper.config.hidden_boundaries and isinstance(learner, FRCL):
        learn_stream(keeper, learner, benchmark, seed, record)
    else:
        _learn_tasks(keeper, learner, benchmark, seed, record)
    with keeper.timed("evaluate"):
        record["final"] = final_scores(learner, benchmark, record["learned_as"]).to_json()
    if progress.position == 0:
        results.write_points(keeper.folder / "points.npz", learner.kept_inputs())
    progress.position, progress.task = progress.position + 1, 0
    keeper.checkpoint(learner if progress.position == len(keeper.config.seeds) else None)


def _learn_tasks(keeper: Keeper, learner: Learner, benchmark: Benchmark, seed: int, record: dict[str, Any]) -> None:
    while keeper.progress.task < len(benchmark):
        number = keeper.progress.task
        _learn(keeper, learner, benchmark, number, seed)
        with keeper.timed("evaluate"):
            if keeper.config.run.forward_transfer:
                record["alone"].append(_alone(keeper.config, benchmark, number, seed))
            row = [score(learner, benchmark.test_split(on), on) for on in range(number + 1)]
        if benchmark.test_split(number).y.is_floating_point():
            record["score"] = "r2"
        record["rows"].append(row)
        record["bytes"].append(learner.memory_bytes())
        record["learned_as"].append(number)
        keeper.progress.task += 1
        keeper.observer.evaluated(seed, number, row)
        keeper.checkpoint(learner)


def _learn(keeper: Keeper, learner: Learner, benchmark: Benchmark, number: int, seed: int) -> None:
    """Learn one task; the time after its last step is what the selection of points took."""
    task = benchmark.task(number)
    seconds = keeper.progress.seconds
    last = time.monotonic()

    def after_step(log: StepLog) -> None:
        nonlocal last
        now = time.monotonic()
        seconds["train"] += now - last
        last = now
        keeper.step(learner, seed, number, log)

    learner.fit(task.train.x, task.train.y, size=task.size, on_step=after_step)
    seconds["select"] += time.monotonic() - last


def _alone(config: Config, benchmark: Benchmark, number: int, seed: int) -> float:
    """Accuracy of a fresh learner on one task alone."""
    task = benchmark.task(number)
    fresh = new_learner(config, benchmark, seed)
    fresh.fit(task.train.x, task.train.y, size=task.size)
    return score(fresh, benchmark.test_split(number), 0)


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
