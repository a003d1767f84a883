"""Numbers formatted for readers, and the name, unit and meaning of each metric."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from frcl.experiment.metrics import Interval
from frcl.experiment.results import MetricName, Result, Score

Unit = Literal["percent", "points", "plain"]
SPACE = "\N{NO-BREAK SPACE}"
MISSING = "not available"


@dataclass(frozen=True)
class Meaning:
    """How a metric is shown; `says` explains it in one sentence, `range` has its least and largest possible value."""

    key: MetricName
    title: str
    unit: Unit
    better: Literal["higher", "lower"]
    range: tuple[float, float]
    says: str

    @property
    def title_with_unit(self) -> str:
        return f"{self.title} {symbol(self.unit)}".strip()

    def of(self, result: Result) -> Interval | None:
        """The metric of a run, with an interval that is clipped to the range: an accuracy never exceeds 100 %."""
        metric = result.metric(self.key)
        least, most = self.range
        if result.score == "r2" and self.key != "auroc":  # R² has no lower bound, nor has the NLL of a density
            least, most = -math.inf, 1.0 if self.unit == "percent" else math.inf
        return None if metric is None else metric.clipped(least, most)


MEANINGS = (
    Meaning("average_accuracy", "Average accuracy", "percent", "higher", (0.0, 1.0),
            "Mean accuracy over all tasks after the last one was learned."),
    Meaning("accuracy_after_learning", "Accuracy after learning", "percent", "higher", (0.0, 1.0),
            "Mean accuracy on each task just after it was learned."),
    Meaning("forgetting", "Forgetting", "points", "lower", (-1.0, 1.0),
            "Mean drop of the earlier tasks from their best accuracy to the end, in percentage points."),
    Meaning("backward_transfer", "Backward transfer", "points", "higher", (-1.0, 1.0),
            "Mean change of the earlier tasks from just after learning to the end, in percentage points."),
    Meaning("forward_transfer", "Forward transfer", "points", "higher", (-1.0, 1.0),
            "Mean gain of the later tasks over a new learner that sees the task alone, in percentage points."),
    Meaning("nll", "Negative log-likelihood", "plain", "lower", (0.0, math.inf),
            "Of the test labels, in nats per example."),
    Meaning("brier", "Brier score", "plain", "lower", (0.0, 2.0),
            "Squared distance of the class probabilities from the true class."),
    Meaning("ece", "Calibration error", "percent", "lower", (0.0, 1.0),
            "Expected difference between confidence and accuracy (ECE)."),
    Meaning("auroc", "Novelty AUROC", "plain", "higher", (0.0, 1.0),
            "How well the variance separates a task's inputs from another task's; 0.5 is chance."),
)  # fmt: skip
BY_KEY = {meaning.key: meaning for meaning in MEANINGS}


def number(value: float | None, digits: int) -> str:
    """Fixed decimals with a minus sign (U+2212); no negative zero."""
    if value is None or not math.isfinite(value):
        return "–"
    rounded = f"{value:.{digits}f}"
    return rounded.lstrip("-") if float(rounded) == 0 else rounded.replace("-", "−")


def percent(value: float | None, digits: int = 2) -> str:
    """0.9712 → 97.12 %."""
    shown = number(None if value is None else 100 * value, digits)
    return shown if shown == "–" else f"{shown}{SPACE}%"


def bare(value: float | None, unit: Unit) -> str:
    """A number without its unit, for a column or a card that names the unit."""
    return number(value, 4) if unit == "plain" or value is None else number(100 * value, 2)


def symbol(unit: Unit) -> str:
    return {"percent": "%", "points": "pp", "plain": ""}[unit]


def mean_and_std(metric: Interval | None, unit: Unit) -> str:
    """97.12 ± 0.31, in the unit of the column."""
    if metric is None:
        return MISSING
    return bare(metric.mean, unit) + ("" if metric.std is None else f" ± {bare(metric.std, unit)}")


def interval(metric: Interval | None, unit: Unit) -> str:
    """The 95 % interval: 96.00 to 98.20."""
    if metric is None or metric.low is None or metric.high is None:
        return MISSING
    return f"{bare(metric.low, unit)} to {bare(metric.high, unit)}"


def size(count: int | None) -> str:
    """Bytes in powers of 1,000."""
    if count is None:
        return MISSING
    value, names = float(count), ("B", "kB", "MB", "GB", "TB")
    place = 0
    while abs(value) >= 999.5 and place < len(names) - 1:
        value, place = value / 1000, place + 1
    digits = 0 if place == 0 or value >= 99.95 else 1
    return f"{value:.{digits}f}{SPACE}{names[place]}"


def duration(seconds: float | None) -> str:
    """12.3 s, 4 min 05 s, 2 h 03 min."""
    if seconds is None:
        return MISSING
    if seconds < 99.95:
        return f"{seconds:.{1 if seconds >= 1 or seconds == 0 else 2}f}{SPACE}s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60}{SPACE}min {whole % 60:02d}{SPACE}s"
    minutes = round(seconds / 60)
    return f"{minutes // 60}{SPACE}h {minutes % 60:02d}{SPACE}min"


def score_word(score: Score) -> str:
    """The label of an axis of the accuracy matrix."""
    return "R²" if score == "r2" else "accuracy"


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + ("" if count == 1 else "s")
