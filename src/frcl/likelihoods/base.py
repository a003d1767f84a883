"""What a likelihood p(y | f) is, the registry of all of them, and what likelihoods of labels and of numbers share.

A likelihood is bound to the targets of one task: it knows their labels or their number, encodes them and says how
likely they are. Its formulas are pure functions of tensors in nats, one value per example [B]; random numbers
(`draws`) are passed in. A new one is a file of this package, or a class behind an entry point of `frcl.likelihoods`.
"""

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple, Protocol, Self, TypeVar

import numpy as np
import torch
from torch import Tensor

from frcl.errors import DataError, FrclError, LabelError, OptionError
from frcl.inputs import numeric_array
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
    # whether `predictive` may be given arrays of NumPy, and then gives them; a subclass has to say it again
    takes_arrays: ClassVar[bool] = False

    @classmethod
    def from_targets(cls, values: Tensor | Labels, labels: Sequence[Label] | None, settings: Mapping[str, Any]) -> Self:
        """The likelihood of a task with these targets (see `as_values`), labels if declared, and further fields."""

    @property
    def functions(self) -> int:
        """C, the number of functions f."""

    @property
    def classes(self) -> tuple[Label, ...] | None:
        """The label of each class; None for numeric targets."""
        return None

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
        """Values and constant weights, [B, R] each, with Fisher information of θ = Σ_r weights_r (∂ values_r / ∂θ)²."""

    def sample(self, f: Tensor, params: Params, generator: torch.Generator) -> Tensor:
        """y ~ p(y | f) for every f [..., C]: classes [...], or numbers [..., C]."""

    def to_json(self) -> dict[str, Any]:
        """The name and the fields, from which `likelihood_from_json` makes an equal likelihood."""
        return {"name": self.name, **asdict(self)}  # type: ignore[call-overload]


LIKELIHOODS: Registry[type[Likelihood]] = Registry("likelihood", of=type)

L = TypeVar("L", bound=Likelihood)


def register(cls: type[L]) -> type[L]:
    """Class decorator: add a likelihood to `LIKELIHOODS` under its name."""
    LIKELIHOODS.add(cls.name, cls)
    return cls


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
    if array.dtype.kind not in "biufU":
        raise DataError(f"targets of type {array.dtype} are not supported; use integers, strings or floats")
    if array.dtype.kind == "u" and array.size and int(array.max()) > np.iinfo(np.int64).max:
        raise LabelError(f"label {int(array.max())} does not fit a 64-bit integer; use smaller numbers or strings")
    if array.dtype.kind == "U":
        return array
    return torch.as_tensor(numeric_array(array, "targets") if array.dtype.kind == "f" else array.astype(np.int64))


# -- classes ---------------------------------------------------------------------------------------------------------


def plain_labels(labels: Sequence[Any] | None, least: int = 2) -> tuple[Label, ...] | None:
    """Labels as declared by a user, as plain integers or strings; `least` different ones or more."""
    if labels is None:
        return None
    if isinstance(labels, str | bytes) or not isinstance(labels, Iterable):
        raise LabelError(f"labels are a list of integers or of strings, such as [0, 1]; got {labels!r}")
    plain = tuple(label.item() if isinstance(label, np.generic | Tensor) else label for label in labels)
    kinds = {str if isinstance(label, str) else int if isinstance(label, int) else type(label) for label in plain}
    if kinds not in ({int}, {str}):
        raise LabelError("labels must be all integers or all strings")
    if len(set(plain)) < least:
        raise LabelError(f"a classification task needs at least two classes; got labels {list(plain)}")
    if any(isinstance(label, int) and abs(label) >= 2**63 for label in plain):
        raise LabelError("a label does not fit a 64-bit integer; use smaller numbers or strings")
    return tuple(label if isinstance(label, str) else int(label) for label in plain)


def task_labels(values: Tensor | Labels, declared: Sequence[Label] | None, least: int = 2) -> tuple[Label, ...]:
    """The labels of a task, sorted and without repetition: those declared, or those of its targets."""
    if isinstance(values, Tensor) and values.is_floating_point():
        raise LabelError("classification needs integer or string labels; the targets are floats")
    if declared is None:
        declared = (values.unique() if isinstance(values, Tensor) else np.unique(values)).tolist()
        if len(declared) < least:
            raise LabelError(
                f"a classification task needs at least two classes; got {_show(declared)}. For a stream, declare the "
                "labels with start_task(labels=...) or FRCL(labels=...)."
            )
    return tuple(sorted(set(declared)))


def all_labels(each: Iterable[Label], error: type[FrclError] = LabelError) -> tuple[Label, ...]:
    """Labels of several tasks, sorted and without repetition; numbers and strings are not mixed."""
    labels = set(each)
    if len({isinstance(label, str) for label in labels}) > 1:
        raise error("some labels are strings and others numbers; use one kind in all tasks, or name the task")
    return tuple(sorted(labels))


def with_labels(likelihood: Likelihood, y: Any) -> tuple[Label, ...]:
    """The labels of a task and those of y; LabelError where these are none, or of another type."""
    known, values = likelihood.classes, as_values(y)
    if known is None or values.ndim != 1 or (isinstance(values, Tensor) and values.is_floating_point()):
        raise LabelError("these are not labels of a task")
    return all_labels([*known, *task_labels(values, None, 1)])


@lru_cache(maxsize=32)
def _label_values(labels: tuple[Label, ...], device: torch.device) -> Tensor | None:
    """The labels as a tensor; None where they are the numbers of the classes."""
    with torch.inference_mode(False):
        return None if labels == tuple(range(len(labels))) else torch.tensor(labels, device=device)


def decoded(labels: tuple[Label, ...], classes: Tensor) -> Tensor | Labels:
    """The label of each class: a tensor of integers, or an array of strings."""
    if isinstance(labels[0], str):
        names: Labels = np.array(labels)[classes.cpu().numpy()]
        return names
    values = _label_values(labels, classes.device)
    return classes if values is None else values[classes]


def at_class(values: Tensor, y: Tensor) -> Tensor:
    """The value [...] that belongs to class y [...] among those of all classes, [..., C]."""
    return values.gather(-1, y.expand(values.shape[:-1])[..., None])[..., 0]


def softmax_divergence(old: Tensor, new: Tensor, own: Tensor) -> Tensor:
    """Σ_c p_c (log p_c − log q_c), p = softmax(old), q = softmax(new), over the classes where `own` is not zero."""
    there = own > 0
    absent = ~there & there.any(-1, keepdim=True)  # a row of padding alone stays finite
    offset = torch.zeros_like(own, dtype=old.dtype).masked_fill(absent, -torch.inf)
    log_old, log_new = ((f + offset).log_softmax(-1) for f in (old, new))
    return (log_old.exp() * torch.where(there, log_old - log_new, 0.0)).sum(-1)


@dataclass(frozen=True)
class ClassLikelihood(Likelihood):
    """A task with classes: its targets, and its predictive distribution by the probability of every class.

    By default there is one function per class, and divergence and Fisher information are those of the softmax.
    """

    labels: tuple[Label, ...]  # sorted, without repetition

    @classmethod
    def from_targets(cls, values: Tensor | Labels, labels: Sequence[Label] | None, settings: Mapping[str, Any]) -> Self:
        return cls(task_labels(values, labels), **settings)

    @property
    def functions(self) -> int:
        return len(self.labels)

    @property
    def classes(self) -> tuple[Label, ...]:
        return self.labels

    def encode(self, y: Any, device: torch.device, dtype: torch.dtype) -> Tensor:
        """The class [N] (int64) of every target, its position in the sorted `labels`."""
        values, known = as_values(y), np.array(self.labels)
        if isinstance(values, Tensor):
            if values.is_floating_point():
                raise LabelError(f"{values.dtype} targets; this task has labels {_show(self.labels)}; pass integers")
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
        return decoded(self.labels, classes)

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
        """log p_c and p_c, p = softmax(f): the Fisher information is Σ_c p_c (∂ log p_c / ∂θ)²."""
        return f.log_softmax(-1), f.softmax(-1).detach()


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
        return cls(outputs, **settings)

    @property
    def functions(self) -> int:
        return self.outputs

    def encode(self, y: Any, device: torch.device, dtype: torch.dtype) -> Tensor:
        """Finite floats [N, C]."""
        values = _numbers(as_values(y))
        values = values[:, None] if values.ndim == 1 else values
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


# -- the likelihood of a task ----------------------------------------------------------------------------------------


def check_name(name: str) -> None:
    """Refuse a likelihood that does not exist."""
    if name != "auto" and name not in LIKELIHOODS:
        raise OptionError(f"unknown likelihood {name!r}; choose one of auto, {', '.join(sorted(LIKELIHOODS))}")


def likelihood_for(
    y: Any, name: str = "auto", labels: Sequence[Label] | None = None, settings: Mapping[str, Any] | None = None,
    least: int = 2,
) -> Likelihood:  # fmt: skip
    """The likelihood of a task, from its targets and what the user declared.

    auto: gaussian for floats without labels, bernoulli for two labels, softmax for more. With least = 1 a single label
    is enough for the softmax: others may follow.
    """
    values = as_values(y)
    if name == "auto":
        if labels is None and isinstance(values, Tensor) and values.is_floating_point():
            refuse_what_looks_like_labels(values)
            name = "gaussian"
        else:
            labels = task_labels(values, labels, least)
            name = "bernoulli" if len(labels) == 2 else "softmax"
    else:
        check_name(name)
        if name == "softmax" and labels is None:
            labels = task_labels(values, None, least)
    kind: Any = LIKELIHOODS[name]
    own = {field.name for field in fields(kind)} - {"labels", "outputs"}  # these two come from the targets
    known = {key: value for key, value in (settings or {}).items() if key in own}
    found: Likelihood = kind.from_targets(values, labels, known)
    return found


def likelihood_from_json(data: Mapping[str, Any]) -> Likelihood:
    """The likelihood that `Likelihood.to_json` wrote, also after a round trip through JSON."""
    fields = {key: tuple(value) if isinstance(value, list) else value for key, value in data.items() if key != "name"}
    kind = LIKELIHOODS[data["name"]]
    for name, value in fields.items():
        if name == "labels":
            fits = value == tuple(sorted(set(plain_labels(value, 1) or ())))
        else:  # positive numbers of the types of their defaults
            default = getattr(kind, name)
            fits = type(value) is type(default) and (not isinstance(value, int | float) or 0 < value < 2**53)
        if not fits:
            raise DataError(f"{name} of likelihood {data['name']!r} is {value!r}")
    return kind(**fields)
