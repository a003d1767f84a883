"""The prior of the last-layer weights, w_c ~ N(0, σ_w² I), and the one convention for its scale.

Features Φ are the network's outputs with the bias column, never multiplied by σ_w. Whoever needs the kernel
k(x, x') = σ_w² φ(x)ᵀφ(x') calls `kernel_features`: with Φ' = σ_w Φ the kernel is Φ'Φ'ᵀ.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from frcl.posterior import Posterior, learned_prior_variance


def kernel_features(Phi: Tensor, std: float | Tensor) -> Tensor:
    """Φ' = σ_w Φ, so that k = Φ'Φ'ᵀ; no work where σ_w is the number 1."""
    return Phi if isinstance(std, float) and std == 1.0 else std * Phi


@dataclass(frozen=True)
class Prior:
    """N(0, σ_w² I) with a given σ_w, or with the σ_w that the posterior of the current task makes most probable.

    Empirical Bayes: KL(q(w) ‖ N(0, s I)) is least at s = (‖μ‖² + ‖L‖²)/(C K).
    """

    setting: float | Literal["learned"] = 1.0

    @property
    def fixed_variance(self) -> float | None:
        """σ_w² where it is given; None where it is learned."""
        return None if isinstance(self.setting, str) else self.setting**2

    def variance(self, q: Posterior) -> Tensor | float:
        """σ_w² under the posterior of the current task, whose factor is triangular."""
        fixed = self.fixed_variance
        return learned_prior_variance(q) if fixed is None else fixed

    def std(self, q: Posterior) -> float:
        """σ_w as a number: what is kept with the summary of a task that has ended with posterior q."""
        if not isinstance(self.setting, str):
            return float(self.setting)
        return math.sqrt(float(learned_prior_variance(q)))
