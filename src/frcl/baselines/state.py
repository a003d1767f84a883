"""What a baseline holds while it lives, and what of it is written."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, make_dataclass, replace
from typing import Any, Generic, TypeVar

from torch import Tensor

from frcl.engine.adam import AdamState, Optimiser
from frcl.likelihoods import Likelihood, Softmax
from frcl.regularisers import Regulariser
from frcl.seeding import Streams
from frcl.trees import Params

Own = TypeVar("Own")


@dataclass(frozen=True)
class NewTask:
    """A task that is about to be opened: its number, its likelihood, K features with the bias, its data."""

    number: int
    likelihood: Softmax
    K: int
    x: Tensor
    y: Tensor
    N: float


@dataclass(frozen=True)
class Finished:
    """What is kept of a finished task; `head` [C, K] where the method has one on shared features."""

    likelihood: Likelihood
    size: int
    head: Tensor | None = None
    likelihood_params: Params = field(default_factory=dict)


@dataclass(eq=False)
class Current:
    """The task that is open; `first` counts the steps before those of the optimiser."""

    likelihood: Likelihood
    N: float
    data_mark: str
    optimiser: Optimiser
    first: int = 0

    @property
    def step(self) -> int:
        """Steps taken."""
        return self.first + self.optimiser.steps


@dataclass(eq=False)
class State(Generic[Own]):
    """Everything that changes, the network's weights apart; `own` is what a method keeps for itself.

    Parts of `own` are replaced, never changed in place, so that a shallow copy is a snapshot.
    """

    streams: Streams
    regularisers: list[Regulariser]
    own: Own
    past: list[Finished] = field(default_factory=list)
    current: Current | None = None
    input_shape: tuple[int, ...] | None = None
    input_floating: bool | None = None

    def snapshot(self) -> State[Own]:
        """A copy to return to."""
        return replace(self, regularisers=[copy.copy(one) for one in self.regularisers], own=copy.copy(self.own))


@dataclass
class SavedTask:
    """The open task, without what is trained."""

    likelihood: Likelihood
    N: float
    data_mark: str
    first: int
    adam: AdamState


@dataclass
class Saved:
    """Everything that is written."""

    options: dict[str, Any]
    device: str
    net: dict[str, Tensor]
    trained: list[str]  # names of the weights that are trained
    streams: dict[str, Tensor]
    regularisers: list[Any]  # the state of each
    past: list[Finished]
    current: SavedTask | None
    input_shape: list[int] | None
    input_floating: bool | None
    own: Any


def saved_kind(own: type[Any]) -> type[Saved]:
    """`Saved` with the type of a method's own part, by which it is read."""
    return make_dataclass("Saved", [("own", own)], bases=(Saved,))
