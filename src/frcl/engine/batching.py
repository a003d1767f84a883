"""One program, or several as one with a leading axis: how a single step of them is taken."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from frcl.engine.adam import Optimiser, gradient, stacked
from frcl.engine.program import ROWS, Loss, Program, Terms
from frcl.engine.tensors import Params, stack
from frcl.graphs import TRIALS

LARGEST = 8 << 30  # bytes of data that may be copied for the sake of one gather instead of many


class Unit(Protocol):
    """Takes steps; the randomness of a chunk is loaded first."""

    programs: Sequence[Program]
    optimiser: Optimiser
    carry: Params

    def load(self, drawn: Sequence[Params]) -> None:
        """What the programs drew for a chunk, into the same tensors every time."""

    def terms(self, at: int | Tensor) -> Terms:
        """The terms of a step with the randomness at a place of the chunk: numbers, or [programs] each."""

    def move(self, terms: Terms) -> Tensor:
        """Take the step whose terms these are; returns them, [programs, 4]."""


class Alone:
    """One program as it is."""

    def __init__(self, program: Program) -> None:
        self.programs: Sequence[Program] = [program]
        self.optimiser = program.optimiser
        self.carry = program.carry
        self._drawn: Params = {}

    def load(self, drawn: Sequence[Params]) -> None:
        _load(self._drawn, drawn[0], self.programs[0].chunk)

    def terms(self, at: int | Tensor) -> Terms:
        program = self.programs[0]
        noise = {name: _at(value, at) for name, value in self._drawn.items()}
        rows = noise.pop(ROWS)
        x, y = program.x.index_select(0, rows), program.y.index_select(0, rows)  # faster than indexing
        return program.loss(self.optimiser.params, program.constants, x, y, noise)

    def move(self, terms: Terms) -> Tensor:
        return _move(self.programs[0], self.optimiser, self.programs[0].constants, self.carry, terms)[None]


class Block:
    """Programs of equal shape as one: every tensor has a leading axis [S], their own tensors are slices of it."""

    def __init__(self, programs: Sequence[Program]) -> None:
        self.programs = programs
        self.optimiser = stacked([program.optimiser for program in programs])
        self._constants = stack([program.constants for program in programs])
        self.carry = stack([program.carry for program in programs])
        for i, program in enumerate(programs):
            for name in program.carry:
                program.carry[name].data = self.carry[name][i]
        self._loss: Loss = torch.vmap(programs[0].loss)
        self._drawn: Params = {}
        self._data = _joined(programs)

    def load(self, drawn: Sequence[Params]) -> None:
        _load(self._drawn, stack(drawn, 1), self.programs[0].chunk)

    def terms(self, at: int | Tensor) -> Terms:
        noise = {name: _at(value, at) for name, value in self._drawn.items()}
        x, y = self._batch(noise.pop(ROWS))
        return self._loss(self.optimiser.params, self._constants, x, y, noise)

    def move(self, terms: Terms) -> Tensor:
        return _move(self.programs[0], self.optimiser, self._constants, self.carry, terms).mT

    def _batch(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The minibatch of each program, [S, B, ...]."""
        if self._data is not None:
            x, y, first = self._data
            place = rows + first
            return x[place], y[place]
        return minibatches(self.programs, rows.unbind())


def minibatches(programs: Sequence[Program], rows: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """The examples that each program sees in a step, [S, B, ...]."""
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
    parts = (program.optimiser.params, program.constants, program.carry)
    shapes = [{name: (tuple(v.shape), v.dtype) for name, v in part.items()} for part in parts]
    lr = (program.optimiser.lr, program.optimiser.fall)
    return program.signature, shapes, tuple(program.x.shape[1:]), tuple(program.y.shape[1:]), lr


def _move(program: Program, optimiser: Optimiser, constants: Params, carry: Params, terms: Terms) -> Tensor:
    """Take the step whose terms these are, one number each or [S]; returns them in one tensor [4] or [4, S]."""
    slope = gradient(terms.loss.sum(), optimiser.params)
    if program.follow is None:
        optimiser.apply(slope)
    else:
        before = {name: value.detach().clone() for name, value in optimiser.params.items()}
        optimiser.apply(slope)
        with torch.no_grad():
            program.follow(carry, constants, slope, before, optimiser.params)
    return torch.stack([term.detach().to(terms.loss.dtype) for term in terms])


def _at(value: Tensor, at: int | Tensor) -> Tensor:
    return value[at] if isinstance(at, int) else value.index_select(0, at)[0]


def _load(into: Params, drawn: Params, chunk: int) -> None:
    """On CUDA always into the same tensors, from which a recorded step reads, with room for the trials before it."""
    for name, value in drawn.items():
        if not value.is_cuda:
            into[name] = value
            continue
        if name not in into:
            into[name] = value.new_zeros(chunk + TRIALS, *value.shape[1:])
        into[name][: len(value)].copy_(value)
