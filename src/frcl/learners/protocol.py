"""What the runner needs of a learner: all that it knows of one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from torch import Tensor

from frcl.learners.accounting import Parts
from frcl.learners.lockstep import Work
from frcl.learners.types import Prediction, StepLog, Summary


class Learner(Protocol):
    """A method of continual learning: learns tasks one after another and predicts for each of them."""

    def fit(
        self, x: Any, y: Any, *, size: int | None = None, on_step: Callable[[StepLog], None] | None = None
    ) -> object:
        """Learn one task; called again with the same data after an interruption, go on where it stopped."""

    def learn(self, x: Any, y: Any, *, size: int | None = None) -> Work[Any]:
        """What fit() does, as work that several learners may do together."""

    def predict(self, x: Any, task: int | None = None) -> Prediction:
        """What is believed about x in a task."""

    def memory_bytes(self) -> int:
        """Bytes kept of past tasks."""

    def memory_parts(self) -> Parts:
        """The same by kind; they add up to `memory_bytes`."""

    def kept_inputs(self) -> Sequence[Tensor]:
        """Inputs kept of each past task, where the method keeps some."""

    def past_divergences(self) -> Sequence[float]:
        """How far each past task is from what was kept of it, in nats, where the method has such a measure."""

    def state_dict(self) -> dict[str, Any]:
        """Everything that decides what happens next: {"meta": JSON-able, "tensors": by name}."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on exactly where the learner that gave the state was."""


class StreamLearner(Learner, Protocol):
    """A learner that takes minibatches one at a time and may begin a new task by itself."""

    @property
    def tasks(self) -> Sequence[Summary]:
        """What is kept of each finished task."""

    def observe(self, x: Any, y: Any) -> StepLog:
        """Learn from one minibatch."""

    def end_task(self) -> object:
        """End the task that is open."""
