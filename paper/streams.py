"""Streams without marked tasks: the default detector, the same for all of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from paper.cells import FIVE, OMNIGLOT, TEN, Cell, Layer, Table
from paper.library import delays_of, score_boundaries
from paper.markdown import NOT, TITLES, documents_of, grid, seeds_of, ways_of
from paper.store import Document

COLUMNS = (
    "", "minibatches per task", "seeds", "precision / recall / F1", "goal for F1", "lowest F1", "median delay",
    "false alarms", "reached",
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    """A benchmark as one stream; `steps` minibatches of each of `tasks` tasks, or None: as in the other tables."""

    benchmark: str
    goal: float
    seeds: tuple[int, ...] = TEN
    steps: int | None = None
    tasks: int | None = None

    @property
    def cell(self) -> Cell:
        layers: list[Layer] = [{"method": "frcl", "hidden_boundaries": True, "detector": {"thresholds": [4.0]}}]
        name = f"{self.benchmark}-default"
        if self.steps is not None:
            layers.append({"learner": {"steps": self.steps}})
            name += f"-{self.steps}"
        if self.tasks is not None:
            layers.append({"stream": {"tasks": self.tasks}})
        return Cell(name, self.benchmark, self.title, tuple(layers), self.seeds)

    @property
    def title(self) -> str:
        return TITLES[self.benchmark] + ("" if self.tasks is None else f", {self.tasks} alphabets")


ROWS = (
    Row("split-mnist", 1.0),
    Row("permuted-mnist", 0.99),
    Row(OMNIGLOT, 0.95, FIVE),
    Row("split-mnist", 1.0, steps=300),
    Row("permuted-mnist", 0.99, steps=300),
    Row(OMNIGLOT, 0.95, FIVE, steps=200, tasks=10),
)


def streams_view(table: Table, results: Path, quick: bool) -> Iterator[str]:
    """One table, then how it was measured."""
    found = documents_of(table, results, quick=quick)
    cells = {cell.name: cell for cell in table.cells}
    rows = [_row(row, cells[row.cell.name], found.get(row.cell.name)) for row in ROWS if row.cell.name in cells]
    yield grid(COLUMNS, rows)
    yield from ways_of(table.cells, found)


def _row(row: Row, cell: Cell, one: Document | None) -> list[str]:
    config = cell.config()
    first = [row.title, f"{config.learner.steps:,}"]
    if one is None:
        return [*first, NOT, *[""] * (len(COLUMNS) - 3)]
    switches, tolerance = [seed["switches"] for seed in one["seeds"]], config.detector.tolerance
    scores = [score_boundaries(each["true"], each["found"], 0.0, tolerance) for each in switches]
    delays = [delay for each in switches for delay in delays_of(each["true"], each["found"], tolerance).values()]
    false = sum(len(each["found"]) for each in switches) - len(delays)
    mean = [sum(getattr(score, name) for score in scores) / len(scores) for name in ("precision", "recall", "f1")]
    reached = "yes" if mean[2] >= row.goal - 1e-9 else f"no: {row.goal - mean[2]:.3f} below"
    return [
        *first, seeds_of(cell, one), " / ".join(f"{value:.3f}" for value in mean), f"{row.goal:.2f}",
        f"{min(score.f1 for score in scores):.3f}", f"{median(delays):g}" if delays else "", str(false), reached,
    ]  # fmt: skip


STREAMS_TABLE = Table(
    "streams",
    "Streams: the default detector",
    "Streams whose boundaries are hidden, with [the default detector](docs/streams.md): `BoundaryDetector()`, with no "
    "option and one false alarm promised in 1,000,000 minibatches. Neither labels nor sizes are declared. A switch "
    "counts as found at most 10 minibatches after it. Table 3 has the paper's test with its thresholds. Rows with "
    "fewer minibatches per task than in the other tables are for machines without a GPU.",
    tuple(row.cell for row in ROWS),
    view=streams_view,
)
