"""The options of the detector of task boundaries."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass, fields
from typing import Any, Literal, NamedTuple

from frcl.errors import OptionError
from frcl.options import NOT_NEGATIVE, Options, option

LEAST_RUN = 100  # shorter runs are over before there is enough to compare with


class Waits(NamedTuple):
    """Minibatches before the first test of all, in a task before a switch, and after a switch without a test."""

    warm_up: int
    minimum_time: int
    pause: int


@dataclass(frozen=True)
class DetectorSettings(Options):
    """What can be set on a detector."""

    threshold: float | None = option(
        None, "if given, the paper's test, Welch's, which declares a switch above it (the paper: 5); no other is made"
    )
    _: KW_ONLY
    expected_run: float = option(1_000_000.0, "without a threshold: minibatches between two false alarms, at least 100")
    labels: bool = option(
        True, "without a threshold: also test the predictive density of the labels, which may change on their own"
    )
    inputs: bool = option(True, "without a threshold: also test the inputs themselves, by fixed features of them")
    window: int = option(
        1, "with a threshold: how many of the last minibatches make the reference (the paper: 1; it suggests 10)"
    )
    rescore: bool = option(
        False, "with a threshold: score the reference again with the current model, so that learning is no change"
    )
    beside: int = option(
        0, "with a threshold: if not 0, a second test with this many minibatches, which decides nothing: its statistic "
        "is that of a detector with such a window; with `rescore` at most `window`", NOT_NEGATIVE,
    )  # fmt: skip
    all_functions: bool = option(False, "also test functions of classes that the task has not shown")
    log_space: bool = option(True, "test log-scores, which the paper found more robust")
    aggregate: Literal["max", "median", "mean"] = option("max", "with a threshold: of the statistics of the functions")
    warm_up: int | None = option(
        None, "minibatches before the first test of all (starting_time in Algorithm 1); None: 10 with a threshold, "
        "else 5", NOT_NEGATIVE,
    )  # fmt: skip
    minimum_time: int | None = option(
        None, "minibatches that a task lasts before a switch can be declared; None: as for warm_up", NOT_NEGATIVE
    )
    pause: int | None = option(None, "minibatches without a test after a switch; None: as for warm_up", NOT_NEGATIVE)

    def __post_init__(self) -> None:
        if isinstance(self.expected_run, int | float) and not LEAST_RUN <= self.expected_run < math.inf:
            raise OptionError(
                f"expected_run must be a number of minibatches of at least {LEAST_RUN}, not {self.expected_run}"
            )
        super().__post_init__()
        if self.rescore and self.beside > self.window:
            raise OptionError(f"with rescore, beside is at most window, {self.window} minibatches, not {self.beside}")
        if self.threshold is None and (self.rescore or self.beside or self.window > 1):
            raise OptionError("window, rescore and beside belong to Welch's test; give its threshold too, such as 5")

    def options(self) -> dict[str, Any]:
        """The settings by name, to make the same detector again."""
        return {one.name: getattr(self, one.name) for one in fields(DetectorSettings)}

    @property
    def waits(self) -> Waits:
        """How long it waits, by default where nothing is given."""
        usual = 5 if self.threshold is None else 10
        given = (self.warm_up, self.minimum_time, self.pause)
        return Waits(*(usual if one is None else one for one in given))
