"""Dataclasses to JSON values and back, driven by their type annotations."""

from __future__ import annotations

import functools
import math
import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

T = TypeVar("T")
LARGEST_INT = 2**63 - 1
MOST_AXES = 3  # of an array


class Damaged(ValueError):
    """A value does not fit the type of its field; the message is one line and names the field."""


def to_json(value: Any) -> Any:
    """Nested plain values: dataclasses become objects, tuples and arrays lists, NaN null."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_json(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {name: to_json(item) for name, item in value.items()}
    if isinstance(value, np.ndarray):
        return to_json(value.tolist())
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def from_json(kind: type[T], value: Any, where: str = "") -> T:
    """The inverse of `to_json`; a value that does not fit `kind` raises `Damaged`."""
    decoded: T = _decode(kind, value, where)
    return decoded


def _decode(kind: Any, value: Any, where: str) -> Any:
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return None if value is None else _decode(next(arg for arg in args if arg is not types.NoneType), value, where)
    if is_dataclass(kind):
        return _object(kind, value, where)
    if origin is np.ndarray:
        return _array(value, where)
    if origin in (list, tuple):
        return origin(_decode(args[0], item, f"{where}[{i}]") for i, item in enumerate(_typed(list, value, where)))
    if origin is dict:
        return {name: _decode(args[1], item, f"{where}.{name}") for name, item in _typed(dict, value, where).items()}
    if origin is Literal:
        if value not in args:
            raise Damaged(f'"{where}" is {short(value)}, not {" or ".join(map(repr, args))}')
        return value
    if kind is Any:
        return value
    return _number(kind, value, where) if kind in (int, float) else _typed(kind, value, where)


def _object(kind: Any, value: Any, where: str) -> Any:
    found, prefix = _typed(dict, value, where), f"{where}." if where else ""
    given, types_ = {}, _hints(kind)
    for field in fields(kind):
        if field.name in found:
            given[field.name] = _decode(types_[field.name], found[field.name], prefix + field.name)
        elif field.default is MISSING and field.default_factory is MISSING:
            raise Damaged(f'"{prefix}{field.name}" is missing')
    return kind(**given)


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


WORDS = {
    str: "a text",
    bool: "true or false",
    list: "a list",
    dict: "a table",
    int: "a whole number",
    float: "a number",
}


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
    text = (
        f"a number of {value.bit_length()} bits" if isinstance(value, int) and abs(value) > LARGEST_INT else repr(value)
    )
    return text if len(text) <= 40 else f"{text[:39]}…"
