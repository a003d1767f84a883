"""Which files of the data sets are present, and downloading those that are not: the work of `frcl data`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from frcl.data.download import Progress
from frcl.data.lookup import find, obtain
from frcl.data.omniglot import load_omniglot
from frcl.data.registry import BENCHMARKS
from frcl.data.sources import MNIST, OMNIGLOT, DataFile, MnistFiles, OmniglotFiles
from frcl.errors import OptionError
from frcl.registry import suggestion


@dataclass(frozen=True)
class FileStatus:
    """One file of a data set. `verified` is true if its content is right; otherwise `problem` says what is wrong."""

    dataset: str
    name: str
    path: Path | None
    verified: bool
    problem: str | None
    needed: bool  # without it the data set is not complete


def data_status(
    data: Path | None = None, *, mnist: MnistFiles = MNIST, omniglot: OmniglotFiles = OMNIGLOT
) -> list[FileStatus]:
    """The state of every file, in the order in which the benchmarks use them.

    Omniglot's archives are needed only until the compact file has been made from them.
    """
    compact = _status(omniglot.compact, data, needed=False)
    archives = [_status(file, data, needed=not compact.verified) for file in omniglot.archives]
    return [*(_status(file, data, needed=True) for file in mnist.all()), compact, *archives]


def fetch(
    name: str,
    data: Path | None = None,
    *,
    on_progress: Progress | None = None,
    mnist: MnistFiles = MNIST,
    omniglot: OmniglotFiles = OMNIGLOT,
) -> list[FileStatus]:
    """Make sure that the files of a benchmark or data set are present; download those that are missing."""
    match BENCHMARKS[name].dataset if name in BENCHMARKS else name:
        case None | "digits":
            return []
        case "mnist" as dataset:
            obtain(mnist.all(), data, on_progress=on_progress)
        case "omniglot" as dataset:
            load_omniglot(data, files=omniglot, on_progress=on_progress)
        case _:
            known = ("mnist", "omniglot", "digits")
            raise OptionError(f"there is no data set {name!r}{suggestion(name, known)} (or the name of a benchmark)")
    return [one for one in data_status(data, mnist=mnist, omniglot=omniglot) if one.dataset == dataset]


def _status(file: DataFile, data: Path | None, *, needed: bool) -> FileStatus:
    found = find(file, data)
    problem = found.problems[0] if found.path is None and found.problems else None
    return FileStatus(file.folder, file.name, found.path or found.wrong, found.path is not None, problem, needed)
