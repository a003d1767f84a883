"""What the ratios on the CPU are measured against: the same values, computed in the most direct way."""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from frcl.summary import FunctionBelief


def covariance_factors(belief: FunctionBelief) -> Tensor:
    """Cholesky factors of cov(u_c), [C, M, M]: a constant of the task."""
    L = belief.factor.double()
    factors: Tensor = torch.linalg.cholesky(L @ L.mT + belief.posterior_noise * torch.eye(belief.M, dtype=L.dtype))
    return factors


def direct_past_kl(Phi: Tensor, beliefs: Sequence[FunctionBelief], factors: Sequence[Tensor]) -> Tensor:
    """Σ_i Σ_c KL(q(u_ic) ‖ p_θ(u_i)), task by task, class by class, for Phi [T, M, K].

    The prior is factorised once per task and differentiated through its Cholesky; `factors` are those of q.
    """
    total = torch.zeros((), dtype=torch.float64)
    for Phi_z, belief, roots in zip(Phi.double(), beliefs, factors, strict=True):
        chol_K = torch.linalg.cholesky(Phi_z @ Phi_z.mT + belief.u_noise * torch.eye(belief.M, dtype=torch.float64))
        log_prior = 2 * chol_K.diagonal().log().sum()
        for mean, root in zip(belief.mean.double(), roots, strict=True):
            both = torch.cat([root, mean[:, None]], 1)
            squares = torch.linalg.solve_triangular(chol_K, both, upper=False).square().sum()
            total = total + 0.5 * (squares - belief.M + log_prior - 2 * root.diagonal().log().sum())
    return total


def direct_trace(Phi: Tensor, index: Tensor, u_noise: float) -> Tensor:
    """tr(K_X − K_XZ K̃⁻¹ K_ZX) from the features of all N inputs, without an N×N matrix."""
    Phi_z = Phi[index]
    chol_K = torch.linalg.cholesky(Phi_z @ Phi_z.mT + u_noise * torch.eye(len(index), dtype=torch.float64))
    explained: Tensor = torch.linalg.solve_triangular(chol_K, Phi_z @ Phi.mT, upper=False)  # [M, N]
    return Phi.square().sum() - explained.square().sum()


def plain_training(
    model: nn.Module, x: Tensor, y: Tensor, batch: int, lr: float, generator: torch.Generator
) -> Callable[[], None]:
    """A step of Adam on the cross-entropy of a random minibatch."""
    optimiser = torch.optim.Adam(model.parameters(), lr=lr, fused=True)

    def step() -> None:
        rows = torch.randint(len(x), (batch,), generator=generator)
        loss = F.cross_entropy(model(x[rows]), y[rows])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()

    return step


def plain_prediction(model: nn.Module, x: Tensor) -> Tensor:
    """The outputs of a network with a linear layer on top."""
    with torch.no_grad():
        outputs: Tensor = model(x)
        return outputs
