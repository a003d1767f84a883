"""Diagonal Fisher information, exact per example. Independent of the batch size in which it is computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor
from torch.func import grad, jacrev

from frcl.likelihoods import Likelihood
from frcl.regularisers.jacobians import per_example
from frcl.regularisers.protocol import Task
from frcl.selection import random_start
from frcl.trees import Params, detached

FisherMode = Literal["exact", "sampled", "empirical"]
HEAD = "head/"  # the name of a head among the weights; no weight of a network can have it
Outputs = Callable[[Params, Tensor], Tensor]  # parameters, inputs [B, ...] → functions [B, C]


def diagonal_fisher(
    outputs: Outputs, params: Params, x: Tensor, y: Tensor, likelihood: Likelihood, mode: FisherMode = "exact",
    *, learned: Params | None = None, generator: torch.Generator | None = None, chunk: int | None = None,
) -> Params:  # fmt: skip
    """Mean over examples of E_y[(∂ log p(y | x)/∂θ)²], one number per parameter.

    exact      over all y, weighted by p(y | x): the Fisher information of the model
    sampled    one y per example, drawn from p(y | x) with `generator`: unbiased for it
    empirical  the target y: not the Fisher information, but what many call by its name
    """
    fixed, known = detached(params), learned or {}  # `known` are the parameters of the likelihood

    def values(p: Params, one: Tensor) -> Tensor:
        return likelihood.fisher_terms(outputs(p, one[None]), known)[0][0]

    def log_p(p: Params, pair: tuple[Tensor, Tensor]) -> Tensor:
        one, target = pair
        return likelihood.log_prob(outputs(p, one[None]), target[None], known)[0]

    total = {name: torch.zeros_like(value) for name, value in fixed.items()}
    size = chunk or (32 if x.is_cuda else 8)  # few on a CPU: their gradients stay in the cache, several times faster
    for rows, targets in zip(x.split(size), y.split(size), strict=True):
        if mode == "exact":  # Σ_b Σ_r weight_br (∂ value_r(x_b)/∂θ)²
            weight = likelihood.fisher_terms(outputs(fixed, rows), known)[1]
            for name, value in per_example(jacrev(values), fixed, rows).items():  # [B, R, ...]
                total[name] += torch.einsum("bc,bc...->...", weight, value.square())
            continue
        if mode == "sampled":
            assert generator is not None
            with torch.no_grad():
                targets = likelihood.sample(outputs(fixed, rows), known, generator)
        for name, value in per_example(grad(log_p), fixed, (rows, targets)).items():
            total[name] += value.square().sum(0)
    return {name: value / len(x) for name, value in total.items()}


def task_information(
    task: Task, x: Tensor, y: Tensor, generator: torch.Generator, mode: FisherMode = "exact", examples: int = 2000,
    only: Sequence[str] | None = None,
) -> tuple[Params, Tensor]:  # fmt: skip
    """N × the mean Fisher information of the shared weights and of the head of a finished task, over some examples.

    `only` names the shared weights to consider; None: all that are trained.
    """
    rows = random_start(len(x), min(len(x), examples), generator).to(x.device)
    assert task.head is not None
    wanted = {name: value for name, value in task.theta.items() if only is None or name in only}
    fixed = {**task.fixed, **detached(task.theta)}

    def outputs(params: Params, inputs: Tensor) -> Tensor:
        theta = {name: value for name, value in params.items() if name != HEAD}
        return task.features({**fixed, **theta}, inputs) @ params[HEAD].mT

    fisher = diagonal_fisher(
        outputs, {**wanted, HEAD: task.head}, x[rows], y[rows], task.likelihood, mode,
        learned=task.likelihood_params, generator=generator,
    )  # fmt: skip
    head = task.N * fisher.pop(HEAD)
    return {name: task.N * value for name, value in fisher.items()}, head
