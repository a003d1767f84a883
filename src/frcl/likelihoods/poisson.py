"""Counts: a Poisson likelihood with rate exp(f) on each output."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from frcl.errors import DataError
from frcl.likelihoods.base import NumericLikelihood, Params, Predictive, register
from frcl.linalg import SMALL, gauss_hermite

HIGHEST = 30.0  # log of the largest rate, 1e13: beyond it exp goes on along its tangent, finite with its gradient
TINIEST = -60.0  # log of the smallest value in `wright_omega`, which must not underflow in float32


def bounded_exp(f: Tensor) -> Tensor:
    """exp f up to HIGHEST, then its tangent: convex, with a continuous gradient that neither overflows nor vanishes."""
    return f.clamp(max=HIGHEST).exp() * (1 + (f - HIGHEST).relu())


def wright_omega(x: Tensor) -> Tensor:
    """The w with w + log w = x, for x above TINIEST, by Newton's method (as Iacono and Boyd, 2017)."""
    x = x.clamp(min=TINIEST)
    w = torch.where(x > 1, x, x.clamp(max=1.0).exp())
    for _ in range(6):
        w = w * (1 + x - w.log()) / (1 + w)
    return w


@register
@dataclass(frozen=True)
class Poisson(NumericLikelihood):
    """p(y | f) = Π_c Poisson(y_c | exp f_c) = Π_c exp(y_c f_c − exp f_c)/y_c!, with C independent outputs.

    Rates above e^HIGHEST ≈ 1e13 are continued linearly in f (see `bounded_exp`), so that the wide functions at the
    beginning of training cannot overflow. Formulas are exact below that.
    """

    name: ClassVar[str] = "poisson"
    nodes: int = 64

    def encode(self, y: Any, device: torch.device, dtype: torch.dtype) -> Tensor:
        """Counts as floats [N, C]; anything else is refused."""
        values = super().encode(y, device, dtype)
        wrong = values[(values < 0) | (values != values.round())]
        if len(wrong):
            raise DataError(
                f"poisson targets are counts, whole numbers of at least 0; got {wrong[0].item():g}. "
                'For other numbers say likelihood="gaussian".'
            )
        return values

    def expected_log_prob(self, mean: Tensor, variance: Tensor, y: Tensor, draws: Tensor, params: Params) -> Tensor:
        """Σ_c y_c μ_c − exp(μ_c + σ_c²/2) − log y_c!, exact."""
        return (y * mean - bounded_exp(mean + 0.5 * variance) - torch.lgamma(y + 1)).sum(1)

    def log_prob(self, f: Tensor, y: Tensor, params: Params) -> Tensor:
        """Σ_c y_c f_c − exp f_c − log y_c!."""
        return (y * f - bounded_exp(f) - torch.lgamma(y + 1)).sum(-1)

    def predictive(self, mean: Tensor, variance: Tensor, draws: Tensor, params: Params) -> Predictive:
        """E[y] = m = exp(μ + σ²/2) and var[y] = m + m² (exp σ² − 1)."""
        rate = bounded_exp(mean + 0.5 * variance)
        return Predictive(None, rate, rate + rate.square() * torch.expm1(variance.clamp(max=2 * HIGHEST)))

    def log_predictive(self, mean: Tensor, variance: Tensor, y: Tensor, draws: Tensor, params: Params) -> Tensor:
        """Σ_c log ∫ Poisson(y_c | exp f) N(f | μ_c, σ_c²) df, by adaptive Gauss–Hermite quadrature.

        With f = μ + σ z, the nodes are centred on the maximum ẑ of the integrand and scaled by its curvature, since
        a large count makes it much narrower than N(f | μ, σ²):

            z_q = ẑ + t_q/√(1 + w),   log ∫ ≈ log Σ_q w_q exp( log p(y | f_q) + ½ t_q² − ½ z_q² ) − ½ log(1 + w)

        where w = σ² exp f̂ solves w + log w = log σ² + μ + σ² y.
        """
        v = variance + SMALL
        with torch.no_grad():  # the integral does not depend on where the nodes are
            w = wright_omega(v.log() + mean + v * y)
            # the maximum, written in the way that does not cancel
            centre = torch.where(w < 1, v.sqrt() * y - w / v.sqrt(), (w.log() - v.log() - mean) / v.sqrt())[..., None]
        points, weights = gauss_hermite(self.nodes, mean.dtype, mean.device)
        z = centre + points * (1 + w[..., None]).rsqrt()  # [B, C, Q]
        f = mean[..., None] + v.sqrt()[..., None] * z
        log_p = y[..., None] * f - bounded_exp(f) + 0.5 * (points.square() - z.square())
        return ((log_p + weights.log()).logsumexp(-1) - 0.5 * w.log1p() - torch.lgamma(y + 1)).sum(1)

    def divergence(self, old: Tensor, new: Tensor, own: Tensor, params: Params) -> Tensor:
        """Σ_c λ_old (f_old − f_new) − λ_old + λ_new with λ = exp f."""
        old, new = (torch.where(own > 0, f, 0.0) for f in (old, new))
        gradient = old.clamp(max=HIGHEST).exp()  # of bounded_exp at f_old: the divergence is never negative
        return (gradient * (old - new) - bounded_exp(old) + bounded_exp(new)).sum(-1)

    def fisher_terms(self, f: Tensor, params: Params) -> tuple[Tensor, Tensor]:
        """f and exp f."""
        return f, f.clamp(max=HIGHEST).exp().detach()

    def sample(self, f: Tensor, params: Params, generator: torch.Generator) -> Tensor:
        """y ~ Poisson(exp f)."""
        return torch.poisson(bounded_exp(f), generator=generator)
