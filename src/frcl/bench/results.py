"""The measurements as a JSON file and as tables."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.table import Table

from frcl.bench.measure import Goal, Measurement
from frcl.errors import OptionError
from frcl.experiment import environment
from frcl.files import write_atomically

FORMAT, VERSION = "frcl-bench", 1


def to_json(measurements: Sequence[Measurement], device: str, threads: int) -> dict[str, Any]:
    """All measurements, and the environment they were made in."""
    described = environment.describe(device) | {"threads": str(threads)}
    found = []
    for one in measurements:
        low, median, high = one.quartiles
        rest = {name: value for name, value in asdict(one).items() if name != "goal"}
        found.append({**asdict(one.goal), "median": median, "quartiles": [low, high], "met": one.is_met, **rest})
    return {
        "format": FORMAT,
        "version": VERSION,
        "frcl": described["frcl"],
        "written": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": device,
        "threads": threads,
        "environment": described,
        "measurements": found,
    }


def write_results(path: Path, results: dict[str, Any]) -> None:
    write_atomically(path, (json.dumps(results, indent=1, ensure_ascii=False) + "\n").encode())


def read_results(path: Path) -> dict[str, Any]:
    """A file that `frcl bench` wrote; any other file is refused."""
    try:
        results = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise OptionError(f"cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise OptionError(f"{path} is not a result of `frcl bench`: it is not JSON") from error
    if not isinstance(results, dict) or results.get("format") != FORMAT:
        raise OptionError(f"{path} is not a result of `frcl bench`")
    if results.get("version") != VERSION:
        raise OptionError(f"{path} has format version {results.get('version')}; this frcl reads version {VERSION}")
    try:
        measurements_of(results)
        environment_line(results)
    except (KeyError, TypeError, AttributeError) as error:
        raise OptionError(f"{path} is a damaged result of `frcl bench`: {error!r}") from error
    return results


def measurements_of(results: dict[str, Any]) -> dict[str, Measurement]:
    """The measurements by name."""
    found = {}
    for one in results["measurements"]:
        goal = Goal(*(one[name] for name in ("name", "what", "bound", "at_least", "unit")))
        found[goal.name] = Measurement(goal, list(map(float, one["values"])), dict(one["seconds"]), one["how"])
    return found


def environment_line(results: dict[str, Any]) -> str:
    """The environment in one line."""
    where = results["environment"]
    commit = f" ({where['commit']})" if where["commit"] else ""
    return f"frcl {where['frcl']}{commit}, torch {where['torch']}, {where['device']}, threads: {where['threads']}"


# -- tables --------------------------------------------------------------------------------------------------------


def table(*headings: str, title: str | None = None) -> Table:
    """An empty table whose first column is aligned left and the others right, except for columns without a heading."""
    made = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for number, heading in enumerate(headings):
        made.add_column(heading, justify="right" if number and heading else "left")
    return made


def results_table(measurements: Sequence[Measurement]) -> Table:
    """Median, quartiles, limit and verdict; our time, and beside it the other time or the accuracy."""
    rows = table("", "median", "quartiles", "wanted", "", "ours", "beside")
    for one in measurements:
        low, median, high = one.quartiles
        spread = "" if len(one.values) == 1 else f"{number(low)}–{number(high)}"
        verdict = "[green]met[/]" if one.is_met else "[red]missed[/]"
        times = {side: duration(float(np.median(values))) for side, values in one.seconds.items()}
        cells = (f"{number(median)} {one.goal.unit}", spread, one.goal.wanted(), verdict, times["ours"])
        rows.add_row(one.goal.name, *cells, times.get("other", one.how))
    return rows


def change_table(before: dict[str, Any], after: dict[str, Any]) -> Table:
    """Medians of two results side by side; the change where both have measured it."""
    rows = table("", "before", "after", "change")
    old, new = measurements_of(before), measurements_of(after)
    for name in dict.fromkeys((*old, *new)):
        sides = [one.get(name) for one in (old, new)]
        cells = ["not measured" if one is None else f"{number(one.median)} {one.goal.unit}" for one in sides]
        change = "" if None in sides else f"{100 * (new[name].median / old[name].median - 1):+.1f} %"
        rows.add_row(name, *cells, change)
    return rows


def number(value: float) -> str:
    """Three significant digits, and all digits before the point."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def duration(seconds: float) -> str:
    """1.23 ms, 456 µs, 7.89 s."""
    for scale, unit in ((1.0, "s"), (1e-3, "ms")):
        if seconds >= scale:
            return f"{number(seconds / scale)} {unit}"
    return f"{number(seconds / 1e-6)} µs"
