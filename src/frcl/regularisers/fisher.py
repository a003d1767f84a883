"""Diagonal Fisher information, exact per example. Independent of the batch size it is worked out in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor
from torch.func import grad, jacrev, vmap

FisherMode = Literal["exact", "sampled", "empirical"]
Params = dict[str, Tensor]
Logits = Callable[[Params, Tensor], Tensor]  # parameters, inputs [B, ...] → logits [B, C]


def diagonal_fisher(
    logits: Logits,
    params: Params,
    x: Tensor,
    y: Tensor,
    mode: FisherMode = "exact",
    *,
    generator: torch.Generator | None = None,
    chunk: int | None = None,
) -> Params:
    """Mean over examples of E_c[(∂ log p(c | x)/∂θ)²], one number a parameter.

    exact      c over all classes, weighted by p(c | x): the Fisher information of the model
    sampled    one class an example, drawn from p(c | x) with `generator`: unbiased for it
    empirical  the label y: not the Fisher information, but what many call by its name
    """
    fixed = {name: value.detach() for name, value in params.items()}
    total = {name: torch.zeros_like(value) for name, value in fixed.items()}
    size = chunk or at_once(x)
    for rows, labels in zip(x.split(size), y.split(size), strict=True):
        if mode == "exact":
            part = _exact(logits, fixed, rows)
        else:
            if mode == "sampled":
                with torch.no_grad():
                    labels = torch.multinomial(logits(fixed, rows).softmax(1), 1, generator=generator)[:, 0]
            part = _at_labels(logits, fixed, rows, labels)
        for name, value in part.items():
            total[name] += value
    return {name: value / len(x) for name, value in total.items()}


def gaussian_fisher(outputs: Logits, params: Params, x: Tensor, precision: Tensor) -> Params:
    """Mean over examples of Σ_c (∂f_c/∂θ)²/s_c², the Fisher information of p(y | x) = Π_c N(f_c, s_c²), exact.

    `outputs` are the functions f [B, C], `precision` [C] is 1/s².
    """
    fixed = {name: value.detach() for name, value in params.items()}
    total = {name: torch.zeros_like(value) for name, value in fixed.items()}
    for rows in x.split(at_once(x)):
        part = _squares(lambda p, one: outputs(p, one[None])[0], fixed, rows, precision.expand(len(rows), -1))
        for name, value in part.items():
            total[name] += value
    return {name: value / len(x) for name, value in total.items()}


def at_once(x: Tensor) -> int:
    """Examples whose slopes are there at once: on a CPU so few that they stay near, several times faster."""
    return 32 if x.is_cuda else 8


def _log_probs(logits: Logits, params: Params, one: Tensor) -> Tensor:
    return logits(params, one[None])[0].log_softmax(0)


def _exact(logits: Logits, params: Params, x: Tensor) -> Params:
    return _squares(lambda p, one: _log_probs(logits, p, one), params, x, logits(params, x).softmax(1))


def _squares(values: Logits, params: Params, x: Tensor, weight: Tensor) -> Params:
    """Σ_b Σ_c weight_bc (∂ values_c(x_b)/∂θ)²; `values` gives [C] of one input, weight is [B, C]."""
    jacobian = vmap(jacrev(values), in_dims=(None, 0))(params, x)  # [B, C, ...]
    return {name: torch.einsum("bc,bc...->...", weight, value.square()) for name, value in jacobian.items()}


def _at_labels(logits: Logits, params: Params, x: Tensor, y: Tensor) -> Params:
    def chosen(p: Params, one: Tensor, label: Tensor) -> Tensor:
        return _log_probs(logits, p, one).gather(0, label[None])[0]

    gradients = vmap(grad(chosen), in_dims=(None, 0, 0))(params, x, y)
    return {name: value.square().sum(0) for name, value in gradients.items()}
