"""Controls: what FRCL+ has beside its regularisers given to FRCL, and other methods with as many bytes as FRCL+."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paper.cells import TEN, Cell, Table
from paper.frontier import FRONTIER, METHOD
from paper.markdown import NOT, TITLES, bytes_of, documents_of, grid, marked, plain_mean, seeds_of, ways_of
from paper.numbers import paired
from paper.store import Document

SCHEDULE: Mapping[str, Any] = {"lr_decay": 0.5}  # the only option of training that FRCL+ has of its own
TEMPERATURE: Mapping[str, Any] = {"held_out": 0.1}


@dataclass(frozen=True)
class Control:
    """A method on a benchmark, for comparison with FRCL+ with this number of points."""

    benchmark: str
    points: int
    name: str  # of the cell, after that of the benchmark
    title: str
    method: str
    learner: Mapping[str, Any] = field(default_factory=dict)

    @property
    def cell(self) -> Cell:
        layers = {"method": self.method}, {"learner": self.learner}
        return Cell(f"{self.benchmark}-{self.name}", self.benchmark, self.title, layers, TEN)


SIZES = {"split-mnist": (2, 40), "permuted-mnist": (10, 200)}
REPLAYED = {("split-mnist", 40): 1420, ("permuted-mnist", 10): 445, ("permuted-mnist", 200): 1660}  # as many bytes


def _controls() -> Iterator[Control]:
    for benchmark, sizes in SIZES.items():
        for points in sizes:
            size = {"points": points}
            for name, title, method, learner in (
                ("frcl-schedule", "FRCL, schedule of FRCL+", "frcl", SCHEDULE),
                ("frcl-temperature", "FRCL, temperature", "frcl", TEMPERATURE),
                ("frcl-both", "FRCL, both", "frcl", {**SCHEDULE, **TEMPERATURE}),
                ("frcl-plus-temperature", "FRCL+, temperature", METHOD, TEMPERATURE),
            ):
                own = {**size, **learner}
                yield Control(benchmark, points, f"{name}-{points}", f"{title}, {points} points", method, own)
        for (where, points), replayed in REPLAYED.items():
            if where == benchmark:
                title = f"Replay, {replayed} images per task"
                yield Control(benchmark, points, f"replay-{replayed}", title, "replay", {"points": replayed})
        for method, title in (("lwf", "LwF"), ("online-ewc", "Online EWC"), ("si", "SI"), ("pnc", "P&C")):
            yield Control(benchmark, sizes[-1], method, title, method)


CONTROLS = tuple(_controls())
COLUMNS = ("benchmark", "control", "accuracy %", "FRCL+ minus it", "NLL", "ECE", "bytes kept", "seeds")


def controls_view(table: Table, results: Path, quick: bool) -> Iterator[str]:
    """One table, then how it was measured."""
    found, plus = (documents_of(one, results, quick=quick) for one in (table, FRONTIER))
    wanted = {cell.name: cell for cell in table.cells}
    shown = [control for control in CONTROLS if control.cell.name in wanted]
    yield grid(COLUMNS, [_row(one, wanted[one.cell.name], found, plus) for one in shown])
    yield from ways_of(table.cells, found)


def _row(control: Control, cell: Cell, found: Mapping[str, Document], plus: Mapping[str, Document]) -> list[str]:
    first, one = [TITLES[control.benchmark], control.title], found.get(cell.name)
    if one is None:
        return [*first, NOT, *[""] * 5]
    reference = plus.get(f"{control.benchmark}-{METHOD}-{control.points}")
    gain = None if reference is None else paired(reference["seeds"], one["seeds"])
    scores = plain_mean(one, "nll"), plain_mean(one, "ece")
    difference = "" if gain is None else f"{gain.show()} with {control.points} points"
    return [*first, marked(cell, one), difference, *scores, f"{bytes_of(one):,}", seeds_of(cell, one)]


CONTROLS_TABLE = Table(
    "controls",
    "Controls: the same training, the same calibration, as many bytes",
    "What FRCL+ has beside its regularisers, given to FRCL: its schedule (the learning rate decays over the second "
    "half of a task's steps; steps, learning rate and minibatches are the same anyway), and a temperature chosen on a "
    "tenth of the data, given to both. Then other methods for a comparison by bytes. Replay keeps as many images as "
    "FRCL+ keeps bytes. LwF, online EWC, SI and P&C keep parts of the size of the network, and no option makes them "
    "keep more; EWC is in Table 1. Their strengths were chosen on validation data. Differences to FRCL+ with the "
    "points that are named are ± their standard error, over the common seeds. NLL and ECE of FRCL+ are "
    "[above](#frcl-against-the-published-numbers). Bytes are without the sums that infer the task.",
    tuple(control.cell for control in CONTROLS),
    view=controls_view,
    quick=("split-mnist-frcl-schedule-2", "split-mnist-replay-1420"),
)
