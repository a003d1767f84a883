"""Prequential evaluation of a stream: every minibatch is predicted first and learned from afterwards."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from frcl import codec
from frcl.errors import CheckpointError, DataError
from frcl.experiment.metrics import score_boundaries
from frcl.experiment.tracking import Tracked, Tracker
from frcl.files import apart, load_state, save_state, side_by_side
from frcl.learners.frcl import FRCL
from frcl.learners.types import StepLog
from frcl.likelihoods import Label

CLIP = 5.0  # standardised inputs beyond this many standard deviations are cut off
TINY = 1e-30  # under a logarithm
LARGEST = 1e6  # statistic that is recorded


@dataclass
class Scaling:
    """Of each column: rows that it has learned from, mean, Σ (x − mean)², and rows since its value first changed."""

    count: Tensor
    mean: Tensor
    squares: Tensor
    varied: Tensor


class RunningScaler:
    """Standardises inputs by mean and standard deviation of the first rows of a stream, column by column.

    Call `learn` with each minibatch, then the object itself. A column is learned until 1,000 rows were seen since its
    value first changed, then fixed: statistics that moved on would look like a change of the inputs. A column that has
    been constant is centred alone. Results are within ±5.
    """

    def __init__(self, rows: int = 1000) -> None:
        self.rows = rows
        self._state: Scaling | None = None

    @property
    def state(self) -> Scaling:
        """What was learned."""
        if self._state is None:
            raise DataError("the scaler has seen no rows; call learn() first")
        return self._state

    @state.setter
    def state(self, state: Scaling) -> None:
        self._state = state

    def learn(self, x: Tensor) -> None:
        """Take rows [n, ...] into mean and standard deviation (Chan, Golub and LeVeque, 1979)."""
        values, n = x.double(), len(x)
        if not bool(values.isfinite().all()):  # they would stay in the statistics for ever
            raise DataError("inputs contain NaN or infinite values; remove or replace them first")
        mean = values.mean(0)
        zero = torch.zeros_like(mean)
        old = self._state or Scaling(zero, mean, zero, zero)
        learns = (old.varied < self.rows).double()
        total = old.count + n * learns
        apart, share = mean - old.mean, n * learns / total.clamp_min(1.0)
        squares = old.squares + learns * (values - mean).square().sum(0) + apart.square() * old.count * share
        self._state = Scaling(total, old.mean + apart * share, squares, old.varied + n * (squares > 0))

    def fix(self) -> None:
        """Learn no more of columns that have varied: the data have changed, and are not of the first task."""
        own = self.state
        self._state = replace(own, varied=torch.where(own.varied > 0, own.varied.clamp_min(self.rows), own.varied))

    @property
    def mean(self) -> Tensor:
        """The mean of each column."""
        return self.state.mean

    @property
    def std(self) -> Tensor:
        """The standard deviation of each column; one where it has been constant."""
        own = self.state
        found = (own.squares / own.count).sqrt()
        return torch.where(found > 1e-8 * own.mean.abs() + 1e-12, found, 1.0)

    def __call__(self, x: Tensor) -> Tensor:
        """The rows standardised, in their own type."""
        return ((x.double() - self.state.mean) / self.std).clamp(-CLIP, CLIP).to(x.dtype)


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
class OtherDetector:
    """What a detector of another library found in the same scores; misses and false alarms where changes are known."""

    name: str
    found: list[int]
    misses: int | None = None
    false_alarms: int | None = None


@dataclass
class StreamResult:
    """What a stream gave; minibatches count from 0.

    accuracy     share of examples predicted right before they were learned
    right        the same of each minibatch; examples, their numbers; `statistic` of the detector, None where no test
    level        the statistic above which a change is declared
    true         minibatches at which a task truly begins, where that is known; then delay, misses, false_alarms
    scores       the mean log boundary score of each minibatch, where kept; others, what River's detectors find in it
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
    scores: list[float | None] = field(default_factory=list)
    others: list[OtherDetector] = field(default_factory=list)

    @property
    def found(self) -> list[int]:
        """The minibatches at which a change was declared."""
        return [one.first for one in self.stretches[1:]]


@dataclass
class Progress:
    """What an evaluation has found so far, to go on with: the lists of `StreamResult`, and what runs beside."""

    right: list[float] = field(default_factory=list)
    examples: list[int] = field(default_factory=list)
    statistic: list[float | None] = field(default_factory=list)
    stretches: list[Stretch] = field(default_factory=list)
    scores: list[float | None] = field(default_factory=list)
    scaler: Scaling | None = None
    tracked: Tracked | None = None


class Evaluation:
    """A learner and a stream: `step` predicts a minibatch in the task of the last one, then learns from it.

    With a `tracker` the prediction is that of learner and tracker together. `keep_scores` records the boundary scores,
    for other detectors. `save` and `load` go on with it later, exactly.
    """

    def __init__(
        self, learner: FRCL, scaler: RunningScaler | None = None, tracker: Tracker | None = None, *,
        keep_scores: bool = False,
    ) -> None:  # fmt: skip
        self.learner, self.scaler, self.tracker, self.keep_scores = learner, scaler, tracker, keep_scores
        self.progress = Progress()

    @property
    def steps(self) -> int:
        """Minibatches so far."""
        return len(self.progress.right)

    def step(self, rows: Tensor, y: Any) -> StepLog:
        """One minibatch."""
        learner, progress, x = self.learner, self.progress, rows
        if self.scaler is not None:
            self.scaler.learn(rows)
            x = self.scaler(rows)
        labels, score = np.asarray(y), None
        own: Tensor | None = None
        classes: tuple[Label, ...] = ()
        share = 0.0
        if learner.step:
            found = learner.predict(x, task=progress.stretches[-1].task if progress.stretches else None)
            if found.labels is None or found.probs is None or found.classes is None:
                raise DataError("a prequential accuracy needs labels; the targets of this stream are numbers")
            own, classes = found.probs, found.classes
            probs = own if self.tracker is None else self.tracker.predict(x, own, classes)
            chosen = np.asarray(classes)[probs.argmax(1).cpu().numpy()]
            share = float(np.mean(chosen == labels))
            if self.keep_scores:
                score = float(learner.familiarity(x).clamp_min(TINY).log().mean())
        log = learner.observe(x, y)
        if log.boundary and self.scaler is not None:
            self.scaler.fix()
        if self.tracker is not None:
            self.tracker.learn(x, labels.tolist(), own, classes)
        progress.right.append(share)
        progress.examples.append(len(labels))
        progress.scores.append(score)
        tested = None if math.isnan(log.statistic) else max(-LARGEST, min(log.statistic, LARGEST))
        progress.statistic.append(tested)
        t = len(progress.right) - 1
        if log.boundary or not progress.stretches:
            progress.stretches.append(Stretch(log.task, t, t, log.returned, log.change, 0.0))
        elif progress.stretches[-1].change and learner.detector is not None:
            progress.stretches[-1].change = learner.detector.change  # what came since may show it
        now = progress.stretches[-1]
        now.task, now.last, now.returned = log.task, t, now.returned or log.returned
        return log

    def result(self, true: Sequence[int] | None = None, tolerance: int = 10) -> StreamResult:
        """What was found; `true` are the minibatches at which tasks truly begin."""
        learner, own = self.learner, self.progress
        if not own.right:
            raise DataError("the stream has no minibatch")
        for one in own.stretches:
            part = slice(one.first, one.last + 1)
            one.accuracy = float(np.average(own.right[part], weights=own.examples[part]))
        result = StreamResult(
            float(np.average(own.right, weights=own.examples)), own.right, own.examples, own.statistic,
            learner.detector.level if learner.detector is not None else math.inf, own.stretches, learner._count,
            learner.memory_bytes(), None if true is None else list(true), scores=own.scores,
        )  # fmt: skip
        if true is not None:
            result.delay, result.misses, result.false_alarms = scored(true, result.found, tolerance)
        if self.scaler is not None:
            result.scaling = {"mean": self.scaler.mean.flatten().tolist(), "std": self.scaler.std.flatten().tolist()}
        return result

    def save(self, path: Path) -> None:
        """Write everything that decides what happens next."""
        self.progress.scaler = None if self.scaler is None else self.scaler.state
        self.progress.tracked = None if self.tracker is None else self.tracker.state
        states = [self.learner.state_dict(), codec.pack(self.progress)]
        save_state(path, {"stream": [state["meta"] for state in states]}, side_by_side(states))

    def load(self, path: Path) -> None:
        """Go on where the evaluation that wrote `path` was; the learner, scaler and tracker are made as for that."""
        meta, tensors = load_state(path)
        if not isinstance(metas := meta.get("stream"), list) or len(metas) != 2:
            raise CheckpointError(f"{path} is not the checkpoint of a stream")
        states = apart(metas, tensors)
        progress = codec.unpack(Progress, states[1])
        if (progress.scaler is None, progress.tracked is None) != (self.scaler is None, self.tracker is None):
            raise CheckpointError(f"{path} was written with another scaler or tracker; make them as they were")
        self.learner.load_state_dict(states[0])
        self.progress = progress
        if self.scaler is not None and progress.scaler is not None:
            self.scaler.state = progress.scaler
        if self.tracker is not None and progress.tracked is not None:
            self.tracker.state = progress.tracked


def evaluate(
    learner: FRCL, stream: Iterable[tuple[Tensor, Any]], *, scaler: RunningScaler | None = None,
    tracker: Tracker | None = None, true: Sequence[int] | None = None, tolerance: int = 10,
) -> StreamResult:  # fmt: skip
    """Predict every minibatch in the task that is open, then learn from it; see `Evaluation`.

    `true` are the minibatches at which tasks truly begin. A change that is found at most `tolerance` minibatches late
    counts as found.
    """
    run = Evaluation(learner, scaler, tracker)
    for rows, y in stream:
        run.step(rows, y)
    return run.result(true, tolerance)


def scored(true: Sequence[int], found: Sequence[int], tolerance: int) -> tuple[float | None, int, int]:
    """Mean delay, misses and false alarms of changes found."""
    score = score_boundaries(true, found, 0.0, tolerance)
    hits = round(score.recall * len(true))
    return score.delay, len(true) - hits, len(found) - hits
