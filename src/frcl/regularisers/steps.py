"""What a learner with regularisers does around its training steps, the same for FRCL and for the methods beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from frcl.regularisers.heads import make_block
from frcl.regularisers.protocol import PastTask, Regulariser, sample_tasks
from frcl.seeding import fork
from frcl.trees import Tree, leaf

P = TypeVar("P", bound=PastTask)


class PenaltyDraws(NamedTuple):
    """The randomness of penalties: past tasks in use [steps, k] (None: all), and what each regulariser drew."""

    tasks: Tensor | None
    own: tuple[Tree, ...]


def draw_penalties(
    regularisers: Sequence[Regulariser], steps: int, past_tasks: int, at_most: int | None, generator: torch.Generator
) -> PenaltyDraws:
    """Everything random of the penalties in the next steps; at most `at_most` past tasks are used per step."""
    used = sample_tasks(past_tasks, at_most, steps, generator)
    return PenaltyDraws(used, tuple(one.draw(steps, past_tasks, generator) for one in regularisers))


def follow_of(regularisers: Sequence[Regulariser]) -> Callable[..., None] | None:
    """The call after each step that updates what the regularisers carry along; None where none carries anything.

    The trees that it is given have the shared weights as `theta`, the constants have those of each regulariser as
    `regularisers`.
    """
    if not any(one.carry() for one in regularisers):
        return None

    def follow(carry: Tree, constants: Tree, gradient: Tree, before: Tree, after: Tree) -> None:
        for i, regulariser in enumerate(regularisers):
            if carry[i]:
                regulariser.follow(carry[i], constants.regularisers[i], gradient.theta, before.theta, after.theta)

    return follow


def look_of(regularisers: Sequence[Regulariser], seed: int, task: int) -> Callable[[Tensor, Tensor, int], None] | None:
    """The call after each step that shows its minibatch to the regularisers that look; None where none does."""
    if not any(one.looks for one in regularisers):
        return None

    def look(x: Tensor, y: Tensor, step: int) -> None:
        for i, regulariser in enumerate(regularisers):
            if regulariser.looks:
                regulariser.look(x, y, fork(seed, f"look/{i}/{task}/{step}"))

    return look


def trained_heads(regularisers: Sequence[Regulariser], past: Sequence[PastTask]) -> Tensor | None:
    """The heads of past tasks as one trainable block [T, C, K], where a regulariser trains them along."""
    if not past or not any(one.trains_heads for one in regularisers):
        return None
    return leaf(make_block(past).heads)


def with_trained_heads(past: Sequence[P], block: Tensor | None) -> list[P]:
    """The past tasks with their heads as they are in the block, copied; as they are where there is no block."""
    if block is None:
        return list(past)
    heads = [rows[: one.likelihood.functions].detach().clone() for one, rows in zip(past, block, strict=True)]
    tasks: Sequence[Any] = past
    return [replace(one, head=head) for one, head in zip(tasks, heads, strict=True)]
