"""Choosing the inducing inputs of a task among its data (Section 2.4, Appendix D): what every criterion shares."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from frcl.errors import OptionError
from frcl.likelihoods import Likelihood
from frcl.posterior import Moments, Posterior
from frcl.registry import Registry
from frcl.summary import belief_from_weights, head_moments, make_head

Search = Literal["swap", "greedy"]
Start = Literal["uniform", "balanced"]


@dataclass(frozen=True)
class Selected:
    """The points found, index [M] into the task's data, and the objective at the start and at `index`."""

    index: Tensor
    before: float
    after: float


@dataclass(frozen=True)
class TaskData:
    """What a supervised criterion looks at: features, targets and the posterior of the task just learned.

    `draws` are the Monte Carlo draws of the likelihood, the same for every candidate set, so that two sets are compared
    on equal terms. `size` is N of the task, of which these may be a part.
    """

    Phi: Tensor
    y: Tensor
    q: Posterior
    likelihood: Likelihood
    params: Mapping[str, Tensor]
    prior_std: float
    u_noise: float
    draws: Tensor
    size: float

    def moments(self, index: Tensor) -> Moments:
        """f at all N inputs, predicted from q(u) at the points in `index`."""
        belief = belief_from_weights(self.q, self.Phi[index], self.u_noise, self.prior_std)
        moments = head_moments(make_head(self.Phi[index], belief), self.Phi)
        return Moments(*(value.to(self.Phi) for value in moments))

    def others(self, index: Tensor) -> Tensor:
        """True at the examples that are not inducing points; everywhere if all of them are."""
        rest = torch.ones(len(self.Phi), dtype=torch.bool, device=self.Phi.device)
        if len(index) < len(rest):
            rest[index] = False
        return rest


Objective = Callable[[TaskData, Tensor], float]


@dataclass(frozen=True)
class Criterion:
    """A criterion, to be minimised, by name. `objective` is None for those that have a search of their own."""

    name: str
    objective: Objective | None = None
    needs_classes: bool = False


CRITERIA: Registry[Criterion] = Registry("criterion", "criteria", of=Criterion)
CRITERIA.add("random", Criterion("random"))  # these two look at features alone: trace.py
CRITERIA.add("trace", Criterion("trace"))


def criterion(name: str, *, needs_classes: bool = False) -> Callable[[Objective], Objective]:
    """Register a supervised criterion: a function of (task, index) to be minimised by swaps."""

    def add(objective: Objective) -> Objective:
        CRITERIA.add(name, Criterion(name, objective, needs_classes))
        return objective

    return add


@dataclass(frozen=True)
class Recipe:
    """How points are chosen: criterion, search, number of proposals, examples that a supervised criterion sees."""

    criterion: str = "trace"
    search: Search = "swap"
    steps: int = 1000
    examples: int = 10_000

    @cached_property
    def is_supervised(self) -> bool:
        return CRITERIA[self.criterion].objective is not None

    def check(self) -> None:
        """Refuse an unknown criterion, or one that cannot be searched this way."""
        if self.criterion not in CRITERIA:
            raise OptionError(f"selection={self.criterion!r} is unknown; choose one of {', '.join(CRITERIA)}")
        if self.search == "greedy" and self.criterion != "trace":
            raise OptionError(f'search="greedy" is for selection="trace", not for {self.criterion!r}')
