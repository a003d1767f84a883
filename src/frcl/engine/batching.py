"""Several programs stacked along a leading axis, and whether that can be done."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from frcl.engine.adam import stacked
from frcl.engine.program import Drawn, Program, Terms, at_place, loaded, move
from frcl.trees import Tree, batch_axes, named_tensors, shapes, stack

LARGEST = 8 << 30  # bytes of data that may be copied for the sake of one gather instead of several


class Block:
    """Programs of equal shape as one: every tensor has a leading axis [S], of which their own tensors are slices."""

    def __init__(self, programs: Sequence[Program]) -> None:
        self.programs = programs
        self.optimiser = stacked([program.optimiser for program in programs])
        self._constants = stack([program.constants for program in programs])
        self.carry = stack([program.carry for program in programs])
        for i, program in enumerate(programs):
            whole = dict(named_tensors(self.carry))
            for name, tensor in named_tensors(program.carry):
                tensor.data = whole[name][i]
        self._drawn: Drawn | None = None
        self._data = _joined(programs)

    def load(self, drawn: Sequence[Drawn]) -> None:
        self._drawn = loaded(self._drawn, stack(drawn, 1), self.programs[0].chunk)

    def terms(self, at: int | Tensor) -> Terms:
        assert self._drawn is not None
        rows, draws = at_place(self._drawn, at)
        assert rows is not None
        if self._data is None:
            x, y = minibatches(self.programs, list(rows))
        else:
            whole_x, whole_y, first = self._data
            picked = (first + rows).flatten()
            shape = rows.shape
            x = whole_x.index_select(0, picked).unflatten(0, shape)
            y = whole_y.index_select(0, picked).unflatten(0, shape)
        return batched_loss(self.programs[0], self.optimiser.tree, self._constants, x, y, draws)

    def move(self, terms: Terms) -> Tensor:
        return move(self.programs[0], self.optimiser, self._constants, self.carry, terms).mT

    def minibatch(self, program: int, at: int) -> tuple[Tensor, Tensor]:
        assert self._drawn is not None
        assert self._drawn.rows is not None
        rows = self._drawn.rows[at, program]
        return self.programs[program].x[rows], self.programs[program].y[rows]


def batched_loss(program: Program, params: Tree, constants: Tree, x: Tensor, y: Tensor, draws: Tree) -> Terms:
    """The loss of stacked programs, [S] each; leaves that are no tensors are common to all."""
    arguments = (params, constants, x, y, draws)
    terms: Terms = torch.vmap(program.loss, in_dims=tuple(batch_axes(one) for one in arguments))(*arguments)
    return terms


def minibatches(programs: Sequence[Program], rows: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """The examples that each program uses in a step, [S, B, ...]."""
    each = list(zip(programs, rows, strict=True))
    x = torch.stack([one.x.index_select(0, own) for one, own in each])
    return x, torch.stack([one.y.index_select(0, own) for one, own in each])


def _joined(programs: Sequence[Program]) -> tuple[Tensor, Tensor, Tensor] | None:
    """On CUDA, the data of all programs in one, and where each begins, [S, 1]; None where that would be too large."""
    x = programs[0].x
    if not x.is_cuda or sum(program.x.nbytes for program in programs) > LARGEST:
        return None
    first = torch.tensor([0, *(len(program.x) for program in programs[:-1])], device=x.device).cumsum(0)
    return torch.cat([one.x for one in programs]), torch.cat([one.y for one in programs]), first[:, None]


def can_stack(programs: Sequence[Program]) -> bool:
    """Whether they have one loss and one shape."""
    first = programs[0]
    return all(program.stackable for program in programs) and all(_shape(p) == _shape(first) for p in programs)


def _shape(program: Program) -> object:
    lr = (program.optimiser.lr, program.optimiser.decay)
    trees = shapes((program.optimiser.tree, program.constants, program.carry))
    return program.signature, trees, tuple(program.x.shape[1:]), tuple(program.y.shape[1:]), lr
