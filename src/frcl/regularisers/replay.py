"""Stored examples: the paper's BASELINE (Appendix C), and learning on all data so far.

    penalty = weight/N · Σ_i (N_i/M_i) Σ_{j ≤ M_i} −log p(ỹ_ij | x̃_ij)      nats per example, over past tasks i

An unbiased estimate of the loss on all data of past tasks; all heads are trained along.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from frcl.checks import Seen, check_stored, check_targets, expect
from frcl.errors import DataError
from frcl.likelihoods import Likelihood
from frcl.regularisers.heads import HeadBlock, log_prob, make_block
from frcl.regularisers.protocol import (
    Kept,
    Regulariser,
    Step,
    Task,
    number,
    points_of,
    register,
    remembered,
    stacked_points,
)
from frcl.selection import random_start
from frcl.summary import StoredInputs, stored_inputs
from frcl.trees import Params, Tree, tree_map


class Constants(NamedTuple):
    """The buffers of T tasks: one by one, or padded in one block [T, M, ...] where a step uses some of them."""

    x: Any
    y: Any
    block: HeadBlock
    tasks: tuple[tuple[Likelihood, Params], ...]  # likelihoods, with what they learned
    sizes: Tensor  # N_i
    counts: Tensor  # M_i


class Replayed(NamedTuple):
    """The randomness of steps: rows of each buffer [steps, batch] (none: whole buffers), and the draws of
    augmentation [steps, T, most]."""

    rows: tuple[Tensor, ...]
    augment: Tree = ()


@register
@dataclass
class Replay(Regulariser):
    """Keeps M examples of each task, balanced over classes; points=None keeps all, and a step draws `batch` of them."""

    weight: float = number(1.0)
    points: int | None = 40
    points_per_class: int | None = None
    batch: int | None = None  # examples drawn from each buffer in a step; None: the whole buffer
    x: list[StoredInputs] = remembered(list)
    y: list[Tensor] = remembered(list)
    sizes: list[float] = remembered(list)  # N_i
    name: ClassVar[str] = "replay"
    uses_heads: ClassVar[bool] = True
    trains_heads = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.batchable = self.points is not None or self.points_per_class is not None

    def begin(self, task: Task) -> None:
        points_of(self.points, self.points_per_class, task.likelihood, task.examples)

    def constants(self, task: Task) -> Tree:
        if not self.x:
            return ()
        sampled = task.tasks_per_step is not None and len(self.x) > task.tasks_per_step
        if sampled and (self.batch is not None or any(one.likelihood.classes is None for one in task.past)):
            raise DataError("past_tasks_per_step with replay is for tasks with classes and whole buffers; leave it out")
        pack: Callable[[Sequence[Tensor]], Any] = stacked_points if sampled else tuple
        return Constants(
            x=pack([task.features.inputs(x) for x in self.kept_inputs()]), y=pack(self.y), block=make_block(task.past),
            tasks=tuple((one.likelihood, one.likelihood_params) for one in task.past),
            sizes=self.y[0].new_tensor(self.sizes, dtype=torch.float64),
            counts=self.y[0].new_tensor([len(y) for y in self.y], dtype=torch.int64),
        )  # fmt: skip

    def draw(self, steps: int, past_tasks: int, generator: torch.Generator) -> Replayed:
        """Which rows of each buffer a step uses, where not all of them, and by what they are changed."""
        rows: tuple[Tensor, ...] = ()
        if self.batch is not None:
            shape = (steps, self.batch)
            rows = tuple(torch.randint(len(y), shape, generator=generator, device=generator.device) for y in self.y)
        if self.augment is None or not self.y:
            return Replayed(rows)
        most = self.batch or max(len(y) for y in self.y)
        return Replayed(rows, self.augment.draws((steps, len(self.y), most), generator))

    def penalty(self, step: Step, constants: Tree, draws: Tree) -> Tensor | None:
        if not constants:
            return None
        total = self._all(step, constants, draws) if step.tasks is None else self._sampled(step, constants, draws)
        return self.weight * total / step.N

    def _changed(self, x: Tensor, draws: Tree) -> Tensor:
        """Stored examples [n, ...] as minibatches are changed, by the first n of the draws."""
        return x if self.augment is None else self.augment.apply(x, tree_map(lambda value: value[: len(x)], draws))

    def _all(self, step: Step, constants: Constants, draws: Replayed) -> Tensor:
        """Σ_i N_i × the mean loss on buffer i, or on the examples drawn from it."""
        pairs = list(zip(constants.x, constants.y, strict=True))
        if draws.rows:
            pairs = [(x[rows], y[rows]) for (x, y), rows in zip(pairs, draws.rows, strict=True)]
        if self.augment is not None:
            changes = [tree_map(lambda value, i=i: value[i], draws.augment) for i in range(len(pairs))]
            pairs = [(self._changed(x, own), y) for (x, y), own in zip(pairs, changes, strict=True)]
        Phi = step.features(step.theta, torch.cat([x for x, _ in pairs]))
        parts, heads, losses = Phi.split([len(x) for x, _ in pairs]), constants.block.now(step), []
        for part, (_, y), head, (likelihood, learned) in zip(parts, pairs, heads, constants.tasks, strict=True):
            losses.append(-likelihood.log_prob(part @ head[: likelihood.functions].mT, y, learned).mean())
        each = torch.stack(losses)
        return (constants.sizes.to(each.dtype) * each).sum()

    def _sampled(self, step: Step, constants: Constants, draws: Replayed) -> Tensor:
        """The same estimated from some buffers; padding of points and classes counts for nothing."""
        tasks, used = step.tasks, (constants.x, constants.y, constants.block, constants.counts)
        x, y, block, counts = tree_map(lambda part: part[tasks], used)
        changes = tree_map(lambda value: value[tasks][:, : x.shape[1]].flatten(0, 1), draws.augment)
        Phi = step.features(step.theta, self._changed(x.flatten(0, 1), changes)).unflatten(0, x.shape[:2])
        loss = -log_prob(Phi @ block.now(step).mT, y, block)  # [k, M]
        real = torch.arange(x.shape[1], device=x.device) < counts[:, None]
        means = torch.where(real, loss, 0.0).sum(1) / counts
        return (constants.sizes[tasks].to(means.dtype) * means).sum() * step.scale

    def end(self, task: Task, x: Tensor, y: Tensor, generator: torch.Generator) -> None:
        M = points_of(self.points, self.points_per_class, task.likelihood)
        balance = y if task.likelihood.classes is not None else None
        rows = torch.arange(len(x)) if M is None else random_start(len(x), M, generator, balance)
        inputs = x[rows.to(x.device)]
        self.x = [*self.x, StoredInputs(inputs.clone()) if M is None else stored_inputs(inputs)]
        self.y = [*self.y, y[rows.to(y.device)].clone()]
        self.sizes = [*self.sizes, float(task.N)]

    def check_state(self, weights: Mapping[str, Tensor], saved: Seen, past: Sequence[Any]) -> None:
        super().check_state(weights, saved, past)
        for x, y, size, task in zip(self.x, self.y, self.sizes, past, strict=True):
            dtype = next(iter(weights.values())).dtype
            check_stored(x, saved, dtype, f"examples of {self.name}")
            check_targets(y, task.likelihood, len(x.values), dtype, f"targets of {self.name}")
            expect(0 < size < math.inf, f"sizes of {self.name}")

    def kept(self, theta: Params) -> Kept:
        return {"points": [*(part for x in self.x for part in x.kept), *self.y]}

    def kept_inputs(self) -> list[Tensor]:
        return [x.inputs for x in self.x]
