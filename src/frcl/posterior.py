"""The prior and the posterior of the current task: q(w) in weight space (Section 2.3), q(u) in function space (2.1).

Features Φ are the network's outputs with the bias column, never multiplied by σ_w. Whoever needs the kernel
k(x, x') = σ_w² φ(x)ᵀφ(x') calls `kernel_features`: with Φ' = σ_w Φ the kernel is Φ'Φ'ᵀ.
"""

from __future__ import annotations

import inspect
import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor

from frcl.linalg import cholesky, kl_to_zero_mean, solve_lower

F = TypeVar("F", bound=type[torch.autograd.Function])


def signed(function: F) -> F:
    """The same, with the signature of `forward` kept: torch asks for it at every call and would derive it again."""
    function.forward.__signature__ = inspect.signature(function.forward)  # type: ignore[attr-defined]
    return function


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


def random_mean(q: Posterior, generator: torch.Generator) -> Posterior:
    """q with a mean drawn from N(0, 1/K) for each weight, zero for the bias: Algorithm 1 starts "around zero".

    With a mean of exactly zero the features get a gradient through the variance alone at first.
    """
    K = q.mean.shape[1]
    mean = torch.randn(q.mean.shape, generator=generator, dtype=q.mean.dtype, device=q.mean.device) / math.sqrt(K)
    mean[:, -1] = 0.0
    return q._replace(mean=mean)


def triangular(q: Posterior) -> Posterior:
    """q with its factor as L, zeros above the diagonal."""
    return Posterior(q.mean, q.factor.tril())


def weight_moments(q: Posterior, Phi: Tensor) -> Moments:
    """f(x) = wᵀφ(x) under q(w): mean φᵀμ_c, variance ‖L_cᵀφ‖²; Phi [B, K], q triangular."""
    return _moments(q, Phi)[0]


def _moments(q: Posterior, Phi: Tensor) -> tuple[Moments, Tensor]:
    """The moments, and A = ΦL [C, B, K], whose rows have the standard deviations of f as their lengths."""
    A = torch.bmm(Phi.expand(len(q.factor), -1, -1), q.factor)
    return Moments(Phi @ q.mean.mT, torch.linalg.vector_norm(A, dim=-1).square().mT), A


def learned_prior_variance(q: Posterior) -> Tensor:
    """The σ_w² at which KL(q(w) ‖ N(0, σ_w² I)) is least: (‖μ‖² + ‖L‖²)/(C K); q triangular."""
    second_moment: Tensor = torch.linalg.vector_norm(q.factor).square() + torch.linalg.vector_norm(q.mean).square()
    return second_moment / q.mean.numel()


def kl_weight(q: Posterior, prior_variance: float | Tensor) -> Tensor:
    """Σ_c KL(q(w_c) ‖ N(0, s I)), the second term of the weight-space objective (Section 2.3); q triangular:

    ½ [ (‖L‖² + ‖μ‖²)/s − CK + CK log s ] − Σ log|L_ckk|
    """
    mean, L = q
    second_moment: Tensor = torch.linalg.vector_norm(L).square() + torch.linalg.vector_norm(mean).square()
    log_variance = prior_variance.log() if isinstance(prior_variance, Tensor) else math.log(prior_variance)
    constant = mean.numel() * (log_variance - 1.0)
    return 0.5 * (second_moment / prior_variance + constant) - L.diagonal(dim1=-2, dim2=-1).abs().log().sum()


def weight_space(q: Posterior, Phi: Tensor, prior_variance: float | None) -> tuple[Moments, Tensor]:
    """`weight_moments` and `kl_weight` of q, whose factor need not be triangular yet, with a closed-form gradient.

    The part of a training step that concerns q(w), in few passes over L, which has more entries than most networks.
    With A_c = ΦL_c [B, K], m and v the gradients by mean and variance [B, C], k that by the KL, s the prior variance,

        d/dμ_c = Φᵀm_c + (k/s) μ_c,
        d/dL_c = lower triangle of 2 Φᵀ diag(v_c) A_c + (k/s) L_c − k diag(L_c)⁻¹,
        d/dΦ = Σ_c m_c μ_cᵀ + 2 diag(v_c) A_c L_cᵀ.

    For prior_variance None, s is `learned_prior_variance(q)`. There the KL is stationary in s, so the same gradient is
    the total derivative of ½ C K log s − Σ log|L_ckk|.

    Second derivatives are not available.
    """
    lower = _lower(Phi.shape[-1], Phi.dtype, Phi.device)
    mean, variance, kl, *_ = _WeightSpace.apply(q.mean, q.factor, Phi, lower, prior_variance)  # type: ignore[no-untyped-call]
    return Moments(mean, variance), kl


@signed
class _WeightSpace(torch.autograd.Function):
    """Mean and variance of f, the KL; then L, A and s, which only the backward pass needs."""

    generate_vmap_rule = True

    @staticmethod
    def forward(mean: Tensor, factor: Tensor, Phi: Tensor, lower: Tensor, prior_variance: float | None) -> Any:
        q = Posterior(mean, factor * lower)
        moments, A = _moments(q, Phi)
        s = learned_prior_variance(q) if prior_variance is None else prior_variance
        return *moments, kl_weight(q, s), q.factor, A, s if isinstance(s, Tensor) else mean.new_tensor(s)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        mean, _, Phi, lower, _ = inputs
        L, A, s = output[3:]
        ctx.mark_non_differentiable(L, A, s)
        ctx.set_materialize_grads(False)  # no zeros as large as L and A
        ctx.save_for_backward(mean, Phi, lower, L, A, s)

    @staticmethod
    def backward(
        ctx: Any, by_mean: Tensor | None, by_variance: Tensor | None, by_kl: Tensor | None, *_: None
    ) -> tuple[Tensor, Tensor, Tensor, None, None]:
        mean, Phi, lower, L, A, s = ctx.saved_tensors
        by_mean = Phi.new_zeros(len(Phi), len(mean)) if by_mean is None else by_mean
        by_variance = Phi.new_zeros(len(Phi), len(mean)) if by_variance is None else by_variance
        by_kl = Phi.new_zeros(()) if by_kl is None else by_kl
        pull = by_kl / s
        by_A = A * (2.0 * by_variance.mT)[..., None]
        d_L = torch.baddbmm(pull * L, Phi.mT.expand(len(L), -1, -1), by_A).mul_(lower)
        d_L.diagonal(dim1=-2, dim2=-1).sub_(by_kl / L.diagonal(dim1=-2, dim2=-1))
        d_Phi = by_mean @ mean + (by_A @ L.mT).sum(0)
        return by_mean.mT @ Phi + pull * mean, d_L, d_Phi, None, None


@lru_cache(maxsize=8)
def _lower(n: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Ones on and below the diagonal [n, n]."""
    with torch.inference_mode(False):  # it is kept, and may be needed in training later
        return torch.ones(n, n, dtype=dtype, device=device).tril()


def function_moments(
    q: Posterior, Phi_x: Tensor, Phi_z: Tensor, u_noise: float, prior_std: float = 1.0
) -> tuple[Moments, Tensor]:
    """q(f(x)) = ∫ p(f | u) q(u) du (Section 2.1), and Σ_c KL(q(u_c) ‖ p(u_c)), from one factorisation.

    Phi_x [B, K] and Phi_z [M, K] are features. u is f(Z) observed with variance σ² = `u_noise`:
    p(u) = N(0, K̃), K̃ = σ_w² Φ_z Φ_zᵀ + σ² I. With a = K̃⁻¹ k_zx,

        mean = aᵀ μ_c,   variance = k_xx − k_zxᵀ a + ‖L_cᵀ a‖².

    Computed in float64, returned in the type of Phi_x.
    """
    X, Z = prior_std * Phi_x.double(), prior_std * Phi_z.double()
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
        return math.sqrt(float(learned_prior_variance(triangular(q))))
