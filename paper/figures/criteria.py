"""Figure 3: criteria for choosing inducing points, over the number of points. Its numbers come from cells."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from paper.cells import CRITERIA_3, FIGURE_3, POINTS_3, TABLES
from paper.figures.base import FigureSpec, canvas, spread_in_words
from paper.figures.sheets import Sheet, sheet
from paper.library import MARKERS, Drawing, series
from paper.markdown import TITLES
from paper.measure import Place, current_accuracy
from paper.quick import reduced

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLUMNS = ("benchmark", "criterion", "points", "mean", "std", "seeds", "table")
NAMES = dict(zip(CRITERIA_3, ("trace", "random", "ELBO", "class. error", "log pred. density"), strict=True))
COLOURS = (0, 7, 2, 3, 1)  # random is grey


def measure_criteria(place: Place) -> Sheet:
    """Accuracy in % over seeds of all cells that are measured with their current options."""
    cells = {}
    for table in (FIGURE_3, TABLES[0]):
        for cell in (reduced(table) if place.quick else table).cells:
            cells[cell.name] = (table.name, cell)
    rows = []
    for benchmark, numbers in POINTS_3.items():
        for criterion in CRITERIA_3:
            for points in numbers:
                table_name, cell = cells[f"{benchmark}-{criterion}-{points}"]
                if found := current_accuracy(table_name, cell, place):
                    rows.append((benchmark, NAMES[criterion], points, *found, table_name))
    return sheet(COLUMNS, rows)


def draw_criteria(numbers: Sheet) -> Drawing:
    figure, axes = canvas(7.4, 3.5, 1, 2)
    for one, benchmark in zip(axes, POINTS_3, strict=True):
        found = numbers.where(benchmark=benchmark)
        for place, name in enumerate(NAMES.values()):
            _line(one, found.where(criterion=name), place, name, POINTS_3[benchmark])
        one.set_title(TITLES[benchmark], loc="left")
        one.set(xlabel="inducing points per task", xlim=(-0.4, len(POINTS_3[benchmark]) - 0.6))
        one.set_xticks(range(len(POINTS_3[benchmark])), [str(points) for points in POINTS_3[benchmark]])
        one.grid(visible=False, axis="x")
    axes[0].set_ylabel("average accuracy, %")
    lines = {label: line for one in axes for line, label in zip(*one.get_legend_handles_labels(), strict=True)}
    shown = [name for name in NAMES.values() if name in lines]
    figure.legend([lines[name] for name in shown], shown, loc="outside lower center", ncols=len(NAMES))
    caption = (
        "Average accuracy after the last task by the criterion for choosing the inducing points (Section 2.4, "
        "Appendix D), over their number. Cells of Table 1 have the seeds that they have there. "
        f"{spread_in_words(numbers, missing_cells(numbers))}"
    )
    return Drawing("figure3", FIGURE_3.title, caption, _in_words(numbers), figure)


def _line(axes: Axes, found: Sheet, number: int, name: str, points: tuple[int, ...]) -> None:
    """The line of a criterion with ± one standard deviation, shifted sideways; a gap where a cell is missing."""
    if not found.rows:
        return
    known = dict(zip(found.column("points"), zip(found.column("mean"), found.column("std"), strict=True), strict=True))
    values = [known.get(str(one), ("", "")) for one in points]
    mean, std = ([float(text) if text else math.nan for text in column] for column in zip(*values, strict=True))
    shift = 0.07 * (number - (len(NAMES) - 1) / 2)
    axes.errorbar(
        [place + shift for place in range(len(points))], mean, yerr=std, label=name, color=series(COLOURS[number]),
        marker=MARKERS[number], linestyle="--" if name == "random" else "-", linewidth=1.5, elinewidth=1.1, capsize=2.2,
    )  # fmt: skip


def missing_cells(numbers: Sheet) -> list[str]:
    """Cells that are not measured: "Split-MNIST: ELBO (2, 10), random (10)"."""
    measured = set(zip(*(numbers.column(name) for name in ("benchmark", "criterion", "points")), strict=True))
    missing: dict[str, list[str]] = {}
    for benchmark, numbers_of_points in POINTS_3.items():
        for name in NAMES.values():
            left = [str(points) for points in numbers_of_points if (benchmark, name, str(points)) not in measured]
            if left:
                missing.setdefault(TITLES[benchmark], []).append(f"{name} ({', '.join(left)})")
    return [f"{title}: {', '.join(names)}" for title, names in missing.items()]


def _in_words(numbers: Sheet) -> str:
    parts = []
    for benchmark in dict.fromkeys(numbers.column("benchmark")):
        found = numbers.where(benchmark=benchmark)
        for points in dict.fromkeys(found.column("points")):
            cells = found.where(points=points)
            pairs = zip(cells.column("criterion"), cells.floats("mean"), strict=True)
            values = ", ".join(f"{name} {mean:.1f}" for name, mean in pairs)
            parts.append(f"{TITLES[benchmark]} with {points} points: {values}")
    return f"Lines of accuracy in % over the number of points. {'. '.join(parts)}."


FIGURES = (FigureSpec("figure3", FIGURE_3.title, measure_criteria, draw_criteria, table=FIGURE_3),)
