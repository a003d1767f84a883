"""A temperature that divides the functions of a task, chosen on examples held out."""

import math

import torch
from torch import Tensor

from frcl.likelihoods.base import Likelihood, Params

ROWS_AT_ONCE = 4096  # examples whose predictive probabilities are held at once
COLDEST, HOTTEST, ROUNDS = 1 / 8, 8.0, 30  # where a temperature is looked for, and in how many sections
PRIOR = 0.25  # std of log τ before anything was seen


def tempered(moments: tuple[Tensor, Tensor], temperature: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of f/τ, where f has those of `moments`."""
    mean, variance = moments
    return mean / temperature, variance / temperature.square()


def best_temperature(
    likelihood: Likelihood, mean: Tensor, variance: Tensor, y: Tensor, draws: Tensor, params: Params
) -> Tensor:
    """The τ with the largest Σ log ∫ p(y | f/τ) N(f | μ, σ²) df + log N(log τ | 0, PRIOR²), [], by golden sections.

    The examples are some that were not learned from; with few of them, which may all be predicted well, the prior keeps
    τ from running away. For RobustMax τ stays 1: the largest function is the largest at any temperature.
    """

    def loss(log_tau: Tensor) -> Tensor:
        parts = [
            likelihood.log_predictive(*tempered((some, spread), log_tau.exp()), labels, draws, params)
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
