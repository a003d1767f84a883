"""What holds the past besides the paper's KL: made when a task begins, constant until it ends, pure in a step.

    held = functional · Σ_i KL_i/N + current_inputs · H_x + memory_targets · H_Z + curvature · H_θ      nats per example

Each weight is an option; with zero a hold costs nothing and keeps nothing. The past tasks that a step looks at are the
same for all of them. The formulas are in `regularisers/`, one file each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from frcl.engine.tensors import Params
from frcl.learners.options import FRCLOptions
from frcl.learners.types import Summary
from frcl.regularisers.current_inputs import current_inputs
from frcl.regularisers.curvature import Anchor, curvature
from frcl.regularisers.heads import HeadBlock, make_block
from frcl.regularisers.memory_targets import Targets, make_targets, memory_targets
from frcl.regularisers.protocol import named, under

HEADS = "heads"  # name of the old heads [T, C, K] among the parameters, where they are trained
BEGIN, BLOCK, TARGETS, ANCHOR, PRECISION = "begin/", "block/", "targets/", "anchor/", "precision/"


class Holds(NamedTuple):
    """Constants of the task being learned.

    begin    θ when the task began, by name; empty unless old functions are held at the current inputs
    block    the heads of past tasks as they were then; None unless a hold uses them
    targets  stored values at the points; None unless they are held
    anchor   θ* and Ω; None unless the shared weights are held
    """

    begin: Params
    block: HeadBlock | None
    targets: Targets | None
    anchor: Anchor | None

    def at(self, index: Tensor | None) -> Holds:
        """The past tasks in `index` alone; None: all of them."""
        block = None if self.block is None else self.block.at(index)
        return self._replace(block=block, targets=None if self.targets is None else self.targets.at(index))

    def tensors(self) -> Params:
        """All of it as named tensors."""
        found = named(BEGIN, self.begin)
        if self.block is not None:
            found |= named(BLOCK, self.block._asdict())
        if self.targets is not None:
            found |= named(TARGETS, self.targets._asdict())
        if self.anchor is not None:
            found |= named(ANCHOR, self.anchor.theta) | named(PRECISION, self.anchor.precision)
        return found


def holds_of(tensors: Params) -> Holds | None:
    """The holds whose tensors these are; None where there are none."""
    if not tensors:
        return None
    block, targets = under(tensors, BLOCK), under(tensors, TARGETS)
    anchor, precision = under(tensors, ANCHOR), under(tensors, PRECISION)
    return Holds(
        begin=under(tensors, BEGIN),
        block=HeadBlock(**block) if block else None,
        targets=Targets(**targets) if targets else None,
        anchor=Anchor(anchor, precision) if anchor else None,
    )


def make_holds(
    options: FRCLOptions, past: Sequence[Summary], theta: Params, begin: Params, anchor: Anchor | None
) -> Holds | None:
    """What the options ask for of a task that begins; None where that is nothing.

    `theta` are the weights that it will move, `begin` what they were when it began.
    """
    if not past or not (options.uses_heads or options.curvature):
        return None
    block: HeadBlock | None = None
    targets: Targets | None = None
    if options.uses_heads:
        block = make_block([_head(summary) for summary in past], [_precision(summary) for summary in past])
    if options.memory_targets and block is not None:
        means, sizes = [summary.belief.mean for summary in past], [float(summary.size) for summary in past]
        targets = make_targets(means, sizes, block.heads.shape[1])
    if anchor is not None:  # weights that are frozen by now do not move
        anchor = Anchor(*({name: part[name] for name in part if name in theta} for part in anchor))
        anchor = anchor if anchor.theta else None
    held = {name: value.detach().clone() for name, value in begin.items()} if options.current_inputs else {}
    return Holds(held, block, targets, anchor)


def trained_heads(options: FRCLOptions, holds: Holds | None) -> Params:
    """The old heads where the task being learned goes on training them, by their name among the parameters."""
    if holds is None or holds.block is None or not options.train_heads:
        return {}
    return {HEADS: holds.block.heads}


def past_heads(params: Params, past: Sequence[Summary]) -> list[Tensor | None]:
    """The head of each past task: as it is being trained, else as its summary has it."""
    block = params.get(HEADS)
    if block is None:
        return [summary.head for summary in past]
    return [rows[: summary.target.functions].detach() for rows, summary in zip(block, past, strict=True)]


class Step(NamedTuple):
    """What a step has at hand when the holds are asked for.

    params     everything that is trained; theta, the shared weights among it and those that are fixed
    Phi        features of the minibatch; Phi_old, the same under θ_begin; Phi_z at the points of the tasks looked at
    looked_at  which past tasks, of so many (tasks); None: all of them
    """

    params: Params
    theta: Params
    Phi: Tensor
    Phi_old: Tensor | None
    Phi_z: Tensor | None
    looked_at: Tensor | None
    tasks: int
    N: float | Tensor


def held_by(options: FRCLOptions, holds: Holds, step: Step) -> list[Tensor]:
    """The holds of this file, each times its weight, in nats per example."""
    part = holds.at(step.looked_at)
    found: list[Tensor] = []
    if part.block is not None:
        heads = part.block.heads
        if HEADS in step.params:
            now = step.params[HEADS]
            heads = part.block.trained(now if step.looked_at is None else now[step.looked_at])
        if step.Phi_old is not None:
            apart = current_inputs(step.Phi_old, step.Phi, part.block, heads, step.tasks)
            found.append(options.current_inputs * apart)
        if part.targets is not None and step.Phi_z is not None:
            apart = memory_targets(step.Phi_z, part.targets, part.block, heads, step.tasks)
            found.append(options.memory_targets * apart / step.N)
    if part.anchor is not None:
        found.append(options.curvature * curvature(step.theta, part.anchor) / step.N)
    return found


def _head(summary: Summary) -> Tensor:
    assert summary.head is not None
    return summary.head


def _precision(summary: Summary) -> Tensor | None:
    """1/s² of a regression task."""
    return None if summary.target.is_classification else summary.likelihood_params["log_noise"].neg().exp()
