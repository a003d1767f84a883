"""What a likelihood p(y | f) is, and the registry of all of them.

A likelihood is bound to the targets of one task: it knows their labels or their number, encodes them and says how
likely they are. Its formulas are pure functions of tensors in nats, one value per example [B]; random numbers
(`draws`) are passed in. A new likelihood is one file of this package, or one class behind an entry point of the group
`frcl.likelihoods`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, ClassVar, NamedTuple, Protocol, Self, TypeVar

import numpy as np
import torch
from torch import Tensor

from frcl.registry import Registry

Label = int | str
Labels = np.ndarray[Any, np.dtype[Any]]
Params = Mapping[str, Tensor]  # learned with the likelihood, by name


class Predictive(NamedTuple):
    """The distribution of targets: of classes, or of numbers by their first two moments."""

    probs: Tensor | None  # [B, classes], columns as in `Likelihood.classes`; None for numeric targets
    mean: Tensor | None  # E[y] [B, C] of numeric targets; None for classes
    variance: Tensor | None  # var[y] [B, C] of numeric targets; None for classes


class Likelihood(Protocol):
    """p(y | f) of one task. Implementations are frozen dataclasses whose fields can be written as JSON."""

    name: ClassVar[str]

    @classmethod
    def from_targets(cls, values: Tensor | Labels, labels: Sequence[Label] | None, settings: Mapping[str, Any]) -> Self:
        """The likelihood of a task with these targets (see `as_values`) and, if declared, these labels."""

    @property
    def functions(self) -> int:
        """C, the number of functions f."""

    @property
    def classes(self) -> tuple[Label, ...] | None:
        """The label of each class; None for numeric targets."""

    def encode(self, y: Any, device: torch.device, dtype: torch.dtype) -> Tensor:
        """Targets as a user gives them → classes [N] (int64), or [N, C] floats."""

    def decode(self, classes: Tensor) -> Tensor | Labels:
        """Classes → label values: a tensor of integers, or an array of strings."""

    def initial_parameters(self) -> dict[str, Tensor]:
        """What is learned with the likelihood, at its initial value [C]."""
        return {}

    def draws_shape(self, batch: int, *, training: bool) -> tuple[int, ...]:
        """Shape of the standard normal `draws` that a batch needs; (0,) if it needs none."""
        return (0,)

    def expected_log_prob(self, mean: Tensor, variance: Tensor, y: Tensor, draws: Tensor, params: Params) -> Tensor:
        """E[log p(y | f)] for f ~ N(mean, variance), both [B, C]; [B]."""

    def log_prob(self, f: Tensor, y: Tensor, params: Params) -> Tensor:
        """log p(y | f) at f [..., C]; [...]."""

    def predictive(self, mean: Tensor, variance: Tensor, draws: Tensor, params: Params) -> Predictive:
        """∫ p(y | f) N(f | mean, variance) df."""

    def log_predictive(self, mean: Tensor, variance: Tensor, y: Tensor, draws: Tensor, params: Params) -> Tensor:
        """log ∫ p(y | f) N(f | mean, variance) df; [B]."""

    def divergence(self, old: Tensor, new: Tensor, own: Tensor, params: Params) -> Tensor:
        """KL( p(· | old) ‖ p(· | new) ), [..., n], for functions [..., n, C'] that may be padded, C' ≥ C.

        `own`, [..., 1 or n, C'], is one where a function exists and zero at padding, which neither counts nor gets a
        gradient. Values of `params` are [..., 1, C'], padded by zeros.
        """

    def fisher_terms(self, f: Tensor, params: Params) -> tuple[Tensor, Tensor]:
        """Values and weights, [B, R] each, with Fisher information of θ = Σ_r weights_r (∂ values_r / ∂θ)², exact.

        Weights carry no gradient.
        """

    def sample(self, f: Tensor, params: Params, generator: torch.Generator) -> Tensor:
        """y ~ p(y | f) for every f [..., C]: classes [...], or numbers [..., C]."""

    def to_json(self) -> dict[str, Any]:
        """The name and the fields, from which `likelihood_from_json` makes an equal likelihood."""
        return {"name": self.name, **asdict(self)}  # type: ignore[call-overload]


LIKELIHOODS: Registry[type[Likelihood]] = Registry("likelihood")

L = TypeVar("L", bound=Likelihood)


def register(cls: type[L]) -> type[L]:
    """Class decorator: add a likelihood to `LIKELIHOODS` under its name."""
    LIKELIHOODS.add(cls.name, cls)
    return cls
