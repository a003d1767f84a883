"""Forgetting one task on purpose: what was kept of it is taken out of the state."""

from typing import Any

from torch import Tensor

from frcl.errors import TaskError
from frcl.exact.model import Tasks, without
from frcl.inference import TaskInference
from frcl.likelihoods import Likelihood


def forget_in(state: Any, number: int, inference: TaskInference, data: tuple[Tensor, Tensor] | None) -> None:
    """Take a past task out of a learner's state; `data` are its examples, where sums over all examples are kept."""
    likelihood: Likelihood = state.past[number].likelihood
    state.task_sums = _sums_without(state.task_sums, number, inference, likelihood, data)
    state.past = [one for i, one in enumerate(state.past) if i != number]
    for regulariser in state.regularisers:
        regulariser.forget(number, last=not state.past)


def _sums_without(
    kept: Tasks, number: int, inference: TaskInference, likelihood: Likelihood, data: tuple[Tensor, Tensor] | None
) -> Tasks:
    if len(kept.blocks) < 2 or inference.sums is None:
        return Tasks()
    if data is None:
        raise TaskError(
            "the sums that infer the task were taken over the examples of all tasks together; to take one out give its "
            f'data, as forget({number}, x, y). With task_inference="summaries" there are no such sums.'
        )
    return without(kept, number, inference.sums.of(*data, likelihood))
