"""One program, or several stacked along a leading axis: how a single step of them is taken."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from frcl.engine.adam import Optimiser, gradient, stacked
from frcl.engine.program import Drawn, Program, Terms
from frcl.graphs import TRIALS
from frcl.trees import Tree, batch_axes, named_tensors, shapes, stack, tree_map, with_tensors

LARGEST = 8 << 30  # bytes of data that may be copied for the sake of one gather instead of several


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


class Alone:
    """One program by itself."""

    def __init__(self, program: Program) -> None:
        self.programs: Sequence[Program] = [program]
        self.optimiser = program.optimiser
        self.carry = program.carry
        self._drawn: Drawn | None = None

    def load(self, drawn: Sequence[Drawn]) -> None:
        self._drawn = _load(self._drawn, drawn[0], self.programs[0].chunk)

    def terms(self, at: int | Tensor) -> Terms:
        program = self.programs[0]
        assert self._drawn is not None
        rows, draws = tree_map(lambda value: _at(value, at), self._drawn)
        x, y = program.x, program.y
        if rows is not None:
            x, y = x.index_select(0, rows), y.index_select(0, rows)  # faster than indexing
        return program.loss(self.optimiser.tree, program.constants, x, y, draws)

    def move(self, terms: Terms) -> Tensor:
        return _move(self.programs[0], self.optimiser, self.programs[0].constants, self.carry, terms)[None]

    def minibatch(self, program: int, at: int) -> tuple[Tensor, Tensor]:
        assert self._drawn is not None
        return _rows_of(self.programs[0], None if self._drawn.rows is None else self._drawn.rows[at])


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
        self._drawn = _load(self._drawn, stack(drawn, 1), self.programs[0].chunk)

    def terms(self, at: int | Tensor) -> Terms:
        assert self._drawn is not None
        rows, draws = tree_map(lambda value: _at(value, at), self._drawn)
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
        return _move(self.programs[0], self.optimiser, self._constants, self.carry, terms).mT

    def minibatch(self, program: int, at: int) -> tuple[Tensor, Tensor]:
        assert self._drawn is not None
        assert self._drawn.rows is not None
        return _rows_of(self.programs[program], self._drawn.rows[at, program])


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


def _rows_of(program: Program, rows: Tensor | None) -> tuple[Tensor, Tensor]:
    return (program.x, program.y) if rows is None else (program.x[rows], program.y[rows])


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


def _move(program: Program, optimiser: Optimiser, constants: Tree, carry: Tree, terms: Terms) -> Tensor:
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


def _at(value: Tensor, at: int | Tensor) -> Tensor:
    return value[at] if isinstance(at, int) else value.index_select(0, at)[0]


def _load(into: Drawn | None, drawn: Drawn, chunk: int) -> Drawn:
    """On CUDA always into the same tensors, from which a recorded step reads, with room for the trials before it."""
    if not any(value.is_cuda for _, value in named_tensors(drawn)):
        return drawn
    if into is None:
        into = tree_map(lambda value: value.new_zeros(chunk + TRIALS, *value.shape[1:]), drawn)
    for (_, target), (_, value) in zip(named_tensors(into), named_tensors(drawn), strict=True):
        target[: len(value)].copy_(value)
    return into
