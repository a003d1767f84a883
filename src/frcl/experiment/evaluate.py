"""Scores of a learner on a test split: one number for the accuracy matrix, the rest at the end of a seed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from frcl.data.tasks import Benchmark, Split
from frcl.experiment.metrics import auroc, brier, calibration, negative_log_likelihood
from frcl.experiment.results import Scores
from frcl.learners.protocol import Learner
from frcl.learners.types import Prediction


def score(learner: Learner, split: Split, task: int) -> float:
    """Share of right labels, or for numeric targets the share of variance explained (R²)."""
    return _right(learner.predict(split.x, task=task), split.y)


def _right(prediction: Prediction, y: Tensor) -> float:
    if prediction.probs is None:
        assert prediction.target_mean is not None
        return _r_squared(prediction.target_mean, y)
    return float((prediction.labels == y.to(prediction.labels.device)).double().mean())


def judge(prediction: Prediction, y: Tensor) -> Scores:
    """Accuracy, likelihood and calibration of predictions against the targets y; no AUROC."""
    accuracy = _right(prediction, y)
    if prediction.probs is None:
        return Scores(accuracy, -float(prediction.log_predictive(y).double().mean()))
    probs, classes = prediction.probs.cpu(), torch.searchsorted(torch.tensor(prediction.classes), y.cpu())
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
    """Means over tasks; AUROC of the predictive variance is for telling each task's test inputs from the next task's.

    `tasks` has the number of the learner's task that predicts for each task of the benchmark.
    """
    found = []
    for i, task in enumerate(tasks):
        split, area = benchmark.test_split(i), None
        own = learner.predict(split.x, task=task)
        if len(tasks) > 1 and bool((own.variance.mean(1) > 0).any()):
            other = learner.predict(benchmark.test_split((i + 1) % len(tasks)).x, task=task)
            area = auroc(own.variance.mean(1), other.variance.mean(1))
        found.append(replace(judge(own, split.y), auroc=area))
    return means(found)


def _r_squared(mean: Tensor, y: Tensor) -> float:
    target = y.reshape(mean.shape).double()
    left = float((target - mean.double().to(target.device)).square().sum())
    spread = float((target - target.mean(0)).square().sum())
    if spread == 0.0:
        return 1.0 if left == 0.0 else 0.0  # nothing to explain
    return 1.0 - left / spread
