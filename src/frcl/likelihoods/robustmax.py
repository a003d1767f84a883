"""Any number of classes, one function per class: the class of the largest function, with a chance of error."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from frcl.likelihoods.base import ClassLikelihood, Params, register
from frcl.linalg import SMALL, gaussian_expectation_nodes

FAR = 1e3  # stds beyond which a normal tail is zero; its gradient in float32 is not a number far enough out


@register
@dataclass(frozen=True)
class RobustMax(ClassLikelihood):
    """p(y | f) = 1 − ε where y = argmax f, ε/(C − 1) elsewhere; by quadrature, as in the authors' release.

    Its divergence has no gradient and its Fisher information is zero almost everywhere; those of the softmax stand in.
    """

    name: ClassVar[str] = "robustmax"
    epsilon: float = 1e-3
    nodes: int = 20

    def probability_of_largest(self, mean: Tensor, variance: Tensor) -> Tensor:
        """P(f_c > f_j for all j ≠ c) for every c, [B, C]: ∫ N(f_c) Π_{j≠c} Φ((f_c − μ_j)/σ_j) df_c."""
        f, weights = gaussian_expectation_nodes(mean, variance, self.nodes)  # [B, C, Q]
        std = (variance + SMALL).sqrt()
        z = (f[:, :, None, :] - mean[:, None, :, None]) / std[:, None, :, None]  # [B, c, j, Q]
        below: Tensor = torch.special.log_ndtr(z.clamp(-FAR, FAR))
        own = torch.eye(mean.shape[1], dtype=torch.bool, device=mean.device)[None, :, :, None]
        return below.masked_fill(own, 0.0).sum(2).exp() @ weights

    def expected_log_prob(self, mean: Tensor, variance: Tensor, y: Tensor, draws: Tensor, params: Params) -> Tensor:
        """p_y log(1 − ε) + (1 − p_y) log(ε/(C − 1)), p_y the probability that f_y is the largest."""
        p = self.probability_of_largest(mean, variance).gather(1, y[:, None])[:, 0]
        return p * math.log1p(-self.epsilon) + (1 - p) * math.log(self.epsilon / (mean.shape[1] - 1))

    def log_prob(self, f: Tensor, y: Tensor, params: Params) -> Tensor:
        """log(1 − ε) where y = argmax f, log(ε/(C − 1)) elsewhere."""
        right = f.new_tensor(math.log1p(-self.epsilon))
        return torch.where(f.argmax(-1) == y, right, math.log(self.epsilon / (f.shape[-1] - 1)))

    def probabilities(self, mean: Tensor, variance: Tensor, draws: Tensor) -> Tensor:
        """(1 − ε) p_c + ε (1 − p_c)/(C − 1), p normalised to absorb the error of the quadrature, [B, C]."""
        p = self.probability_of_largest(mean, variance)
        p = p / p.sum(1, keepdim=True)
        return (1 - self.epsilon) * p + self.epsilon * (1 - p) / (mean.shape[1] - 1)

    def sample(self, f: Tensor, params: Params, generator: torch.Generator) -> Tensor:
        """argmax f with probability 1 − ε, else any other class."""
        largest, C = f.argmax(-1), f.shape[-1]
        wrong = torch.rand(largest.shape, device=f.device, generator=generator) < self.epsilon
        ahead = torch.randint(1, C, largest.shape, device=f.device, generator=generator)
        return torch.where(wrong, (largest + ahead) % C, largest)
