"""Data and streams of tasks. Every module of this package is imported, so that a new benchmark is one new file."""

import frcl.data.streams  # noqa: F401  # imported first, so that its benchmarks are listed first
from frcl.data.options import BenchmarkOptions
from frcl.data.own import own_tasks
from frcl.data.registry import BENCHMARKS, BenchmarkSpec, Request, open_benchmark
from frcl.data.tasks import Benchmark, Split, Task, TaskList
from frcl.registry import import_modules

__all__ = [
    "BENCHMARKS", "Benchmark", "BenchmarkOptions", "BenchmarkSpec", "Request", "Split", "Task", "TaskList",
    "open_benchmark", "own_tasks",
]  # fmt: skip

import_modules(__name__, __path__)
