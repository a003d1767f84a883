"""The .toml file that describes your own data."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from frcl.errors import DataError, OptionError
from frcl.registry import suggestion

SUFFIXES = (".npz", ".csv")
KEYS = ("name", "folder", "files", "test_share", "validation_share", "label", "shape")


@dataclass(frozen=True)
class OwnConfig:
    """What the file may say, and its defaults."""

    name: str
    files: tuple[Path, ...] = ()  # from `folder`, all its .npz and .csv files in order of name, or from `files`
    test_share: float = 0.2  # held out for testing where a task has no test part
    validation_share: float = 0.1  # held out of the rest for validation where a task has no validation part
    label: str | None = None  # the column of a .csv with the labels; None: "label", else the last one
    shape: tuple[int, ...] | None = None  # each input is brought into this shape, [28, 28] for instance

    def __post_init__(self) -> None:
        for key, lowest in (("test_share", 1e-9), ("validation_share", 0.0)):
            value = getattr(self, key)
            if isinstance(value, bool) or not isinstance(value, int | float) or not lowest <= value < 1:
                span = "between 0 and 1" if lowest else "from 0 to less than 1"
                raise OptionError(f"{key} must be a number {span}, not {value!r}")

    def changed(self, **given: Any) -> OwnConfig:
        """With these values where they are not None."""
        return replace(self, **{key: value for key, value in given.items() if value is not None})


def folder_config(folder: Path) -> OwnConfig:
    """All defaults, for a folder."""
    return OwnConfig(folder.resolve().name, files=_files_in(folder))


def read_config(path: Path) -> OwnConfig:
    """A .toml file as a checked configuration."""
    try:
        table = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise OptionError(f"{path} is not valid TOML: {error}") from error
    for key in table:
        if key not in KEYS:
            raise OptionError(f"{path}: unknown key {key!r}{suggestion(key, KEYS)}")
    for key, kind, what in (("name", str, "a text"), ("folder", str, "a text"), ("label", str, "a text")):
        if key in table and not isinstance(table[key], kind):
            raise OptionError(f"{path}: {key} must be {what}, not {table[key]!r}")
    files = _files(path, table)
    if "shape" in table:
        table["shape"] = _shape(path, table["shape"])
    rest = {key: table[key] for key in KEYS if key in table and key not in ("name", "folder", "files")}
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
    """The .npz and .csv files of a folder, by name; numbers in names count as numbers, so 2 is before 10."""
    if not folder.is_dir():
        raise DataError(f"there is no folder {folder}; expected one with an .npz or .csv file for each task")
    found = [path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES and path.name[0] != "."]
    if not found:
        raise DataError(f"the folder {folder} has no .npz or .csv file; put one there for each task")
    return tuple(sorted(found, key=_by_name))


def _by_name(path: Path) -> tuple[list[tuple[str, int]], str]:
    parts = re.split(r"(\d+)", path.name)
    return [("", int(part)) if part.isdecimal() else (part, -1) for part in parts], path.name


def _shape(path: Path, value: Any) -> tuple[int, ...]:
    whole = isinstance(value, list) and value and all(type(side) is int and side > 0 for side in value)
    if not whole:
        raise OptionError(f"{path}: shape must be a list of whole numbers of at least 1, not {value!r}")
    return tuple(value)
