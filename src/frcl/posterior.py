"""The posterior of the current task: q(w) in weight space (Section 2.3), q(u) in function space (2.1)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from frcl.linalg import add_diagonal, cholesky, kl_to_isotropic, kl_to_zero_mean, solve_lower


class Moments(NamedTuple):
    """Mean and variance of f at some inputs, [B, C] each."""

    mean: Tensor
    variance: Tensor


class Posterior(NamedTuple):
    """C independent Gaussians N(μ_c, L_c L_cᵀ) over n numbers each: the weights (n = K) or u (n = M).

    mean [C, n]; factor [C, n, n], of which the lower triangle is L. The diagonal of L may have any sign.
    """

    mean: Tensor
    factor: Tensor


def initial_posterior(C: int, n: int, scale: float, dtype: torch.dtype, device: torch.device) -> Posterior:
    """μ = 0 and L = scale · I for each of the C functions (Algorithm 1 has scale = 1)."""
    eye = torch.eye(n, dtype=dtype, device=device)
    return Posterior(torch.zeros(C, n, dtype=dtype, device=device), scale * eye.repeat(C, 1, 1))


def triangular(q: Posterior) -> Posterior:
    """q with its factor as L, zeros above the diagonal."""
    return Posterior(q.mean, q.factor.tril())


def weight_moments(q: Posterior, Phi: Tensor) -> Moments:
    """f(x) = wᵀφ(x) under q(w): mean φᵀμ_c, variance ‖L_cᵀφ‖²; Phi [B, K], q triangular."""
    C, K = q.mean.shape
    spread = (Phi @ q.factor.transpose(0, 1).reshape(K, C * K)).unflatten(1, (C, K))
    return Moments(Phi @ q.mean.mT, spread.square().sum(-1))


def kl_weight(q: Posterior, prior_variance: float) -> Tensor:
    """Σ_c KL(q(w_c) ‖ N(0, σ_w² I)), the second term of the weight-space objective (Section 2.3); q triangular."""
    return kl_to_isotropic(q.mean, q.factor, prior_variance)


def function_moments(q: Posterior, Phi_x: Tensor, Phi_z: Tensor, noise: float) -> tuple[Moments, Tensor]:
    """q(f(x)) = ∫ p(f | u) q(u) du (Section 2.1), and Σ_c KL(q(u_c) ‖ p(u_c)), from one factorisation.

    Phi_x [B, K] and Phi_z [M, K] are features times σ_w. u is f(Z) seen with variance `noise`:
    p(u) = N(0, K̃), K̃ = Φ_z Φ_zᵀ + noise·I. With a = K̃⁻¹ k_zx,

        mean = aᵀ μ_c,   variance = k_xx − k_zxᵀ a + ‖L_cᵀ a‖².

    Worked out in float64, returned in the type of Phi_x.
    """
    X, Z = Phi_x.double(), Phi_z.double()
    mean, L = q.mean.double(), q.factor.double().tril()
    chol_K = cholesky(add_diagonal(Z @ Z.mT, noise))
    half = solve_lower(chol_K, Z @ X.mT)  # [M, B]
    a = torch.linalg.solve_triangular(chol_K.mT, half, upper=True)  # [M, B]
    residual = (X.square().sum(1) - half.square().sum(0)).clamp_min(0.0)  # below zero by rounding only
    spread = torch.einsum("mb,cmj->bcj", a, L).square().sum(-1)
    kl = kl_to_zero_mean(mean, L, chol_K.expand(len(mean), -1, -1)).sum()
    return Moments((a.mT @ mean.mT).to(Phi_x), (residual[:, None] + spread).to(Phi_x)), kl
