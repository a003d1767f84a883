"""The files of the real data sets: their names, how their content is verified, and where they are downloaded from."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from frcl.data.drawings import read_compact
from frcl.errors import DataError

LARGEST = 128 << 20  # bytes of a file, packed or unpacked
GZIP = b"\x1f\x8b"
MIRRORS = "FRCL_MIRRORS"  # addresses of folders, separated by spaces, instead of the usual ones; empty: offline

Check = Literal["sha256 unpacked", "md5", "sha256 of arrays"]


@dataclass(frozen=True)
class DataFile:
    """A file to be found or downloaded. Its content is verified, however it is packed."""

    name: str  # as it is distributed
    folder: str  # the folder it lives in, below a data folder
    check: Check
    digest: str
    mirrors: tuple[str, ...] = ()  # folders that have it, as addresses that end in "/"

    def addresses(self) -> tuple[str, ...]:
        """Where to download it from: FRCL_MIRRORS where that is set, else the usual mirrors."""
        given = os.environ.get(MIRRORS)
        mirrors = self.mirrors if given is None else tuple(f"{one.rstrip('/')}/" for one in given.split())
        return tuple(mirror + self.name for mirror in mirrors) if self.mirrors else ()


@dataclass(frozen=True)
class Found:
    """The path and content of a verified file; otherwise the problems, and the first file with the wrong content."""

    path: Path | None = None
    content: bytes | None = None
    problems: tuple[str, ...] = ()
    wrong: Path | None = None


def verified(file: DataFile, raw: bytes, where: str) -> bytes:
    """The content of a file, unpacked if it was gzipped; DataError if its digest is wrong."""
    match file.check:
        case "sha256 unpacked":
            content = unpacked(raw, where)
            digest = hashlib.sha256(content).hexdigest()
        case "md5":
            content, digest = raw, hashlib.md5(raw, usedforsecurity=False).hexdigest()
        case "sha256 of arrays":
            content, digest = raw, read_compact(raw, where).digest()
    if digest != file.digest:
        raise DataError(
            f"{where} is damaged or another file: its {file.check} is {digest[:12]}…, not {file.digest[:12]}…"
        )
    return content


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


_MNIST_MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
_OMNIGLOT_MIRRORS = (
    "https://raw.githubusercontent.com/brendenlake/omniglot/master/python/",
    "https://github.com/brendenlake/omniglot/raw/master/python/",
)


def _mnist(name: str, digest: str) -> DataFile:
    return DataFile(f"{name}.gz", "mnist", "sha256 unpacked", digest, _MNIST_MIRRORS)


@dataclass(frozen=True)
class MnistFiles:
    train_images: DataFile
    train_labels: DataFile
    test_images: DataFile
    test_labels: DataFile

    def all(self) -> tuple[DataFile, ...]:
        return (self.train_images, self.train_labels, self.test_images, self.test_labels)


@dataclass(frozen=True)
class OmniglotFiles:
    compact: DataFile  # made from the archives, never downloaded
    archives: tuple[DataFile, ...]

    def all(self) -> tuple[DataFile, ...]:
        return (self.compact, *self.archives)


MNIST = MnistFiles(
    _mnist("train-images-idx3-ubyte", "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"),
    _mnist("train-labels-idx1-ubyte", "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5"),
    _mnist("t10k-images-idx3-ubyte", "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"),
    _mnist("t10k-labels-idx1-ubyte", "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"),
)
_COMPACT_DIGEST = "3c25ed7087969a89b4ff017094e29c93b8f2a7cd28b899d1873f960a5ecafee1"
OMNIGLOT = OmniglotFiles(
    DataFile("omniglot28.npz", "omniglot", "sha256 of arrays", _COMPACT_DIGEST),
    (
        DataFile("images_background.zip", "omniglot", "md5", "68d2efa1b9178cc56df9314c21c6e718", _OMNIGLOT_MIRRORS),
        DataFile("images_evaluation.zip", "omniglot", "md5", "6b91aef0f799c5bb55b94e3f2daec811", _OMNIGLOT_MIRRORS),
    ),
)
