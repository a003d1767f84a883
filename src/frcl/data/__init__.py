"""Data and streams of tasks to learn from."""

from frcl.data.open import BENCHMARKS, open_benchmark
from frcl.data.options import BenchmarkOptions
from frcl.data.own import own_tasks
from frcl.data.tasks import Benchmark, Split, Task

__all__ = ["BENCHMARKS", "Benchmark", "BenchmarkOptions", "Split", "Task", "open_benchmark", "own_tasks"]
