"""The supervised criteria of Appendix D, and the swap search that minimises them."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from frcl.selection.base import CRITERIA, Recipe, Selected, TaskData, criterion
from frcl.selection.trace import random_start
from frcl.summary import belief_from_weights, prior_kl, prior_kl_terms


@criterion("predictive")
def negative_log_predictive(task: TaskData, index: Tensor) -> float:
    """−mean of log p(y | Z) over the examples outside Z."""
    log_p = task.likelihood.log_predictive(*task.moments(index), task.y, task.draws, task.params)
    return -float(log_p[task.others(index)].mean())


@criterion("error", needs_classes=True)
def classification_error(task: TaskData, index: Tensor) -> float:
    """Share of the examples outside Z whose most probable class, predicted through Z, is wrong."""
    probs = task.likelihood.predictive(*task.moments(index), task.draws, task.params).probs
    assert probs is not None
    wrong = probs.argmax(1) != task.y
    return float(wrong[task.others(index)].double().mean())


@criterion("elbo")
def negative_elbo(task: TaskData, index: Tensor) -> float:
    """Σ_c KL(q(u_c | Z) ‖ p(u_c | Z)) − (N/n) Σ_j E[log p(y_j | f_j)], of n examples at hand; the task has N."""
    belief = belief_from_weights(task.q, task.Phi[index], task.u_noise, task.prior_std)
    kl = float(prior_kl(task.Phi[index][None], prior_kl_terms([belief])))
    expected = task.likelihood.expected_log_prob(*task.moments(index), task.y, task.draws, task.params)
    return kl - task.size * float(expected.double().mean())


def swap_search(
    objective: Callable[[Tensor], float], N: int, start: Tensor, steps: int, generator: torch.Generator
) -> Selected:
    """Local swaps for any objective of an index [M]: a proposal is kept when it is lower."""
    index = start.clone()
    before = value = objective(index)
    slots = torch.randint(len(start), (steps,), generator=generator, device=generator.device).tolist()
    proposals = torch.randint(N, (steps,), generator=generator, device=generator.device).tolist()
    for slot, candidate in zip(slots, proposals, strict=True):
        if bool((index == candidate).any()):
            continue
        changed = index.clone()
        changed[slot] = candidate
        proposed = objective(changed)
        if proposed < value:
            index, value = changed, proposed
    return Selected(index, before, value)


def select_by_targets(
    task: TaskData, M: int, recipe: Recipe, generator: torch.Generator, classes: Tensor | None = None
) -> Selected:
    """M points by a supervised criterion, judged on at most `recipe.examples` of the task's examples."""
    objective = CRITERIA[recipe.criterion].objective
    assert objective is not None
    N, examples = len(task.Phi), max(recipe.examples, 2 * M)
    rows = torch.arange(N)
    if examples < N:
        rows = random_start(N, examples, generator, classes)
        task = replace(task, Phi=task.Phi[rows.to(task.Phi.device)], y=task.y[rows.to(task.y.device)])
    start = random_start(len(rows), M, generator, None if classes is None else classes.cpu()[rows])
    found = swap_search(lambda index: objective(task, index), len(rows), start, recipe.steps, generator)
    return replace(found, index=rows[found.index])
