"""The heads of past tasks in one padded block, and how far apart two functions of a task are at an input.

Task i has w_i [C_i, K], so that f_i(x) = φ(x)ᵀ w_i, one function a class or target. In nats per input,

    D(old ‖ new) = KL( softmax f_old ‖ softmax f_new )       a task with classes
    D(old ‖ new) = Σ_c (f_old,c − f_new,c)² / (2 s_c²)       regression with noise variance s²: KL of two Gaussians

A binary task with one function f is the softmax of [f, 0], whose KL is that of two Bernoulli distributions. For a
RobustMax likelihood, which sees the largest function alone, the softmax of the functions stands in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from frcl.summary import pad_to


class HeadBlock(NamedTuple):
    """The heads of T tasks, padded to C functions, and what makes the padding count for nothing.

    heads      [T, C, K]; zero where a task has no function of its own
    own        [T, C], one where it has one, else zero: the zero of a binary task's [f, 0] is not its own
    offset     [T, C], added in the softmax: −∞ at classes that a task does not have
    classes    [T], one for a task with classes, zero for regression, where every softmax is made uniform
    precision  [T, C], 1/s² of a regression task, zero for classes
    """

    heads: Tensor
    own: Tensor
    offset: Tensor
    classes: Tensor
    precision: Tensor

    @property
    def tasks(self) -> int:
        return self.heads.shape[0]

    def at(self, index: Tensor | None) -> HeadBlock:
        """The tasks in `index` alone; None: all of them."""
        return self if index is None else HeadBlock(*(field[index] for field in self))

    def trained(self, heads: Tensor) -> Tensor:
        """Heads that are being trained, of which padded rows take no part and get no gradient."""
        return heads * self.own[..., None]


def make_block(heads: Sequence[Tensor], precisions: Sequence[Tensor | None]) -> HeadBlock:
    """The block of tasks with these heads [C_i, K]; 1/s² [C_i] of those that are regression, None for classes."""
    each = [_one(head, precision) for head, precision in zip(heads, precisions, strict=True)]
    C = max(one.heads.shape[1] for one in each)
    there = torch.cat([pad_to(torch.ones_like(one.offset), (C,)) for one in each])
    classes = torch.cat([one.classes for one in each])
    return HeadBlock(
        heads=torch.cat([pad_to(one.heads, (C,)) for one in each]),
        own=torch.cat([pad_to(one.own, (C,)) for one in each]),
        offset=torch.zeros_like(there).masked_fill((there == 0) & (classes[:, None] > 0), -torch.inf),
        classes=classes,
        precision=torch.cat([pad_to(one.precision, (C,)) for one in each]),
    )


def _one(head: Tensor, precision: Tensor | None) -> HeadBlock:
    """A block of one task, T = 1, without padding but for the zero of a binary task."""
    C = head.shape[0]
    columns = 2 if precision is None and C == 1 else C
    own = head.new_ones(1, C)
    return HeadBlock(
        heads=pad_to(head[None].detach(), (columns,)),
        own=pad_to(own, (columns,)),
        offset=head.new_zeros(1, columns),
        classes=head.new_full((1,), float(precision is None)),
        precision=head.new_zeros(1, columns) if precision is None else precision[None].to(head).detach(),
    )


def functions_at(Phi: Tensor, heads: Tensor) -> Tensor:
    """f of every task, [T, n, C], at inputs with features Phi [n, K], heads [T, C, K]."""
    values: Tensor = (Phi @ heads.flatten(0, 1).mT).unflatten(1, heads.shape[:2])
    return values.transpose(0, 1)


def divergence(old: Tensor, new: Tensor, block: HeadBlock) -> Tensor:
    """D(old ‖ new) of every task and input, [T, n]; functions [T, n, C] each, in nats."""
    offset, classes = block.offset[:, None], block.classes[:, None, None]
    log_old, log_new = ((classes * f + offset).log_softmax(-1) for f in (old, new))
    between = torch.where(offset > -torch.inf, log_old - log_new, 0.0)
    squares = block.precision[:, None] * (old - new).square()
    return (log_old.exp() * between + 0.5 * squares).sum(-1)
