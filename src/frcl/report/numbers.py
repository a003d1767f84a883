"""Numbers as a person reads them, and what each metric is called and means."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from frcl.report.run import Metric

Unit = Literal["percent", "points", "plain"]
SPACE = "\N{NO-BREAK SPACE}"
MISSING = "not available"


@dataclass(frozen=True)
class Meaning:
    """How a metric is shown: `short` heads a column, `says` explains it in one sentence."""

    key: str
    title: str
    short: str
    unit: Unit
    better: Literal["higher", "lower"]
    says: str


MEANINGS = (
    Meaning(
        "average_accuracy", "Average accuracy", "accuracy", "percent", "higher",
        "Mean accuracy over all tasks after the last one was learned.",
    ),
    Meaning(
        "accuracy_after_learning", "Accuracy after learning", "after learning", "percent", "higher",
        "Mean accuracy on each task just after it was learned.",
    ),
    Meaning(
        "forgetting", "Forgetting", "forgetting", "points", "lower",
        "Mean drop of the earlier tasks from their best accuracy to the end, in percentage points.",
    ),
    Meaning(
        "backward_transfer", "Backward transfer", "backward", "points", "higher",
        "Mean change of the earlier tasks from just after learning to the end, in percentage points.",
    ),
    Meaning(
        "forward_transfer", "Forward transfer", "forward", "points", "higher",
        "Mean gain of the later tasks over a fresh learner that sees the task alone, in percentage points.",
    ),
    Meaning(
        "nll", "Negative log-likelihood", "NLL", "plain", "lower",
        "Of the test labels, in nats per example.",
    ),
    Meaning(
        "brier", "Brier score", "Brier", "plain", "lower",
        "Squared distance of the class probabilities from the truth.",
    ),
    Meaning(
        "ece", "Calibration error", "ECE", "percent", "lower",
        "Expected gap between confidence and accuracy (ECE).",
    ),
    Meaning(
        "auroc", "Novelty AUROC", "AUROC", "plain", "higher",
        "How well the variance tells a task's inputs from another task's; 0.5 is chance.",
    ),
)  # fmt: skip
BY_KEY = {meaning.key: meaning for meaning in MEANINGS}


def number(value: float | None, digits: int) -> str:
    """Fixed decimals with a true minus sign; no negative zero."""
    if value is None or not math.isfinite(value):
        return "–"
    rounded = f"{value:.{digits}f}"
    return rounded.lstrip("-") if float(rounded) == 0 else rounded.replace("-", "−")


def percent(value: float | None, digits: int = 2) -> str:
    """0.9712 → 97.12 %."""
    shown = number(None if value is None else 100 * value, digits)
    return shown if shown == "–" else f"{shown}{SPACE}%"


def bare(value: float | None, unit: Unit) -> str:
    """Without the sign of its unit, for a column or a card that names it once."""
    return number(value, 4) if unit == "plain" or value is None else number(100 * value, 2)


def symbol(unit: Unit) -> str:
    match unit:
        case "percent":
            return "%"
        case "points":
            return "pp"
        case "plain":
            return ""


def with_unit(value: float | None, unit: Unit) -> str:
    shown = bare(value, unit)
    return f"{shown}{SPACE}{symbol(unit)}" if symbol(unit) and shown != "–" else shown


def mean_and_std(metric: Metric | None, unit: Unit) -> str:
    """97.12 ± 0.31, in the unit of the column."""
    if metric is None:
        return MISSING
    spread = "" if metric.std is None else f" ± {bare(metric.std, unit)}"
    return bare(metric.mean, unit) + spread


def interval(low: float | None, high: float | None, unit: Unit) -> str:
    return MISSING if low is None or high is None else f"{bare(low, unit)} to {bare(high, unit)}"


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


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + ("" if count == 1 else "s")
