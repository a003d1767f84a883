"""The tables of the README: Tables 1 and 2 and FRCL+ in short, written from the result files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from frcl import DataError
from paper.cells import ROWS, TABLES, Cell
from paper.frontier import FRONTIER, ONE_HEAD, RUDNER, measured_lines, paper_frcl
from paper.library import write_atomically
from paper.markdown import EARLIER, EARLIER_MEANS, NOT, bytes_of, grid, marked, plain_mean
from paper.store import path_of, read_document

BEGIN, END = "<!-- written by `python -m paper page` from paper/results/ -->", "<!-- until here -->"
POINTS = ("frcl-trace", "frcl-random", "baseline")  # rows that the paper measured with several numbers of points
COLUMNS = {  # benchmark and points; the cells of a row are named BENCHMARK-ROW-POINTS
    "table1": (("permuted-mnist", 10), ("permuted-mnist", 200), ("split-mnist", 2), ("split-mnist", 40)),
    "table2": (("omniglot", 1), ("omniglot", 2), ("omniglot", 3)),
}
FOOTNOTE = f"\n\n{EARLIER_MEANS}: [which](REPRODUCTION.md)."
HEADINGS = {
    "table1": ("Permuted-MNIST, 10 points", "200 points", "Split-MNIST, 2 points", "40 points"),
    "table2": ("Omniglot, 1 point per character", "2 points", "3 points"),
}
PLUS_HEADINGS = (
    "", "the paper's FRCL", "best published with this network", "our FRCL", "our FRCL, recentred",
    "our FRCL+", "difference on the same seeds",
    "NLL of both", "ECE of both", "bytes kept by both",
)  # fmt: skip


def readme_tables(results: Path) -> str:
    """The generated part of the README."""
    parts = [
        "Average accuracy after the last task in %, mean ± standard deviation over seeds; the paper's in brackets.",
        _with_points("table1", results),
        _others("table1", ("Permuted-MNIST", "Split-MNIST"), results),
        _with_points("table2", results),
        _others("table2", ("Omniglot",), results),
        f"FRCL+ ([what it adds](docs/frcl-plus.md)) with the same points, and the best published numbers ({RUDNER}). "
        f"On Permuted-MNIST theirs have {ONE_HEAD}; ours have a head per task and are told the task, but for "
        "[those without it](REPRODUCTION.md#scenarios-predictions-without-the-task). NLL, ECE and bytes: first our "
        "FRCL, then FRCL+, which keeps more ([at equal bytes](REPRODUCTION.md#frcl-against-the-published-numbers)).",
        _frontier(results),
    ]
    text = "\n\n".join(parts)
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
    write_atomically(path, f"{before}{BEGIN}\n\n{readme_tables(results)}\n\n{END}{after}".encode())
    return path


def _with_points(table: str, results: Path) -> str:
    cells = _cells(table)
    rows = [
        [ROWS[row][0], *(_shown(table, cells[f"{benchmark}-{row}-{n}"], results) for benchmark, n in COLUMNS[table])]
        for row in POINTS
    ]
    return grid(["", *HEADINGS[table]], rows)


def _others(table: str, headings: Sequence[str], results: Path) -> str:
    """The methods that the paper quotes, one column per benchmark."""
    lines: dict[str, list[str]] = {}
    for name, cell in _cells(table).items():
        if not any(f"-{row}-" in name for row in POINTS):
            lines.setdefault(cell.row.split(",")[0], []).append(_shown(table, cell, results))
    return grid(["", *headings], [[row, *values] for row, values in lines.items()])


def _frontier(results: Path) -> str:
    """Our FRCL+ and FRCL, and the values of the paper and of others."""
    rows = []
    cells, plus = _cells("table1") | _cells("table2"), {cell.name: cell for cell in FRONTIER.cells}
    for one in measured_lines(FRONTIER, results):
        line = one.line
        theirs = [paper_frcl(line.benchmark, line.points), f"{line.published} ({line.who.replace(RUDNER, 'S-FSVI')})"]
        ours = [marked(cells[line.frcl], one.frcl, 2), marked(plus[line.recentred], one.recentred, 2)]
        ours += [marked(plus[line.cell], one.plus, 2)]
        sure = [", ".join(plain_mean(each, metric) for each in one.on_the_same_seeds()) for metric in ("nll", "ece")]
        size = ", ".join(NOT if each is None else f"{bytes_of(each):,}" for each in (one.frcl, one.plus))
        rows.append([line.title, *theirs, *ours, one.above(one.frcl), *sure, size])
    return grid(PLUS_HEADINGS, rows)


def _cells(table: str) -> dict[str, Cell]:
    return {cell.name: cell for one in TABLES if one.name == table for cell in one.cells}


def _shown(table: str, cell: Cell, results: Path) -> str:
    ours = marked(cell, read_document(path_of(results, table, cell.name), quick=False), 1)
    return ours if cell.paper is None else f"{ours} ({cell.paper.value})"
