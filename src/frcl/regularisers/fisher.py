"""Diagonal Fisher information, exact per example. Independent of the batch size in which it is computed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.func import grad, jacrev, vmap

from frcl.likelihoods import Likelihood
from frcl.regularisers.protocol import Task
from frcl.trees import Params

FisherMode = Literal["exact", "sampled", "empirical"]
Outputs = Callable[[Params, Tensor], Tensor]  # parameters, inputs [B, ...] → functions [B, C]


def diagonal_fisher(
    outputs: Outputs,
    params: Params,
    x: Tensor,
    y: Tensor,
    likelihood: Likelihood,
    mode: FisherMode = "exact",
    *,
    learned: Params | None = None,
    generator: torch.Generator | None = None,
    chunk: int | None = None,
) -> Params:
    """Mean over examples of E_y[(∂ log p(y | x)/∂θ)²], one number per parameter.

    exact      over all y, weighted by p(y | x): the Fisher information of the model
    sampled    one y per example, drawn from p(y | x) with `generator`: unbiased for it
    empirical  the target y: not the Fisher information, but what many call by its name

    `learned` are the parameters of the likelihood.
    """
    fixed, known = {name: value.detach() for name, value in params.items()}, learned or {}
    total = {name: torch.zeros_like(value) for name, value in fixed.items()}
    size = chunk or at_once(x)
    for rows, targets in zip(x.split(size), y.split(size), strict=True):
        if mode == "exact":
            part = _exact(outputs, fixed, rows, likelihood, known)
        else:
            if mode == "sampled":
                assert generator is not None
                with torch.no_grad():
                    targets = likelihood.sample(outputs(fixed, rows), known, generator)
            part = _at_targets(outputs, fixed, rows, targets, likelihood, known)
        for name, value in part.items():
            total[name] += value
    return {name: value / len(x) for name, value in total.items()}


def at_once(x: Tensor) -> int:
    """Examples whose gradients are held at once: on a CPU so few that they stay in the cache, several times faster."""
    return 32 if x.is_cuda else 8


def _exact(outputs: Outputs, params: Params, x: Tensor, likelihood: Likelihood, learned: Params) -> Params:
    """Σ_b Σ_r weight_br (∂ value_r(x_b)/∂θ)² with the likelihood's `fisher_terms`."""

    def values(p: Params, one: Tensor) -> Tensor:
        return likelihood.fisher_terms(outputs(p, one[None]), learned)[0][0]

    weight = likelihood.fisher_terms(outputs(params, x), learned)[1]
    jacobian = vmap(jacrev(values), in_dims=(None, 0))(params, x)  # [B, R, ...]
    return {name: torch.einsum("bc,bc...->...", weight, value.square()) for name, value in jacobian.items()}


def _at_targets(
    outputs: Outputs, params: Params, x: Tensor, y: Tensor, likelihood: Likelihood, learned: Params
) -> Params:
    def log_p(p: Params, one: Tensor, target: Tensor) -> Tensor:
        return likelihood.log_prob(outputs(p, one[None]), target[None], learned)[0]

    gradients = vmap(grad(log_p), in_dims=(None, 0, 0))(params, x, y)
    return {name: value.square().sum(0) for name, value in gradients.items()}


@dataclass(frozen=True)
class FisherRecipe:
    """How the Fisher information of a finished task is computed."""

    mode: FisherMode = "exact"
    examples: int = 2000

    def rows(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """The examples over which it is averaged."""
        return torch.randperm(len(x), generator=generator, device=generator.device)[: self.examples].to(x.device)

    def information(self, task: Task, x: Tensor, y: Tensor, generator: torch.Generator) -> tuple[Params, Tensor]:
        """N × the mean Fisher information of the shared weights and of the task's head, at their current values."""
        rows = self.rows(x, generator)
        assert task.head is not None
        own = {**{SHARED + name: value for name, value in task.theta.items()}, HEAD: task.head}

        def outputs(params: Params, inputs: Tensor) -> Tensor:
            theta = {name[len(SHARED) :]: value for name, value in params.items() if name != HEAD}
            return task.features({**task.fixed, **theta}, inputs) @ params[HEAD].mT

        fisher = diagonal_fisher(
            outputs, own, x[rows], y[rows], task.likelihood, self.mode,
            learned=task.likelihood_params, generator=generator,
        )  # fmt: skip
        head = task.N * fisher.pop(HEAD)
        return {name[len(SHARED) :]: task.N * value for name, value in fisher.items()}, head


SHARED, HEAD = "theta/", "head"  # names of the parameters that the Fisher information is computed for
