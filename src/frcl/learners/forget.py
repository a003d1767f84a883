"""Forgetting one task on purpose: what was kept of it is taken out of the state."""

from typing import Any

from torch import Tensor

from frcl.errors import TaskError
from frcl.exact.model import Tasks, without
from frcl.inference import TaskInference
from frcl.learners.mixture import check_task
from frcl.likelihoods import Likelihood


def forget(self: Any, task: int, x: Any = None, y: Any = None) -> None:
    """Drop everything that is kept of a past task, from memory and from what is saved; later tasks move up by one.

    Its summary or network, its head, its stored examples and what the regularisers keep of it alone are gone. What
    the tasks share is left as it is and may still know something of the task: the weights of the network, the scale
    of the features, and running sums over all tasks (the Fisher information of `Curvature`, the importances of
    `PathIntegral`, the standard deviations of VCL). With a frozen network nothing of it is shared but the scale;
    an `ExactGP` is then equal to one that never learned the task, but for the power that `held_out` chooses.

    `x` and `y` are the data of the task, as fit() was given them. They are needed where the inference of the task
    cannot do without its sums over all examples (`task_inference` "exact" or "both"). By default ("auto") the sums of
    all tasks are dropped where the data are not given, and the task is inferred from the points from then on.
    """
    with self._lock:
        number, past = check_task(task, len(self._state.past), self._opens), self._state.past
        if self._state.current is not None:
            raise TaskError(f"task {len(past)} is still open: end it{self._way_out or ' first'}, then forget")
        data = None
        if x is not None:
            data = self._inputs(x, y), past[number].likelihood.encode(y, self.device, self.dtype)
        with self._changing() as state:
            forget_in(state, number, self._inference, data)
            self._drop(number)


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
    if len(kept.blocks) < 2 or inference.sums is None or (data is None and not inference.needs_sums):
        return Tasks()
    if data is None:
        raise TaskError(
            "the sums that infer the task were taken over the examples of all tasks together; to take one out give its "
            f'data, as forget({number}, x, y). With task_inference="auto" they would be dropped instead.'
        )
    return without(kept, number, inference.sums.of(kept, *data, likelihood))
