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
    chunk: int = 32,
) -> Params:
    """Mean over examples of E_c[(∂ log p(c | x)/∂θ)²], one number a parameter.

    exact      c over all classes, weighted by p(c | x): the Fisher information of the model
    sampled    one class an example, drawn from p(c | x) with `generator`: unbiased for it
    empirical  the label y: not the Fisher information, but what many call by its name
    """
    fixed = {name: value.detach() for name, value in params.items()}
    total = {name: torch.zeros_like(value) for name, value in fixed.items()}
    for rows, labels in zip(x.split(chunk), y.split(chunk), strict=True):
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


def _log_probs(logits: Logits, params: Params, one: Tensor) -> Tensor:
    return logits(params, one[None])[0].log_softmax(0)


def _exact(logits: Logits, params: Params, x: Tensor) -> Params:
    jacobian = vmap(jacrev(lambda p, one: _log_probs(logits, p, one)), in_dims=(None, 0))(params, x)  # [B, C, ...]
    weight = logits(params, x).softmax(1)  # [B, C]
    return {name: torch.einsum("bc,bc...->...", weight, value.square()) for name, value in jacobian.items()}


def _at_labels(logits: Logits, params: Params, x: Tensor, y: Tensor) -> Params:
    def chosen(p: Params, one: Tensor, label: Tensor) -> Tensor:
        return _log_probs(logits, p, one).gather(0, label[None])[0]

    gradients = vmap(grad(chosen), in_dims=(None, 0, 0))(params, x, y)
    return {name: value.square().sum(0) for name, value in gradients.items()}
