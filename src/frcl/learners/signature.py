"""Shows every option of a learner in `help()` and in an IDE: its signature and its docstring list them all."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from typing import Any, TypeVar

from frcl.options import Options, option_lines

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
