"""Downloading one file: several mirrors in turn, verified, and written completely or not at all."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from frcl.data.sources import GZIP, LARGEST, DataFile, Found, verified
from frcl.errors import DataError

Progress = Callable[[str, int, int | None], None]  # file name, bytes received, total bytes or None if unknown

TIMEOUT = 15.0  # seconds to wait for a connection, and for each next piece
CHUNK = 1 << 14


def download(file: DataFile, folder: Path, *, on_progress: Progress | None = None, timeout: float = TIMEOUT) -> Found:
    """Try the mirrors of `file` in turn until one gives the right content, and put it into `folder`.

    The file is written under a temporary name and renamed after verification, so that neither a crash nor a second
    process that downloads the same file can leave a partial file under the final name.
    """
    addresses = file.addresses()
    if not addresses:
        return Found(problems=(f"{file.name} has no mirror to download it from",))
    problems = []
    for address in addresses:
        try:
            return _from_mirror(file, address, folder, on_progress, timeout)
        except ImportError:
            return Found(problems=("downloading needs the package requests, which is not installed",))
        except (OSError, ValueError) as error:  # every error of requests is an OSError or a ValueError
            problems.append(f"{address}: {_reason(error, timeout)}")
    return Found(problems=tuple(problems))


def _from_mirror(file: DataFile, address: str, folder: Path, on_progress: Progress | None, timeout: float) -> Found:
    import requests

    folder.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=folder, prefix=f".{file.name}.", suffix=".tmp")
    part = Path(name)
    try:
        with os.fdopen(handle, "w+b") as output, requests.get(address, stream=True, timeout=timeout) as response:
            response.raise_for_status()
            total = int(response.headers.get("Content-Length", 0)) or None
            received, last = 0, time.monotonic()
            for chunk in response.iter_content(CHUNK):
                output.write(chunk)
                received += len(chunk)
                if received > LARGEST:
                    raise DataError(f"the server sends more than {LARGEST >> 20} MiB")
                if on_progress is not None and time.monotonic() - last >= 0.05:
                    last = time.monotonic()
                    on_progress(file.name, received, total)
            output.flush()
            os.fsync(output.fileno())
        if on_progress is not None:
            on_progress(file.name, received, total or received)
        raw = part.read_bytes()
        content = verified(file, raw, "the received file")
        # some servers decompress .gz files in transit
        final = folder / (file.name if raw.startswith(GZIP) else file.name.removesuffix(".gz"))
        part.chmod(0o644)
        part.replace(final)
        return Found(final, content)
    finally:
        part.unlink(missing_ok=True)


def _reason(error: Exception, timeout: float) -> str:
    """An error of requests in one short line."""
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
