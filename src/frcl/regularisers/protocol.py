"""What the penalised network asks of a regulariser: what to add to the loss, and what to remember."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call

Params = dict[str, Tensor]
Kept = dict[str, list[Tensor]]
HEAD = "head/"  # prefix of the heads' names among the parameters; the rest is the shared network


@dataclass(frozen=True)
class Heads:
    """A network with one linear head a task, as pure functions of their parameters.

    Parameters of the shared network have its own names, the head of task i [C_i, K] is "head/i"; K counts the bias.
    """

    net: nn.Module

    def features(self, params: Params, x: Tensor) -> Tensor:
        """[net(x), 1], shape [B, K]."""
        shared = {name: value for name, value in params.items() if not name.startswith(HEAD)}
        out: Tensor = functional_call(self.net, shared, (x,))
        return torch.cat([out, out.new_ones(len(out), 1)], 1)

    def logits(self, params: Params, x: Tensor, task: int) -> Tensor:
        """[B, C] of one task."""
        return self.features(params, x) @ params[f"{HEAD}{task}"].mT

    def all_logits(self, params: Params, x: Tensor, tasks: int) -> list[Tensor]:
        """[B, C_i] of tasks 0 to tasks − 1, from one pass through the network."""
        Phi = self.features(params, x)
        return [Phi @ params[f"{HEAD}{task}"].mT for task in range(tasks)]


@dataclass(frozen=True)
class Moment:
    """The situation a regulariser is asked in: the model, its parameters, which task, how large it is."""

    model: Heads
    params: Params  # shared network and all heads so far, the current one included
    task: int
    N: float


class Place(NamedTuple):
    """Where a penalty is asked for: the model and the task being learned, the same for every seed."""

    model: Heads
    task: int


class Regulariser(Protocol):
    """Holds θ while a new task is learned. All state is tensors by name."""

    trains_old_heads: bool
    stackable: bool  # whether its constants are small enough to stand in one block with those of other seeds

    def check(self, y: Tensor) -> None:
        """Refuse the classes of a new task that this regulariser cannot keep."""

    def begin(self, now: Moment) -> None:
        """A task begins; its head is there, untrained."""

    def constants(self) -> Params:
        """What the penalty reads besides the parameters; the same tensors until the task ends."""

    def draw(self, steps: int, generator: torch.Generator) -> Params:
        """Everything random of so many steps, tensors [steps, ...]."""

    def penalty(self, at: Place, params: Params, constants: Params, x: Tensor, noise: Params) -> Tensor:
        """What is added to the mean negative log-likelihood of the minibatch x, in nats per example.

        Pure: reads its arguments alone. constants["N"] is the size of the task, the rest is what `constants` gave;
        `noise` is a row of what `draw` gave.
        """

    def carry(self) -> Params:
        """What `follow` changes in place."""

    def follow(self, carry: Params, constants: Params, gradient: Params, before: Params, after: Params) -> None:
        """One step was taken, down `gradient`, that of loss and penalty; elementwise, called if there is a carry."""

    def end(self, now: Moment, x: Tensor, y: Tensor, generator: torch.Generator) -> None:
        """The task is over; x and y are its data, seen for the last time."""

    def kept(self) -> Kept:
        """What is kept of past tasks, by kind (`learners/memory.py`): counted as memory."""

    def state(self) -> Params:
        """Everything that must be saved."""

    def load(self, state: Params) -> None:
        """Put back what `state` gave."""


class Plain:
    """What most regularisers have in common: they take any task, draw nothing, and follow nothing."""

    trains_old_heads = False
    stackable = True

    def check(self, y: Tensor) -> None:
        """Any task will do."""

    def begin(self, now: Moment) -> None:
        """Nothing to prepare."""

    def constants(self) -> Params:
        return {}

    def draw(self, steps: int, generator: torch.Generator) -> Params:
        return {}

    def carry(self) -> Params:
        return {}

    def follow(self, carry: Params, constants: Params, gradient: Params, before: Params, after: Params) -> None:
        """Nothing to follow."""


def under(tensors: Params, prefix: str) -> Params:
    """The tensors whose names begin with the prefix, without it."""
    return {name[len(prefix) :]: value for name, value in tensors.items() if name.startswith(prefix)}


def named(prefix: str, tensors: Params) -> Params:
    """The tensors with the prefix put before their names."""
    return {prefix + name: value for name, value in tensors.items()}


def shared_only(params: Params) -> Params:
    """The shared network's parameters, without the heads."""
    return {name: value for name, value in params.items() if not name.startswith(HEAD)}
