"""Likelihoods p(y | f): expected log-likelihood under Gaussian f, and the predictive distribution.

Every function takes the mean and the variance of f, [B, C] each, and is pure: Monte Carlo noise is passed in.
Values are in nats, one per example [B].
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from frcl.errors import OptionError

FAR = 1e3  # deviations beyond which a normal tail is zero; its slope in float32 is not a number far enough out
ROWS_AT_ONCE = 4096  # examples whose predictive probabilities are held at once
SMALL = 1e-12  # added to a variance under a square root, so that its gradient stays finite at zero


@lru_cache(maxsize=32)
def gauss_hermite(nodes: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Nodes t and weights w with E[g(f)] ≈ Σ w g(μ + σ t) for f ~ N(μ, σ²)."""
    points, weights = np.polynomial.hermite_e.hermegauss(nodes)
    weights = weights / math.sqrt(2 * math.pi)
    with torch.inference_mode(False):  # they are kept, and may be needed in training later
        return (
            torch.as_tensor(points, dtype=dtype, device=device),
            torch.as_tensor(weights, dtype=dtype, device=device),
        )


def gaussian_expectation_nodes(mean: Tensor, variance: Tensor, nodes: int) -> tuple[Tensor, Tensor]:
    """Values of f at the quadrature nodes, [..., Q], and the weights [Q]."""
    points, weights = gauss_hermite(nodes, mean.dtype, mean.device)
    std = (variance + SMALL).sqrt()
    return mean[..., None] + std[..., None] * points, weights


class Likelihood(Protocol):
    """What the learner needs of a likelihood. `params` holds what is learned with it, by name."""

    @property
    def kind(self) -> str: ...
    def functions(self, classes: int) -> int: ...
    def initial_parameters(self, functions: int) -> dict[str, Tensor]: ...
    def noise_shape(self, batch: int, functions: int, training: bool) -> tuple[int, ...]: ...
    def expected_log_prob(
        self, mean: Tensor, variance: Tensor, y: Tensor, noise: Tensor, params: Mapping[str, Tensor]
    ) -> Tensor: ...
    def probabilities(self, mean: Tensor, variance: Tensor, noise: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class Bernoulli:
    """p(y | f) = 1/(1 + exp(−y f)), y ∈ {−1, 1} (Section 2); one function. Targets here are class 0 or 1."""

    nodes: int = 64  # enough for variances of f into the hundreds
    kind: str = "bernoulli"

    def functions(self, classes: int) -> int:
        if classes != 2:
            raise OptionError(f'likelihood "bernoulli" is for 2 classes; this task has {classes}')
        return 1

    def initial_parameters(self, functions: int) -> dict[str, Tensor]:
        return {}

    def noise_shape(self, batch: int, functions: int, training: bool) -> tuple[int, ...]:
        return (0,)

    def expected_log_prob(
        self,
        mean: Tensor,
        variance: Tensor,
        y: Tensor,
        noise: Tensor,
        params: Mapping[str, Tensor],
    ) -> Tensor:
        """E[log σ((2y − 1) f)] by Gauss–Hermite quadrature."""
        f, weights = gaussian_expectation_nodes(mean[:, 0], variance[:, 0], self.nodes)  # [B, Q]
        sign = (2 * y - 1).to(mean.dtype)
        return F.logsigmoid(sign[:, None] * f) @ weights

    def probabilities(self, mean: Tensor, variance: Tensor, noise: Tensor) -> Tensor:
        """[p(y = class 0), p(y = class 1)] with p(class 1) = E[σ(f)], shape [B, 2]."""
        f, weights = gaussian_expectation_nodes(mean[:, 0], variance[:, 0], self.nodes)
        return torch.stack([torch.sigmoid(-f) @ weights, torch.sigmoid(f) @ weights], dim=1)


@dataclass(frozen=True)
class Softmax:
    """p(y = c | f) ∝ exp f_c (Appendix B), by reparameterised Monte Carlo: f = μ + σ ε, ε passed in."""

    samples: int = 8
    predict_samples: int = 64
    kind: str = "softmax"

    def functions(self, classes: int) -> int:
        return classes

    def initial_parameters(self, functions: int) -> dict[str, Tensor]:
        return {}

    def noise_shape(self, batch: int, functions: int, training: bool) -> tuple[int, ...]:
        return (self.samples if training else self.predict_samples, batch, functions)

    def expected_log_prob(
        self,
        mean: Tensor,
        variance: Tensor,
        y: Tensor,
        noise: Tensor,
        params: Mapping[str, Tensor],
    ) -> Tensor:
        """Mean over the samples of log softmax(f)_y."""
        f = torch.addcmul(mean, (variance + SMALL).sqrt(), noise)  # [samples, B, C]
        log_p = f.mT.log_softmax(-2)  # [samples, C, B]: over few classes, ten times faster than along the last axis
        return log_p.mean(0).gather(0, y[None])[0]

    def probabilities(self, mean: Tensor, variance: Tensor, noise: Tensor) -> Tensor:
        f = mean + (variance + SMALL).sqrt() * noise
        return f.softmax(-1).mean(0)


@dataclass(frozen=True)
class RobustMax:
    """p(y | f) = 1 − ε where y = argmax f, ε/(C − 1) elsewhere; by quadrature, as in the authors' release."""

    epsilon: float = 1e-3
    nodes: int = 20
    kind: str = "robustmax"

    def functions(self, classes: int) -> int:
        return classes

    def initial_parameters(self, functions: int) -> dict[str, Tensor]:
        return {}

    def noise_shape(self, batch: int, functions: int, training: bool) -> tuple[int, ...]:
        return (0,)

    def probability_of_largest(self, mean: Tensor, variance: Tensor) -> Tensor:
        """P(f_c > f_j for all j ≠ c) for every c, [B, C]: ∫ N(f_c) Π_{j≠c} Φ((f_c − μ_j)/σ_j) df_c."""
        f, weights = gaussian_expectation_nodes(mean, variance, self.nodes)  # [B, C, Q]
        std = (variance + SMALL).sqrt()
        z = (f[:, :, None, :] - mean[:, None, :, None]) / std[:, None, :, None]  # [B, c, j, Q]
        below: Tensor = torch.special.log_ndtr(z.clamp(-FAR, FAR))
        own = torch.eye(mean.shape[1], dtype=torch.bool, device=mean.device)[None, :, :, None]
        return below.masked_fill(own, 0.0).sum(2).exp() @ weights

    def expected_log_prob(
        self,
        mean: Tensor,
        variance: Tensor,
        y: Tensor,
        noise: Tensor,
        params: Mapping[str, Tensor],
    ) -> Tensor:
        """p_y log(1 − ε) + (1 − p_y) log(ε/(C − 1)), p_y the probability that f_y is the largest."""
        p = self.probability_of_largest(mean, variance).gather(1, y[:, None])[:, 0]
        return p * math.log1p(-self.epsilon) + (1 - p) * math.log(self.epsilon / (mean.shape[1] - 1))

    def probabilities(self, mean: Tensor, variance: Tensor, noise: Tensor) -> Tensor:
        """(1 − ε) p_c + ε (1 − p_c)/(C − 1), p normalised to absorb the error of the quadrature."""
        p = self.probability_of_largest(mean, variance)
        p = p / p.sum(1, keepdim=True)
        return (1 - self.epsilon) * p + self.epsilon * (1 - p) / (mean.shape[1] - 1)


@dataclass(frozen=True)
class Gaussian:
    """p(y | f) = Π_c N(y_c | f_c, s_c²), regression with C outputs; log s_c² is learned."""

    initial_noise: float = 0.1  # variance s²
    kind: str = "gaussian"

    def functions(self, classes: int) -> int:
        return classes

    def initial_parameters(self, functions: int) -> dict[str, Tensor]:
        return {"log_noise": torch.full((functions,), math.log(self.initial_noise))}

    def noise_shape(self, batch: int, functions: int, training: bool) -> tuple[int, ...]:
        return (0,)

    def expected_log_prob(
        self,
        mean: Tensor,
        variance: Tensor,
        y: Tensor,
        noise: Tensor,
        params: Mapping[str, Tensor],
    ) -> Tensor:
        """Σ_c −½ [ log 2π s_c² + ((y_c − μ_c)² + σ_c²)/s_c² ], exact."""
        log_noise = params["log_noise"]
        error = ((y - mean).square() + variance) * torch.exp(-log_noise)
        return -0.5 * (math.log(2 * math.pi) + log_noise + error).sum(1)

    def probabilities(self, mean: Tensor, variance: Tensor, noise: Tensor) -> Tensor:
        raise OptionError("a regression task has no class probabilities; use the mean and the variance")


def log_predictive(
    likelihood: Likelihood,
    mean: Tensor,
    variance: Tensor,
    y: Tensor,
    noise: Tensor,
    params: Mapping[str, Tensor],
) -> Tensor:
    """log ∫ p(y | f) N(f | μ, σ²) df [B]: of a class, or for regression Σ_c log N(y_c | μ_c, σ_c² + s_c²)."""
    if isinstance(likelihood, Gaussian):
        total = variance + params["log_noise"].exp()
        return -0.5 * (math.log(2 * math.pi) + total.log() + (y - mean).square() / total).sum(1)
    return likelihood.probabilities(mean, variance, noise).gather(1, y[:, None])[:, 0].log()


def tempered(moments: tuple[Tensor, Tensor], temperature: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of f/τ, where f has those of `moments`."""
    mean, variance = moments
    return mean / temperature, variance / temperature.square()


COLDEST, HOTTEST, ROUNDS = 1 / 8, 8.0, 30  # where a temperature is looked for, and in how many sections
PRIOR = 0.25  # deviation of log τ before anything was seen


def best_temperature(
    likelihood: Likelihood, mean: Tensor, variance: Tensor, y: Tensor, noise: Tensor, params: Mapping[str, Tensor]
) -> Tensor:
    """The τ with the largest Σ log ∫ p(y | f/τ) N(f | μ, σ²) df + log N(log τ | 0, PRIOR²), [], by golden sections.

    The examples are some that were not learned from; with few of them, which may all be predicted well, the prior keeps
    τ from running away. For RobustMax τ stays 1: the largest function is the largest at any.
    """

    def loss(log_tau: Tensor) -> Tensor:
        parts = [
            log_predictive(likelihood, *tempered((some, spread), log_tau.exp()), labels, noise, params)
            for some, spread, labels in zip(*(part.split(ROWS_AT_ONCE) for part in (mean, variance, y)), strict=True)
        ]
        log_p = torch.cat(parts).double().clamp_min(math.log(torch.finfo(torch.float32).tiny))
        return 0.5 * (log_tau.double() / PRIOR).square() - log_p.sum()

    ratio = (math.sqrt(5) - 1) / 2
    low, high = (mean.new_tensor(math.log(end)) for end in (COLDEST, HOTTEST))
    left, right = high - ratio * (high - low), low + ratio * (high - low)
    at_left, at_right = loss(left), loss(right)
    for _ in range(ROUNDS):
        if at_left < at_right:
            high, right, at_right = right, left, at_left
            left = high - ratio * (high - low)
            at_left = loss(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + ratio * (high - low)
            at_right = loss(right)
    return ((low + high) / 2).exp()


def likelihood_from(kind: str, settings: Mapping[str, Any] | None = None) -> Likelihood:
    """The likelihood named `kind`, with its settings as stored in a checkpoint."""
    given = {key: value for key, value in (settings or {}).items() if key != "kind"}
    match kind:
        case "bernoulli":
            return Bernoulli(**given)
        case "softmax":
            return Softmax(**given)
        case "robustmax":
            return RobustMax(**given)
        case "gaussian":
            return Gaussian(**given)
        case _:
            raise OptionError(f"unknown likelihood {kind!r}; choose bernoulli, softmax, robustmax or gaussian")
