"""Ablation of FRCL+: no regulariser, each alone, all but one, all; with the fewest points of each benchmark."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from paper.cells import OMNIGLOT, ONE, THREE, Cell, Layer, Table
from paper.frontier import METHOD, budget_options
from paper.library import REGULARISERS
from paper.markdown import EARLIER, NOT, TITLES, Found, documents_of, grid, in_percent, seeds_of, ways_of
from paper.store import differences

NONE, ALL = "none", "all"
POINTS = {"split-mnist": 2, "permuted-mnist": 10, OMNIGLOT: 1}  # per task; on Omniglot per character
SHORT = {OMNIGLOT: {"stream": {"tasks": 10}, "learner": {"steps": 1000}}}  # the first alphabets, with fewer steps


def _rows() -> Iterator[tuple[str, tuple[str, ...]]]:
    names = {regulariser: regulariser.replace("_", " ") for regulariser in REGULARISERS}
    yield NONE, ()
    for regulariser, name in names.items():
        yield f"only {name}", (regulariser,)
    for regulariser, name in names.items():
        yield f"all but {name}", tuple(one for one in REGULARISERS if one != regulariser)
    yield ALL, REGULARISERS


ROWS = dict(_rows())  # name: the regularisers that are on


def name_of(benchmark: str, row: str) -> str:
    """The name of a cell: split-mnist-only-memory-targets."""
    return f"{benchmark}-{row.replace(' ', '-')}"


def _cells() -> Iterator[Cell]:
    """Weights are those of `frcl-plus`, 1 for the paper's term, 0 for a regulariser that is off.

    Old tasks are predicted by their heads. The paper's term alone keeps no heads, so there the summary predicts.
    """
    for benchmark, points in POINTS.items():
        for row, on in ROWS.items():
            own: dict[str, Any] = {one: 0.0 for one in REGULARISERS if one not in on}
            own |= {"functional": 1.0} if "functional" in on else {}  # FRCL+ itself does not have it
            prediction = "summary" if on == ("functional",) else "head"
            layers: tuple[Layer, ...] = (
                {"method": METHOD},
                {"learner": budget_options(benchmark, points)},
                SHORT.get(benchmark, {}),
                {"learner": {**own, "prediction": prediction}},
            )
            seeds = ONE if benchmark == OMNIGLOT else THREE
            yield Cell(name_of(benchmark, row), benchmark, row, layers, seeds)


def weights_in_words(table: Table) -> str:
    """The weights of the regularisers on each benchmark."""
    parts = []
    for cell in table.cells:
        if cell.row == ALL:
            options = asdict(cell.config().learner)
            weights = ", ".join(f"`{one}` {options[one]:g}" for one in REGULARISERS)
            parts.append(f"{TITLES[cell.benchmark]} {weights}")
    return f"Weights of the regularisers that are on: {'; '.join(parts)}."


def ablation_view(table: Table, results: Path, quick: bool) -> Iterator[str]:
    """Accuracy and forgetting on all benchmarks, then how they were measured."""
    found, cells = documents_of(table, results, quick=quick), {cell.name: cell for cell in table.cells}
    yield weights_in_words(table)
    for metric, title in (("average_accuracy", "average accuracy %"), ("forgetting", "forgetting %")):
        rows = []
        for row, on in ROWS.items():
            marks = ["on" if one in on else "" for one in REGULARISERS]
            values = [_value(cells.get(name_of(benchmark, row)), found, metric) for benchmark in POINTS]
            rows.append([row, *marks, *values])
        yield grid((title, *(f"`{one}`" for one in REGULARISERS), *(TITLES[one] for one in POINTS)), rows)
    yield from ways_of(table.cells, found)


def _value(cell: Cell | None, found: Found, metric: str) -> str:
    """Mean ± standard deviation, with the number of seeds if some are missing."""
    one = None if cell is None else found.get(cell.name)
    if cell is None or one is None:
        return NOT
    seeds = seeds_of(cell, one)
    mark = EARLIER * bool(differences(one, cell.config()))
    return in_percent(one, metric) + mark + (f" (seeds: {seeds})" if "of" in seeds else "")


ABLATION = Table(
    "ablation",
    "Ablation: what each regulariser does",
    "[FRCL+](docs/frcl-plus.md), which is the row `all but functional`, with some of its regularisers; without any it "
    "is finetuning with one head per task. "
    "Split-MNIST with 2 points, Permuted-MNIST with 10, three seeds; the first ten alphabets of Omniglot with 1 point "
    "per character and 1,000 steps, one seed. Old tasks are predicted by their heads; with the paper's term alone, "
    "`functional`, by the summary. In all rows the learning rate decays over the second half of a task's steps, as in "
    "FRCL+.",
    tuple(_cells()),
    view=ablation_view,
    sample=(*(name_of("split-mnist", row) for row in ROWS), name_of(OMNIGLOT, ALL)),
)
