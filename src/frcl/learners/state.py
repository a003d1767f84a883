"""The mutable state of a learner: past summaries, the task being learned with its stream, regularisers."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from frcl.boundary import BoundaryDetector, Decision
from frcl.engine.train import Optimiser, StreamSteps
from frcl.errors import DataError, NumericalError, TaskError
from frcl.exact.model import Tasks
from frcl.features import network_failures
from frcl.graphs import Captured
from frcl.learners.base import State
from frcl.learners.objective import Parameters
from frcl.learners.types import Summary
from frcl.likelihoods import Label, Likelihood
from frcl.posterior import Moments
from frcl.regularisers.heads import with_trained_heads
from frcl.regularisers.protocol import Kept


def reservoir_places(seen: int, held: int, count: int, capacity: int, generator: torch.Generator) -> list[int]:
    """The place of each of `count` further examples in a reservoir that holds some of those `seen`; −1: dropped.

    Places that are still free, or were emptied, are filled first.
    """
    draws: list[float] = torch.rand(count, generator=generator, dtype=torch.float64, device=generator.device).tolist()
    free = range(held, min(held + count, capacity))
    drawn = [int(draw * n) for n, draw in enumerate(draws, seen + 1)]
    return [*free, *(place if place < capacity else -1 for place in drawn[len(free) :])]


class Window:
    """Reservoir sampling: after n examples each of them is held with probability min(1, capacity/n)."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.seen = self.minibatches = 0
        self._held: tuple[Tensor, Tensor] | None = None  # inputs and targets, with room for `capacity` of them
        self.sums: tuple[int, Tasks] | None = None  # after how many examples; with those of past tasks
        self._came = torch.zeros(capacity, dtype=torch.int64)  # the minibatch that an example came with, from 1

    def add(self, x: Tensor, y: Tensor, generator: torch.Generator) -> None:
        """Take in a minibatch (copied)."""
        if self._held is None:
            self._held = x.new_empty(self.capacity, *x.shape[1:]), y.new_empty(self.capacity, *y.shape[1:])
        self.minibatches += 1
        drawn = reservoir_places(self.seen, len(self), len(x), self.capacity, generator)
        kept = {place: row for row, place in enumerate(drawn) if place >= 0}  # by place: the last row that fell there
        self.seen += len(x)
        if kept:
            places, rows = (torch.tensor(list(part), device=x.device) for part in (kept, kept.values()))
            for held, given in zip(self._held, (x, y), strict=True):
                held[places] = given[rows]
            self._came[list(kept)] = self.minibatches

    def __len__(self) -> int:
        return min(self.seen, self.capacity)

    def data(self) -> tuple[Tensor, Tensor]:
        """The examples held."""
        assert self._held is not None
        x, y = self._held
        return x[: len(self)], y[: len(self)]

    def came(self) -> Tensor:
        """The number of the minibatch that each example held came with."""
        return self._came[: len(self)]

    def data_without(self, last: int, least: int) -> tuple[Tensor, Tensor]:
        """The examples that came before the last minibatches, as many as `last`; all if these are fewer than `least`.

        They are a uniform sample of the stream until then.
        """
        x, y = self.data()
        before = self.came() <= self.minibatches - last
        if last == 0 or int(before.sum()) < least:
            return x, y
        rows = before.nonzero()[:, 0].to(x.device)
        return x[rows], y[rows]

    def recoded(self, classes: Tensor) -> Window:
        """A copy with other numbers for its classes."""
        if self._held is None:
            return Window(self.capacity)
        x, y = self.data()
        return Window.restored(self.capacity, self.seen, self.minibatches, x, classes[y], self.came())

    @classmethod
    def restored(
        cls, capacity: int, seen: int, minibatches: int, x: Tensor | None, y: Tensor | None, came: Tensor | None
    ) -> Window:
        """A window with the given content, `data()` and `came()` of the one that was saved; None where it was empty."""
        window = cls(capacity)
        if x is not None and y is not None and came is not None:
            window.seen, window.minibatches = seen, minibatches
            window._held = x.new_empty(capacity, *x.shape[1:]), y.new_empty(capacity, *y.shape[1:])
            for held, given in zip((*window._held, window._came), (x, y, came), strict=True):
                held[: len(given)] = given
        return window


@dataclass(frozen=True)
class Declared:
    """What start_task() said of the task that the next minibatch opens."""

    labels: tuple[Label, ...] | None = None
    likelihood: str | None = None
    size: int | None = None


@dataclass
class CurrentTask:
    """The task being learned: everything that is dropped or turned into a summary when it ends."""

    likelihood: Likelihood
    N: float
    params: Parameters  # what is trained, by the optimiser
    optimiser: Optimiser
    Z: Tensor | None = None  # fixed inducing inputs (function space)
    data_mark: str | None = None  # identifies the data that fit() began with; None for a stream
    window: Window | None = None  # observe() keeps a sample of the data here; fit() has the data at hand
    recent: tuple[Tensor, ...] = ()  # minibatches that the detector has scored again: the last ones, or the first one
    shown: set[int] = field(default_factory=set)  # with a detector: the classes that occurred; only they are tested
    returned: int | None = None  # the number of the past task that this one is, opened again; None for a new one
    estimated: bool = False  # whether N is estimated while the stream runs
    before: int = 0  # the N that the task had when it ended before
    stream: StreamSteps | None = None  # the step and the boundary score of observe(), made once per task
    score: Captured | None = None

    def open_window(self, number: int) -> Window:
        """The sample of a stream's data; a task that fit() opened has none."""
        if self.window is None:
            advice = "go on by calling it exactly as it began, or drop the task with abandon_task()"
            raise TaskError(f"task {number} was opened by fit(): {advice}")
        return self.window


LEAST_SIZE = 1000  # N of the first task of a stream, until it has shown more examples


def estimated_size(past: Sequence[int], seen: int, before: int = 0) -> float:
    """N of a task that has shown `seen` examples since it was opened, and `before` when it was opened earlier.

    What it has shown, or the mean of the past tasks where that is more: max(seen, mean N_i) + before.
    """
    usual = sum(past) / len(past) if past else LEAST_SIZE
    return float(before + max(seen, round(usual)))


@dataclass(eq=False)
class LearnerState(State):
    """Everything of FRCL that changes, the network's weights apart."""

    past: list[Summary] = field(default_factory=list)
    current: CurrentTask | None = None
    declared: Declared | None = None

    @property
    def number(self) -> int:
        """The number of the task that is open; of the next one if none is."""
        if self.current is None or self.current.returned is None:
            return len(self.past)
        return self.current.returned

    @property
    def window(self) -> Window | None:
        """A sample of the open task of a stream; None where no stream has an open task."""
        return None if self.current is None else self.current.window or None

    def estimate_size(self, seen: int) -> None:
        """Set N of the open task to what it is after `seen` examples; the step reads it from a tensor."""
        current = self.current
        assert current is not None
        past = [one.size for number, one in enumerate(self.past) if number != current.returned]
        current.N = estimated_size(past, seen, current.before)
        if current.stream is not None:
            current.stream.program.constants.N.fill_(current.N)
        if current.optimiser.natural is not None:
            current.optimiser.natural.fill_(current.N)

    def opened(self, number: int) -> CurrentTask | None:
        """The task of this number if it is being learned."""
        return self.current if number == self.number else None

    def summaries(self) -> list[Summary]:
        """The past summaries with their heads as they are now: a task may train them along."""
        return with_trained_heads(self.past, None if self.current is None else self.current.params.heads)

    def kept(self) -> Kept:
        """What is kept of past tasks beside what the regularisers keep."""
        each = [summary.kept() for summary in self.past]
        kinds = ("points", "posterior", "heads", "statistics")
        kept = {kind: [value for one in each for value in one[kind]] for kind in kinds}
        if any(one.trains_heads for one in self.regularisers):
            kept["heads"] *= 2  # a second copy while a task is learned
        return kept


Score = Callable[[Tensor], Tensor]


def scores_of(score: Score, minibatches: Sequence[Tensor], *, at_once: bool = False) -> Tensor:
    """Boundary scores of some minibatches, and moments of f, [3, Σ B, C], on the CPU; `at_once`: in one call."""
    parts = [torch.cat(list(minibatches))] if at_once else list(minibatches)
    with torch.no_grad(), network_failures():
        scores = torch.cat([score(part).clone() for part in parts], 1)
    scores = scores.cpu()  # where the test is made; to check them on the device would be to wait for it twice
    if not bool(scores.isfinite().all()):
        raise NumericalError("the features of these inputs are too large to be scored; scale the inputs")
    return scores


def decide(
    detector: BoundaryDetector, current: CurrentTask, score: Score, x: Tensor, y: Any, draws: Tensor, features: Tensor,
    *, allow: bool,
) -> Decision:  # fmt: skip
    """What the detector says of a minibatch; where it wants the last ones scored again, they are.

    `draws` are those of a prediction, `features` those of the inputs that are never trained.
    """
    of_classes = current.likelihood.classes is not None and current.likelihood.functions > 1
    functions = sorted(current.shown) if of_classes and not detector.all_functions else None
    if not (detector.rescore and detector.due and allow and current.recent):
        first = [] if detector.rescore else list(current.recent)  # scored by the same model as x
        (both, *moments), density = scores_of(score, [*first, x], at_once=not x.is_cuda), None
        old, scores = both[: -len(x)], both[-len(x) :]
        moments = [part[-len(x) :] for part in moments]
        if detector.tests_labels:
            with contextlib.suppress(DataError):  # labels that are not of this task may be of the next one
                targets = current.likelihood.encode(y, x.device, draws.dtype).cpu()
                density = _log_density(current, Moments(*moments), targets, draws.cpu())
        guess = -math.log(max(len(current.shown), 2)) if current.likelihood.classes is not None else None
        return detector.update(
            scores, allow=allow, reference=old if len(old) else None, functions=functions, log_density=density,
            features=features, guess=guess,
        )  # fmt: skip
    both = scores_of(score, [*current.recent, x], at_once=len(current.recent) == detector.window or not x.is_cuda)[0]
    return detector.update(both[-len(x) :], reference=both[: -len(x)], functions=functions, features=features)


def _log_density(current: CurrentTask, moments: Moments, y: Tensor, draws: Tensor) -> Tensor:
    """log p(y | x) of the examples whose class the task has shown; of all, where targets are numbers."""
    learned = {name: value.detach().cpu() for name, value in current.params.likelihood.items()}
    if current.likelihood.classes is not None:
        rows = torch.isin(y, torch.tensor(sorted(current.shown), dtype=y.dtype))
        moments, y = Moments(*(part[rows] for part in moments)), y[rows]
    with torch.no_grad():
        return current.likelihood.log_predictive(*moments, y, draws, learned)


def remember(detector: BoundaryDetector, current: CurrentTask, x: Tensor, y: Tensor) -> None:
    """A step was taken on this minibatch: the next ones may be compared with it."""
    if detector.rescore:
        current.recent = (*current.recent, x.clone())[-detector.window :]
    elif detector.compares and not current.recent:
        current.recent = (x.clone(),)
    classes = current.likelihood.classes
    if classes is not None and len(current.shown) < len(classes):
        current.shown = current.shown | set(y.tolist())
