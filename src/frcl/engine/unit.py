"""One program by itself, and what a step of one and of several programs have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from frcl.engine.adam import Optimiser, gradient
from frcl.engine.program import Drawn, Program, Terms
from frcl.graphs import TRIALS
from frcl.trees import Tree, named_tensors, tree_map, with_tensors


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
        program = self.programs[0]
        self._drawn = loaded(self._drawn, drawn[0], program.chunk) if program.x.is_cuda else drawn[0]

    def terms(self, at: int | Tensor) -> Terms:
        program = self.programs[0]
        assert self._drawn is not None
        rows, draws = at_place(self._drawn, at)
        x, y = program.x, program.y
        if rows is not None:
            x, y = x.index_select(0, rows), y.index_select(0, rows)  # faster than indexing
        return program.loss(self.optimiser.tree, program.constants, x, y, draws)

    def move(self, terms: Terms) -> Tensor:
        return move(self.programs[0], self.optimiser, self.programs[0].constants, self.carry, terms)[None]

    def minibatch(self, program: int, at: int) -> tuple[Tensor, Tensor]:
        assert self._drawn is not None
        own, rows = self.programs[0], self._drawn.rows
        return (own.x, own.y) if rows is None else (own.x[rows[at]], own.y[rows[at]])


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
