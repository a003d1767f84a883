"""Our numbers: means over seeds, and whether they agree with those of the paper."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from paper.cells import Cell
from paper.library import over_seeds

NUMBER = re.compile(r"\d+(?:\.(\d+))?")


@dataclass(frozen=True)
class Printed:
    """A printed value as numbers."""

    mean: float
    std: float | None
    half: float  # half a unit of the last digit, the largest rounding error


def printed(text: str) -> Printed:
    """ "61.7 ± 1.8" or "82" as numbers."""
    mean, _, std = text.partition(" ± ")
    found = NUMBER.fullmatch(mean)
    if found is None or (std and NUMBER.fullmatch(std) is None):
        raise ValueError(f"{text!r} is neither a mean nor a mean ± a standard deviation")
    return Printed(float(mean), float(std) if std else None, 0.5 * 10.0 ** -len(found[1] or ""))


@dataclass(frozen=True)
class Ours:
    """Mean and standard deviation over seeds; None for the latter with one seed."""

    mean: float
    std: float | None

    def times(self, scale: float) -> Ours:
        return Ours(scale * self.mean, None if self.std is None else scale * self.std)

    def show(self, digits: int = 2) -> str:
        spread = "" if self.std is None else f" ± {self.std:.{digits}f}"
        return f"{self.mean:.{digits}f}{spread}"


def ours(seeds: Sequence[dict[str, Any]], metric: str) -> Ours | None:
    """A metric over the seeds of a result file; None unless all of them have it."""
    summary: Any = over_seeds([seed[metric] for seed in seeds])
    return None if summary is None else Ours(summary["mean"], summary["std"])


def percent(seeds: Sequence[dict[str, Any]], metric: str = "average_accuracy") -> Ours | None:
    found = ours(seeds, metric)
    return None if found is None else found.times(100)


@dataclass(frozen=True)
class Paired:
    """Mean difference of two cells over their common seeds, in percentage points, and its standard error."""

    mean: float
    error: float | None
    seeds: int

    def show(self) -> str:
        spread = "" if self.error is None else f" ± {self.error:.2f}"
        return f"{self.mean:+.2f}{spread} ({self.seeds} {'seed' if self.seeds == 1 else 'seeds'})"


def paired(one: Sequence[dict[str, Any]], other: Sequence[dict[str, Any]]) -> Paired | None:
    """Average accuracy of `one` minus that of `other`; None without a common seed."""
    base = {seed["seed"]: seed["average_accuracy"] for seed in other}
    summary: Any = over_seeds([100 * (s["average_accuracy"] - base[s["seed"]]) for s in one if s["seed"] in base])
    if summary is None:
        return None
    count = len(summary["per_seed"])
    return Paired(summary["mean"], None if summary["std"] is None else summary["std"] / math.sqrt(count), count)


def agreement(cell: Cell, found: Ours | None) -> str:
    """ "yes", or the difference in percentage points; empty if one of the two is missing."""
    return "" if cell.paper is None or found is None else is_near(found, printed(cell.paper.value))


def attains(found: Ours, goal: float) -> str:
    """Our mean, rounded to the two digits shown, is at least the goal."""
    short = goal - round(found.mean, 2)
    return "yes" if short <= 1e-9 else f"no: {short:.2f} below"


def is_near(found: Ours, wanted: Printed) -> str:
    """Our mean is within two standard deviations: the paper's, else ours; without either, within rounding."""
    std = found.std if wanted.std is None else wanted.std
    room = wanted.half if std is None else max(2 * std, wanted.half)
    gap = found.mean - wanted.mean
    return "yes" if abs(gap) <= room + 1e-9 else f"differs: {gap:+.2f}"


def boundary_scores(seeds: Sequence[dict[str, Any]], threshold: float) -> dict[str, Ours] | None:
    """Precision, recall and F1 at a threshold, over seeds; None if not all seeds have them."""
    rows = [row for seed in seeds for row in seed["boundaries"] if row["threshold"] == threshold]
    if not rows or len(rows) != len(seeds):
        return None
    found = {name: ours(rows, name) for name in ("precision", "recall", "f1")}
    return {name: value for name, value in found.items() if value is not None}


def agrees_f1(found: dict[str, Ours], text: str, seeds: int) -> str:
    """Whether our F1 is within two standard errors of its mean of the paper's, which has no standard deviation."""
    f1 = found["f1"]
    mean = Ours(f1.mean, None if f1.std is None else f1.std / math.sqrt(seeds))
    return is_near(mean, printed(text.split("/")[2]))
