"""The paper's KL with the prior of a past task centred on its kept head, its points counting as the whole task.

    penalty = weight/N · Σ_i s_i Σ_c KL( q(u_ic) ‖ N(Φ_Z v_ic, σ_w² Φ_Z Φ_Zᵀ + σ² I) )        nats per example

v_i is the mean of q(w_i) when task i ended. In the paper the prior is centred on zero, so its KL pulls the function
values towards zero even when nothing has moved. Here μ_u = Φ_Z v_i at that moment: the mean part and its gradient are
zero, and drift of the features costs. The weight of a task is

    s_i = (N_i/M_i)^(1 − M_i/K),   1 where M_i ≥ K,

or s_i = 1. A few of K directions of the last layer are held by M_i points that stand for N_i examples, as in the
paper's BASELINE. K points hold the whole last layer; they need not stand for more than themselves, and make the
features too stiff for later tasks if they do.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from frcl.regularisers.heads import make_block
from frcl.regularisers.protocol import Regulariser, Step, Task, number, of_tasks, register
from frcl.summary import PriorKL, padded, prior_kl, prior_kl_terms
from frcl.trees import Tree


class Constants(NamedTuple):
    """Of T tasks: the terms of the KL without the mean, μ_u [T, M, C], v [T, C, K], s [T]."""

    terms: PriorKL
    means: Tensor
    centres: Tensor
    counts: Tensor


def stands_for(N: int, M: int, K: int) -> float:
    """(N/M)^(1 − M/K), and 1 where M ≥ K: how many examples each of M points stands for."""
    return float((N / M) ** max(0.0, 1.0 - M / K))


@register
@dataclass
class RecentredKL(Regulariser):
    """The KL to a prior around the kept head. `u_noise`, σ² of that prior, is that of the summaries by default."""

    weight: float = number(1.0)
    count_examples: bool = True
    u_noise: float | None = number(None, positive=True)
    name: ClassVar[str] = "recentred-kl"
    uses_heads: ClassVar[bool] = True
    uses_points: ClassVar[bool] = True

    def constants(self, task: Task) -> Tree:
        past: Sequence[Any] = task.past
        if not past:
            return ()
        terms = prior_kl_terms([one.belief for one in past], with_mean=False)
        if self.u_noise is not None:
            terms = terms._replace(u_noise=torch.full_like(terms.u_noise, self.u_noise))
        heads = make_block(past).heads
        counts = [stands_for(one.size, len(one.Z), heads.shape[2]) if self.count_examples else 1.0 for one in past]
        means = padded([one.belief.mean.mT for one in past])
        return Constants(terms, means, heads, terms.C.new_tensor(counts))

    def penalty(self, step: Step, constants: Tree, draws: Tree) -> Tensor | None:
        if not constants or step.Phi_z is None:
            return None
        part: Constants = of_tasks(constants, step.tasks)
        each = prior_kl(step.Phi_z, part.terms, (part.means, part.centres))
        return self.weight * ((part.counts * each).sum() * step.scale) / step.N
