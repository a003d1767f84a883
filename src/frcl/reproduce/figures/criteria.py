"""Figure 3: the criteria for choosing inducing points, over the number of points. Its numbers are those of cells."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from frcl.report.drawing import Drawing
from frcl.report.figures import MARKERS
from frcl.report.palette import series
from frcl.reproduce.cells import CRITERIA_3, FIGURE_3, POINTS_3, TABLES
from frcl.reproduce.figures.base import FigureOf, Sheet, canvas, sheet
from frcl.reproduce.measure import Place, state_of
from frcl.reproduce.numbers import percent
from frcl.reproduce.page import TITLES
from frcl.reproduce.quick import reduced
from frcl.reproduce.store import path_of, read_document

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLUMNS = ("benchmark", "criterion", "points", "mean", "std", "seeds", "table")
NAMES = dict(zip(CRITERIA_3, ("trace", "random", "ELBO", "class. error", "log pred. density"), strict=True))
LINES = ("-", (0, (4, 1.5)), "-", "-", "-")  # random is no criterion


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
        if found is None or state_of(table_name, cell, place, None).differs:
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
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(NAMES))
    return Drawing("figure3", FIGURE_3.title, _caption(numbers), _in_words(numbers), figure)


def _line(axes: Axes, found: Sheet, number: int, name: str, points: tuple[int, ...]) -> None:
    """One criterion, beside the others at each number of points, with ± one standard deviation."""
    x = [points.index(int(value)) + 0.07 * (number - (len(NAMES) - 1) / 2) for value in found.column("points")]
    deviations = [float(value or 0.0) for value in found.column("std")]
    axes.errorbar(
        x, found.floats("mean"), yerr=deviations, label=name, color=series(number), marker=MARKERS[number],
        linestyle=LINES[number], linewidth=1.6, elinewidth=1.1, capsize=2.2,
    )  # fmt: skip


def _caption(numbers: Sheet) -> str:
    seeds = sorted({int(value) for value in numbers.column("seeds")})
    count = " to ".join(str(value) for value in dict.fromkeys((seeds[0], seeds[-1])))
    missing = missing_cells(numbers)
    told = f" Not measured: {'; '.join(missing)}." if missing else ""
    return (
        "Average accuracy after the last task by how the inducing points are chosen (Section 2.4, Appendix D), over "
        f"their number. Mean ± one standard deviation over {count} seeds; cells of Table 1 have the seeds they have "
        f"there.{told}"
    )


def missing_cells(numbers: Sheet) -> list[str]:
    """What is left out: "Split-MNIST, ELBO with 2, 10 points"."""
    there = set(zip(*(numbers.column(name) for name in ("benchmark", "criterion", "points")), strict=True))
    missing: dict[tuple[str, str], list[str]] = {}
    for benchmark, criterion, points in wanted():
        if (benchmark, NAMES[criterion], str(points)) not in there:
            missing.setdefault((benchmark, NAMES[criterion]), []).append(str(points))
    return [f"{TITLES[one]}, {name} with {', '.join(points)} points" for (one, name), points in missing.items()]


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


FIGURES = (
    FigureOf("figure3", FIGURE_3.title, measure_criteria, draw_criteria, table=FIGURE_3),
)
