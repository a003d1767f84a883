"""Independent, slow and obvious versions of what the package does fast."""

import math

import torch
from torch import Tensor, nn
from torch.distributions import MultivariateNormal, kl_divergence
from torch.func import functional_call

from frcl.posterior import Posterior
from frcl.summary import FunctionBelief


def rand_posterior(C: int, n: int, g: torch.Generator, scale: float = 0.5) -> Posterior:
    """A random Gaussian posterior, float64, with entries above the diagonal that must be ignored."""
    factor = scale * torch.randn(C, n, n, generator=g, dtype=torch.float64) / math.sqrt(n)
    factor = factor + torch.diag_embed(0.3 + torch.rand(C, n, generator=g, dtype=torch.float64))
    return Posterior(torch.randn(C, n, generator=g, dtype=torch.float64), factor)


def covariances(belief: FunctionBelief) -> Tensor:
    """cov(u_c) [C, M, M]."""
    L = belief.factor.double().expand(len(belief.mean), -1, -1)
    scale = torch.ones(len(belief.mean)) if belief.scale is None else belief.scale
    return scale.double()[:, None, None] * (L @ L.mT) + belief.posterior_noise * torch.eye(
        belief.M, dtype=torch.float64
    )


def direct_prior_kl(Phi_z: Tensor, belief: FunctionBelief) -> Tensor:
    """Σ_c KL(q(u_c) ‖ N(0, ΦΦᵀ + σ²I)), class by class through torch.distributions, differentiable; Φ times σ_w."""
    K = Phi_z @ Phi_z.mT + belief.u_noise * torch.eye(len(Phi_z), dtype=Phi_z.dtype)
    prior = MultivariateNormal(torch.zeros(len(Phi_z), dtype=Phi_z.dtype), covariance_matrix=K)
    total = Phi_z.new_zeros(())
    for mean, covariance in zip(belief.mean.double(), covariances(belief), strict=True):
        total = total + kl_divergence(MultivariateNormal(mean, covariance_matrix=covariance), prior)
    return total


def direct_prediction(Phi_x: Tensor, Phi_z: Tensor, belief: FunctionBelief) -> tuple[Tensor, Tensor]:
    """Section 2.5 as printed, with explicit inverses; [B, C] each. Features are times σ_w."""
    K = Phi_z @ Phi_z.mT + belief.u_noise * torch.eye(len(Phi_z), dtype=Phi_z.dtype)
    inverse = torch.linalg.inv(K)
    cross = Phi_z @ Phi_x.mT  # [M, B]
    means, variances = [], []
    for mean, covariance in zip(belief.mean.double(), covariances(belief), strict=True):
        means.append(cross.mT @ inverse @ mean)
        middle = inverse @ (covariance - K) @ inverse
        variances.append((Phi_x * Phi_x).sum(1) + torch.einsum("mb,mn,nb->b", cross, middle, cross))
    return torch.stack(means, 1), torch.stack(variances, 1)


def direct_trace(Phi: Tensor, index: Tensor, noise: float) -> float:
    """tr(K_X − K_XZ K̃⁻¹ K_ZX) from N×N matrices."""
    K = Phi @ Phi.mT
    K_z = K[index][:, index] + noise * torch.eye(len(index), dtype=Phi.dtype)
    return float((K - K[:, index] @ torch.linalg.solve(K_z, K[index])).trace())


def exact_log_marginal(Phi: Tensor, y: Tensor, noise: float) -> float:
    """log N(y | 0, ΦΦᵀ + s² I) of GP regression."""
    K = Phi @ Phi.mT + noise * torch.eye(len(Phi), dtype=Phi.dtype)
    return float(MultivariateNormal(torch.zeros_like(y), covariance_matrix=K).log_prob(y))


def functions(net: nn.Module, theta: dict[str, Tensor], head: Tensor, x: Tensor) -> Tensor:
    """[n, C], without the library."""
    Phi = functional_call(net, theta, (x,))
    return Phi @ head[:, :-1].mT + head[:, -1]


def gradients(value, params):
    """By name, zero where the value does not depend on it."""
    found = torch.autograd.grad(value, list(params.values()), allow_unused=True, materialize_grads=True)
    return dict(zip(params, found, strict=True))
