"""Finding a data file, and downloading it where it is missing."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from frcl.data.download import Progress, download
from frcl.data.sources import LARGEST, DataFile, verified
from frcl.errors import DataError

FRCL_DATA = "FRCL_DATA"


def user_cache() -> Path:
    """$XDG_CACHE_HOME/frcl, else ~/.cache/frcl."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".cache") / "frcl"


def data_folders(data: Path | None) -> tuple[Path, ...]:
    """Where files are looked for, in order: `data`, FRCL_DATA, the user's cache folder."""
    named = os.environ.get(FRCL_DATA)
    folders = (data, Path(named) if named else None, user_cache())
    return tuple(dict.fromkeys(folder for folder in folders if folder is not None))


@dataclass(frozen=True)
class Found:
    """A verified file, or None and the files of that name which are not right."""

    path: Path | None = None
    content: bytes | None = None
    problems: tuple[str, ...] = ()
    wrong: Path | None = None


def find(file: DataFile, data: Path | None) -> Found:
    """The first file of that name, plain or gzipped, whose content is right."""
    problems: list[str] = []
    wrong: list[Path] = []
    for path in candidates(file, data):
        try:
            if path.stat().st_size > LARGEST:
                raise DataError(f"{path} is not {file.name}: it has more than {LARGEST >> 20} MiB")
            return Found(path, verified(file, path.read_bytes(), str(path)))
        except OSError as error:
            problems.append(f"{path} cannot be read: {error.strerror or error}")
        except DataError as error:
            problems.append(str(error))
        wrong.append(path)
    return Found(problems=tuple(problems), wrong=wrong[0] if wrong else None)


def candidates(file: DataFile, data: Path | None) -> list[Path]:
    """The files of that name that exist, in the order in which they are tried."""
    names = dict.fromkeys((file.name, file.name.removesuffix(".gz")))
    inside = [place for folder in data_folders(data) for place in (folder / file.folder, folder)]
    return [place / name for place in inside for name in names if (place / name).is_file()]


def obtain(files: Sequence[DataFile], data: Path | None, *, on_progress: Progress | None = None) -> dict[str, bytes]:
    """Name → verified content of all these files, found or downloaded; one DataError if one is missing."""
    found = {file.name: find(file, data) for file in files}
    contents = {name: one.content for name, one in found.items() if one.content is not None}
    missing = [file for file in files if file.name not in contents]
    problems = [problem for file in missing for problem in found[file.name].problems]
    for file in missing:
        folder = writable_folder(file, data)
        if folder is None:
            raise DataError(_not_at_hand(missing, data, [*problems, "none of these folders can be written to"]))
        outcome = download(file, folder, on_progress=on_progress)
        if outcome.content is None:
            left = [one for one in missing if one.name not in contents]
            raise DataError(_not_at_hand(left, data, [*problems, *outcome.problems]))
        contents[file.name] = outcome.content
    return contents


def writable_folder(file: DataFile, data: Path | None) -> Path | None:
    """The first place where the file may be put. A wrong file of that name is replaced in the cache alone."""
    for root in data_folders(data):
        folder = root / file.folder
        if (folder / file.name).exists() and root != user_cache():
            continue
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                return folder
        except OSError:
            continue
    return None


def _not_at_hand(missing: Sequence[DataFile], data: Path | None, problems: Sequence[str]) -> str:
    folder = missing[0].folder
    mirrors = " or ".join(missing[0].mirrors)
    return (
        f"{', '.join(file.name for file in missing)} could not be had. "
        f"Looked in {', '.join(str(place) for place in data_folders(data))} and their folder {folder}. "
        f"{'; '.join(problems)}. "
        f"By hand: get the files from {mirrors}, put them into a folder, and name it with --data or {FRCL_DATA}."
    )
