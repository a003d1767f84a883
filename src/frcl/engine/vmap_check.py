"""Whether programs may be computed as one: tested on the first step, since a network can hide what makes it differ."""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from frcl.engine.adam import gradient
from frcl.engine.batching import batched_loss, minibatches
from frcl.engine.program import Drawn, Program
from frcl.trees import leaf, named_tensors, stack, tree_map

CLOSE = 0.02  # of the largest element of a gradient: rounding, in TF32 too, is far below, another function far above

_verdicts: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()  # by network: why it cannot be batched, or ""


def why_not(programs: Sequence[Program]) -> str:
    """Why these programs cannot be computed as one, or "": each network is tested once in its life."""
    if any(program.net not in _verdicts for program in programs):
        reason = _tested(programs)
        for program in programs:
            _verdicts[program.net] = reason
    return next((_verdicts[program.net] for program in programs if _verdicts[program.net]), "")


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
