"""The headline numbers of the README, written from the result files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from frcl import DataError
from paper.cells import Cell
from paper.frontier import FRONTIER, LINES
from paper.library import write_atomically
from paper.markdown import EARLIER, EARLIER_MEANS, NOT, bytes_of, documents_of, grid, marked, seeds_of
from paper.scenarios import AGNOSTIC, ROWS, SCENARIOS, SHARED, bytes_for
from paper.store import Document

BEGIN, END = "<!-- written by `python -m paper page` from paper/results/ -->", "<!-- until here -->"
UNNAMED = ("split-mnist-exact-gp-540", "permuted-mnist-frcl-plus-200")  # predictions without the task
NAMED = ("split-mnist-frcl-plus-40", "omniglot-frcl-plus-2")  # predictions with it
HEADINGS = ("", "task named", "accuracy %", "seeds", "bytes kept", "best published %")
CAPTION = (
    "Average test accuracy after the last task, mean ± standard deviation, and all bytes that are kept for it. The "
    "published numbers come from other code and store images:"
)
FOOTNOTE = f"\n\n{EARLIER_MEANS}: [which](REPRODUCTION.md)."


def headlines(results: Path) -> str:
    """The generated part of the README."""
    text = f"{CAPTION}\n\n{grid(HEADINGS, _rows(results))}"
    return text + FOOTNOTE * (EARLIER in text)


def write_readme(results: Path, folder: Path) -> Path | None:
    """Replace the generated part of the README in `folder`, if it has one."""
    path = folder / "README.md"
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    if BEGIN not in text:
        return None
    before, rest = text.split(BEGIN, 1)
    if END not in rest:
        raise DataError(f"{path} has the line {BEGIN!r} but not {END!r} after it; add it where the tables end")
    after = rest.split(END, 1)[1]
    write_atomically(path, f"{before}{BEGIN}\n\n{headlines(results)}\n\n{END}{after}".encode())
    return path


def _rows(results: Path) -> Iterator[list[str]]:
    frontier = documents_of(FRONTIER, results, quick=False)
    found = frontier | documents_of(SCENARIOS, results, quick=False)
    cells = {cell.name: cell for table in (FRONTIER, SCENARIOS) for cell in table.cells} | SHARED
    for row in (one for one in ROWS if one.cell in UNNAMED):
        one = found.get(row.cell)
        size = NOT if one is None else f"{sum(bytes_for(one)):,}"
        yield _row(row.title, "no", cells[row.cell], one, AGNOSTIC, size, row.known)
    for line in (one for one in LINES if one.cell in NAMED):
        one = frontier.get(line.cell)
        size = NOT if one is None else f"{bytes_of(one):,}"
        title = line.title.replace(", ", ", FRCL+, ", 1)
        yield _row(title, "yes", cells[line.cell], one, "average_accuracy", size, f"{line.published} ({line.who})")


def _row(title: str, named: str, cell: Cell, one: Document | None, metric: str, size: str, known: str) -> list[str]:
    seeds = "" if one is None else seeds_of(cell, one)
    return [title, named, marked(cell, one, metric=metric), seeds, size, known]
