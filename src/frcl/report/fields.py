"""The fields of `result.json`, read with suspicion: a missing part is None, a wrong one is `Damaged`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from frcl.report.run import Boundaries, BoundaryScore, Calibration, Floats, Metric, Steps

TERMS = ("loss", "log_likelihood", "kl_now", "kl_past")


class Damaged(ValueError):
    """A field is not what the format says."""


def text(source: Mapping[str, Any], key: str, *, required: bool = True) -> str:
    value = source.get(key)
    if value is None and not required:
        return ""
    if not isinstance(value, str) or (required and not value):
        raise Damaged(f'"{key}" is not a text')
    return value


def texts(source: Mapping[str, Any], key: str) -> tuple[str, ...]:
    return tuple(str(item) for item in _list(source.get(key), key))


def whole_numbers(source: Mapping[str, Any], key: str) -> tuple[int, ...]:
    return tuple(_whole(item, key) for item in _list(source.get(key), key))


def count(source: Mapping[str, Any], key: str) -> int | None:
    return None if source.get(key) is None else _whole(source[key], key)


def numbers_by_name(source: Mapping[str, Any], key: str, *, lists: bool = False) -> dict[str, Any]:
    """A table of finite numbers (nulls dropped); with `lists`, the values are left for the caller to read."""
    value = source.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise Damaged(f'"{key}" is not a table')
    if lists:
        return value
    found = {name: _number(item, f"{key}.{name}") for name, item in value.items()}
    return {name: number for name, number in found.items() if number is not None}


def whole_numbers_by_name(source: Mapping[str, Any], key: str) -> dict[str, int]:
    """A table of whole numbers; empty where there is none."""
    found = numbers_by_name(source, key, lists=True)
    return {name: _whole(item, f"{key}.{name}") for name, item in found.items()}


def score_name(source: Mapping[str, Any]) -> str:
    value = source.get("score") or "accuracy"
    if value not in ("accuracy", "r2"):
        raise Damaged(f'"score" is {value!r}, not "accuracy" or "r2"')
    return str(value)


def accuracy_matrix(source: Mapping[str, Any], seeds: int, tasks: int) -> Floats:
    """[S, T, T], (seed, after task, on task); what stands above the diagonal is not read."""
    lowest = -math.inf if score_name(source) == "r2" else 0.0
    matrix = np.full((seeds, tasks, tasks), np.nan)
    for s, square in enumerate(_list(source.get("accuracy"), "accuracy", seeds)):
        for i, row in enumerate(_list(square, f"accuracy[{s}]", tasks)):
            where = f"accuracy[{s}][{i}]"
            for j, item in enumerate(_list(row, where, tasks)[: i + 1]):
                value = _number(item, f"{where}[{j}]")
                if value is None or not lowest <= value <= 1.0:
                    raise Damaged(f'"{where}[{j}]" is {item!r}, not between {lowest:g} and 1')
                matrix[s, i, j] = value
    return matrix


def metric(source: Mapping[str, Any], key: str, seeds: int) -> Metric | None:
    value = source.get(key)
    if value is None:
        return None
    if not isinstance(value, dict):
        raise Damaged(f'"{key}" is not a table')
    mean, std, low, high = (_number(value.get(part), f"{key}.{part}") for part in ("mean", "std", "low", "high"))
    if mean is None:
        return None
    per_seed = _numbers(value.get("per_seed", []), f"{key}.per_seed")
    return Metric(mean, std, low, high, tuple(map(float, per_seed)) if len(per_seed) == seeds else ())


def calibration(source: Mapping[str, Any]) -> Calibration | None:
    value = source.get("calibration")
    if value is None:
        return None
    if not isinstance(value, dict):
        raise Damaged('"calibration" is not a table')
    edges, *bins = (
        _numbers(value.get(key), f"calibration.{key}") for key in ("edges", "count", "confidence", "accuracy")
    )
    if len(edges) < 2 or any(len(part) != len(edges) - 1 for part in bins):
        raise Damaged('the parts of "calibration" do not have the same number of bins')
    if np.isnan(edges).any() or np.isnan(bins[0]).any():
        raise Damaged('"calibration" has a null where a number must stand')
    return Calibration(edges, bins[0], bins[1], bins[2])


def steps(source: Mapping[str, Any]) -> Steps | None:
    value = source.get("steps")
    if value is None:
        return None
    if not isinstance(value, dict):
        raise Damaged('"steps" is not a table')
    step = _numbers(value.get("step"), "steps.step")
    task = _numbers(value.get("task"), "steps.task")
    terms = {name: _numbers(value[name], f"steps.{name}") for name in TERMS if value.get(name) is not None}
    if any(len(part) != len(step) for part in (task, *terms.values())):
        raise Damaged('the columns of "steps" differ in length')
    if np.isnan(step).any() or np.isnan(task).any():
        raise Damaged('"steps" has a null where a number must stand')
    drawn = {name: values for name, values in terms.items() if np.isfinite(values).any()}
    if not len(step) or "loss" not in drawn:
        return None
    return Steps(count(value, "every") or 1, task.astype(np.int64), over_all_tasks(step), drawn)


def over_all_tasks(step: Floats) -> Floats:
    """Step numbers that only grow: where they start again with a task, the steps before are added."""
    restart = np.concatenate([[0.0], np.where(np.diff(step) < 0, step[:-1], 0.0)])
    return np.asarray(step + np.cumsum(restart), dtype=np.float64)


def boundaries(source: Mapping[str, Any], seeds: int) -> Boundaries | None:
    value = source.get("boundaries")
    if value is None:
        return None
    if not isinstance(value, dict):
        raise Damaged('"boundaries" is not a table')
    true, found, statistic, at = (
        _numbers(value.get(key), f"boundaries.{key}") for key in ("true", "found", "statistic", "statistic_step")
    )
    if len(statistic) != len(at):
        raise Damaged('"boundaries.statistic" and "boundaries.statistic_step" differ in length')
    scores = [_score(item) for item in _list(value.get("scores", []), "boundaries.scores")]
    threshold = _number(value.get("threshold"), "boundaries.threshold")
    true, found = true[np.isfinite(true)], found[np.isfinite(found)]
    acted = numbers_by_name(value, "acted_on", lists=True)
    parts = {name: metric(acted, name, seeds) for name in ("precision", "recall", "f1")}
    acted_on = {name: part for name, part in parts.items() if part is not None}
    return Boundaries(true, found, threshold, statistic, at, tuple(scores), acted_on)


def _score(item: Any) -> BoundaryScore:
    if not isinstance(item, dict):
        raise Damaged('"boundaries.scores" is not a list of tables')
    parts = {key: _number(item.get(key), f"boundaries.scores.{key}") for key in ("precision", "recall", "f1", "delay")}
    threshold = _number(item.get("threshold"), "boundaries.scores.threshold")
    if threshold is None:
        raise Damaged('"boundaries.scores" has an entry without a threshold')
    return BoundaryScore(threshold, **parts)


def _list(value: Any, where: str, length: int | None = None) -> list[Any]:
    if not isinstance(value, list):
        raise Damaged(f'"{where}" is not a list')
    if length is not None and len(value) != length:
        raise Damaged(f'"{where}" has {len(value)} entries, expected {length}')
    return value


def _number(value: Any, where: str) -> float | None:
    """A finite number; null and what is not finite count as missing."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Damaged(f'"{where}" is {value!r}, not a number')
    return float(value) if math.isfinite(value) else None


def _numbers(value: Any, where: str) -> Floats:
    """A list of numbers as an array, NaN for null."""
    found = [_number(item, where) for item in _list(value, where)]
    return np.array([math.nan if item is None else item for item in found], dtype=np.float64)


def _whole(value: Any, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise Damaged(f'"{where}" has {value!r} where a whole number must stand')
    return value
