"""Downloading one file: several mirrors in turn, verified, and either whole or not there at all."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from frcl.data.sources import GZIP, LARGEST, DataFile, verified
from frcl.errors import DataError

Progress = Callable[[str, int, int | None], None]  # file name, bytes received, bytes in all or None if unknown

TIMEOUT = 15.0  # seconds to wait for a connection, and for each next piece
CHUNK = 1 << 14


@dataclass(frozen=True)
class Outcome:
    """The content and path of a downloaded file, or None and what went wrong at each mirror."""

    content: bytes | None = None
    path: Path | None = None
    problems: tuple[str, ...] = ()


def download(file: DataFile, folder: Path, *, on_progress: Progress | None = None, timeout: float = TIMEOUT) -> Outcome:
    """Try the mirrors of `file` in turn until one gives the right content, and put it into `folder`.

    The file is written under a name of its own and renamed when it is verified, so that neither a crash nor a
    second process that does the same at the same time can leave part of it under the final name.
    """
    addresses = file.addresses()
    if not addresses:
        return Outcome(problems=(f"{file.name} has no mirror to download it from",))
    problems = []
    for address in addresses:
        try:
            return _from_mirror(file, address, folder, on_progress, timeout)
        except ImportError:
            return Outcome(problems=("downloading needs the package pooch, which is not installed",))
        except (OSError, ValueError) as error:  # every error of requests is an OSError or a ValueError
            problems.append(f"{address}: {_reason(error, timeout)}")
    return Outcome(problems=tuple(problems))


def _from_mirror(file: DataFile, address: str, folder: Path, on_progress: Progress | None, timeout: float) -> Outcome:
    from pooch import HTTPDownloader

    folder.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=folder, prefix=f".{file.name}.", suffix=".tmp")
    part = Path(name)
    try:
        with os.fdopen(handle, "w+b") as output:
            receiver = _Receiver(file.name, output, on_progress)
            HTTPDownloader(progressbar=receiver, chunk_size=CHUNK, timeout=timeout)(address, receiver, None)
            output.flush()
            os.fsync(output.fileno())
        raw = part.read_bytes()
        content = verified(file, raw, "what was received")
        # a server may unpack a .gz on the way
        final = folder / (file.name if raw.startswith(GZIP) else file.name.removesuffix(".gz"))
        part.chmod(0o644)
        part.replace(final)
        return Outcome(content, final)
    finally:
        part.unlink(missing_ok=True)


@dataclass
class _Receiver:
    """The open file and the progress bar, in the form in which pooch wants each of them."""

    name: str
    output: BinaryIO
    on_progress: Progress | None
    total: int = 0  # set by pooch from the server's answer; 0 if it does not say
    received: int = 0
    last: float = field(default_factory=time.monotonic)

    def write(self, chunk: bytes) -> None:
        self.received += len(chunk)
        if self.received > LARGEST:
            raise DataError(f"the server sends more than {LARGEST >> 20} MiB")
        self.output.write(chunk)
        now = time.monotonic()
        if self.on_progress is not None and now - self.last >= 0.05:
            self.last = now
            self.on_progress(self.name, self.received, self.total or None)

    def flush(self) -> None:
        """The file is flushed once, at the end."""

    def update(self, _amount: int) -> None:
        """`write` counts what really came."""

    def reset(self) -> None: ...

    def close(self) -> None:
        if self.on_progress is not None:
            self.on_progress(self.name, self.received, self.total or self.received)


def _reason(error: Exception, timeout: float) -> str:
    """One short line for what requests says in many."""
    match type(error).__name__:
        case "ConnectTimeout" | "ReadTimeout":
            return f"no answer within {timeout:g} s"
        case "ConnectionError" if "timed out" in str(error):
            return f"no answer within {timeout:g} s"
        case "ConnectionError" | "ProxyError" | "SSLError":
            return "cannot connect"
        case "ChunkedEncodingError":
            return "the connection broke"
        case "HTTPError":
            return str(error).split(" for url")[0]
        case _:
            return " ".join(str(error).split())
