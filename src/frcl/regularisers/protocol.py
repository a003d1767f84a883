"""What the penalised network asks of a regulariser: what to add to the loss, and what to remember."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call

Params = dict[str, Tensor]
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


class Regulariser(Protocol):
    """Holds θ while a new task is learned. All state is tensors by name."""

    trains_old_heads: bool

    def check(self, y: Tensor) -> None:
        """Refuse the classes of a new task that this regulariser cannot keep."""

    def begin(self, now: Moment) -> None:
        """A task begins; its head is there, untrained."""

    def penalty(self, now: Moment, params: Params, x: Tensor, generator: torch.Generator) -> Tensor:
        """What is added to the mean negative log-likelihood of the minibatch x, in nats per example."""

    def after_step(self, gradient: Params, before: Params, after: Params) -> None:
        """One step was taken; `gradient` is that of the likelihood term alone."""

    def end(self, now: Moment, x: Tensor, y: Tensor, generator: torch.Generator) -> None:
        """The task is over; x and y are its data, seen for the last time."""

    def kept(self) -> list[Tensor]:
        """What is kept between tasks: counted as memory."""

    def state(self) -> Params:
        """Everything that must be saved."""

    def load(self, state: Params) -> None:
        """Put back what `state` gave."""


def shared_only(params: Params) -> Params:
    """The shared network's parameters, without the heads."""
    return {name: value for name, value in params.items() if not name.startswith(HEAD)}
