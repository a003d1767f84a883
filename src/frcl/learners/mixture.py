"""Predictions without a task, p(y | x) = Σ_k p(k | x) p(y | x, k) over all labels ever seen; checks of task numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from frcl.errors import TaskError
from frcl.learners.types import Beliefs, Prediction
from frcl.likelihoods import Label, Softmax, all_labels

RARE = 1e-4  # least probability of a task at which it is predicted in full


def check_task(task: int, count: int, begin: str) -> int:
    """The number of one of the `count` tasks that have been learned."""
    if count == 0:
        raise TaskError(f"nothing has been learned yet; call {begin} first")
    if not isinstance(task, int | np.integer) or isinstance(task, bool):
        raise TaskError(f"a task is named by its number, 0 to {count - 1}; got {task!r}")
    if not 0 <= task < count:
        raise TaskError(f"unknown task {task}; tasks 0 to {count - 1} have been learned")
    return int(task)


def checked_tasks(tasks: Any, count: int, inputs: int, begin: str) -> Tensor:
    """The task of each input, [inputs] int64, from one number for all or an array with one for each."""
    if np.ndim(tasks) == 0:
        one: Any = tasks.item() if isinstance(tasks, Tensor | np.ndarray) else tasks
        return torch.full((inputs,), check_task(one, count, begin))
    numbers = tasks.detach().cpu() if isinstance(tasks, Tensor) else torch.as_tensor(np.asarray(tasks))
    if numbers.shape != (inputs,) or numbers.is_floating_point() or numbers.dtype == torch.bool:
        raise TaskError(
            f"task is one number, or an array of {inputs} whole numbers, one for each input; got "
            f"{numbers.dtype} of shape {tuple(numbers.shape)}"
        )
    for number in numbers.unique().tolist():
        check_task(number, count, begin)
    return numbers.long()


def summed(values: Tensor, groups: Sequence[int] | Tensor, count: int) -> Tensor:
    """[n, count]: the sums of the columns of values [n, C] that belong to each group."""
    index = torch.as_tensor(groups, device=values.device)
    return values.new_zeros(len(values), count).index_add_(1, index, values)


def over_labels(
    probs: Tensor, of_label: Sequence[Label], task_probs: Tensor | None, novelty: Tensor | None,
    moments: tuple[Tensor, Tensor] | None = None,
) -> Prediction:  # fmt: skip
    """A prediction over all labels from the probabilities [n, C] of columns that each belong to a label.

    `moments` are mean and variance of independent functions, one per column; else those of the indicators.
    """
    classes = all_labels(of_label, TaskError)
    place = {label: number for number, label in enumerate(classes)}
    index = [place[label] for label in of_label]
    own = summed(probs, index, len(classes))
    mean, variance = (
        (own, own * (1 - own)) if moments is None else (summed(part, index, len(classes)) for part in moments)
    )

    def density(y: Any) -> Tensor:
        known = Softmax(classes)
        return own.gather(1, known.encode(y, own.device, own.dtype)[:, None])[:, 0].log()

    return Prediction(mean, variance, own, classes, density=density, task_probs=task_probs, novelty=novelty)


def in_each_task(beliefs: Beliefs, weights: Tensor, tasks: Sequence[int]) -> list[Prediction]:
    """What is believed in each of T tasks, to be mixed with these weights [n, T].

    Where a weight is below RARE the class probabilities are those of the mean functions, without their variance, which
    costs most of a prediction: the mixture changes by less than RARE for each such task.
    """
    each = []
    for task, weight in zip(tasks, weights.unbind(1), strict=True):
        rows = (weight >= RARE).nonzero()[:, 0]
        quick = beliefs.at_mean(task) if len(rows) < len(weight) else None
        if quick is None or quick.probs is None:
            quick = beliefs.within(task, None)
        elif len(rows):
            probs = beliefs.within(task, rows).probs
            quick = replace(quick, probs=quick.probs.index_copy(0, rows, probs))  # type: ignore[arg-type]
        each.append(quick)
    return each


def mixed(each: Sequence[Prediction], task_probs: Tensor, novelty: Tensor | None, *, named: bool = False) -> Prediction:
    """The mixture of what every task predicts, with weights [n, T]; `named` if the weights say which task was named.

    For numbers mean and variance are Σ_k p_k μ_k and Σ_k p_k (σ_k² + μ_k²) − (Σ_k p_k μ_k)².
    """
    shown = None if named else task_probs
    columns = [(one.probs, one.classes) for one in each if one.probs is not None and one.classes is not None]
    if len(columns) == len(each):
        weighted = [task_probs[:, k, None] * probs for k, (probs, _) in enumerate(columns)]
        labels = [label for _, classes in columns for label in classes]
        return over_labels(torch.cat(weighted, 1), labels, shown, novelty)
    targets = [one for one in each if one.target_mean is not None]
    if len(targets) < len(each) or len({one.mean.shape for one in each}) > 1:
        raise TaskError(
            "the tasks have different kinds of targets, classes and numbers or numbers of different width, so that "
            "they have no common distribution; name one task"
        )
    mean, variance = mixture_moments([(one.mean, one.variance) for one in each], task_probs)
    target = mixture_moments([(one.target_mean, one.target_variance) for one in each], task_probs)  # type: ignore[misc]

    def density(y: Any) -> Tensor:
        own = torch.stack([one.log_predictive(y) for one in each], 1)
        return (own + task_probs.log()).logsumexp(1)

    return Prediction(mean, variance, None, None, *target, density, shown, novelty)


def mixture_moments(each: Sequence[tuple[Tensor, Tensor]], weights: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance [n, C] of a mixture of distributions with these means and variances; weights [n, T]."""
    means, variances = (torch.stack(part, 1) for part in zip(*each, strict=True))  # [n, T, C]
    w = weights[..., None]
    mean = (w * means).sum(1)
    return mean, (w * (variances + (means - mean[:, None]).square())).sum(1)
