"""Measurements: the limit that each must meet, functions timed in turn, and results as JSON and as tables."""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from rich import box
from rich.table import Column, Table

from frcl.codec import Damaged, from_json, to_json
from frcl.errors import OptionError
from frcl.experiment import environment
from frcl.files import VERSION, read_document, write_atomically

FORMAT = "frcl-bench"

Timed = Callable[[], float]  # does its work once and returns the seconds per unit of work


@dataclass(frozen=True)
class Goal:
    """Seconds or a ratio ours/other, of at most `bound`; with `at_least` the speed-up other/ours, of at least that."""

    name: str
    what: str
    bound: float
    at_least: bool = False
    unit: str = "×"

    def measured(self, seconds: dict[str, list[float]], how: str) -> "Measurement":
        """The measurement from the times of our side, and for a ratio those of the other, in pairs of neighbours."""
        values = seconds["ours"]
        if "other" in seconds:
            pairs = zip(values, seconds["other"], strict=True)
            values = [other / ours if self.at_least else ours / other for ours, other in pairs]
        return Measurement(self, values, seconds, how)


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
        return tuple(np.percentile(self.values, (25, 50, 75)).tolist())

    @property
    def median(self) -> float:
        return self.quartiles[1]

    @property
    def is_met(self) -> bool:
        return self.median >= self.goal.bound if self.goal.at_least else self.median <= self.goal.bound


def clocked(work: Callable[[], object], units: int = 1, clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds per unit of work."""
    begin = clock()
    work()
    return (clock() - begin) / units


def in_turn(sides: dict[str, Timed], repeats: int, advance: Callable[[], object]) -> dict[str, list[float]]:
    """The times of each side, taken A, B, A, B, ..., so that a busy machine disturbs all alike."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(repeats):
        for name, side in sides.items():
            times[name].append(side())
        advance()
    return times


@dataclass(frozen=True)
class Results:
    """All measurements, and the environment they were made in: the content of the JSON file of `frcl bench`."""

    device: str
    threads: int
    environment: dict[str, str]
    measurements: list[Measurement]
    written: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))

    def describe(self) -> str:
        """The environment in one line."""
        where = self.environment
        commit = f" ({where['commit']})" if where["commit"] else ""
        return f"frcl {where['frcl']}{commit}, torch {where['torch']}, {where['device']}, threads: {where['threads']}"


def results_of(measurements: list[Measurement], device: str, threads: int) -> Results:
    """The measurements made just now on this machine."""
    return Results(device, threads, environment.describe(device) | {"threads": str(threads)}, measurements)


def write_results(path: Path, results: Results) -> None:
    content = {"format": FORMAT, "version": VERSION, **to_json(results)}
    write_atomically(path, (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode())


def read_results(path: Path) -> Results:
    """A file that `frcl bench` wrote; any other file is refused."""
    try:
        return from_json(Results, read_document(path, json.loads, OptionError, FORMAT))
    except Damaged as error:
        raise OptionError(f"{path} is a damaged result of `frcl bench`: {error}") from error


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """A table whose first column and those without a heading are aligned left, the others right."""
    columns = [Column(heading, justify="right" if heading else "left") for heading in headings]
    made = Table(*columns, box=box.SIMPLE_HEAD)
    for row in rows:
        made.add_row(*row)
    return made


def results_table(measurements: Sequence[Measurement]) -> Table:
    """Median, quartiles, limit and verdict; our time, and beside it the other time or the accuracy."""
    rows = []
    for one in measurements:
        goal, (low, median, high) = one.goal, one.quartiles
        spread = "" if len(one.values) == 1 else f"{number(low)}–{number(high)}"
        wanted = f"{'≥' if goal.at_least else '≤'} {goal.bound:g} {goal.unit}"
        verdict = "[green]met[/]" if one.is_met else "[red]missed[/]"
        times = {side: duration(float(np.median(values))) for side, values in one.seconds.items()}
        beside = times.get("other", one.how)
        rows.append((goal.name, f"{number(median)} {goal.unit}", spread, wanted, verdict, times["ours"], beside))
    return _table(("", "median", "quartiles", "wanted", "", "ours", "beside"), rows)


def change_table(before: Results, after: Results) -> Table:
    """Medians of two results side by side; the change where both have measured it."""
    rows = []
    old, new = ({one.goal.name: one for one in results.measurements} for results in (before, after))
    for name in dict.fromkeys((*old, *new)):
        sides = [one.get(name) for one in (old, new)]
        cells = ["not measured" if one is None else f"{number(one.median)} {one.goal.unit}" for one in sides]
        change = "" if None in sides else f"{100 * (new[name].median / old[name].median - 1):+.1f} %"
        rows.append((name, *cells, change))
    return _table(("", "before", "after", "change"), rows)


def number(value: float) -> str:
    """Three significant digits, and all digits before the point."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def duration(seconds: float) -> str:
    """1.23 ms, 456 µs, 7.89 s."""
    scale, unit = next(((s, u) for s, u in ((1.0, "s"), (1e-3, "ms")) if seconds >= s), (1e-6, "µs"))
    return f"{number(seconds / scale)} {unit}"
