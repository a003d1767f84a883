"""Data and streams of tasks. Every module of this package is imported, so that a new benchmark is one new file."""

import pkgutil
from importlib import import_module

from frcl.data.options import BenchmarkOptions
from frcl.data.own import own_tasks
from frcl.data.registry import BENCHMARKS, BenchmarkSpec, Request, open_benchmark
from frcl.data.tasks import Benchmark, Split, Task, TaskList

__all__ = [
    "BENCHMARKS", "Benchmark", "BenchmarkOptions", "BenchmarkSpec", "Request", "Split", "Task", "TaskList",
    "open_benchmark", "own_tasks",
]  # fmt: skip

for _name in ("streams", *(module.name for module in pkgutil.iter_modules(__path__))):  # benchmarks in this order
    import_module(f"{__name__}.{_name}")
