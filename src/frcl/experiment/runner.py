"""One loop for every method: learn a task, evaluate, continue. Uses nothing of a learner but its protocol."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from frcl.data.registry import benchmark_source
from frcl.data.tasks import Benchmark
from frcl.errors import CheckpointError, OptionError
from frcl.experiment import environment
from frcl.experiment.assemble import assemble, write_points
from frcl.experiment.config import Config, read_toml, saved, to_toml
from frcl.experiment.evaluate import final_scores, score
from frcl.experiment.hidden import anonymous, learn_stream, stream_labels
from frcl.experiment.keeper import CHECKPOINT, LOG, PAST_LOG, Keeper, Observer, Progress, read_checkpoint
from frcl.experiment.networks import build_network
from frcl.experiment.results import RESULT, Result, Seconds, SeedRecord, write_result
from frcl.files import alone_in, write_atomically
from frcl.learners.lockstep import Work, finish, together
from frcl.learners.protocol import Learner, StreamLearner
from frcl.methods import make_learner


def never() -> bool:
    return False


def run(
    config: Config, folder: Path, observer: Observer, *, stop: Callable[[], bool] = never, overwrite: bool = False
) -> Result:
    """Carry out a new run in a folder; returns the result, which is also written to result.json.

    A folder that already holds a run is refused unless it may be overwritten. So is a configuration whose device or
    data are not available, before anything is written.
    """
    _check_free(folder, overwrite=overwrite)
    source = source_of(config)
    source(config.seeds[0])
    folder.mkdir(parents=True, exist_ok=True)
    with alone_in(folder), environment.threads(config.run.threads), environment.products(tf32=config.run.tf32):
        _check_free(folder, overwrite=overwrite)  # reading the data took time
        for name in (RESULT, CHECKPOINT, "report.html", "points.npz", PAST_LOG):
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


def resume(folder: Path, observer: Observer, *, stop: Callable[[], bool] = never) -> Result:
    """Continue the run in a folder from its last checkpoint; the result is that of an uninterrupted run."""
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
    """The benchmark of a run for one of its seeds."""
    return source_of(config)(seed)


def new_learner(config: Config, benchmark: Benchmark, seed: int) -> Learner:
    """A new learner of the configured method, on a new network for the benchmark."""
    hidden = config.hidden_boundaries
    return make_learner(
        build_network(config.network, benchmark.input_shape, seed),
        config.learner,
        seed=seed,
        device=config.device,
        detector=config.detector.detector() if hidden else None,
        labels=list(stream_labels(benchmark)) if hidden else None,
    )


def _carry_out(keeper: Keeper, source: Source, states: list[dict[str, Any]] | None) -> Result:
    config, progress, first = keeper.config, keeper.progress, None
    while progress.position < len(config.seeds):
        group = _group(keeper, source, len(states) if states else seeds_at_once(config))
        if states is not None:
            if len(states) != len(group):
                raise CheckpointError(
                    f"the checkpoint holds {len(states)} learners, config.toml has {len(group)} seeds left; put back "
                    "the seeds with which the run began"
                )
            for one, state in zip(group, states, strict=True):
                one.learner.load_state_dict(state)
            states = None
        if first is None:
            first = group[0].benchmark if progress.position == 0 else source(config.seeds[0])
            keeper.observer.begin(config, list(first.task_names))
        _learn_group(keeper, group)
    return _finish(keeper, source(config.seeds[0]) if first is None else first)


@dataclass(frozen=True)
class Seed:
    """One seed of the run: its benchmark, its learner and the record of its results."""

    seed: int
    benchmark: Benchmark
    learner: Learner
    record: SeedRecord


def _group(keeper: Keeper, source: Source, size: int) -> list[Seed]:
    """The next seeds, to be learned together."""
    config, progress, group = keeper.config, keeper.progress, []
    for place, seed in enumerate(config.seeds[progress.position :][:size], progress.position):
        if place == len(progress.records):
            progress.records.append(SeedRecord())
        benchmark = source(seed)
        group.append(Seed(seed, benchmark, new_learner(config, benchmark, seed), progress.records[place]))
    return group


def seeds_at_once(config: Config) -> int:
    """The number of seeds that are trained as one program.

    A learner in a stream branches on values at every step, so its seeds run one after another.
    """
    batched = not config.hidden_boundaries and (config.device != "cpu" or batches_on_cpu(config))
    return config.run.seeds_together if batched else 1


def batches_on_cpu(config: Config) -> bool:
    """Whether training several seeds as one program pays off on the CPU for this network and method."""
    return config.network.batched_on_cpu and getattr(config.learner, "batched_on_cpu", True)


def _learn_group(keeper: Keeper, group: list[Seed]) -> None:
    progress = keeper.progress
    (_learn_stream if keeper.config.hidden_boundaries else _learn_tasks)(keeper, group)
    with keeper.timed("evaluate"):
        for one in group:
            one.record.final = final_scores(one.learner, one.benchmark, one.record.learned_as)
    if progress.position == 0:
        write_points(keeper.folder / "points.npz", group[0].learner.kept_inputs())
    progress.position, progress.task, progress.step = progress.position + len(group), 0, 0
    keeper.checkpoint([one.learner for one in group] if progress.position == len(keeper.config.seeds) else [])


def _learn_stream(keeper: Keeper, group: list[Seed]) -> None:
    for one in group:
        learner = cast(StreamLearner, one.learner)  # `make_learner` gives a detector to no other learner
        learn_stream(keeper, learner, one.benchmark, one.seed, one.record)


def _learn_tasks(keeper: Keeper, group: list[Seed]) -> None:
    for number in range(keeper.progress.task, len(group[0].benchmark)):
        _learn(keeper, group, number)
        with keeper.timed("evaluate"):
            if keeper.config.run.forward_transfer:
                _learn_alone(keeper.config, group, number)
            for one in group:
                _evaluate(one, number)
        keeper.progress.task, keeper.progress.step = number + 1, 0
        for one in group:
            keeper.observer.evaluated(one.seed, number, one.record.rows[-1])
        keeper.checkpoint_if_due([one.learner for one in group])


def _evaluate(one: Seed, number: int) -> None:
    """Add the next row of the accuracy matrix to the record of one seed."""
    record = one.record
    record.rows.append([score(one.learner, one.benchmark.test_split(on), on) for on in range(number + 1)])
    if one.learner.predict(one.benchmark.test_split(number).x[:1], number).probs is None:
        record.score = "r2"
    record.parts = one.learner.memory_parts()
    record.bytes.append(sum(record.parts.values()))
    record.learned_as.append(number)


def _learn(keeper: Keeper, group: list[Seed], number: int) -> None:
    """Learn one task with all seeds of the group; the time after the last step counts as selection of points."""
    last = time.monotonic()
    for taken in together([_work(one, number) for one in group]):
        now = time.monotonic()
        keeper.progress.spent("train", now - last)
        last = now
        keeper.progress.step += len(taken)
        keeper.stepped({one.seed: one.learner for one in group}, number, keeper.progress.step, taken)
    keeper.progress.spent("select", time.monotonic() - last)


def _work(one: Seed, number: int) -> Work[Any]:
    task = one.benchmark.task(number)
    return one.learner.learn(task.train.x, task.train.y, size=task.size)


def _learn_alone(config: Config, group: list[Seed], number: int) -> None:
    """Record the accuracy of a new learner on one task alone, for each seed."""
    new = [replace(one, learner=new_learner(config, one.benchmark, one.seed)) for one in group]
    finish([_work(one, number) for one in new])
    for one in new:
        one.record.alone.append(score(one.learner, one.benchmark.test_split(number), 0))


def _finish(keeper: Keeper, first: Benchmark) -> Result:
    config, progress = keeper.config, keeper.progress
    result = replace(
        assemble(config, first.name, first.task_names, progress.records, keeper.folder / LOG),
        seconds=Seconds(**{part: round(value, 3) for part, value in asdict(progress.seconds).items()}),
        peak_memory_bytes=environment.peak_memory(environment.check_device(config.device)),
        environment=environment.describe(config.device),
        command=f"frcl run --config {keeper.folder / 'config.toml'}",
        started=progress.started,
    )
    write_result(keeper.folder / RESULT, result)
    keeper.observer.end(result)
    return result


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
