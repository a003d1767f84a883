"""One minibatch of a stream: its boundary scores, and what the detector says of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from frcl.boundary import BoundaryDetector, Decision
from frcl.errors import NumericalError
from frcl.features import network_failures
from frcl.learners.state import CurrentTask

Score = Callable[[Tensor], Tensor]


def scores_of(score: Score, minibatches: Sequence[Tensor], *, at_once: bool = False) -> Tensor:
    """The boundary scores of some minibatches, [Σ B, C], on the CPU; `at_once`: in one call."""
    parts = [torch.cat(list(minibatches))] if at_once else list(minibatches)
    with torch.no_grad(), network_failures():
        scores = torch.cat([score(part).clone() for part in parts])
    scores = scores.cpu()  # where the test is made; to check them on the device would be to wait for it twice
    if not bool(scores.isfinite().all()):
        raise NumericalError("the features of these inputs are too large to be scored; scale the inputs")
    return scores


def decide(detector: BoundaryDetector, current: CurrentTask, score: Score, x: Tensor, *, allow: bool) -> Decision:
    """What the detector says of a minibatch; where it wants the last ones scored again, they are."""
    functions = sorted(current.shown) if _has_classes(current) and not detector.all_functions else None
    if not (detector.rescore and detector.due and allow and current.recent):
        return detector.update(scores_of(score, [x]), allow=allow, functions=functions)
    both = scores_of(score, [*current.recent, x], at_once=len(current.recent) == detector.window or not x.is_cuda)
    return detector.update(both[-len(x) :], reference=both[: -len(x)], functions=functions)


def remember(detector: BoundaryDetector | None, current: CurrentTask, x: Tensor, y: Tensor) -> None:
    """A step was taken on this minibatch: the next ones may be compared with it."""
    if detector is None:
        return
    if detector.rescore:
        current.recent = (*current.recent, x.clone())[-detector.window :]
    if _has_classes(current) and len(current.shown) < current.likelihood.functions:
        current.shown = current.shown | set(y.tolist())


def _has_classes(current: CurrentTask) -> bool:
    """Whether each function belongs to a class."""
    return current.likelihood.functions > 1 and current.likelihood.classes is not None
