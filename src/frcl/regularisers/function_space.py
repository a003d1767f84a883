"""The function-space KL of S-FSVI (Rudner, Bickford Smith, Feng, Teh and Gal, 2022).

With q(w) = Π_p N(w_p; μ_p, s_p) the functions of a network, linearised at μ, are Gaussian at any inputs:

    f(x) ~ N( f(x; μ), J(x) diag(s) J(x)ᵀ ),    J(x) = ∂f(x; μ)/∂μ

Of this covariance only the diagonal is used, over outputs and over inputs, as in the authors' experiments. The KL
between two such distributions at some context points is then a sum over points and outputs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from frcl.features import FeatureMap
from frcl.regularisers.fisher import HEAD
from frcl.regularisers.jacobians import Split, jacobian, split_of, squares_times
from frcl.regularisers.mean_field import MeanField
from frcl.trees import Params


class Functions(NamedTuple):
    """Independent Gaussian functions: mean and variance, [..., n, C]."""

    mean: Tensor
    variance: Tensor


def function_kl(q: Functions, p: Functions) -> Tensor:
    """KL(q ‖ p) of each function at each input: ½ (v_q/v_p − 1 − log v_q/v_p + (m_q − m_p)²/v_p)."""
    ratio = q.variance / p.variance
    return 0.5 * (ratio - 1 - ratio.log() + (q.mean - p.mean).square() / p.variance)


class Linearised:
    """The functions of a network with the weights q, linearised at their mean; `fixed` weights are not random.

    How the weights are used is found once, from an input.
    """

    def __init__(self, features: FeatureMap, weights: Params, fixed: Params, x: Tensor) -> None:
        self.features, self.names = replace(features, bfloat16=False), tuple(weights)
        theta, heads = {**fixed, **weights}, self.features({**fixed, **weights}, x[:1])[:, None]
        self.split: Split = split_of(lambda some, at: self._values(theta, some, at), weights, (x[:1], heads.detach()))

    def _values(self, theta: Params, weights: Params, at: tuple[Tensor, Tensor]) -> Tensor:
        """f [B, C] at inputs [B, ...] with a head [B, C, K] each."""
        x, heads = at
        return (self.features({**theta, **weights}, x)[:, None] * heads).sum(-1)

    def __call__(self, q: MeanField, fixed: Params, x: Tensor, rows: Tensor) -> Functions:
        """At inputs [T, n, ...] of T tasks, which have these rows [T, C] of the head in q; [T, n, C].

        The head is the last, linear layer: its own part of the variance is Σ_k φ_k² s_k.
        """
        mean, log_std, shape = q.mean[HEAD], q.log_std[HEAD], x.shape[:2]
        heads = mean[rows][:, None].expand(-1, shape[1], -1, -1).flatten(0, 1)  # [B, C, K]
        flat, weights = x.flatten(0, 1), {name: q.mean[name] for name in self.names}
        J = jacobian(lambda some, at: self._values(fixed, some, at), weights, (flat, heads), self.split)
        shared = squares_times(J, {name: (2 * q.log_std[name]).exp() for name in self.names})
        Phi = self.features({**fixed, **weights}, flat)
        own = (2 * log_std).exp()[rows]  # [T, C, K]
        of_head = Phi.square().unflatten(0, shape) @ own.mT
        return Functions(J.values.unflatten(0, shape), shared.unflatten(0, shape) + of_head)


def mean_kl(q: Functions, p: Functions, there: Tensor) -> Tensor:
    """The mean over inputs of T tasks of the KL of their functions; `there` [T, C] is one where a task has one."""
    each = torch.where(there[:, None] > 0, function_kl(q, p), 0.0)
    return each.sum() / (each.shape[0] * each.shape[1])
