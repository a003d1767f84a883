"""Finding data files, and downloading those that are missing."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from frcl.data.download import Progress, download
from frcl.data.sources import LARGEST, DataFile, Found, verified
from frcl.errors import DataError

FRCL_DATA = "FRCL_DATA"


def user_cache() -> Path:
    """$XDG_CACHE_HOME/frcl, or ~/.cache/frcl."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".cache") / "frcl"


def data_folders(data: Path | None) -> tuple[Path, ...]:
    """The folders to look in, in order: `data`, FRCL_DATA, the user's cache folder."""
    named = os.environ.get(FRCL_DATA)
    folders = (data, Path(named) if named else None, user_cache())
    return tuple(dict.fromkeys(folder for folder in folders if folder is not None))


def find(file: DataFile, data: Path | None) -> Found:
    """The first file of that name, plain or gzipped, whose content is right."""
    problems: list[str] = []
    wrong = None
    names = dict.fromkeys((file.name, file.name.removesuffix(".gz")))
    places = [place for folder in data_folders(data) for place in (folder / file.folder, folder)]
    for path in (place / name for place in places for name in names if (place / name).is_file()):
        try:
            if path.stat().st_size > LARGEST:
                raise DataError(f"{path} is not {file.name}: it has more than {LARGEST >> 20} MiB")
            return Found(path, verified(file, path.read_bytes(), str(path)))
        except OSError as error:
            problems.append(f"{path} cannot be read: {error.strerror or error}")
        except DataError as error:
            problems.append(str(error))
        wrong = wrong or path
    return Found(problems=tuple(problems), wrong=wrong)


def obtain(files: Sequence[DataFile], data: Path | None, *, on_progress: Progress | None = None) -> dict[str, bytes]:
    """Name → verified content of all these files, found or downloaded; DataError if one is missing."""
    found = {file.name: find(file, data) for file in files}
    contents = {name: one.content for name, one in found.items() if one.content is not None}
    missing = [file for file in files if file.name not in contents]
    problems = [problem for file in missing for problem in found[file.name].problems]
    for file in missing:
        folder = writable_folder(file, data)
        if folder is None:
            raise _missing(missing, data, [*problems, "none of these folders can be written to"])
        received = download(file, folder, on_progress=on_progress)
        if received.content is None:
            left = [one for one in missing if one.name not in contents]
            raise _missing(left, data, [*problems, *received.problems])
        contents[file.name] = received.content
    return contents


def writable_folder(file: DataFile, data: Path | None) -> Path | None:
    """The first folder the file can be written to. An existing file of that name is replaced in the cache only."""
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


def _missing(missing: Sequence[DataFile], data: Path | None, problems: Sequence[str]) -> DataError:
    folder = missing[0].folder
    mirrors = " or ".join(missing[0].mirrors)
    return DataError(
        f"{', '.join(file.name for file in missing)} could not be had. "
        f"Looked in {', '.join(str(place) for place in data_folders(data))} and their folder {folder}. "
        f"{'; '.join(problems)}. "
        f"By hand: get the files from {mirrors}, put them into a folder, and name it with --data or {FRCL_DATA}."
    )
