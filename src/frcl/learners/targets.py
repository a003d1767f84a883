"""Targets of a task: which likelihood they need, and the map between label values and classes 0..C−1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from frcl.errors import DataError, LabelError, OptionError
from frcl.learners.inputs import numeric_array
from frcl.learners.options import FRCLOptions, LikelihoodName
from frcl.likelihoods import Bernoulli, Gaussian, Likelihood, RobustMax, Softmax, likelihood_from

Label = int | str
Labels = np.ndarray[Any, np.dtype[Any]]
FEW = 20  # a float target with no more different whole values than this looks like labels


@dataclass(frozen=True)
class TargetSpec:
    """What the targets of one task are. `labels` is None for regression, else sorted and without repetition."""

    likelihood: Likelihood
    functions: int
    labels: tuple[Label, ...] | None

    @property
    def is_classification(self) -> bool:
        return self.labels is not None

    def encode(self, y: Any, device: torch.device, dtype: torch.dtype) -> Tensor:
        """Targets as the likelihood wants them: classes [N] (int64), or [N, C] floats for regression."""
        values = as_values(y)
        if self.labels is None:
            return _regression_targets(values, self.functions, dtype).to(device)
        known = np.array(self.labels)
        if isinstance(values, Tensor):
            if values.is_floating_point():
                raise LabelError(
                    f"targets are {values.dtype} but this task has labels {_show(self.labels)}; pass integers"
                )
            values = values.cpu().numpy()
        if values.ndim != 1:
            raise LabelError(f"labels must be one per example, [N]; got shape {tuple(values.shape)}")
        if (values.dtype.kind == "U") != (known.dtype.kind == "U"):
            raise LabelError(f"this task has labels {_show(self.labels)}; got values of type {values.dtype}")
        index = np.searchsorted(known, values).clip(max=len(known) - 1)
        unknown = values[known[index] != values]
        if len(unknown):
            raise LabelError(
                f"label {unknown[0].item()!r} was never seen in this task, which has {_show(self.labels)}. "
                "Declare every label of a task with start_task(labels=...) or FRCL(labels=...)."
            )
        return torch.from_numpy(index.astype(np.int64)).to(device)

    def decode(self, classes: Tensor) -> Tensor | Labels:
        """Classes back to label values: a tensor of integers, or an array of strings."""
        assert self.labels is not None
        if isinstance(self.labels[0], str):
            names: Labels = np.array(self.labels)[classes.cpu().numpy()]
            return names
        return torch.tensor(self.labels, device=classes.device)[classes]

    def to_json(self) -> dict[str, Any]:
        settings = asdict(self.likelihood)  # type: ignore[call-overload]
        return {"likelihood": settings, "functions": self.functions, "labels": self.labels}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> TargetSpec:
        likelihood = likelihood_from(data["likelihood"]["kind"], data["likelihood"])
        labels = None if data["labels"] is None else tuple(data["labels"])
        return cls(likelihood, int(data["functions"]), labels)


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


def infer_spec(
    y: Any, options: FRCLOptions, labels: Sequence[Label] | None, likelihood: str | None = None
) -> TargetSpec:
    """Which likelihood and labels a task has, from its targets and what the user declared."""
    kind = likelihood or options.likelihood
    check_likelihood(kind)
    values = as_values(y)
    looks_real = isinstance(values, Tensor) and values.is_floating_point()
    if kind == "gaussian" or (kind == "auto" and looks_real and labels is None):
        return _regression_spec(values, options, sure=kind == "gaussian")
    if looks_real:
        raise LabelError("classification needs integer or string labels; the targets are floats")
    return classification_spec(_distinct(values) if labels is None else labels, kind, options)


def check_likelihood(name: str) -> None:
    """Refuse a likelihood that there is not."""
    if name not in get_args(LikelihoodName):
        raise OptionError(f"unknown likelihood {name!r}; choose one of {', '.join(get_args(LikelihoodName))}")


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


def classification_spec(labels: Sequence[Label], kind: str, options: FRCLOptions) -> TargetSpec:
    """The specification of a classification task with these labels."""
    values = tuple(sorted(set(labels)))
    if len(values) < 2:
        raise LabelError(
            f"a classification task needs at least two classes; got {_show(values)}. For a stream, declare the "
            "labels with start_task(labels=...) or FRCL(labels=...)."
        )
    if kind == "auto":
        kind = "bernoulli" if len(values) == 2 else "softmax"
    match kind:
        case "bernoulli":
            model: Likelihood = Bernoulli()
        case "softmax":
            model = Softmax(options.samples, options.predict_samples)
        case "robustmax":
            model = RobustMax()
        case _:
            raise LabelError(f"likelihood {kind!r} is not for labels; choose bernoulli, softmax or robustmax")
    return TargetSpec(model, model.functions(len(values)), values)


def _regression_spec(values: Tensor | Labels, options: FRCLOptions, *, sure: bool) -> TargetSpec:
    if not isinstance(values, Tensor):
        raise DataError("regression needs numbers as targets; got strings")
    if not sure and values.numel() and bool((values == values.round()).all()):
        count = len(values.unique())
        if count <= FEW:
            raise DataError(
                f"the targets are floats with {count} different whole values, which look like labels. "
                'Convert them to integers for classification, or say likelihood="gaussian" for regression.'
            )
    outputs = 1 if values.ndim == 1 else values.shape[-1]
    if outputs == 0:
        raise DataError(f"targets of shape {tuple(values.shape)} have no outputs")
    return TargetSpec(Gaussian(options.target_noise), outputs, None)


def _regression_targets(values: Tensor | Labels, outputs: int, dtype: torch.dtype) -> Tensor:
    if not isinstance(values, Tensor):
        raise DataError("regression needs numbers as targets; got strings")
    if values.ndim == 1:
        values = values[:, None]
    if values.ndim != 2 or values.shape[1] != outputs:
        raise DataError(f"targets must be [N, {outputs}] for this task; got shape {tuple(values.shape)}")
    values = values.to(dtype)
    if not bool(values.isfinite().all()):
        raise DataError(f"targets contain values that are NaN or infinite in {dtype}; remove or rescale them first")
    return values


def _distinct(values: Tensor | Labels) -> list[Any]:
    if isinstance(values, Tensor):
        values = values.unique().cpu().numpy()
    return list(np.unique(values).tolist())


def _show(labels: Sequence[Label]) -> str:
    shown = ", ".join(repr(label) for label in labels[:12])
    return f"[{shown}{', …' if len(labels) > 12 else ''}]"
