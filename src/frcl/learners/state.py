"""The mutable state of a learner: past summaries, the task being learned, random streams, counters."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from torch import Tensor

from frcl.engine.adam import Optimiser
from frcl.engine.program import Terms
from frcl.engine.tensors import Params
from frcl.learners.accounting import Parts, added, parts_of
from frcl.learners.holds import past_heads
from frcl.learners.objective import Memory, Noise, Objective
from frcl.learners.targets import Label, TargetSpec
from frcl.learners.types import Summary
from frcl.learners.window import Window
from frcl.regularisers.curvature import Anchor
from frcl.regularisers.functional import Bank, make_bank
from frcl.seeding import Streams
from frcl.summary import PriorKL, prior_kl_terms


class Recorded(Protocol):
    """The step of a task and its boundary scores, ready to be replayed for minibatches of one shape."""

    def fits(self, x: Tensor) -> bool: ...
    def scores(self, x: Tensor) -> Tensor: ...
    def step(self, x: Tensor, y: Tensor, noise: Noise) -> Terms: ...


@dataclass(frozen=True)
class Declared:
    """What start_task() said of the task that the next minibatch opens."""

    labels: tuple[Label, ...] | None = None
    likelihood: str | None = None
    size: int | None = None


@dataclass(frozen=True)
class Before:
    """A state to go back to when a minibatch turns out to be unusable."""

    state: LearnerState
    streams: dict[str, Tensor]
    detector: dict[str, Any] | None


@dataclass
class CurrentTask:
    """The task being learned: everything that is dropped or turned into a summary when it ends."""

    target: TargetSpec
    objective: Objective
    params: Params
    optimiser: Optimiser
    memory: Memory
    window: Window | None = None  # observe() keeps a sample of the data here; fit() has the data at hand
    data_mark: str | None = None  # fit(): which data it was called with
    step: int = 0
    recent: tuple[Tensor, ...] = ()  # the last minibatches, where a detector has them scored again
    shown: set[int] = field(default_factory=set)  # with a detector: the classes that were in the minibatches so far
    recording: Recorded | None = None  # observe() on CUDA: the task's step, ready to be replayed


@dataclass
class LearnerState:
    """Everything of a learner that changes, the network's weights apart."""

    streams: Streams
    past: list[Summary] = field(default_factory=list)
    terms: list[PriorKL] = field(default_factory=list)  # of each past task, worked out once
    bank: Bank | None = None
    anchor: Anchor | None = None  # on the shared weights, where the curvature holds them
    current: CurrentTask | None = None
    declared: Declared | None = None
    input_shape: tuple[int, ...] | None = None
    input_floating: bool | None = None  # whether inputs are floats, once one was seen
    version: int = 0  # of θ: a step makes it one more

    def keep(self, summary: Summary, anchor: Anchor | None) -> None:
        """The current task is over; its summary is all that stays, and the anchor that it added to."""
        past, terms = [*self._moved(), summary], [*self.terms, prior_kl_terms(summary.belief)]
        bank = make_bank([s.Z for s in past], terms)
        self.past, self.terms, self.bank, self.anchor, self.current = past, terms, bank, anchor, None

    def abandon(self) -> None:
        """Drop the current task; the heads of old tasks stay as they are now, as the network does."""
        self.past, self.current = self._moved(), None

    def head(self, task: int) -> Tensor | None:
        """The head of a past task as it is now."""
        return past_heads({} if self.current is None else self.current.params, self.past)[task]

    def memory_parts(self, copied: Params, *, heads_twice: bool = False) -> Parts:
        """Bytes kept of past tasks by kind.

        `copied` are the weights that a task is begun with a copy of; `heads_twice`: it has a copy of the heads too.
        """
        kept = {"network": list(copied.values())} if self.past else {}
        if heads_twice:
            kept["heads"] = [summary.head for summary in self.past if summary.head is not None]
        if self.anchor is not None:
            kept |= {"fisher": list(self.anchor.precision.values()), "anchor": list(self.anchor.theta.values())}
        return added([*(summary.parts() for summary in self.past), parts_of(kept)])

    def _moved(self) -> list[Summary]:
        """The past summaries, with the heads that the current task went on training."""
        heads = past_heads({} if self.current is None else self.current.params, self.past)
        return [
            one if head is None or head is one.head else replace(one, head=head.clone())
            for one, head in zip(self.past, heads, strict=True)
        ]
