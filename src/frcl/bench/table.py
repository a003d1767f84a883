"""The measurements as tables for a person."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from rich import box
from rich.table import Table

from frcl.bench.measure import Measurement
from frcl.bench.profile import Operator
from frcl.bench.results import measurements_of


def results_table(measurements: Sequence[Measurement]) -> Table:
    """Median, quartiles, wanted, met or missed; the time of ours, and beside it that of the other or the accuracy."""
    table = Table(box=box.SIMPLE_HEAD)
    for heading in ("", "median", "quartiles", "wanted", "", "ours", "beside"):
        table.add_column(heading, justify="right" if heading else "left")
    for one in measurements:
        low, median, high = one.quartiles
        spread = "" if len(one.values) == 1 else f"{number(low)}–{number(high)}"
        verdict = "[green]met[/]" if one.is_met else "[red]missed[/]"
        times = {side: duration(float(np.median(values))) for side, values in one.seconds.items()}
        beside = times.get("other", one.how)
        table.add_row(
            one.goal.name,
            f"{number(median)} {one.goal.unit}",
            spread,
            one.goal.wanted(),
            verdict,
            times["ours"],
            beside,
        )
    return table


def legend(measurements: Sequence[Measurement]) -> list[str]:
    """A line for each: what it is, and how it was measured."""
    return [f"{one.goal.name}: {one.goal.what}; {one.how}" for one in measurements]


def change_table(before: dict[str, Any], after: dict[str, Any]) -> Table:
    """Medians of two results side by side; only what both have measured is compared."""
    table = Table(box=box.SIMPLE_HEAD)
    for heading in ("", "before", "after", "change"):
        table.add_column(heading, justify="right" if heading else "left")
    old, new = measurements_of(before), measurements_of(after)
    for name in dict.fromkeys((*old, *new)):
        sides = [one.get(name) for one in (old, new)]
        cells = ["not measured" if one is None else f"{number(one.median)} {one.goal.unit}" for one in sides]
        change = "" if None in sides else f"{100 * (new[name].median / old[name].median - 1):+.1f} %"
        table.add_row(name, *cells, change)
    return table


def profile_table(operators: Sequence[Operator], title: str) -> Table:
    """The operators that take most of a step."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for heading in ("operator", "calls a step", "µs a step", "share"):
        table.add_column(heading, justify="left" if heading == "operator" else "right")
    for one in operators:
        table.add_row(one.name, f"{one.calls:.1f}", f"{one.microseconds:.0f}", f"{100 * one.share:.1f} %")
    return table


def number(value: float) -> str:
    """Three digits that count, and all of them before the point."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def duration(seconds: float) -> str:
    """1.23 ms, 456 µs, 7.89 s."""
    for scale, unit in ((1.0, "s"), (1e-3, "ms")):
        if seconds >= scale:
            return f"{number(seconds / scale)} {unit}"
    return f"{number(seconds / 1e-6)} µs"
