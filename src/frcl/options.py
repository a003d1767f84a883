"""Options of learners: a field, its default, its range and its description, written once.

The description appears in `help()`, in the reference page and in the command line's help.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar, get_args, get_origin, get_type_hints

import numpy as np

from frcl.errors import OptionError
from frcl.registry import suggestion

O = TypeVar("O", bound="Options")  # noqa: E741
LARGEST_INT = 2**63 - 1
NOT_NEGATIVE, POSITIVE, SHARE = "not negative", "positive", "a share from 0 to 1"


def option(default: Any, doc: str, limits: str = "", most: float = math.inf) -> Any:
    """A field of an options class. `limits` is POSITIVE, NOT_NEGATIVE, SHARE or nothing; whole numbers count from 1."""
    return field(default=default, metadata={"doc": doc, "limits": limits, "most": most})


@dataclass(frozen=True)
class Options:
    """Base of every options class: types, choices and ranges of all fields are checked when it is made."""

    def __post_init__(self) -> None:
        check_fields(self)


def check_fields(item: Any, of: str = "") -> None:
    """Refuse values of a dataclass that do not fit the types and limits of its fields; `of` follows their names."""
    hints = _hints(type(item))
    for one in fields(item):
        if not one.init:
            continue
        name, value, hint = one.name + of, getattr(item, one.name), hints[one.name]
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, int) and abs(number) > LARGEST_INT:
                raise OptionError(f"{name} is a number of {number.bit_length()} bits; at most 63 are possible")
        if get_origin(hint) is tuple:
            _check_tuple(name, value, get_args(hint)[0])
            continue
        _check_type(name, value, hint)
        if isinstance(value, int | float) and not isinstance(value, bool):
            _check_range(name, value, hint, one.metadata)


class MethodOptions(Options):
    """Base of the options of a method: all of them have these fields."""

    batched_on_cpu: ClassVar[bool] = True  # whether several seeds are trained as one program on the CPU
    if TYPE_CHECKING:
        steps: int
        batch_size: int
        seed: int


_known_hints: dict[type, dict[str, Any]] = {}


def _hints(kind: type) -> dict[str, Any]:
    """The types of all fields, resolved once."""
    if kind not in _known_hints:
        _known_hints[kind] = get_type_hints(kind)
    return _known_hints[kind]


def _check_type(name: str, value: Any, hint: Any) -> None:
    choices = choices_of(hint)
    plain = [kind for kind in (int, float, bool, str, type(None)) if kind in _members(hint)]
    if (choices and value in choices) or (value is None and type(None) in plain):
        return
    if choices and not (set(plain) - {type(None)}):
        raise OptionError(f"{name}={value!r} is unknown; choose one of {', '.join(choices)}")
    if isinstance(value, bool) and bool not in plain:
        raise OptionError(f"{name} must be {_wanted(hint)}, not {value!r}")
    if bool in plain and not isinstance(value, bool) and plain == [bool]:
        raise OptionError(f"{name} is True or False, not {value!r}")
    accepted = tuple(kind for kind in plain if kind is not type(None))
    if float in accepted:
        accepted += (int,)
    if accepted and not isinstance(value, accepted):
        raise OptionError(f"{name} must be {_wanted(hint)}, not {value!r}")


def _check_tuple(name: str, values: Any, kind: type) -> None:
    whole = {int: "whole numbers of at least 1", float: "finite numbers"}[kind]
    if not isinstance(values, tuple) or not values or any(isinstance(value, bool) for value in values):
        raise OptionError(f"{name} must be {whole}, at least one, not {values!r}")
    for value in values:
        fits = isinstance(value, int) and value >= 1 if kind is int else isinstance(value, int | float)
        if not fits or not math.isfinite(value):
            raise OptionError(f"{name} must be {whole}, not {values!r}")


def _check_range(name: str, value: float, hint: Any, limits: Any) -> None:
    kind = limits.get("limits", "")
    if int in _members(hint) and float not in _members(hint):
        if kind == NOT_NEGATIVE and value < 0:
            raise OptionError(f"{name} must be a whole number, not negative; got {value!r}")
        if kind == "" and value < 1:
            raise OptionError(f"{name} must be a whole number of at least 1, not {value!r}")
        return
    if not math.isfinite(value):
        raise OptionError(f"{name} must be a {'positive' if kind == POSITIVE else 'finite'} number, not {value!r}")
    if kind == POSITIVE and value <= 0:
        raise OptionError(f"{name} must be a positive number, not {value!r}")
    if kind == NOT_NEGATIVE and value < 0:
        raise OptionError(f"{name} must be a number that is not negative, not {value!r}")
    most = limits.get("most", math.inf)
    if kind == SHARE and not 0 <= value <= min(1.0, most):
        raise OptionError(f"{name} is a share, from 0 to {min(1.0, most):g}, not {value!r}")


def _members(hint: Any) -> tuple[Any, ...]:
    """The types of a union; the type itself otherwise."""
    if get_origin(hint) is Literal:
        return ()
    arguments = get_args(hint)
    return tuple(one for one in arguments if get_origin(one) is not Literal) if arguments else (hint,)


def choices_of(hint: Any) -> tuple[str, ...]:
    """The words that a field may have, where it has a Literal type."""
    found = [hint] if get_origin(hint) is Literal else [one for one in get_args(hint) if get_origin(one) is Literal]
    return tuple(word for one in found for word in get_args(one))


def _wanted(hint: Any) -> str:
    members, words = _members(hint), [repr(word) for word in choices_of(hint)]
    kinds = {
        int: "a whole number of at least 1",
        float: "a number",
        bool: "True or False",
        str: "text",
        type(None): "None",
    }
    return " or ".join([*(kinds[kind] for kind in members if kind in kinds), *words])


def from_plain(options: O, values: Mapping[str, Any]) -> O:
    """The options with some changed to values as TOML has them: lists for tuples, "none" for None, 1 for 1.0."""
    given, hints = {}, _hints(type(options))
    for name, value in values.items():
        members = _members(hints[name])
        if isinstance(value, list):
            numbers = _to_float if get_args(hints[name])[:1] == (float,) else lambda item: item
            value = tuple(numbers(item) for item in value)
        elif value == "none" and type(None) in members:
            value = None
        elif float in members:
            value = _to_float(value)
        given[name] = value
    return replace(options, **given)


def _to_float(value: Any) -> Any:
    """A whole number as a float, unless it is too large, which is refused later."""
    return float(value) if type(value) is int and abs(value) <= LARGEST_INT else value


def changed(options: O, changes: dict[str, Any]) -> O:
    """The options with some changed by name; an unknown name is refused, with the nearest one."""
    known = [item.name for item in fields(options)]
    for name in changes:
        if name not in known:
            raise OptionError(f"unknown option {name!r}{suggestion(name, known)}")
    plain = {name: value.item() if isinstance(value, np.generic) else value for name, value in changes.items()}
    return replace(options, **plain)


def described(options: Options) -> list[tuple[str, str, Any, str]]:
    """(name, type, value, description) of every option, in order: what help() and the reference page show."""
    shown, kind = [], type(options)
    for item in fields(options):
        text = item.type if isinstance(item.type, str) else getattr(item.type, "__name__", str(item.type))
        hint = _hints(kind)[item.name]
        if get_origin(hint) is Literal:
            text = " | ".join(repr(word) for word in choices_of(hint))
        shown.append((item.name, text, getattr(options, item.name), item.metadata.get("doc", "")))
    return shown


def option_lines(options: Options) -> str:
    """The options as an indented block for a docstring."""
    return "\n".join(f"    {name}: {text} = {value!r}\n        {doc}" for name, text, value, doc in described(options))


F = TypeVar("F", bound=Callable[..., Any])
KEYWORD = inspect.Parameter.KEYWORD_ONLY


def shows_options(defaults: Options) -> Callable[[F], F]:
    """Decorator of a class or function whose `**keywords` are the fields of an options class."""

    def show(target: F) -> F:
        own = inspect.signature(target)
        kept = [p for p in own.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
        names = {p.name for p in kept}
        rest = [
            inspect.Parameter(item.name, KEYWORD, default=getattr(defaults, item.name), annotation=item.type)
            for item in fields(defaults)
            if item.name not in names
        ]
        target.__signature__ = own.replace(parameters=[*kept, *rest])  # type: ignore[attr-defined]
        kind = type(defaults).__name__
        target.__doc__ = (
            f"{inspect.getdoc(target)}\n\nEvery field of `{kind}` is a keyword:\n\n{option_lines(defaults)}\n"
        )
        return target

    return show
