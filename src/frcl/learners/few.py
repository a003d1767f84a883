"""Predictions of few inputs on a CPU with arrays: moments under a head, and the labels of several tasks at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from frcl.few import Array, array_of, is_few, is_finite, product, quiet
from frcl.learners.types import RARE, Summary
from frcl.likelihoods import Label, Likelihood, Predictive
from frcl.posterior import Moments
from frcl.summary import Head, raw_moments


@quiet
def few_features(outputs: Array, size: float) -> Array:
    """[size · outputs, 1]."""
    Phi = np.ones((outputs.shape[0], outputs.shape[1] + 1), outputs.dtype)
    np.multiply(outputs, size, out=Phi[:, :-1])
    return Phi


def few_moments(head: Head, Phi: Array) -> tuple[Array, Array]:
    """Mean and variance of f, [n, C] each, for features [n, K]."""
    single = head.root is None and Phi.dtype == np.float32  # no difference is computed: M > K
    mean, variance = raw_moments(Phi, *(head.single if single else head.arrays))
    if variance.shape != mean.shape:  # one for all functions
        variance = np.broadcast_to(variance, mean.shape)
    return mean.astype(Phi.dtype), variance.astype(Phi.dtype)


@quiet
def predictive(likelihood: Likelihood, moments: Moments, draws: Tensor, params: Mapping[str, Tensor]) -> Predictive:
    """The distribution of targets; where that is possible with arrays."""
    takes_arrays = vars(type(likelihood)).get("takes_arrays", False)  # a subclass may have other formulas
    if not (takes_arrays and is_few(moments.mean)):
        return likelihood.predictive(*moments, draws, params)
    mean, variance, own_draws = map(array_of, (*moments, draws))
    formula: Any = likelihood.predictive
    found = formula(mean, variance, own_draws, params)
    return Predictive(*(one if one is None else torch.from_numpy(one) for one in found))


class Alike(NamedTuple):
    """Tasks whose predictive distributions are computed as rows of one batch: their likelihoods differ in labels."""

    likelihood: Likelihood
    places: list[int]  # among all tasks of the mixture
    temperatures: Array | None  # [T], one where a task has none; None where none has one


class Mixture(NamedTuple):
    """Some tasks with classes, and what is constant of their mixture."""

    summaries: list[Summary]
    groups: list[Alike]
    labels: tuple[Label, ...]  # of every column, group by group


def mixture_of(summaries: list[Summary]) -> Mixture | None:
    """The mixture of these tasks; None where one has no classes, or a likelihood with parameters that were learned."""
    if any(one.likelihood.classes is None or one.likelihood_params for one in summaries):
        return None
    kinds: dict[object, list[int]] = {}
    for place, one in enumerate(summaries):
        settings: Any = one.likelihood
        given = [getattr(settings, field.name) for field in fields(settings) if field.name != "labels"]
        kind = type(settings), *given, settings.functions, len(settings.classes)
        kinds.setdefault(kind, []).append(place)
    groups = []
    for places in kinds.values():
        found = [summaries[place].temperature for place in places]
        temperatures = np.array([1.0 if one is None else float(one) for one in found])
        tempered = any(one is not None for one in found)
        groups.append(Alike(summaries[places[0]].likelihood, places, temperatures if tempered else None))
    order = [place for group in groups for place in group.places]
    labels = tuple(label for place in order for label in summaries[place].likelihood.classes or ())
    return Mixture(summaries, groups, labels)


@quiet
def weighted_columns(
    mixture: Mixture, head: Callable[[int], Head], Phi: Array, weights: Array, draws: Callable[[Likelihood], Tensor]
) -> Array | None:
    """w_k p(y | x, k) of all labels of all tasks, [n, Σ C_k]; None where moments are not finite. `head` is by place.

    Where a weight is below RARE the functions are taken as known, as `in_each_task` does.
    """
    parts, n, rare = [], len(Phi), weights < RARE
    some = rare.any()
    for group in mixture.groups:
        each = [_moments(head(place), Phi, rare[:, place] if some else None) for place in group.places]
        mean, variance = (np.concatenate(part) for part in zip(*each, strict=True))  # [T n, C]
        if not is_finite(mean, variance):
            return None
        if group.temperatures is not None:
            temperature = np.repeat(group.temperatures, n)[:, None].astype(Phi.dtype)
            mean, variance = mean / temperature, variance / temperature**2
        moments = Moments(torch.from_numpy(mean), torch.from_numpy(variance))
        found = predictive(group.likelihood, moments, draws(group.likelihood), {})
        assert found.probs is not None
        own = array_of(found.probs).reshape(len(each), n, -1) * weights.T[group.places, :, None]
        parts.append(own.swapaxes(0, 1).reshape(n, -1))
    return parts[0] if len(parts) == 1 else np.concatenate(parts, 1)


def _moments(head: Head, Phi: Array, known: Array | None) -> tuple[Array, Array]:
    """Those of one task; without variance where the functions are taken as known, [n]."""
    if known is not None and known.all():
        mean = product(Phi, array_of(head.weights)).astype(Phi.dtype)
        return mean, np.zeros_like(mean)
    mean, variance = few_moments(head, Phi)
    if known is not None:
        variance[known] = 0.0
    return mean, variance
