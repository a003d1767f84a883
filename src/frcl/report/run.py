"""What a finished run left behind, as plain immutable records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Metric:
    """A number over seeds; std and the 95 % interval (low, high) are None with one seed."""

    mean: float
    std: float | None
    low: float | None
    high: float | None
    per_seed: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class Calibration:
    """Bins of confidence, pooled over seeds: edges [B + 1]; count, confidence, accuracy [B], NaN where empty."""

    edges: Floats
    count: Floats
    confidence: Floats
    accuracy: Floats


@dataclass(frozen=True, eq=False)
class Steps:
    """The thinned step log of the first seed: `position` counts steps over all tasks; terms in nats per example."""

    every: int
    task: NDArray[np.int64]
    position: Floats
    terms: Mapping[str, Floats]


@dataclass(frozen=True)
class BoundaryScore:
    """How well the switches were found at one threshold; None where it is not defined."""

    threshold: float
    precision: float | None
    recall: float | None
    f1: float | None
    delay: float | None


@dataclass(frozen=True, eq=False)
class Boundaries:
    """The boundary statistic over steps (NaN where no test was made), and the switches, of the first seed.

    scores     means over seeds at each of several thresholds
    acted_on   precision, recall and f1 of the switches the learner acted on, over seeds
    """

    true: Floats
    found: Floats
    threshold: float | None
    statistic: Floats
    statistic_step: Floats
    scores: tuple[BoundaryScore, ...]
    acted_on: Mapping[str, Metric] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Run:
    """One run folder.

    score      what `accuracy` holds: "accuracy", or "r2" (share of variance explained) for regression
    accuracy   [S, T, T], axes (seed, after learning task, on task), NaN above the diagonal
    metrics    by name as in `result.json`; a name that is missing was not available
    memory     bytes kept for each task, [T]; None if not recorded
    kinds      bytes kept after the last task by kind: points, posterior, heads and so on; empty if not recorded
    points     inducing inputs [M, ...] of the learner's tasks by number, of the first seed
    """

    folder: Path
    benchmark: str
    method: str
    seeds: tuple[int, ...]
    tasks: tuple[str, ...]
    accuracy: Floats
    score: str = "accuracy"
    config: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    calibration: Calibration | None = None
    memory_total: int | None = None
    memory: tuple[int, ...] | None = None
    kinds: Mapping[str, int] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    peak_memory: int | None = None
    steps: Steps | None = None
    boundaries: Boundaries | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    command: str = ""
    started: str = ""
    points: Mapping[int, NDArray[Any]] = field(default_factory=dict)

    @property
    def score_word(self) -> str:
        return "R²" if self.score == "r2" else "accuracy"

    def learners_task(self, number: int) -> str:
        """The name of a task as the learner counts them: with hidden boundaries, those that it found."""
        if self.boundaries is not None:
            return f"found task {number + 1}"
        return self.tasks[number] if 0 <= number < len(self.tasks) else f"task {number + 1}"
