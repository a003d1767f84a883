"""Run folders, read and compared: one row for each run, and paired differences over the seeds that two runs share."""

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from frcl.errors import DataError
from frcl.experiment.metrics import Interval, average_accuracy, over_seeds
from frcl.experiment.results import RESULT, MetricName, Result, read_result
from frcl.files import open_regular, read_arrays

COMPARED: tuple[MetricName, ...] = (
    "average_accuracy", "forgetting", "nll", "ece", "agnostic_accuracy", "task_accuracy", "agnostic_nll",
    "agnostic_ece",
)  # fmt: skip
MOST_OPTIONS = 2  # in a label
LARGEST_POINTS = 4 << 30  # bytes of points.npz, unpacked


@dataclass(frozen=True, eq=False)
class Run:
    """A run folder: its result, and the inducing inputs [M, ...] of the learner's tasks by number, first seed."""

    folder: Path
    result: Result
    points: dict[int, NDArray[Any]] = field(default_factory=dict)

    def task(self, number: int) -> str:
        """The name of a task by the learner's own number; with hidden boundaries those are the tasks that it found."""
        if self.result.boundaries is not None:
            return f"found task {number + 1}"
        return self.result.tasks[number] if 0 <= number < len(self.result.tasks) else f"task {number + 1}"

    @property
    def options(self) -> dict[str, str]:
        """The options by dotted name, as they would be typed."""
        return {
            name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
            for name, value in flat(self.result.config).items()
        }

    @property
    def memory(self) -> int | None:
        """Bytes kept after the last task, if recorded."""
        return None if self.result.memory_bytes is None else self.result.memory_bytes.total

    @property
    def seconds(self) -> float | None:
        """Time of all seeds together, if recorded."""
        return None if self.result.seconds is None else self.result.seconds.total


def read_run(folder: Path, result: Result | None = None) -> Run:
    """The run in a folder, whose result may be known already; parts that are missing in its files are empty."""
    return Run(Path(folder), result or read_result(Path(folder) / RESULT), read_points(Path(folder) / "points.npz"))


def find_runs(paths: Sequence[Path]) -> list[Run]:
    """The runs at `paths`: each a run folder, or a folder that contains run folders at any depth."""
    folders: list[Path] = []
    for path in map(Path, paths):
        files = [path] if path.name == RESULT else sorted(path.rglob(RESULT))
        found = [file.parent for file in files if file.is_file()]
        if not found:
            where = f"no run in {path}: neither it nor a folder under it has a {RESULT}"
            where = where if path.is_dir() else f"no such folder: {path}"
            raise DataError(f"{where}; name a folder that `frcl run` made")
        folders += [folder.resolve() for folder in found if not set(folder.parents) & set(found)]  # the outermost
    return [read_run(folder) for folder in dict.fromkeys(folders)]


def read_points(path: Path, *, required: bool = False) -> dict[int, NDArray[Any]]:
    """The arrays task_0, task_1, … by number; none if there is no file, unless it is required."""
    if not path.exists() and not required:
        return {}
    try:
        with open_regular(path, LARGEST_POINTS) as file:
            arrays = read_arrays(file, LARGEST_POINTS)
    except (ValueError, OSError) as error:
        raise DataError(f"{path} is damaged or was not written by frcl: {error}") from error
    numbers = sorted(int(name[5:]) for name in arrays if re.fullmatch(r"task_\d{1,6}", name))
    points = {number: arrays[f"task_{number}"] for number in numbers}
    for number, array in points.items():
        if array.ndim < 2 or array.dtype.kind not in "fiub" or not np.isfinite(array).all():
            raise DataError(f"{path} is damaged: task_{number} is not an array of finite numbers [points, ...]")
    return points


@dataclass(frozen=True)
class ComparisonRow:
    """One run, with the metrics in COMPARED; None where a value was not recorded."""

    label: str
    benchmark: str
    method: str
    seeds: int
    metrics: dict[MetricName, Interval | None]
    memory_bytes: int | None
    seconds: float | None


@dataclass(frozen=True)
class PairedDifference:
    """Average accuracy of `first` minus `second` over the seeds that both have, with its 95 % interval.

    Without the task, where that is the headline of both.
    """

    benchmark: str
    first: str
    second: str
    seeds: tuple[int, ...]
    difference: Interval
    memory_first: int | None
    memory_second: int | None


@dataclass(frozen=True)
class Comparison:
    """The rows and paired differences that `frcl compare` shows."""

    rows: tuple[ComparisonRow, ...]
    pairs: tuple[PairedDifference, ...]


def comparison_rows(runs: Sequence[Run]) -> Comparison:
    """A row for each run in the order given, and every pair of the same benchmark with common seeds."""
    labelled = list(zip(runs, run_labels(runs), strict=True))
    rows = []
    for run, label in labelled:
        result, metrics = run.result, {key: run.result.metric(key) for key in COMPARED}
        place = (label, result.benchmark, result.method, len(result.seeds))
        rows.append(ComparisonRow(*place, metrics, run.memory, run.seconds))
    pairs = (_pair(*first, *second) for first, second in combinations(labelled, 2))
    return Comparison(tuple(rows), tuple(pair for pair in pairs if pair is not None))


def _pair(first: Run, first_label: str, second: Run, second_label: str) -> PairedDifference | None:
    one, two = first.result, second.result
    if one.benchmark != two.benchmark or len(one.tasks) != len(two.tasks):
        return None
    matrices = [one.accuracy, two.accuracy]
    without = [r.agnostic for r in (one, two) if r.names_no_task and r.agnostic is not None]
    if len(without) == 2:
        matrices, second_label = without, f"{second_label}, no task"
    ours, theirs = (
        dict(zip(r.seeds, average_accuracy(R).tolist(), strict=True)) for r, R in zip((one, two), matrices, strict=True)
    )
    seeds = tuple(seed for seed in ours if seed in theirs)
    gap = over_seeds([ours[seed] - theirs[seed] for seed in seeds])
    if gap is None:
        return None
    return PairedDifference(one.benchmark, first_label, second_label, seeds, gap, first.memory, second.memory)


def run_labels(runs: Sequence[Run]) -> list[str]:
    """A short name for each run, different for each run of a benchmark.

    The method; among runs of the same method also the options that differ, or the folder if there are many.
    """
    kinds = [(run.result.benchmark, run.result.method) for run in runs]
    labels = [method for _, method in kinds]
    for place, run in enumerate(runs):
        differing = differing_options([other for other, kind in zip(runs, kinds, strict=True) if kind == kinds[place]])
        if len(differing) <= MOST_OPTIONS:
            options = run.options
            ends = Counter(name.rpartition(".")[2] for name in options)
            for key in differing:  # by the last part of its dotted name, unless another option ends the same
                last = key.rpartition(".")[2]
                labels[place] += f" {last if ends[last] <= 1 else key}={options.get(key, 'null')}"
    for suffixes in ([run.folder.name for run in runs], range(1, len(runs) + 1)):
        names = [(benchmark, label) for (benchmark, _), label in zip(kinds, labels, strict=True)]
        seen = Counter(names)
        labels = [
            f"{name[1]} ({end})" if seen[name] > 1 else name[1] for name, end in zip(names, suffixes, strict=True)
        ]
    return labels


def differing_options(runs: Sequence[Run]) -> list[str]:
    """The dotted names of the options in which the runs are not all the same."""
    options = [run.options for run in runs]
    names = dict.fromkeys(name for each in options for name in each)
    return [name for name in names if len({each.get(name, "null") for each in options}) > 1]


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested options by dotted name."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        nested = isinstance(value, Mapping) and value
        found |= flat(value, f"{prefix}{key}.") if nested else {f"{prefix}{key}": value}
    return found
