"""One task of your own from an .npz or a .csv file."""

from __future__ import annotations

import csv
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from frcl.errors import DataError
from frcl.registry import suggestion

Array = np.ndarray[Any, np.dtype[Any]]
Pair = tuple[Array, Array]

PARTS = ("x", "y", "x_test", "y_test", "x_validation", "y_validation")


@dataclass(frozen=True, eq=False)
class RawTask:
    """Inputs and labels as they were given; y is of whole numbers, floats or text."""

    name: str
    train: Pair
    validation: Pair | None = None
    test: Pair | None = None


def read_task(path: Path, label: str | None) -> RawTask:
    """The task in a file; `label` is the column of a .csv that has the labels."""
    match path.suffix.lower():
        case ".npz":
            return read_npz(path)
        case _:
            return read_csv(path, label)


def as_array(given: Any, where: str) -> Array:
    """What a user may call an array, as one."""
    if isinstance(given, Tensor):
        given = given.detach().cpu().numpy()
    try:
        array = np.asarray(given)
    except ValueError as error:
        raise DataError(f"{where}: the rows have different lengths, or it is not an array: {error}") from error
    if array.dtype.kind == "O":
        raise DataError(f"{where}: an array of Python objects is not read; convert it to numbers or texts first")
    return array


def read_npz(path: Path) -> RawTask:
    """Arrays x and y, and optionally x_test, y_test, x_validation, y_validation; no pickled objects."""
    arrays = _arrays(path)
    parts = {suffix: _pair(path, arrays, suffix) for suffix in ("", "_validation", "_test")}
    train = parts[""]
    if train is None:
        raise DataError(f"{path} has no arrays x and y; it has {', '.join(arrays) or 'nothing'}")
    return RawTask(path.stem, train, parts["_validation"], parts["_test"])


def _arrays(path: Path) -> dict[str, Array]:
    try:
        if not zipfile.is_zipfile(path):
            raise DataError(f"{path} is not an .npz file, or is damaged; write it with numpy.savez(path, x=x, y=y)")
        with np.load(path, allow_pickle=False) as file:
            for name in file.files:
                if name not in PARTS:
                    raise DataError(f"{path}: unknown array {name!r}{suggestion(name, PARTS)}")
            return {name: as_array(file[name], str(path)) for name in file.files}
    except DataError:
        raise
    except (OSError, EOFError, zipfile.BadZipFile, zlib.error, ValueError, NotImplementedError) as error:
        if "allow_pickle" in str(error):
            raise DataError(f"{path} holds Python objects, which are not read; save arrays of numbers") from error
        raise DataError(f"cannot read {path} as an .npz file: {error}") from error


def _pair(path: Path, arrays: dict[str, Array], suffix: str) -> Pair | None:
    x, y = arrays.get(f"x{suffix}"), arrays.get(f"y{suffix}")
    if x is None and y is None:
        return None
    if x is None or y is None:
        there, gone = ("y", "x") if x is None else ("x", "y")
        raise DataError(f"{path} has {there}{suffix}, but no {gone}{suffix}")
    return x, y


def read_csv(path: Path, label: str | None = None) -> RawTask:
    """One example a line, cells separated by commas; a first line of column names may be there.

    The labels are in the column `label` if the first line has such a name, else in the last one.
    """
    rows = _rows(path)
    header = rows[0][1] if _is_header(rows[0][1], label) else None
    if label is not None and (header is None or label not in header):
        raise DataError(f"{path} has no column {label!r} for the labels in its first line{_like(label, rows[0][1])}")
    wanted = label or "label"
    where = header.index(wanted) if header is not None and wanted in header else len(rows[0][1]) - 1
    body = rows[1:] if header is not None else rows
    if not body:
        raise DataError(f"{path} has a line of column names, but no examples")
    labels = [cells[where] for _, cells in body]
    if header is None and len(labels) > 1 and not _is_number(labels[0]) and all(map(_is_number, labels[1:])):
        raise DataError(
            f"{path}: the first line looks like column names that are numbers; call the labels' column 'label', or "
            f"say label = {labels[0]!r} in the .toml file"
        )
    for (line, _), text in zip(body, labels, strict=True):
        if not text:
            raise DataError(f"{path}, line {line}: the label is empty")
    x = np.stack([_numbers(path, line, cells[:where] + cells[where + 1 :]) for line, cells in body])
    return RawTask(path.stem, (x, np.array(labels)))


def _rows(path: Path) -> list[tuple[int, list[str]]]:
    """(line number, cells) of every line that is not empty; all must be of one length."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, strict=True)
            rows = [(reader.line_num, [cell.strip() for cell in cells]) for cells in reader if any(cells)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"cannot read {path} as a .csv file: {error}") from error
    if not rows:
        raise DataError(f"{path} is empty")
    width = len(rows[0][1])
    if width < 2:
        raise DataError(f"{path} has one column; expected inputs and a label, separated by commas")
    for line, cells in rows:
        if len(cells) != width:
            raise DataError(f"{path}, line {line} has {len(cells)} cells; the first line has {width}")
    return rows


def _is_header(cells: Sequence[str], label: str | None) -> bool:
    return (label or "label") in cells or not any(_is_number(cell) or not cell for cell in cells)


def _like(word: str, cells: Sequence[str]) -> str:
    return suggestion(word, [cell for cell in cells if not _is_number(cell)])


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _numbers(path: Path, line: int, cells: list[str]) -> Array:
    try:
        return np.array([float(cell) for cell in cells])
    except ValueError:
        bad = next(cell for cell in cells if not _is_number(cell))
        raise DataError(f"{path}, line {line}: {bad!r} is not a number") from None
