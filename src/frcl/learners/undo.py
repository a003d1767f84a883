"""What observe() and end_task() did, undone after an error or interruption."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from frcl.graphs import put_back
from frcl.trees import Params

if TYPE_CHECKING:
    from frcl.learners.frcl import FRCL


@contextmanager
def undoing(learner: FRCL) -> Iterator[Params]:
    """Inside, an error or interruption leaves the state and the detector as they were.

    So does it the weights whose values are put into the dictionary that this gives.
    """
    with learner._lock:
        before, detector, weights = learner._state, learner.detector, Params()
        watched = None if detector is None else detector.state_dict()
        try:
            yield weights
        except BaseException:
            learner._state = before
            put_back([learner._theta()[name] for name in weights], list(weights.values()))
            if detector is not None and watched is not None:
                detector.load_state_dict(watched)
            raise
