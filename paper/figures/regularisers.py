"""The ablation as a figure: one dot per combination of regularisers. Its numbers come from cells."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paper.ablation import ABLATION, ALL, NONE, POINTS, ROWS, name_of
from paper.cells import OMNIGLOT, per_character
from paper.figures.base import FigureSpec, canvas, spread_in_words
from paper.figures.sheets import Sheet, sheet
from paper.library import LIGHT, REGULARISERS, Drawing, series
from paper.markdown import NOT, TITLES
from paper.measure import Place, current_accuracy
from paper.quick import reduced

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLUMNS = ("benchmark", "row", *REGULARISERS, "mean", "std", "seeds")
KINDS = {NONE: (7, "o"), "only": (0, "o"), "all but": (1, "D"), ALL: (2, "s")}  # colour and marker by the first word
PLACES = (0.0, 1.5, 2.5, 3.5, 4.5, 6.0, 7.0, 8.0, 9.0, 10.5)  # of the rows, from top to bottom


def measure_regularisers(place: Place) -> Sheet:
    """Accuracy in % over seeds of all cells that are measured with their current options."""
    cells = {cell.name: cell for cell in (reduced(ABLATION) if place.quick else ABLATION).cells}
    rows = []
    for benchmark in POINTS:
        for row, on in ROWS.items():
            if found := current_accuracy(ABLATION.name, cells[name_of(benchmark, row)], place):
                marks = ["on" if regulariser in on else "off" for regulariser in REGULARISERS]
                rows.append((benchmark, row, *marks, *found))
    return sheet(COLUMNS, rows)


def draw_regularisers(numbers: Sheet) -> Drawing:
    figure, axes = canvas(7.8, 4.0, 1, len(POINTS), sharey=True)
    for one, benchmark in zip(axes, POINTS, strict=True):
        _panel(one, numbers.where(benchmark=benchmark))
        points = per_character(POINTS[benchmark]) if benchmark == OMNIGLOT else f"{POINTS[benchmark]} points"
        one.set_title(f"{TITLES[benchmark]}\n{points}", loc="left")
        one.set_xlabel("average accuracy, %")
    axes[0].set_yticks(PLACES, list(ROWS))
    axes[0].set_ylim(PLACES[-1] + 0.8, PLACES[0] - 0.8)
    caption = (
        "Average accuracy after the last task without the regularisers of FRCL+, with only one of them, with all but "
        f"one, and with all (dotted line). {spread_in_words(numbers, missing_cells(numbers))}"
    )
    return Drawing(ABLATION.name, ABLATION.title, caption, _in_words(numbers), figure)


def _panel(axes: Axes, found: Sheet) -> None:
    """A dot per row with ± one standard deviation and its value on the right; a line where all regularisers are on."""
    axes.tick_params(axis="y", length=0)
    axes.margins(x=0.08)
    values = dict(zip(found.column("row"), zip(found.column("mean"), found.column("std"), strict=True), strict=True))
    if not values:
        axes.text(
            0.5, 0.5, NOT, transform=axes.transAxes, ha="center", va="center", color=LIGHT["muted"],
            backgroundcolor=LIGHT["card"],
        )  # fmt: skip
        axes.set_xticks([])
    if ALL in values:
        axes.axvline(float(values[ALL][0]), color=series(KINDS[ALL][0]), linewidth=1.1, linestyle=":", zorder=1)
    for place, row in zip(PLACES, ROWS, strict=True):
        if row in values:
            _dot(axes, place, row, *values[row])


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


def missing_cells(numbers: Sheet) -> list[str]:
    """Cells that are not measured: "Split-MNIST: none, only curvature"; "all rows" for a whole benchmark."""
    missing = []
    for benchmark in POINTS:
        measured = numbers.where(benchmark=benchmark).column("row")
        left = [row for row in ROWS if row not in measured]
        if left:
            missing.append(f"{TITLES[benchmark]}: {', '.join(left) if measured else 'all rows'}")
    return missing


def _in_words(numbers: Sheet) -> str:
    parts = []
    for benchmark in dict.fromkeys(numbers.column("benchmark")):
        found = numbers.where(benchmark=benchmark)
        pairs = zip(found.column("row"), found.floats("mean"), strict=True)
        parts.append(f"{TITLES[benchmark]}: {', '.join(f'{row} {mean:.1f}' for row, mean in pairs)}")
    return f"Dots of accuracy in %, one per combination of regularisers. {'. '.join(parts)}."


FIGURES = (FigureSpec(ABLATION.name, ABLATION.title, measure_regularisers, draw_regularisers, table=ABLATION),)
