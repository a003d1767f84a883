"""Step logs as CSV files that can be taken up again exactly where a checkpoint left them."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path


class CsvLog:
    """Rows collected in memory and appended to the file by `flush`, which says how long the file then is."""

    def __init__(self, path: Path, header: Sequence[str], length: int | None = None) -> None:
        """Begin a new file, or with `length` go on with what was there when it had that many bytes."""
        self.path = path
        self._buffer = io.StringIO()
        if length is None:
            self.add(header)
            path.write_bytes(b"")
        else:
            with path.open("r+b") as file:
                file.truncate(length)

    def add(self, row: Sequence[object]) -> None:
        """One more row; no value of it has a comma."""
        self._buffer.write(",".join([f"{value:.7g}" if type(value) is float else str(value) for value in row]) + "\n")

    def flush(self) -> int:
        """Write what was collected; returns the length of the file."""
        with self.path.open("ab") as file:
            file.write(self._buffer.getvalue().encode())
            length = file.tell()
        self._buffer.seek(0)
        self._buffer.truncate()
        return length


def read_columns(path: Path) -> dict[str, list[str]]:
    """A CSV file by column."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))
    return {name: [row[i] for row in rows[1:]] for i, name in enumerate(rows[0])}
