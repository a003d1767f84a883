"""Several runs side by side: one row for each, and paired differences over the seeds two runs share."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from frcl.report.derive import Interval, average_curve, paired_interval
from frcl.report.run import Metric, Run

MOST_OPTIONS = 2  # in a label


@dataclass(frozen=True)
class ComparisonRow:
    """One run; a metric, the bytes or the seconds are None where they were not recorded."""

    label: str
    benchmark: str
    method: str
    seeds: int
    average_accuracy: Metric | None
    forgetting: Metric | None
    nll: Metric | None
    ece: Metric | None
    memory_bytes: int | None
    seconds: float | None


@dataclass(frozen=True)
class PairedDifference:
    """Average accuracy of `first` minus `second` over the seeds both have, with its 95 % interval (Student t)."""

    benchmark: str
    first: str
    second: str
    seeds: tuple[int, ...]
    difference: Interval
    memory_first: int | None
    memory_second: int | None


@dataclass(frozen=True)
class Comparison:
    """What `frcl compare` shows."""

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

    Its method; among runs of the same method also the options that differ, or the folder if they are many.
    """
    labels = [run.method for run in runs]
    for number, run in enumerate(runs):
        alike = [other for other in runs if (other.benchmark, other.method) == (run.benchmark, run.method)]
        differing = differing_options(alike)
        if 0 < len(differing) <= MOST_OPTIONS:
            told = [f"{_last(key, run)}={show(flat(run.config).get(key))}" for key in differing]
            labels[number] = " ".join([run.method, *told])
    for suffixes in ([run.folder.name for run in runs], [str(number + 1) for number in range(len(runs))]):
        seen = Counter((run.benchmark, label) for run, label in zip(runs, labels, strict=True))
        labels = [
            f"{label} ({suffixes[number]})" if seen[runs[number].benchmark, label] > 1 else label
            for number, label in enumerate(labels)
        ]
    return labels


def differing_options(runs: Sequence[Run]) -> list[str]:
    """The dotted names of the options in which the runs are not all the same."""
    options = [flat(run.config) for run in runs]
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


def average_by_seed(run: Run) -> dict[int, float]:
    """Average accuracy of each seed: as recorded, else the mean of the matrix's last row."""
    recorded = run.metrics.get("average_accuracy")
    per_seed = recorded.per_seed if recorded is not None else ()
    if len(per_seed) != len(run.seeds) or not np.isfinite(per_seed).all():
        per_seed = tuple(average_curve(run.accuracy)[:, -1].tolist())
    return dict(zip(run.seeds, per_seed, strict=True))


def _last(key: str, run: Run) -> str:
    """The last part of a dotted name, unless another option ends the same."""
    last = key.rpartition(".")[2]
    return last if sum(name.rpartition(".")[2] == last for name in flat(run.config)) <= 1 else key


def _row(run: Run, label: str) -> ComparisonRow:
    return ComparisonRow(
        label=label,
        benchmark=run.benchmark,
        method=run.method,
        seeds=len(run.seeds),
        average_accuracy=run.metrics.get("average_accuracy"),
        forgetting=run.metrics.get("forgetting"),
        nll=run.metrics.get("nll"),
        ece=run.metrics.get("ece"),
        memory_bytes=run.memory_total,
        seconds=run.seconds.get("total"),
    )


def _pair(first: tuple[Run, str], second: tuple[Run, str]) -> PairedDifference | None:
    (one, one_label), (two, two_label) = first, second
    if one.benchmark != two.benchmark or len(one.tasks) != len(two.tasks):
        return None
    ours, theirs = average_by_seed(one), average_by_seed(two)
    seeds = tuple(seed for seed in ours if seed in theirs)
    if not seeds:
        return None
    difference = paired_interval(np.array([ours[s] for s in seeds]), np.array([theirs[s] for s in seeds]))
    return PairedDifference(one.benchmark, one_label, two_label, seeds, difference, one.memory_total, two.memory_total)
