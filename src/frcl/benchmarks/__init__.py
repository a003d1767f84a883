"""Data and streams of tasks to learn from."""

from frcl.benchmarks.open import BENCHMARKS, open_benchmark
from frcl.benchmarks.options import BenchmarkOptions
from frcl.benchmarks.own import own_tasks
from frcl.benchmarks.tasks import Benchmark, Split, Task

__all__ = ["BENCHMARKS", "Benchmark", "BenchmarkOptions", "Split", "Task", "open_benchmark", "own_tasks"]
