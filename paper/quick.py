"""Tables and figures at a reduced size: shows in minutes on a CPU that all of it runs. Its numbers mean nothing."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from frcl.data.places import data_status
from frcl.experiment.config import resolve
from paper.cells import OMNIGLOT, Cell, Layer, Table
from paper.figures.base import FigureOf

SMALL = {  # where a method has the option
    "steps": 12,
    "batch_size": 32,
    "search_steps": 20,
    "search_examples": 200,
    "compress_steps": 12,
    "adapt_steps": 5,
    "fisher_examples": 40,
    "predict_samples": 4,
}
POINTS = 12  # at most
STREAM_STEPS = 40  # with hidden boundaries: nothing is tested in the first 21 minibatches
SEEDS = {OMNIGLOT: 2}  # the others take one: 60,000 images cost more than all steps


def reduced(table: Table) -> Table:
    """The table with all its cells, each small."""
    return replace(table, cells=tuple(_small(cell) for cell in table.cells))


def reduced_figure(figure: FigureOf) -> FigureOf:
    """The figure for a quick run: of the cells that it is made of those that stand for the others, each small.

    What a figure measures by itself is small where its place is quick.
    """
    table = figure.table
    if table is None:
        return figure
    few = tuple(cell for cell in table.cells if not table.sample or cell.name in table.sample)
    return replace(figure, table=reduced(replace(table, cells=few)))


def _small(cell: Cell) -> Cell:
    config = resolve(cell.benchmark, *cell.layers)
    given = asdict(config.learner)
    learner: dict[str, Any] = {name: value for name, value in SMALL.items() if name in given}
    if "points" in given and given["points_per_class"] is None:
        learner["points"] = min(POINTS, given["points"])
    if config.hidden_boundaries:
        learner["steps"] = STREAM_STEPS
    layer: dict[str, Layer] = {"stream": {"tasks": 2}, "learner": learner}
    if cell.benchmark == OMNIGLOT:
        layer |= {"stream": {"tasks": 2, "augment": 2}, "network": {"widths": [8, 8, 8, 8]}}
    return replace(cell, layers=(*cell.layers, layer), seeds=cell.seeds[: SEEDS.get(cell.benchmark, 1)])


def lacking(benchmark: str, data: Path | None) -> str:
    """Why a benchmark cannot be opened without a download; nothing if it can."""
    missing = [
        file.problem or f"{file.name} is missing"
        for file in data_status(data)
        if file.dataset in benchmark and file.needed and not file.verified
    ]
    return "; ".join(missing)
