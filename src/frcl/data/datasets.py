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
    """The files of a data set. `compact`, if any, replaces the others: `pack` makes it from their contents."""

    name: str
    files: tuple[DataFile, ...]
    compact: DataFile | None = None
    pack: Callable[[Mapping[str, bytes]], bytes] | None = None

    def contents(self, data: Path | None = None, *, on_progress: Progress | None = None) -> dict[str, bytes]:
        """Name → verified content of every file, or of the compact one alone; missing files are downloaded."""
        if self.compact is None or self.pack is None:
            return self._obtain(data, on_progress)
        content = self.compact.find(data).content
        if content is None:
            content = self.pack(self._obtain(data, on_progress))
            folder = self.compact.writable_folder(data)
            with contextlib.suppress(OSError):  # it would only make the next start faster
                if folder is not None:
                    write_atomically(folder / self.compact.name, content)
        return {self.compact.name: content}

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
        """The state of every file. Those that the compact file is made from are needed only until it is there."""
        files = [file.find(data) for file in self.files]
        if self.compact is None:
            return files
        compact = self.compact.find(data)
        return [replace(compact, needed=False), *(replace(one, needed=not compact.verified) for one in files)]


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
}), DataFile("omniglot28.npz", "omniglot", "sha256 of arrays", _COMPACT),
   lambda archives: to_compact(read_archives(archives)))  # fmt: skip
DATASETS = (MNIST, OMNIGLOT)


def data_status(data: Path | None = None) -> list[FileStatus]:
    """The state of every file of the data sets."""
    return [status for dataset in DATASETS for status in dataset.status(data)]


def fetch(
    name: str, data: Path | None = None, *, on_progress: Progress | None = None, datasets: Sequence[DataSet] = DATASETS
) -> list[FileStatus]:
    """Make sure that the files of a benchmark or data set are present; download those that are missing."""
    wanted = BENCHMARKS[name].dataset if name in BENCHMARKS else name
    known = {dataset.name: dataset for dataset in datasets}
    if wanted is None or wanted == "digits":
        return []
    if wanted not in known:
        near = suggestion(name, (*known, "digits"))
        raise OptionError(f"there is no data set {name!r}{near} (or the name of a benchmark)")
    known[wanted].contents(data, on_progress=on_progress)
    return known[wanted].status(data)
