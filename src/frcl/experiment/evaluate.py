"""How good a learner is on a test split: one number for the matrix, the rest at the end of a seed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from frcl.data.tasks import Benchmark, Split
from frcl.experiment.metrics import Calibration, auroc, brier, calibration, negative_log_likelihood
from frcl.learners.protocol import Learner
from frcl.learners.types import Prediction


def score(learner: Learner, split: Split, task: int) -> float:
    """Share of right labels, or for regression the share of variance explained (R²)."""
    return _right(learner.predict(split.x, task=task), split.y)


def _right(prediction: Prediction, y: Tensor) -> float:
    if prediction.probs is None:
        return _r_squared(prediction.mean, y)
    return float((prediction.labels == y.to(prediction.labels.device)).double().mean())


@dataclass(frozen=True)
class Judged:
    """A task's predictions against its labels; numbers of class probabilities are None where there are none."""

    accuracy: float
    nll: float
    brier: float | None
    bins: Calibration | None

    @property
    def ece(self) -> float | None:
        return None if self.bins is None else self.bins.error()


def judge(prediction: Prediction, y: Tensor) -> Judged:
    """How right and how sure predictions were."""
    accuracy = _right(prediction, y)
    if prediction.probs is None:
        return Judged(accuracy, _gaussian_nll(prediction, y), None, None)
    probs, classes = prediction.probs.cpu(), _classes(prediction, y)
    bins = calibration(probs, classes)
    return Judged(accuracy, negative_log_likelihood(probs, classes), brier(probs, classes), bins)


@dataclass(frozen=True)
class FinalScores:
    """Of one seed after the last task; a number is None where it is not available."""

    nll: float | None
    brier: float | None
    ece: float | None
    auroc: float | None
    calibration: Calibration | None

    def to_json(self) -> dict[str, Any]:
        bins = self.calibration
        pooled = None if bins is None else [bins.count.tolist(), bins.confidence.tolist(), bins.correct.tolist()]
        return {"nll": self.nll, "brier": self.brier, "ece": self.ece, "auroc": self.auroc, "calibration": pooled}


def final_scores(learner: Learner, benchmark: Benchmark, tasks: list[int]) -> FinalScores:
    """NLL, Brier and ECE as means over tasks; AUROC of telling each task's inputs from the next task's.

    `tasks` says which of the learner's tasks stands for each task of the benchmark.
    """
    predictions = [learner.predict(benchmark.test_split(i).x, task=t) for i, t in enumerate(tasks)]
    targets = [benchmark.test_split(i).y for i in range(len(tasks))]
    separation = _separation(learner, benchmark, tasks, predictions)
    found = [judge(prediction, y) for prediction, y in zip(predictions, targets, strict=True)]
    nll, bins = _mean([one.nll for one in found]), [one.bins for one in found if one.bins is not None]
    briers = [one.brier for one in found if one.brier is not None]
    if len(bins) < len(found):
        return FinalScores(nll, None, None, separation, None)
    return FinalScores(
        nll=nll,
        brier=_mean(briers),
        ece=_mean([one.error() for one in bins]),
        auroc=separation,
        calibration=sum(bins[1:], bins[0]),
    )


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
    return _mean(areas)


def _classes(prediction: Prediction, y: Tensor) -> Tensor:
    """Label values as column numbers of the probabilities."""
    values = torch.tensor(prediction.classes)
    return torch.searchsorted(values, y.cpu())


def _gaussian_nll(prediction: Prediction, y: Tensor) -> float:
    target = y.reshape(prediction.mean.shape).double().cpu()
    noise = 0.0 if prediction.noise is None else prediction.noise.double().cpu()
    total = prediction.variance.double().cpu() + noise
    error = (target - prediction.mean.double().cpu()).square()
    return float(0.5 * (math.log(2 * math.pi) + total.log() + error / total).sum(1).mean())


def _r_squared(mean: Tensor, y: Tensor) -> float:
    target = y.reshape(mean.shape).double()
    left = float((target - mean.double().to(target.device)).square().sum())
    spread = float((target - target.mean(0)).square().sum())
    if spread == 0.0:
        return 1.0 if left == 0.0 else 0.0  # nothing to explain
    return 1.0 - left / spread


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
