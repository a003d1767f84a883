"""Targets as users give them: checked, and mapped between label values and classes 0..C−1.

`ClassLikelihood` and `NumericLikelihood` are what likelihoods of labels and of numbers share. They are abstract, and
nothing in them is overridden.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from frcl.arrays import numeric_array
from frcl.errors import DataError, LabelError
from frcl.likelihoods.base import Label, Labels, Params, Predictive

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
    labels = tuple(sorted(set(_distinct(values) if declared is None else declared)))
    if len(labels) < 2:
        raise LabelError(
            f"a classification task needs at least two classes; got {_show(labels)}. For a stream, declare the "
            "labels with start_task(labels=...) or FRCL(labels=...)."
        )
    return labels


def encode_labels(labels: tuple[Label, ...], y: Any, device: torch.device) -> Tensor:
    """The class [N] (int64) of every target, its position in the sorted `labels`."""
    values, known = as_values(y), np.array(labels)
    if isinstance(values, Tensor):
        if values.is_floating_point():
            raise LabelError(f"targets are {values.dtype} but this task has labels {_show(labels)}; pass integers")
        values = values.cpu().numpy()
    if values.ndim != 1:
        raise LabelError(f"labels must be one per example, [N]; got shape {tuple(values.shape)}")
    if (values.dtype.kind == "U") != (known.dtype.kind == "U"):
        raise LabelError(f"this task has labels {_show(labels)}; got values of type {values.dtype}")
    index = np.searchsorted(known, values).clip(max=len(known) - 1)
    unknown = values[known[index] != values]
    if len(unknown):
        raise LabelError(
            f"label {unknown[0].item()!r} was never seen in this task, which has {_show(labels)}. "
            "Declare every label of a task with start_task(labels=...) or FRCL(labels=...)."
        )
    return torch.from_numpy(index.astype(np.int64)).to(device)


def decode_labels(labels: tuple[Label, ...], classes: Tensor) -> Tensor | Labels:
    """Classes back to label values: a tensor of integers, or an array of strings."""
    if isinstance(labels[0], str):
        names: Labels = np.array(labels)[classes.cpu().numpy()]
        return names
    return torch.tensor(labels, device=classes.device)[classes]


def at_class(values: Tensor, y: Tensor) -> Tensor:
    """The value [...] that belongs to class y [...] among those of all classes, [..., C]."""
    return values.gather(-1, y.expand(values.shape[:-1])[..., None])[..., 0]


@dataclass(frozen=True)
class ClassLikelihood(ABC):
    """The targets of a task with classes, and its predictive distribution by the probability of every class."""

    name: ClassVar[str]
    labels: tuple[Label, ...]  # sorted, without repetition

    @classmethod
    def from_targets(cls, values: Tensor | Labels, labels: Sequence[Label] | None, settings: Mapping[str, Any]) -> Self:
        return cls(task_labels(values, labels), **known_settings(cls, settings))

    @property
    def classes(self) -> tuple[Label, ...]:
        return self.labels

    def encode(self, y: Any, device: torch.device, dtype: torch.dtype) -> Tensor:
        return encode_labels(self.labels, y, device)

    def decode(self, classes: Tensor) -> Tensor | Labels:
        return decode_labels(self.labels, classes)

    def initial_parameters(self) -> dict[str, Tensor]:
        return {}

    @abstractmethod
    def probabilities(self, mean: Tensor, variance: Tensor, draws: Tensor) -> Tensor:
        """p(y = c) for every class, [B, classes]."""

    def predictive(self, mean: Tensor, variance: Tensor, draws: Tensor, params: Params) -> Predictive:
        return Predictive(self.probabilities(mean, variance, draws), None, None)

    def log_predictive(self, mean: Tensor, variance: Tensor, y: Tensor, draws: Tensor, params: Params) -> Tensor:
        return at_class(self.probabilities(mean, variance, draws), y).log()

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, **asdict(self)}


def _distinct(values: Tensor | Labels) -> list[Any]:
    if isinstance(values, Tensor):
        values = values.unique().cpu().numpy()
    return list(np.unique(values).tolist())


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


def count_outputs(values: Tensor | Labels) -> int:
    """C of numeric targets [N] or [N, C]."""
    if not isinstance(values, Tensor):
        raise DataError("regression needs numbers as targets; got strings")
    outputs = 1 if values.ndim == 1 else values.shape[-1]
    if outputs == 0:
        raise DataError(f"targets of shape {tuple(values.shape)} have no outputs")
    return outputs


def encode_numbers(outputs: int, y: Any, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Numeric targets as finite floats [N, C]."""
    values = as_values(y)
    if not isinstance(values, Tensor):
        raise DataError("regression needs numbers as targets; got strings")
    if values.ndim == 1:
        values = values[:, None]
    if values.ndim != 2 or values.shape[1] != outputs:
        raise DataError(f"targets must be [N, {outputs}] for this task; got shape {tuple(values.shape)}")
    values = values.to(dtype)
    if not bool(values.isfinite().all()):
        raise DataError(f"targets contain values that are NaN or infinite in {dtype}; remove or rescale them first")
    return values.to(device)


@dataclass(frozen=True)
class NumericLikelihood(ABC):
    """The targets of a task with C numbers per example, and integrals that need no draws."""

    name: ClassVar[str]
    outputs: int = 1

    @classmethod
    def from_targets(cls, values: Tensor | Labels, labels: Sequence[Label] | None, settings: Mapping[str, Any]) -> Self:
        return cls(count_outputs(values), **known_settings(cls, settings))

    @property
    def functions(self) -> int:
        return self.outputs

    @property
    def classes(self) -> None:
        return None

    def decode(self, classes: Tensor) -> Tensor | Labels:
        raise LabelError(f'likelihood "{self.name}" has numeric targets and no labels to decode')

    def draws_shape(self, batch: int, *, training: bool) -> tuple[int, ...]:
        return (0,)

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, **asdict(self)}
