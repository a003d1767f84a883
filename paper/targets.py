"""What can be asked of `frcl reproduce`, by name: cells to measure, figures to make, and the page to write of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from frcl.errors import OptionError
from frcl.experiment.config import suggestion
from paper import cells
from paper.cells import Table
from paper.figures import criteria, detection, gp, holds, points
from paper.figures.base import FigureOf
from paper.frontier import FRONTIER
from paper.page import write_page
from paper.quick import reduced, reduced_figure
from paper.readme import write_short

ALL = "all"
TABLES = (*cells.TABLES, FRONTIER)
PAPER_FIGURES = (*gp.FIGURES, *criteria.FIGURES, *points.FIGURES, *detection.FIGURES)
FIGURES = (*sorted(PAPER_FIGURES, key=lambda figure: figure.name), *holds.FIGURES)


@dataclass(frozen=True)
class Target:
    """First the cells of `table` are measured, then the figure is made, or `write` makes its file from the results."""

    name: str
    what: str
    table: Table | None = None
    figure: FigureOf | None = None
    write: Callable[[Path], Path] | None = None


def registry(*, quick: bool = False) -> dict[str, Target]:
    """Every target, in the order in which `all` goes through them."""
    tables = tuple(reduced(table) if quick else table for table in TABLES)
    figures = tuple(reduced_figure(figure) if quick else figure for figure in FIGURES)
    targets = [
        *(Target(table.name, table.title, table) for table in tables),
        *(Target(figure.name, figure.title, figure.table, figure) for figure in figures),
        Target(
            "page",
            "REPRODUCTION.md and the tables of README.md, from the result files",
            write=lambda at: _write(tables, at, figures, quick=quick),
        ),
    ]
    return {target.name: target for target in targets}


def _write(tables: Sequence[Table], results: Path, figures: Sequence[FigureOf], *, quick: bool) -> Path:
    if not quick:
        write_short(results)
    return write_page(tables, results, figures, quick=quick)


def chosen_targets(names: Sequence[str], *, quick: bool = False) -> list[Target]:
    """The targets of these names, each once; `all` stands for every one."""
    known = registry(quick=quick)
    for name in names:
        if name not in (*known, ALL):
            raise OptionError(f"there is no target {name!r}{suggestion(name, [*known, ALL])}")
    if not names:
        raise OptionError(f"say what to reproduce: {', '.join(known)} or {ALL}")
    return list(known.values()) if ALL in names else [known[name] for name in dict.fromkeys(names)]
