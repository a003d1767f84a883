"""File locks between processes."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from paper.library import BusyError


@contextmanager
def locked(path: Path, *, wait: bool = False) -> Iterator[None]:
    """Hold an exclusive lock on the file `path`, which is created on entry and removed on exit.

    If another process holds the lock, wait for it or raise a BusyError. The lock ends with the process, however that
    ends. Without support by the system nothing is locked.
    """
    try:
        import fcntl
    except ImportError:
        yield
        return
    while True:
        with path.open("ab") as file:  # a link in its place is not truncated
            try:
                fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise BusyError(f"another process is using {path.parent}; wait until it has finished") from error
            except OSError as error:
                if error.errno not in (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP):
                    raise
            if not _is_at(path, file.fileno()):
                continue  # the previous holder removed it between open() and flock()
            try:
                yield
            finally:
                path.unlink(missing_ok=True)
            return


def _is_at(path: Path, handle: int) -> bool:
    """Whether the open file is still the one at `path`."""
    try:
        return os.path.samestat(path.stat(), os.fstat(handle))
    except FileNotFoundError:
        return False
