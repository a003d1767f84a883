"""Functional regularisation of memorable past (FROMP; Pan, Swaroop, Immer, Eschenhagen, Turner and Khan, 2020).

    penalty = τ · ½ Σ_i Σ_c (m_ic − m*_ic)ᵀ K_ic⁻¹ (m_ic − m*_ic)        nats per example, over past tasks i, classes c

m_ic [M] are the probabilities of class c of task i at its memorable points, m* those when the open task began. K_ic is
the covariance of m*_ic in the Gaussian process that the network is, linearised where the open task began, when its
weights have the Gaussian posterior of a diagonal Laplace approximation:

    K_ic = J_ic Σ J_icᵀ + ε I,    J_ic = ∂m*_ic/∂(θ, w_i) [M, P],    Σ = 1/(δ + Ω),    Ω = Σ_j N_j F_j

with F_j the diagonal of the generalised Gauss–Newton matrix of task j, which for classes is the Fisher information. K
is a constant of the open task; all heads are trained along. τ is the paper's divided by N. When a task ends, the
examples where Λ = Σ_c p_c (1 − p_c) is largest become its memorable points, as many of each class.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from frcl.checks import Seen, check_stored
from frcl.errors import DataError
from frcl.features import FeatureMap, in_chunks
from frcl.likelihoods import Softmax
from frcl.linalg import cholesky, inverse_lower
from frcl.regularisers.fisher import HEAD
from frcl.regularisers.heads import HeadBlock, check_heads, head_rows, make_block
from frcl.regularisers.jacobians import covariances, jacobian, split_of, squares_over_examples
from frcl.regularisers.protocol import (
    Kept,
    Regulariser,
    Step,
    Task,
    check_beginning,
    number,
    of_tasks,
    points_of,
    register,
    remembered,
    stacked_points,
)
from frcl.regularisers.quadratic import running_sum
from frcl.selection import random_start
from frcl.summary import StoredInputs, padded, stored_inputs
from frcl.trees import Params, Tree, copied, detached, total_bytes

CHUNK = 4096  # inputs whose probabilities are computed at once


def functions(features: FeatureMap, fixed: Params, params: Params, x: Tensor) -> Tensor:
    """f [B, C] of the network and the head among `params`, as a linear layer."""
    theta = {name: value for name, value in params.items() if name != HEAD}
    return F.linear(features({**fixed, **theta}, x), params[HEAD])


def memorable(probs: Tensor, y: Tensor, M: int) -> Tensor:
    """The M examples with the largest Λ = Σ_c p_c (1 − p_c), as many of each class y [N] as there are."""
    score = (probs * (1 - probs)).sum(1)
    order = score.argsort(descending=True, stable=True)
    one_hot = F.one_hot(y[order])
    rank = (one_hot.cumsum(0) * one_hot).sum(1)  # 1 for the best of each class, 2 for the next
    return order[rank.argsort(stable=True)[:M]]


def kernels(features: FeatureMap, fixed: Params, params: Params, precision: Params, x: Tensor) -> tuple[Tensor, Tensor]:
    """m [M, C] and J_c Σ J_cᵀ [C, M, M] of the class probabilities at x, Σ = 1/precision by name; float64."""

    def probs(weights: Params, rows: Tensor) -> Tensor:
        return functions(features, fixed, weights, rows).softmax(1)

    J = jacobian(probs, params, x, split_of(probs, params, x))
    return J.values, covariances(J, {name: 1 / value for name, value in precision.items()})


def information(features: FeatureMap, fixed: Params, params: Params, x: Tensor) -> Params:
    """Σ_b diag(J_bᵀ Λ_b J_b) over examples, J the Jacobian of f and Λ = diag(p) − p pᵀ; exact.

    Equal to Σ_b Σ_c p_bc (∂ log p_bc)².
    """

    def log_probs(weights: Params, rows: Tensor) -> Tensor:
        return functions(features, fixed, weights, rows).log_softmax(1)

    return squares_over_examples(log_probs, torch.exp, params, x, split_of(log_probs, params, x))


class Constants(NamedTuple):
    """The memorable points of T tasks, padded; roots [T, C, M, M] in float64 with rootᵀ root = K⁻¹."""

    Z: Tensor
    targets: Tensor  # m*, [T, M, C]
    roots: Tensor
    block: HeadBlock


@register
@dataclass
class MemorablePast(Regulariser):
    """Holds class probabilities of past tasks at their memorable points, in the metric of a Gaussian process."""

    weight: float = number(1.0)  # τ
    points: int = 40
    points_per_class: int | None = None
    prior_precision: float = number(1e-3, positive=True)  # δ
    jitter: float = number(1e-5, positive=True)  # ε
    examples: int | None = None  # over which F is averaged; None: all of the task
    x: list[StoredInputs] = remembered(list)
    precision: Params = remembered(positive=True)  # Ω of the shared weights
    heads: list[Tensor] = remembered(list, positive=True)  # Ω of each head
    theta: Params = remembered()  # the network where the open task began; empty between tasks
    name: ClassVar[str] = "memorable-past"
    uses_heads: ClassVar[bool] = True
    trains_heads = True

    def begin(self, task: Task) -> None:
        if not isinstance(task.likelihood, Softmax):
            raise DataError(f"{self.name} is for classes with a softmax, not {task.likelihood.name}; leave it out")
        points_of(self.points, self.points_per_class, task.likelihood, task.examples)
        self.theta = copied(task.theta) if task.past else {}

    def constants(self, task: Task) -> Tree:
        if not task.past:
            return ()
        targets, roots, exact = [], [], replace(task.features, bfloat16=False)
        inputs = [task.features.inputs(stored.inputs) for stored in self.x]
        for one, Z, own in zip(task.past, inputs, self._head_precisions(task), strict=True):
            m, K = kernels(exact, task.fixed, *self._posterior(one.head, own), Z)
            targets.append(m.detach())
            roots.append(inverse_lower(cholesky(K.detach(), self.jitter)))
        return Constants(stacked_points(inputs), padded(targets), padded(roots), make_block(task.past))

    def _head_precisions(self, task: Task) -> list[Tensor]:
        """Ω of the head of each past task, [C, K]; of a row that several tasks share the sum of theirs."""
        if not task.shared_head:
            return self.heads
        rows = head_rows([one.likelihood for one in task.past], shared=True)
        total = self.heads[0].new_zeros(1 + max(map(max, rows)), self.heads[0].shape[1])
        for own, at in zip(self.heads, rows, strict=True):
            total[at] += own
        return [total[at] for at in rows]

    def _posterior(self, head: Any, own: Tensor) -> tuple[Params, Params]:
        """The weights and one head as they stood when the task began, and δ + Ω of them."""
        zero = {name: torch.zeros_like(value) for name, value in self.theta.items()}
        precision = {name: self.precision.get(name, none) + self.prior_precision for name, none in zero.items()}
        return {**self.theta, HEAD: head.detach()}, {**precision, HEAD: own + self.prior_precision}

    def penalty(self, step: Step, constants: Tree, draws: Tree) -> Tensor | None:
        if not constants:
            return None
        Z, targets, roots, block = of_tasks(constants, step.tasks)
        Phi = step.features(step.theta, Z.flatten(0, 1)).unflatten(0, Z.shape[:2])
        absent = torch.zeros_like(block.own).masked_fill(block.own == 0, -torch.inf)[:, None]
        m = (Phi @ block.now(step).mT + absent).softmax(-1)  # [k, M, C]
        moved = (m - targets).mT[..., None].double()
        total: Tensor = (roots @ moved).square().sum() * step.scale
        return self.weight * 0.5 * total.to(Phi.dtype)

    def end(self, task: Task, x: Tensor, y: Tensor, generator: torch.Generator) -> None:
        assert task.head is not None
        params = {**detached(task.theta), HEAD: task.head}
        rows = x
        if self.examples is not None:
            rows = x[random_start(len(x), min(len(x), self.examples), generator).to(x.device)]
        new = information(task.features, task.fixed, params, rows)
        new = {name: value * (task.N / len(rows)) for name, value in new.items()}
        self.heads = [*self.heads, new.pop(HEAD)]
        self.precision = running_sum(self.precision, new, 1.0)
        f = in_chunks(lambda part: functions(task.features, task.fixed, params, part), x, CHUNK)
        M = points_of(self.points, self.points_per_class, task.likelihood)
        chosen = memorable(f.softmax(1), y, M)
        self.x, self.theta = [*self.x, stored_inputs(x[chosen])], {}

    def check_resumed(self, task: Task) -> None:
        check_beginning(self.theta, task)

    def check_state(self, weights: Mapping[str, Tensor], saved: Seen, past: Sequence[Any]) -> None:
        super().check_state(weights, saved, past)
        check_heads(self.heads, past, f"'heads' of {self.name}")
        for stored in self.x:
            check_stored(stored, saved, next(iter(weights.values())).dtype, f"examples of {self.name}")

    def kept(self, theta: Params) -> Kept:
        """Points, Ω, and a copy of the network, which every later task begins with and from which K is made."""
        points = [part for one in self.x for part in one.kept]
        return {"points": points, "fisher": [*self.precision.values(), *self.heads], "network": list(theta.values())}

    def added_bytes(self, task: Task, x: Tensor) -> int:
        return total_bytes({name: value for name, value in task.theta.items() if name not in self.precision})

    def kept_inputs(self) -> list[Tensor]:
        return [one.inputs for one in self.x]
