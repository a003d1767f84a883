"""What the engine is given: a task that is being learned, as a pure loss of trees of tensors."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from frcl.engine.adam import Optimiser, gradient
from frcl.errors import NumericalError
from frcl.graphs import TRIALS
from frcl.seeding import Streams
from frcl.trees import Params, Tree, named_tensors, tree_map, with_tensors

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


class Unit(Protocol):
    """Takes steps; the random numbers of a chunk are loaded first."""

    programs: Sequence[Program]
    optimiser: Optimiser
    carry: Tree

    def load(self, drawn: Sequence[Drawn]) -> None:
        """What the programs drew for a chunk, into the same tensors every time."""

    def terms(self, at: int | Tensor) -> Terms:
        """The terms of a step with the randomness at a place of the chunk: numbers, or [programs] each."""

    def move(self, terms: Terms) -> Tensor:
        """Take the step with these terms; returns them, [programs, 4]."""

    def minibatch(self, program: int, at: int) -> tuple[Tensor, Tensor]:
        """The examples that a program used in the step at a place of the chunk."""


def move(program: Program, optimiser: Optimiser, constants: Tree, carry: Tree, terms: Terms) -> Tensor:
    """Take the step with these terms, one number each or [S]; returns them in one tensor [4] or [4, S]."""
    found = gradient(terms.loss.sum(), optimiser.params)
    if program.follow is None:
        optimiser.apply(found)
    else:
        before = {name: value.detach().clone() for name, value in optimiser.params.items()}
        optimiser.apply(found)
        trees = [with_tensors(optimiser.tree, values) for values in (found, before, optimiser.params)]
        with torch.no_grad():
            program.follow(carry, constants, *trees)
    return torch.stack([term.detach().to(terms.loss.dtype) for term in terms])


def at_place(drawn: Drawn, at: int | Tensor) -> Drawn:
    """The randomness of one step; its place in the chunk is a number, or a tensor where the step is recorded."""
    if isinstance(at, int):
        return tree_map(lambda value: value[at], drawn)
    return tree_map(lambda value: value.index_select(0, at)[0], drawn)


def loaded(into: Drawn | None, drawn: Drawn, chunk: int) -> Drawn:
    """On CUDA always into the same tensors, from which a recorded step reads, with room for the trials before it."""
    if not any(value.is_cuda for _, value in named_tensors(drawn)):
        return drawn
    if into is None:
        into = tree_map(lambda value: value.new_zeros(chunk + TRIALS, *value.shape[1:]), drawn)
    for (_, target), (_, value) in zip(named_tensors(into), named_tensors(drawn), strict=True):
        target[: len(value)].copy_(value)
    return into


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
