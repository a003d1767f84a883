"""Figure 3: the criteria for choosing inducing points, over the number of points. Its numbers are those of cells."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from frcl.report.drawing import Drawing
from frcl.report.figures import MARKERS
from frcl.report.palette import series
from paper.cells import CRITERIA_3, FIGURE_3, POINTS_3, TABLES
from paper.figures.base import FigureOf, Sheet, canvas, left_out, seeds_in_words, sheet
from paper.markdown import TITLES
from paper.measure import Place, state_of
from paper.numbers import percent
from paper.quick import reduced
from paper.store import path_of, read_document

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLUMNS = ("benchmark", "criterion", "points", "mean", "std", "seeds", "table")
NAMES = dict(zip(CRITERIA_3, ("trace", "random", "ELBO", "class. error", "log pred. density"), strict=True))
COLOURS = (0, 7, 2, 3, 1)  # random is the grey one


def measure_criteria(place: Place) -> Sheet:
    """Accuracy in % over seeds of every cell that is measured with the options it has now."""
    cells = {}
    for table in (FIGURE_3, TABLES[0]):
        for cell in (reduced(table) if place.quick else table).cells:
            cells[cell.name] = (table.name, cell)
    rows = []
    for benchmark, criterion, points in wanted():
        table_name, cell = cells[f"{benchmark}-{criterion}-{points}"]
        found = read_document(path_of(place.results, table_name, cell.name), quick=place.quick)
        if found is None or state_of(table_name, cell, place).differs:
            continue
        accuracy = percent(found["seeds"])
        if accuracy is not None:
            std = "" if accuracy.std is None else accuracy.std
            seeds = len(found["seeds"])
            rows.append((benchmark, NAMES[criterion], points, accuracy.mean, std, seeds, table_name))
    return sheet(COLUMNS, rows)


def wanted() -> Iterator[tuple[str, str, int]]:
    """Benchmark, criterion and points of all that belongs to the figure."""
    for benchmark, numbers in POINTS_3.items():
        for criterion in CRITERIA_3:
            for points in numbers:
                yield benchmark, criterion, points


def draw_criteria(numbers: Sheet) -> Drawing:
    figure, axes = canvas(7.4, 3.5, 1, 2)
    for one, benchmark in zip(axes, POINTS_3, strict=True):
        there = numbers.where(benchmark=benchmark)
        for place, name in enumerate(NAMES.values()):
            _line(one, there.where(criterion=name), place, name, POINTS_3[benchmark])
        one.set_title(TITLES[benchmark], loc="left")
        one.set(xlabel="inducing points per task", xlim=(-0.4, len(POINTS_3[benchmark]) - 0.6))
        one.set_xticks(range(len(POINTS_3[benchmark])), [str(points) for points in POINTS_3[benchmark]])
        one.grid(visible=False, axis="x")
    axes[0].set_ylabel("average accuracy, %")
    lines = {label: line for one in axes for line, label in zip(*one.get_legend_handles_labels(), strict=True)}
    shown = [name for name in NAMES.values() if name in lines]
    figure.legend([lines[name] for name in shown], shown, loc="outside lower center", ncols=len(NAMES))
    return Drawing("figure3", FIGURE_3.title, _caption(numbers), _in_words(numbers), figure)


def _line(axes: Axes, found: Sheet, number: int, name: str, points: tuple[int, ...]) -> None:
    """One criterion, beside the others at each number of points, with ± one standard deviation; a gap where none is."""
    if not found.rows:
        return
    there = dict(zip(found.column("points"), zip(found.column("mean"), found.column("std"), strict=True), strict=True))
    values = [there.get(str(one), ("", "")) for one in points]
    mean, std = ([float(text) if text else math.nan for text in column] for column in zip(*values, strict=True))
    beside = 0.07 * (number - (len(NAMES) - 1) / 2)
    axes.errorbar(
        [place + beside for place in range(len(points))], mean, yerr=std, label=name, color=series(COLOURS[number]),
        marker=MARKERS[number], linestyle="--" if name == "random" else "-", linewidth=1.5, elinewidth=1.1, capsize=2.2,
    )  # fmt: skip


def _caption(numbers: Sheet) -> str:
    count, told = seeds_in_words(numbers), left_out(missing_cells(numbers))
    return (
        "Average accuracy after the last task by how the inducing points are chosen (Section 2.4, Appendix D), over "
        f"their number. Mean ± one standard deviation over {count}; cells of Table 1 have the seeds they have there."
        f"{told}"
    )


def missing_cells(numbers: Sheet) -> list[str]:
    """What is left out, with the numbers of points: "Split-MNIST: ELBO (2, 10), random (10)"."""
    there = set(zip(*(numbers.column(name) for name in ("benchmark", "criterion", "points")), strict=True))
    missing: dict[str, list[str]] = {}
    for benchmark, numbers_of_points in POINTS_3.items():
        for name in NAMES.values():
            left = [str(points) for points in numbers_of_points if (benchmark, name, str(points)) not in there]
            if left:
                missing.setdefault(TITLES[benchmark], []).append(f"{name} ({', '.join(left)})")
    return [f"{title}: {', '.join(names)}" for title, names in missing.items()]


def _in_words(numbers: Sheet) -> str:
    told = []
    for benchmark in dict.fromkeys(numbers.column("benchmark")):
        there = numbers.where(benchmark=benchmark)
        for points in dict.fromkeys(there.column("points")):
            cells = there.where(points=points)
            pairs = zip(cells.column("criterion"), cells.floats("mean"), strict=True)
            values = ", ".join(f"{name} {mean:.1f}" for name, mean in pairs)
            told.append(f"{TITLES[benchmark]} with {points} points: {values}")
    return f"Lines of accuracy in % over the number of points. {'. '.join(told)}."


FIGURES = (FigureOf("figure3", FIGURE_3.title, measure_criteria, draw_criteria, table=FIGURE_3),)
