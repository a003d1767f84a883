"""The paper's regulariser: Σ_i KL(q(u_i) ‖ p_θ(u_i)) over past tasks (equation 4), whole or sub-sampled (2.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from frcl.features import times
from frcl.graphs import inside_a_transform
from frcl.regularisers.protocol import Regulariser, Step, Task, number, register
from frcl.summary import FunctionBelief, PriorKL, prior_kl, prior_kl_terms, stack_terms
from frcl.trees import Tree, tree_map


class Terms(NamedTuple):
    """The terms of the KL of all past tasks; `smallest` is the fewest points that one of them has."""

    terms: PriorKL
    smallest: int


def make_terms(beliefs: Sequence[FunctionBelief]) -> Terms:
    """Stack what the KL needs of past tasks; tasks with fewer points are padded, which changes no value."""
    return Terms(stack_terms([prior_kl_terms(one) for one in beliefs]), min(one.mean.shape[1] for one in beliefs))


def stacked_points(inputs: Sequence[Tensor]) -> Tensor:
    """The inducing inputs of T tasks, [T, M, ...], padded to the largest M.

    Padding repeats a task's own first input, since a network may not accept an input made of zeros; it is masked out.
    """
    M = max(len(Z) for Z in inputs)
    return torch.stack([torch.cat([Z, Z[:1].expand(M - len(Z), *Z.shape[1:])]) for Z in inputs])


def of_tasks(tree: Tree, index: Tensor | None) -> Tree:
    """The entries of some tasks; a single one is not copied where its number can be read on the host."""
    if index is None:
        return tree
    if len(index) == 1 and index.device.type == "cpu" and not inside_a_transform():
        number = int(index)
        return tree_map(lambda part: part[number : number + 1], tree)
    return tree_map(lambda part: part[index], tree)


def functional_kl(Phi_z: Tensor, part: Terms, scale: float = 1.0) -> Tensor:
    """Estimate of Σ_i KL_i from the tasks in `part`: their sum × T/k (`scale`), unbiased.

    Phi_z [k, M, K] are the features at their inducing inputs.
    """
    return prior_kl(Phi_z, part.terms, part.smallest).sum() * scale


@register
@dataclass
class FunctionalKL(Regulariser):
    """weight · Σ_i KL(q(u_i) ‖ p_θ(u_i)) / N."""

    weight: float = number(1.0)
    name: ClassVar[str] = "functional-kl"
    uses_points: ClassVar[bool] = True

    def constants(self, task: Task) -> Tree:
        past: Sequence[Any] = task.past  # with inducing inputs Z, and a belief about the function there
        return make_terms([one.belief for one in past]) if past else ()

    def penalty(self, step: Step, constants: Tree, draws: Tree) -> Tensor | None:
        if not constants or step.Phi_z is None:
            return None
        kl = functional_kl(step.Phi_z, of_tasks(constants, step.tasks), step.scale)
        return times(self.weight, kl / step.N)
