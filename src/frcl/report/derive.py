"""Numbers made from the accuracy matrix and from pairs of runs: pure functions of arrays."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from frcl.report.run import Floats


class Spread(NamedTuple):
    """Mean and sample standard deviation over seeds, of the same shape; std is None with one seed."""

    mean: Floats
    std: Floats | None


class Interval(NamedTuple):
    """A mean and its 95 % interval; None where one value gives no interval."""

    mean: float
    low: float | None
    high: float | None


def over_seeds(values: Floats) -> Spread:
    """Over the first axis; NaN stays NaN."""
    return Spread(values.mean(0), values.std(0, ddof=1) if len(values) > 1 else None)


def task_curve(accuracy: Floats, task: int) -> Floats:
    """Accuracy on one task after each task from its own on: a column of the matrix, [S, T − task]."""
    return accuracy[:, task:, task]


def average_curve(accuracy: Floats) -> Floats:
    """Mean accuracy over the tasks seen so far, after each task, [S, T]."""
    return np.stack([accuracy[:, after, : after + 1].mean(-1) for after in range(accuracy.shape[1])], axis=1)


def forgetting_by_task(accuracy: Floats) -> Floats:
    """What each task but the last lost from its best accuracy before the end to the end, [S, T − 1].

    F_j = max_{l < T} a_{l, j} − a_{T, j}
    """
    tasks = accuracy.shape[1]
    if tasks == 1:
        return np.empty((len(accuracy), 0))
    best = [accuracy[:, task:-1, task].max(-1) for task in range(tasks - 1)]
    return np.stack(best, axis=1) - accuracy[:, -1, :-1]


def paired_interval(first: Floats, second: Floats) -> Interval:
    """Mean of first − second over pairs and its 95 % interval: d̄ ± t_{0.975, n−1} s_d / √n."""
    from scipy.stats import t

    difference = first - second
    n, mean = len(difference), float(difference.mean())
    if n < 2:
        return Interval(mean, None, None)
    half = float(t.ppf(0.975, n - 1) * difference.std(ddof=1) / np.sqrt(n))
    return Interval(mean, mean - half, mean + half)


def thin_by_peaks(position: Floats, values: Floats, limit: int) -> tuple[Floats, Floats]:
    """At most `limit` points: of each stretch the largest value where it stands, so that no peak is lost."""
    if len(values) <= limit:
        return position, values
    kept = []
    for part in np.array_split(np.arange(len(values)), limit):
        ranked = np.where(np.isnan(values[part]), -np.inf, values[part])
        kept.append(part[int(ranked.argmax())])
    return position[kept], values[kept]
