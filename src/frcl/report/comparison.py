"""Several runs side by side: one row for each, and paired differences over the seeds two runs share."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from frcl.experiment.metrics import Interval, average_accuracy, over_seeds
from frcl.experiment.results import MetricName, Result
from frcl.report.numbers import BY_KEY
from frcl.report.run import Run

MOST_OPTIONS = 2  # in a label
COMPARED: tuple[MetricName, ...] = ("average_accuracy", "forgetting", "nll", "ece")


@dataclass(frozen=True)
class ComparisonRow:
    """One run; None where a value was not recorded."""

    label: str
    benchmark: str
    method: str
    seeds: int
    average_accuracy: Interval | None
    forgetting: Interval | None
    nll: Interval | None
    ece: Interval | None
    memory_bytes: int | None
    seconds: float | None


@dataclass(frozen=True)
class PairedDifference:
    """Average accuracy of `first` minus `second` over the seeds that both have, with its 95 % interval."""

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
    labels = run_labels(runs)
    rows = [_row(run, label) for run, label in zip(runs, labels, strict=True)]
    labelled = list(zip(runs, labels, strict=True))
    pairs = [_pair(first, second) for first, second in combinations(labelled, 2)]
    return Comparison(tuple(rows), tuple(pair for pair in pairs if pair is not None))


def run_labels(runs: Sequence[Run]) -> list[str]:
    """A short name for each run, different for each run of a benchmark.

    The method; among runs of the same method also the options that differ, or the folder if there are many.
    """
    kinds = [(run.result.benchmark, run.result.method) for run in runs]
    labels = [method for _, method in kinds]
    for number, run in enumerate(runs):
        differing = differing_options([other for other, kind in zip(runs, kinds, strict=True) if kind == kinds[number]])
        if 0 < len(differing) <= MOST_OPTIONS:
            options = flat(run.result.config)
            labels[number] += "".join(f" {_last(key, options)}={show(options.get(key))}" for key in differing)
    for suffixes in ([run.folder.name for run in runs], [str(number + 1) for number in range(len(runs))]):
        names = list(zip((benchmark for benchmark, _ in kinds), labels, strict=True))
        seen = Counter(names)
        labels = [f"{name[1]} ({suffixes[n]})" if seen[name] > 1 else name[1] for n, name in enumerate(names)]
    return labels


def differing_options(runs: Sequence[Run]) -> list[str]:
    """The dotted names of the options in which the runs are not all the same."""
    options = [flat(run.result.config) for run in runs]
    names = dict.fromkeys(name for each in options for name in each)
    return [name for name in names if len({show(each.get(name)) for each in options}) > 1]


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested options by dotted name."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            found.update(flat(value, f"{name}."))
        else:
            found[name] = value
    return found


def show(value: Any) -> str:
    """An option's value as it would be typed."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _last(key: str, options: Mapping[str, Any]) -> str:
    """The last part of a dotted name, unless another option ends the same."""
    last = key.rpartition(".")[2]
    return last if sum(name.rpartition(".")[2] == last for name in options) <= 1 else key


def _row(run: Run, label: str) -> ComparisonRow:
    result, seconds = run.result, run.result.seconds
    average, forgetting, nll, ece = (BY_KEY[key].of(result) for key in COMPARED)
    names = (label, result.benchmark, result.method, len(result.seeds))
    time = None if seconds is None else seconds.total
    return ComparisonRow(*names, average, forgetting, nll, ece, memory_total(result), time)


def memory_total(result: Result) -> int | None:
    """Bytes kept after the last task, if recorded."""
    return None if result.memory_bytes is None else result.memory_bytes.total


def _pair(first: tuple[Run, str], second: tuple[Run, str]) -> PairedDifference | None:
    one, two = first[0].result, second[0].result
    if one.benchmark != two.benchmark or len(one.tasks) != len(two.tasks):
        return None
    ours, theirs = (dict(zip(r.seeds, average_accuracy(r.accuracy).tolist(), strict=True)) for r in (one, two))
    seeds = tuple(seed for seed in ours if seed in theirs)
    difference = over_seeds([ours[seed] - theirs[seed] for seed in seeds])
    if difference is None:
        return None
    kept = memory_total(one), memory_total(two)
    return PairedDifference(one.benchmark, first[1], second[1], seeds, difference, *kept)
