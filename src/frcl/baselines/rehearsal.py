"""Methods with a reservoir, which takes in every minibatch after its step, and from which each step draws.

The reservoir does not know of tasks: each of its M places has each of the n examples that came by with probability 1/n.
The random numbers of a step depend on what the reservoir has then, so they are drawn one step at a time.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import ClassVar, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from frcl.augment import PureAugment
from frcl.baselines.memory import Batch, Memory, drawn_batch, placed, weighted_mean
from frcl.baselines.options import AGEMOptions, DERppOptions, EROptions
from frcl.baselines.penalised import Parameters
from frcl.baselines.shared_head import Shared, SharedHead
from frcl.engine.program import Drawn, Loss, Program, Values
from frcl.engine.train import one_step
from frcl.features import fixed_parts, trained_parts
from frcl.learners.state import reservoir_places
from frcl.seeding import fork
from frcl.summary import StoredInputs
from frcl.trees import tree_map

O = TypeVar("O", EROptions, DERppOptions, AGEMOptions)  # noqa: E741


class Replayed(NamedTuple):
    """What a step reads of the memory: minibatches, and `share`, the part of one of them in it and the step's own."""

    batches: tuple[Batch, ...]
    share: Tensor
    x: Tensor  # the whole minibatch of the step, and its rows of the head
    row: Tensor


class Rehearsal(SharedHead[O, Shared]):
    """Minimises a loss of the minibatch and of examples drawn from a reservoir."""

    chunk: ClassVar[int] = 1
    batches: ClassVar[int] = 1  # drawn from the memory in a step
    past_only: ClassVar[bool] = False  # these are of past tasks alone

    @abstractmethod
    def _loss(self) -> Loss:
        """The loss of a step: of `Parameters`, what the network has fixed, a minibatch and `Replayed`."""

    def _trained(self) -> Parameters:
        return Parameters(trained_parts(self.net), self._head)

    def _programs(self, x: Tensor, y: Tensor) -> Iterator[Program]:
        yield self._steps(x, self._rows_of_task(len(self._state.past))[y], self.options.steps)

    def _steps(self, x: Tensor, row: Tensor, stop: int, *, whole: bool = False) -> Program:
        """Steps on minibatches of these examples, or on the `whole` of them."""
        fixed, said = fixed_parts(self.net), list[Tensor]()

        def draw(steps: int, rows: Tensor) -> Drawn:
            if whole:
                rows = torch.arange(len(x), device=x.device)[None]
            own_x, own_row = x.index_select(0, rows[0]), row.index_select(0, rows[0])
            if self.stores_logits:  # before the step
                with torch.no_grad():
                    Phi = self.features({**fixed, **trained_parts(self.net)}, own_x)
                    said[:] = [Phi @ self._head.mT]
            return Drawn(rows, tree_map(lambda part: part[None], self._replayed(own_x, own_row)))

        def look(x: Tensor, row: Tensor, step: int) -> None:
            self._remember(x, row, said[0] if said else None, step)

        return self._program(self._loss(), fixed, x, row, stop, draw, look=look, chunk=self.chunk)

    def _replayed(self, x: Tensor, row: Tensor) -> Replayed:
        """What the next step draws from the memory."""
        own, generator = self._own, self._state.streams["past"]
        before = len(self._state.past) if self.past_only else None
        k, head = self.options.memory_batch, self._head.detach()
        batches = tuple(
            self._augmented(drawn_batch(own.memory, k, x, head, generator, before), number)
            for number in range(self.batches)
        )
        drawn = batches[0].weight.sum()
        return Replayed(batches, drawn / (drawn + len(x)), x, row)

    def _augmented(self, batch: Batch, number: int) -> Batch:
        """Stored examples, changed as minibatches are; `number` tells the batches of a step apart."""
        if self._changes is None or not isinstance(change := self._changes.function, PureAugment):
            return batch
        name = f"augment/memory/{self._changes.task}/{self.step}/{number}"
        draws = change.draws((len(batch.x),), fork(self.options.seed, name, batch.x.device))
        return batch._replace(x=change.apply(batch.x, draws))

    def _remember(self, x: Tensor, row: Tensor, logits: Tensor | None, step: int) -> None:
        """Offer the minibatch of a step to the reservoir."""
        own, task = self._own, len(self._state.past)
        generator = fork(self.options.seed, f"reservoir/{task}/{step}")
        held = 0 if own.memory is None else len(own.memory.row)
        places = reservoir_places(own.seen, held, len(x), self.options.points, generator)
        if max(places) >= 0:
            known = None if logits is None else torch.full_like(row, logits.shape[1])
            new = Memory(StoredInputs(x), row, torch.full_like(row, task), logits, known)
            own.memory = placed(own.memory, places, new)
        own.seen += len(x)

    def _observed(self, x: Tensor, rows: Tensor) -> Values:
        self._changes = None
        program = self._steps(x, rows, self.step + 1, whole=True)
        self._optimiser.schedule(1, 0.0, 0.0)  # a stream has no last step
        return one_step(program)


def replayed_loss(f: Tensor, old: Batch) -> Tensor:
    """−log p of the labels of replayed examples, the mean over those with a weight; functions f [k, C]."""
    return weighted_mean(F.cross_entropy(f, old.row, reduction="none"), old.weight)
