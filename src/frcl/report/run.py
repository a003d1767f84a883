"""Run folders: the result of each run and the inducing inputs it kept. A damaged file is refused in one line."""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from frcl.errors import DataError
from frcl.experiment.metrics import Floats as Floats
from frcl.experiment.results import RESULT, Result, read_result

POINTS = "points.npz"


@dataclass(frozen=True, eq=False)
class Run:
    """A run folder: its result, and the inducing inputs [M, ...] of the learner's tasks by number, first seed."""

    folder: Path
    result: Result
    points: dict[int, NDArray[Any]] = field(default_factory=dict)

    @classmethod
    def of(cls, folder: Path, result: Result) -> Run:
        """The run in a folder whose result is already known; reads the inducing inputs alone."""
        return cls(folder, result, _read_points(folder / POINTS))


def read_run(folder: Path) -> Run:
    """The run in a folder; parts that are missing in its files are empty."""
    return Run.of(Path(folder), read_result(Path(folder) / RESULT))


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


def _read_points(path: Path) -> dict[int, NDArray[Any]]:
    """The arrays task_0, task_1, … by number; none if there is no file."""
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


def learners_task(result: Result, number: int) -> str:
    """The name of a task by the learner's own number; with hidden boundaries those are the tasks that it found."""
    if result.boundaries is not None:
        return f"found task {number + 1}"
    return result.tasks[number] if 0 <= number < len(result.tasks) else f"task {number + 1}"
