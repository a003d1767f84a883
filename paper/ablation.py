"""The holds of FRCL+ on and off: none, each alone, all but one, all; with the fewest points of each benchmark."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from frcl.experiment.config import resolve
from frcl.learners.options import HOLDS
from paper.cells import OMNIGLOT, ONE, THREE, Cell, Layer, Table
from paper.frontier import METHOD, budget_options
from paper.markdown import NOT, TITLES, Found, documents_of, grid, how_measured, in_percent, seeds_of

NONE, ALL = "none", "all"
POINTS = {"split-mnist": 2, "permuted-mnist": 10, OMNIGLOT: 1}  # a task; on Omniglot a character
SHORT = {OMNIGLOT: {"stream": {"tasks": 10}, "learner": {"steps": 1000}}}  # the first alphabets, not trained to the end


def _rows() -> Iterator[tuple[str, tuple[str, ...]]]:
    yield NONE, ()
    for hold in HOLDS:
        yield f"only {_plain(hold)}", (hold,)
    for hold in HOLDS:
        yield f"all but {_plain(hold)}", tuple(one for one in HOLDS if one != hold)
    yield ALL, HOLDS


def _plain(hold: str) -> str:
    return hold.replace("_", " ")


ROWS = dict(_rows())  # name: what is on


def name_of(benchmark: str, row: str) -> str:
    """The cell of a row: split-mnist-only-memory-targets."""
    return f"{benchmark}-{row.replace(' ', '-')}"


def _cells() -> Iterator[Cell]:
    """Weights are those that `frcl-plus` has on the benchmark; 0 where a hold is off.

    An old task is predicted by its head. The paper's term alone keeps no heads, so there it is by the summary.
    """
    for benchmark, points in POINTS.items():
        for row, on in ROWS.items():
            off: dict[str, Any] = {hold: 0.0 for hold in HOLDS if hold not in on}
            prediction = "summary" if on == ("functional",) else "head"
            layers: tuple[Layer, ...] = (
                {"method": METHOD},
                {"learner": budget_options(benchmark, points)},
                SHORT.get(benchmark, {}),
                {"learner": {**off, "prediction": prediction}},
            )
            seeds = ONE if benchmark == OMNIGLOT else THREE
            yield Cell(name_of(benchmark, row), benchmark, row, layers, seeds)


def weights_in_words(table: Table) -> str:
    """The weights of the holds where they are on, on each benchmark."""
    told = []
    for cell in table.cells:
        if cell.row == ALL:
            options = asdict(resolve(cell.benchmark, *cell.layers).learner)
            weights = ", ".join(f"`{hold}` {options[hold]:g}" for hold in HOLDS)
            told.append(f"{TITLES[cell.benchmark]} {weights}")
    return f"Weights where a hold is on: {'; '.join(told)}."


def ablation_view(table: Table, results: Path, quick: bool) -> Iterator[str]:
    """Accuracy and forgetting with the benchmarks side by side, then how they were measured."""
    found, cells = documents_of(table, results, quick=quick), {cell.name: cell for cell in table.cells}
    yield weights_in_words(table)
    for metric, title in (("average_accuracy", "average accuracy %"), ("forgetting", "forgetting %")):
        rows = []
        for row, on in ROWS.items():
            marks = ["on" if hold in on else "" for hold in HOLDS]
            values = [_value(cells.get(name_of(benchmark, row)), found, metric) for benchmark in POINTS]
            rows.append([row, *marks, *values])
        yield grid((title, *(f"`{hold}`" for hold in HOLDS), *(TITLES[one] for one in POINTS)), rows)
    ways = [way for cell in table.cells if cell.name in found for way in how_measured(cell, found[cell.name])]
    if ways:
        yield "\n".join(ways)


def _value(cell: Cell | None, found: Found, metric: str) -> str:
    """Mean ± standard deviation, with the number of seeds where some are missing."""
    one = None if cell is None else found.get(cell.name)
    if cell is None or one is None:
        return NOT
    seeds = seeds_of(cell, one)
    return in_percent(one, metric) + (f" (seeds: {seeds})" if "of" in seeds else "")


ABLATION = Table(
    "ablation",
    "Ablation: what each hold does",
    "[FRCL+](docs/frcl-plus.md) with some of its holds; with none of them it is finetuning with a head for each task. "
    "Split-MNIST with 2 points, Permuted-MNIST with 10, three seeds; the first ten alphabets of Omniglot with 1 point "
    "per character and 1,000 steps, one seed. Old tasks are predicted by their heads; with the paper's term alone, "
    "`functional`, by the summary. In all rows the rate falls over the second half of a task's "
    "steps, as in FRCL+.",
    tuple(_cells()),
    view=ablation_view,
    sample=(*(name_of("split-mnist", row) for row in ROWS), name_of(OMNIGLOT, ALL)),
)
