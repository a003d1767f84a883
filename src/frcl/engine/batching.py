"""Several programs stacked along a leading axis, and whether that can be done."""

from collections.abc import Sequence
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from frcl.engine.program import Drawn, Program, Terms, Unit, gradient
from frcl.trees import Params, Tree, batch_axes, in_one_block, leaf, named_tensors, shapes, stack, tree_map

LARGEST = 8 << 30  # bytes of data that may be copied for the sake of one gather instead of several


class Block(Unit):
    """Programs of equal shape as one: every tensor has a leading axis [S], of which their own tensors are slices."""

    is_stacked = True

    def __init__(self, programs: Sequence[Program]) -> None:
        self.programs, self.drawn = programs, None
        self.optimiser = programs[0].optimiser.joined([program.optimiser for program in programs])
        self.constants = stack([program.constants for program in programs])
        self.carry = in_one_block([program.carry for program in programs])
        self._data: tuple[Tensor, Tensor, Tensor] | None = None  # of all in one, and where each begins, [S, 1]
        x, y = [program.x for program in programs], [program.y for program in programs]
        if x[0].is_cuda and sum(part.nbytes for part in x) <= LARGEST:
            first = torch.tensor([0, *map(len, x[:-1])], device=x[0].device).cumsum(0)
            self._data = torch.cat(x), torch.cat(y), first[:, None]

    def computed(self, drawn: Drawn) -> tuple[Terms, Params]:
        rows, draws, changes = drawn
        assert rows is not None
        if self._data is None:
            x, y = minibatches(self.programs, list(rows))
        else:
            *data, first = self._data
            picked = (first + rows).flatten()
            x, y = (whole.index_select(0, picked).unflatten(0, rows.shape) for whole in data)
        if (augment := self.programs[0].augment) is not None:
            each = tree_map(lambda value: value.flatten(0, 1), changes)
            x = augment(x.flatten(0, 1), each, self.programs[0].step).view_as(x)
        terms = batched_loss(self.programs[0], self.optimiser.tree, self.constants, x, y, draws)
        return terms, gradient(terms.loss.sum(), self.optimiser.params)


def batched_loss(program: Program, params: Tree, constants: Tree, x: Tensor, y: Tensor, draws: Tree) -> Terms:
    """The loss of stacked programs, [S] each; leaves that are no tensors are common to all."""
    arguments = (params, constants, x, y, draws)
    terms: Terms = torch.vmap(program.loss, in_dims=tuple(batch_axes(one) for one in arguments))(*arguments)
    return terms


def minibatches(programs: Sequence[Program], rows: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """The examples that each program uses in a step, [S, B, ...]."""
    each = zip(programs, rows, strict=True)
    return stack([(one.x.index_select(0, own), one.y.index_select(0, own)) for one, own in each])


def can_stack(programs: Sequence[Program]) -> bool:
    """Whether they have one loss and one shape."""
    first = programs[0]
    alike = all(_shape(program) == _shape(first) for program in programs)
    pure = all(program.augment is None or program.augment.is_pure for program in programs)
    return pure and alike and all(program.stackable for program in programs)


def _shape(program: Program) -> object:
    lr = (program.optimiser.lr, program.optimiser.decay, program.optimiser.rise, program.optimiser.rule)
    trees = shapes((program.optimiser.tree, program.constants, program.carry))
    augment = None if program.augment is None else program.augment.function
    return program.signature, augment, trees, tuple(program.x.shape[1:]), tuple(program.y.shape[1:]), lr


CLOSE = 0.02  # of the largest element of a gradient: rounding, in TF32 too, is far below, another function far above

_verdicts: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()  # by network: why it cannot be batched, or ""


def why_not(programs: Sequence[Program]) -> str:
    """Why these programs cannot be computed as one, or "": each network is tested once in its life."""
    nets = [program.net for program in programs]
    if any(net not in _verdicts for net in nets):
        _verdicts.update(dict.fromkeys(nets, _tested(programs)))
    return next((_verdicts[net] for net in nets if _verdicts[net]), "")


def _tested(programs: Sequence[Program]) -> str:
    """Compare loss and gradient of one step, batched and one by one."""
    drawn = [_drawn(program) for program in programs]
    x, y = minibatches(programs, [one.rows for one in drawn if one.rows is not None])
    own = [tree_map(leaf, program.optimiser.tree) for program in programs]
    block = tree_map(leaf, stack(own))
    constants, draws = stack([program.constants for program in programs]), stack([one.draws for one in drawn])
    try:
        both = batched_loss(programs[0], block, constants, x, y, draws)
        gradients = gradient(both.loss.sum(), dict(named_tensors(block)))
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        return str(error) or type(error).__name__
    for i, program in enumerate(programs):
        alone = program.loss(own[i], program.constants, x[i], y[i], drawn[i].draws)
        expected = gradient(alone.loss, dict(named_tensors(own[i]))) | {"the loss": alone.loss.detach()}
        found = {name: value[i] for name, value in gradients.items()} | {"the loss": both.loss.detach()[i]}
        for name, value in expected.items():
            if not _close(found[name], value):
                return f"together the networks do not compute what each computes alone (see {name})"
    return ""


def _close(found: Tensor, expected: Tensor) -> bool:
    if not found.numel() or not bool(expected.isfinite().all()):
        return True
    return bool((found - expected).abs().max() <= CLOSE * expected.abs().max() + 1e-6)


def _drawn(program: Program) -> Drawn:
    """The randomness of one step, without a trace in the streams."""
    streams = program.streams.state()
    drawn = tree_map(lambda value: value[0], program.draw(1))
    program.streams.restore(streams)
    return drawn
