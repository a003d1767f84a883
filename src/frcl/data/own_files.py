"""Reading your own data: the .toml file that describes it, and one .npz or .csv file per task."""

from __future__ import annotations

import csv
import io
import re
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from frcl.errors import DataError, OptionError
from frcl.files import open_regular, read_arrays, read_document
from frcl.registry import suggestion

Array = np.ndarray[Any, np.dtype[Any]]
Parts = dict[str, tuple[Array, Array]]
"""x and y of each part of a task as given, by the suffix of their names; y holds whole numbers, floats or strings."""

DEFAULTS: dict[str, Any] = {
    "test_share": 0.2,  # held out for testing where a task has no test part
    "validation_share": 0.1,  # held out of the rest for validation where a task has no validation part
    "label": None,  # the column of a .csv file with the labels; None: "label", otherwise the last one
    "shape": None,  # each input is reshaped to this, [28, 28] for instance
}
KEYS = ("name", "folder", "files", *DEFAULTS)
SUFFIXES = ("", "_test", "_validation")
LARGEST = 4 << 30  # bytes of a file, and of what it unpacks to
ARRAYS = tuple(f"{array}{suffix}" for suffix in SUFFIXES for array in "xy")


def read_config(path: Path) -> dict[str, Any]:
    """The settings in a .toml file, or the default ones of a folder: `name`, `files` and those of DEFAULTS."""
    if path.suffix.lower() != ".toml":
        return DEFAULTS | {"name": path.resolve().name, "files": _files_in(path)}
    table = read_document(path, tomllib.loads)
    for key, value in table.items():
        if key not in KEYS:
            raise OptionError(f"{path}: unknown key {key!r}{suggestion(key, KEYS)}")
        if key in ("name", "folder", "label") and not isinstance(value, str):
            raise OptionError(f"{path}: {key} must be a string, not {value!r}")
    shape = table.get("shape", [1])
    if not (isinstance(shape, list) and shape and all(type(side) is int and side > 0 for side in shape)):
        raise OptionError(f"{path}: shape must be a list of whole numbers of at least 1, not {shape!r}")
    folder, names = path.parent / table.get("folder", ""), table.get("files")
    if names is None and "folder" not in table:
        raise OptionError(f"{path} must say where the tasks are: folder = ... or files = [...]")
    if names is None:
        return DEFAULTS | {"name": path.stem} | table | {"files": _files_in(folder)}
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise OptionError(f"{path}: files must be a list of file names, not {names!r}")
    for name in names:
        if Path(name).suffix.lower() not in READERS:
            raise DataError(f"{path}: {name!r} is neither an .npz nor a .csv file")
        if not (folder / name).is_file():
            raise DataError(f"{path} names {name!r}, but there is no file {folder / name}")
    return DEFAULTS | {"name": path.stem} | table | {"files": [folder / name for name in names]}


def _files_in(folder: Path) -> list[Path]:
    """The .npz and .csv files of a folder by name; digits are compared as numbers, so 2 comes before 10."""
    if not folder.is_dir():
        raise DataError(f"there is no folder {folder}; expected one with an .npz or .csv file for each task")
    found = [path for path in folder.iterdir() if path.suffix.lower() in READERS and path.name[0] != "."]
    if not found:
        raise DataError(f"the folder {folder} has no .npz or .csv file; put one there for each task")

    def key(path: Path) -> tuple[list[tuple[str, int]], str]:
        parts = re.split(r"(\d+)", path.name)
        return [("", int(part)) if part.isdecimal() else (part, -1) for part in parts], path.name

    return sorted(found, key=key)


def read_parts(path: Path, label: str | None) -> Parts:
    """The arrays of one file, in pairs."""
    arrays = READERS[path.suffix.lower()](path, label)
    for name in arrays:
        other = ("y" if name[0] == "x" else "x") + name[1:]
        if other not in arrays:
            raise DataError(f"{path} has {name}, but no {other}")
    if "x" not in arrays:
        raise DataError(f"{path} has no arrays x and y; it has {', '.join(arrays) or 'nothing'}")
    return {suffix: (arrays[f"x{suffix}"], arrays[f"y{suffix}"]) for suffix in SUFFIXES if f"x{suffix}" in arrays}


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


def _read_npz(path: Path, label: str | None) -> dict[str, Array]:
    """Arrays x and y, and optionally x_test, y_test, x_validation, y_validation; no pickled objects."""
    try:
        with open_regular(path, LARGEST) as file:
            arrays = read_arrays(file, LARGEST)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise DataError(
            f"cannot read {path} as an .npz file: {reason}; write it with numpy.savez(path, x=x, y=y)"
        ) from error
    for name in arrays:
        if name not in ARRAYS:
            raise DataError(f"{path}: unknown array {name!r}{suggestion(name, ARRAYS)}")
    return arrays


def _read_csv(path: Path, label: str | None) -> dict[str, Array]:
    """One example per line, cells separated by commas; the first line may hold column names.

    The labels are in the column `label` if the first line has such a name, otherwise in the last one.
    """
    try:
        with open_regular(path, LARGEST) as file:
            reader = csv.reader(io.TextIOWrapper(file, "utf-8-sig", newline=""), strict=True)
            rows = [(reader.line_num, [cell.strip() for cell in cells]) for cells in reader if any(cells)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"cannot read {path} as a .csv file: {error}") from error
    if not rows:
        raise DataError(f"{path} is empty")
    first, wanted = rows[0][1], label or "label"
    if len(first) < 2:
        raise DataError(f"{path} has one column; expected inputs and a label, separated by commas")
    for line, cells in rows:
        if len(cells) != len(first):
            raise DataError(f"{path}, line {line} has {len(cells)} cells; the first line has {len(first)}")
    if label is not None and label not in first:
        hint = suggestion(label, [cell for cell in first if not _is_number(cell)])
        raise DataError(f"{path} has no column {label!r} for the labels in its first line{hint}")
    has_header = wanted in first or not any(_is_number(cell) or not cell for cell in first)
    column = first.index(wanted) if wanted in first else len(first) - 1
    body = rows[has_header:]
    if not body:
        raise DataError(f"{path} has a line of column names, but no examples")
    labels = [cells.pop(column) for _, cells in body]
    if not has_header and len(labels) > 1 and not _is_number(labels[0]) and all(map(_is_number, labels[1:])):
        raise DataError(
            f"{path}: the first line looks like column names that are numbers; call the labels' column 'label', or "
            f"say label = {labels[0]!r} in the .toml file"
        )
    for (line, cells), own in zip(body, labels, strict=True):
        if not own:
            raise DataError(f"{path}, line {line}: the label is empty")
        for cell in cells:
            if not _is_number(cell):
                raise DataError(f"{path}, line {line}: {cell!r} is not a number")
    return {"x": np.array([cells for _, cells in body]).astype(float), "y": np.array(labels)}


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


READERS = {".npz": _read_npz, ".csv": _read_csv}
