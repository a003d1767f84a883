"""Two classes and one function: the logistic likelihood."""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from frcl.errors import OptionError
from frcl.likelihoods.base import ClassLikelihood, Params, register, softmax_divergence
from frcl.linalg import gaussian_expectation_nodes


def with_zero(f: Tensor) -> Tensor:
    """[f, 0] of the first function of f [..., C'], [..., 2]: their softmax is [p(class 1), p(class 0)]."""
    f = f[..., :1]
    return torch.cat([f, torch.zeros_like(f)], -1)


@register
@dataclass(frozen=True)
class Bernoulli(ClassLikelihood):
    """p(y | f) = 1/(1 + exp(−y f)), y ∈ {−1, 1} (Section 2); one function. Targets here are class 0 or 1."""

    name: ClassVar[str] = "bernoulli"
    nodes: int = 64  # enough for variances of f into the hundreds

    def __post_init__(self) -> None:
        if len(self.labels) != 2:
            raise OptionError(f'likelihood "bernoulli" is for 2 classes; this task has {len(self.labels)}')

    @property
    def functions(self) -> int:
        return 1

    def expected_log_prob(self, mean: Tensor, variance: Tensor, y: Tensor, draws: Tensor, params: Params) -> Tensor:
        """E[log p(y | f)] by Gauss–Hermite quadrature."""
        f, weights = gaussian_expectation_nodes(mean, variance, self.nodes)  # [B, 1, Q]
        return self.log_prob(f.mT, y[:, None], params) @ weights

    def log_prob(self, f: Tensor, y: Tensor, params: Params) -> Tensor:
        """log σ((2y − 1) f)."""
        return F.logsigmoid((2 * y - 1).to(f.dtype) * f[..., 0])

    def probabilities(self, mean: Tensor, variance: Tensor, draws: Tensor) -> Tensor:
        """[p(y = class 0), p(y = class 1)] with p(class 1) = E[σ(f)], shape [B, 2]."""
        f, weights = gaussian_expectation_nodes(mean[:, 0], variance[:, 0], self.nodes)
        return torch.stack([torch.sigmoid(-f) @ weights, torch.sigmoid(f) @ weights], dim=1)

    def divergence(self, old: Tensor, new: Tensor, own: Tensor, params: Params) -> Tensor:
        """KL of two Bernoulli distributions, as that of the softmax of [f, 0]."""
        there = own[..., :1]
        return softmax_divergence(with_zero(old), with_zero(new), torch.cat([there, there], -1))

    def fisher_terms(self, f: Tensor, params: Params) -> tuple[Tensor, Tensor]:
        """log softmax([f, 0]) and softmax([f, 0])."""
        return super().fisher_terms(with_zero(f), params)

    def sample(self, f: Tensor, params: Params, generator: torch.Generator) -> Tensor:
        """Class 1 with probability σ(f), else class 0."""
        draws = torch.rand(f.shape[:-1], dtype=f.dtype, device=f.device, generator=generator)
        return (draws < torch.sigmoid(f[..., 0])).long()
