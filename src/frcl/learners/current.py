"""The mutable state of a learner: past summaries, the task being learned, random streams, counters."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from frcl.engine.adam import Optimiser
from frcl.engine.program import Terms
from frcl.engine.tensors import Params
from frcl.learners.objective import Memory, Noise, Objective
from frcl.learners.records import Summary
from frcl.learners.targets import Label, TargetSpec
from frcl.learners.window import Window
from frcl.regularisers.functional import Bank, make_bank
from frcl.seeding import Streams
from frcl.summary import PriorKL, prior_kl_terms


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


class Recorded(Protocol):
    """The scores and the step of one task, recorded for minibatches of one shape."""

    def fits(self, x: Tensor) -> bool: ...
    def scores(self, x: Tensor) -> Tensor: ...
    def step(self, x: Tensor, y: Tensor, noise: Noise) -> Terms: ...


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
    recording: Recorded | None = None  # observe() on CUDA: the task's step, ready to be replayed


@dataclass
class LearnerState:
    """Everything of a learner that changes, the network's weights apart."""

    streams: Streams
    past: list[Summary] = field(default_factory=list)
    terms: list[PriorKL] = field(default_factory=list)  # of each past task, worked out once
    bank: Bank | None = None
    current: CurrentTask | None = None
    declared: Declared | None = None
    input_shape: tuple[int, ...] | None = None
    input_floating: bool | None = None  # whether inputs are floats, once one was seen
    version: int = 0  # of θ: a step makes it one more

    def keep(self, summary: Summary) -> None:
        """The current task is over; its summary is all that stays."""
        past, terms = [*self.past, summary], [*self.terms, prior_kl_terms(summary.belief)]
        bank = make_bank([s.Z for s in past], terms)
        self.past, self.terms, self.bank, self.current = past, terms, bank, None
