"""Any number of classes, one function per class: the softmax likelihood, by Monte Carlo."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from frcl.likelihoods.base import Params, register
from frcl.likelihoods.targets import ClassLikelihood, at_class
from frcl.linalg import SMALL


def softmax_divergence(old: Tensor, new: Tensor, own: Tensor) -> Tensor:
    """Σ_c p_c (log p_c − log q_c), p = softmax(old), q = softmax(new), over the classes where `own` is not zero."""
    there = own > 0
    absent = ~there & there.any(-1, keepdim=True)  # a row of padding alone stays finite
    offset = torch.zeros_like(own, dtype=old.dtype).masked_fill(absent, -torch.inf)
    log_old, log_new = ((f + offset).log_softmax(-1) for f in (old, new))
    between = torch.where(there, log_old - log_new, 0.0)
    return (log_old.exp() * between).sum(-1)


def softmax_fisher_terms(f: Tensor) -> tuple[Tensor, Tensor]:
    """log p_c and p_c, p = softmax(f): the Fisher information is Σ_c p_c (∂ log p_c / ∂θ)²."""
    return f.log_softmax(-1), f.softmax(-1).detach()


@register
@dataclass(frozen=True)
class Softmax(ClassLikelihood):
    """p(y = c | f) ∝ exp f_c (Appendix B), by reparameterised Monte Carlo: f = μ + σ ε with draws ε."""

    name: ClassVar[str] = "softmax"
    samples: int = 8
    predict_samples: int = 64

    @property
    def functions(self) -> int:
        return len(self.labels)

    def draws_shape(self, batch: int, *, training: bool) -> tuple[int, ...]:
        return (self.samples if training else self.predict_samples, batch, self.functions)

    def expected_log_prob(self, mean: Tensor, variance: Tensor, y: Tensor, draws: Tensor, params: Params) -> Tensor:
        """Mean over the samples of log softmax(f)_y."""
        f = torch.addcmul(mean, (variance + SMALL).sqrt(), draws)  # [samples, B, C]
        log_p = f.mT.log_softmax(-2)  # [samples, C, B]: over few classes, ten times faster than along the last axis
        return log_p.mean(0).gather(0, y[None])[0]

    def log_prob(self, f: Tensor, y: Tensor, params: Params) -> Tensor:
        """log softmax(f)_y."""
        return at_class(f.log_softmax(-1), y)

    def probabilities(self, mean: Tensor, variance: Tensor, draws: Tensor) -> Tensor:
        """Mean over the samples of softmax(f), [B, C]."""
        f = mean + (variance + SMALL).sqrt() * draws
        return f.softmax(-1).mean(0)

    def divergence(self, old: Tensor, new: Tensor, own: Tensor, params: Params) -> Tensor:
        """KL( softmax(old) ‖ softmax(new) )."""
        return softmax_divergence(old, new, own)

    def fisher_terms(self, f: Tensor, params: Params) -> tuple[Tensor, Tensor]:
        """log softmax(f) and softmax(f)."""
        return softmax_fisher_terms(f)

    def sample(self, f: Tensor, params: Params, generator: torch.Generator) -> Tensor:
        """y ~ softmax(f)."""
        return torch.multinomial(f.softmax(-1).view(-1, f.shape[-1]), 1, generator=generator).view(f.shape[:-1])
