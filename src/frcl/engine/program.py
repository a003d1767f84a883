"""What the engine is given: a task that is being learned, as a pure loss of trees of tensors."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from frcl.engine.adam import Optimiser
from frcl.errors import NumericalError
from frcl.seeding import Streams
from frcl.trees import Params, Tree, named_tensors

CHUNK = 100  # steps whose random numbers are drawn at once


class Drawn(NamedTuple):
    """Everything random of some steps: which examples each of them uses [n, B] (None: all), and a tree [n, ...]."""

    rows: Tensor | None
    draws: Tree


def minibatch_rows(examples: int, size: int, steps: int, streams: Streams, device: torch.device) -> Tensor:
    """Which examples each step uses, [steps, size], drawn with replacement from the stream "batches"."""
    return torch.randint(examples, (steps, size), generator=streams["batches"], device=device)


class Terms(NamedTuple):
    """The loss and its parts, in nats per example: loss = −log_likelihood + kl_now + kl_past."""

    loss: Tensor
    log_likelihood: Tensor
    kl_now: Tensor
    kl_past: Tensor


Values = tuple[float, float, float, float]  # Terms as numbers


class Loss(Protocol):
    """Pure: reads its arguments alone, changes nothing, branches on no value, so it can be batched and recorded."""

    def __call__(self, params: Tree, constants: Tree, x: Tensor, y: Tensor, draws: Tree, /) -> Terms: ...


class Follow(Protocol):
    """Called after a step with the tensors that a regulariser carries along, which it updates in place, elementwise."""

    def __call__(self, carry: Tree, constants: Tree, gradient: Tree, before: Tree, after: Tree, /) -> None: ...


@dataclass
class Program:
    """Steps up to `stop` of one learner on the data of one task.

    net        the network that the loss calls: by it the engine remembers whether it can be batched
    loss       of a minibatch, from parameters, constants and the draws of the step
    optimiser  the parameters, and how many steps were taken
    constants  whatever else the loss reads; unchanged until `stop`
    draw       everything random of the next n steps, from `streams`
    first      number of the step before the first one of this program's optimiser
    look       called with the minibatch of every step after it was taken, and with the number of the step
    signature  two programs may run as one where signatures and shapes are equal: their losses are one function
    stackable  whether copies of the constants may be stacked with those of other programs
    """

    net: nn.Module
    loss: Loss
    optimiser: Optimiser
    constants: Tree
    x: Tensor
    y: Tensor
    draw: Callable[[int], Drawn]
    streams: Streams
    stop: int
    first: int = 0
    carry: Tree = field(default_factory=dict)
    follow: Follow | None = None
    look: Callable[[Tensor, Tensor, int], None] | None = None
    signature: Hashable = None
    stackable: bool = True
    chunk: int = CHUNK

    @property
    def params(self) -> Params:
        """What is trained, by name."""
        return self.optimiser.params

    @property
    def step(self) -> int:
        """Steps taken, those before this program included."""
        return self.first + self.optimiser.steps

    def next_chunk(self) -> tuple[int, int, Drawn]:
        """First and last step of the chunk with the next step, and its randomness.

        The streams remember where the chunk began, so that a state saved within it can go on exactly.
        """
        start = self.step - self.optimiser.steps % self.chunk
        end = min(start + self.chunk, self.stop)
        self.streams.hold()
        return start, end, self.draw(end - start)


def exact_number(value: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A number as a tensor of that type, or of float32 where the type has fewer digits."""
    return torch.full((), value, dtype=torch.promote_types(dtype, torch.float32), device=device)


def refuse_non_finite_loss(loss: Tensor) -> None:
    """Refuse the loss of a step that is about to be taken."""
    if not bool(loss.isfinite().all()):
        value = float(loss.detach()[~loss.isfinite()].flatten()[0])
        raise NumericalError(
            f"the loss is {value}; this step was not taken. Lower the learning rate (lr), scale the "
            "inputs, or raise u_noise, the variance on the inducing values."
        )


def refuse_non_finite(params: Tree) -> None:
    """Refuse parameters that are no longer finite, where the loss was not checked in every step."""
    for name, value in named_tensors(params):
        if not bool(value.isfinite().all()):
            raise NumericalError(
                f"{name!r} is no longer finite: learning has diverged. Go back to an earlier state; then lower the "
                "learning rate (lr), scale the inputs, or raise u_noise."
            )
