"""The mutable state of a learner: past summaries, the task being learned, regularisers, random streams."""

from __future__ import annotations

import contextlib
import copy
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from frcl.engine.adam import Optimiser
from frcl.engine.train import StreamSteps
from frcl.errors import DataError, TaskError
from frcl.graphs import Captured
from frcl.learners.accounting import Parts, added, parts_of
from frcl.learners.inputs import data_mark
from frcl.learners.objective import Parameters
from frcl.learners.types import Summary
from frcl.learners.window import Window
from frcl.likelihoods import Label, Likelihood
from frcl.regularisers import Regulariser
from frcl.regularisers.heads import with_trained_heads
from frcl.seeding import Streams
from frcl.trees import Params


@dataclass(frozen=True)
class Declared:
    """What start_task() said of the task that the next minibatch opens."""

    labels: tuple[Label, ...] | None = None
    likelihood: str | None = None
    size: int | None = None


@dataclass
class CurrentTask:
    """The task being learned: everything that is dropped or turned into a summary when it ends.

    data_mark  identifies the data that fit() began with; None for a stream
    Z          fixed inducing inputs (function space)
    window     observe() keeps a sample of the data here; fit() has the data at hand
    recent     the last minibatches, where the detector has them scored again
    shown      with a detector: the classes that occurred so far
    """

    likelihood: Likelihood
    N: float
    optimiser: Optimiser
    Z: Tensor | None = None
    data_mark: str | None = None
    window: Window | None = None
    recent: tuple[Tensor, ...] = ()
    shown: set[int] = field(default_factory=set)
    stream: StreamSteps | None = None  # the step and the boundary score of observe(), made once per task
    score: Captured | None = None

    @property
    def params(self) -> Parameters:
        """What is trained."""
        tree: Parameters = self.optimiser.tree
        return tree

    @property
    def step(self) -> int:
        """Steps taken."""
        return self.optimiser.steps

    def continued(self, number: int, x: Tensor, y: Any, *given: object) -> Tensor:
        """The encoded targets of this task, number `number`, with which fit() goes on; any other data is refused."""
        if self.data_mark is None:
            raise TaskError(f"task {number} is still open: end_task() ends what observe() began")
        with contextlib.suppress(DataError):
            encoded = self.likelihood.encode(y, x.device, self.params.posterior.mean.dtype)
            if self.data_mark == data_mark(x, encoded, *given):
                return encoded
        raise TaskError(
            f"task {number} is still open: call fit() exactly as it began, or drop the task with abandon_task()"
        )

    def open_window(self, number: int) -> Window:
        """The sample of a stream's data; a task that fit() opened has none."""
        if self.window is None:
            raise TaskError(
                f"task {number} was opened by fit(): go on by calling it exactly as it began, or drop the task with "
                "abandon_task()"
            )
        return self.window


@dataclass
class LearnerState:
    """Everything of a learner that changes, the network's weights apart."""

    streams: Streams
    regularisers: list[Regulariser]
    past: list[Summary] = field(default_factory=list)
    current: CurrentTask | None = None
    declared: Declared | None = None
    input_shape: tuple[int, ...] | None = None
    input_floating: bool | None = None  # whether inputs are floats, once one was seen

    def snapshot(self) -> LearnerState:
        """A copy to go back to, or to change and then take over as a whole."""
        return replace(self, regularisers=[copy.copy(one) for one in self.regularisers], past=list(self.past))

    def memory_parts(self, theta: Params) -> Parts:
        """Bytes kept of past tasks by kind; θ are the shared weights that are trained."""
        parts = [summary.parts() for summary in self.past]
        if self.past:
            parts += [parts_of(one.kept(theta)) for one in self.regularisers]
            if any(one.trains_heads for one in self.regularisers):  # a second copy while a task is learned
                parts.append(parts_of({"heads": [one.head for one in self.past if one.head is not None]}))
        return added(parts)

    def summaries(self) -> list[Summary]:
        """The past summaries with their heads as they are now: a task may train them along."""
        return with_trained_heads(self.past, None if self.current is None else self.current.params.heads)


@dataclass(frozen=True)
class Before:
    """A state to return to when a minibatch turns out to be unusable."""

    state: LearnerState
    streams: dict[str, Tensor]
    detector: dict[str, Any] | None
