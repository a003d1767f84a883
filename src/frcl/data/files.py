"""Data sets with files: found in a folder or downloaded from a mirror, and verified by their content; `frcl data`."""

import contextlib
import gzip
import hashlib
import io
import os
import tempfile
import threading
import time
import tomllib
import zlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

from frcl.data import cifar_files
from frcl.data.drawings import read_archives, read_compact, to_compact
from frcl.data.registry import BENCHMARKS
from frcl.data.tasks import Progress
from frcl.errors import DataError, OptionError
from frcl.files import write_atomically
from frcl.registry import suggestion

FRCL_DATA = "FRCL_DATA"
MIRRORS = "FRCL_MIRRORS"  # addresses of folders, separated by spaces, instead of the usual ones; empty: offline
LARGEST = 256 << 20  # bytes of a file, packed or unpacked
T = TypeVar("T")
GZIP = b"\x1f\x8b"
TIMEOUT = 15.0  # seconds to wait for a connection, and for each next piece
DEADLINE = 600.0  # seconds for a whole file from one mirror
CHUNK = 1 << 14
KNOWN: dict[str, Any] = tomllib.loads(Path(__file__).with_name("files.toml").read_text(encoding="utf-8"))

Check = Literal["sha256 unpacked", "sha256 of arrays", "sha256 of images"]


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
    name: str  # as it is distributed
    folder: str  # the data set, and the folder it lives in, below a data folder
    check: Check
    digest: str
    mirrors: tuple[str, ...] = ()  # folders that have it, as addresses that end in "/"

    def verified(self, raw: bytes, where: str) -> bytes:
        """The content of the file, unpacked if it was gzipped or an archive; DataError if its digest is wrong."""
        if self.check == "sha256 of arrays":
            content, digest = raw, read_compact(raw, where).digest()
        elif self.check == "sha256 of images":
            images = cifar_files.read_archive(raw, where)
            content, digest = cifar_files.to_bytes(images), images.digest()
        else:
            content = unpacked(raw, where)
            digest = hashlib.sha256(content).hexdigest()
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

    def download(
        self, folder: Path, *, on_progress: Progress | None = None, timeout: float = TIMEOUT, deadline: float = DEADLINE
    ) -> FileStatus:
        """Put the file into `folder`, from the first of the mirrors, or of FRCL_MIRRORS, with the right content.

        It is verified first and written atomically. A mirror that takes more than `deadline` seconds is given up, even
        if it is still sending.
        """
        given = os.environ.get(MIRRORS)
        mirrors = self.mirrors if given is None else [f"{mirror.rstrip('/')}/" for mirror in given.split()]
        problems = []
        for address in (mirror + self.name for mirror in mirrors if self.mirrors):
            try:
                receive = partial(self._received, address, on_progress or (lambda *_: None), timeout, deadline)
                raw = within(deadline, receive)
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

    def _received(self, address: str, on_progress: Progress, timeout: float, deadline: float) -> bytes:
        import requests

        raw, begin = bytearray(), time.monotonic()
        last = begin
        with requests.get(address, stream=True, timeout=timeout) as response:
            response.raise_for_status()
            total = int(response.headers.get("Content-Length", 0)) or None
            for chunk in response.iter_content(CHUNK):
                raw += chunk
                if len(raw) > LARGEST or time.monotonic() - begin > deadline:
                    raise DataError(f"the server sends more than {LARGEST >> 20} MiB, or for more than {deadline:g} s")
                if time.monotonic() - last >= 0.05:
                    last = time.monotonic()
                    on_progress(self.name, len(raw), total)
        on_progress(self.name, len(raw), total or len(raw))
        return bytes(raw)


def within(seconds: float, work: Callable[[], T]) -> T:
    """What `work` returns; if that takes too long, a DataError, and its thread is left to end by itself."""
    outcome: Future[T] = Future()

    def attempt() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=attempt, daemon=True).start()
    if not wait([outcome], seconds).done:
        raise DataError(f"not complete after {seconds:g} s")
    return outcome.result()


def user_cache() -> Path:
    """$XDG_CACHE_HOME/frcl, or ~/.cache/frcl."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".cache") / "frcl"


def data_folders(data: Path | None) -> tuple[Path, ...]:
    """The folders to look in, in order: `data`, FRCL_DATA, the user's cache folder."""
    folders = (data, os.environ.get(FRCL_DATA), user_cache())
    return tuple(dict.fromkeys(Path(folder) for folder in folders if folder))


def unpacked(raw: bytes, where: str) -> bytes:
    """The bytes, decompressed if they are gzipped."""
    if not raw.startswith(GZIP):
        return raw
    try:
        content = gzip.GzipFile(fileobj=io.BytesIO(raw)).read(LARGEST + 1)
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


@dataclass(frozen=True)
class DataSet:
    """The files of a data set. `compact` files, if any, replace the others; `pack` makes the one there is from them."""

    name: str
    files: tuple[DataFile, ...]
    compact: tuple[DataFile, ...] = ()
    pack: Callable[[Mapping[str, bytes]], bytes] | None = None

    def contents(
        self, data: Path | None = None, *, on_progress: Progress | None = None, whole: bool = False
    ) -> dict[str, bytes]:
        """Name → verified content of every file, or of the compact ones alone; missing files are downloaded.

        `whole` prefers the files to the compact ones where both are present.
        """
        for form in (self.files, self.compact) if whole else (self.compact,):
            present = [file.find(data) for file in form]
            if present and all(one.verified for one in present):
                return {one.name: one.content for one in present if one.content is not None}
        found = self._obtain(data, on_progress)
        if self.pack is None:
            return found
        (compact,) = self.compact
        content, folder = self.pack(found), compact.writable_folder(data)
        with contextlib.suppress(OSError):  # it would only make the next start faster
            if folder is not None:
                write_atomically(folder / compact.name, content)
        return {compact.name: content}

    def _obtain(self, data: Path | None, on_progress: Progress | None) -> dict[str, bytes]:
        found = {file: file.find(data) for file in self.files}
        missing = [file for file, one in found.items() if not one.verified]
        problems = [problem for one in found.values() for problem in one.problems]
        for number, file in enumerate(missing):
            folder = file.writable_folder(data)
            if folder is not None:
                found[file] = file.download(folder, on_progress=on_progress)
            if not found[file].verified:
                last = found[file].problems if folder else ["none of these folders can be written to"]
                raise DataError(
                    f"{', '.join(one.name for one in missing[number:])} could not be found or downloaded. "
                    f"Looked in {', '.join(str(place) for place in data_folders(data))} and their folder {self.name}. "
                    f"{'; '.join([*problems, *last])}. By hand: get the files from {' or '.join(file.mirrors)}, "
                    f"put them into a folder, and name it with --data or {FRCL_DATA}."
                )
        return {one.name: one.content for one in found.values() if one.content is not None}

    def status(self, data: Path | None = None) -> list[FileStatus]:
        """The state of every file. Those that compact files replace are needed only where these are missing."""
        files, compact = ([file.find(data) for file in form] for form in (self.files, self.compact))
        replaced = bool(compact) and all(one.verified for one in compact)
        return [*(replace(one, needed=False) for one in compact), *(replace(one, needed=not replaced) for one in files)]


def _data_set(name: str, pack: Callable[[Mapping[str, bytes]], bytes] | None = None) -> DataSet:
    known = KNOWN[name]
    folder = known.get("folder", name)
    files, compact = (
        tuple(DataFile(file, folder, part["check"], part["digests"][file], mirrors) for file in part["digests"])
        for part, mirrors in ((known["files"], tuple(known["mirrors"])), (known.get("compact", {"digests": ()}), ()))
    )
    return DataSet(name, files, compact, pack)


MNIST, CIFAR10, CIFAR100 = map(_data_set, ("mnist", "cifar10", "cifar100"))
OMNIGLOT = _data_set("omniglot", lambda archives: to_compact(read_archives(archives)))
DATASETS = (MNIST, OMNIGLOT, CIFAR10, CIFAR100)


def data_status(data: Path | None = None) -> list[FileStatus]:
    return [status for dataset in DATASETS for status in dataset.status(data)]


def check_files(benchmark: str, data: Path | None = None) -> None:
    """Refuse a benchmark whose files are not all present; nothing is downloaded."""
    wanted = BENCHMARKS[benchmark].datasets if benchmark in BENCHMARKS else ()
    for one in (one for dataset in DATASETS if dataset.name in wanted for one in dataset.status(data)):
        if one.needed and not one.verified:
            places = ", ".join(str(place) for place in data_folders(data))
            problem = one.problem or f"not found in {places} and their folder {one.dataset}"
            raise DataError(f"{one.name} of {one.dataset}: {problem}; `frcl data {benchmark}` downloads it")


def fetch(
    name: str, data: Path | None = None, *, on_progress: Progress | None = None, datasets: Sequence[DataSet] = DATASETS
) -> list[FileStatus]:
    """Make sure that the files of a benchmark or data set are present; download those that are missing."""
    wanted = BENCHMARKS[name].datasets if name in BENCHMARKS else (name,) if name != "digits" else ()
    known = {dataset.name: dataset for dataset in datasets}
    if any(one not in known for one in wanted):
        near = suggestion(name, (*known, "digits"))
        raise OptionError(f"there is no data set {name!r}{near} (or the name of a benchmark)")
    for one in wanted:
        known[one].contents(data, on_progress=on_progress)
    return [status for one in wanted for status in known[one].status(data)]
