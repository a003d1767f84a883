"""Tables and figures at a reduced size: a check that everything runs, in minutes on a CPU. The numbers mean nothing."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from paper.cells import OMNIGLOT, Cell, Layer, Table
from paper.figures.base import FigureSpec
from paper.library import data_status

SMALL = {  # applied where a method has the option
    "steps": 12,
    "batch_size": 32,
    "search_steps": 20,
    "search_examples": 200,
    "compress_steps": 12,
    "adapt_steps": 5,
    "fisher_examples": 40,
    "predict_samples": 4,
}
POINTS = 12  # the largest number
STREAM_STEPS = 40  # with hidden boundaries, where the first 21 minibatches are not tested
SEEDS = {OMNIGLOT: 2}  # one for the others, since loading 60,000 images costs more than all steps


def reduced(table: Table) -> Table:
    """The table with its cells, or those it names for this, each at a reduced size."""
    few = [cell for cell in table.cells if not table.quick or cell.name in table.quick]
    return replace(table, cells=tuple(_small(cell) for cell in few))


def reduced_figure(figure: FigureSpec) -> FigureSpec:
    """The figure with a sample of its cells, each at a reduced size.

    A figure without cells reduces its measurement itself if `Place.quick` is set.
    """
    table = figure.table
    if table is None:
        return figure
    few = tuple(cell for cell in table.cells if not table.sample or cell.name in table.sample)
    return replace(figure, table=reduced(replace(table, cells=few)))


def _small(cell: Cell) -> Cell:
    config = cell.config()
    given = asdict(config.learner)
    learner: dict[str, Any] = {name: value for name, value in SMALL.items() if name in given}
    if "points" in given and given.get("points_per_class") is None:
        learner["points"] = min(POINTS, given["points"])
    if config.hidden_boundaries:
        learner["steps"] = STREAM_STEPS
    layer: dict[str, Layer] = {"stream": {"tasks": 2}, "learner": learner}
    if cell.benchmark == OMNIGLOT:
        layer |= {"stream": {"tasks": 2, "augment": 2}, "network": {"widths": [8, 8, 8, 8]}}
    if "cifar" in cell.benchmark:  # a network of its own in the place of a pre-trained one, too
        layer |= {"network": {"kind": "cifar", "widths": [8, 8, 8]}}
    return replace(cell, layers=(*cell.layers, layer), seeds=cell.seeds[: SEEDS.get(cell.benchmark, 1)])


def lacking(benchmark: str, data: Path | None) -> str:
    """Why a benchmark cannot be opened without a download; empty if it can."""
    missing = [
        file.problem or f"{file.name} is missing"
        for file in data_status(data)
        if file.dataset in benchmark and file.needed and not file.verified
    ]
    return "; ".join(missing)
