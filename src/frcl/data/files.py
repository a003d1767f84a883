"""A data file: found in a folder or downloaded from a mirror, and verified by its content, however it is packed."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import os
import tempfile
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from frcl.data import cifar_files
from frcl.data.drawings import read_compact
from frcl.errors import DataError
from frcl.files import write_atomically

FRCL_DATA = "FRCL_DATA"
MIRRORS = "FRCL_MIRRORS"  # addresses of folders, separated by spaces, instead of the usual ones; empty: offline
LARGEST = 256 << 20  # bytes of a file, packed or unpacked
GZIP = b"\x1f\x8b"
TIMEOUT = 15.0  # seconds to wait for a connection, and for each next piece
CHUNK = 1 << 14

Check = Literal["sha256 unpacked", "sha256", "md5", "sha256 of arrays", "sha256 of images"]
Progress = Callable[[str, int, int | None], None]  # file name, bytes received, total bytes or None if unknown


@dataclass(frozen=True)
class FileStatus:
    """The verified content of a file and its path; otherwise the problems, and the first file with wrong content."""

    dataset: str
    name: str
    path: Path | None = None
    content: bytes | None = field(default=None, repr=False)
    problems: tuple[str, ...] = ()
    needed: bool = True  # without it the data set is not complete

    @property
    def verified(self) -> bool:
        return self.content is not None

    @property
    def problem(self) -> str | None:
        return next(iter(self.problems), None)


@dataclass(frozen=True)
class DataFile:
    """A file of a data set."""

    name: str  # as it is distributed
    folder: str  # the data set, and the folder it lives in, below a data folder
    check: Check
    digest: str
    mirrors: tuple[str, ...] = ()  # folders that have it, as addresses that end in "/"

    def verified(self, raw: bytes, where: str) -> bytes:
        """The content of the file, unpacked if it was gzipped or an archive; DataError if its digest is wrong."""
        content = unpacked(raw, where) if self.check == "sha256 unpacked" else raw
        if self.check == "sha256 of arrays":
            digest = read_compact(raw, where).digest()
        elif self.check == "sha256 of images":
            images = cifar_files.read_archive(raw, where)
            digest, content = images.digest(), cifar_files.to_bytes(images)
        else:
            digest = hashlib.new(self.check.split()[0], content, usedforsecurity=False).hexdigest()
        if digest != self.digest:
            raise DataError(
                f"{where} is damaged or another file: its {self.check} is {digest[:12]}…, not {self.digest[:12]}…"
            )
        return content

    def find(self, data: Path | None) -> FileStatus:
        """The first file of that name, plain or gzipped, whose content is right."""
        wrong: dict[Path, str] = {}
        names = dict.fromkeys((self.name, self.name.removesuffix(".gz")))
        places = [place for root in data_folders(data) for place in (root / self.folder, root)]
        for path in (place / name for place in places for name in names if (place / name).is_file()):
            try:
                if path.stat().st_size > LARGEST:
                    raise DataError(f"{path} is not {self.name}: it has more than {LARGEST >> 20} MiB")
                return FileStatus(self.folder, self.name, path, self.verified(path.read_bytes(), str(path)))
            except OSError as error:
                wrong[path] = f"{path} cannot be read: {error.strerror or error}"
            except DataError as error:
                wrong[path] = str(error)
        return FileStatus(self.folder, self.name, next(iter(wrong), None), problems=tuple(wrong.values()))

    def writable_folder(self, data: Path | None) -> Path | None:
        """The first folder that it can be written to. An existing file of that name is replaced in the cache only."""
        for root in data_folders(data):
            folder = root / self.folder
            with contextlib.suppress(OSError):
                if root == user_cache() or not (folder / self.name).exists():
                    folder.mkdir(parents=True, exist_ok=True)
                    with tempfile.TemporaryFile(dir=folder):
                        return folder
        return None

    def download(self, folder: Path, *, on_progress: Progress | None = None, timeout: float = TIMEOUT) -> FileStatus:
        """Put the file into `folder`, from the first of the mirrors, or of FRCL_MIRRORS, with the right content.

        It is written after verification, completely or not at all, whatever other processes do at the same time.
        """
        given = os.environ.get(MIRRORS)
        mirrors = self.mirrors if given is None else [f"{mirror.rstrip('/')}/" for mirror in given.split()]
        problems = []
        for address in (mirror + self.name for mirror in mirrors if self.mirrors):
            try:
                raw = self._received(address, on_progress or (lambda *_: None), timeout)
                content = self.verified(raw, "the received file")
                # some servers decompress .gz files in transit
                path = folder / (self.name if raw.startswith(GZIP) else self.name.removesuffix(".gz"))
                folder.mkdir(parents=True, exist_ok=True)
                write_atomically(path, raw)
                return FileStatus(self.folder, self.name, path, content)
            except ImportError:
                problems = ["downloading needs the package requests, which is not installed"]
                break
            except (OSError, ValueError) as error:  # every error of requests is an OSError or a ValueError
                problems.append(f"{address}: {_reason(error, timeout)}")
        problems = problems or [f"{self.name} has no mirror to download it from"]
        return FileStatus(self.folder, self.name, problems=tuple(problems))

    def _received(self, address: str, on_progress: Progress, timeout: float) -> bytes:
        import requests

        raw, last = bytearray(), time.monotonic()
        with requests.get(address, stream=True, timeout=timeout) as response:
            response.raise_for_status()
            total = int(response.headers.get("Content-Length", 0)) or None
            for chunk in response.iter_content(CHUNK):
                raw += chunk
                if len(raw) > LARGEST:
                    raise DataError(f"the server sends more than {LARGEST >> 20} MiB")
                if time.monotonic() - last >= 0.05:
                    last = time.monotonic()
                    on_progress(self.name, len(raw), total)
        on_progress(self.name, len(raw), total or len(raw))
        return bytes(raw)


def user_cache() -> Path:
    """$XDG_CACHE_HOME/frcl, or ~/.cache/frcl."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".cache") / "frcl"


def data_folders(data: Path | None) -> tuple[Path, ...]:
    """The folders to look in, in order: `data`, FRCL_DATA, the user's cache folder."""
    named = os.environ.get(FRCL_DATA)
    folders = (data, Path(named) if named else None, user_cache())
    return tuple(dict.fromkeys(folder for folder in folders if folder is not None))


def unpacked(raw: bytes, where: str) -> bytes:
    """The bytes, decompressed if they are gzipped."""
    if not raw.startswith(GZIP):
        return raw
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(raw)) as file:
            content = file.read(LARGEST + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{where} is damaged: {error}") from error
    if len(content) > LARGEST:
        raise DataError(f"{where} is refused: it would unpack to more than {LARGEST >> 20} MiB")
    return content


def _reason(error: Exception, timeout: float) -> str:
    """An error of requests in one short line."""
    name, text = type(error).__name__, " ".join(str(error).split())
    if name in ("ConnectTimeout", "ReadTimeout") or (name == "ConnectionError" and "timed out" in text):
        return f"no answer within {timeout:g} s"
    if name in ("ConnectionError", "ProxyError", "SSLError"):
        return "cannot connect"
    return "the connection broke" if name == "ChunkedEncodingError" else text.split(" for url")[0]
