"""Synaptic intelligence: importance of a weight from the path it took (Zenke et al., 2017).

    ω_j = −Σ_t g_j(t) Δθ_j(t),   Ω_j += max(ω_j, 0)/(D_j² + ξ),   penalty = c Σ_j Ω_j (θ_j − θ*_j)²

g is the gradient of the likelihood term alone, D the whole displacement over the task; nats per example.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from frcl.regularisers.protocol import Kept, Regulariser, Step, Task, number, register, remembered
from frcl.regularisers.quadratic import quadratic, running_sum
from frcl.trees import Params, Tree, copied, tree_map


@register
@dataclass
class PathIntegral(Regulariser):
    """Follows every step of θ and holds the weights that mattered."""

    weight: float = number(0.1)  # c
    damping: float = number(0.1, positive=True)  # ξ
    path: Params = remembered()  # ω so far in this task
    start: Params = remembered()  # θ when the task began, the anchor of the tasks before it
    importance: Params = remembered(positive=True)  # Ω
    name: ClassVar[str] = "path-integral"
    carries: ClassVar[str] = "path"

    def begin(self, task: Task) -> None:
        self.start = copied(task.theta)
        self.path = tree_map(torch.zeros_like, self.start)
        self.importance = tree_map(torch.zeros_like, self.start) | self.importance

    def constants(self, task: Task) -> Tree:
        return self.start, {name: self.importance[name] for name in self.start}

    def penalty(self, step: Step, constants: Tree, draws: Tree) -> Tensor | None:
        start, importance = constants
        return 2 * self.weight * quadratic(step.theta, start, importance) if start else None

    def follow(self, carry: Params, constants: Tree, gradient: Params, before: Params, after: Params) -> None:
        """ω ← ω − g Δθ, where g is the whole gradient less that of the penalty, 2c Ω (θ − θ*)."""
        start, importance = constants
        for name in carry.keys() & gradient.keys():  # fixed weights do not move
            of_data = gradient[name].addcmul(importance[name], before[name] - start[name], value=-2 * self.weight)
            carry[name].addcmul_(of_data, after[name] - before[name], value=-1)

    def end(self, task: Task, x: Tensor, y: Tensor, generator: torch.Generator) -> None:
        moved = {name: (task.theta[name].detach() - start).square() for name, start in self.start.items()}
        new = {name: omega.clamp_min(0.0) / (moved[name] + self.damping) for name, omega in self.path.items()}
        self.importance, self.path, self.start = running_sum(self.importance, new, 1.0), {}, {}

    def kept(self, theta: Params) -> Kept:
        """Ω, and the anchor of the same size that every task begins with."""
        importance = list(self.importance.values())
        return {"fisher": importance, "anchor": importance}
