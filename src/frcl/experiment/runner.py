"""One loop for every method: learn a task, evaluate, continue. Uses nothing of a learner but its protocol."""

import itertools
import math
import shutil
import time
import tomllib
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from frcl.augment import CropFlip
from frcl.codec import from_json, to_json
from frcl.data.files import check_files
from frcl.data.registry import benchmark_source
from frcl.data.tasks import Benchmark, BuiltTasks, Split, Task
from frcl.distributed import agreed, from_first, is_follower
from frcl.errors import CheckpointError, DataError, OptionError
from frcl.experiment import environment
from frcl.experiment.config import Config, NetworkOptions, read_toml, saved, to_toml
from frcl.experiment.keeper import CHECKPOINT, PAST_LOG, POINTS, Keeper, Observer, Progress, read_checkpoint
from frcl.experiment.metrics import evaluated, final_scores, score
from frcl.experiment.results import RESULT, Result, SeedRecord
from frcl.features import MLP, ConvNet
from frcl.files import alone_in, sweep, sync_folder, write_atomically
from frcl.image_networks import CifarNet, ResNet18
from frcl.learners.lockstep import Work, finish, together
from frcl.learners.types import Learner, StreamLearner
from frcl.methods import make_learner
from frcl.pretrained import efficientnet_lite0
from frcl.seeding import fork

LARGEST = 1e6  # statistic that is recorded


def anonymous(inner: Benchmark) -> BuiltTasks:
    """The benchmark with labels 0..C−1 in every task, so that a label does not identify its task."""
    labels: dict[int, Tensor] = {}  # of each task requested so far

    def numbered(number: int, split: Split) -> Split:
        if number not in labels:
            labels[number] = inner.task(number).train.y.unique()
            if labels[number].is_floating_point():
                raise DataError("hidden boundaries are for classification; these tasks have real targets")
        return Split(split.x, torch.searchsorted(labels[number], split.y))

    def build(number: int) -> Task:
        return inner.task(number).changed(partial(numbered, number), inner.task_names[number])

    return BuiltTasks(inner.name, inner.task_names, build, lambda number: numbered(number, inner.test_split(number)))


def stream_labels(benchmark: Benchmark) -> list[int]:
    """0..C−1 with C the largest number of classes of a task: the labels that every task of the stream may have."""
    return list(range(max(int(benchmark.test_split(i).y.max()) + 1 for i in range(len(benchmark)))))


def learn_stream(keeper: Keeper, learner: StreamLearner, benchmark: Benchmark, seed: int, record: SeedRecord) -> None:
    """Learn `steps` minibatches of the current task; number t depends on seed and t alone, for streams that resume."""
    number, steps, batch = keeper.progress.task, keeper.config.learner.steps, keeper.config.learner.batch_size
    record.true = [steps * i for i in range(1, len(benchmark))]
    train = benchmark.task(number).train
    labels = train.y.cpu()  # the learner reads label values on the CPU
    for t in range(len(record.statistic), steps * (number + 1)):
        rows = torch.randint(len(train.x), (batch,), generator=fork(seed, f"stream/{t}"))
        with keeper.timed("train"):
            log = learner.observe(train.x[rows.to(train.x.device)], labels[rows])
        tested = log.beside if keeper.config.detector.beside else log.statistic  # infinite for scores without spread
        record.statistic.append(None if math.isnan(tested) else round(max(-LARGEST, min(tested, LARGEST)), 6))
        record.found += [t] * log.boundary
        record.task = log.task
        keeper.stepped({seed: learner}, number, log.step, [[(log.loss, log.log_likelihood, log.kl_now, log.kl_past)]])


def end_stream(learner: StreamLearner, record: SeedRecord) -> None:
    """End the open task, if it has enough examples for its inducing points, and count the bytes of all."""
    with suppress(DataError):
        learner.end_task()
    record.parts = learner.memory_parts()
    kept = [summary.bytes() for summary in learner.tasks]
    besides = sum(record.parts.values()) - sum(kept)  # counted with the first task
    record.bytes = [besides + so_far for so_far in itertools.accumulate(kept)] or [0]


Source = Callable[[int], Benchmark]
Stop = Callable[[], bool]
After = Callable[[Result], object]
States = list[dict[str, Any]] | None


def run(
    config: Config,
    folder: Path,
    observer: Observer,
    *,
    stop: Stop = lambda: False,
    overwrite: bool = False,
    after: After = lambda _: None,
) -> Result:
    """Carry out a new run in a folder; returns the result, which is also written to result.json.

    A folder that already holds a run is refused unless it may be overwritten. So is a configuration whose device or
    data are not available, before anything is written. `after` is called with the result before the folder is free.
    """
    if is_follower():
        return _follow(observer, stop, after)
    check_free(folder, overwrite=overwrite)
    source = source_of(config)
    first = source(config.seeds[0])
    folder.mkdir(parents=True, exist_ok=True)
    with alone_in(folder):
        check_free(folder, overwrite=overwrite)  # reading the data took time
        sync_folder(folder.parent)
        sweep(folder)
        for name in (CHECKPOINT, RESULT, "report.html", POINTS, PAST_LOG):
            (folder / name).unlink(missing_ok=True)
            sync_folder(folder)  # a checkpoint never outlives a file that belongs to it
        for name in ("figures", "tables"):
            shutil.rmtree(folder / name, ignore_errors=True)
        write_atomically(folder / "config.toml", to_toml(config).encode())
        return _carry_out(Keeper(config, folder, Progress(), observer, agreed(stop)), source, first, None, after)


def check_free(folder: Path, *, overwrite: bool) -> None:
    if (folder / "config.toml").exists() and not overwrite:
        raise OptionError(f"{folder} already holds a run: use `frcl resume {folder}`, another --out, or --overwrite")


def resume(folder: Path, observer: Observer, *, stop: Stop = lambda: False, after: After = lambda _: None) -> Result:
    """Continue the run in a folder from its last checkpoint; the result is that of an uninterrupted run."""
    if is_follower():
        return _follow(observer, stop, after)
    if not (folder / "config.toml").is_file():
        other = next((name for name in ("sweep", "tune") if (folder / f"{name}.json").is_file()), None)
        hint = "" if other is None else f"; go on with `frcl {other} --resume {folder}`"
        raise CheckpointError(f"{folder} holds no run: there is no config.toml in it{hint}")
    with alone_in(folder):
        sweep(folder)
        config = saved(read_toml(folder / "config.toml"))
        progress, states = read_checkpoint(folder)
        source = source_of(config)
        keeper = Keeper(config, folder, progress, observer, agreed(stop))
        return _carry_out(keeper, source, source(config.seeds[0]), states, after)


def _follow(observer: Observer, stop: Stop, after: After) -> Result:
    """Carry out the run of the first process together with it; nothing is written."""
    nothing: tuple[str, Any, States] = "", {}, None
    options, progress, states = from_first(lambda: nothing)
    config = saved(tomllib.loads(options))
    keeper = Keeper(config, None, from_json(Progress, progress, "progress"), observer, agreed(stop))
    source = source_of(config)
    return _carry_out(keeper, source, source(config.seeds[0]), states, after)


def source_of(config: Config) -> Source:
    device = environment.check_device(config.device)
    source = benchmark_source(config.benchmark, config.stream, data=config.data, device=device)
    return (lambda seed: anonymous(source(seed))) if config.hidden_boundaries else source


def benchmark_of(config: Config, seed: int) -> Benchmark:
    return source_of(config)(seed)


def check(config: Config) -> None:
    """Refuse a configuration whose device, data, network or learner are not available; nothing is written."""
    environment.check_device(config.device)
    check_files(config.benchmark, None if config.data is None else Path(config.data))
    new_learner(config, benchmark_of(config, config.seeds[0]), config.seeds[0])


def build_network(options: NetworkOptions, input_shape: tuple[int, ...], seed: int) -> nn.Module:
    """The network for inputs of that shape, its weights from the seed."""
    if options.kind == "mlp":
        return MLP(math.prod(input_shape), options.widths, last=options.last, seed=seed)
    if len(input_shape) not in (2, 3) or input_shape[-1] != input_shape[-2]:
        raise OptionError(f'network kind "{options.kind}" needs square images; inputs have shape {list(input_shape)}')
    channels = input_shape[0] if len(input_shape) == 3 else 1
    if options.kind != "conv" and len(input_shape) == 2:
        raise OptionError(f'network kind "{options.kind}" takes [channels, height, width]; got {list(input_shape)}')
    if options.kind == "cifar":
        *filters, width = options.widths
        return CifarNet(input_shape[-1], channels=channels, filters=filters, width=width, seed=seed)
    if options.kind == "efficientnet-lite0":
        return efficientnet_lite0(trained=options.trained)
    if options.kind == "resnet18":
        return ResNet18(channels=channels, seed=seed)
    return ConvNet(input_shape[-1], channels=channels, filters=options.widths, pooling=options.pooling, seed=seed)


def new_learner(config: Config, benchmark: Benchmark, seed: int) -> Learner:
    """A new learner of the configured method, on a new network for the benchmark."""
    hidden = config.hidden_boundaries
    grows = config.learner.takes_new_labels and config.detector.threshold is None  # labels when they appear
    return make_learner(
        build_network(config.network, benchmark.input_shape, seed),
        config.learner,
        seed=seed,
        device=config.device,
        detector=config.detector.detector() if hidden else None,
        labels=stream_labels(benchmark) if hidden and not grows else None,
        method=config.method,
    )


@dataclass(frozen=True)
class Seed:
    """One seed of the run: its benchmark, its learner and the record of its results."""

    seed: int
    benchmark: Benchmark
    learner: Learner
    augment: CropFlip | None = None
    record: SeedRecord = field(default_factory=SeedRecord)

    def learn(self, number: int) -> Work[Any]:
        """The work of learning one task."""
        task = self.benchmark.task(number)
        return self.learner.learn(task.train.x, task.train.y, size=task.size, augment=self.augment)


def seeds_at_once(config: Config) -> int:
    """The number of seeds trained as one program; one in a stream, whose learner branches on values at every step."""
    pays_off = config.device != "cpu" or (config.network.kind == "mlp" and config.learner.batched_on_cpu)
    return config.run.seeds_together if pays_off and not config.hidden_boundaries else 1


def _carry_out(keeper: Keeper, source: Source, first: Benchmark, states: States, after: After) -> Result:
    """Learn the seeds that are left; `first` is the benchmark of the first seed of all."""
    config, progress = keeper.config, keeper.progress
    if not is_follower():  # tells the others, if there are any, where the run stands
        from_first(lambda: (to_toml(config), to_json(progress), states))
    progress.started = progress.started or datetime.now(UTC).isoformat(timespec="seconds")
    with environment.threads(config.run.threads, tf32=config.run.tf32):
        group = _next_seeds(keeper, source, first, states)
        if group:
            keeper.observer.begin(config, list(first.task_names))
        while group:
            _learn_group(keeper, group)
            group = _next_seeds(keeper, source, first, None)
        result = from_first(partial(keeper.result, first))
    after(result)
    return result


def _next_seeds(keeper: Keeper, source: Source, first: Benchmark, states: States) -> list[Seed]:
    """The next seeds, to be learned together; their learners in the `states` of a checkpoint, if there is one."""
    config, progress, group = keeper.config, keeper.progress, list[Seed]()
    augment, count = config.stream.augmentation, len(states) if states else seeds_at_once(config)
    for place, seed in enumerate(config.seeds[progress.position :][:count], progress.position):
        if place == len(progress.records):
            progress.records.append(SeedRecord())
        benchmark = source(seed) if place else first
        group.append(Seed(seed, benchmark, new_learner(config, benchmark, seed), augment, progress.records[place]))
    if group and states:
        if len(states) != len(group):
            numbers = f"the checkpoint holds {len(states)} learners, config.toml has {len(group)} seeds left"
            raise CheckpointError(f"{numbers}; put back the seeds with which the run began")
        for one, state in zip(group, states, strict=True):
            one.learner.load_state_dict(state)
    return group


def _learn_group(keeper: Keeper, group: list[Seed]) -> None:
    progress, learners = keeper.progress, [one.learner for one in group]
    streams = [(one, cast(StreamLearner, one.learner)) for one in group if keeper.config.hidden_boundaries]
    while progress.task < len(group[0].benchmark):
        for one, learner in streams:
            learn_stream(keeper, learner, one.benchmark, one.seed, one.record)
        if not streams:
            _learn_task(keeper, group)
        with keeper.timed("evaluate"):
            for one in group:
                _evaluate(one, one.record.task if streams else progress.task)
        progress.task, progress.step = progress.task + 1, 0
        for one in group:
            rows = one.record.agnostic if keeper.config.scenario == "class" and one.record.agnostic else one.record.rows
            keeper.observer.evaluated(one.seed, progress.task - 1, rows[-1])
        keeper.checkpoint_if_due(learners)
    with keeper.timed("select"):
        for one, learner in streams:
            end_stream(learner, one.record)
    with keeper.timed("evaluate"):
        for one in group:
            one.record.final = final_scores(one.learner, one.benchmark, one.record.learned_as)
    if progress.position == 0:
        keeper.write_points(group[0].learner.kept_inputs())
    progress.position, progress.task = progress.position + len(group), 0
    keeper.checkpoint(learners if progress.position == len(keeper.config.seeds) else [])


def _learn_task(keeper: Keeper, group: list[Seed]) -> None:
    """Learn the current task with all seeds of the group; the time after the last step counts as selection."""
    progress, last = keeper.progress, time.monotonic()
    with closing(together([one.learn(progress.task) for one in group])) as steps:
        for taken in steps:
            before, last = last, time.monotonic()
            progress.spent("train", last - before)
            progress.step += len(taken)
            keeper.stepped({one.seed: one.learner for one in group}, progress.task, progress.step, taken)
    progress.spent("select", time.monotonic() - last)
    if keeper.config.run.forward_transfer:
        with keeper.timed("evaluate"):
            _learn_alone(keeper.config, group, progress.task)


def _evaluate(one: Seed, task: int) -> None:
    """Add the next row of the accuracy matrix to the record of one seed; `task` is the learner's current task."""
    record = one.record
    record.learned_as.append(task)
    whole = len(record.learned_as) == len(one.benchmark)
    named, row = evaluated(one.learner, one.benchmark, record.learned_as, whole=whole)
    record.rows.append(named)
    if one.learner.predict(one.benchmark.test_split(len(record.rows) - 1).x[:1], task).probs is None:
        record.score = "r2"
    if row is not None:
        record.agnostic.append(row.accuracy)
        record.agnostic_final = row.scores
        record.task_accuracy.append(row.task_accuracy)
        record.novelty_auroc.append(row.novelty_auroc)
    record.parts = one.learner.memory_parts()
    record.bytes.append(sum(record.parts.values()))


def _learn_alone(config: Config, group: list[Seed], number: int) -> None:
    """Record the accuracy of a new learner on one task alone, for each seed."""
    new = [replace(one, learner=new_learner(config, one.benchmark, one.seed)) for one in group]
    finish([one.learn(number) for one in new])
    for one in new:
        split = one.benchmark.test_split(number)
        one.record.alone.append(score(one.learner.predict(split.x, task=0), split.y))
