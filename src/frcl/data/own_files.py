"""The files of your own data: the .toml file that describes them, and one .npz or .csv file per task."""

from __future__ import annotations

import csv
import re
import tomllib
import zipfile
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from frcl.errors import DataError, OptionError
from frcl.registry import suggestion

Array = np.ndarray[Any, np.dtype[Any]]
Pair = tuple[Array, Array]

SUFFIXES = (".npz", ".csv")
KEYS = ("name", "folder", "files", "test_share", "validation_share", "label", "shape")
PARTS = ("x", "y", "x_test", "y_test", "x_validation", "y_validation")


@dataclass(frozen=True)
class OwnConfig:
    """The contents of the .toml file, and their defaults."""

    name: str
    files: tuple[Path, ...] = ()  # all .npz and .csv files of `folder` in order of name, or those listed in `files`
    test_share: float = 0.2  # held out for testing where a task has no test part
    validation_share: float = 0.1  # held out of the rest for validation where a task has no validation part
    label: str | None = None  # the column of a .csv file with the labels; None: "label", otherwise the last one
    shape: tuple[int, ...] | None = None  # each input is reshaped to this, [28, 28] for instance

    def __post_init__(self) -> None:
        for key, lowest in (("test_share", 1e-9), ("validation_share", 0.0)):
            value = getattr(self, key)
            if isinstance(value, bool) or not isinstance(value, int | float) or not lowest <= value < 1:
                span = "between 0 and 1" if lowest else "from 0 to less than 1"
                raise OptionError(f"{key} must be a number {span}, not {value!r}")

    def changed(self, **given: Any) -> OwnConfig:
        """With those of these values that are not None."""
        return replace(self, **{key: value for key, value in given.items() if value is not None})


@dataclass(frozen=True, eq=False)
class RawTask:
    """Inputs and labels as given; y holds whole numbers, floats or strings."""

    name: str
    train: Pair
    validation: Pair | None = None
    test: Pair | None = None


def folder_config(folder: Path) -> OwnConfig:
    """The default configuration of a folder."""
    return OwnConfig(folder.resolve().name, files=_files_in(folder))


def read_config(path: Path) -> OwnConfig:
    """A .toml file as a checked configuration."""
    try:
        table = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise OptionError(f"{path} is not valid TOML: {error}") from error
    for key, value in table.items():
        if key not in KEYS:
            raise OptionError(f"{path}: unknown key {key!r}{suggestion(key, KEYS)}")
        if key in ("name", "folder", "label") and not isinstance(value, str):
            raise OptionError(f"{path}: {key} must be a string, not {value!r}")
    if "shape" in table:
        shape = table["shape"]
        if not (isinstance(shape, list) and shape and all(type(side) is int and side > 0 for side in shape)):
            raise OptionError(f"{path}: shape must be a list of whole numbers of at least 1, not {shape!r}")
        table["shape"] = tuple(shape)
    files = _files(path, table)
    rest = {key: value for key, value in table.items() if key not in ("name", "folder", "files")}
    try:
        return OwnConfig(table.get("name", path.stem), files, **rest)
    except OptionError as error:
        raise OptionError(f"{path}: {error}") from None


def _files(path: Path, table: dict[str, Any]) -> tuple[Path, ...]:
    folder = path.parent / table.get("folder", "")
    if "files" not in table:
        if "folder" not in table:
            raise OptionError(f"{path} must say where the tasks are: folder = ... or files = [...]")
        return _files_in(folder)
    names = table["files"]
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise OptionError(f"{path}: files must be a list of file names, not {names!r}")
    for name in names:
        if Path(name).suffix.lower() not in SUFFIXES:
            raise DataError(f"{path}: {name!r} is neither an .npz nor a .csv file")
        if not (folder / name).is_file():
            raise DataError(f"{path} names {name!r}, but there is no file {folder / name}")
    return tuple(folder / name for name in names)


def _files_in(folder: Path) -> tuple[Path, ...]:
    """The .npz and .csv files of a folder by name; digits are compared as numbers, so 2 comes before 10."""
    if not folder.is_dir():
        raise DataError(f"there is no folder {folder}; expected one with an .npz or .csv file for each task")
    found = [path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES and path.name[0] != "."]
    if not found:
        raise DataError(f"the folder {folder} has no .npz or .csv file; put one there for each task")

    def key(path: Path) -> tuple[list[tuple[str, int]], str]:
        parts = re.split(r"(\d+)", path.name)
        return [("", int(part)) if part.isdecimal() else (part, -1) for part in parts], path.name

    return tuple(sorted(found, key=key))


def as_array(given: Any, where: str) -> Array:
    """A tensor, a list or anything else that NumPy converts, as an array."""
    if isinstance(given, Tensor):
        given = given.detach().cpu().numpy()
    try:
        array = np.asarray(given)
    except ValueError as error:
        raise DataError(f"{where}: the rows have different lengths, or it is not an array: {error}") from error
    if array.dtype.kind == "O":
        raise DataError(f"{where}: an array of Python objects is not read; convert it to numbers or strings first")
    return array


def read_npz(path: Path) -> RawTask:
    """Arrays x and y, and optionally x_test, y_test, x_validation, y_validation; no pickled objects."""
    arrays = _arrays(path)
    parts: list[Pair | None] = []
    for suffix in ("", "_validation", "_test"):
        x, y = arrays.get(f"x{suffix}"), arrays.get(f"y{suffix}")
        if (x is None) != (y is None):
            present, absent = ("y", "x") if x is None else ("x", "y")
            raise DataError(f"{path} has {present}{suffix}, but no {absent}{suffix}")
        parts.append(None if x is None or y is None else (x, y))
    if parts[0] is None:
        raise DataError(f"{path} has no arrays x and y; it has {', '.join(arrays) or 'nothing'}")
    return RawTask(path.stem, parts[0], *parts[1:])


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


def read_csv(path: Path, label: str | None = None) -> RawTask:
    """One example per line, cells separated by commas; the first line may hold column names.

    The labels are in the column `label` if the first line has such a name, otherwise in the last one.
    """
    rows = _rows(path)
    first, wanted = rows[0][1], label or "label"
    has_header = wanted in first or not any(_is_number(cell) or not cell for cell in first)
    if label is not None and label not in first:
        hint = suggestion(label, [cell for cell in first if not _is_number(cell)])
        raise DataError(f"{path} has no column {label!r} for the labels in its first line{hint}")
    column = first.index(wanted) if wanted in first else len(first) - 1
    body = rows[has_header:]
    if not body:
        raise DataError(f"{path} has a line of column names, but no examples")
    labels = [cells[column] for _, cells in body]
    if not has_header and len(labels) > 1 and not _is_number(labels[0]) and all(map(_is_number, labels[1:])):
        raise DataError(
            f"{path}: the first line looks like column names that are numbers; call the labels' column 'label', or "
            f"say label = {labels[0]!r} in the .toml file"
        )
    for line, cells in body:
        if not cells[column]:
            raise DataError(f"{path}, line {line}: the label is empty")
        for cell in cells[:column] + cells[column + 1 :]:
            if not _is_number(cell):
                raise DataError(f"{path}, line {line}: {cell!r} is not a number")
    x = np.array([[float(cell) for cell in cells[:column] + cells[column + 1 :]] for _, cells in body])
    return RawTask(path.stem, (x, np.array(labels)))


def _rows(path: Path) -> list[tuple[int, list[str]]]:
    """(line number, cells) of every line that is not empty; all must have the same length."""
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


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
