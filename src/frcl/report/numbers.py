"""Numbers formatted for readers, and the name, unit and meaning of each metric."""

import math
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from frcl.experiment.metrics import Interval
from frcl.experiment.results import MetricName, Score

Unit = Literal["percent", "points", "plain"]
SYMBOLS: dict[Unit, str] = {"percent": "%", "points": "pp", "plain": ""}
SCORE_NAMES: dict[Score, str] = {"accuracy": "accuracy", "r2": "R²"}
TEXTS: dict[str, dict[str, Any]] = tomllib.loads(Path(__file__).with_name("texts.toml").read_text(encoding="utf-8"))
SPACE = "\N{NO-BREAK SPACE}"
MISSING = "not available"


@dataclass(frozen=True)
class Meaning:
    """How a metric is shown; `says` explains it in one sentence."""

    key: MetricName
    title: str
    unit: Unit
    better: Literal["higher", "lower"]
    says: str

    @property
    def title_with_unit(self) -> str:
        return f"{self.title} {SYMBOLS[self.unit]}".strip()


MEANINGS = tuple(Meaning(**{"key": key, **texts}) for key, texts in TEXTS["metrics"].items())
BY_KEY = {meaning.key: meaning for meaning in MEANINGS}


def number(value: float | None, digits: int) -> str:
    """Fixed decimals with a minus sign (U+2212); no negative zero."""
    if value is None or not math.isfinite(value):
        return "–"
    rounded = f"{value:.{digits}f}"
    return rounded.lstrip("-") if float(rounded) == 0 else rounded.replace("-", "−")


def in_unit(value: float | None, unit: Unit) -> str:
    """A number without its unit, for a column or a card that names the unit."""
    return number(value, 4) if unit == "plain" or value is None else number(100 * value, 2)


def percent(value: float | None, digits: int = 2) -> str:
    """0.9712 → 97.12 %."""
    shown = number(None if value is None else 100 * value, digits)
    return shown if shown == "–" else f"{shown}{SPACE}%"


def mean_and_std(metric: Interval | None, unit: Unit) -> str:
    """97.12 ± 0.31, in the unit of the column."""
    if metric is None:
        return MISSING
    return in_unit(metric.mean, unit) + ("" if metric.std is None else f" ± {in_unit(metric.std, unit)}")


def interval(metric: Interval | None, unit: Unit) -> str:
    """The 95 % interval: 96.00 to 98.20."""
    if metric is None or metric.low is None or metric.high is None:
        return MISSING
    return f"{in_unit(metric.low, unit)} to {in_unit(metric.high, unit)}"


def size(count: int | None) -> str:
    """Bytes in powers of 1,000."""
    if count is None:
        return MISSING
    value, names = float(count), ["B", "kB", "MB", "GB", "TB"]
    while abs(value) >= 999.5 and len(names) > 1:
        value, names = value / 1000, names[1:]
    return f"{value:.{0 if names[0] == 'B' or value >= 99.95 else 1}f}{SPACE}{names[0]}"


def duration(seconds: float | None) -> str:
    """12.3 s, 4 min 05 s, 2 h 03 min."""
    if seconds is None:
        return MISSING
    if seconds < 99.95:
        return f"{seconds:.{1 if seconds >= 1 or seconds == 0 else 2}f}{SPACE}s"
    short = round(seconds) < 3600
    whole, large, small = (round(seconds), "min", "s") if short else (round(seconds / 60), "h", "min")
    return f"{whole // 60}{SPACE}{large} {whole % 60:02d}{SPACE}{small}"
