"""Predictions without a task, p(y | x) = Σ_k p(k | x) p(y | x, k) over all labels ever seen; checks of task numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from frcl.errors import TaskError
from frcl.few import Array, array_of, is_few, quiet
from frcl.learners.types import RARE, Beliefs, Prediction
from frcl.likelihoods import Label, Softmax, all_labels

Novelty = Tensor | Callable[[], Tensor | None] | None  # a function is called when the novelty is asked for
Columns = Sequence[Callable[[], Tensor]]  # mean and variance of functions, [n, C] each


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
    for number in sorted(set(numbers.tolist())):
        check_task(number, count, begin)
    return numbers.long()


@quiet
def summed(values: Tensor, groups: Sequence[int] | Tensor | Array, count: int) -> Tensor:
    """[n, count]: the sums of the columns of values [n, C] that belong to each group."""
    if is_few(values):
        own = array_of(values)
        places = np.asarray(groups) + count * np.arange(len(own))[:, None]
        found = np.bincount(places.ravel(), own.ravel(), len(own) * count).reshape(-1, count)
        return torch.from_numpy(found.astype(own.dtype))
    index = torch.as_tensor(groups, device=values.device)
    return values.new_zeros(len(values), count).index_add_(1, index, values)


@lru_cache(maxsize=64)
def columns_of(of_label: tuple[Label, ...]) -> tuple[tuple[Label, ...], Array]:
    """All labels, sorted and without repetition, and the place of each given label among them."""
    classes = all_labels(of_label, TaskError)
    place = {label: number for number, label in enumerate(classes)}
    return classes, np.array([place[label] for label in of_label])


def over_labels(
    probs: Tensor, of_label: Sequence[Label], task_probs: Tensor | None, novelty: Novelty,
    moments: Columns = (), in_task: Callable[[int], Prediction] | None = None,
) -> Prediction:  # fmt: skip
    """A prediction over all labels from the probabilities [n, C] of columns that each belong to a label.

    `moments` are mean and variance of independent functions, one per column; else those of the indicators.
    """
    classes, index = columns_of(tuple(of_label))
    own = summed(probs, index, len(classes))

    def density(y: Any) -> Tensor:
        known = Softmax(classes)
        return own.gather(1, known.encode(y, own.device, own.dtype)[:, None])[:, 0].log()

    mean, variance = [lambda part=part: summed(part(), index, len(classes)) for part in moments] or (
        lambda: own,
        lambda: own * (1 - own),
    )
    return Prediction(mean, variance, own, classes, None, None, density, task_probs, novelty, in_task)


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


def mixed(each: Sequence[Prediction], task_probs: Tensor, novelty: Novelty, *, named: bool = False) -> Prediction:
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


def over_tasks(
    beliefs: Beliefs, weights: Tensor, tasks: Sequence[int], novelty: Novelty = None, *, named: bool = False,
    in_task: Callable[[int], Prediction] | None = None,
) -> Prediction:  # fmt: skip
    """The mixture of what is believed in T tasks, with weights [n, T]; `named` if these say which task was named."""
    shown = None if named else weights
    if named or len(tasks) > 1:
        found = beliefs.weighted(tasks, weights)
        if found is not None:
            return over_labels(*found, shown, novelty, in_task=in_task)
    each = in_each_task(beliefs, weights, tasks)
    whole = mixed(each, weights, None, named=named) if named or len(each) > 1 else each[0]
    return replace(whole, task_probs=shown, novelty=novelty, in_task=in_task)


def mixture_moments(each: Sequence[tuple[Tensor, Tensor]], weights: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance [n, C] of a mixture of distributions with these means and variances; weights [n, T]."""
    means, variances = (torch.stack(part, 1) for part in zip(*each, strict=True))  # [n, T, C]
    w = weights[..., None]
    mean = (w * means).sum(1)
    return mean, (w * (variances + (means - mean[:, None]).square())).sum(1)
