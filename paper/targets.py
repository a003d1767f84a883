"""The targets of `python -m paper` by name: tables to measure, figures to draw, and the page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from frcl import OptionError
from paper import cells
from paper.cells import Table
from paper.cifar import CIFAR, PRETRAINED
from paper.controls import CONTROLS_TABLE
from paper.figures import criteria, detection, gp, points, regularisers
from paper.figures.base import FigureSpec
from paper.frontier import FRONTIER
from paper.library import suggestion
from paper.page import write_page
from paper.peers import PEERS_TABLE
from paper.quick import reduced, reduced_figure
from paper.readme import write_readme
from paper.scenarios import SCENARIOS
from paper.streams import STREAMS_TABLE

ALL = "all"
TABLES = (*cells.TABLES, STREAMS_TABLE, FRONTIER, CONTROLS_TABLE, SCENARIOS, PEERS_TABLE, CIFAR, PRETRAINED)
PAPER_FIGURES = (*gp.FIGURES, *criteria.FIGURES, *points.FIGURES, *detection.FIGURES)
FIGURES = (*sorted(PAPER_FIGURES, key=lambda figure: figure.name), *regularisers.FIGURES)


@dataclass(frozen=True)
class Target:
    """The cells of `table` are measured first; then the figure is drawn, or `write` writes a file from the results."""

    name: str
    table: Table | None = None
    figure: FigureSpec | None = None
    write: Callable[[Path, Path], Path] | None = None  # folder of the results, folder of the page


def registry(*, quick: bool = False) -> dict[str, Target]:
    """All targets, in the order of `all`."""
    tables = tuple(reduced(table) if quick else table for table in TABLES)
    figures = tuple(reduced_figure(figure) if quick else figure for figure in FIGURES)
    targets = [
        *(Target(table.name, table) for table in tables),
        *(Target(figure.name, figure.table, figure) for figure in figures),
        Target("page", write=lambda results, folder: _write(tables, results, figures, folder, quick=quick)),
    ]
    return {target.name: target for target in targets}


def _write(tables: Sequence[Table], results: Path, figures: Sequence[FigureSpec], folder: Path, *, quick: bool) -> Path:
    if not quick:
        write_readme(results, folder)
    return write_page(tables, results, figures, folder, quick=quick)


def chosen_targets(names: Sequence[str], *, quick: bool = False) -> list[Target]:
    """The targets with these names, each once; `all` stands for all of them."""
    known = registry(quick=quick)
    for name in names:
        if name not in (*known, ALL):
            raise OptionError(f"there is no target {name!r}{suggestion(name, [*known, ALL])}")
    if not names:
        raise OptionError(f"name what to reproduce: {', '.join(known)} or {ALL}")
    return list(known.values()) if ALL in names else [known[name] for name in dict.fromkeys(names)]
