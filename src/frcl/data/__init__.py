"""Data and streams of tasks to learn from."""

from frcl.data import streams, omniglot  # noqa: F401  (they register their benchmarks)  # isort: skip
from frcl.data.options import BenchmarkOptions
from frcl.data.own import own_tasks
from frcl.data.registry import BENCHMARKS, BenchmarkSpec, Request, open_benchmark
from frcl.data.tasks import Benchmark, Split, Task, TaskList

__all__ = [
    "BENCHMARKS", "Benchmark", "BenchmarkOptions", "BenchmarkSpec", "Request", "Split", "Task", "TaskList",
    "open_benchmark", "own_tasks",
]  # fmt: skip
