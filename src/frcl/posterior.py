"""The prior and the posterior of the current task: q(w) in weight space (Section 2.3), q(u) in function space (2.1).

Features Φ are the network's outputs with the bias column, never multiplied by σ_w. Whoever needs the kernel
k(x, x') = σ_w² φ(x)ᵀφ(x') calls `kernel_features`: with Φ' = σ_w Φ the kernel is Φ'Φ'ᵀ.
"""

from __future__ import annotations

import inspect
import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor

from frcl.linalg import cholesky, kl_to_zero_mean, logdet_from_cholesky, solve_lower

F = TypeVar("F", bound=type[torch.autograd.Function])


def signed(function: F) -> F:
    """The same, with the signature of `forward` kept: torch asks for it at every call and would derive it again."""
    function.forward.__signature__ = inspect.signature(function.forward)  # type: ignore[attr-defined]
    return function


class Moments(NamedTuple):
    """Mean and variance of f at some inputs, [B, C] each."""

    mean: Tensor
    variance: Tensor


Covariance = Literal["full", "shared", "lowrank", "diagonal"]


class Posterior(NamedTuple):
    """C independent Gaussians N(μ_c, Σ_c) over n numbers each: the weights (n = K) or u (n = M, always "full").

    mean [C, n]. The shapes of the rest say how the covariances are structured:

        full        factor [C, n, n]                             Σ_c = L_c L_cᵀ
        shared      factor [1, n, n]                             Σ_c = L Lᵀ
        diagonal    factor [C, n]                                Σ_c = diag(d_c)²
        lowrank     factor [C, n] and low_rank [C, n, r]         Σ_c = diag(d_c)² + V_c V_cᵀ

    L is the lower triangle of a square factor. Its diagonal, and d, may have any sign.
    """

    mean: Tensor
    factor: Tensor
    low_rank: Tensor | None = None


FULL = 4_000_000  # numbers of full factors, C n², up to which they are the automatic choice


def initial_posterior(
    C: int, n: int, scale: float, dtype: torch.dtype, device: torch.device,
    covariance: Covariance | Literal["auto"] = "full", *, rank: int = 0, random_mean: bool = False,
    generator: torch.Generator | None = None,
) -> Posterior:  # fmt: skip
    """Σ = scale² · I for each of the C functions (Algorithm 1 has scale = 1), and μ = 0.

    An "auto" covariance is full up to C n² = 4·10⁶; beyond that shared where that is cheap, n ≤ 2 C; else diagonal. A
    product with a mean or a diagonal costs B n C, and one with a shared factor B n².

    With `random_mean` μ is drawn from N(0, scale² I), zero for the bias: Algorithm 1 starts "around zero", and with a
    mean of exactly zero the features get a gradient through the variance alone at first. With a rank V is drawn too,
    ‖V_c‖² a hundredth of ‖d_c‖² on average: at V = 0 it has no gradient.
    """
    if covariance == "auto":
        covariance = "full" if C * n * n <= FULL else "shared" if n <= 2 * C else "diagonal"
    mean, low_rank = torch.zeros(C, n, dtype=dtype, device=device), None
    if covariance in ("diagonal", "lowrank"):
        factor = torch.full_like(mean, scale)
    else:
        factor = scale * torch.eye(n, dtype=dtype, device=device).repeat(C if covariance == "full" else 1, 1, 1)
    if rank:
        V = torch.randn(C, n, rank, generator=generator, dtype=dtype, device=device)
        low_rank = V * (0.1 / math.sqrt(rank)) * factor[..., None]
    if random_mean:
        mean = scale * torch.randn(C, n, generator=generator, dtype=dtype, device=device)
        mean[:, -1] = 0.0
    return Posterior(mean, factor, low_rank)


RIDGE = 0.01  # of the mean square of a feature, over the examples


def aligned_mean(Phi: Tensor, gradient: Tensor, std: float, otherwise: Tensor) -> Tensor:
    """A mean of q(w) [C, K] along which functions of fixed features first learn, small: r (ΦᵀΦ + λ I)⁻¹ Φᵀ g.

    g [n, C] is the gradient of log p(y | f) at f = 0, for a Gaussian likelihood y/σ². λ is a hundredth of the mean
    diagonal of ΦᵀΦ. r makes the root mean square of these functions `std` at the examples; where they are zero,
    `otherwise` is returned.
    """
    X = Phi.double()
    gram = X.mT @ X
    ridge = RIDGE * float(gram.diagonal().mean())
    chol = torch.linalg.cholesky_ex(gram + ridge * torch.eye(len(gram), dtype=gram.dtype, device=gram.device)).L
    mean = torch.cholesky_solve(X.mT @ gradient.double(), chol).mT
    size = (X @ mean.mT).square().mean().sqrt()
    aligned = (std / size) * mean
    return torch.where(aligned.isfinite().all() & (size > 0), aligned, otherwise.double()).to(otherwise)


def triangular(q: Posterior) -> Posterior:
    """q with square factors as L, zeros above the diagonal."""
    return q._replace(factor=q.factor.tril()) if q.factor.ndim == 3 else q


def weight_moments(q: Posterior, Phi: Tensor) -> Moments:
    """f(x) = wᵀφ(x) under q(w): mean φᵀμ_c, variance φᵀΣ_cφ; Phi [B, K], q triangular."""
    if q.factor.ndim == 3:
        mean, variance = _moments(q, Phi)[0]
        return Moments(mean, variance.expand_as(mean))
    variance = Phi.square() @ q.factor.square().mT
    if q.low_rank is not None:
        variance = variance + torch.einsum("bk,ckr->bcr", Phi, q.low_rank).square().sum(-1)
    return Moments(Phi @ q.mean.mT, variance)


def _moments(q: Posterior, Phi: Tensor) -> tuple[Moments, Tensor]:
    """The moments, and A = ΦL [C, B, K], whose rows have the standard deviations of f as their lengths.

    With a shared factor the variance is [B, 1], and A [1, B, K].
    """
    A = torch.bmm(Phi.expand(len(q.factor), -1, -1), q.factor)
    return Moments(Phi @ q.mean.mT, torch.linalg.vector_norm(A, dim=-1).square().mT), A


def second_moment(q: Posterior) -> Tensor:
    """Σ_c ‖μ_c‖² + tr Σ_c; q triangular."""
    mean, factor = q.mean.flatten(), q.factor.flatten()
    total = mean.dot(mean) + factor.dot(factor) * (len(q.mean) // len(q.factor))  # no copies of their squares
    if q.low_rank is None:
        return total
    V = q.low_rank.flatten()
    return total + V.dot(V)


def learned_prior_variance(q: Posterior) -> Tensor:
    """The σ_w² at which KL(q(w) ‖ N(0, σ_w² I)) is least: Σ_c (‖μ_c‖² + tr Σ_c)/(C K); q triangular."""
    return second_moment(q) / q.mean.numel()


def kl_weight(q: Posterior, prior_variance: float | Tensor) -> Tensor:
    """Σ_c KL(q(w_c) ‖ N(0, s I)), the second term of the weight-space objective (Section 2.3); q triangular:

    ½ [ Σ_c (‖μ_c‖² + tr Σ_c)/s − CK + CK log s − Σ_c log|Σ_c| ],

    with low rank log|D² + V Vᵀ| = log|D²| + log|I + Vᵀ D⁻² V|.
    """
    diagonal = q.factor.diagonal(dim1=-2, dim2=-1) if q.factor.ndim == 3 else q.factor
    log_determinant = 2.0 * diagonal.abs().log().sum() * (len(q.mean) // len(q.factor))
    if q.low_rank is not None:
        scaled = q.low_rank / q.factor[..., None]
        log_determinant = log_determinant + logdet_from_cholesky(cholesky(scaled.mT @ scaled, 1.0)).sum()
    log_variance = prior_variance.log() if isinstance(prior_variance, Tensor) else math.log(prior_variance)
    constant = q.mean.numel() * (log_variance - 1.0)
    return 0.5 * (second_moment(q) / prior_variance + constant - log_determinant)


def weight_space(q: Posterior, Phi: Tensor, prior_variance: float | None) -> tuple[Moments, Tensor]:
    """`weight_moments` and `kl_weight` of q, whose factor need not be triangular yet.

    The part of a training step that concerns q(w). Full factors have more entries than most networks. For them the
    gradient has a closed form, in few passes over L; the other structures are small, and differentiated as they are.
    With A_c = ΦL_c [B, K], m and v the gradients by mean and variance [B, C], k that by the KL, s the prior variance,

        d/dμ_c = Φᵀm_c + (k/s) μ_c,
        d/dL_c = lower triangle of 2 Φᵀ diag(v_c) A_c + (k/s) L_c − k diag(L_c)⁻¹,
        d/dΦ = Σ_c m_c μ_cᵀ + 2 diag(v_c) A_c L_cᵀ.

    For prior_variance None, s is `learned_prior_variance(q)`. There the KL is stationary in s, so the same gradient is
    the total derivative of ½ C K log s − Σ log|L_ckk|.

    Second derivatives are not available for full factors.
    """
    if q.factor.ndim < 3 or len(q.factor) < len(q.mean):
        q = triangular(q)
        s = learned_prior_variance(q).detach() if prior_variance is None else prior_variance
        return weight_moments(q, Phi), kl_weight(q, s)
    lower = _lower(Phi.shape[-1], Phi.dtype, Phi.device)
    mean, variance, kl, *_ = _WeightSpace.apply(q.mean, q.factor, Phi, lower, prior_variance)  # type: ignore[no-untyped-call]
    return Moments(mean, variance), kl


@signed
class _WeightSpace(torch.autograd.Function):
    """Mean and variance of f, the KL; then what only the backward pass needs: L, s, and by `strips` A_c and L_c.

    Strip [i, j) of the columns of all L_c side by side, without the rows above i, is P [K−i, C (j−i)]: one product for
    all functions, and none with most of the zeros above the diagonals.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(mean: Tensor, factor: Tensor, Phi: Tensor, lower: Tensor, prior_variance: float | None) -> Any:
        q, (C, K) = Posterior(mean, factor * lower), mean.shape
        packed = [q.factor[:, i:, i:j].transpose(0, 1).reshape(K - i, -1) for i, j in _strips(K, Phi.device)]
        A = [(Phi[:, K - len(P) :] @ P).view(len(Phi), C, -1) for P in packed]
        variance = torch.stack([torch.linalg.vector_norm(one, dim=-1) for one in A]).square().sum(0)
        s = learned_prior_variance(q) if prior_variance is None else prior_variance
        s_now = s if isinstance(s, Tensor) else mean.new_tensor(s)
        return Phi @ mean.mT, variance, kl_weight(q, s), q.factor, s_now, *A, *packed

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        mean, _, Phi, lower, _ = inputs
        ctx.mark_non_differentiable(*output[3:])
        ctx.set_materialize_grads(False)  # no zeros as large as L and A
        ctx.save_for_backward(mean, Phi, lower, *output[3:])

    @staticmethod
    def backward(
        ctx: Any, by_mean: Tensor | None, by_variance: Tensor | None, by_kl: Tensor | None, *_: None
    ) -> tuple[Tensor, Tensor, Tensor, None, None]:
        mean, Phi, lower, L, s, *rest = ctx.saved_tensors
        C, K = mean.shape
        by_mean = Phi.new_zeros(len(Phi), C) if by_mean is None else by_mean
        by_variance = Phi.new_zeros(len(Phi), C) if by_variance is None else by_variance
        by_kl = Phi.new_zeros(()) if by_kl is None else by_kl
        pull, each = by_kl / s, (2.0 * by_variance)[..., None]
        d_L, d_Phi = pull * L, by_mean @ mean
        for (i, j), A, P in zip(_strips(K, Phi.device), rest, rest[len(rest) // 2 :], strict=False):
            by_A = (A * each).flatten(1)  # [B, C (j−i)]
            d_L[:, i:, i:j] += (Phi[:, i:].mT @ by_A).view(K - i, C, j - i).transpose(0, 1)
            d_Phi[:, i:] += by_A @ P.mT
        d_L.mul_(lower).diagonal(dim1=-2, dim2=-1).sub_(by_kl / L.diagonal(dim1=-2, dim2=-1))
        return by_mean.mT @ Phi + pull * mean, d_L, d_Phi, None, None


STRIPS, LEAST = 3, 16  # of the columns of a triangle, and of how many columns: a third of a product is left out


def _strips(n: int, device: torch.device) -> list[tuple[int, int]]:
    """Strips [i, j) of n columns; on CUDA, where a product of this size takes no time but its launch, only one."""
    count = 1 if device.type == "cuda" else max(1, min(STRIPS, n // LEAST))
    edges = [round(n * k / count) for k in range(count + 1)]
    return list(pairwise(edges))


@lru_cache(maxsize=8)
def _lower(n: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Ones on and below the diagonal [n, n]."""
    with torch.inference_mode(False):  # it is kept, and may be needed in training later
        return torch.ones(n, n, dtype=dtype, device=device).tril()


def function_moments(
    q: Posterior, Phi_x: Tensor, Phi_z: Tensor, u_noise: float, prior_std: float = 1.0
) -> tuple[Moments, Tensor]:
    """q(f(x)) = ∫ p(f | u) q(u) du (Section 2.1), and Σ_c KL(q(u_c) ‖ p(u_c)), from one factorisation.

    Phi_x [B, K] and Phi_z [M, K] are features; computed in float64, returned in the type of Phi_x. u is f(Z) observed
    with variance σ² = `u_noise`: p(u) = N(0, K̃), K̃ = σ_w² Φ_z Φ_zᵀ + σ² I. With a = K̃⁻¹ k_zx,

        mean = aᵀ μ_c,   variance = k_xx − k_zxᵀ a + ‖L_cᵀ a‖².
    """
    X, Z = (kernel_features(Phi.double(), prior_std) for Phi in (Phi_x, Phi_z))
    mean, L = q.mean.double(), q.factor.double().tril()
    chol_K = cholesky(Z @ Z.mT, u_noise)
    half = solve_lower(chol_K, Z @ X.mT)  # [M, B]
    a = torch.linalg.solve_triangular(chol_K.mT, half, upper=True)  # [M, B]
    residual = (X.square().sum(1) - half.square().sum(0)).clamp_min(0.0)  # below zero by rounding only
    spread = torch.einsum("mb,cmj->bcj", a, L).square().sum(-1)
    kl = kl_to_zero_mean(mean, L, chol_K.expand(len(mean), -1, -1)).sum()
    return Moments((a.mT @ mean.mT).to(Phi_x), (residual[:, None] + spread).to(Phi_x)), kl


def kernel_features(Phi: Tensor, std: float | Tensor) -> Tensor:
    """Φ' = σ_w Φ, so that k = Φ'Φ'ᵀ; no work where σ_w is the number 1."""
    return Phi if isinstance(std, float) and std == 1.0 else std * Phi


@dataclass(frozen=True)
class Prior:
    """N(0, σ_w² I) with a given σ_w, or by empirical Bayes with that of `learned_prior_variance`."""

    setting: float | Literal["learned"] = 1.0

    @cached_property
    def fixed_variance(self) -> float | None:
        """σ_w² where it is given; None where it is learned."""
        return None if isinstance(self.setting, str) else self.setting**2

    def variance(self, q: Posterior) -> Tensor | float:
        """σ_w² under the posterior of the current task, whose factor is triangular."""
        return learned_prior_variance(q) if self.fixed_variance is None else self.fixed_variance

    def std(self, q: Posterior) -> float:
        """σ_w as a number: what is kept with the summary of a task that has ended with posterior q."""
        is_learned = isinstance(self.setting, str)
        return math.sqrt(float(learned_prior_variance(triangular(q)))) if is_learned else float(self.setting)
