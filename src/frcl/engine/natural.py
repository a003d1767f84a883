"""Natural-gradient steps for Gaussians q_c = N(μ_c, L_c L_cᵀ): steepest descent measured by KL divergence between them.

With F = N · loss, S = lower triangle of Lᵀ ∂F/∂L and a step size ρ,

    μ ← μ − ρ L Lᵀ ∂F/∂μ,
    L ← L (I + E + ½ E²),   E = −ρ (S − ½ diag S).

To first order in ρ this is Λ ← (1 − ρ) Λ + ρ Λ̂ for the precision Λ = (L Lᵀ)⁻¹, where Λ̂ is the precision that a model
conjugate to the minibatch would have: on fixed features q(w) forgets where it began within 1/ρ steps. I + E + ½ E² has
a positive diagonal for any E. ρ is at most `step_size`, and no larger than makes ρ ‖S + Sᵀ − diag S‖ = ½, so that a
step changes no variance by more than about half, at the beginning, where q is far off, as well as with noisy
minibatches.
"""

import torch
from torch import Tensor

STEP_SIZE = 0.1
TRUST = 0.5


def natural_step(
    mean: Tensor, factor: Tensor, by_mean: Tensor, by_factor: Tensor, N: Tensor, step_size: float | Tensor
) -> None:
    """Move q in place, given the gradient of the loss per example.

    mean [..., C, n]; factor [..., C, n, n], or [..., 1, n, n] where all functions share it, or [..., C, n] if diagonal.
    N [...].
    """
    by_mean, by_factor = by_mean.to(N), by_factor.to(N)  # N has at least the digits of float32
    if factor.ndim == mean.ndim:
        N = N[..., None, None]
        S = factor * by_factor * N
        step = (TRUST / S.norm(dim=-1, keepdim=True)).clamp_max(step_size)
        E = -0.5 * step * S
        mean.sub_(step * N * factor.square() * by_mean)
        factor.mul_(torch.addcmul(E, E, E, value=0.5).add_(1.0))
        return
    N = N[..., None, None, None]
    L, sharing = factor.tril().to(N), mean.shape[-2] // factor.shape[-3]
    S = (L.mT @ by_factor).tril() * (N / sharing)
    diagonal = S.diagonal(dim1=-2, dim2=-1)
    size = (2.0 * S.square().sum((-2, -1)) - diagonal.square().sum(-1)).sqrt()
    step = (TRUST / size).clamp_max(step_size)[..., None, None]
    diagonal.mul_(0.5)
    E = -step * S
    mean.sub_((step * (L @ (L.mT @ (N * by_mean[..., None]))))[..., 0])
    factor.copy_(L + L @ (E + 0.5 * E @ E))
