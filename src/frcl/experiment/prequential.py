"""Prequential evaluation of a stream: every minibatch is predicted first and learned from afterwards."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from frcl.errors import DataError
from frcl.experiment.metrics import score_boundaries
from frcl.learners.frcl import FRCL

CLIP = 5.0  # standardised inputs beyond this many standard deviations are cut off
LARGEST = 1e6  # statistic that is recorded


class RunningScaler:
    """Standardises inputs by mean and standard deviation of the first rows of a stream, column by column.

    Call `learn` with each minibatch, then the object itself. A column is learned until 1,000 rows were seen since its
    value first changed, then fixed: statistics that moved on would look like a change of the inputs. A column that has
    been constant is centred alone. Results are within ±5.
    """

    def __init__(self, rows: int = 1000) -> None:
        self.rows = rows
        self.count: Tensor | None = None  # rows that each column has learned from
        self.mean = self.squares = self.varied = torch.zeros(0)  # of each column; squares are Σ (x − mean)²

    def learn(self, x: Tensor) -> None:
        """Take rows [n, ...] into mean and standard deviation (Chan, Golub and LeVeque, 1979)."""
        values, n = x.double(), len(x)
        if self.count is None:
            self.mean = values.mean(0)
            self.count = self.squares = self.varied = torch.zeros_like(self.mean)
        learns = (self.varied < self.rows).double()
        mean, total = values.mean(0), self.count + n * learns
        apart, share = mean - self.mean, n * learns / total.clamp_min(1.0)
        self.squares = self.squares + learns * (values - mean).square().sum(0) + apart.square() * self.count * share
        self.mean = self.mean + apart * share
        self.count = total
        self.varied = self.varied + n * (self.squares > 0)

    @property
    def std(self) -> Tensor:
        """The standard deviation of each column; one where it has been constant."""
        if self.count is None:
            raise DataError("the scaler has seen no rows; call learn() first")
        found = (self.squares / self.count).sqrt()
        return torch.where(found > 1e-8 * self.mean.abs() + 1e-12, found, 1.0)

    def __call__(self, x: Tensor) -> Tensor:
        """The rows standardised, in their own type."""
        return ((x.double() - self.mean) / self.std).clamp(-CLIP, CLIP).to(x.dtype)


@dataclass
class Stretch:
    """Minibatches first to last, learned as one task; `change` is how it began, "" for the first."""

    task: int
    first: int
    last: int
    returned: bool
    change: str
    accuracy: float


@dataclass
class StreamResult:
    """What a stream gave; minibatches count from 0.

    accuracy     share of examples predicted right before they were learned
    right        the same of each minibatch; examples, their numbers; `statistic` of the detector, None where no test
    level        the statistic above which a change is declared
    true         minibatches at which a task truly begins, where that is known; then delay, misses, false_alarms
    """

    accuracy: float
    right: list[float]
    examples: list[int]
    statistic: list[float | None]
    level: float
    stretches: list[Stretch]
    tasks: int
    bytes: int
    true: list[int] | None = None
    delay: float | None = None
    misses: int | None = None
    false_alarms: int | None = None
    scaling: dict[str, list[float]] = field(default_factory=dict)

    @property
    def found(self) -> list[int]:
        """The minibatches at which a change was declared."""
        return [one.first for one in self.stretches[1:]]


def evaluate(
    learner: FRCL, stream: Iterable[tuple[Tensor, Any]], *, scaler: RunningScaler | None = None,
    true: Sequence[int] | None = None, tolerance: int = 10, on_step: Callable[[], None] = lambda: None,
) -> StreamResult:  # fmt: skip
    """Predict every minibatch in the task that is open, then learn from it.

    `true` are the minibatches at which tasks truly begin. A change that is found at most `tolerance` minibatches late
    counts as found.
    """
    right: list[float] = []
    examples: list[int] = []
    statistic: list[float | None] = []
    stretches: list[Stretch] = []
    for t, (rows, y) in enumerate(stream):
        x = rows
        if scaler is not None:
            scaler.learn(rows)
            x = scaler(rows)
        labels = np.asarray(y)
        share = 0.0
        if learner.step:
            found = learner.predict(x, task=learner._state.number).labels
            if found is None:
                raise DataError("a prequential accuracy needs labels; the targets of this stream are numbers")
            share = float(np.mean(np.asarray(found) == labels))
        log = learner.observe(x, y)
        right.append(share)
        examples.append(len(labels))
        tested = None if math.isnan(log.statistic) else max(-LARGEST, min(log.statistic, LARGEST))
        statistic.append(tested)
        if log.boundary or not stretches:
            stretches.append(Stretch(log.task, t, t, log.returned, log.change, 0.0))
        stretches[-1].last = t
        on_step()
    if not right:
        raise DataError("the stream has no minibatch")
    for one in stretches:
        own = slice(one.first, one.last + 1)
        one.accuracy = float(np.average(right[own], weights=examples[own]))
    result = StreamResult(
        float(np.average(right, weights=examples)), right, examples, statistic,
        learner.detector.level if learner.detector is not None else math.inf, stretches, learner._count,
        learner.memory_bytes(), None if true is None else list(true),
    )  # fmt: skip
    if true is not None:
        score = score_boundaries(true, result.found, result.level, tolerance)
        hits = round(score.recall * len(true))
        result.delay, result.misses, result.false_alarms = score.delay, len(true) - hits, len(result.found) - hits
    if scaler is not None:
        result.scaling = {"mean": scaler.mean.flatten().tolist(), "std": scaler.std.flatten().tolist()}
    return result
