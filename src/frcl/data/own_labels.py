"""Labels of your own tasks: whole numbers stay, names become numbers, floats are for regression."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from frcl.data.own_files import Array, Pair, RawTask
from frcl.errors import DataError

Kind = Literal["whole", "real", "names"]

WHOLE = re.compile(r"[+-]?\d{1,18}")


def encode_labels(tasks: Sequence[RawTask]) -> tuple[list[RawTask], tuple[str, ...] | None]:
    """The tasks with y as int64 or float32, and the names of labels 0, 1, … where they had names.

    What the labels are is decided over all tasks: names get one numbering, in sorted order, for all of them;
    where one task has floats, all do.
    """
    kinds = {kind_of(y, where): where for where, y in _targets(tasks)}
    if "names" in kinds and "real" in kinds:
        raise DataError(
            f"{kinds['names']} has names as labels, but {kinds['real']} has numbers that are not whole; "
            "all tasks must be of one kind"
        )
    if "names" in kinds:
        names = tuple(sorted({str(label) for _, y in _targets(tasks) for label in np.unique(y)}))
        number = {name: index for index, name in enumerate(names)}
        return [_mapped(task, lambda y: np.array([number[str(one)] for one in y], np.int64)) for task in tasks], names
    dtype = np.float32 if "real" in kinds else np.int64
    return [_mapped(task, lambda y: y.astype(dtype)) for task in tasks], None


def kind_of(y: Array, where: str) -> Kind:
    """Whole numbers, other numbers, or names; text that reads as numbers counts as numbers."""
    if y.ndim != 1 and y.dtype.kind != "f":
        raise DataError(f"{where}: labels have shape {y.shape}; expected one for each example, [N]")
    match y.dtype.kind:
        case "b" | "i" | "u":
            return "whole"
        case "f":
            if not np.isfinite(y).all():
                raise DataError(f"{where}: a target is NaN or infinite; remove or replace it first")
            return "real"
        case "U":
            return _kind_of_text(y, where)
        case _:
            raise DataError(f"{where}: labels of type {y.dtype} are not read; use whole numbers, texts or floats")


def _kind_of_text(y: Array, where: str) -> Kind:
    texts = np.unique(y).tolist()
    if all(WHOLE.fullmatch(text) for text in texts):
        return "whole"
    try:
        numbers = np.array([float(text) for text in texts])
    except ValueError:
        return "names"
    if not np.isfinite(numbers).all():
        raise DataError(f"{where}: a target is NaN or infinite; remove or replace it first")
    return "real"


def _targets(tasks: Iterable[RawTask]) -> Iterable[tuple[str, Array]]:
    for task in tasks:
        for part in (task.train, task.validation, task.test):
            if part is not None:
                yield task.name, part[1]


def _mapped(task: RawTask, encode: Callable[[Array], Array]) -> RawTask:
    def encoded(part: Pair | None) -> Pair | None:
        return None if part is None else (part[0], encode(part[1]))

    x, y = task.train
    return replace(task, train=(x, encode(y)), validation=encoded(task.validation), test=encoded(task.test))
