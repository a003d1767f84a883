"""Structured state as JSON and back: dataclasses, named tuples, containers, plain values, arrays; tensors by name.

Reading is driven by the type annotations of what is read, so that a file with a missing, superfluous or wrongly typed
part is refused with the name of that part. No code from a file is ever run.
"""

import dataclasses
import functools
import inspect
import math
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np
import torch
from torch import Tensor

from frcl.errors import CheckpointError, FrclError
from frcl.options import LARGEST_INT

T = TypeVar("T")
DTYPES = {str(one): one for one in vars(torch).values() if isinstance(one, torch.dtype)}
TENSOR = "tensor"  # {"tensor": name} stands for a tensor
MOST_AXES = 3  # of an array
WORDS = {
    str: "a text", bool: "true or false", list: "a list", dict: "a table", int: "a whole number", float: "a number",
}  # fmt: skip
_readers: dict[type, Callable[[Any], Any]] = {}


class Damaged(ValueError):
    """A value does not fit the type of its field; the message is one line and names the field."""


def read_with(kind: type, reader: Callable[[Any], Any]) -> None:
    """Have values annotated as `kind` (a protocol, say) read by `reader` from what their to_json() gave."""
    _readers[kind] = reader


def to_json(value: Any, tensors: dict[str, Tensor] | None = None, place: str = "") -> Any:
    """Nested plain values: dataclasses become objects, tuples and arrays lists. Tensors are copied into `tensors`.

    Without `tensors` NaN becomes null, as JSON has no word for it.
    """

    def part(key: object, item: Any) -> Any:
        return to_json(item, tensors, f"{place}/{key}" if place else str(key))

    if isinstance(value, Tensor):
        assert tensors is not None
        tensors[place] = value.detach().clone()
        return {TENSOR: place}
    if value is None or isinstance(value, bool | int | float | str):
        return None if tensors is None and isinstance(value, float) and math.isnan(value) else value
    if isinstance(value, torch.dtype):
        return str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        if place and (own := getattr(value, "to_json", None)) is not None:
            return own()
        return {field.name: part(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)}
    if getattr(value, "_fields", None) is not None:
        return {name: part(name, item) for name, item in zip(value._fields, value, strict=True)}
    if isinstance(value, Mapping):
        return {str(key): part(key, item) for key, item in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(value)
    return [part(i, item) for i, item in enumerate(value.tolist() if isinstance(value, np.ndarray) else value)]


def from_json(kind: type[T], value: Any, where: str = "") -> T:
    """The inverse of `to_json`; a value that does not fit `kind` raises `Damaged`. Defaults fill in what is absent.

    Tensors, and tuples of a named kind, may be in the value as they are.
    """
    found: T = _Reader(None).read(kind, value, where)
    return found


def pack(value: Any) -> dict[str, Any]:
    """{"meta": JSON-able, "tensors": copies by name}."""
    tensors: dict[str, Tensor] = {}
    return {"meta": to_json(value, tensors), "tensors": tensors}


def unpack(kind: type[T], state: Any, device: torch.device | None = None) -> T:
    """What `pack` was given, of type `kind`, its tensors on `device`; anything else is a CheckpointError."""
    if not isinstance(state, Mapping) or not isinstance(state.get("tensors"), Mapping) or "meta" not in state:
        raise CheckpointError("this is not a state made by state_dict()")
    try:
        tensors = {name: value if device is None else value.to(device) for name, value in state["tensors"].items()}
        found: T = _Reader(tensors).read(kind, state["meta"], "")
    except (FrclError, TypeError, ValueError, KeyError, AttributeError, RecursionError, OverflowError) as error:
        reason = str(error) if isinstance(error, Damaged | FrclError) else repr(error)
        raise CheckpointError(f"the state is incomplete, or not one made by state_dict(): {reason}") from error
    return found


@dataclasses.dataclass
class _Reader:
    """Reads values by type. With tensors it is strict: every field must be there, and no other."""

    tensors: Mapping[str, Tensor] | None

    def read(self, kind: Any, value: Any, where: str) -> Any:
        origin, args = get_origin(kind), get_args(kind)
        if origin in (Union, types.UnionType):
            return self._union(args, value, where)
        if isinstance(value, Tensor | tuple) and isinstance(kind, type) and isinstance(value, kind):
            return value
        if kind is Tensor:
            return self._tensor(value, where)
        if kind in _readers:
            return _readers[kind](_typed(dict, value, where))
        if origin is np.ndarray:
            return _array(value, where)
        if origin in (list, tuple, set):
            items = enumerate(_typed(list, value, where))
            return origin(self.read(args[0], item, f"{where}[{i}]") for i, item in items)
        if origin is dict:
            items = _typed(dict, value, where).items()
            return {name: self.read(args[1], item, _inside(where, name)) for name, item in items}
        if dataclasses.is_dataclass(kind) or (isinstance(kind, type) and issubclass(kind, tuple)):
            return self._fields(kind, _typed(dict, value, where), where)
        if origin is Literal:
            if value not in args:
                raise Damaged(f'"{where}" is {short(value)}, not {" or ".join(map(repr, args))}')
            return value
        if kind is torch.dtype:
            if value not in DTYPES:
                raise Damaged(f'"{where}" is {short(value)}, not a type of tensors')
            return DTYPES[value]
        if kind is Any:
            return self._any(value, where) if self.tensors is not None else value
        return _number(kind, value, where) if kind in (int, float) else _typed(kind, value, where)

    def _union(self, kinds: Sequence[Any], value: Any, where: str) -> Any:
        rest = [one for one in kinds if one is not type(None)]
        if value is None and len(rest) < len(kinds):
            return None
        if len(rest) == 1:
            return self.read(rest[0], value, where)
        if not any(isinstance(value, one) and (one is bool or not isinstance(value, bool)) for one in rest):
            raise Damaged(f'"{where}" is {short(value)}, not {" or ".join(WORDS[one] for one in rest)}')
        return value

    def _fields(self, kind: Any, found: Mapping[str, Any], where: str) -> Any:
        given: dict[str, Any] = {}
        for name, (hint, optional) in _hints(kind).items():
            if name in found:
                given[name] = self.read(hint, found[name], _inside(where, name))
            elif self.tensors is not None or not optional:
                raise Damaged(f'"{_inside(where, name)}" is missing')
        foreign = sorted(found.keys() - given.keys())
        if foreign and self.tensors is not None:
            raise Damaged(f'"{_inside(where, foreign[0])}" is unknown')
        return kind(**given)

    def _tensor(self, value: Any, where: str) -> Tensor:
        name = _typed(dict, value, where).get(TENSOR)
        if self.tensors is None or not isinstance(name, str) or name not in self.tensors:
            raise Damaged(f'"{where}" is not in the file')
        return self.tensors[name].clone()

    def _any(self, value: Any, where: str) -> Any:
        """A tree without a declared type: objects of tensors, lists and plain values."""
        if isinstance(value, Mapping):
            if set(value) == {TENSOR}:
                return self._tensor(value, where)
            return {key: self._any(item, _inside(where, key)) for key, item in value.items()}
        if isinstance(value, list):
            return [self._any(item, f"{where}[{i}]") for i, item in enumerate(value)]
        return value


@functools.cache
def _hints(kind: Any) -> dict[str, tuple[Any, bool]]:
    """The type of each field, and whether it has a default."""
    hints, made_from = get_type_hints(kind), inspect.signature(kind).parameters
    return {name: (hints[name], field.default is not field.empty) for name, field in made_from.items()}


def _inside(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _typed(kind: type, value: Any, where: str) -> Any:
    if not isinstance(value, kind):
        raise Damaged(f'"{where}" is {short(value)}, not {WORDS[kind]}' if where else f"it is not {WORDS[kind]}")
    return value


def _number(kind: type, value: Any, where: str) -> Any:
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not whole and not (kind is float and isinstance(value, float)):
        raise Damaged(f'"{where}" is {short(value)}, not {WORDS[kind]}')
    if (whole and abs(value) > LARGEST_INT) or not math.isfinite(value):
        raise Damaged(f'"{where}" is {short(value)}, not a finite number')
    return kind(value)


def _array(value: Any, where: str) -> Any:
    """Nested lists of equal lengths as an array of floats, NaN for null."""

    def read(item: Any, at: str, shape: Sequence[int]) -> Any:
        if not shape:
            return math.nan if item is None else _number(float, item, at)
        if len(_typed(list, item, at)) != shape[0]:
            raise Damaged(f'"{at}" has {len(item)} entries, expected {shape[0]}')
        return [read(one, f"{at}[{i}]", shape[1:]) for i, one in enumerate(item)]

    shape, first = [], _typed(list, value, where)
    while isinstance(first, list):
        shape.append(len(first))
        first = first[0] if first else None
    if len(shape) > MOST_AXES:
        raise Damaged(f'"{where}" has lists in lists, {len(shape)} deep')
    return np.array(read(value, where, shape), dtype=np.float64).reshape(shape)


def short(value: Any) -> str:
    """A value to be shown in a message: at most 40 characters on one line."""
    large = isinstance(value, int) and abs(value) > LARGEST_INT
    text = f"a number of {value.bit_length()} bits" if large else repr(value)
    return text if len(text) <= 40 else f"{text[:39]}…"
