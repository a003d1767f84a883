"""The numbers of a figure as a table of text, kept as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from frcl import DataError
from paper.library import write_atomically

SETTING = "setting"


@dataclass(frozen=True)
class Sheet:
    """Named columns of text fields."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def column(self, name: str) -> list[str]:
        return [row[self.columns.index(name)] for row in self.rows]

    def floats(self, name: str) -> list[float]:
        return [float(value) for value in self.column(name)]

    def where(self, **wanted: str) -> Sheet:
        """The rows with these values."""
        fits = {self.columns.index(name): value for name, value in wanted.items()}
        return Sheet(self.columns, tuple(row for row in self.rows if all(row[at] == v for at, v in fits.items())))

    def settings(self) -> dict[str, str]:
        """The settings of the measurement, from a sheet made by `Rows`."""
        found = self.where(kind=SETTING)
        return dict(zip(found.column("name"), found.column("value"), strict=True))


def sheet(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Sheet:
    """Convert values to text; floats get six significant digits."""
    return Sheet(tuple(columns), tuple(tuple(_text(value) for value in row) for row in rows))


def _text(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


class Rows:
    """Builds a sheet with several kinds of rows: each row names its kind and fills some of the columns."""

    def __init__(self, settings: Mapping[str, object], *columns: str) -> None:
        self.columns = ("kind", "name", "value", *columns)
        self._rows: list[list[object]] = []
        for name, value in settings.items():
            self.add(SETTING, name=name, value=value)

    def add(self, kind: str, **fields: object) -> None:
        unknown = set(fields) - set(self.columns)
        if unknown:
            raise ValueError(f"the sheet has no column {', '.join(sorted(unknown))}; it has {', '.join(self.columns)}")
        given = {"kind": kind, **fields}
        self._rows.append([given.get(name, "") for name in self.columns])

    def sheet(self) -> Sheet:
        return sheet(self.columns, self._rows)


def read_sheet(path: Path) -> Sheet:
    """Read a file written by `write_sheet`."""
    try:
        lines = list(csv.reader(io.StringIO(path.read_text(encoding="utf-8"), newline=""), strict=True))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} is not a table of numbers: {error}; measure it again with --again") from error
    if not lines or any(len(line) != len(lines[0]) for line in lines):
        raise DataError(f"{path} is not a table: its lines differ in length; measure it again with --again")
    return Sheet(tuple(lines[0]), tuple(tuple(line) for line in lines[1:]))


def write_sheet(numbers: Sheet, path: Path) -> None:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([numbers.columns, *numbers.rows])
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, text.getvalue().encode())
