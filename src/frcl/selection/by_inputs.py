"""The criteria that look at features alone: the trace (equation 6), and none at all."""

from __future__ import annotations

import torch
from torch import Tensor

from frcl.selection.base import CRITERIA, Criterion, Recipe, Selected, random_start
from frcl.selection.trace import TraceSearch, run_searches, trace_at, trace_greedy, trace_search

CRITERIA.add("random", Criterion("random"))
CRITERIA.add("trace", Criterion("trace"))


def plan_by_inputs(
    Phi: Tensor, M: int, recipe: Recipe, u_noise: float, generator: torch.Generator, classes: Tensor | None = None
) -> Selected | TraceSearch:
    """M points by features alone, or the search for them; `classes` [N]: a balanced start. Phi: kernel features.

    A random choice has no objective of its own; its trace term stands in for it.
    """
    start = random_start(len(Phi), M, generator, classes)
    if recipe.criterion == "random":
        value = trace_at(Phi, start, u_noise)
        return Selected(start, value, value)
    if recipe.search == "greedy":
        return trace_greedy(Phi, M, u_noise)
    return trace_search(Phi, start, u_noise, recipe.steps, generator)


def select_by_inputs(
    Phi: Tensor, M: int, recipe: Recipe, u_noise: float, generator: torch.Generator, classes: Tensor | None = None
) -> Selected:
    """`plan_by_inputs`, and the search if there is one."""
    plan = plan_by_inputs(Phi, M, recipe, u_noise, generator, classes)
    return plan if isinstance(plan, Selected) else run_searches([plan])[0]
