"""The predictive distributions stored at the inducing points, held as if the points were the whole task.

    penalty = weight/N · Σ_i (N_i/M_i) Σ_{j ≤ M_i} D( μ_u,ij ‖ f_i(z_ij; θ, w_i) )        nats per example

μ_u are the mean function values that the summary stores at Z anyway, so nothing more is stored. M_i points stand for
N_i examples, hence the weight: if Z were a random sample of the task, the sum would estimate that over all its examples
without bias. Right after a task learned in weight space μ_u = Φ_Z w_i, and the task adds nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from frcl.regularisers.heads import divergence, make_block
from frcl.regularisers.protocol import Regulariser, Step, Task, number, of_tasks, register
from frcl.summary import padded
from frcl.trees import Tree


@register
@dataclass
class MemoryTargets(Regulariser):
    """Holds the functions of past tasks at their inducing points to the stored values."""

    weight: float = number(1.0)
    train_heads: bool = False
    name: ClassVar[str] = "memory-targets"
    uses_heads: ClassVar[bool] = True
    uses_points: ClassVar[bool] = True

    def constants(self, task: Task) -> Tree:
        """Of T tasks, padded: μ_u [T, M, C], N_i/M_i at real points [T, M], the heads."""
        past: Sequence[Any] = task.past
        if not past:
            return ()
        means = [one.belief.mean for one in past]
        weights = [mu.new_full(mu.shape[1:], one.size / mu.shape[1]) for mu, one in zip(means, past, strict=True)]
        return padded([mu.mT for mu in means]), padded(weights), make_block(past)

    def penalty(self, step: Step, constants: Tree, draws: Tree) -> Tensor | None:
        if not constants or step.Phi_z is None:
            return None
        means, weights, block = of_tasks(constants, step.tasks)
        apart = divergence(means, step.Phi_z @ block.now(step).mT, block)  # [k, M]
        total: Tensor = (weights * apart).sum() * step.scale
        return self.weight * total / step.N
