"""Stored examples: the paper's BASELINE (Appendix C) and learning on all data so far.

    penalty = (1/N) Σ_i (N_i/M_i) Σ_{j ≤ M_i} −log p(ỹ_ij | x̃_ij)      nats per example, over past tasks i

An unbiased estimate of the loss on all data of past tasks; all heads are trained on.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from frcl.errors import DataError
from frcl.regularisers.protocol import Moment, Params
from frcl.selection import random_start


@dataclass
class Buffer:
    """Keeps M examples of each task, balanced over its classes; M None keeps all, and a step draws `batch` of them."""

    points: int | None
    per_class: int | None = None
    tasks_per_step: int | None = None
    batch: int | None = None  # examples drawn from each buffer in a step; None: the whole buffer
    x: list[Tensor] = field(default_factory=list)
    y: list[Tensor] = field(default_factory=list)
    sizes: list[float] = field(default_factory=list)  # N_i
    trains_old_heads: bool = True

    def check(self, y: Tensor) -> None:
        M = self._points(y)
        if M is not None and len(y) < M:
            raise DataError(f"{len(y)} examples are fewer than the {M} to keep; lower points, or bring more data")

    def _points(self, y: Tensor) -> int | None:
        return self.points if self.per_class is None else self.per_class * int(y.max() + 1)

    def begin(self, now: Moment) -> None:
        """Nothing to prepare."""

    def penalty(self, now: Moment, params: Params, x: Tensor, generator: torch.Generator) -> Tensor:
        tasks = list(range(len(self.x)))
        scale = 1.0
        if self.tasks_per_step is not None and len(tasks) > self.tasks_per_step:
            order = torch.randperm(len(tasks), generator=generator, device=generator.device)
            scale = len(tasks) / self.tasks_per_step
            tasks = order[: self.tasks_per_step].tolist()
        if not tasks:
            return x.new_zeros(())
        drawn = [self._draw(task, generator) for task in tasks]
        Phi = now.model.features(params, torch.cat([rows for rows, _ in drawn]))
        total = x.new_zeros(())
        for task, part, (rows, labels) in zip(tasks, Phi.split([len(r) for r, _ in drawn]), drawn, strict=True):
            loss = torch.nn.functional.cross_entropy(part @ params[f"head/{task}"].mT, labels, reduction="sum")
            total = total + self.sizes[task] / len(rows) * loss
        return scale * total / now.N

    def _draw(self, task: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        if self.batch is None:
            return self.x[task], self.y[task]
        rows = torch.randint(len(self.x[task]), (self.batch,), generator=generator, device=generator.device)
        rows = rows.to(self.x[task].device)
        return self.x[task][rows], self.y[task][rows]

    def after_step(self, gradient: Params, before: Params, after: Params) -> None:
        """Nothing to follow."""

    def end(self, now: Moment, x: Tensor, y: Tensor, generator: torch.Generator) -> None:
        M = self._points(y)
        rows = torch.arange(len(x)) if M is None else random_start(len(x), M, generator, y)
        self.x.append(x[rows.to(x.device)].clone())
        self.y.append(y[rows.to(y.device)].clone())
        self.sizes.append(now.N)

    def kept(self) -> list[Tensor]:
        return [*self.x, *self.y]

    def state(self) -> Params:
        parts = {f"x/{i}": value for i, value in enumerate(self.x)}
        parts |= {f"y/{i}": value for i, value in enumerate(self.y)}
        return parts | {"sizes": torch.tensor(self.sizes, dtype=torch.float64)}

    def load(self, state: Params) -> None:
        self.sizes = state["sizes"].tolist()
        self.x = [state[f"x/{i}"].clone() for i in range(len(self.sizes))]
        self.y = [state[f"y/{i}"].clone() for i in range(len(self.sizes))]


@dataclass
class Nothing:
    """No protection."""

    trains_old_heads: bool = False

    def check(self, y: Tensor) -> None:
        """Any task will do."""

    def begin(self, now: Moment) -> None:
        """Nothing to prepare."""

    def penalty(self, now: Moment, params: Params, x: Tensor, generator: torch.Generator) -> Tensor:
        return x.new_zeros(())

    def after_step(self, gradient: Params, before: Params, after: Params) -> None:
        """Nothing to follow."""

    def end(self, now: Moment, x: Tensor, y: Tensor, generator: torch.Generator) -> None:
        """Nothing to keep."""

    def kept(self) -> list[Tensor]:
        return []

    def state(self) -> Params:
        return {}

    def load(self, state: Params) -> None:
        """Nothing to put back."""
