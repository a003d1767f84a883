"""Step logs as CSV files that can be taken up again exactly where a checkpoint left them."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path

from frcl.errors import CheckpointError


class CsvLog:
    """Rows collected in memory and appended to the file by `flush`, which says how long the file then is."""

    def __init__(self, path: Path, columns: Mapping[str, str], length: int | None = None) -> None:
        """Begin a new file, or with `length` go on with what was there when it had that many bytes.

        `columns` says how the values of each are written, as in "%d".
        """
        self.path = path
        self._buffer = io.StringIO()
        self._form = ",".join(columns.values()) + "\n"
        if length is None:
            self._buffer.write(",".join(columns) + "\n")
            path.write_bytes(b"")
        else:
            try:
                with path.open("r+b") as file:
                    file.truncate(length)
            except FileNotFoundError as error:
                raise CheckpointError(f"{path} is missing: without it the run cannot be taken up") from error

    def add(self, row: Sequence[object]) -> None:
        self._buffer.write(self._form % tuple(row))

    def flush(self) -> int:
        """Write what was collected; returns the length of the file."""
        with self.path.open("ab") as file:
            file.write(self._buffer.getvalue().encode())
            length = file.tell()
        self._buffer.seek(0)
        self._buffer.truncate()
        return length
