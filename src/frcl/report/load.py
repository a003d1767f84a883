"""Reading run folders: `result.json` and `points.npz`. A foreign or damaged file is refused in one line."""

from __future__ import annotations

import json
import os
import re
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from frcl.errors import DataError
from frcl.report.fields import (
    Damaged,
    accuracy_matrix,
    boundaries,
    calibration,
    count,
    metric,
    numbers_by_name,
    score_name,
    steps,
    text,
    texts,
    whole_numbers,
    whole_numbers_by_name,
)
from frcl.report.run import Run

RESULT = "result.json"
POINTS = "points.npz"
FORMAT = "frcl-result"
VERSION = 1
METRIC_KEYS = (
    "average_accuracy",
    "accuracy_after_learning",
    "backward_transfer",
    "forward_transfer",
    "forgetting",
    "nll",
    "brier",
    "ece",
    "auroc",
)


def read_run(folder: Path) -> Run:
    """The run that lies in `folder`; parts that are missing or null in its files are left empty."""
    folder = Path(folder)
    path = folder / RESULT
    result = _read_json(path)
    try:
        return _run(folder, result)
    except Damaged as error:
        raise DataError(f"{path} is damaged: {error}; run the benchmark again to replace it") from error


def find_runs(paths: Sequence[Path]) -> list[Run]:
    """The runs at `paths`: each a run folder, or a folder that contains run folders at any depth."""
    folders: dict[Path, None] = {}
    for path in map(Path, paths):
        found = _run_folders(path)
        if not found:
            raise DataError(
                f"no run in {path}: neither it nor a folder under it has a {RESULT}; name a folder that `frcl run` made"
            )
        folders.update((folder.resolve(), None) for folder in found)
    return [read_run(folder) for folder in folders]


def _run_folders(path: Path) -> list[Path]:
    if path.name == RESULT and path.is_file():
        return [path.parent]
    if not path.is_dir():
        raise DataError(f"no such folder: {path}; name a folder that `frcl run` made")
    found = []
    for place, below, files in os.walk(path):
        below.sort()
        if RESULT in files:
            found.append(Path(place))
            below.clear()
    return found


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise DataError(f"{path.parent} is not a run folder: it has no {RESULT}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is damaged: it is not UTF-8 text") from error
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    try:
        result = json.loads(content)
    except (ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise DataError(f"{path} is damaged: it is not JSON ({reason})") from error
    if not isinstance(result, dict) or result.get("format") != FORMAT:
        raise DataError(f'{path} was not written by frcl: it has no "format": "{FORMAT}"; name another folder')
    if result.get("version") != VERSION:
        raise DataError(
            f"{path} has format version {result.get('version')!r}; this frcl reads version {VERSION}. "
            "Use the release that wrote it, or a newer one."
        )
    return result


def _run(folder: Path, result: dict[str, Any]) -> Run:
    seeds, tasks = whole_numbers(result, "seeds"), texts(result, "tasks")
    if not seeds or not tasks:
        raise Damaged("it has no seeds or no tasks")
    metrics = {key: metric(result, key, len(seeds)) for key in METRIC_KEYS}
    memory = numbers_by_name(result, "memory_bytes", lists=True)
    environment = result.get("environment")
    config = result.get("config")
    return Run(
        folder=folder,
        benchmark=text(result, "benchmark"),
        method=text(result, "method"),
        seeds=seeds,
        tasks=tasks,
        score=score_name(result),
        accuracy=accuracy_matrix(result, len(seeds), len(tasks)),
        config=config if isinstance(config, dict) else {},
        metrics={key: value for key, value in metrics.items() if value is not None},
        calibration=calibration(result),
        memory_total=count(memory, "total"),
        memory=whole_numbers(memory, "per_task") if memory.get("per_task") else None,
        kinds=whole_numbers_by_name(memory, "parts"),
        seconds=numbers_by_name(result, "seconds"),
        peak_memory=count(result, "peak_memory_bytes"),
        steps=steps(result),
        boundaries=boundaries(result, len(seeds)),
        environment={str(k): str(v) for k, v in environment.items()} if isinstance(environment, dict) else {},
        command=text(result, "command", required=False),
        started=text(result, "started", required=False),
        points=_read_points(folder / POINTS),
    )


def _read_points(path: Path) -> dict[int, NDArray[Any]]:
    """The arrays task_0, task_1, … by number; an absent file has none."""
    if not path.is_file():
        return {}
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            numbers = sorted(int(name[5:]) for name in arrays.files if re.fullmatch(r"task_\d{1,6}", name))
            points = {number: np.asarray(arrays[f"task_{number}"]) for number in numbers}
    except (ValueError, OSError, EOFError, TypeError, AttributeError, KeyError, zipfile.BadZipFile) as error:
        reason = " ".join(str(error).split())
        raise DataError(f"{path} is damaged or was not written by frcl: {reason}") from error
    for number, array in points.items():
        if array.ndim < 2 or array.dtype.kind not in "fiub" or not np.isfinite(array).all():
            raise DataError(f"{path} is damaged: task_{number} is not an array of finite numbers [points, ...]")
    return points
