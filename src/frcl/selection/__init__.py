"""Choosing inducing points. Every module of this package is imported, so that a new criterion is one new file."""

import pkgutil
from importlib import import_module

from frcl.selection.base import (
    CRITERIA,
    Criterion,
    Recipe,
    Search,
    Selected,
    Start,
    TaskData,
    criterion,
)
from frcl.selection.supervised import (
    classification_error,
    negative_elbo,
    negative_log_predictive,
    select_by_targets,
    swap_search,
)
from frcl.selection.trace import (
    TraceSearch,
    plan_by_inputs,
    random_start,
    run_searches,
    select_by_inputs,
    trace_greedy,
    trace_swaps,
)

__all__ = [
    "CRITERIA", "Criterion", "Recipe", "Search", "Selected", "Start", "TaskData", "TraceSearch", "classification_error",
    "criterion", "negative_elbo", "negative_log_predictive", "plan_by_inputs", "random_start", "run_searches",
    "select_by_inputs", "select_by_targets", "swap_search", "trace_greedy", "trace_swaps",
]  # fmt: skip

for _module in pkgutil.iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
