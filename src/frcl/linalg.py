"""Gaussian algebra: factors, KL divergences, quadrature. Pure functions, batched on the left."""

import math
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

SMALL = 1e-12  # added to a variance under a square root, so that its gradient stays finite at zero


def all_finite(x: Tensor) -> bool:
    """Whether all numbers are finite: one that is not makes their sum so too; the reverse is looked into."""
    return math.isfinite(x.sum().item()) or bool(x.isfinite().all())


def cholesky(A: Tensor, diagonal: Tensor | float = 0.0) -> Tensor:
    """Lower Cholesky factor of A + diag(d) [..., n, n], d a number or [..., n]; NaN where it is not positive definite.

    No exception and no jitter: whatever noise a model has is stated by its caller. A failed factorisation turns into a
    NaN that the training loop reports, so that the step has no branch on data and can be batched or captured.
    """
    shifted = torch.diagonal_scatter(A, A.diagonal(dim1=-2, dim2=-1) + diagonal, dim1=-2, dim2=-1)
    factor, info = torch.linalg.cholesky_ex(shifted)
    return torch.where((info == 0)[..., None, None], factor, math.nan)


def solve_lower(L: Tensor, B: Tensor) -> Tensor:
    """L⁻¹ B for lower-triangular L [..., n, n] and B [..., n, m]."""
    solution: Tensor = torch.linalg.solve_triangular(L, B, upper=False)
    return solution


def inverse_lower(L: Tensor) -> Tensor:
    """L⁻¹ for lower-triangular L [..., n, n]."""
    return solve_lower(L, torch.eye(L.shape[-1], dtype=L.dtype, device=L.device).expand_as(L))


def logdet_from_cholesky(L: Tensor) -> Tensor:
    """log|L Lᵀ| [...]; the diagonal may have any sign, since only L Lᵀ counts."""
    return 2.0 * L.diagonal(dim1=-2, dim2=-1).abs().log().sum(-1)


def lower_factor(H: Tensor) -> Tensor:
    """A lower-triangular R [..., n, n] with R Rᵀ = H Hᵀ, for H [..., n, m], m ≥ n, without forming H Hᵀ."""
    R: Tensor = torch.linalg.qr(H.mT, mode="r").R
    return R.mT


def low_rank_factor(A: Tensor, rank: int) -> Tensor:
    """F [n, rank] with F Fᵀ = A for symmetric positive semi-definite A [n, n] of at most that rank."""
    values, vectors = torch.linalg.eigh(A)
    F: Tensor = vectors[:, -rank:] * values[-rank:].clamp_min(0).sqrt()
    return F


def kl_to_zero_mean(mean: Tensor, L: Tensor, chol_prior: Tensor) -> Tensor:
    """KL(N(m, L Lᵀ) ‖ N(0, P)) from chol_prior, the Cholesky factor of P:

    ½ [ ‖P^{-1/2} L‖² + ‖P^{-1/2} m‖² − M − log|L Lᵀ| + log|P| ]
    """
    M = mean.shape[-1]
    spread = solve_lower(chol_prior, L).square().sum((-2, -1))
    shift = solve_lower(chol_prior, mean[..., None]).square().sum((-2, -1))
    return 0.5 * (spread + shift - M - logdet_from_cholesky(L) + logdet_from_cholesky(chol_prior))


@lru_cache(maxsize=32)
def gauss_hermite(nodes: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Nodes t and weights w with E[g(f)] ≈ Σ w g(μ + σ t) for f ~ N(μ, σ²)."""
    points, weights = np.polynomial.hermite_e.hermegauss(nodes)
    with torch.inference_mode(False):  # they are cached, and may be needed in training later
        t, w = (torch.as_tensor(one, dtype=dtype, device=device) for one in (points, weights / math.sqrt(2 * math.pi)))
    return t, w


def gaussian_expectation_nodes(mean: Tensor, variance: Tensor, nodes: int) -> tuple[Tensor, Tensor]:
    """Values of f at the quadrature nodes, [..., Q], and the weights [Q]."""
    points, weights = gauss_hermite(nodes, mean.dtype, mean.device)
    std = (variance + SMALL).sqrt()
    return mean[..., None] + std[..., None] * points, weights
