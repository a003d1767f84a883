"""Options of learners: a field, its default, its range and its description, written once.

The description appears in `help()`, in the reference page and in the command line's help.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar, get_args, get_origin, get_type_hints

import numpy as np

from frcl.errors import OptionError
from frcl.registry import suggestion

O = TypeVar("O", bound="Options")  # noqa: E741
LARGEST_INT = 2**63 - 1
NOT_NEGATIVE, POSITIVE, SHARE = "not negative", "positive", "a share from 0 to 1"
KINDS = {
    int: "a whole number of at least 1", float: "a number", bool: "True or False", str: "text", type(None): "None",
}  # fmt: skip


_hints: Callable[[type], dict[str, Any]] = functools.cache(get_type_hints)


def option(default: Any, doc: str, limits: str = "", most: float = math.inf) -> Any:
    """A field of an options class. `limits` is POSITIVE, NOT_NEGATIVE, SHARE or nothing; whole numbers count from 1."""
    return field(default=default, metadata={"doc": doc, "limits": limits, "most": most})


@dataclass(frozen=True)
class Options:
    """Base of every options class: types, choices and ranges of all fields are checked when it is made."""

    def __post_init__(self) -> None:
        check_fields(self)


class MethodOptions(Options):
    """Base of the options of a method: all of them have these fields."""

    batched_on_cpu: ClassVar[bool] = True  # whether several seeds are trained as one program on the CPU
    takes_new_labels: ClassVar[bool] = False  # whether labels may appear while a stream is learned
    if TYPE_CHECKING:
        steps: int
        batch_size: int
        seed: int


def check_fields(item: Any, of: str = "") -> None:
    """Refuse values of a dataclass that do not fit the types and limits of its fields; `of` follows their names."""
    for one in fields(item):
        if one.init:
            _check(one.name + of, getattr(item, one.name), _hints(type(item))[one.name], one.metadata)


def _check(name: str, value: Any, hint: Any, limits: Mapping[str, Any]) -> None:
    for number in value if isinstance(value, tuple) else (value,):
        if isinstance(number, int) and abs(number) > LARGEST_INT:
            raise OptionError(f"{name} is a number of {number.bit_length()} bits; at most 63 are possible")
    if get_origin(hint) is tuple:
        return _check_tuple(name, value, get_args(hint)[0], 0 if limits.get("limits") == NOT_NEGATIVE else 1)
    kinds, words = _members(hint), choices_of(hint)
    if value in words or (value is None and type(None) in kinds):
        return None
    accepted = tuple(kind for kind in KINDS if kind in kinds and kind is not type(None))
    if words and not accepted:
        raise OptionError(f"{name}={value!r} is unknown; choose one of {', '.join(words)}")
    fits = isinstance(value, (*accepted, int) if float in accepted else accepted)
    if accepted and (not fits or (isinstance(value, bool) and bool not in accepted)):
        wanted = " or ".join([*(KINDS[kind] for kind in kinds if kind in KINDS), *map(repr, words)])
        raise OptionError(f"{name} must be {wanted}, not {value!r}")
    if isinstance(value, int | float) and not isinstance(value, bool):
        _check_range(name, value, limits, whole=float not in kinds)
    return None


def _check_tuple(name: str, values: Any, kind: type, least: int) -> None:
    def fits(value: Any) -> bool:
        whole = isinstance(value, int) and not isinstance(value, bool)
        return whole and value >= least if kind is int else whole or (isinstance(value, float) and math.isfinite(value))

    if not isinstance(values, tuple) or not values or not all(map(fits, values)):
        wanted = f"whole numbers of at least {least}" if kind is int else "finite numbers"
        raise OptionError(f"{name} must be {wanted}, at least one, not {values!r}")


def _check_range(name: str, value: float, limits: Mapping[str, Any], *, whole: bool) -> None:
    kind, most = limits.get("limits", ""), limits.get("most", math.inf)
    most = min(1.0, most) if kind == SHARE else most
    least = 0 if kind else 1 if whole else -math.inf
    if not least <= value <= most or not math.isfinite(value) or (kind == POSITIVE and value == 0):
        wanted = "a whole number of at least 1" if whole else "a finite number"
        if kind == POSITIVE:
            wanted = "a positive number"
        elif kind:
            wanted = "a whole number, not negative" if whole else "a number that is not negative"
        if most < math.inf:
            wanted = f"a {'share' if kind == SHARE else 'number'} from 0 to {most:g}"
        raise OptionError(f"{name} must be {wanted}, not {value!r}")


def _members(hint: Any) -> tuple[Any, ...]:
    """The types of a union but for Literals; the type itself otherwise."""
    kinds = get_args(hint) or (hint,)
    return tuple(one for one in kinds if get_origin(one) is not Literal and not isinstance(one, str))


def choices_of(hint: Any) -> tuple[str, ...]:
    """The words that a field may have, where it has a Literal type."""
    found = [one for one in (hint, *get_args(hint)) if get_origin(one) is Literal]
    return tuple(word for one in found for word in get_args(one))


def from_plain(options: O, values: Mapping[str, Any]) -> O:
    """The options with some changed to values as TOML has them: lists for tuples, "none" for None, 1 for 1.0."""

    def converted(value: Any, kinds: Sequence[Any]) -> Any:
        if isinstance(value, list):
            return tuple(converted(item, kinds) for item in value)
        if value == "none" and type(None) in kinds:
            return None
        fits = float in kinds and type(value) is int and abs(value) <= LARGEST_INT  # a larger one is refused later
        return float(value) if fits else value

    hints = _hints(type(options))
    return replace(options, **{name: converted(value, _members(hints[name])) for name, value in values.items()})


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
    shown = []
    for item in fields(options):
        hint = _hints(type(options))[item.name]
        text = item.type if isinstance(item.type, str) else inspect.formatannotation(item.type)
        text = " | ".join(map(repr, choices_of(hint))) if get_origin(hint) is Literal else text
        shown.append((item.name, text, getattr(options, item.name), item.metadata.get("doc", "")))
    return shown


F = TypeVar("F", bound=Callable[..., Any])
keyword = functools.partial(inspect.Parameter, kind=inspect.Parameter.KEYWORD_ONLY)


def shows_options(defaults: Options) -> Callable[[F], F]:
    """Decorator of a class or function whose `**keywords` are the fields of an options class."""

    def show(target: F) -> F:
        own = inspect.signature(target)
        kept = {name: p for name, p in own.parameters.items() if p.kind is not inspect.Parameter.VAR_KEYWORD}
        new = [item for item in fields(defaults) if item.name not in kept]
        rest = [keyword(item.name, default=getattr(defaults, item.name), annotation=item.type) for item in new]
        target.__signature__ = own.replace(parameters=[*kept.values(), *rest])  # type: ignore[attr-defined]
        lines = [f"    {name}: {text} = {value!r}\n        {doc}\n" for name, text, value, doc in described(defaults)]
        every = f"Every field of `{type(defaults).__name__}` is a keyword:\n\n{''.join(lines)}"
        target.__doc__ = f"{inspect.getdoc(target)}\n\n{every}"
        return target

    return show
