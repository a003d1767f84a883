"""Drift detectors of River, on the scores that the learner's own detector sees: a yardstick.

River is the extra `river` and is imported when a detector is made. Each detector has River's default settings.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from frcl.errors import OptionError

NAMES = ("ADWIN", "KSWIN", "PageHinkley")


def make(name: str, seed: int = 0) -> Any:
    """A detector of `river.drift` by its name."""
    if name not in NAMES:
        raise OptionError(f"{name!r} is not among the detectors {', '.join(NAMES)}")
    try:
        from river import drift
    except ImportError:
        raise OptionError("River is not installed; install it by `pip install 'frcl[river]'`") from None
    return drift.KSWIN(seed=seed) if name == "KSWIN" else getattr(drift, name)()


def found_in(name: str, scores: Sequence[float | None], seed: int = 0) -> list[int]:
    """The places in a sequence of scores at which a detector reports a drift; None is passed over."""
    detector, found = make(name, seed), []
    for t, score in enumerate(scores):
        if score is not None:
            detector.update(score)
            if detector.drift_detected:
                found.append(t)
    return found
