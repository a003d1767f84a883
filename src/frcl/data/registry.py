"""The benchmarks by name, and what describes one of them.

To add a benchmark, write a module of this package that calls `BENCHMARKS.add(name, BenchmarkSpec(...))`; every module
of the package is imported by `frcl.data.open`. In another package, name the `BenchmarkSpec` as an entry point of the
group `frcl.benchmarks`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from frcl.data.download import Progress
from frcl.data.options import BenchmarkOptions
from frcl.data.tasks import Benchmark
from frcl.registry import Registry

Source = Callable[[int], Benchmark]
"""A benchmark as a function of the seed."""


@dataclass(frozen=True)
class Request:
    """The arguments that a benchmark is built from, except for the seed."""

    options: BenchmarkOptions
    data: Path | None = None  # the folder to look for files in first
    device: torch.device | str = "cpu"
    on_progress: Progress | None = None  # called during downloads


@dataclass(frozen=True)
class BenchmarkSpec:
    """One benchmark. `build` is called once per run; whatever the seeds share is loaded there."""

    description: str
    build: Callable[[Request], Source]
    options: tuple[str, ...] = ()  # the fields of BenchmarkOptions that it uses besides `tasks` and `train_on`
    dataset: str | None = None  # the data set whose files it needs; see `frcl data`
    defaults: Mapping[str, Any] = field(default_factory=dict)  # as a section of experiment/defaults.toml


BENCHMARKS: Registry[BenchmarkSpec] = Registry("benchmark")
