"""The measurements as a JSON file, and back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from frcl.bench.measure import Goal, Measurement
from frcl.errors import OptionError
from frcl.experiment import environment
from frcl.files import write_atomically

FORMAT, VERSION = "frcl-bench", 1


def to_json(measurements: Sequence[Measurement], device: str, threads: int) -> dict[str, Any]:
    """Everything that was measured, and where."""
    described = environment.describe(device) | {"threads": str(threads)}
    return {
        "format": FORMAT,
        "version": VERSION,
        "frcl": described["frcl"],
        "written": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": device,
        "threads": threads,
        "environment": described,
        "measurements": [_one(measurement) for measurement in measurements],
    }


def _one(measurement: Measurement) -> dict[str, Any]:
    low, median, high = measurement.quartiles
    found = {"median": median, "quartiles": [low, high], "met": measurement.is_met}
    return {**asdict(measurement.goal), **found, **{k: v for k, v in asdict(measurement).items() if k != "goal"}}


def write_results(path: Path, results: dict[str, Any]) -> None:
    write_atomically(path, (json.dumps(results, indent=1, ensure_ascii=False) + "\n").encode())


def read_results(path: Path) -> dict[str, Any]:
    """What `frcl bench` wrote; any other file is refused."""
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
    """Where it was measured, in one line."""
    where = results["environment"]
    commit = f" ({where['commit']})" if where["commit"] else ""
    return f"frcl {where['frcl']}{commit}, torch {where['torch']}, {where['device']}, threads: {where['threads']}"
