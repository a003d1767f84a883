"""The predictive distributions stored at the inducing points, held as if the points were the whole task.

    N · H_Z = Σ_i (N_i/M_i) Σ_{j ≤ M_i} D( μ_u,ij ‖ f_i(z_ij; θ, w_i) )        nats, over past tasks i

μ_u are the mean function values that the summary holds at Z anyway, so nothing more is stored. M_i points stand for N_i
examples, hence the weight: if Z were a random sample of the task, the sum would estimate that over all its examples
without bias. Right after a task learned in weight space μ_u = Φ_Z w_i, and the task adds nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from frcl.regularisers.heads import HeadBlock, divergence
from frcl.summary import pad_to


class Targets(NamedTuple):
    """Values at the points of T tasks, padded: values [T, M, C], weight [T, M], N_i/M_i at points that are there."""

    values: Tensor
    weight: Tensor

    def at(self, index: Tensor | None) -> Targets:
        """The tasks in `index` alone; None: all of them."""
        return self if index is None else Targets(self.values[index], self.weight[index])


def make_targets(means: Sequence[Tensor], sizes: Sequence[float], functions: int) -> Targets:
    """The values μ_u [C_i, M_i] of each task, padded to `functions`; sizes are N_i."""
    M = max(mean.shape[1] for mean in means)
    values = [pad_to(mean.mT[None], (M, functions)) for mean in means]
    weight = [
        pad_to(mean.new_full((1, mean.shape[1]), size / mean.shape[1]), (M,))
        for mean, size in zip(means, sizes, strict=True)
    ]
    return Targets(torch.cat(values), torch.cat(weight))


def memory_targets(Phi_z: Tensor, targets: Targets, part: HeadBlock, heads: Tensor, tasks: int) -> Tensor:
    """Estimate of N · H_Z from the tasks in `part`, unbiased: their sum × tasks/|part|.

    Phi_z [|part|, M, K] are the features at the points, `heads` [|part|, C, K] those of now; targets those of `part`.
    """
    apart = divergence(targets.values, Phi_z @ heads.mT, part)  # [|part|, M]
    return (targets.weight * apart).sum() * (tasks / part.tasks)
