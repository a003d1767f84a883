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


@dataclass(frozen=True)
class Judged:
    """Scores of the predictions for one task; those of class probabilities are None for regression."""

    accuracy: float
    nll: float
    brier: float | None = None
    bins: Calibration | None = None

    @property
    def ece(self) -> float | None:
        return None if self.bins is None else self.bins.error()


def score(learner: Learner, split: Split, task: int) -> float:
    """Share of right labels, or for numeric targets the share of variance explained (R²)."""
    return _right(learner.predict(split.x, task=task), split.y)


def _right(prediction: Prediction, y: Tensor) -> float:
    if prediction.probs is None:
        assert prediction.target_mean is not None
        return _r_squared(prediction.target_mean, y)
    return float((prediction.labels == y.to(prediction.labels.device)).double().mean())


def judge(prediction: Prediction, y: Tensor) -> Judged:
    """Accuracy, likelihood and calibration of predictions against the targets y."""
    accuracy = _right(prediction, y)
    if prediction.probs is None:
        return Judged(accuracy, -float(prediction.log_predictive(y).double().mean()))
    probs, classes = prediction.probs.cpu(), torch.searchsorted(torch.tensor(prediction.classes), y.cpu())
    nll, bins = negative_log_likelihood(probs, classes), calibration(probs, classes)
    return Judged(accuracy, nll, brier(probs, classes), bins)


def final_scores(learner: Learner, benchmark: Benchmark, tasks: list[int]) -> FinalScores:
    """NLL, Brier and ECE as means over tasks; AUROC of telling each task's inputs from the next task's.

    `tasks` has the number of the learner's task that predicts for each task of the benchmark.
    """
    found: list[Judged] = []
    areas: list[float] = []  # under the ROC curve of the predictive variance: own test inputs against the next task's
    for i, task in enumerate(tasks):
        split = benchmark.test_split(i)
        own = learner.predict(split.x, task=task)
        found.append(judge(own, split.y))
        if len(tasks) > 1 and bool((own.variance.mean(1) > 0).any()):
            other = learner.predict(benchmark.test_split((i + 1) % len(tasks)).x, task=task)
            areas.append(auroc(own.variance.mean(1), other.variance.mean(1)))
    bins = [one.bins for one in found if one.bins is not None]
    return FinalScores(
        nll=mean([one.nll for one in found]),
        brier=mean([one.brier for one in found]),
        ece=mean([one.ece for one in found]),
        auroc=mean(areas) if len(areas) == len(tasks) else None,
        calibration=sum(bins[1:], bins[0]) if len(bins) == len(found) else None,
    )


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
