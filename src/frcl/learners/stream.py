"""One minibatch of a stream: its boundary scores and one gradient step; on CUDA both are recorded once a task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from frcl.boundary import BoundaryDetector, Decision
from frcl.engine.adam import gradient
from frcl.engine.program import Terms
from frcl.engine.tensors import Params, refuse_non_finite_loss
from frcl.errors import NumericalError
from frcl.features import network_failures
from frcl.graphs import Step, captured
from frcl.learners.objective import Noise, posterior_of
from frcl.learners.state import CurrentTask, Recorded
from frcl.regularisers.functional import sample_tasks
from frcl.seeding import Streams

EAGER = 10  # steps of a task before it is recorded: a short one is not worth it


def scores_of(current: CurrentTask, minibatches: Sequence[Tensor], *, at_once: bool = False) -> Tensor:
    """The boundary scores of some minibatches, [Σ B, C], on the CPU; `at_once`: as many will come again and again."""
    recording = _recording(current, minibatches[-1])
    if recording is not None and all(recording.fits(x) for x in minibatches):
        parts = [torch.cat(list(minibatches))] if at_once else minibatches
        scores = torch.cat([recording.scores(x).clone() for x in parts])
    else:
        with torch.no_grad(), network_failures():
            scores = current.objective.familiarity(current.params, current.memory, torch.cat(list(minibatches)))
    scores = scores.cpu()  # where the test is made; to look at them on the device would be to wait for it twice
    if not bool(scores.isfinite().all()):
        raise NumericalError("the features of these inputs are too large to be scored; scale the inputs")
    return scores


def watch(detector: BoundaryDetector, current: CurrentTask, x: Tensor, *, allow: bool) -> Decision:
    """What the detector says of a minibatch; where it wants the last ones scored again, they are."""
    functions = sorted(current.shown) if _has_classes(current) and not detector.all_functions else None
    if not (detector.rescore and detector.due and allow and current.recent):
        return detector.update(scores_of(current, [x]), allow=allow, functions=functions)
    both = scores_of(current, [*current.recent, x], at_once=len(current.recent) == detector.window)
    return detector.update(both[-len(x) :], reference=both[: -len(x)], functions=functions)


def remember(detector: BoundaryDetector | None, current: CurrentTask, x: Tensor, y: Tensor) -> None:
    """A step was taken on this minibatch: the next ones may be compared with it."""
    if detector is None:
        return
    if detector.rescore:
        current.recent = (*current.recent, x.clone())[-detector.window :]
    if _has_classes(current) and len(current.shown) < current.target.functions:
        current.shown |= set(y.tolist())


def _has_classes(current: CurrentTask) -> bool:
    """Whether each function is that of a class."""
    return current.target.functions > 1 and current.target.labels is not None


def take_step(current: CurrentTask, past_tasks_per_step: int | None, streams: Streams, x: Tensor, y: Tensor) -> Terms:
    """One gradient step on a minibatch; a loss that is not finite is refused before it."""
    noise = _noise(current, past_tasks_per_step, streams, x)
    recording = _recording(current, x)
    if recording is not None and recording.fits(x):
        return recording.step(x, y, noise)
    with network_failures():
        terms = current.objective(current.params, current.memory, (x, y), noise)
    current.optimiser.step(terms.loss)
    return terms


def _recording(current: CurrentTask, x: Tensor) -> Recorded | None:
    """The task's recording, begun when it is due: by the number of steps alone, so that a resumed stream has it too."""
    if current.recording is None and x.is_cuda and current.step >= EAGER:
        current.recording = Recording(current, x)
    return current.recording


def _noise(current: CurrentTask, past_tasks_per_step: int | None, streams: Streams, x: Tensor) -> Noise:
    target, bank = current.target, current.memory.past
    looked_at = sample_tasks(0 if bank is None else bank.tasks, past_tasks_per_step, 1, streams["past"])
    shape = target.likelihood.noise_shape(len(x), target.functions, True)
    dtype = posterior_of(current.params).mean.dtype
    drawn = torch.randn(shape, generator=streams["likelihood"], device=x.device, dtype=dtype)
    return Noise(drawn, None if looked_at is None else looked_at[0])


class Scored(NamedTuple):
    """The scores of some inputs as a CUDA graph: from `x` into `scores`."""

    x: Tensor
    scores: Tensor
    replay: Step


class Recording:
    """Scores, gradient and update of the current task as CUDA graphs, for minibatches of one shape.

    The update is a graph of its own, so that a loss can be looked at before its step is taken. Whatever a graph reads
    or writes is held here: it knows addresses alone. Lives as long as the task; a copy of the learner records anew.
    """

    def __init__(self, current: CurrentTask, x: Tensor) -> None:
        self._objective, self._params, self._memory = current.objective, current.params, current.memory
        self._optimiser, self._functions = current.optimiser, current.target.functions
        self._x = x.clone()
        self._y: Tensor | None = None
        self._noise: Noise | None = None
        self._terms = torch.zeros(len(Terms._fields), dtype=torch.float64, device=x.device)
        self._slopes: Params = {}
        self._scored: dict[int, Scored] = {}  # by the number of inputs
        self._look: Step | None = None
        self._move: Step | None = None

    def _record_scores(self, x: Tensor) -> Scored:
        like = posterior_of(self._params).mean
        given, held = x.clone(), like.new_zeros(len(x), self._functions, requires_grad=False)

        def score() -> None:
            with torch.no_grad():
                held.copy_(self._objective.familiarity(self._params, self._memory, given))

        return Scored(given, held, captured(score, [held], x.device))

    def _record_step(self, y: Tensor, noise: Noise) -> tuple[Step, Step]:
        params, optimiser = self._params, self._optimiser
        labels = self._y = y.clone()
        drawn = self._noise = Noise(noise.likelihood.clone(), None if noise.tasks is None else noise.tasks.clone())
        self._slopes = {name: torch.zeros_like(value, requires_grad=False) for name, value in params.items()}

        def look() -> None:
            terms = self._objective(params, self._memory, (self._x, labels), drawn)
            for name, value in gradient(terms.loss, params).items():
                self._slopes[name].copy_(value)
            self._terms.copy_(torch.stack([term.detach().double() for term in terms]))

        def move() -> None:
            optimiser.apply(self._slopes)

        device = self._x.device
        return captured(look, [self._terms, *self._slopes.values()], device), captured(
            move, optimiser.changes(), device
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        return None

    def fits(self, x: Tensor) -> bool:
        return x.shape == self._x.shape and x.dtype == self._x.dtype

    def scores(self, x: Tensor) -> Tensor:
        if len(x) not in self._scored:
            self._scored[len(x)] = self._record_scores(x)
        recorded = self._scored[len(x)]
        recorded.x.copy_(x)
        recorded.replay()
        return recorded.scores

    def step(self, x: Tensor, y: Tensor, noise: Noise) -> Terms:
        self._x.copy_(x)
        if self._look is None or self._move is None:
            self._look, self._move = self._record_step(y, noise)
        assert self._y is not None
        assert self._noise is not None
        self._y.copy_(y)
        self._noise.likelihood.copy_(noise.likelihood)
        if self._noise.tasks is not None and noise.tasks is not None:
            self._noise.tasks.copy_(noise.tasks)
        self._look()
        terms = self._terms.cpu()
        refuse_non_finite_loss(terms[0])
        self._move()
        return Terms(*terms)
