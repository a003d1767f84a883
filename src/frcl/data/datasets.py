"""The data sets with files: what they consist of, which files are present, and getting those that are not."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from frcl.data.drawings import read_archives, to_compact
from frcl.data.files import FRCL_DATA, Check, DataFile, FileStatus, Progress, data_folders
from frcl.data.registry import BENCHMARKS
from frcl.errors import DataError, OptionError
from frcl.files import write_atomically
from frcl.registry import suggestion


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
OMNIGLOT = DataSet("omniglot", _files("omniglot", "md5", _OMNIGLOT, **{
    "images_background.zip": "68d2efa1b9178cc56df9314c21c6e718",
    "images_evaluation.zip": "6b91aef0f799c5bb55b94e3f2daec811",
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
}), _files("cifar", "sha256", (), **{
    "cifar10-train-0.npz": "f18f57b998a0b9f431b04ca72a061c2cddf20be201f2dc2950fd732d970c998b",
    "cifar10-train-1.npz": "846c02e704f5975c982d80def95a1fcce1cba073b776507cb6772543d4489a71",
    "cifar10-train-2.npz": "ffd1275fbabe82e69893ea2b06d26dd8584c751aaceb8eeed0a8ecb626766790",
    "cifar10-test.npz": "3fada3ff43fac45373f8557501ae8bbd21dfdef39109d7bd940bb9a7dfb67278",
}))  # fmt: skip
CIFAR100 = DataSet("cifar100", _files("cifar", "sha256 of images", _CIFAR, **{
    "cifar-100-binary.tar.gz": " ".join(_CIFAR100),
}), _files("cifar", "sha256", (), **{
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
