"""Structured state as JSON and named tensors, and back: dataclasses, named tuples, containers, plain values.

Reading is driven by the type annotations of what is read, so that a file with a missing, superfluous or wrongly typed
part is refused with the name of that part. No code from a file is ever run.
"""

from __future__ import annotations

import dataclasses
import math
import types
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import torch
from torch import Tensor

from frcl.errors import CheckpointError, FrclError
from frcl.trees import is_named_tuple

T = TypeVar("T")
TENSOR = "tensor"  # {"tensor": name} stands for a tensor
Reader = Callable[[Any], Any]
_readers: dict[type, Reader] = {}


def read_with(kind: type, reader: Reader) -> None:
    """Have values annotated as `kind` (a protocol, say) read by `reader` from what their to_json() gave."""
    _readers[kind] = reader


def pack(value: Any) -> dict[str, Any]:
    """{"meta": JSON-able, "tensors": copies by name}."""
    tensors: dict[str, Tensor] = {}
    return {"meta": _pack(value, "", tensors), "tensors": tensors}


def _pack(value: Any, place: str, tensors: dict[str, Tensor]) -> Any:
    def part(key: object, item: Any) -> Any:
        return _pack(item, f"{place}/{key}" if place else str(key), tensors)

    if isinstance(value, Tensor):
        tensors[place] = value.detach().clone()
        return {TENSOR: place}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        to_json = getattr(value, "to_json", None)
        if to_json is not None:
            return to_json()
        return {field.name: part(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)}
    if is_named_tuple(value):
        return {name: part(name, item) for name, item in zip(value._fields, value, strict=True)}
    if isinstance(value, Mapping):
        return {str(key): part(key, item) for key, item in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(value)
    return [part(i, item) for i, item in enumerate(value)]


def unpack(kind: type[T], state: Any, device: torch.device | None = None) -> T:
    """What `pack` was given, of type `kind`, its tensors on `device`; anything else is a CheckpointError."""
    if not isinstance(state, Mapping) or not isinstance(state.get("tensors"), Mapping) or "meta" not in state:
        raise CheckpointError("this is not a state made by state_dict()")
    try:
        tensors = {name: value if device is None else value.to(device) for name, value in state["tensors"].items()}
        found = _unpack(kind, state["meta"], "state", tensors)
    except (FrclError, TypeError, ValueError, KeyError, AttributeError, RecursionError, OverflowError) as error:
        reason = str(error) if isinstance(error, FrclError) else repr(error)
        raise CheckpointError(f"the state is incomplete, or not one made by state_dict(): {reason}") from error
    return found  # type: ignore[no-any-return]


def _unpack(hint: Any, data: Any, place: str, tensors: dict[str, Tensor]) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _unpack_union(arguments, data, place, tensors)
    if hint is Tensor:
        return _tensor(data, place, tensors)
    if hint in _readers:
        return _readers[hint](_object(data, place))
    if origin in (list, tuple, set):
        return _unpack_sequence(origin, arguments, data, place, tensors)
    if origin is dict:
        items = _object(data, place).items()
        return {key: _unpack(arguments[1], value, f"{place}.{key}", tensors) for key, value in items}
    if isinstance(hint, type) and (dataclasses.is_dataclass(hint) or issubclass(hint, tuple)):
        return _unpack_fields(hint, _object(data, place), place, tensors)
    if hint is Any:
        return _unpack_any(data, place, tensors)
    return _plain(hint, data, place)


def _unpack_union(options: tuple[Any, ...], data: Any, place: str, tensors: dict[str, Tensor]) -> Any:
    if data is None and type(None) in options:
        return None
    rest = [option for option in options if option is not type(None)]
    if len(rest) == 1:
        return _unpack(rest[0], data, place, tensors)
    for option in rest:
        if isinstance(option, type) and isinstance(data, option) and not (option is int and isinstance(data, bool)):
            return data
    raise CheckpointError(f"{place} is {_shown(data)}, which is none of the types that it may have")


def _unpack_sequence(origin: Any, arguments: tuple[Any, ...], data: Any, place: str, tensors: dict[str, Tensor]) -> Any:
    if not isinstance(data, list | tuple):
        raise CheckpointError(f"{place} is {_shown(data)}; expected a list")
    return origin(_unpack(arguments[0], item, f"{place}[{i}]", tensors) for i, item in enumerate(data))


def _unpack_fields(kind: Any, data: Mapping[str, Any], place: str, tensors: dict[str, Tensor]) -> Any:
    hints = _hints(kind)
    missing, foreign = sorted(hints.keys() - data.keys()), sorted(data.keys() - hints.keys())
    if missing or foreign:
        raise CheckpointError(f"{place} has no {missing[0]!r}" if missing else f"{place} has an unknown {foreign[0]!r}")
    return kind(**{name: _unpack(hint, data[name], f"{place}.{name}", tensors) for name, hint in hints.items()})


@lru_cache(maxsize=128)
def _hints(kind: type) -> dict[str, Any]:
    hints = get_type_hints(kind)
    names = [f.name for f in dataclasses.fields(kind)] if dataclasses.is_dataclass(kind) else kind._fields  # type: ignore
    return {name: hints[name] for name in names}


def _unpack_any(data: Any, place: str, tensors: dict[str, Tensor]) -> Any:
    """A tree without a declared type: objects of tensors, lists and plain values."""
    if isinstance(data, Mapping):
        if set(data) == {TENSOR}:
            return _tensor(data, place, tensors)
        return {key: _unpack_any(value, f"{place}.{key}", tensors) for key, value in data.items()}
    if isinstance(data, list):
        return [_unpack_any(item, f"{place}[{i}]", tensors) for i, item in enumerate(data)]
    return data


def _plain(hint: Any, data: Any, place: str) -> Any:
    kinds = {int: int, float: float | int, str: str, bool: bool}
    if hint not in kinds:
        return data  # a Literal: whoever uses it checks it
    if not isinstance(data, kinds[hint]) or (isinstance(data, bool) and hint is not bool):
        raise CheckpointError(f"{place} is {_shown(data)}; expected {hint.__name__}")
    if hint is float:
        data = float(data)
        if not math.isfinite(data):
            raise CheckpointError(f"{place} is {data}; expected a finite number")
    return data


def _tensor(data: Any, place: str, tensors: dict[str, Tensor]) -> Tensor:
    name = _object(data, place).get(TENSOR)
    if not isinstance(name, str) or name not in tensors:
        raise CheckpointError(f"{place} is not in the file")
    return tensors[name].clone()


def _object(data: Any, place: str) -> Mapping[str, Any]:
    if not isinstance(data, Mapping):
        raise CheckpointError(f"{place} is {_shown(data)}; expected an object")
    return data


def _shown(data: Any) -> str:
    text = repr(data)
    return text if len(text) <= 40 else f"{text[:40]}…"
