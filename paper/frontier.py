"""FRCL+ at every memory budget of Tables 1 and 2, beside the best numbers that were published for them.

At equal points it is compared with our FRCL; at equal bytes with what our FRCL reaches where it keeps at least as much.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from frcl.experiment.config import resolve
from paper.cells import (
    FIGURE_3,
    FIVE,
    MEASURED_1,
    MEASURED_2,
    OMNIGLOT,
    SCALE_1,
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
    how_measured,
    in_percent,
    plain_mean,
    seeds_of,
)
from paper.numbers import Ours, attains, ours, paired, percent, printed
from paper.quick import reduced
from paper.store import Document, common_seeds, differences

METHOD, FRCL = "frcl-plus", "frcl-trace"


# -- what is measured, and what is published ------------------------------------------------------------------------


@dataclass(frozen=True)
class Line:
    """One memory budget: inducing points a task, on Omniglot a character."""

    benchmark: str
    points: int
    published: str  # the best that was published, in %, as printed
    who: str
    goal: float  # what FRCL+ is to reach, in %

    @property
    def cell(self) -> str:
        return f"{self.benchmark}-{METHOD}-{self.points}"

    @property
    def frcl(self) -> str:
        """The cell of our FRCL with as many points."""
        return f"{self.benchmark}-{FRCL}-{self.points}"

    @property
    def budget(self) -> str:
        return per_character(self.points) if self.benchmark == OMNIGLOT else f"{self.points} points"

    @property
    def title(self) -> str:
        return f"{TITLES[self.benchmark]}, {self.budget}"


def paper_frcl(benchmark: str, points: int) -> str:
    """What the paper has for FRCL, with optimised or with random points: the higher of the two."""
    rows = ("frcl-trace", "frcl-random")
    if benchmark == OMNIGLOT:
        values = [MEASURED_2[row][points - 1] for row in rows]
    else:
        values = [value for row in rows if (value := MEASURED_1[row][benchmark][points]) is not None]
    return max(values, key=lambda value: printed(value).mean)


RUDNER = "S-FSVI, Rudner et al. 2022"
LINES = (
    Line("split-mnist", 2, "99.62", f"{RUDNER}, no stored points", 99.62),
    Line("split-mnist", 40, "99.54", f"{RUDNER}, the same network", 99.70),
    Line("permuted-mnist", 10, "89.59", f"{RUDNER}, a wider network, 300-300", 91.0),
    Line("permuted-mnist", 200, "95.76", f"{RUDNER}, the same network", 95.76),
    Line(OMNIGLOT, 1, paper_frcl(OMNIGLOT, 1), "FRCL", 78.0),
    Line(OMNIGLOT, 2, "83.3 ± 1.2", RUDNER, 83.3),
    Line(OMNIGLOT, 3, paper_frcl(OMNIGLOT, 3), "FRCL", 84.5),
)


OWN: dict[tuple[str, int], dict[str, Any]] = {  # what one set of defaults does not serve; chosen on validation data
    ("permuted-mnist", 200): {
        "steps": 4000, "lr": 2e-3, "current_inputs": 0.0, "memory_targets": 0.0, "curvature": 0.3,
        "prediction": "summary", "held_out": 0.05,
    },
}  # fmt: skip


def own_options(benchmark: str, points: int) -> str:
    """The same in words; nothing where there is none."""
    return ", ".join(f"`{name}={value}`" for name, value in OWN.get((benchmark, points), {}).items())


def budget_options(benchmark: str, points: int) -> dict[str, Any]:
    """The options of a learner with so many points, as Tables 1 and 2 have them."""
    if benchmark == OMNIGLOT:
        return {"points_per_class": points, "start": "balanced"}
    return {"points": points}


EQUAL = {"split-mnist": 200, "permuted-mnist": 215}  # points with which FRCL keeps as many bytes as FRCL+ at most does


def _cells() -> Iterator[Cell]:
    for line in LINES:
        own = OWN.get((line.benchmark, line.points), {})
        layers = ({"method": METHOD}, {"learner": {**budget_options(line.benchmark, line.points), **own}})
        seeds = FIVE if line.benchmark == OMNIGLOT else TEN
        yield Cell(line.cell, line.benchmark, f"FRCL+, {line.budget}", layers, seeds)
    for benchmark, points in EQUAL.items():
        scale = SCALE_1[benchmark][max(SCALE_1[benchmark])]
        yield make_cell(benchmark, FRCL, TEN, None, {"points": points, "feature_scale": scale}, f"{points} points")


# -- what is found --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measured:
    """A line with what is there of it; `others` are all cells of our FRCL on the benchmark that are measured."""

    line: Line
    plus: Document | None
    frcl: Document | None
    others: Found

    def accuracy(self) -> Ours | None:
        return None if self.plus is None else percent(self.plus["seeds"])

    def reached(self) -> str:
        found = self.accuracy()
        return "" if found is None else attains(found, self.line.goal)

    def above(self, other: Document | None) -> str:
        """By how many points FRCL+ is above another cell on the seeds that both have."""
        gain = None if self.plus is None or other is None else paired(self.plus["seeds"], other["seeds"])
        return "" if gain is None else gain.show()

    def on_the_same_seeds(self) -> tuple[Document | None, Document | None]:
        """FRCL and FRCL+ with the seeds that both have; as they are where there are none, or one is missing."""
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
        """Whether FRCL+ is at least as well calibrated as FRCL with as many points, in the digits that are shown."""
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
        """The cell of FRCL that is compared with it at equal bytes; None where one of the two is not measured."""
        if self.plus is None or not self.others:
            return None
        return equal_budget(bytes_of(self.plus), {name: bytes_of(one) for name, one in self.others.items()})


def equal_budget(size: int, budgets: Mapping[str, int]) -> str:
    """The name of the smallest budget that is not below `size`; where all are below it, of the largest."""
    fits = {name: budget for name, budget in budgets.items() if budget >= size}
    return min(fits, key=fits.__getitem__) if fits else max(budgets, key=budgets.__getitem__)


def frcl_tables(*, quick: bool = False) -> list[Table]:
    """Where our FRCL is measured with points chosen by the trace: its cells alone."""
    return [
        Table(table.name, table.title, table.note, tuple(cell for cell in table.cells if f"-{FRCL}-" in cell.name))
        for table in (reduced(one) if quick else one for one in (*TABLES[:2], FIGURE_3, FRONTIER))
    ]


def measured_lines(table: Table, results: Path, *, quick: bool = False) -> list[Measured]:
    """Every line with the result files that there are."""
    plus = documents_of(table, results, quick=quick)
    frcl = {
        name: one
        for where in frcl_tables(quick=quick)
        for name, one in documents_of(where, results, quick=quick).items()
    }
    found = []
    for line in LINES:
        others = {name: one for name, one in frcl.items() if name.startswith(f"{line.benchmark}-")}
        found.append(Measured(line, plus.get(line.cell), frcl.get(line.frcl), others))
    return found


# -- the page -------------------------------------------------------------------------------------------------------

ACCURACY = (
    "average accuracy", "paper's FRCL %", "best published %", "to reach %", "our FRCL %", "our FRCL+ %", "seeds",
    "reached", "above our FRCL by",
)  # fmt: skip
CALIBRATION = ("calibration", "NLL, FRCL", "NLL, FRCL+", "ECE, FRCL", "ECE, FRCL+", "FRCL+ is not worse")
MEMORY = (
    "memory", "bytes kept, FRCL", "bytes kept, FRCL+", "of these", "FRCL that keeps as much", "its bytes",
    "its accuracy %", "FRCL+ is above it by",
)  # fmt: skip


def frontier_view(table: Table, results: Path, quick: bool) -> Iterator[str]:
    """Accuracy, calibration and memory of FRCL+ beside those of FRCL, then how they were measured."""
    lines = measured_lines(table, results, quick=quick)
    cells = {cell.name: cell for cell in table.cells}
    there = documents_of(table, results, quick=quick)
    yield grid(ACCURACY, [_accuracy(one, cells[one.line.cell]) for one in lines])
    yield grid(CALIBRATION, [_calibration(one) for one in lines])
    yield grid(MEMORY, [_memory(one) for one in lines])
    ways = [way for name, one in there.items() for way in how_measured(cells[name], one)]
    ways += [*_told_apart(), *_other_options(lines, quick)]
    if ways:
        yield "\n".join(ways)


def _accuracy(one: Measured, cell: Cell) -> list[str]:
    line = one.line
    seeds = "" if one.plus is None else seeds_of(cell, one.plus)
    numbers = [paper_frcl(line.benchmark, line.points), f"{line.published} ({line.who})", f"{line.goal:.2f}"]
    return [line.title, *numbers, in_percent(one.frcl), in_percent(one.plus), seeds, one.reached(), one.above(one.frcl)]


def _calibration(one: Measured) -> list[str]:
    numbers = [plain_mean(document, metric) for metric in ("nll", "ece") for document in one.on_the_same_seeds()]
    return [one.line.title, *numbers, one.not_worse()]


def _memory(one: Measured) -> list[str]:
    kept = [NOT if document is None else f"{bytes_of(document):,}" for document in (one.frcl, one.plus)]
    kinds = {} if one.plus is None else bytes_by_kind(one.plus)
    parts = ", ".join(f"{kind} {size:,}" for kind, size in kinds.items())
    name = one.at_equal_bytes()
    if name is None or one.plus is None:
        return [one.line.title, *kept, parts, *["" if one.plus is None else NOT, "", "", ""]]
    other = one.others[name]
    points = name.rpartition("-")[2] + " points" + " a character" * (one.line.benchmark == OMNIGLOT)
    less = " (keeps less; none that keeps as much is measured)" * (bytes_of(other) < bytes_of(one.plus))
    return [one.line.title, *kept, parts, points + less, f"{bytes_of(other):,}", in_percent(other), one.above(other)]


def _told_apart() -> Iterator[str]:
    """What differs from the one set of defaults that the others have."""
    for benchmark, points in OWN:
        options = own_options(benchmark, points)
        yield f"- `{METHOD}` on {TITLES[benchmark]} with {points} points has options of its own: {options}"


def _other_options(lines: list[Measured], quick: bool) -> Iterator[str]:
    """Cells of FRCL that stand here and were measured with other options than they have now."""
    shown = {name for one in lines for name in (one.line.frcl, one.at_equal_bytes())}
    there = {name: document for one in lines for name, document in one.others.items() if name in shown}
    for table in frcl_tables(quick=quick):
        for cell in table.cells:
            if cell.name in there:
                for other in differences(there[cell.name], resolve(cell.benchmark, *cell.layers)):
                    yield f"- `{table.name}/{cell.name}` was measured with another option than it has: `{other}`"


FRONTIER = Table(
    "frontier",
    "FRCL+ against the published numbers",
    "[FRCL+](docs/frcl-plus.md) with the networks and points of Tables 1 and 2, and their steps where it is not said "
    "otherwise; ten seeds, on Omniglot five orders of the alphabets. The paper's FRCL is the better of its two rows, "
    "with optimised or random points; ours has points chosen by the trace, and is read from those tables' results. "
    "The published numbers come from other code and other settings. FRCL+ keeps more than points, so it is compared "
    "twice: with FRCL at equal points, and with the smallest measured FRCL that keeps at least as many bytes: two "
    "cells of this table are for that. Differences, with their standard error, and calibration are over the seeds that "
    "both have.",
    tuple(_cells()),
    view=frontier_view,
)
