"""Gauss–Hermite quadrature: expectations under a normal distribution as weighted sums."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

SMALL = 1e-12  # added to a variance under a square root, so that its gradient stays finite at zero


@lru_cache(maxsize=32)
def gauss_hermite(nodes: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Nodes t and weights w with E[g(f)] ≈ Σ w g(μ + σ t) for f ~ N(μ, σ²)."""
    points, weights = np.polynomial.hermite_e.hermegauss(nodes)
    weights = weights / math.sqrt(2 * math.pi)
    with torch.inference_mode(False):  # they are cached, and may be needed in training later
        return (
            torch.as_tensor(points, dtype=dtype, device=device),
            torch.as_tensor(weights, dtype=dtype, device=device),
        )


def gaussian_expectation_nodes(mean: Tensor, variance: Tensor, nodes: int) -> tuple[Tensor, Tensor]:
    """Values of f at the quadrature nodes, [..., Q], and the weights [Q]."""
    points, weights = gauss_hermite(nodes, mean.dtype, mean.device)
    std = (variance + SMALL).sqrt()
    return mean[..., None] + std[..., None] * points, weights
