"""Synaptic intelligence: importance of a weight from the path it took (Zenke et al., 2017).

    ω_j = −Σ_t g_j(t) Δθ_j(t),   Ω_j += max(ω_j, 0)/(D_j² + ξ),   penalty = c Σ_j Ω_j (θ_j − θ*_j)²

g is the gradient of the likelihood term alone, D the whole displacement over the task; nats per example.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from frcl.regularisers.protocol import Kept, Regulariser, Step, Task, number, register, remembered
from frcl.regularisers.quadratic import Anchor, flat_anchor, quadratic_at, running_sum
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
        importance = {name: self.importance[name] for name in self.start}
        return (self.start, importance, flat_anchor(Anchor(self.start, importance))) if self.start else ()

    def penalty(self, step: Step, constants: Tree, draws: Tree) -> Tensor | None:
        return 2 * self.weight * quadratic_at(step.theta, constants[2]) if constants else None

    def follow(self, carry: Params, constants: Tree, gradient: Params, before: Params, after: Params) -> None:
        """ω ← ω − g Δθ, where g is the whole gradient less that of the penalty, 2c Ω (θ − θ*)."""
        start, importance, _ = constants
        names = [name for name in carry if name in gradient]  # fixed weights do not move
        path, held, g, theta, moved = (
            [part[name] for name in names] for part in (carry, importance, gradient, before, after)
        )
        gone = torch._foreach_sub(theta, [start[name] for name in names])
        of_data = torch._foreach_addcmul(g, held, gone, value=-2 * self.weight)
        torch._foreach_addcmul_(path, of_data, torch._foreach_sub(moved, theta), value=-1)

    def end(self, task: Task, x: Tensor, y: Tensor, generator: torch.Generator) -> None:
        moved = {name: (task.theta[name].detach() - start).square() for name, start in self.start.items()}
        new = {name: omega.clamp_min(0.0) / (moved[name] + self.damping) for name, omega in self.path.items()}
        self.importance, self.path, self.start = running_sum(self.importance, new, 1.0), {}, {}

    def kept(self, theta: Params) -> Kept:
        """Ω, and the anchor of the same size that every task begins with."""
        importance = list(self.importance.values())
        return {"fisher": importance, "anchor": importance}
