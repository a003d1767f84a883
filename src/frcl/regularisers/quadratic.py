"""Quadratic anchors on θ: EWC (one per task), and one running anchor: FRCL+'s curvature, online EWC, DLP.

    penalty = weight/N · ½ Σ_p Ω_p (θ_p − θ*_p)²        nats per example,  with Ω = N_i × Fisher information

The Fisher information is the exact diagonal of the task's likelihood at its mean head, per example (`fisher.py`), so
that N_i F_i is the curvature of its log-likelihood: a Laplace approximation of the task around the θ where it ended.
Penalty and gradient are zero when a task begins.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from frcl.checks import Seen, check_weights, expect
from frcl.regularisers.fisher import FisherMode, task_information
from frcl.regularisers.heads import check_heads
from frcl.regularisers.protocol import Kept, Regulariser, Step, Task, number, register, remembered
from frcl.trees import Params, Tree, copied, detached, total_bytes, tree_map


class Anchor(NamedTuple):
    """θ* and Ω by name, of the shared weights; `rest` is the constant of merged anchors."""

    theta: Params
    precision: Params
    rest: Tensor | float = 0.0


class Flat(NamedTuple):
    """θ* and Ω of an anchor as vectors, the weights of these names one after another."""

    names: tuple[str, ...]
    theta: Tensor
    precision: Tensor
    rest: Tensor | float = 0.0


def flat(params: Params, names: Sequence[str]) -> Tensor:
    """The tensors of these names as one vector."""
    return torch.cat([params[name].flatten() for name in names])


def flat_anchor(anchor: Anchor) -> Flat:
    """The anchor as vectors: a step then takes a few operators, whatever the number of weights."""
    names = tuple(sorted(anchor.theta))
    return Flat(names, flat(anchor.theta, names), flat(anchor.precision, names), anchor.rest)


def quadratic_at(params: Params, anchor: Flat) -> Tensor:
    """½ dᵀ(Ω d), d = θ − θ*; there are no second derivatives.

    The gradient Ω d is a factor of the value: it is computed once, and not again by each operator in the backward pass.
    """
    theta = flat(params, anchor.names)
    with torch.no_grad():
        moved = theta - anchor.theta
        pull = anchor.precision * moved
        value = 0.5 * torch.dot(moved, pull)
    linear = torch.dot(theta, pull)
    return value + (linear - linear.detach())  # zero, with the derivative `pull`


def quadratic(params: Params, anchor: Params, precision: Params) -> Tensor:
    """The same, over the names in `anchor`."""
    return quadratic_at(params, flat_anchor(Anchor(anchor, precision)))


def running_sum(before: Params, new: Params, decay: float) -> Params:
    """Ω ← γ Ω + Ω_new by name; Ω_new where nothing was before, and what is not in `new` unchanged."""
    return before | {name: decay * before[name] + value if name in before else value for name, value in new.items()}


def _moving(anchor: Anchor, theta: Params) -> Tree:
    """The anchor of the weights that are trained now; empty where none is."""
    at, precision = ({name: part[name] for name in part if name in theta} for part in anchor[:2])
    return Anchor(at, precision, anchor.rest) if at else ()


@register
@dataclass
class Curvature(Regulariser):
    """One running anchor: Ω ← γ Ω + N_i F_i when task i ends, θ* ← θ. Online EWC, and a part of FRCL+.

    With `prior_precision` there is an anchor at zero from the very beginning, the prior N(0, 1/precision), and the
    precisions of old heads are kept too: together they are the posterior of diagonal Laplace propagation (DLP).
    """

    weight: float = number(1.0)
    decay: float = number(1.0)
    examples: int = 2000
    fisher: FisherMode = "exact"
    prior_precision: float | None = number(None, positive=True)
    anchor: Params = remembered()
    precision: Params = remembered(positive=True)
    heads: list[Tensor] = remembered(list, positive=True)  # precision of each finished head
    name: ClassVar[str] = "curvature"

    def begin(self, task: Task) -> None:
        if self.prior_precision is not None and not self.anchor:
            self.anchor = tree_map(torch.zeros_like, detached(task.theta))
            self.precision = {name: torch.full_like(zero, self.prior_precision) for name, zero in self.anchor.items()}

    def constants(self, task: Task) -> Tree:
        moving = _moving(Anchor(self.anchor, self.precision), task.theta)
        return flat_anchor(moving) if moving else ()

    def penalty(self, step: Step, constants: Tree, draws: Tree) -> Tensor | None:
        if not constants and self.prior_precision is None:
            return None
        total = quadratic_at(step.theta, constants) if constants else step.Phi.new_zeros(())
        if self.prior_precision is not None:
            total = total + 0.5 * self.prior_precision * step.head.square().sum()
        return self.weight * total / step.N

    def end(self, task: Task, x: Tensor, y: Tensor, generator: torch.Generator) -> None:
        if not task.theta and self.prior_precision is None:
            return
        information, head = task_information(task, x, y, generator, self.fisher, self.examples)
        self.precision = running_sum(self.precision, information, self.decay)
        self.anchor = self.anchor | copied(task.theta)
        if self.prior_precision is not None:
            self.heads = [*self.heads, head + self.prior_precision]

    def head_variance(self, task: int, Phi: Tensor) -> Tensor | None:
        """var f_c(x) = Σ_k φ_k(x)²/Ω_ck, exact for the head of a finished task; only with a prior precision.

        The uncertainty of the shared weights is left out: to draw them from a diagonal posterior, in which many weights
        have next to no information, ruins the features.
        """
        return Phi.square() @ (1 / self.heads[task]).mT if task < len(self.heads) else None

    def check_state(self, weights: Mapping[str, Tensor], saved: Seen, past: Sequence[Any]) -> None:
        super().check_state(weights, saved, past)
        check_heads(self.heads, past, f"'heads' of {self.name}")

    def kept(self, theta: Params) -> Kept:
        return {"anchor": list(self.anchor.values()), "fisher": [*self.precision.values(), *self.heads]}

    def added_bytes(self, task: Task, x: Tensor) -> int:
        return 2 * total_bytes({name: value for name, value in task.theta.items() if name not in self.anchor})


@register
@dataclass
class EWC(Regulariser):
    """Elastic weight consolidation: each task keeps its own anchor and precision.

    Their sum is one quadratic, so that a step costs the same whatever the number of tasks: with Ω = Σ_i Ω_i and the
    weighted mean θ̄ = Σ_i Ω_i θ*_i / Ω, computed as a shift of the latest θ*,

        ½ Σ_i Ω_i (θ − θ*_i)² = ½ Ω (θ − θ̄)² + ½ Σ_i Ω_i (θ*_i − θ̄)².
    """

    weight: float = number(1.0)
    examples: int = 2000
    fisher: FisherMode = "exact"
    anchors: list[Anchor] = remembered(list)  # θ*_i and Ω_i of each task
    name: ClassVar[str] = "ewc"

    def constants(self, task: Task) -> Tree:
        own: list[Anchor] = [one for one in (_moving(each, task.theta) for each in self.anchors) if one]
        latest = {name: value for one in own for name, value in one.theta.items()}
        centre, precision = {}, {}
        for name, value in latest.items():
            pairs = [(one.theta[name], one.precision[name]) for one in own if name in one.theta]  # else it was frozen
            total = torch.stack([omega for _, omega in pairs]).sum(0)
            shift = torch.stack([omega * (theta - value) for theta, omega in pairs]).sum(0)
            centre[name], precision[name] = value + shift / torch.where(total > 0, total, 1.0), total
        parts = [quadratic(centre, one.theta, one.precision) for one in own]
        return flat_anchor(Anchor(centre, precision, torch.stack(parts).sum(0))) if own else ()

    def penalty(self, step: Step, constants: Tree, draws: Tree) -> Tensor | None:
        if not constants:
            return None
        total: Tensor = quadratic_at(step.theta, constants) + constants.rest
        return self.weight * total / step.N

    def end(self, task: Task, x: Tensor, y: Tensor, generator: torch.Generator) -> None:
        information, _ = task_information(task, x, y, generator, self.fisher, self.examples)
        self.anchors = [*self.anchors, Anchor(copied(task.theta), information)]

    def check_state(self, weights: Mapping[str, Tensor], saved: Seen, past: Sequence[Any]) -> None:
        super().check_state(weights, saved, past)
        for anchor in self.anchors:
            for part in anchor[:2]:
                check_weights(part, weights, part.keys(), f"an anchor of {self.name}")
            expect(all(bool((one >= 0).all()) for one in anchor.precision.values()), f"a precision of {self.name}")

    def kept(self, theta: Params) -> Kept:
        fisher = [value for one in self.anchors for value in one.precision.values()]
        return {"anchor": [value for one in self.anchors for value in one.theta.values()], "fisher": fisher}

    def added_bytes(self, task: Task, x: Tensor) -> int:
        return 2 * total_bytes(task.theta)
