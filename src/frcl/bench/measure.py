"""Measurements: their values, the limit each must meet, and how two functions are timed in turn."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

Timed = Callable[[], float]
"""Does its work once and returns the seconds per unit of work."""


class Pair(NamedTuple):
    """Two functions to compare, and a description of their sizes."""

    ours: Timed
    other: Timed
    how: str


@dataclass(frozen=True)
class Goal:
    """A measure and its limit.

    unit      "×" for a ratio, "s" for seconds
    at_least  the ratio is a speed-up, other/ours, of at least `bound`; otherwise it is ours/other, at most `bound`
    """

    name: str
    what: str
    bound: float
    at_least: bool = False
    unit: str = "×"

    def wanted(self) -> str:
        return f"{'≥' if self.at_least else '≤'} {self.bound:g} {self.unit}"


@dataclass(frozen=True)
class Measurement:
    """The values of one measure, one per repetition; the median is compared with the limit."""

    goal: Goal
    values: list[float]
    seconds: dict[str, list[float]] = field(default_factory=dict)  # the times that the values were computed from
    how: str = ""

    @property
    def quartiles(self) -> tuple[float, float, float]:
        """The lower quartile, the median, the upper quartile."""
        low, median, high = np.percentile(self.values, (25, 50, 75)).tolist()
        return low, median, high

    @property
    def median(self) -> float:
        return self.quartiles[1]

    @property
    def is_met(self) -> bool:
        return self.median >= self.goal.bound if self.goal.at_least else self.median <= self.goal.bound


def clocked(work: Callable[[], object], units: int = 1) -> float:
    """Seconds per unit of work."""
    begin = time.perf_counter()
    work()
    return (time.perf_counter() - begin) / units


def ratios(goal: Goal, ours: list[float], other: list[float], how: str) -> Measurement:
    """The ratio of each pair of neighbouring times."""
    values = [b / a if goal.at_least else a / b for a, b in zip(ours, other, strict=True)]
    return Measurement(goal, values, {"ours": ours, "other": other}, how)


def compare(goal: Goal, pair: Pair, repeats: int, advance: Callable[[], object]) -> Measurement:
    """Time ours, other, ours, other, ..., so that a busy machine disturbs both alike."""
    times = []
    for _ in range(repeats):
        times.append((pair.ours(), pair.other()))
        advance()
    ours, other = map(list, zip(*times, strict=True))
    return ratios(goal, ours, other, pair.how)
