"""Predictions without the task: FRCL+ and the exact Gaussian process, with the best known numbers of others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paper.cells import FIVE, OMNIGLOT, TEN, Cell, Table, per_character
from paper.frontier import FRONTIER, METHOD, budget_options
from paper.markdown import (
    NOT,
    TITLES,
    bytes_by_kind,
    documents_of,
    grid,
    in_percent,
    marked,
    plain_mean,
    seeds_of,
    ways_of,
)
from paper.numbers import attains, percent
from paper.store import Document

# kinds of bytes; the others have the size of the network
OF_DATA = ("points", "posterior", "heads", "statistics", "sums")
AGNOSTIC = "agnostic_accuracy"


@dataclass(frozen=True)
class Row:
    """A method with a memory budget, and what others reached without the task."""

    benchmark: str
    method: str
    size: int  # points per task, on Omniglot per character; random features of the exact Gaussian process
    limit: str = ""  # of the bytes for data
    known: str = ""  # the best known accuracy in %, and whose it is
    goal: float | None = None  # in %

    @property
    def cell(self) -> str:
        return f"{self.benchmark}-{self.method}-{self.size}"

    @property
    def title(self) -> str:
        if self.method != METHOD:
            return f"{TITLES[self.benchmark]}, exact GP, {self.size} features"
        points = per_character(self.size) if self.benchmark == OMNIGLOT else f"{self.size} points"
        return f"{TITLES[self.benchmark]}, FRCL+, {points}"

    def layers(self) -> tuple[dict[str, Any], ...]:
        if self.method != METHOD:
            return {"method": self.method, "scenario": "class"}, {"learner": {"features": self.size}}
        return {"method": METHOD, "scenario": "class"}, {"learner": budget_options(self.benchmark, self.size)}


SMALL, MIDDLE, LARGE = "≤ 0.63 MB", "≤ 3.2 MB", "≤ 40 MB"
TWO_IMAGES = "≤ 10.18 MB"  # on Omniglot: two float images for each of the 1,623 characters
SFR_40, SFR_200 = "89.2 (SFR), 85.6 (DER++)", "94.2 (SFR), 92.87 (S-FSVI)"
ROWS = (
    Row("split-mnist", "exact-gp", 540, SMALL, SFR_40, 92.5),
    Row("split-mnist", METHOD, 40, SMALL, SFR_40, 92.5),
    Row("split-mnist", "exact-gp", 1233, MIDDLE, SFR_200, 95.5),
    Row("split-mnist", METHOD, 200, MIDDLE, SFR_200, 95.5),
    Row("split-mnist", "exact-gp", 1233, LARGE, "96.7 (random features)", 97.5),  # the same cell: it needs no more
    Row("permuted-mnist", METHOD, 10, "", "89.59 (S-FSVI, one head, 300-300)", 93.5),
    Row("permuted-mnist", METHOD, 200, "", "95.76 (S-FSVI, one head)", 96.0),
    Row(OMNIGLOT, "exact-gp", 976, TWO_IMAGES),
    Row(OMNIGLOT, "exact-gp", 1150),
    Row(OMNIGLOT, METHOD, 2),
)


SHARED = {cell.name: cell for cell in FRONTIER.cells if f"-{METHOD}-" in cell.name}
"""Runs of FRCL+ that the frontier has: they report accuracy with and without the task."""


def _cells() -> Iterator[Cell]:
    for row in {one.cell: one for one in ROWS if one.cell not in SHARED}.values():
        yield Cell(row.cell, row.benchmark, row.title, row.layers(), FIVE if row.benchmark == OMNIGLOT else TEN)


COLUMNS = (
    "no task named", "best known %", "goal %", "accuracy %", "reached", "task inferred %", "NLL", "ECE",
    "novelty AUROC", "with the task %", "seeds", "limit for data", "bytes for data", "bytes of network size",
)  # fmt: skip


def bytes_for(one: Document) -> tuple[int, int]:
    """Bytes kept of the data (points, beliefs, sums), and in parts that have the size of the network."""
    parts = bytes_by_kind(one)
    data = sum(parts.get(kind, 0) for kind in OF_DATA)
    return data, sum(parts.values()) - data


def scenarios_view(table: Table, results: Path, quick: bool) -> Iterator[str]:
    """One table, then how it was measured."""
    found = documents_of(table, results, quick=quick)
    shared = documents_of(FRONTIER, results, quick=quick)
    shared = {name: one for name, one in shared.items() if one["seeds"][0].get(AGNOSTIC) is not None}
    cells = {cell.name: cell for cell in table.cells} | SHARED
    yield grid(COLUMNS, [_row(row, cells[row.cell], (found | shared).get(row.cell)) for row in ROWS])
    yield from ways_of(table.cells, found)


def _row(row: Row, cell: Cell, one: Document | None) -> list[str]:
    first = [row.title, row.known, "" if row.goal is None else f"{row.goal:.1f}"]
    if one is None:
        return [*first, NOT, *[""] * 7, row.limit, "", ""]
    accuracy = percent(one["seeds"], AGNOSTIC)
    reached = "" if row.goal is None or accuracy is None else attains(accuracy, row.goal)
    scores = [in_percent(one, "task_accuracy"), *(plain_mean(one, f"agnostic_{name}") for name in ("nll", "ece"))]
    sizes = [f"{size:,}" for size in bytes_for(one)]
    novelty = plain_mean(one, "novelty_auroc")
    without = marked(cell, one, metric=AGNOSTIC)
    return [*first, without, reached, *scores, novelty, in_percent(one), seeds_of(cell, one), row.limit, *sizes]


SCENARIOS = Table(
    "scenarios",
    "Scenarios: predictions without the task",
    "[`predict(x)`](docs/scenarios.md) over all labels ever seen, after the last task; ten seeds, on Omniglot five "
    "orders of the alphabets. On Split-MNIST it has ten classes, on Omniglot 1,623, and the inferred task is the pair "
    "of digits or the alphabet; on Permuted-MNIST it has ten digits under a permutation that is not named. Bytes for "
    "data are those of points, beliefs, heads and sums; Fisher information and copies have the size of the network. "
    "The exact GP has fixed convolutional random features, and no network is trained: it does not have the 256-256 or "
    "100-100 network of the other rows and of the best known numbers. On Omniglot two images per character, as floats, "
    "are 10,179,456 bytes, and FRCL+ keeps 48.8 MB of the data with them. The best known numbers come from other code; "
    "those of SFR and S-FSVI store images. FRCL+ is measured by `python -m paper frontier`, with and without the task "
    "in one run.",
    tuple(_cells()),
    view=scenarios_view,
)
