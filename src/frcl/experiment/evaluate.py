"""Scores of a learner on a test split: one number for the accuracy matrix, the rest at the end of a seed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from frcl.data.tasks import Benchmark, Split
from frcl.experiment.metrics import Calibration, auroc, brier, calibration, negative_log_likelihood
from frcl.experiment.results import FinalScores
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


@dataclass(frozen=True)
class Judged:
    """Scores of the predictions for one task; those of class probabilities are None for regression."""

    accuracy: float
    nll: float
    brier: float | None
    bins: Calibration | None

    @property
    def ece(self) -> float | None:
        return None if self.bins is None else self.bins.error()


def judge(prediction: Prediction, y: Tensor) -> Judged:
    """Accuracy, likelihood and calibration of predictions against the targets y."""
    accuracy = _right(prediction, y)
    if prediction.probs is None:
        return Judged(accuracy, -float(prediction.log_predictive(y).double().mean()), None, None)
    probs, classes = prediction.probs.cpu(), _classes(prediction, y)
    bins = calibration(probs, classes)
    return Judged(accuracy, negative_log_likelihood(probs, classes), brier(probs, classes), bins)


def final_scores(learner: Learner, benchmark: Benchmark, tasks: list[int]) -> FinalScores:
    """NLL, Brier and ECE as means over tasks; AUROC of telling each task's inputs from the next task's.

    `tasks` has the number of the learner's task that predicts for each task of the benchmark.
    """
    predictions = [learner.predict(benchmark.test_split(i).x, task=t) for i, t in enumerate(tasks)]
    targets = [benchmark.test_split(i).y for i in range(len(tasks))]
    separation = _separation(learner, benchmark, tasks, predictions)
    found = [judge(prediction, y) for prediction, y in zip(predictions, targets, strict=True)]
    nll, bins = mean([one.nll for one in found]), [one.bins for one in found if one.bins is not None]
    pooled = sum(bins[1:], bins[0]) if len(bins) == len(found) else None
    return FinalScores(nll, mean([one.brier for one in found]), mean([one.ece for one in found]), separation, pooled)


def _separation(
    learner: Learner, benchmark: Benchmark, tasks: list[int], predictions: list[Prediction]
) -> float | None:
    """Mean over tasks of the AUROC of the predictive variance: own test inputs against the next task's."""
    if len(tasks) < 2:
        return None
    areas = []
    for i, task in enumerate(tasks):
        other = learner.predict(benchmark.test_split((i + 1) % len(tasks)).x, task=task)
        own, strange = predictions[i].variance.mean(1), other.variance.mean(1)
        if not bool((own > 0).any()):
            return None
        areas.append(auroc(own, strange))
    return mean(areas)


def _classes(prediction: Prediction, y: Tensor) -> Tensor:
    """Label values as column numbers of the probabilities."""
    values = torch.tensor(prediction.classes)
    return torch.searchsorted(values, y.cpu())


def _r_squared(mean: Tensor, y: Tensor) -> float:
    target = y.reshape(mean.shape).double()
    left = float((target - mean.double().to(target.device)).square().sum())
    spread = float((target - target.mean(0)).square().sum())
    if spread == 0.0:
        return 1.0 if left == 0.0 else 0.0  # nothing to explain
    return 1.0 - left / spread


def mean(values: Sequence[float | None]) -> float | None:
    """The mean; None if one of the values is not available or not finite."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    return sum(known) / len(known) if len(known) == len(values) else None
