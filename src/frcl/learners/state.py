"""The mutable state of a learner: past summaries, the task being learned with its stream, regularisers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from frcl.boundary import BoundaryDetector, Decision
from frcl.engine.train import Optimiser, StreamSteps
from frcl.errors import NumericalError, TaskError
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
    places = []
    for n, draw in enumerate(draws, seen + 1):
        if held < capacity:
            places.append(held)
            held += 1
        else:
            place = int(draw * n)
            places.append(place if place < capacity else -1)
    return places


class Window:
    """Reservoir sampling: after n examples each of them is held with probability min(1, capacity/n)."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.seen = 0
        self.minibatches = 0
        self._x: Tensor | None = None
        self._y: Tensor | None = None
        self.sums: tuple[int, Tasks] | None = None  # after how many examples; with those of past tasks
        self._came = torch.zeros(capacity, dtype=torch.int64)  # the minibatch that an example came with, from 1

    def add(self, x: Tensor, y: Tensor, generator: torch.Generator) -> None:
        """Take in a minibatch (copied)."""
        if self._x is None or self._y is None:
            self._x = x.new_empty(self.capacity, *x.shape[1:])
            self._y = y.new_empty(self.capacity, *y.shape[1:])
        self.minibatches += 1
        drawn = reservoir_places(self.seen, len(self), len(x), self.capacity, generator)
        kept = {place: row for row, place in enumerate(drawn) if place >= 0}  # by place: the last row that fell there
        self.seen += len(x)
        if kept:
            places, rows = (torch.tensor(list(part), device=x.device) for part in (kept, kept.values()))
            self._x[places] = x[rows]
            self._y[places] = y[rows]
            self._came[list(kept)] = self.minibatches

    def __len__(self) -> int:
        return min(self.seen, self.capacity)

    def data(self) -> tuple[Tensor, Tensor]:
        """The examples held."""
        assert self._x is not None
        assert self._y is not None
        return self._x[: len(self)], self._y[: len(self)]

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
        if self._x is None or self._y is None:
            return Window(self.capacity)
        return Window.restored(
            self.capacity, self.seen, self.minibatches, self.data()[0], classes[self.data()[1]], self.came()
        )

    @classmethod
    def restored(cls, capacity: int, seen: int, minibatches: int, x: Tensor, y: Tensor, came: Tensor) -> Window:
        """A window with the given content, `data()` and `came()` of the one that was saved."""
        window = cls(capacity)
        window.seen, window.minibatches = seen, minibatches
        window._came[: len(came)] = came
        window._x = x.new_empty(capacity, *x.shape[1:])
        window._y = y.new_empty(capacity, *y.shape[1:])
        window._x[: len(x)] = x
        window._y[: len(y)] = y
        return window


@dataclass(frozen=True)
class Declared:
    """What start_task() said of the task that the next minibatch opens."""

    labels: tuple[Label, ...] | None = None
    likelihood: str | None = None
    size: int | None = None


@dataclass
class CurrentTask:
    """The task being learned: everything that is dropped or turned into a summary when it ends.

    params     what is trained, by the optimiser
    data_mark  identifies the data that fit() began with; None for a stream
    Z          fixed inducing inputs (function space)
    window     observe() keeps a sample of the data here; fit() has the data at hand
    recent     the last minibatches, where the detector has them scored again
    shown      with a detector: the classes that occurred so far; only they are tested
    returned   the number of the past task that this one is, opened again; None for a new one
    estimated  whether N is estimated while the stream runs; `before`, the N that a task had when it ended before
    """

    likelihood: Likelihood
    N: float
    params: Parameters
    optimiser: Optimiser
    Z: Tensor | None = None
    data_mark: str | None = None
    window: Window | None = None
    recent: tuple[Tensor, ...] = ()
    shown: set[int] = field(default_factory=set)
    returned: int | None = None
    estimated: bool = False
    before: int = 0
    stream: StreamSteps | None = None  # the step and the boundary score of observe(), made once per task
    score: Captured | None = None

    @property
    def step(self) -> int:
        """Steps taken."""
        return self.optimiser.steps

    def open_window(self, number: int) -> Window:
        """The sample of a stream's data; a task that fit() opened has none."""
        if self.window is None:
            raise TaskError(
                f"task {number} was opened by fit(): go on by calling it exactly as it began, or drop the task with "
                "abandon_task()"
            )
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

    def is_open(self, number: int) -> bool:
        """Whether the task of this number is being learned."""
        return self.current is not None and number == self.number

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
    detector: BoundaryDetector, current: CurrentTask, score: Score, x: Tensor, y: Tensor | None, draws: Tensor,
    features: Tensor, *, allow: bool,
) -> Decision:  # fmt: skip
    """What the detector says of a minibatch; where it wants the last ones scored again, they are.

    `y` is None if these are not labels of the task. `draws` are those of a prediction, `features` those of the inputs
    that are never trained.
    """
    functions = sorted(current.shown) if _function_per_class(current) and not detector.all_functions else None
    if not (detector.rescore and detector.due and allow and current.recent):
        scores, *moments = scores_of(score, [x])
        density = None
        if detector.tests_labels and y is not None:
            density = _log_density(current, Moments(*moments), y.cpu(), draws.cpu())
        guess = -math.log(max(len(current.shown), 2)) if current.likelihood.classes is not None else None
        return detector.update(
            scores, allow=allow, functions=functions, log_density=density, features=features, guess=guess
        )
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
    classes = current.likelihood.classes
    if classes is not None and len(current.shown) < len(classes):
        current.shown = current.shown | set(y.tolist())


def _function_per_class(current: CurrentTask) -> bool:
    return current.likelihood.functions > 1 and current.likelihood.classes is not None
