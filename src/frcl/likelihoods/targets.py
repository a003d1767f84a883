"""Targets as users give them: checked, and mapped between label values and classes 0..C−1.

`ClassLikelihood` and `NumericLikelihood` are what likelihoods of labels and of numbers share.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from frcl.arrays import numeric_array
from frcl.errors import DataError, LabelError
from frcl.likelihoods.base import Label, Labels, Likelihood, Params, Predictive

FEW = 20  # a float target with no more different whole values than this looks like labels


def as_values(y: Any) -> Tensor | Labels:
    """Targets as given by a user: integers and floats as a tensor, strings as an array."""
    if isinstance(y, Tensor):
        if y.is_complex():
            raise DataError("targets are complex; use integers, strings or real numbers")
        return y.detach() if y.is_floating_point() else y.detach().long()
    try:
        array = np.asarray(y)
    except ValueError as error:
        raise DataError(f"targets are not a regular array: {error}") from error
    if array.dtype.kind == "O" and all(isinstance(value, str) for value in array.flat):
        array = array.astype(str)
    match array.dtype.kind:
        case "u" if array.size and int(array.max()) > np.iinfo(np.int64).max:
            raise LabelError(f"label {int(array.max())} does not fit a 64-bit integer; use smaller numbers or strings")
        case "b" | "i" | "u":
            return torch.as_tensor(array.astype(np.int64))
        case "f":
            return torch.as_tensor(numeric_array(array, "targets"))
        case "U":
            return array
        case _:
            raise DataError(f"targets of type {array.dtype} are not supported; use integers, strings or floats")


def known_settings(cls: type[Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that are fields of a likelihood; its labels and outputs come from the targets."""
    names = {field.name for field in fields(cls)} - {"labels", "outputs"}
    return {name: value for name, value in settings.items() if name in names}


# -- classes ---------------------------------------------------------------------------------------------------------


def plain_labels(labels: Sequence[Any] | None) -> tuple[Label, ...] | None:
    """Labels as declared by a user, as plain integers or strings."""
    if labels is None:
        return None
    plain = tuple(label.item() if isinstance(label, np.generic | Tensor) else label for label in labels)
    kinds = {str if isinstance(label, str) else int if isinstance(label, int) else type(label) for label in plain}
    if kinds not in ({int}, {str}):
        raise LabelError("labels must be all integers or all strings")
    if len(set(plain)) < 2:
        raise LabelError(f"a classification task needs at least two classes; got labels {list(plain)}")
    return tuple(label if isinstance(label, str) else int(label) for label in plain)


def task_labels(values: Tensor | Labels, declared: Sequence[Label] | None) -> tuple[Label, ...]:
    """The labels of a task, sorted and without repetition: those declared, or those of its targets."""
    if isinstance(values, Tensor) and values.is_floating_point():
        raise LabelError("classification needs integer or string labels; the targets are floats")
    if declared is None:
        declared = (values.unique() if isinstance(values, Tensor) else np.unique(values)).tolist()
    labels = tuple(sorted(set(declared)))
    if len(labels) < 2:
        raise LabelError(
            f"a classification task needs at least two classes; got {_show(labels)}. For a stream, declare the "
            "labels with start_task(labels=...) or FRCL(labels=...)."
        )
    return labels


def at_class(values: Tensor, y: Tensor) -> Tensor:
    """The value [...] that belongs to class y [...] among those of all classes, [..., C]."""
    return values.gather(-1, y.expand(values.shape[:-1])[..., None])[..., 0]


def softmax_divergence(old: Tensor, new: Tensor, own: Tensor) -> Tensor:
    """Σ_c p_c (log p_c − log q_c), p = softmax(old), q = softmax(new), over the classes where `own` is not zero."""
    there = own > 0
    absent = ~there & there.any(-1, keepdim=True)  # a row of padding alone stays finite
    offset = torch.zeros_like(own, dtype=old.dtype).masked_fill(absent, -torch.inf)
    log_old, log_new = ((f + offset).log_softmax(-1) for f in (old, new))
    between = torch.where(there, log_old - log_new, 0.0)
    return (log_old.exp() * between).sum(-1)


def softmax_fisher_terms(f: Tensor) -> tuple[Tensor, Tensor]:
    """log p_c and p_c, p = softmax(f): the Fisher information is Σ_c p_c (∂ log p_c / ∂θ)²."""
    return f.log_softmax(-1), f.softmax(-1).detach()


@dataclass(frozen=True)
class ClassLikelihood(Likelihood):
    """A task with classes: its targets, and its predictive distribution by the probability of every class.

    Unless a likelihood says otherwise there is one function per class, and divergence and Fisher information are those
    of the softmax.
    """

    labels: tuple[Label, ...]  # sorted, without repetition

    @classmethod
    def from_targets(cls, values: Tensor | Labels, labels: Sequence[Label] | None, settings: Mapping[str, Any]) -> Self:
        return cls(task_labels(values, labels), **known_settings(cls, settings))

    @property
    def functions(self) -> int:
        return len(self.labels)

    @property
    def classes(self) -> tuple[Label, ...]:
        return self.labels

    def encode(self, y: Any, device: torch.device, dtype: torch.dtype) -> Tensor:
        """The class [N] (int64) of every target, its position in the sorted `labels`."""
        values, known, shown = as_values(y), np.array(self.labels), _show(self.labels)
        if isinstance(values, Tensor):
            if values.is_floating_point():
                raise LabelError(f"targets are {values.dtype} but this task has labels {shown}; pass integers")
            values = values.cpu().numpy()
        if values.ndim != 1:
            raise LabelError(f"labels must be one per example, [N]; got shape {tuple(values.shape)}")
        if (values.dtype.kind == "U") != (known.dtype.kind == "U"):
            raise LabelError(f"this task has labels {shown}; got values of type {values.dtype}")
        index = np.searchsorted(known, values).clip(max=len(known) - 1)
        unknown = values[known[index] != values]
        if len(unknown):
            raise LabelError(
                f"label {unknown[0].item()!r} was never seen in this task, which has {shown}. "
                "Declare every label of a task with start_task(labels=...) or FRCL(labels=...)."
            )
        return torch.from_numpy(index.astype(np.int64)).to(device)

    def decode(self, classes: Tensor) -> Tensor | Labels:
        if isinstance(self.labels[0], str):
            names: Labels = np.array(self.labels)[classes.cpu().numpy()]
            return names
        return torch.tensor(self.labels, device=classes.device)[classes]

    @abstractmethod
    def probabilities(self, mean: Tensor, variance: Tensor, draws: Tensor) -> Tensor:
        """p(y = c) for every class, [B, classes]."""

    def predictive(self, mean: Tensor, variance: Tensor, draws: Tensor, params: Params) -> Predictive:
        return Predictive(self.probabilities(mean, variance, draws), None, None)

    def log_predictive(self, mean: Tensor, variance: Tensor, y: Tensor, draws: Tensor, params: Params) -> Tensor:
        return at_class(self.probabilities(mean, variance, draws), y).log()

    def divergence(self, old: Tensor, new: Tensor, own: Tensor, params: Params) -> Tensor:
        """KL( softmax(old) ‖ softmax(new) )."""
        return softmax_divergence(old, new, own)

    def fisher_terms(self, f: Tensor, params: Params) -> tuple[Tensor, Tensor]:
        """log softmax(f) and softmax(f)."""
        return softmax_fisher_terms(f)


def _show(labels: Sequence[Label]) -> str:
    shown = ", ".join(repr(label) for label in labels[:12])
    return f"[{shown}{', …' if len(labels) > 12 else ''}]"


# -- numbers ---------------------------------------------------------------------------------------------------------


def refuse_what_looks_like_labels(values: Tensor) -> None:
    """Floats that are few different whole numbers are more likely labels than measurements."""
    if values.numel() and bool((values == values.round()).all()):
        count = len(values.unique())
        if count <= FEW:
            raise DataError(
                f"the targets are floats with {count} different whole values, which look like labels. "
                'Convert them to integers for classification, or say likelihood="gaussian" for regression.'
            )


@dataclass(frozen=True)
class NumericLikelihood(Likelihood):
    """A task with C numbers per example, and integrals that need no draws."""

    outputs: int = 1

    @classmethod
    def from_targets(cls, values: Tensor | Labels, labels: Sequence[Label] | None, settings: Mapping[str, Any]) -> Self:
        outputs = 1 if _numbers(values).ndim == 1 else values.shape[-1]
        if outputs == 0:
            raise DataError(f"targets of shape {tuple(values.shape)} have no outputs")
        return cls(outputs, **known_settings(cls, settings))

    @property
    def functions(self) -> int:
        return self.outputs

    @property
    def classes(self) -> None:
        return None

    def encode(self, y: Any, device: torch.device, dtype: torch.dtype) -> Tensor:
        """Finite floats [N, C]."""
        values = _numbers(as_values(y))
        if values.ndim == 1:
            values = values[:, None]
        if values.ndim != 2 or values.shape[1] != self.outputs:
            raise DataError(f"targets must be [N, {self.outputs}] for this task; got shape {tuple(values.shape)}")
        values = values.to(dtype)
        if not bool(values.isfinite().all()):
            raise DataError(f"targets contain values that are NaN or infinite in {dtype}; remove or rescale them first")
        return values.to(device)

    def decode(self, classes: Tensor) -> Tensor | Labels:
        raise LabelError(f'likelihood "{self.name}" has numeric targets and no labels to decode')


def _numbers(values: Tensor | Labels) -> Tensor:
    if not isinstance(values, Tensor):
        raise DataError("regression needs numbers as targets; got strings")
    return values
