"""Any number of classes, one function per class: the softmax likelihood, by Monte Carlo."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from frcl.few import add_product, softmax
from frcl.likelihoods.base import ClassLikelihood, Params, at_class, register
from frcl.linalg import SMALL


@register
@dataclass(frozen=True)
class Softmax(ClassLikelihood):
    """p(y = c | f) ∝ exp f_c (Appendix B), by reparameterised Monte Carlo: f = μ + σ ε with draws ε."""

    name: ClassVar[str] = "softmax"
    takes_arrays: ClassVar[bool] = True
    samples: int = 8
    predict_samples: int = 64

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

    def probabilities(self, mean: Any, variance: Any, draws: Any) -> Any:
        """Mean over the samples of softmax(f), [B, C]."""
        std, by_input = (variance + SMALL) ** 0.5, draws.swapaxes(0, 1).swapaxes(1, 2)
        f = add_product(mean[..., None], std[..., None], by_input)  # [B, C, S]: the fastest order
        return softmax(f, 1).sum(-1) / f.shape[-1]  # faster than the mean

    def sample(self, f: Tensor, params: Params, generator: torch.Generator) -> Tensor:
        """y ~ softmax(f)."""
        return torch.multinomial(f.softmax(-1).view(-1, f.shape[-1]), 1, generator=generator).view(f.shape[:-1])
