"""Metrics of continual learning, of calibration and of uncertainty. Definitions in docs/metrics.md."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

BINS = 10


@dataclass
class AccuracyMatrix:
    """R[after, on]: accuracy on the test data of task `on`, just after learning task `after` ≥ `on`."""

    tasks: int
    _rows: list[list[float]] = field(default_factory=list)

    def append(self, row: Sequence[float]) -> None:
        """The next row: the accuracies on tasks 0 to `after`, just after learning task `after`."""
        if len(row) != len(self._rows) + 1 or len(self._rows) == self.tasks:
            raise ValueError(
                f"row {len(self._rows)} of {self.tasks} needs {len(self._rows) + 1} entries, not {len(row)}"
            )
        self._rows.append(list(row))

    def at(self, *, after: int, on: int) -> float:
        return self._rows[after][on]

    def to_json(self) -> list[list[float | None]]:
        """Rows "after", columns "on", None where a task had not been learned yet."""
        return [[*row, *[None] * (self.tasks - len(row))] for row in self._rows]

    def average(self) -> float:
        """Mean of the last row: accuracy over all tasks, after the last."""
        return sum(self._rows[-1]) / self.tasks

    def after_learning(self) -> float:
        """Mean of the diagonal: accuracy on each task just after learning it."""
        return sum(self.at(after=i, on=i) for i in range(self.tasks)) / self.tasks

    def backward_transfer(self) -> float | None:
        """Mean over all tasks but the last of R[last, i] − R[i, i]; negative where there is forgetting."""
        last = self.tasks - 1
        if last == 0:
            return None
        return sum(self.at(after=last, on=i) - self.at(after=i, on=i) for i in range(last)) / last

    def forgetting(self) -> float | None:
        """Mean over all tasks but the last of max_{i ≤ l < last} R[l, i] − R[last, i]."""
        last = self.tasks - 1
        if last == 0:
            return None
        best = [max(self.at(after=after, on=i) for after in range(i, last)) for i in range(last)]
        return sum(top - self.at(after=last, on=i) for i, top in enumerate(best)) / last

    def forward_transfer(self, alone: Sequence[float]) -> float | None:
        """Mean over all tasks but the first of R[i, i] − a_i, a_i the accuracy of a fresh learner on task i alone."""
        if self.tasks == 1:
            return None
        return sum(self.at(after=i, on=i) - alone[i] for i in range(1, self.tasks)) / (self.tasks - 1)


def negative_log_likelihood(probs: Tensor, y: Tensor) -> float:
    """−mean log p(y), in nats; probs [n, C], y [n] class numbers."""
    chosen = probs.double().gather(1, y[:, None])[:, 0]
    return float(-chosen.clamp_min(torch.finfo(torch.float32).tiny).log().mean())


def brier(probs: Tensor, y: Tensor) -> float:
    """Mean of Σ_c (p_c − 1[y = c])², between 0 and 2."""
    target = torch.nn.functional.one_hot(y, probs.shape[1]).double()
    return float((probs.double() - target).square().sum(1).mean())


@dataclass(frozen=True)
class Calibration:
    """Predictions by confidence (probability of the predicted class) in equal bins (low, high]."""

    count: Tensor
    confidence: Tensor  # summed over the predictions of a bin
    correct: Tensor  # how many of them were right

    def __add__(self, other: Calibration) -> Calibration:
        return Calibration(self.count + other.count, self.confidence + other.confidence, self.correct + other.correct)

    def error(self) -> float:
        """ECE: Σ_bins (count/n) · |share right − mean confidence|."""
        return float((self.correct - self.confidence).abs().sum() / self.count.sum())

    def to_json(self) -> dict[str, list[float | None]]:
        """Edges, counts, and mean confidence and accuracy of each bin (None for an empty one)."""

        def mean(total: Tensor) -> list[float | None]:
            return [t / n if n else None for t, n in zip(total.tolist(), self.count.tolist(), strict=True)]

        edges: list[float | None] = [i / BINS for i in range(BINS + 1)]
        counts: list[float | None] = [int(n) for n in self.count.tolist()]
        return {
            "edges": edges, "count": counts, "confidence": mean(self.confidence), "accuracy": mean(self.correct)
        }  # fmt: skip


def calibration(probs: Tensor, y: Tensor) -> Calibration:
    """Bins of the predictions `probs` [n, C] against the classes y [n]."""
    confidence, predicted = probs.double().max(1)
    which = (confidence * BINS).ceil().long().clamp(1, BINS) - 1
    zeros = torch.zeros(BINS, dtype=torch.float64, device=probs.device)
    right = (predicted == y).double()
    return Calibration(
        count=zeros.index_add(0, which, torch.ones_like(confidence)).cpu(),
        confidence=zeros.index_add(0, which, confidence).cpu(),
        correct=zeros.index_add(0, which, right).cpu(),
    )


def auroc(low: Tensor, high: Tensor) -> float:
    """Probability that a score of `high` exceeds one of `low`, ties counted half: the area under the ROC curve."""
    scores = torch.cat([low, high]).double().cpu()
    _, inverse, counts = scores.unique(return_inverse=True, return_counts=True)
    upper = counts.cumsum(0).double()
    rank = (upper - (counts.double() - 1) / 2)[inverse]  # mean rank of equal scores, from 1
    n, m = len(low), len(high)
    return float((rank[n:].sum() - m * (m + 1) / 2) / (n * m))


def over_seeds(values: Sequence[float | None]) -> dict[str, object] | None:
    """Mean, standard deviation and the 95 % interval of the mean (Student's t) over seeds; None if not available."""
    given = [value for value in values if value is not None and math.isfinite(value)]
    if not given or len(given) != len(values):
        return None
    n = len(given)
    mean = sum(given) / n
    summary: dict[str, object] = {"mean": mean, "std": None, "low": None, "high": None, "per_seed": given}
    if n > 1:
        from scipy.stats import t

        std = math.sqrt(sum((value - mean) ** 2 for value in given) / (n - 1))
        half = float(t.ppf(0.975, n - 1)) * std / math.sqrt(n)
        summary |= {"std": std, "low": mean - half, "high": mean + half}
    return summary


@dataclass(frozen=True)
class BoundaryScore:
    """How well task switches were found: counts, and the mean delay in minibatches of those found."""

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


def score_boundaries(true: Sequence[int], found: Sequence[int], threshold: float, tolerance: int) -> BoundaryScore:
    """A switch counts as found once, at the first declaration at most `tolerance` steps after it."""
    open_switches = list(true)
    delays = []
    for step in found:
        match = next((switch for switch in open_switches if 0 <= step - switch <= tolerance), None)
        if match is not None:
            open_switches.remove(match)
            delays.append(step - match)
    hits = len(delays)
    precision = hits / len(found) if found else (1.0 if not true else 0.0)
    recall = hits / len(true) if true else 1.0
    f1 = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
    return BoundaryScore(threshold, precision, recall, f1, sum(delays) / hits if hits else None)
