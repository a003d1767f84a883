"""Regression with independent normal noise on each output."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from frcl.likelihoods.base import NumericLikelihood, Params, Predictive, register


@register
@dataclass(frozen=True)
class Gaussian(NumericLikelihood):
    """p(y | f) = Π_c N(y_c | f_c, s_c²), regression with C outputs; log s_c² is learned, as `log_noise`."""

    name: ClassVar[str] = "gaussian"
    target_noise: float = 0.1  # initial variance s²

    def initial_parameters(self) -> dict[str, Tensor]:
        return {"log_noise": torch.full((self.outputs,), math.log(self.target_noise))}

    def expected_log_prob(self, mean: Tensor, variance: Tensor, y: Tensor, draws: Tensor, params: Params) -> Tensor:
        """Σ_c −½ [ log 2π s_c² + ((y_c − μ_c)² + σ_c²)/s_c² ], exact."""
        log_noise = params["log_noise"]
        error = ((y - mean).square() + variance) * torch.exp(-log_noise)
        return -0.5 * (math.log(2 * math.pi) + log_noise + error).sum(-1)

    def log_prob(self, f: Tensor, y: Tensor, params: Params) -> Tensor:
        """Σ_c log N(y_c | f_c, s_c²)."""
        return self.expected_log_prob(f, torch.zeros_like(f), y, f, params)

    def predictive(self, mean: Tensor, variance: Tensor, draws: Tensor, params: Params) -> Predictive:
        """E[y] = μ and var[y] = σ² + s²."""
        return Predictive(None, mean, variance + params["log_noise"].exp())

    def log_predictive(self, mean: Tensor, variance: Tensor, y: Tensor, draws: Tensor, params: Params) -> Tensor:
        """Σ_c log N(y_c | μ_c, σ_c² + s_c²)."""
        total = variance + params["log_noise"].exp()
        return -0.5 * (math.log(2 * math.pi) + total.log() + (y - mean).square() / total).sum(1)

    def divergence(self, old: Tensor, new: Tensor, own: Tensor, params: Params) -> Tensor:
        """Σ_c (old_c − new_c)² / (2 s_c²)."""
        precision = torch.exp(-params["log_noise"])
        difference = torch.where(own > 0, old - new, 0.0)
        return (0.5 * (precision * difference.square())).sum(-1)

    def fisher_terms(self, f: Tensor, params: Params) -> tuple[Tensor, Tensor]:
        """f and 1/s²."""
        return f, torch.exp(-params["log_noise"]).detach().expand_as(f)

    def sample(self, f: Tensor, params: Params, generator: torch.Generator) -> Tensor:
        """f + s ε with ε ~ N(0, I)."""
        draws = torch.randn(f.shape, dtype=f.dtype, device=f.device, generator=generator)
        return f + torch.exp(0.5 * params["log_noise"]) * draws
