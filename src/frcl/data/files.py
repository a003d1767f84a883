"""Data sets with files: found in a folder or downloaded from a mirror, and verified by their content; `frcl data`."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import os
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
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
    """A file of a data set."""

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
        self,
        folder: Path,
        *,
        on_progress: Progress | None = None,
        timeout: float = TIMEOUT,
        deadline: float = DEADLINE,
    ) -> FileStatus:
        """Put the file into `folder`, from the first of the mirrors, or of FRCL_MIRRORS, with the right content.

        It is written after verification, completely or not at all, whatever other processes do at the same time. A
        mirror that has not sent it after `deadline` seconds, however slowly it goes on, is given up.
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
    outcome: SimpleQueue[Callable[[], T]] = SimpleQueue()

    def attempt() -> None:
        try:
            found = work()
            outcome.put(lambda: found)
        except BaseException as error:
            outcome.put(partial(_raise, error))

    threading.Thread(target=attempt, daemon=True).start()
    try:
        return outcome.get(timeout=seconds)()
    except Empty:
        raise DataError(f"not complete after {seconds:g} s") from None


def _raise(error: BaseException) -> Any:
    raise error


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
        while missing:
            folder = missing[0].writable_folder(data)
            if folder is not None:
                found[missing[0]] = missing[0].download(folder, on_progress=on_progress)
            if folder is None or not found[missing[0]].verified:
                last = found[missing[0]].problems if folder else ["none of these folders can be written to"]
                raise DataError(
                    f"{', '.join(file.name for file in missing)} could not be found or downloaded. "
                    f"Looked in {', '.join(str(place) for place in data_folders(data))} and their folder {self.name}. "
                    f"{'; '.join([*problems, *last])}. By hand: get the files from {' or '.join(missing[0].mirrors)}, "
                    f"put them into a folder, and name it with --data or {FRCL_DATA}."
                )
            del missing[0]
        return {one.name: one.content for one in found.values() if one.content is not None}

    def status(self, data: Path | None = None) -> list[FileStatus]:
        """The state of every file. Those that compact files replace are needed only where these are missing."""
        files, compact = ([file.find(data) for file in form] for form in (self.files, self.compact))
        replaced = bool(compact) and all(one.verified for one in compact)
        return [*(replace(one, needed=False) for one in compact), *(replace(one, needed=not replaced) for one in files)]


def _files(folder: str, check: Check, mirrors: tuple[str, ...], **digests: str) -> tuple[DataFile, ...]:
    return tuple(DataFile(name, folder, check, digest, mirrors) for name, digest in digests.items())


_MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"
MNIST = DataSet("mnist", _files("mnist", "sha256 unpacked", _MNIST, **{
    "train-images-idx3-ubyte.gz": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte.gz": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte.gz": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte.gz": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}))  # fmt: skip
_OMNIGLOT = (
    "https://raw.githubusercontent.com/brendenlake/omniglot/master/python/",
    "https://github.com/brendenlake/omniglot/raw/master/python/",
)
_COMPACT = "3c25ed7087969a89b4ff017094e29c93b8f2a7cd28b899d1873f960a5ecafee1"
OMNIGLOT = DataSet("omniglot", _files("omniglot", "sha256 unpacked", _OMNIGLOT, **{
    "images_background.zip": "ad41ab679c8b5d90b271ef46be6987cc81211774a695c29dcc5367b2b26ee640",
    "images_evaluation.zip": "1f61a8f3366785b057fc117d9228e78a16e3d976c8953b2a10fcc74cf0609cee",
}), (DataFile("omniglot28.npz", "omniglot", "sha256 of arrays", _COMPACT),),
   lambda archives: to_compact(read_archives(archives)))  # fmt: skip
_CIFAR = ("https://www.cs.toronto.edu/~kriz/",)
# SHA-256 of pixels and labels, of train and of test
_CIFAR10 = (
    "47af8b02cfcfb6cdf3dbbd1969ad7f1b70f4413f6f80f437b020ee4e5bc8304a",
    "2b7cd2f24487317614016b72ffd53071c3062f592f0eb300c18a770d41ae1253",
    "f9b1e2130bab680db56eb06d886f7f1ad0f1183907ceff4659d1735c890f5b04",
    "cec8a24a1e92aa2ecaa0bbd3dbfa86bf6cd8759fbd209a832824c8cf0afca9d5",
)
_CIFAR100 = (
    "4e457917601a66aed021f5fa37957b56c6319557c0a8ed5484de3c390af45430",
    "9f11b9f97aad759ba6df0a33e3218b01d8deaf4ed3a14aa1185d69b9ad7ebcb3",
    "4cb8e5d9309da489bf6b19cc10cd96c3ae6f8daf225380b605aaee4c0d6aee19",
    "4dad7d09c7c97d33f6cb928d705cf4196221316fd6e31bdd978a08ed9103ee0b",
)
CIFAR10 = DataSet("cifar10", _files("cifar", "sha256 of images", _CIFAR, **{
    "cifar-10-binary.tar.gz": " ".join(_CIFAR10),
}), _files("cifar", "sha256 unpacked", (), **{
    "cifar10-train-0.npz": "f18f57b998a0b9f431b04ca72a061c2cddf20be201f2dc2950fd732d970c998b",
    "cifar10-train-1.npz": "846c02e704f5975c982d80def95a1fcce1cba073b776507cb6772543d4489a71",
    "cifar10-train-2.npz": "ffd1275fbabe82e69893ea2b06d26dd8584c751aaceb8eeed0a8ecb626766790",
    "cifar10-test.npz": "3fada3ff43fac45373f8557501ae8bbd21dfdef39109d7bd940bb9a7dfb67278",
}))  # fmt: skip
CIFAR100 = DataSet("cifar100", _files("cifar", "sha256 of images", _CIFAR, **{
    "cifar-100-binary.tar.gz": " ".join(_CIFAR100),
}), _files("cifar", "sha256 unpacked", (), **{
    "cifar100-first50-train-0.npz": "d9e11f3d3b19829a2fdacf0d9f5a3c6b61a69c3011f92e038398088cfe86d977",
    "cifar100-first50-train-1.npz": "208e5d7927d5134932568f2117ace99a26b666eee1743f57d2dac1ebdf8c5d83",
    "cifar100-first50-test.npz": "469a365560b3aee98aff3c30ff5187e735a1b6ba0d8b0c8664afe766884c0652",
}))  # fmt: skip
DATASETS = (MNIST, OMNIGLOT, CIFAR10, CIFAR100)


def data_status(data: Path | None = None) -> list[FileStatus]:
    """The state of every file of the data sets."""
    return [status for dataset in DATASETS for status in dataset.status(data)]


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
