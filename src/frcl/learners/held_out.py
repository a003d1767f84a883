"""Examples of a task that are held out of its training, and whether enough are left."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from frcl.errors import DataError, OptionError
from frcl.likelihoods import Likelihood
from frcl.seeding import fork

if TYPE_CHECKING:
    from frcl.learners.task import Examples, Model


def check_examples(model: Model, likelihood: Likelihood, examples: int, held: int = 0) -> None:
    """Refuse a task with fewer examples than points, or with nothing to temper where some are held out."""
    points = model.points(likelihood)
    if held and likelihood.classes is None:
        raise OptionError("held_out is for the probabilities of classes; a regression task has none: set it to 0")
    if examples < points:
        raise DataError(
            f"{examples} examples are fewer than the {points} inducing points to keep; lower points, or bring more data"
        )
    if points > examples - held:
        raise DataError(
            f"{examples} examples less {held} held out are fewer than the {points} inducing points "
            "to keep; lower points or held_out, or bring more data"
        )


def held_rows(y: Tensor, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """`count` random rows of examples with classes y to hold out, and the others, which contain every class."""
    rows = torch.randperm(len(y), generator=generator).to(y.device)
    held, learned = rows[:count], rows[count:]
    missing = torch.isin(y[held], y[learned], invert=True)
    if bool(missing.any()):
        back = [int((y[held] == label).nonzero()[0, 0]) for label in y[held][missing].unique()]
        stays = torch.ones(count, dtype=torch.bool, device=y.device)
        stays[back] = False
        held, learned = held[stays], torch.cat([learned, held[~stays]])
    return held, learned.sort().values


def split(model: Model, likelihood: Likelihood, task: int, x: Tensor, y: Tensor) -> tuple[Examples, Examples | None]:
    """What is learned from, and what is held out; the same for the same data. Too few examples are refused."""
    count = math.ceil(model.options.held_out * len(x))
    check_examples(model, likelihood, len(x), count)
    if not count:
        return (x, y), None
    held, learned = held_rows(y, count, fork(model.options.seed, f"held-out/{task}"))
    return (x[learned], y[learned]), (x[held], y[held])
