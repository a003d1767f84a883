"""Metrics of continual learning, of calibration and of uncertainty. Definitions in docs/metrics.md."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from frcl.data.tasks import Benchmark
from frcl.errors import TaskError
from frcl.learners.types import Learner, Prediction
from frcl.likelihoods import Label

Floats = np.ndarray[Any, np.dtype[np.float64]]  # not NDArray, which new NumPy declares as a type alias: codec reads it
BINS = 10


# -- the accuracy matrix R [..., T, T]: R[..., after, on] is the accuracy on the test data of task `on` just after
# learning task `after`; NaN where `on` > `after`. Leading axes, usually one of seeds, are kept.


def accuracy_matrix(rows: Sequence[Sequence[float]]) -> Floats:
    """R [T, T] from its lower triangle: row i has the accuracies on tasks 0 to i."""
    R = np.full((len(rows), len(rows)), np.nan)
    for i, row in enumerate(rows):
        if len(row) != i + 1:
            raise ValueError(f"row {i} of {len(rows)} needs {i + 1} entries, not {len(row)}")
        R[i, : i + 1] = row
    return R


def average_so_far(R: Floats) -> Floats:
    """Mean accuracy over the tasks learned so far, after each task, [..., T]."""
    return np.stack([R[..., after, : after + 1].mean(-1) for after in range(R.shape[-1])], axis=-1)


def average_accuracy(R: Floats) -> Floats:
    """Mean of the last row: accuracy over all tasks, after the last."""
    return np.asarray(R[..., -1, :].mean(-1))


def accuracy_after_learning(R: Floats) -> Floats:
    """Mean of the diagonal: accuracy on each task just after learning it."""
    return np.asarray(R.diagonal(axis1=-2, axis2=-1).mean(-1))


def backward_transfer(R: Floats) -> Floats:
    """Mean over all tasks but the last of R[last, i] − R[i, i]; negative where there is forgetting."""
    return _mean_or_nan((R[..., -1, :] - R.diagonal(axis1=-2, axis2=-1))[..., :-1])


def forgetting_by_task(R: Floats) -> Floats:
    """F_i = max_{i ≤ l < last} R[l, i] − R[last, i] of each task i but the last, [..., T − 1]."""
    return np.asarray(np.fmax.reduce(R[..., :-1, :-1], axis=-2, initial=-np.inf) - R[..., -1, :-1])


def forgetting(R: Floats) -> Floats:
    """Mean of `forgetting_by_task`; NaN with one task."""
    return _mean_or_nan(forgetting_by_task(R))


def forward_transfer(R: Floats, alone: Floats) -> Floats:
    """Mean over all tasks but the first of R[i, i] − alone[i], the accuracy of a new learner on task i alone."""
    return _mean_or_nan((R.diagonal(axis1=-2, axis2=-1) - alone)[..., 1:])


OF_MATRIX = (average_accuracy, accuracy_after_learning, backward_transfer, forgetting)


def _mean_or_nan(values: Floats) -> Floats:
    """Mean over the last axis; NaN where it is empty, that is with one task."""
    return np.asarray(values.mean(-1) if values.shape[-1] else np.full(values.shape[:-1], np.nan))


# -- class probabilities


def negative_log_likelihood(probs: Tensor, y: Tensor) -> float:
    """−mean log p(y), in nats; probs [n, C], y [n] class numbers."""
    chosen = probs.double().gather(1, y[:, None])[:, 0]
    return float(-chosen.clamp_min(torch.finfo(torch.float32).tiny).log().mean())


def brier(probs: Tensor, y: Tensor) -> float:
    """Mean of Σ_c (p_c − 1[y = c])², between 0 and 2."""
    target = torch.nn.functional.one_hot(y, probs.shape[1]).double()
    return float((probs.double() - target).square().sum(1).mean())


@dataclass(frozen=True, eq=False)
class Calibration:
    """Predictions by confidence (probability of the predicted class) in equal bins (low, high]; can be added."""

    count: Floats  # [B]
    confidence: Floats  # [B], summed
    correct: Floats  # [B], number of right predictions

    def __add__(self, other: Calibration) -> Calibration:
        return Calibration(self.count + other.count, self.confidence + other.confidence, self.correct + other.correct)

    def error(self) -> float:
        """ECE: Σ_bins (count/n) · |share right − mean confidence|."""
        return float(np.abs(self.correct - self.confidence).sum() / self.count.sum())


def calibration(probs: Tensor, y: Tensor) -> Calibration:
    """Bins of the predictions `probs` [n, C] against the classes y [n]."""
    confidence, predicted = (part.cpu().numpy() for part in probs.double().max(1))
    which = np.clip(np.ceil(confidence * BINS).astype(np.int64), 1, BINS) - 1
    parts = (np.ones(len(which)), confidence, predicted == y.cpu().numpy())
    return Calibration(*(np.asarray(np.bincount(which, part, BINS), np.float64) for part in parts))


def auroc(low: Tensor, high: Tensor) -> float:
    """Probability that a score of `high` exceeds one of `low`, ties counted half: the area under the ROC curve."""
    from scipy.stats import rankdata

    n, m = len(low), len(high)
    rank = rankdata(torch.cat([low, high]).double().cpu().numpy())
    return float((rank[n:].sum() - m * (m + 1) / 2) / (n * m))


# -- predictions of a learner


@dataclass(frozen=True)
class Scores:
    """Scores on test data, of one task or as means over tasks; None where a score is not available."""

    accuracy: float | None = None
    nll: float | None = None
    brier: float | None = None
    ece: float | None = None
    auroc: float | None = None
    calibration: Calibration | None = None


def score(prediction: Prediction, y: Tensor) -> float:
    """Share of right labels, or for numeric targets the share of variance explained (R²)."""
    if prediction.probs is not None:
        return float((prediction.labels == y.to(prediction.labels.device)).double().mean())
    mean = prediction.target_mean
    assert mean is not None
    target = y.reshape(mean.shape).double()
    left = float((target - mean.double().to(target.device)).square().sum())
    spread = float((target - target.mean(0)).square().sum())
    if spread == 0.0:
        return 1.0 if left == 0.0 else 0.0  # nothing to explain
    return 1.0 - left / spread


def judge(prediction: Prediction, y: Tensor) -> Scores:
    """Accuracy, likelihood and calibration of predictions against the targets y; no AUROC.

    A label that the learner has never seen, as may happen in a stream, has probability zero.
    """
    accuracy = score(prediction, y)
    if prediction.probs is None:
        return Scores(accuracy, -float(prediction.log_predictive(y).double().mean()))
    assert prediction.classes is not None
    column: dict[Label, int] = {label: number for number, label in enumerate(prediction.classes)}
    classes = torch.tensor([column.setdefault(label, len(column)) for label in y.tolist()])
    probs = torch.nn.functional.pad(prediction.probs.cpu(), (0, len(column) - prediction.probs.shape[1]))
    nll, bins = negative_log_likelihood(probs, classes), calibration(probs, classes)
    return Scores(accuracy, nll, brier(probs, classes), bins.error(), calibration=bins)


def means(scores: Sequence[Scores]) -> Scores:
    """The mean of each score, and all calibration bins together; None where one is not available or not finite."""
    found = {}
    for name in ("accuracy", "nll", "brier", "ece", "auroc"):
        known = [value for one in scores if (value := getattr(one, name)) is not None and math.isfinite(value)]
        found[name] = sum(known) / len(known) if len(known) == len(scores) else None
    bins = [one.calibration for one in scores if one.calibration is not None]
    return Scores(**found, calibration=sum(bins[1:], bins[0]) if len(bins) == len(scores) else None)


def final_scores(learner: Learner, benchmark: Benchmark, tasks: list[int]) -> Scores:
    """Means over tasks; AUROC of the predictive variance is for telling a task's test inputs from the next task's."""
    found = []
    for i, task in enumerate(tasks):  # the number of the learner's task that predicts for task i of the benchmark
        split, area = benchmark.test_split(i), None
        own = learner.predict(split.x, task=task)
        if len(tasks) > 1 and bool((own.variance.mean(1) > 0).any()):
            other = learner.predict(benchmark.test_split((i + 1) % len(tasks)).x, task=task)
            area = auroc(own.variance.mean(1), other.variance.mean(1))
        found.append(replace(judge(own, split.y), auroc=area))
    return means(found)


# -- where no task is named: accuracy over all labels, the inferred task, and novelty


@dataclass(frozen=True)
class AgnosticRow:
    """After one task: accuracy on each task so far, and means over them; None where not available."""

    accuracy: list[float]
    scores: Scores
    task_accuracy: float | None  # share of inputs whose most probable task is the right one, where each is one found
    novelty_auroc: float | None  # novelty of inputs of the next task against those of the tasks so far


def evaluated(
    learner: Learner, benchmark: Benchmark, tasks: list[int], *, whole: bool
) -> tuple[list[float], AgnosticRow | None]:
    """Accuracy on the test data of each task so far, with the task named, and scores without, on the same features.

    The latter are None where the tasks have no common targets. `tasks` has the number of the learner's task for each
    task of the benchmark. Only with `whole` are likelihood and calibration computed.
    """
    named, rows, found, right, seen = list[float](), list[float](), list[Scores](), list[float](), list[Tensor | None]()
    for on, task in enumerate(tasks):
        split = benchmark.test_split(on)
        try:
            p = learner.predict(split.x)
        except TaskError:
            p = None
        known = p is not None and p.task_probs is not None and task < p.task_probs.shape[1]
        own = p.in_task if p is not None and known else None
        named.append(score(learner.predict(split.x, task=task) if own is None else own(task), split.y))
        if p is None:
            continue
        rows.append(score(p, split.y))
        found.append(judge(p, split.y) if whole else Scores(rows[-1]))
        if p.task_probs is not None and sorted(tasks) == list(range(p.task_probs.shape[1])):
            right.append(float((p.task_probs.argmax(1) == task).double().mean()))
        seen.append(p.novelty)
    if len(rows) < len(tasks):
        return named, None
    area = None
    if len(tasks) < len(benchmark) and all(one is not None for one in seen):
        unseen: Prediction = learner.predict(benchmark.test_split(len(tasks)).x)
        if unseen.novelty is not None:
            area = auroc(torch.cat([one for one in seen if one is not None]), unseen.novelty)
    scores = replace(means(found), calibration=None)
    return named, AgnosticRow(rows, scores, sum(right) / len(right) if len(right) == len(tasks) else None, area)


# -- over seeds


@dataclass(frozen=True)
class Interval:
    """A mean over seeds with its standard deviation and 95 % interval (Student's t); None with one seed."""

    mean: float
    std: float | None = None
    low: float | None = None
    high: float | None = None
    per_seed: tuple[float, ...] = ()

    def clipped(self, least: float, most: float) -> Interval:
        """The same with an interval that does not leave the range of the metric."""
        if self.low is None or self.high is None:
            return self
        return replace(self, low=max(self.low, least), high=min(self.high, most))


def over_seeds(values: Iterable[float | None]) -> Interval | None:
    """Mean, standard deviation and interval of one value per seed; None if one of them is not available."""
    given = [math.nan if value is None else float(value) for value in values]
    if not given or not all(map(math.isfinite, given)):
        return None
    n, mean = len(given), sum(given) / len(given)
    if n == 1:
        return Interval(mean, per_seed=tuple(given))
    from scipy.stats import t

    std = math.sqrt(sum((value - mean) ** 2 for value in given) / (n - 1))
    half = float(t.ppf(0.975, n - 1)) * std / math.sqrt(n)
    return Interval(mean, std, mean - half, mean + half, tuple(given))


def spread(values: Floats) -> tuple[Floats, Floats | None]:
    """Mean and standard deviation over the first axis, the seeds; no standard deviation with one seed."""
    return values.mean(0), values.std(0, ddof=1) if len(values) > 1 else None


# -- task boundaries


@dataclass(frozen=True)
class BoundaryScore:
    """How well task switches were found at a threshold; `delay` is the mean one in minibatches of those found."""

    threshold: float
    precision: float
    recall: float
    f1: float
    delay: float | None


def declared_switches(statistic: Sequence[float | None], threshold: float, pause: int) -> list[int]:
    """Steps at which a statistic exceeds the threshold, none within `pause` steps after another."""
    found: list[int] = []
    for step, value in enumerate(statistic):
        if value is not None and value > threshold and (not found or step - found[-1] > pause):
            found.append(step)
    return found


def delays_of(true: Sequence[int], found: Sequence[int], tolerance: int) -> dict[int, int]:
    """The delay of each switch found: at the first declaration at most `tolerance` steps after it, each once."""
    delays: dict[int, int] = {}
    for step in found:
        match = next((switch for switch in true if switch not in delays and 0 <= step - switch <= tolerance), None)
        if match is not None:
            delays[match] = step - match
    return delays


def score_boundaries(true: Sequence[int], found: Sequence[int], threshold: float, tolerance: int) -> BoundaryScore:
    delays = delays_of(true, found, tolerance)
    hits = len(delays)
    precision = hits / len(found) if found else (1.0 if not true else 0.0)
    recall = hits / len(true) if true else 1.0
    f1 = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
    return BoundaryScore(threshold, precision, recall, f1, sum(delays.values()) / hits if hits else None)
