"""Synaptic intelligence: importance of a weight from the path it took (Zenke et al., 2017).

    ω_j = −Σ_t g_j(t) Δθ_j(t),   Ω_j += max(ω_j, 0)/(D_j² + ξ),   penalty = c Σ_j Ω_j (θ_j − θ*_j)²

g is the gradient of the likelihood term alone, D the whole displacement over the task; nats per example.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from frcl.regularisers.protocol import Kept, Moment, Params, Place, Plain, named, shared_only, under


@dataclass
class PathIntegral(Plain):
    """Follows every step, and holds what mattered."""

    strength: float  # c
    damping: float  # ξ
    path: Params = field(default_factory=dict)  # ω so far in this task
    start: Params = field(default_factory=dict)  # θ when the task began: the anchor of the tasks before it
    importance: Params = field(default_factory=dict)  # Ω

    def begin(self, now: Moment) -> None:
        self.start = {name: value.detach().clone() for name, value in shared_only(now.params).items()}
        self.path = {name: torch.zeros_like(value) for name, value in self.start.items()}
        if not self.importance:
            self.importance = {name: torch.zeros_like(value) for name, value in self.start.items()}

    def constants(self) -> Params:
        return {**named("start/", self.start), **named("importance/", self.importance)}

    def penalty(self, at: Place, params: Params, constants: Params, x: Tensor, noise: Params) -> Tensor:
        start = under(constants, "start/")
        parts = [
            (value * (params[name] - start[name]).square()).sum()
            for name, value in sorted(under(constants, "importance/").items())
        ]
        return self.strength * torch.stack(parts).sum()

    def carry(self) -> Params:
        return self.path

    def follow(self, carry: Params, constants: Params, gradient: Params, before: Params, after: Params) -> None:
        """ω ← ω − g Δθ, where g is the whole gradient less that of the penalty, 2c Ω (θ − θ*)."""
        start, importance = under(constants, "start/"), under(constants, "importance/")
        for name in carry.keys() & gradient.keys():  # what the network holds fixed does not move
            omega = carry[name]
            held = 2 * self.strength * importance[name] * (before[name] - start[name])
            omega -= (gradient[name] - held) * (after[name] - before[name])

    def end(self, now: Moment, x: Tensor, y: Tensor, generator: torch.Generator) -> None:
        for name, omega in self.path.items():
            moved = (now.params[name].detach() - self.start[name]).square()
            self.importance[name] = self.importance[name] + omega.clamp_min(0.0) / (moved + self.damping)
        self.path = {}
        self.start = {}

    def kept(self) -> Kept:
        """Ω, and the anchor as large as it that every task is begun with."""
        importance = list(self.importance.values())
        return {"fisher": importance, "anchor": importance}

    def state(self) -> Params:
        parts = {"path": self.path, "start": self.start, "importance": self.importance}
        return {f"{part}/{name}": value for part, values in parts.items() for name, value in values.items()}

    def load(self, state: Params) -> None:
        self.path, self.start, self.importance = (
            {n[len(part) + 1 :]: v.clone() for n, v in state.items() if n.startswith(f"{part}/")}
            for part in ("path", "start", "importance")
        )
