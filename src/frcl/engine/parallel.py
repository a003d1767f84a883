"""One minibatch split between processes: each computes the loss of its rows, and the gradients are added.

A loss is a mean over the B examples of a minibatch plus terms that do not depend on them. Process r of R has the rows
r, r + R, … of the joint minibatch, B_r of them, and with ℓ_r the loss of these rows

    Σ_r (B_r/B) ℓ_r = the loss of the joint minibatch,

so that the sum of the gradients of (B_r/B) ℓ_r is the gradient of one process with all rows, up to rounding.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from frcl.distributed import Processes
from frcl.engine.program import Drawn, Program, Terms, Unit
from frcl.errors import DataError, TaskError
from frcl.features import network_failures
from frcl.trees import Params, Tree, named_tensors, shapes, tree_map

ROWS = 1000  # of the data, which are compared between processes


def sharded(program: Program, group: Processes) -> Program:
    """The program with the loss of this process's rows."""
    rows = slice(group.rank, None, group.size)

    def loss(params: Tree, constants: Tree, x: Tensor, y: Tensor, draws: Tree) -> Terms:
        if len(x) < group.size:
            raise DataError(
                f"a minibatch of {len(x)} cannot be split between {group.size} processes; raise batch_size, or start "
                "fewer processes"
            )
        own = x[rows]
        part = draws if program.share is None else program.share(draws, rows)
        terms = program.loss(params, constants, own, y[rows], part)
        return Terms(*(len(own) / len(x) * term for term in terms))

    return replace(program, loss=loss)


def begin_together(programs: Sequence[Program], group: Processes) -> None:
    """Make sure that all processes begin the same steps, and with the numbers of the first one."""
    for program in programs:
        if not group.all_agree(_mark(program)):
            raise TaskError(
                "the processes are not about to learn the same: give each of them the same data, all of it and not a "
                "part, the same options and seed, and let each make the same calls"
            )
        optimiser = program.optimiser
        moments = (optimiser.exp_avg, optimiser.exp_avg_sq)
        with torch.no_grad():
            for _, tensor in named_tensors((optimiser.params, moments, program.carry)):
                tensor.copy_(group.take_from_first(tensor))
        program.constants = tree_map(group.take_from_first, program.constants)


def _mark(program: Program) -> str:
    """A digest of what decides the steps: data, shapes, random streams."""
    trees = program.optimiser.params, program.constants, program.carry
    digest = hashlib.blake2b(repr((shapes(trees), program.step)).encode())
    data = [part[:: max(1, len(part) // ROWS)] for part in (program.x, program.y)]
    for part in (*data, *program.streams.state().values()):
        digest.update(repr((part.dtype, part.shape)).encode())
        digest.update(part.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def joint(pairs: Sequence[tuple[Unit, Drawn]], group: Processes) -> list[tuple[Terms, Params]]:
    """What each unit computes from its draws, added over all processes; where one of them fails, all do."""
    failure: Exception | None = None
    try:
        with network_failures():
            computed = [unit.computed(drawn) for unit, drawn in pairs]
        parts = [[*terms, *found.values()] for terms, found in computed]
    except Exception as error:
        failure = error
        parts = [_nothing(unit) for unit, _ in pairs]
    sums = iter(group.summed([tensor for part in parts for tensor in part], failure))
    added = []
    for unit, _ in pairs:
        terms = Terms(*(next(sums) for _ in Terms._fields))
        added.append((terms, {name: next(sums).view_as(value) for name, value in unit.optimiser.params.items()}))
    return added


def _nothing(unit: Unit) -> list[Tensor]:
    """Zeros in the place of terms and gradient."""
    params = list(unit.optimiser.params.values())
    return [params[0].new_zeros(len(unit.programs)) for _ in Terms._fields] + [torch.zeros_like(p) for p in params]
