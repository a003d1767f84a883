"""What a figure is: numbers that are measured and kept as CSV, and a picture drawn from them alone."""

from __future__ import annotations

import csv
import io
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from frcl.errors import DataError
from frcl.experiment.environment import describe
from frcl.files import write_atomically
from frcl.report.drawing import Drawing, save, style
from frcl.report.numbers import plural
from frcl.report.palette import LIGHT
from paper.cells import Table
from paper.measure import Place

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FOLDER = "figures"  # beside the cells of the tables
FORMAT, VERSION = "frcl-figure", 1


@dataclass(frozen=True)
class Sheet:
    """The numbers of a figure: one line of text fields for each thing drawn."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def column(self, name: str) -> list[str]:
        """One column, from the first row to the last."""
        return [row[self.columns.index(name)] for row in self.rows]

    def floats(self, name: str) -> list[float]:
        """One column, as numbers."""
        return [float(value) for value in self.column(name)]

    def where(self, **wanted: str) -> Sheet:
        """The rows that have these values."""
        fits = {self.columns.index(name): value for name, value in wanted.items()}
        return Sheet(self.columns, tuple(row for row in self.rows if all(row[at] == v for at, v in fits.items())))


@dataclass(frozen=True)
class FigureOf:
    """One figure of the paper."""

    name: str  # figure1, ...
    title: str
    measure: Callable[[Place], Sheet]
    draw: Callable[[Sheet], Drawing]
    needs: tuple[str, ...] = ()  # benchmarks whose data must be at hand
    table: Table | None = None  # cells that are measured first; the sheet is then made anew from the result files


def sheet(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Sheet:
    """Numbers as text: floats with six significant digits."""
    return Sheet(tuple(columns), tuple(tuple(_text(value) for value in row) for row in rows))


def _text(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def canvas(width: float, height: float, rows: int, columns: int, **options: Any) -> tuple[Figure, list[Axes]]:
    """A new figure, sizes in inches, with its axes from left to right and from top to bottom."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, list(figure.subplots(rows, columns, squeeze=False, **options).flat)


# -- files --------------------------------------------------------------------------------------------------------


def seeds_in_words(numbers: Sheet) -> str:
    """How many seeds its cells have, "3 seeds" or "3 to 10 seeds"."""
    seeds = sorted({int(value) for value in numbers.column("seeds")})
    return plural(seeds[0], "seed") if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]} seeds"


def left_out(missing: Sequence[str]) -> str:
    """What a caption says of cells that are not measured; nothing where all are."""
    return f" Not measured: {'; '.join(missing)}." if missing else ""


def path_of_figure(results: Path, name: str, kind: str) -> Path:
    return results / FOLDER / f"{name}.{kind}"


def read_sheet(path: Path) -> Sheet:
    """What `write_sheet` wrote."""
    try:
        lines = list(csv.reader(io.StringIO(path.read_text(encoding="utf-8"), newline=""), strict=True))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} is not a table of numbers: {error}; measure it anew with --again") from error
    if not lines or any(len(line) != len(lines[0]) for line in lines):
        raise DataError(f"{path} is not a table with as many fields in every line; measure it anew with --again")
    return Sheet(tuple(lines[0]), tuple(tuple(line) for line in lines[1:]))


def write_sheet(numbers: Sheet, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, sheet_text(numbers).encode())


def sheet_text(numbers: Sheet) -> str:
    """As CSV."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([numbers.columns, *numbers.rows])
    return text.getvalue()


@dataclass(frozen=True)
class Record:
    """What stands beside a figure: its words, and how its numbers were measured."""

    title: str
    caption: str  # explains it
    text: str  # says in words what it shows
    sheet: str  # SHA-256 of the CSV
    quick: bool
    measured: dict[str, Any] | None  # command, start, seconds, environment; None for numbers made from result files


def read_record(results: Path, name: str, *, quick: bool = False) -> Record | None:
    """The record of a figure, None if it was not made; one that does not belong to its CSV is refused."""
    path, numbers = path_of_figure(results, name, "json"), path_of_figure(results, name, "csv")
    if not path.is_file():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        known = (found.pop("format"), found.pop("version")) == (FORMAT, VERSION)
        record = Record(**found)
        digest = sha256(numbers.read_bytes()).hexdigest()
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{path} or its CSV is missing or damaged: {error!r}; measure the figure anew with --again"
        ) from error
    if not known:
        raise DataError(f"{path} is not the record of a figure that this frcl reads (version {VERSION})")
    if record.quick != quick:
        made = "with" if record.quick else "without"
        raise DataError(f"{path} was made {made} --quick; keep the two in folders of their own with --results")
    if record.sheet != digest:
        raise DataError(f"{numbers} was changed after it was measured; measure it anew with --again")
    return record


def _write_record(record: Record, results: Path, name: str) -> None:
    content = {"format": FORMAT, "version": VERSION, **asdict(record)}
    write_atomically(
        path_of_figure(results, name, "json"), (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode()
    )


# -- making -------------------------------------------------------------------------------------------------------


def is_kept(figure: FigureOf, results: Path) -> bool:
    """Whether its numbers are there, so that nothing has to be measured to draw it."""
    return figure.table is None and path_of_figure(results, figure.name, "csv").is_file()


def figure_in_words(figure: FigureOf, results: Path) -> str:
    """Whether it is there, for a list."""
    numbers, picture = (path_of_figure(results, figure.name, kind).is_file() for kind in ("csv", "png"))
    return f"{figure.name}: {('made' if picture else 'measured, not drawn') if numbers else 'not made yet'}"


def make_figure(figure: FigureOf, place: Place, *, again: bool = False) -> list[Path]:
    """Measure the numbers if they are not there, then draw them; returns the files, CSV first.

    Numbers that come from result files are collected anew each time; without any of them nothing is written.
    """
    path = path_of_figure(place.results, figure.name, "csv")
    if again or not is_kept(figure, place.results):
        record = _measure(figure, place)
    else:
        record = read_record(place.results, figure.name, quick=place.quick) or _record(figure, place, None)
    if record is None:
        return []
    with style():
        drawing = replace(figure.draw(read_sheet(path)), name=figure.name)
        if place.quick:
            drawing = _marked(drawing)
        pictures = save(drawing, path.parent)
    drawn = replace(record, title=drawing.title, caption=drawing.caption, text=drawing.text)
    _write_record(drawn, place.results, figure.name)
    return [path, *pictures]


def _measure(figure: FigureOf, place: Place) -> Record | None:
    """Measure and keep the numbers, the record of it last; None where there are none yet."""
    path = path_of_figure(place.results, figure.name, "csv")
    started, begin = datetime.now(UTC).isoformat(timespec="seconds"), time.monotonic()
    numbers = figure.measure(place)
    if figure.table is not None and not numbers.rows:
        return None
    path.with_suffix(".json").unlink(missing_ok=True)
    write_sheet(numbers, path)
    seconds = round(time.monotonic() - begin, 1)
    told = {"started": started, "seconds": seconds, "environment": describe(place.device)}
    record = _record(figure, place, None if figure.table else {"command": command(figure, place), **told})
    _write_record(record, place.results, figure.name)
    return record


def _record(figure: FigureOf, place: Place, measured: dict[str, Any] | None) -> Record:
    """The record of numbers that are there, not drawn yet."""
    numbers = path_of_figure(place.results, figure.name, "csv").read_bytes()
    return Record(figure.title, "", "", sha256(numbers).hexdigest(), place.quick, measured)


def command(figure: FigureOf, place: Place) -> str:
    """How to get this figure, without where anything lies on this machine."""
    words = ["frcl reproduce", figure.name, *(["--device", place.device] if place.device != "cpu" else [])]
    return " ".join(words + ["--quick"] * place.quick)


def _marked(drawing: Drawing) -> Drawing:
    """Says QUICK in its words and across the picture."""
    drawing.figure.text(0.5, 0.55, "QUICK", ha="center", va="center", rotation=20, fontsize=60, weight="bold",
                        color=LIGHT["series-1"], alpha=0.16, zorder=10)  # fmt: skip
    caption = f"QUICK: it shows that all of it runs, and its numbers mean nothing. {drawing.caption}"
    return replace(drawing, title=f"{drawing.title} (QUICK)", caption=caption)
