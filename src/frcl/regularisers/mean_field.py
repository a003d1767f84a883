"""Mean-field Gaussians over weights by name: their KL, draws from them, expected losses; coresets.

What holds θ in variational continual learning (Nguyen et al., 2018): one task's posterior is the next one's prior.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from frcl.errors import DataError
from frcl.selection import random_start
from frcl.trees import Params

Coreset = Literal["none", "random", "kcenter"]


class MeanField(NamedTuple):
    """q(w) = Π_j N(w_j; μ_j, σ_j²): μ and log σ by name, with the same names and shapes."""

    mean: Params
    log_std: Params


def isotropic(like: Mapping[str, Tensor], std: float) -> MeanField:
    """N(0, std² I) over weights of these names and shapes."""
    zero = {name: torch.zeros_like(value, requires_grad=False) for name, value in like.items()}
    return MeanField(zero, {name: torch.full_like(value, math.log(std)) for name, value in zero.items()})


def mean_field_kl(q: MeanField, p: MeanField, names: Iterable[str] | None = None) -> Tensor:
    """KL(q ‖ p) = Σ_j ½ (σ_q²/σ_p² − 1 − log σ_q²/σ_p² + (μ_q − μ_p)²/σ_p²), zero for q = p; of all weights or some."""
    total = torch.zeros(())
    for name in q.mean if names is None else names:
        ratio = 2.0 * (q.log_std[name] - p.log_std[name])  # log σ_q²/σ_p²
        moved = (q.mean[name] - p.mean[name]) * torch.exp(-p.log_std[name])
        total = total + 0.5 * (torch.expm1(ratio) - ratio + moved.square()).sum()
    return total


def standard_draws(like: Mapping[str, Tensor], S: int, generator: torch.Generator) -> Params:
    """ε ~ N(0, I), [S, ...] for each name, on the generator's device."""
    device = generator.device
    return {n: torch.randn(S, *v.shape, generator=generator, dtype=v.dtype, device=device) for n, v in like.items()}


def drawn(q: MeanField, draws: Params) -> Params:
    """w = μ + σ ε for draws ε of the shape of w, or S of them for draws [S, ...]."""
    return {name: mean + q.log_std[name].exp() * draws[name] for name, mean in q.mean.items()}


def expected_loss(loss: Callable[[Params], Tensor], q: MeanField, draws: Params) -> Tensor:
    """E_q[loss(w)], estimated by S draws ε [S, ...]: unbiased, differentiable in q."""
    weights = drawn(q, draws)  # taken one at a time: as fast as torch.func.vmap on a CPU, and any network will do
    parts = zip(*(value.unbind() for value in weights.values()), strict=True)
    return torch.stack([loss(dict(zip(weights, part, strict=True))) for part in parts]).mean()


def k_centres(x: Tensor, count: int, first: int = 0) -> Tensor:
    """Greedy k-centre: `first`, then always the row of x [n, ...] that is farthest from all rows chosen so far.

    Euclidean distance; `count` different indices. Leaves no row more than twice as far from a centre as the best choice
    of centres would (Gonzalez, 1985).
    """
    rows = (x if x.is_floating_point() else x.double()).reshape(len(x), -1)
    distance = rows.new_full((len(rows),), math.inf)  # squared, to the nearest centre; negative for centres
    chosen = [torch.tensor(first, device=x.device)]
    while len(chosen) < count:
        distance = torch.minimum(distance, (rows - rows[chosen[-1]]).square().sum(1))
        distance[chosen[-1]] = -1.0
        chosen.append(distance.argmax())
    return torch.stack(chosen)


def coreset_rows(
    kind: Coreset, x: Tensor, y: Tensor, points: int, per_class: int | None, generator: torch.Generator
) -> Tensor:
    """Which rows of a task with classes y [n] are its coreset: `points` of all, or `per_class` of each class."""
    if kind == "none":
        return torch.zeros(0, dtype=torch.int64, device=x.device)
    if per_class is None:
        count, option, whole, groups = points, "points", "the task", [torch.arange(len(x), device=x.device)]
    else:
        count, option, whole = per_class, "points_per_class", "a class of the task"
        groups = [(y == label).nonzero()[:, 0] for label in y.unique()]
    if (smallest := min(map(len, groups))) <= count:
        raise DataError(
            f"{option}={count} examples for the coreset, but {whole} has {smallest}, and some must remain to train on; "
            f"lower {option}"
        )
    chosen = []
    for group in groups:
        within = k_centres(x[group], count) if kind == "kcenter" else random_start(len(group), count, generator)
        chosen.append(group[within.to(x.device)])
    return torch.cat(chosen)
