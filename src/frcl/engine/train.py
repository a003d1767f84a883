"""The training loop: programs in lockstep, or one minibatch of a stream at a time; eager, or recorded on CUDA."""

import contextlib
import warnings
from collections.abc import Generator, Sequence
from operator import itemgetter
from typing import Any

from torch import Tensor

from frcl.distributed import Processes, processes
from frcl.engine.batching import Block, can_stack, why_not
from frcl.engine.parallel import begin_together, joint, sharded
from frcl.engine.program import Program, Unit, Values, indivisible, refuse_non_finite
from frcl.engine.recorded import Recorded
from frcl.errors import TaskError
from frcl.features import network_failures
from frcl.trees import named_tensors, tree_map

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
    if (group := processes()) is not None:
        begin_together(programs, group)
    own = programs if group is None else [sharded(program, group) for program in programs]
    units: Sequence[Unit] = [Unit(own[0])] if len(own) == 1 else _units(own)
    recorded = Recorded(units) if can_record(programs) else None
    try:
        while first.step < first.stop:
            yield from eager_steps(units, group) if recorded is None else recorded.steps()
    finally:
        if recorded is not None:
            recorded.close()
        if len(programs) > 1:
            with indivisible([program.lock for program in programs]):
                _settle(programs)


def can_record(programs: Sequence[Program]) -> bool:
    """Whether their steps are recorded: on CUDA, in one process, without augmentation."""
    return programs[0].x.is_cuda and processes() is None and all(one.augment is None for one in programs)


def eager_steps(units: Sequence[Unit], group: Processes | None) -> Generator[list[list[Values]], None, None]:
    """The steps left of a chunk, one by one, of all units or of none; one that is not finite is refused before it."""
    for unit in units:
        places = unit.load()  # of all the same
    locks = [program.lock for unit in units for program in unit.programs]
    for at in places:
        with indivisible(locks):
            draws = [tree_map(itemgetter(at), unit.drawn) for unit in units]
            with network_failures():
                pairs = list(zip(units, draws, strict=True))
                computed = [unit.computed(one) for unit, one in pairs] if group is None else joint(pairs, group)
            for terms, found in computed:
                refuse_non_finite("loss", {"": terms.loss})
                refuse_non_finite("gradient", found)
            values = []
            for unit, one in zip(units, computed, strict=True):
                values += unit.move(*one).tolist()
            for unit in units:
                unit.count(range(at, at + 1))
        yield [[tuple(one) for one in values]]


class StreamSteps:
    """The same step for one minibatch at a time: a program whose data is replaced before each step.

    On CUDA the step is recorded once per task, for minibatches of one shape. A copy of a learner records it again.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self._static: tuple[Tensor, Tensor] | None = None  # the minibatch that the recorded step reads
        self.recorded: Recorded | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        return None

    def step(self, x: Tensor, y: Tensor) -> Values:
        """One step on a minibatch; one whose loss is not finite is refused before it is taken.

        Whether it is recorded depends on the number of steps and the shape alone: a resumed stream does the same.
        """
        program, group = self.program, processes()
        program.stop = program.step + 1
        static = self._static
        fits = static is None or (static[0].shape, static[0].dtype) == (x.shape, x.dtype)
        if fits and program.step >= EAGER and can_record([program]):
            steps = self._recorded_steps(x, y)
        else:
            program.x, program.y = x, y
            if group is not None:
                if program.step == program.first:
                    begin_together([program], group)
                program = sharded(program, group)
            steps = eager_steps([Unit(program)], group)
        with contextlib.closing(steps):
            ((values,),) = next(steps)
        return values

    def _recorded_steps(self, x: Tensor, y: Tensor) -> Generator[list[list[Values]], None, None]:
        if self._static is None:
            self._static = x.clone(), y.clone()
        for held, given in zip(self._static, (x, y), strict=True):
            held.copy_(given)
        self.program.x, self.program.y = self._static
        if self.recorded is None:
            self.recorded = Recorded([Unit(self.program)])
        return self.recorded.steps()


def _settle(programs: Sequence[Program]) -> None:
    """No tensor of a program is part of a stack any more."""
    for program in programs:
        program.optimiser.settle()
        for _, value in named_tensors(program.carry):
            value.data = value.data.clone()


def _units(programs: Sequence[Program]) -> list[Unit]:
    """One block if they fit together and can be batched, else each by itself."""
    if not can_stack(programs):
        return [Unit(program) for program in programs]
    if reason := why_not(programs):
        warnings.warn(f"these networks cannot be batched over seeds, which run side by side: {reason}", stacklevel=3)
        return [Unit(program) for program in programs]
    return [Block(programs)]
