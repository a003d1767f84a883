"""The holds of FRCL+ on and off, a dot for each combination. Its numbers are those of the cells of the ablation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from frcl.learners.options import HOLDS
from frcl.report.drawing import Drawing
from frcl.report.palette import LIGHT, series
from paper.ablation import ABLATION, ALL, NONE, POINTS, ROWS, name_of
from paper.cells import OMNIGLOT, per_character
from paper.figures.base import FigureOf, Sheet, canvas, left_out, seeds_in_words, sheet
from paper.markdown import NOT, TITLES
from paper.measure import Place, state_of
from paper.numbers import percent
from paper.quick import reduced
from paper.store import path_of, read_document

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLUMNS = ("benchmark", "row", *HOLDS, "mean", "std", "seeds")
KINDS = {NONE: (7, "o"), "only": (0, "o"), "all but": (1, "D"), ALL: (2, "s")}  # colour and marker, by how a row begins
PLACES = (0.0, 1.5, 2.5, 3.5, 4.5, 6.0, 7.0, 8.0, 9.0, 10.5)  # of the rows, from top to bottom


def measure_holds(place: Place) -> Sheet:
    """Accuracy in % over seeds of every cell that is measured with the options it has now."""
    cells = {cell.name: cell for cell in (reduced(ABLATION) if place.quick else ABLATION).cells}
    rows = []
    for benchmark in POINTS:
        for row, on in ROWS.items():
            cell = cells[name_of(benchmark, row)]
            found = read_document(path_of(place.results, ABLATION.name, cell.name), quick=place.quick)
            if found is None or state_of(ABLATION.name, cell, place).differs:
                continue
            accuracy = percent(found["seeds"])
            if accuracy is not None:
                marks = ["on" if hold in on else "off" for hold in HOLDS]
                std = "" if accuracy.std is None else accuracy.std
                rows.append((benchmark, row, *marks, accuracy.mean, std, len(found["seeds"])))
    return sheet(COLUMNS, rows)


def draw_holds(numbers: Sheet) -> Drawing:
    figure, axes = canvas(7.8, 4.0, 1, len(POINTS), sharey=True)
    for one, benchmark in zip(axes, POINTS, strict=True):
        _panel(one, numbers.where(benchmark=benchmark))
        points = per_character(POINTS[benchmark]) if benchmark == OMNIGLOT else f"{POINTS[benchmark]} points"
        one.set_title(f"{TITLES[benchmark]}\n{points}", loc="left")
        one.set_xlabel("average accuracy, %")
    axes[0].set_yticks(PLACES, list(ROWS))
    axes[0].set_ylim(PLACES[-1] + 0.8, PLACES[0] - 0.8)
    return Drawing(ABLATION.name, ABLATION.title, _caption(numbers), _in_words(numbers), figure)


def _panel(axes: Axes, found: Sheet) -> None:
    """A dot for each row with ± one standard deviation, its number at the right; a line where all holds are on."""
    axes.tick_params(axis="y", length=0)
    axes.margins(x=0.08)
    there = dict(zip(found.column("row"), zip(found.column("mean"), found.column("std"), strict=True), strict=True))
    if not there:
        axes.text(
            0.5, 0.5, NOT, transform=axes.transAxes, ha="center", va="center", color=LIGHT["muted"],
            backgroundcolor=LIGHT["card"],
        )  # fmt: skip
        axes.set_xticks([])
    if ALL in there:
        axes.axvline(float(there[ALL][0]), color=series(KINDS[ALL][0]), linewidth=1.1, linestyle=":", zorder=1)
    for place, row in zip(PLACES, ROWS, strict=True):
        if row in there:
            _dot(axes, place, row, *there[row])


def _dot(axes: Axes, place: float, row: str, mean: str, std: str) -> None:
    colour, marker = next(look for kind, look in KINDS.items() if row == kind or row.startswith(f"{kind} "))
    axes.errorbar(
        float(mean), place, xerr=float(std) if std else None, color=series(colour), marker=marker, markersize=5.5,
        linestyle="none", elinewidth=1.2, capsize=2.2,
    )  # fmt: skip
    axes.text(
        1.2, place, f"{float(mean):.2f}", transform=axes.get_yaxis_transform(), ha="right", va="center", fontsize=8,
        color=LIGHT["muted"],
    )  # fmt: skip


def _caption(numbers: Sheet) -> str:
    count, told = seeds_in_words(numbers), left_out(missing_cells(numbers))
    return (
        "Average accuracy after the last task with none of the holds of FRCL+, with one alone, with all but one and "
        f"with all (dotted line). Mean ± one standard deviation over {count}.{told}"
    )


def missing_cells(numbers: Sheet) -> list[str]:
    """What is left out: "Split-MNIST: none, only curvature"; "all of it" for a whole benchmark."""
    told = []
    for benchmark in POINTS:
        there = numbers.where(benchmark=benchmark).column("row")
        left = [row for row in ROWS if row not in there]
        if left:
            told.append(f"{TITLES[benchmark]}: {', '.join(left) if there else 'all of it'}")
    return told


def _in_words(numbers: Sheet) -> str:
    told = []
    for benchmark in dict.fromkeys(numbers.column("benchmark")):
        there = numbers.where(benchmark=benchmark)
        pairs = zip(there.column("row"), there.floats("mean"), strict=True)
        told.append(f"{TITLES[benchmark]}: {', '.join(f'{row} {mean:.1f}' for row, mean in pairs)}")
    return f"Dots of accuracy in %, one for each combination of holds. {'. '.join(told)}."


FIGURES = (FigureOf(ABLATION.name, ABLATION.title, measure_holds, draw_holds, table=ABLATION),)
