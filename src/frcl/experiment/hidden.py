"""Hidden boundaries: Algorithm 1 on one stream of minibatches, without any information about the tasks."""

import contextlib
import itertools
import math
from functools import partial

import torch
from torch import Tensor

from frcl.data.tasks import Benchmark, BuiltTasks, Split, Task
from frcl.errors import DataError
from frcl.experiment.keeper import Keeper
from frcl.experiment.results import SeedRecord
from frcl.learners.types import StreamLearner
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
    """Learn `steps` minibatches of the current task of the benchmark.

    Minibatch number t depends on the seed and t alone, so a resumed stream continues exactly.
    """
    number, steps, batch = keeper.progress.task, keeper.config.learner.steps, keeper.config.learner.batch_size
    record.true = [steps * i for i in range(1, len(benchmark))]
    train = benchmark.task(number).train
    labels = train.y.cpu()  # the learner reads label values on the CPU
    while len(record.statistic) < steps * (number + 1):
        t = len(record.statistic)
        rows = torch.randint(len(train.x), (batch,), generator=fork(seed, f"stream/{t}"))
        with keeper.timed("train"):
            log = learner.observe(train.x[rows.to(train.x.device)], labels[rows])
        tested = log.beside if keeper.config.detector.beside else log.statistic  # infinite for scores without spread
        record.statistic.append(None if math.isnan(tested) else round(max(-LARGEST, min(tested, LARGEST)), 6))
        record.found += [t] * log.boundary
        keeper.stepped({seed: learner}, number, log.step, [[(log.loss, log.log_likelihood, log.kl_now, log.kl_past)]])


def end_stream(learner: StreamLearner, record: SeedRecord) -> None:
    """End the open task, if it has enough examples for its inducing points, and count the bytes of all."""
    with contextlib.suppress(DataError):
        learner.end_task()
    record.parts = learner.memory_parts()
    kept = [summary.bytes() for summary in learner.tasks]
    besides = sum(record.parts.values()) - sum(kept)  # counted with the first task
    record.bytes = [besides + so_far for so_far in itertools.accumulate(kept)] or [0]
