"""The heads of past tasks in one padded block, and what their likelihoods say of functions at some inputs.

Task i has w_i [C_i, K], so that f_i(x) = φ(x)ᵀ w_i, one function per class or target.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from frcl.checks import expect
from frcl.likelihoods import Likelihood
from frcl.regularisers.protocol import PastTask, Regulariser, Step
from frcl.summary import padded
from frcl.trees import Params, leaf

P = TypeVar("P", bound=PastTask)
ValueOf = Callable[[Likelihood, Params, tuple[Tensor, ...]], Tensor]  # by what a likelihood learned, and functions


class HeadBlock(NamedTuple):
    """The heads of T tasks, padded to C functions."""

    heads: Tensor  # [T, C, K]; zero where a task has no function
    own: Tensor  # [T, C], one where a task has a function, else zero
    kinds: tuple[Likelihood, ...]  # the different likelihoods among the tasks
    member: Tensor  # [T, kinds], one at the kind of a task
    params: tuple[Params, ...]  # what each kind's likelihoods learned, [T, 1, C] by name, zero at other tasks

    def now(self, step: Step) -> Tensor:
        """The heads of the tasks in use, as they are in a step: trained, but for padded rows, or as they were kept."""
        if step.heads is None:
            return self.heads
        heads = step.heads if step.tasks is None else step.heads[step.tasks]
        return heads * self.own[..., None]


def make_block(past: Sequence[PastTask]) -> HeadBlock:
    """The block of some past tasks, whose heads are kept."""
    heads = [task.head.detach() for task in past]  # type: ignore[union-attr]
    kinds = {task.likelihood.name: task.likelihood for task in past}
    member = [[float(task.likelihood.name == kind) for kind in kinds] for task in past]
    return HeadBlock(
        heads=padded(heads), own=padded([head.new_ones(len(head)) for head in heads]), kinds=tuple(kinds.values()),
        member=heads[0].new_tensor(member), params=tuple(_params(past, kind, heads) for kind in kinds),
    )  # fmt: skip


def _params(past: Sequence[PastTask], kind: str, heads: Sequence[Tensor]) -> Params:
    """What the likelihoods of one kind learned, padded over tasks and functions."""
    learned = [task.likelihood_params if task.likelihood.name == kind else {} for task in past]
    found: Params = {}
    for name in next((own for own in learned if own), {}):
        rows = [own[name].to(w) if own else w.new_zeros(len(w)) for own, w in zip(learned, heads, strict=True)]
        found[name] = padded(rows)[:, None].detach()
    return found


def functions_at(Phi: Tensor, heads: Tensor) -> Tensor:
    """f of every task, [T, n, C], at inputs with features Phi [n, K], heads [T, C, K]."""
    return (Phi @ heads.flatten(0, 1).mT).view(len(Phi), *heads.shape[:2]).transpose(0, 1)


def divergence(old: Tensor, new: Tensor, block: HeadBlock) -> Tensor:
    """KL( p(y | f_old) ‖ p(y | f_new) ) of every task and input, [T, n]; functions [T, n, C] each, in nats."""
    own = block.own[:, None]
    return _by_kind(block, lambda kind, params, f: kind.divergence(f[0], f[1], own, params), old, new)


def log_prob(f: Tensor, y: Tensor, block: HeadBlock) -> Tensor:
    """log p(y | f) of every task and input, [T, n]; f [T, n, C], y [T, n, ...]. For tasks with classes."""
    absent = torch.zeros_like(block.own).masked_fill(block.own == 0, -torch.inf)[:, None]
    return _by_kind(block, lambda kind, params, fs: kind.log_prob(fs[0] + absent, y, params), f)


def _by_kind(block: HeadBlock, value: ValueOf, *functions: Tensor) -> Tensor:
    """The value of each task by its own likelihood; other tasks' functions count as zero in it."""
    if len(block.kinds) == 1:
        return value(block.kinds[0], block.params[0], functions)
    parts: list[Tensor] = []
    for kind, params, member in zip(block.kinds, block.params, block.member.unbind(1), strict=True):
        part = value(kind, params, tuple(f * member[:, None, None] for f in functions))
        parts.append(torch.where(member[:, None] > 0, part, 0.0))
    return sum(parts[1:], parts[0])


def trained_heads(regularisers: Sequence[Regulariser], past: Sequence[PastTask]) -> Tensor | None:
    """The heads of past tasks as one trainable block [T, C, K], where a regulariser trains them along."""
    trains = past and any(one.trains_heads for one in regularisers)
    return leaf(make_block(past).heads) if trains else None


def with_trained_heads(past: Sequence[P], block: Tensor | None) -> list[P]:
    """The past tasks with their heads as they are in the block, copied; as they are where there is no block."""
    if block is None:
        return list(past)
    tasks: Sequence[Any] = past
    pairs = zip(tasks, block, strict=True)
    return [replace(one, head=rows[: one.likelihood.functions].detach().clone()) for one, rows in pairs]


def check_heads(each: Sequence[Tensor], past: Sequence[Any], what: str) -> None:
    """Refuse what is kept of the heads of past tasks where it is not like these."""
    for own, task in zip(each, past, strict=False):
        expect(own.ndim == 2 and len(own) == task.likelihood.functions, what)
        expect(task.head is None or (task.head.shape, task.head.dtype) == (own.shape, own.dtype), what)


# -- one head for all tasks --------------------------------------------------------------------------------------------


def head_rows(tasks: Sequence[Likelihood], *, shared: bool) -> list[list[int]]:
    """For the labels of each task their rows in one head; `shared`: a label has one row, whatever tasks it is in.

    New rows come after those of earlier tasks, so that the head only grows.
    """
    known: dict[object, int] = {}
    keys = [[label if shared else (i, label) for label in task.classes or ()] for i, task in enumerate(tasks)]
    return [[known.setdefault(key, len(known)) for key in own] for own in keys]


def one_head(heads: Sequence[Tensor], rows: Sequence[Sequence[int]]) -> Tensor:
    """The head [R, K] that has the heads of some tasks at their rows; at a row of several tasks that of the last."""
    last = {row: head[i] for head, own in zip(heads, rows, strict=True) for i, row in enumerate(own)}
    return torch.stack([last[row] for row in range(len(last))])


def grown_head(heads: Sequence[Tensor], rows: Sequence[Sequence[int]], new: Tensor) -> Tensor:
    """That of past tasks, with the rows of a further task appended that no other task has; `new` is its own head."""
    old = one_head(heads, rows[:-1]) if len(heads) else new[:0]
    return torch.cat([old, new[[i for i, row in enumerate(rows[-1]) if row >= len(old)]]])


class Rows(NamedTuple):
    """The rows of one head that belong to the open task [C], and to past tasks [T, C], padded by zeros, or None."""

    own: Tensor
    past: Tensor | None


def row_tensors(rows: Sequence[Sequence[int]], device: torch.device) -> Rows:
    """The same as indices; the open task comes last."""
    *past, own = (torch.tensor(one, device=device) for one in rows)
    return Rows(own, padded(past) if past else None)
