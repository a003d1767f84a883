"""The paper's regulariser: Σ_i KL(q(u_i) ‖ p_θ(u_i)) over past tasks (equation 4), whole or sub-sampled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from frcl.summary import FunctionBelief, PriorKL, prior_kl, prior_kl_terms, stack_terms


class Bank(NamedTuple):
    """All past summaries in one block: inducing inputs Z [T, M, ...], padded, and the terms of their KL.

    Padding repeats a task's own first input, since a network may not take an input made up of zeros; what stands there
    is masked out. `smallest` is the fewest points that a task has.
    """

    Z: Tensor
    terms: PriorKL
    smallest: int

    @property
    def tasks(self) -> int:
        return self.Z.shape[0]


def make_bank(inputs: Sequence[Tensor], beliefs: Sequence[FunctionBelief]) -> Bank:
    """Stack the summaries of all past tasks; tasks with fewer points are padded, which changes no value."""
    terms = stack_terms([prior_kl_terms(belief) for belief in beliefs])
    M = terms.mask.shape[1]
    padded = [torch.cat([Z, Z[:1].expand(M - len(Z), *Z.shape[1:])]) for Z in inputs]
    return Bank(torch.stack(padded), terms, min(len(Z) for Z in inputs))


def sample_tasks(tasks: int, at_most: int | None, generator: torch.Generator) -> Tensor | None:
    """Which past tasks a step looks at: None for all of them, else `at_most` different ones."""
    if at_most is None or tasks <= at_most:
        return None
    return torch.randperm(tasks, generator=generator, device=generator.device)[:at_most]


def chosen(bank: Bank, index: Tensor | None) -> Bank:
    """The part of the bank that a step looks at."""
    return bank if index is None else Bank(bank.Z[index], bank.terms.at(index), bank.smallest)


def functional_kl(Phi_z: Tensor, part: Bank, tasks: int) -> Tensor:
    """Estimate of Σ_{i=1..tasks} KL_i from the tasks in `part`, unbiased: their sum × tasks/|part|.

    Phi_z [|part|, M, K] are the features at part.Z, times σ_w.
    """
    return prior_kl(Phi_z, part.terms, part.smallest).sum() * (tasks / part.tasks)
