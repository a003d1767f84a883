"""The training loop: programs in lockstep, or one minibatch of a stream at a time; eager, or recorded on CUDA."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from typing import Any, Protocol

from torch import Tensor

from frcl.distributed import processes
from frcl.engine.batching import Block, can_stack, why_not
from frcl.engine.parallel import Found, begin_together, joint, sharded
from frcl.engine.program import (
    Drawn,
    Indivisible,
    Program,
    Terms,
    Unit,
    Values,
    at_place,
    gradient,
    loaded,
    refuse_non_finite_gradient,
    refuse_non_finite_loss,
)
from frcl.engine.recorded import Recorded
from frcl.errors import TaskError
from frcl.features import network_failures
from frcl.trees import named_tensors

EAGER = 10  # minibatches of a stream before its step is recorded: a short task is not worth it


def train(programs: Sequence[Program]) -> Generator[list[list[Values]], None, None]:
    """Take every step that the programs have left, all of them in lockstep.

    Yields after each step on the CPU, after each chunk of steps on CUDA: for each step taken since, the terms of each
    program. At that moment parameters, moments and streams belong to the last of these steps, and may be saved.
    """
    if not programs:
        return
    first = programs[0]
    if any((one.step, one.stop, one.first, one.chunk) != (first.step, first.stop, first.first, first.chunk)
           for one in programs):  # fmt: skip
        raise TaskError("learners that learn together stand at the same step of a task")
    if first.step >= first.stop:
        return
    begin_together(programs)
    split = sharded(programs)
    units: Sequence[Unit] = [Alone(split[0])] if len(programs) == 1 else _units(split)
    recorded = first.x.is_cuda and processes() is None and all(one.augment is None for one in programs)
    loop = Recorded(units) if recorded else _Eager(units)
    try:
        while first.step < first.stop:
            yield from _chunk(programs, units, loop)
    finally:
        if isinstance(loop, Recorded):
            loop.close()
        if len(programs) > 1:
            with Indivisible([program.lock for program in programs]):
                _settle(programs)


class StreamSteps:
    """The same step for one minibatch at a time: a program whose data is replaced before each step.

    On CUDA the step is recorded once per task, for minibatches of one shape. A copy of a learner records it again.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self._static: tuple[Tensor, Tensor] | None = None  # the minibatch that the recorded step reads
        self._recorded: tuple[Sequence[Unit], _Loop] | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        return None

    def step(self, x: Tensor, y: Tensor) -> Values:
        """One step on a minibatch; one whose loss is not finite is refused before it is taken."""
        program = self.program
        units: Sequence[Unit]
        loop: _Loop
        program.stop = program.step + 1
        if self._is_recorded(x):
            units, loop = self._recording(x, y)
        else:
            program.x, program.y = x, y
            if program.step == program.first:
                begin_together([program])
            units = [Alone(one) for one in sharded([program])]
            loop = _Eager(units)
        with contextlib.closing(_chunk([program], units, loop)) as steps:
            ((values,),) = next(steps)
        return values

    def _is_recorded(self, x: Tensor) -> bool:
        """By the number of steps and the shape alone, so that a resumed stream does the same."""
        if not self._is_due(x):
            return False
        return self._static is None or (self._static[0].shape == x.shape and self._static[0].dtype == x.dtype)

    def _is_due(self, x: Tensor) -> bool:
        return x.is_cuda and processes() is None and self.program.step >= EAGER

    def _recording(self, x: Tensor, y: Tensor) -> tuple[Sequence[Unit], _Loop]:
        if self._static is None:
            self._static = x.clone(), y.clone()
        for held, given in zip(self._static, (x, y), strict=True):
            held.copy_(given)
        self.program.x, self.program.y = self._static
        if self._recorded is None:
            units = [Alone(self.program)]
            self._recorded = units, Recorded(units)
        return self._recorded


def _chunk(
    programs: Sequence[Program], units: Sequence[Unit], loop: _Loop
) -> Generator[list[list[Values]], None, None]:
    """The steps left of the chunk that the programs stand in."""
    first = programs[0]
    for unit in units:
        chunks = [program.next_chunk() for program in unit.programs]
        start, end, _ = chunks[0]
        unit.load([drawn for _, _, drawn in chunks])
        del chunks

    def count(taken: int) -> None:
        done = first.step - start
        for program in programs:
            program.optimiser.steps += taken
            if program.step == end:
                program.streams.release()
        for unit in units:
            for i, program in enumerate(unit.programs):
                for at in range(done, done + taken) if program.look is not None else ():
                    program.look(*unit.minibatch(i, at), start + at + 1)  # type: ignore[misc]

    yield from loop.steps(first.step - start, end - start, count)


def _settle(programs: Sequence[Program]) -> None:
    """No tensor of a program is part of a stack any more."""
    for program in programs:
        program.optimiser.settle()
        for _, value in named_tensors(program.carry):
            value.data = value.data.clone()


def _units(programs: Sequence[Program]) -> list[Unit]:
    """One block if they fit together and can be batched, else each by itself."""
    if not can_stack(programs):
        return [Alone(program) for program in programs]
    if reason := why_not(programs):
        warnings.warn(f"these networks cannot be batched over seeds, which run side by side: {reason}", stacklevel=3)
        return [Alone(program) for program in programs]
    return [Block(programs)]


class Alone(Unit):
    """One program by itself."""

    def __init__(self, program: Program) -> None:
        self.programs: Sequence[Program] = [program]
        self.optimiser, self.constants, self.carry = program.optimiser, program.constants, program.carry

    def load(self, drawn: Sequence[Drawn]) -> None:
        program = self.programs[0]
        self.drawn = loaded(self.drawn, drawn[0], program.chunk) if program.x.is_cuda else drawn[0]

    def terms(self, at: int | Tensor) -> Terms:
        program = self.programs[0]
        assert self.drawn is not None
        rows, draws = at_place(self.drawn, at)
        x, y = program.x, program.y
        if rows is not None:
            x, y = x.index_select(0, rows), y.index_select(0, rows)  # faster than indexing
        if program.augment is not None:
            x = program.augment(x, program.step)
        return program.loss(self.optimiser.tree, self.constants, x, y, draws)

    def minibatch(self, program: int, at: int) -> tuple[Tensor, Tensor]:
        assert self.drawn is not None
        own, rows = self.programs[0], self.drawn.rows
        return (own.x, own.y) if rows is None else (own.x[rows[at]], own.y[rows[at]])


class _Loop(Protocol):
    units: Sequence[Unit]

    def steps(self, start: int, end: int, count: Callable[[int], None]) -> Iterator[list[list[Values]]]:
        """The steps at these places of the chunk that was loaded; `count` is told how many were taken."""


class _Eager:
    """Step by step, of all units or of none; a loss or gradient that is not finite is refused before its step."""

    def __init__(self, units: Sequence[Unit]) -> None:
        self.units = units
        self._indivisible = Indivisible([program.lock for unit in units for program in unit.programs])

    def steps(self, start: int, end: int, count: Callable[[int], None]) -> Iterator[list[list[Values]]]:
        for at in range(start, end):
            with self._indivisible:
                terms, found = joint(self.units, partial(self._computed, at))
                for one in terms:
                    refuse_non_finite_loss(one.loss)
                for one_gradient in found:
                    refuse_non_finite_gradient(one_gradient)
                steps = zip(self.units, terms, found, strict=True)
                taken = [unit.move(one, down).tolist() for unit, one, down in steps]
                count(1)
            yield [[tuple(values) for unit in taken for values in unit]]

    def _computed(self, at: int) -> Found:
        with network_failures():
            terms = [unit.terms(at) for unit in self.units]
        pairs = zip(self.units, terms, strict=True)
        return terms, [gradient(one.loss.sum(), unit.optimiser.params) for unit, one in pairs]
