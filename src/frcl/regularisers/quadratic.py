"""Quadratic anchors on θ: EWC (one a task), online EWC (one running), diagonal Laplace propagation.

penalty = λ/N · ½ Σ_j Ω_j (θ_j − θ*_j)²      with Ω = N_i × Fisher information: nats per example
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from frcl.regularisers.fisher import FisherMode, diagonal_fisher
from frcl.regularisers.protocol import Kept, Moment, Params, Place, Plain, named, shared_only, under


def quadratic(params: Params, anchor: Params, precision: Params) -> Tensor:
    """½ Σ_j Ω_j (θ_j − θ*_j)², over the names in `anchor`."""
    parts = [(precision[name] * (params[name] - anchor[name]).square()).sum() for name in sorted(anchor)]
    return 0.5 * torch.stack(parts).sum()


def running_sum(before: Params, new: Params, decay: float) -> Params:
    """Ω ← γ Ω + Ω_new by name; Ω_new where nothing was before, and what is not in `new` as it was."""
    return before | {name: decay * before[name] + value if name in before else value for name, value in new.items()}


@dataclass(frozen=True)
class FisherRecipe:
    """How the Fisher information of a finished task is worked out."""

    mode: FisherMode = "exact"
    examples: int = 2000

    def rows(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Which examples it is averaged over."""
        return torch.randperm(len(x), generator=generator, device=generator.device)[: self.examples].to(x.device)

    def information(self, now: Moment, x: Tensor, y: Tensor, generator: torch.Generator) -> Params:
        """N × the mean Fisher information of the shared parameters and the task's own head, at their values now."""
        rows = self.rows(x, generator)
        own = {**shared_only(now.params), f"head/{now.task}": now.params[f"head/{now.task}"]}
        fisher = diagonal_fisher(
            lambda params, inputs: now.model.logits(params, inputs, now.task),
            own, x[rows], y[rows], self.mode, generator=generator,
        )  # fmt: skip
        return {name: now.N * value for name, value in fisher.items()}


@dataclass
class SeparateAnchors(Plain):
    """EWC: each task keeps its own anchor and precision.

    Their sum is one quadratic, so that a step costs the same whatever the number of tasks: with Ω = Σ_i Ω_i and the
    weighted mean θ̄ = Σ_i Ω_i θ*_i / Ω, worked out as a shift of the latest θ*,

        ½ Σ_i Ω_i (θ − θ*_i)² = ½ Ω (θ − θ̄)² + ½ Σ_i Ω_i (θ*_i − θ̄)².
    """

    strength: float
    recipe: FisherRecipe
    anchors: list[tuple[Params, Params]] = field(default_factory=list)  # (θ*, Ω) of each task

    def constants(self) -> Params:
        if not self.anchors:
            return {}
        latest = self.anchors[-1][0]
        precision = {name: sum_of([omega[name] for _, omega in self.anchors]) for name in latest}
        centre = {
            name: value + sum_of([o[name] * (a[name] - value) for a, o in self.anchors]) / _or_one(precision[name])
            for name, value in latest.items()
        }
        rest = sum_of([quadratic(centre, anchor, omega) for anchor, omega in self.anchors])
        return {**named("anchor/", centre), **named("precision/", precision), "rest": rest}

    def penalty(self, at: Place, params: Params, constants: Params, x: Tensor, noise: Params) -> Tensor:
        if "rest" not in constants:
            return x.new_zeros(())
        held = quadratic(params, under(constants, "anchor/"), under(constants, "precision/")) + constants["rest"]
        return self.strength * held / constants["N"]

    def end(self, now: Moment, x: Tensor, y: Tensor, generator: torch.Generator) -> None:
        information = shared_only(self.recipe.information(now, x, y, generator))
        anchor = {name: now.params[name].detach().clone() for name in information}
        self.anchors.append((anchor, information))

    def kept(self) -> Kept:
        return {
            "anchor": [value for anchor, _ in self.anchors for value in anchor.values()],
            "fisher": [value for _, omega in self.anchors for value in omega.values()],
        }

    def state(self) -> Params:
        return {
            f"{i}/{part}/{name}": value
            for i, pair in enumerate(self.anchors)
            for part, values in zip(("anchor", "precision"), pair, strict=True)
            for name, value in values.items()
        }

    def load(self, state: Params) -> None:
        count = 1 + max((int(name.split("/", 1)[0]) for name in state), default=-1)
        self.anchors = [(_copied(state, f"{i}/anchor/"), _copied(state, f"{i}/precision/")) for i in range(count)]


@dataclass
class RunningAnchor(Plain):
    """Online EWC and diagonal Laplace propagation: Ω ← γ Ω + Ω_new, anchored at the latest θ.

    With `prior_precision` there is an anchor at zero from the very beginning, the prior N(0, 1/precision), and the
    precisions of old heads are kept too: together they are the Laplace posterior that DLP predicts with.
    """

    strength: float
    decay: float
    recipe: FisherRecipe
    prior_precision: float | None = None
    anchor: Params = field(default_factory=dict)
    precision: Params = field(default_factory=dict)
    heads: Params = field(default_factory=dict)  # precision of each finished head

    def begin(self, now: Moment) -> None:
        if self.prior_precision is not None and not self.anchor:
            for name, value in shared_only(now.params).items():
                self.anchor[name] = torch.zeros_like(value).detach()
                self.precision[name] = torch.full_like(value, self.prior_precision).detach()

    def constants(self) -> Params:
        return {**named("anchor/", self.anchor), **named("precision/", self.precision)}

    def penalty(self, at: Place, params: Params, constants: Params, x: Tensor, noise: Params) -> Tensor:
        total = x.new_zeros(())
        anchor = under(constants, "anchor/")
        if anchor:
            total = quadratic(params, anchor, under(constants, "precision/"))
        if self.prior_precision is not None:
            head = params[f"head/{at.task}"]
            total = total + 0.5 * self.prior_precision * head.square().sum()
        return self.strength * total / constants["N"]

    def end(self, now: Moment, x: Tensor, y: Tensor, generator: torch.Generator) -> None:
        information = self.recipe.information(now, x, y, generator)
        shared = shared_only(information)
        self.precision = running_sum(self.precision, shared, self.decay)
        self.anchor = self.anchor | {name: now.params[name].detach().clone() for name in shared}
        if self.prior_precision is not None:
            own = f"head/{now.task}"
            self.heads[own] = information[own] + self.prior_precision

    def kept(self) -> Kept:
        return {"anchor": list(self.anchor.values()), "fisher": [*self.precision.values(), *self.heads.values()]}

    def state(self) -> Params:
        parts = {"anchor": self.anchor, "precision": self.precision, "heads": self.heads}
        return {f"{part}/{name}": value for part, values in parts.items() for name, value in values.items()}

    def load(self, state: Params) -> None:
        self.anchor, self.precision, self.heads = (
            _copied(state, f"{part}/") for part in ("anchor", "precision", "heads")
        )


def sum_of(tensors: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(tensors)).sum(0)


def _or_one(precision: Tensor) -> Tensor:
    """One where nothing holds, so that it can be divided by."""
    return torch.where(precision > 0, precision, 1.0)


def _copied(state: Params, prefix: str) -> Params:
    return {name: value.clone() for name, value in under(state, prefix).items()}
