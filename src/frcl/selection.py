"""Choosing the inducing inputs of a task among its data (Section 2.4, Appendix D).

Every criterion is minimised. A search *returns* its points, with the objective before and after.
The trace criterion is in `trace.py`; here are where searches start, the supervised criteria, and the choice among all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from frcl.errors import DataError
from frcl.likelihoods import Likelihood, log_predictive
from frcl.posterior import Moments, Posterior
from frcl.summary import belief_from_weights, head_moments, make_head, prior_kl, prior_kl_terms
from frcl.trace import Selected, TraceSearch, run_searches, trace_at, trace_greedy, trace_search, trace_swaps

Criterion = Literal["random", "trace", "predictive", "error", "elbo"]
Search = Literal["swap", "greedy"]
Start = Literal["uniform", "balanced"]

__all__ = [
    "Criterion",
    "Recipe",
    "Search",
    "Selected",
    "Start",
    "TaskData",
    "TraceSearch",
    "classification_error",
    "negative_elbo",
    "negative_log_predictive",
    "plan_by_inputs",
    "random_start",
    "run_searches",
    "select_by_inputs",
    "select_by_targets",
    "swap_search",
    "trace_greedy",
    "trace_swaps",
]


# -- where a search starts -----------------------------------------------------------------------------


def random_start(N: int, M: int, generator: torch.Generator, classes: Tensor | None = None) -> Tensor:
    """M different indices below N: uniform, or spread evenly over the classes [N] if given."""
    if M > N:
        raise DataError(f"cannot choose {M} inducing points from {N} examples")
    order = torch.randperm(N, generator=generator, device=generator.device).cpu()
    if classes is None:
        return order[:M]
    return _balanced(order, classes.cpu())[:M]


def _balanced(order: Tensor, classes: Tensor) -> Tensor:
    """`order` rearranged so that every class appears once before any appears twice, and so on."""
    labels = classes[order]
    rank = torch.empty_like(order)
    for label in labels.unique():
        where = (labels == label).nonzero()[:, 0]
        rank[where] = torch.arange(len(where))
    return order[torch.argsort(rank, stable=True)]


# -- the supervised criteria (Appendix D) ---------------------------------------------------------------


@dataclass(frozen=True)
class TaskData:
    """What a supervised criterion looks at: features, targets and the posterior of the task just learned.

    Phi [N, K] is not times σ_w here. `noise_mc` is the Monte Carlo noise of the likelihood, the same for every
    candidate set, so that two sets are compared on equal terms.
    """

    Phi: Tensor
    y: Tensor
    q: Posterior
    likelihood: Likelihood
    params: Mapping[str, Tensor]
    prior_std: float
    noise: float
    noise_mc: Tensor
    size: float  # N of the task, of which these may be a part

    def moments(self, index: Tensor) -> Moments:
        """f at all N inputs, predicted from q(u) at the points in `index`."""
        belief = belief_from_weights(self.q, self.Phi[index], self.noise)
        head = make_head(self.prior_std * self.Phi[index], belief)
        moments = head_moments(head, belief, self.prior_std * self.Phi)
        return Moments(*(value.to(self.Phi) for value in moments))

    def others(self, index: Tensor) -> Tensor:
        """True at the examples that are not inducing points; everywhere if all of them are."""
        rest = torch.ones(len(self.Phi), dtype=torch.bool, device=self.Phi.device)
        if len(index) < len(rest):
            rest[index] = False
        return rest


def negative_log_predictive(task: TaskData, index: Tensor) -> float:
    """−mean of log p(y | Z) over the examples outside Z."""
    log_p = log_predictive(task.likelihood, *task.moments(index), task.y, task.noise_mc, task.params)
    return -float(log_p[task.others(index)].mean())


def classification_error(task: TaskData, index: Tensor) -> float:
    """Share of the examples outside Z whose most probable class, seen through Z, is wrong."""
    probabilities = task.likelihood.probabilities(*task.moments(index), task.noise_mc)
    wrong = probabilities.argmax(1) != task.y
    return float(wrong[task.others(index)].double().mean())


def negative_elbo(task: TaskData, index: Tensor) -> float:
    """−Σ_j E[log p(y_j | f_j)] + Σ_c KL(q(u_c | Z) ‖ p(u_c | Z)), the sum over all N examples of the task.

    Where only n of them are at hand their sum stands for it, times N/n.
    """
    belief = belief_from_weights(task.q, task.Phi[index], task.noise)
    Phi_z = (task.prior_std * task.Phi[index])[None]
    kl = float(prior_kl(Phi_z, prior_kl_terms(belief)))
    expected = task.likelihood.expected_log_prob(*task.moments(index), task.y, task.noise_mc, task.params)
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


@dataclass(frozen=True)
class Recipe:
    """How points are chosen: criterion, search, number of proposals, examples a supervised criterion sees."""

    criterion: Criterion = "trace"
    search: Search = "swap"
    steps: int = 1000
    examples: int = 10_000

    @property
    def is_supervised(self) -> bool:
        return self.criterion in ("predictive", "error", "elbo")


def plan_by_inputs(
    Phi: Tensor, M: int, recipe: Recipe, noise: float, generator: torch.Generator, classes: Tensor | None = None
) -> Selected | TraceSearch:
    """M points by a criterion that looks at features alone, or the search for them; `classes` [N]: a balanced start.

    A random choice has no objective of its own; the trace term it happens to have stands in for it.
    """
    start = random_start(len(Phi), M, generator, classes)
    if recipe.criterion == "random":
        value = trace_at(Phi, start, noise)
        return Selected(start, value, value)
    if recipe.search == "greedy":
        return trace_greedy(Phi, M, noise)
    return trace_search(Phi, start, noise, recipe.steps, generator)


def select_by_inputs(
    Phi: Tensor, M: int, recipe: Recipe, noise: float, generator: torch.Generator, classes: Tensor | None = None
) -> Selected:
    """`plan_by_inputs`, and the search if there is one."""
    plan = plan_by_inputs(Phi, M, recipe, noise, generator, classes)
    return plan if isinstance(plan, Selected) else run_searches([plan])[0]


def select_by_targets(
    task: TaskData, M: int, recipe: Recipe, generator: torch.Generator, classes: Tensor | None = None
) -> Selected:
    """M points by a supervised criterion, judged on at most `recipe.examples` of the task's examples."""
    N, examples = len(task.Phi), recipe.examples
    rows = torch.arange(N)
    if max(examples, 2 * M) < N:
        rows = random_start(N, max(examples, 2 * M), generator, classes)
        task = replace(task, Phi=task.Phi[rows.to(task.Phi.device)], y=task.y[rows.to(task.y.device)])
    start = random_start(len(rows), M, generator, None if classes is None else classes.cpu()[rows])
    measure = {"predictive": negative_log_predictive, "error": classification_error, "elbo": negative_elbo}
    found = swap_search(lambda index: measure[recipe.criterion](task, index), len(rows), start, recipe.steps, generator)
    return replace(found, index=rows[found.index])
