"""The paper's regulariser: Σ_i KL(q(u_i) ‖ p_θ(u_i)) over past tasks (equation 4), whole or sub-sampled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from frcl.graphs import inside_a_transform
from frcl.summary import PriorKL, prior_kl, stack_terms


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

    def tensors(self) -> dict[str, Tensor]:
        """The bank as named tensors, without `smallest`."""
        return {"Z": self.Z, **self.terms._asdict()}


def bank_of(tensors: Mapping[str, Tensor], smallest: int) -> Bank:
    """The bank whose tensors these are."""
    return Bank(tensors["Z"], PriorKL(*(tensors[name] for name in PriorKL._fields)), smallest)


def make_bank(inputs: Sequence[Tensor], each: Sequence[PriorKL]) -> Bank:
    """Stack what is kept of all past tasks; tasks with fewer points are padded, which changes no value."""
    terms = stack_terms(each)
    M = terms.mask.shape[1]
    return Bank(padded(inputs, M), terms, min(len(Z) for Z in inputs))


def padded(each: Sequence[Tensor], length: int) -> Tensor:
    """All of them in one block [T, length, ...], each filled up with its own first row, which a network can take."""
    return torch.stack([torch.cat([x, x[:1].expand(length - len(x), *x.shape[1:])]) for x in each])


def sample_tasks(tasks: int, at_most: int | None, steps: int, generator: torch.Generator) -> Tensor | None:
    """Which past tasks each step looks at, [steps, at_most], all different in a step; None for all of them."""
    if at_most is None or tasks <= at_most:
        return None
    order = torch.rand(steps, tasks, generator=generator, device=generator.device, dtype=torch.float64)
    return order.argsort(1)[:, :at_most].contiguous()


def chosen(bank: Bank, index: Tensor | None) -> Bank:
    """The part of the bank that a step looks at; one task alone is not copied where its number can be looked at."""
    if index is None:
        return bank
    if len(index) == 1 and index.device.type == "cpu" and not inside_a_transform():
        number = int(index)
        one = slice(number, number + 1)
        return Bank(bank.Z[one], bank.terms.at(one), bank.smallest)
    return Bank(bank.Z[index], bank.terms.at(index), bank.smallest)


def functional_kl(Phi_z: Tensor, part: Bank, tasks: int) -> Tensor:
    """Estimate of Σ_{i=1..tasks} KL_i from the tasks in `part`, unbiased: their sum × tasks/|part|.

    Phi_z [|part|, M, K] are the features at part.Z, times σ_w.
    """
    return prior_kl(Phi_z, part.terms, part.smallest).sum() * (tasks / part.tasks)
