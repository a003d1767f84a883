"""The mutable state of a learner: past summaries, the task being learned, random streams, counters."""

from __future__ import annotations

from dataclasses import dataclass, field

from frcl.engine import Optimiser, Params
from frcl.learners.objective import Memory, Objective
from frcl.learners.records import Summary
from frcl.learners.targets import Label, TargetSpec
from frcl.learners.window import Window
from frcl.regularisers.functional import Bank, make_bank
from frcl.seeding import Streams


@dataclass(frozen=True)
class Declared:
    """What start_task() said of the task that the next minibatch opens."""

    labels: tuple[Label, ...] | None = None
    likelihood: str | None = None
    size: int | None = None


@dataclass
class CurrentTask:
    """The task being learned: everything that is dropped or turned into a summary when it ends."""

    target: TargetSpec
    objective: Objective
    params: Params
    optimiser: Optimiser
    memory: Memory
    window: Window | None = None  # observe() keeps a sample of the data here; fit() has the data at hand
    data_mark: list[float] | None = None  # fit(): which data it was called with
    step: int = 0


@dataclass
class LearnerState:
    """Everything of a learner that changes, the network's weights apart."""

    streams: Streams
    past: list[Summary] = field(default_factory=list)
    bank: Bank | None = None
    current: CurrentTask | None = None
    declared: Declared | None = None
    input_shape: tuple[int, ...] | None = None
    version: int = 0  # of θ: a step makes it one more

    def keep(self, summary: Summary) -> None:
        """The current task is over; its summary is all that stays."""
        self.past.append(summary)
        self.bank = make_bank([s.Z for s in self.past], [s.belief for s in self.past])
        self.current = None
