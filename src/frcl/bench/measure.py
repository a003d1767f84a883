"""What a measurement is: values, what is wanted of them, and two things timed in turn."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

Timed = Callable[[], float]
"""Does its work once, and returns how many seconds one unit of it took."""


class Pair(NamedTuple):
    """Two things to compare, and in words what their sizes are."""

    ours: Timed
    other: Timed
    how: str


@dataclass(frozen=True)
class Goal:
    """What is measured and what is wanted of it.

    unit      "×" for a ratio, "s" for seconds
    at_least  a ratio is a speed-up, other/ours, wanted to be at least `bound`; else it is ours/other, at most `bound`
    """

    name: str
    what: str
    bound: float
    at_least: bool = False
    unit: str = "×"

    def ratio(self, ours: float, other: float) -> float:
        return other / ours if self.at_least else ours / other

    def wanted(self) -> str:
        return f"{'≥' if self.at_least else '≤'} {self.bound:g} {self.unit}"


@dataclass(frozen=True)
class Measurement:
    """The values found, one a repetition; their median is what counts."""

    goal: Goal
    values: list[float]
    seconds: dict[str, list[float]] = field(default_factory=dict)  # what the values were made of
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
    """Seconds that one of `units` units of the work took."""
    begin = time.perf_counter()
    work()
    return (time.perf_counter() - begin) / units


def compare(goal: Goal, pair: Pair, repeats: int, told: Callable[[], None]) -> Measurement:
    """Ours, other, ours, other, ...: a busy machine disturbs both alike. The ratio is that of neighbours in time."""
    ours, other = [], []
    for _ in range(repeats):
        ours.append(pair.ours())
        other.append(pair.other())
        told()
    ratios = [goal.ratio(*both) for both in zip(ours, other, strict=True)]
    return Measurement(goal, ratios, {"ours": ours, "other": other}, pair.how)
