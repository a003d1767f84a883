"""Synaptic intelligence: importance of a weight from the path it took (Zenke et al., 2017).

    ω_j = −Σ_t g_j(t) Δθ_j(t),   Ω_j += max(ω_j, 0)/(D_j² + ξ),   penalty = c Σ_j Ω_j (θ_j − θ*_j)²

g is the gradient of the likelihood term alone, D the whole displacement over the task; nats per example.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from frcl.regularisers.protocol import Kept, Regulariser, Step, Task, check_weight, register
from frcl.trees import Params, Tree, copied


class Constants(NamedTuple):
    """θ when the task began, which is the anchor of the tasks before it, and Ω."""

    start: Params
    importance: Params


@register
@dataclass
class PathIntegral(Regulariser):
    """Follows every step of θ and holds the weights that mattered."""

    weight: float = 0.1  # c
    damping: float = 0.1  # ξ
    path: Params = field(default_factory=dict, init=False, repr=False)  # ω so far in this task
    start: Params = field(default_factory=dict, init=False, repr=False)
    importance: Params = field(default_factory=dict, init=False, repr=False)  # Ω
    name: ClassVar[str] = "path-integral"

    def __post_init__(self) -> None:
        check_weight("weight of path-integral", self.weight)
        check_weight("damping of path-integral", self.damping, positive=True)

    def begin(self, task: Task) -> None:
        self.start = copied(task.theta)
        self.path = {name: torch.zeros_like(value) for name, value in self.start.items()}
        if not self.importance:
            self.importance = {name: torch.zeros_like(value) for name, value in self.start.items()}

    def constants(self, task: Task) -> Tree:
        return Constants(self.start, {name: self.importance[name] for name in self.start})

    def penalty(self, step: Step, constants: Tree, draws: Tree) -> Tensor | None:
        parts = [
            (value * (step.theta[name] - constants.start[name]).square()).sum()
            for name, value in sorted(constants.importance.items())
        ]
        return self.weight * torch.stack(parts).sum() if parts else None

    def carry(self) -> Params:
        return self.path

    def follow(self, carry: Params, constants: Tree, gradient: Params, before: Params, after: Params) -> None:
        """ω ← ω − g Δθ, where g is the whole gradient less that of the penalty, 2c Ω (θ − θ*)."""
        for name in carry.keys() & gradient.keys():  # fixed weights do not move
            omega = carry[name]
            own = 2 * self.weight * constants.importance[name] * (before[name] - constants.start[name])
            omega -= (gradient[name] - own) * (after[name] - before[name])

    def end(self, task: Task, x: Tensor, y: Tensor, generator: torch.Generator) -> None:
        importance = dict(self.importance)
        for name, omega in self.path.items():
            moved = (task.theta[name].detach() - self.start[name]).square()
            importance[name] = importance[name] + omega.clamp_min(0.0) / (moved + self.damping)
        self.importance, self.path, self.start = importance, {}, {}

    def kept(self, theta: Params) -> Kept:
        """Ω, and the anchor of the same size that every task begins with."""
        importance = list(self.importance.values())
        return {"fisher": importance, "anchor": importance}

    def state(self) -> Tree:
        return {"path": self.path, "start": self.start, "importance": self.importance}

    def load(self, state: Tree) -> None:
        self.path, self.start, self.importance = state["path"], state["start"], state["importance"]
