"""Choosing inducing points. Every module of this package is imported, so that a new criterion is one new file."""

from frcl.registry import import_modules
from frcl.selection.base import CRITERIA, Criterion, Recipe, Search, Selected, Start, TaskData, criterion
from frcl.selection.supervised import select_by_targets
from frcl.selection.trace import TraceSearch, plan_by_inputs, random_start, run_searches

__all__ = [
    "CRITERIA", "Criterion", "Recipe", "Search", "Selected", "Start", "TaskData", "TraceSearch", "criterion",
    "plan_by_inputs", "random_start", "run_searches", "select_by_targets",
]  # fmt: skip

import_modules(__name__, __path__)
