"""The predictive distributions stored at the inducing points, held as if the points were the whole task.

    penalty = weight/N · Σ_i (N_i/M_i) Σ_{j ≤ M_i} D( μ_u,ij ‖ f_i(z_ij; θ, w_i) )        nats per example

μ_u are the mean function values that the summary stores at Z anyway, so nothing more is stored. M_i points stand for
N_i examples, hence the weight: if Z were a random sample of the task, the sum would estimate that over all its examples
without bias. Right after a task learned in weight space μ_u = Φ_Z w_i, and the task adds nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from torch import Tensor

from frcl.regularisers.heads import HeadBlock, divergence, make_block
from frcl.regularisers.protocol import Regulariser, Step, Task, number, of_tasks, register
from frcl.summary import padded
from frcl.trees import Tree


class Targets(NamedTuple):
    """Values at the points of T tasks, padded: values [T, M, C], weight [T, M], N_i/M_i at real points."""

    values: Tensor
    weight: Tensor


def make_targets(means: Sequence[Tensor], sizes: Sequence[float]) -> Targets:
    """The values μ_u [C_i, M_i] of each task, padded; sizes are N_i."""
    each = [mean.new_full(mean.shape[1:], size / mean.shape[1]) for mean, size in zip(means, sizes, strict=True)]
    return Targets(padded([mean.mT for mean in means]), padded(each))


def memory_targets(Phi_z: Tensor, targets: Targets, part: HeadBlock, heads: Tensor, scale: float = 1.0) -> Tensor:
    """Estimate of Σ_i (N_i/M_i) Σ_j D from the tasks in `part`: their sum × T/k (`scale`), unbiased.

    Phi_z [k, M, K] are the features at the points, `heads` [k, C, K] the current ones; targets those of `part`.
    """
    apart = divergence(targets.values, Phi_z @ heads.mT, part)  # [k, M]
    return (targets.weight * apart).sum() * scale


@register
@dataclass
class MemoryTargets(Regulariser):
    """Holds the functions of past tasks at their inducing points to the stored values."""

    weight: float = number(1.0)
    train_heads: bool = False
    name: ClassVar[str] = "memory-targets"
    uses_heads: ClassVar[bool] = True
    uses_points: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.trains_heads = self.train_heads

    def constants(self, task: Task) -> Tree:
        past: Sequence[Any] = task.past
        if not past:
            return ()
        return make_targets([one.belief.mean for one in past], [float(one.size) for one in past]), make_block(past)

    def penalty(self, step: Step, constants: Tree, draws: Tree) -> Tensor | None:
        if not constants or step.Phi_z is None:
            return None
        targets, block = of_tasks(constants, step.tasks)
        return self.weight * memory_targets(step.Phi_z, targets, block, block.now(step), step.scale) / step.N
