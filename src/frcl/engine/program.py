"""What the engine is given: a task that is being learned, as pure functions of named tensors."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from frcl.engine.adam import Optimiser
from frcl.engine.tensors import Params
from frcl.seeding import Streams

CHUNK = 100  # steps whose randomness is drawn at once
ROWS = "rows"  # among what is drawn: which examples a step sees, [n, B]


def minibatch_rows(examples: int, size: int, steps: int, streams: Streams, device: torch.device) -> Tensor:
    """Which examples each step sees, [steps, size], drawn with replacement from the stream "batches"."""
    return torch.randint(examples, (steps, size), generator=streams["batches"], device=device)


class Terms(NamedTuple):
    """The loss and its parts, in nats per example: loss = −log_likelihood + kl_now + kl_past."""

    loss: Tensor
    log_likelihood: Tensor
    kl_now: Tensor
    kl_past: Tensor


Values = tuple[float, float, float, float]  # Terms as numbers


class Loss(Protocol):
    """Pure: reads its arguments alone, changes nothing, looks at no value, so that it can be batched and recorded."""

    def __call__(self, params: Params, constants: Params, x: Tensor, y: Tensor, noise: Params, /) -> Terms: ...


class Follow(Protocol):
    """Called after a step with the tensors that a regulariser carries along, which it changes in place, elementwise."""

    def __call__(
        self, carry: Params, constants: Params, gradient: Params, before: Params, after: Params, /
    ) -> None: ...


@dataclass
class Program:
    """Steps `step` + 1 to `stop` of one learner on the data of one task.

    net        the network that the loss calls: by it the engine remembers whether it can be batched
    loss       of a minibatch, from parameters, constants and the noise of the step
    optimiser  holds what is trained
    constants  whatever else the loss reads; stays as it is until `stop`
    draw       everything random of the next n steps, tensors [n, ...], from `streams`; "rows" are the minibatches
    advance    tells the learner that a step was taken
    signature  two programs may run as one where signatures and shapes are equal: their losses are one function
    stackable  whether copies of the constants may stand in one block with those of other programs
    """

    net: nn.Module
    loss: Loss
    optimiser: Optimiser
    constants: Params
    x: Tensor
    y: Tensor
    draw: Callable[[int], Params]
    streams: Streams
    step: int
    stop: int
    advance: Callable[[], None]
    first: int = 0  # step before the first of this program; chunks are counted from there
    carry: Params = field(default_factory=dict)
    follow: Follow | None = None
    signature: Hashable = None
    stackable: bool = True
    chunk: int = CHUNK

    def chunk_start(self) -> int:
        return self.step - (self.step - self.first) % self.chunk

    def drawn(self) -> Params:
        """The randomness of the chunk that the next step lies in; the streams remember where the chunk began."""
        self.streams.rewind()
        self.streams.hold()
        return self.draw(min(self.chunk, self.stop - self.chunk_start()))
