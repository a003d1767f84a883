"""A figure: numbers that are measured and kept as CSV, a picture drawn from them alone, and a record of both."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from frcl import DataError
from paper.cells import Table
from paper.figures.sheets import Sheet, read_sheet, write_sheet
from paper.library import LIGHT, Drawing, describe, plural, save, style, write_atomically
from paper.measure import Place

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FOLDER = "figures"  # in the folder of results
FORMAT, VERSION = "frcl-figure", 1


@dataclass(frozen=True)
class FigureSpec:
    """How a figure is measured and drawn."""

    name: str  # figure1, ...
    title: str
    measure: Callable[[Place], Sheet]
    draw: Callable[[Sheet], Drawing]
    needs: tuple[str, ...] = ()  # benchmarks whose data it reads
    table: Table | None = None  # cells that are measured first; the sheet is then collected from their result files


def canvas(width: float, height: float, rows: int, columns: int, **options: Any) -> tuple[Figure, list[Axes]]:
    """A new figure, sizes in inches, with its axes from left to right and from top to bottom."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, list(figure.subplots(rows, columns, squeeze=False, **options).flat)


def spread_in_words(numbers: Sheet, missing: Sequence[str]) -> str:
    """The end of a caption: the number of seeds, "3 seeds" or "3 to 10 seeds", and the cells that are missing."""
    seeds = sorted({int(value) for value in numbers.column("seeds")})
    count = plural(seeds[0], "seed") if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]} seeds"
    return f"Mean ± one standard deviation over {count}." + (f" Not measured: {'; '.join(missing)}." if missing else "")


def path_of_figure(results: Path, name: str, kind: str) -> Path:
    return results / FOLDER / f"{name}.{kind}"


# -- the record -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Record:
    """Title and texts of a figure, and how its numbers were measured."""

    title: str
    caption: str
    text: str  # describes in words what is to be seen
    sheet: str  # SHA-256 of the CSV
    quick: bool
    measured: dict[str, Any] | None  # command, start, seconds, environment; None for numbers from result files


def read_record(results: Path, name: str, *, quick: bool = False) -> Record | None:
    """The record of a figure, None if it does not exist; one that does not match its CSV is refused."""
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
            f"{path} or its CSV is missing or damaged: {error!r}; measure the figure again with --again"
        ) from error
    if not known:
        raise DataError(f"{path} is not the record of a figure that this version reads (version {VERSION})")
    if record.quick != quick:
        made = "with" if record.quick else "without"
        raise DataError(f"{path} was made {made} --quick; use separate folders with --results")
    if record.sheet != digest:
        raise DataError(f"{numbers} was changed after it was measured; measure it again with --again")
    return record


def _write_record(record: Record, results: Path, name: str) -> None:
    content = {"format": FORMAT, "version": VERSION, **asdict(record)}
    text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    write_atomically(path_of_figure(results, name, "json"), text.encode())


# -- making ---------------------------------------------------------------------------------------------------------


def is_kept(figure: FigureSpec, results: Path) -> bool:
    """Whether its numbers exist, so that it can be drawn without measuring."""
    return figure.table is None and path_of_figure(results, figure.name, "csv").is_file()


def figure_in_words(figure: FigureSpec, results: Path) -> str:
    """A line of `--list`."""
    numbers, picture = (path_of_figure(results, figure.name, kind).is_file() for kind in ("csv", "png"))
    return f"{figure.name}: {('made' if picture else 'measured, not drawn') if numbers else 'not made yet'}"


def make_figure(figure: FigureSpec, place: Place, *, again: bool = False) -> list[Path]:
    """Measure the numbers unless they exist, then draw them; returns the files, CSV first.

    Numbers from result files are collected again each time; without any result file nothing is written.
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


def _measure(figure: FigureSpec, place: Place) -> Record | None:
    """Measure and write the numbers, then their record; None if there are none yet."""
    path = path_of_figure(place.results, figure.name, "csv")
    started, begin = datetime.now(UTC).isoformat(timespec="seconds"), time.monotonic()
    numbers = figure.measure(place)
    if figure.table is not None and not numbers.rows:
        return None
    path.with_suffix(".json").unlink(missing_ok=True)
    write_sheet(numbers, path)
    measured = {
        "command": place.command(figure.name),
        "started": started,
        "seconds": round(time.monotonic() - begin, 1),
        "environment": describe(place.device),
    }
    record = _record(figure, place, None if figure.table else measured)
    _write_record(record, place.results, figure.name)
    return record


def _record(figure: FigureSpec, place: Place, measured: dict[str, Any] | None) -> Record:
    """The record of numbers that exist and are not drawn yet."""
    numbers = path_of_figure(place.results, figure.name, "csv").read_bytes()
    return Record(figure.title, "", "", sha256(numbers).hexdigest(), place.quick, measured)


def _marked(drawing: Drawing) -> Drawing:
    """Mark a drawing as QUICK, in its texts and across the picture."""
    drawing.figure.text(0.5, 0.55, "QUICK", ha="center", va="center", rotation=20, fontsize=60, weight="bold",
                        color=LIGHT["series-1"], alpha=0.16, zorder=10)  # fmt: skip
    caption = f"QUICK: a check that everything runs; the numbers mean nothing. {drawing.caption}"
    return replace(drawing, title=f"{drawing.title} (QUICK)", caption=caption)
