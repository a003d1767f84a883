"""FRCL+ at every memory budget of Tables 1 and 2, and the best published numbers.

It is compared with our FRCL twice: with the same number of points, and with at least as many bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paper.cells import (
    FIGURE_3,
    FIVE,
    MEASURED_1,
    MEASURED_2,
    OMNIGLOT,
    TABLES,
    TEN,
    Cell,
    Table,
    make_cell,
    per_character,
)
from paper.markdown import (
    NOT,
    TITLES,
    Found,
    bytes_by_kind,
    bytes_of,
    documents_of,
    grid,
    in_percent,
    marked,
    plain_mean,
    seeds_of,
    ways_of,
)
from paper.numbers import Ours, attains, ours, paired, percent, printed
from paper.quick import reduced
from paper.store import Document, common_seeds, differences

METHOD, FRCL, RECENTRED = "frcl-plus", "frcl-trace", "frcl-recentred"


# -- cells and published numbers ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Line:
    """A memory budget: inducing points per task, on Omniglot per character."""

    benchmark: str
    points: int
    published: str  # the best published accuracy with this network in %, as printed
    who: str
    goal: float  # the target for FRCL+, in %

    @property
    def cell(self) -> str:
        return f"{self.benchmark}-{METHOD}-{self.points}"

    @property
    def frcl(self) -> str:
        """The cell of our FRCL with the same number of points."""
        return f"{self.benchmark}-{FRCL}-{self.points}"

    @property
    def recentred(self) -> str:
        """The cell of FRCL with the KL around the kept heads alone."""
        return f"{self.benchmark}-{RECENTRED}-{self.points}"

    @property
    def budget(self) -> str:
        return per_character(self.points) if self.benchmark == OMNIGLOT else f"{self.points} points"

    @property
    def title(self) -> str:
        return f"{TITLES[self.benchmark]}, {self.budget}"


def paper_frcl(benchmark: str, points: int) -> str:
    """The paper's value for FRCL: the higher of optimised and random points."""
    rows = ("frcl-trace", "frcl-random")
    if benchmark == OMNIGLOT:
        values = [MEASURED_2[row][points - 1] for row in rows]
    else:
        values = [value for row in rows if (value := MEASURED_1[row][benchmark][points]) is not None]
    return max(values, key=lambda value: printed(value).mean)


RUDNER, ONE_HEAD = "S-FSVI, Rudner et al. 2022", "one head and no task given"
LINES = (
    Line("split-mnist", 2, "99.62", f"{RUDNER}, no stored points", 99.78),
    Line("split-mnist", 40, "99.54", f"{RUDNER}, the same network; 99.76 with one layer of 400", 99.80),
    Line("permuted-mnist", 10, "89.59", f"{RUDNER}, {ONE_HEAD}, a wider network, 300-300", 94.0),
    Line("permuted-mnist", 200, "95.76", f"{RUDNER}, {ONE_HEAD}, the same network; 97.50 with 500-500", 96.3),
    Line(OMNIGLOT, 1, paper_frcl(OMNIGLOT, 1), "FRCL", 88.5),
    Line(OMNIGLOT, 2, "83.3 ± 1.2", RUDNER, 89.0),
    Line(OMNIGLOT, 3, paper_frcl(OMNIGLOT, 3), "FRCL", 89.0),
)


def budget_options(benchmark: str, points: int) -> dict[str, Any]:
    """The options that set the number of points, as in Tables 1 and 2."""
    if benchmark == OMNIGLOT:
        return {"points_per_class": points, "start": "balanced"}
    return {"points": points}


EQUAL = {"split-mnist": (200, 640), "permuted-mnist": (215, 272)}  # the last keep as many bytes as the largest FRCL+


def _cells() -> Iterator[Cell]:
    for line in LINES:
        layers = ({"method": METHOD, "scenario": "class"}, {"learner": budget_options(line.benchmark, line.points)})
        seeds = FIVE if line.benchmark == OMNIGLOT else TEN
        yield Cell(line.cell, line.benchmark, f"FRCL+, {line.budget}", layers, seeds)
    for line in LINES:
        seeds, options = FIVE if line.benchmark == OMNIGLOT else TEN, budget_options(line.benchmark, line.points)
        yield make_cell(line.benchmark, RECENTRED, seeds, None, options, line.budget)
    for benchmark, sizes in EQUAL.items():
        for points in sizes:
            yield make_cell(benchmark, FRCL, TEN, None, {"points": points}, f"{points} points")


# -- results --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measured:
    """The results of a line; `others` are all measured cells of our FRCL on the benchmark."""

    line: Line
    plus: Document | None
    recentred: Document | None
    frcl: Document | None
    others: Found

    def accuracy(self) -> Ours | None:
        return None if self.plus is None else percent(self.plus["seeds"])

    def reached(self) -> str:
        found = self.accuracy()
        return "" if found is None else attains(found, self.line.goal)

    def above(self, other: Document | None) -> str:
        """The difference of FRCL+ to another cell over their common seeds."""
        gain = None if self.plus is None or other is None else paired(self.plus["seeds"], other["seeds"])
        return "" if gain is None else gain.show()

    def on_the_same_seeds(self) -> tuple[Document | None, Document | None]:
        """FRCL and FRCL+ reduced to their common seeds; unchanged if there are none, or one is missing."""
        if self.plus is None or self.frcl is None:
            return self.frcl, self.plus
        both = common_seeds(self.frcl, self.plus)
        if not both:
            return self.frcl, self.plus
        frcl, plus = (
            {**one, "seeds": [seed for seed in one["seeds"] if seed["seed"] in both]} for one in (self.frcl, self.plus)
        )
        return frcl, plus

    def not_worse(self) -> str:
        """Whether NLL and ECE of FRCL+ are at most those of FRCL with the same points, in the digits shown."""
        frcl, plus = self.on_the_same_seeds()
        if plus is None or frcl is None or not common_seeds(plus, frcl):
            return ""
        worse = []
        for metric in ("nll", "ece"):
            here, there = (ours(one["seeds"], metric) for one in (plus, frcl))
            if here is None or there is None:
                return ""
            if round(here.mean, 3) > round(there.mean, 3):
                worse.append(metric.upper())
        return f"no: {' and '.join(worse)}" if worse else "yes"

    def at_equal_bytes(self) -> str | None:
        """The name of the cell of FRCL to compare with at equal bytes; None if one of the two is not measured."""
        if self.plus is None or not self.others:
            return None
        return equal_budget(bytes_of(self.plus), {name: bytes_of(one) for name, one in self.others.items()})


def equal_budget(size: int, budgets: Mapping[str, int]) -> str:
    """The name of the smallest budget of at least `size`; of the largest if all are smaller."""
    fits = {name: budget for name, budget in budgets.items() if budget >= size}
    return min(fits, key=fits.__getitem__) if fits else max(budgets, key=budgets.__getitem__)


def frcl_tables(*, quick: bool = False) -> list[Table]:
    """The tables reduced to the cells of our FRCL whose points are chosen by the trace."""
    return [
        Table(table.name, table.title, table.note, tuple(cell for cell in table.cells if f"-{FRCL}-" in cell.name))
        for table in (reduced(one) if quick else one for one in (*TABLES[:2], FIGURE_3, FRONTIER))
    ]


def measured_lines(table: Table, results: Path, *, quick: bool = False) -> list[Measured]:
    """All lines with their result files."""
    plus = documents_of(table, results, quick=quick)
    frcl = {
        name: one
        for where in frcl_tables(quick=quick)
        for name, one in documents_of(where, results, quick=quick).items()
    }
    found = []
    for line in LINES:
        others = {name: one for name, one in frcl.items() if name.startswith(f"{line.benchmark}-")}
        found.append(Measured(line, plus.get(line.cell), plus.get(line.recentred), frcl.get(line.frcl), others))
    return found


# -- the page -------------------------------------------------------------------------------------------------------

ACCURACY = (
    "average accuracy", "paper's FRCL %", "best published with this network %", "target %", "our FRCL %",
    "our FRCL, recentred %", "our FRCL+ %", "seeds", "reached", "difference to our FRCL",
)  # fmt: skip
CALIBRATION = ("calibration", "NLL, FRCL", "NLL, FRCL+", "ECE, FRCL", "ECE, FRCL+", "FRCL+ not worse")
MEMORY = (
    "memory", "bytes kept, FRCL", "bytes kept, FRCL+", "by kind", "FRCL with as many bytes", "its bytes",
    "its accuracy %", "difference of FRCL+ to it",
)  # fmt: skip


def frontier_view(table: Table, results: Path, quick: bool) -> Iterator[str]:
    """Accuracy, calibration and memory of FRCL+ and FRCL, then how they were measured."""
    lines = measured_lines(table, results, quick=quick)
    cells = {cell.name: cell for cell in table.cells}
    frcl = {cell.name: cell for where in frcl_tables(quick=quick) for cell in where.cells}
    yield grid(ACCURACY, [_accuracy(one, cells, frcl[one.line.frcl]) for one in lines])
    yield grid(CALIBRATION, [_calibration(one) for one in lines])
    yield grid(MEMORY, [_memory(one) for one in lines])
    found = documents_of(table, results, quick=quick)
    yield from ways_of(table.cells, found, list(_other_options(lines, quick)))


def _accuracy(one: Measured, cells: Mapping[str, Cell], frcl: Cell) -> list[str]:
    line, plus = one.line, cells[one.line.cell]
    seeds = "" if one.plus is None else seeds_of(plus, one.plus)
    numbers = [paper_frcl(line.benchmark, line.points), f"{line.published} ({line.who})", f"{line.goal:.2f}"]
    other, few = one.recentred, "" if one.recentred is None else seeds_of(cells[line.recentred], one.recentred)
    recentred = marked(cells[line.recentred], other) + (f" (seeds: {few})" if "of" in few else "")
    both = marked(frcl, one.frcl), recentred, marked(plus, one.plus)
    return [line.title, *numbers, *both, seeds, one.reached(), one.above(one.frcl)]


def _calibration(one: Measured) -> list[str]:
    numbers = [plain_mean(document, metric) for metric in ("nll", "ece") for document in one.on_the_same_seeds()]
    return [one.line.title, *numbers, one.not_worse()]


def _memory(one: Measured) -> list[str]:
    kept = [NOT if document is None else f"{bytes_of(document):,}" for document in (one.frcl, one.plus)]
    kinds = {} if one.plus is None else bytes_by_kind(one.plus)
    parts = ", ".join(f"{kind} {size:,}" for kind, size in kinds.items() if kind != "sums")
    name = one.at_equal_bytes()
    if name is None or one.plus is None:
        return [one.line.title, *kept, parts, *["" if one.plus is None else NOT, "", "", ""]]
    other = one.others[name]
    points = name.rpartition("-")[2] + " points" + " per character" * (one.line.benchmark == OMNIGLOT)
    less = " (fewer bytes; no cell with as many is measured)" * (bytes_of(other) < bytes_of(one.plus))
    return [one.line.title, *kept, parts, points + less, f"{bytes_of(other):,}", in_percent(other), one.above(other)]


def _other_options(lines: list[Measured], quick: bool) -> Iterator[str]:
    """Cells of FRCL shown here that were measured with other options than their current ones."""
    shown = {name for one in lines for name in (one.line.frcl, one.at_equal_bytes())}
    found = {name: document for one in lines for name, document in one.others.items() if name in shown}
    for table in frcl_tables(quick=quick):
        for cell in table.cells:
            if cell.name in found:
                name = f"{table.name}/{cell.name}"
                for other in differences(found[cell.name], cell.config()):
                    yield f"- `{name}` was measured with another option than the current one: `{other}`"


FRONTIER = Table(
    "frontier",
    "FRCL+ against the published numbers",
    "[FRCL+](docs/frcl-plus.md) with the networks and points of Tables 1 and 2, and their steps; ten seeds, on "
    "Omniglot five orders of the alphabets. The paper's FRCL is the better of its two rows, with optimised or random "
    "points; ours has points chosen by the trace, from the results of those tables. Recentred: FRCL with the KL "
    "around the kept heads instead of the paper's; it keeps nothing of the size of the network. The published numbers "
    "come from other code and other settings: those of S-FSVI on Permuted-MNIST have one head for all tasks and no "
    "task given, ours a head per task, so compare them with our own numbers [without the task]"
    "(#scenarios-predictions-without-the-task). FRCL+ keeps more than points, so it is compared twice: with FRCL "
    "with the same number of points, and with the smallest measured FRCL that keeps at least as many bytes "
    "(four cells of this table are for that). Differences are ± their standard error; differences and calibration are "
    "over the common seeds. Bytes are without the sums that infer the task: accuracy here is with the task named.",
    tuple(_cells()),
    view=frontier_view,
)
