"""REPRODUCTION.md from the result files: every number in it comes from one of them, or is the paper's."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path

from frcl.files import write_atomically
from paper.cells import Cell, Table
from paper.figures.base import FigureOf, Record, path_of_figure, read_record
from paper.markdown import (
    NOT,
    TITLES,
    Found,
    bytes_of,
    documents_of,
    grid,
    how_measured,
    in_percent,
    plain_mean,
    seeds_of,
    told,
    where_measured,
)
from paper.numbers import agreement, boundary_scores, paired, percent, reaches_f1
from paper.store import Document

NOT_MADE, NOT_KNOWN = "not made yet", "not known"
COLUMNS = (
    "", "paper %", "ours %", "seeds", "agrees", "just after learning %", "forgetting %", "NLL", "ECE", "bytes kept",
)  # fmt: skip
INTRODUCTION = """\
The paper's tables and [figures](#figures), measured. `frcl reproduce page` writes this page from the files under
`results/`, and a test compares the two; `frcl reproduce table1` and so on measure what is missing
([how](docs/reproduction.md)). Not in the paper are [FRCL+](#frcl-against-the-published-numbers), beside the best
published numbers, and [what each of its holds does](#ablation-what-each-hold-does).

Networks, rates, batch sizes and steps are those of the paper's Appendices F and G. Strengths of the methods beside FRCL
were chosen on validation data by `frcl tune`; `src/frcl/experiment/defaults.toml` says which. All methods have one head
a task and are told the task. Where the paper does not say how something was done,
[our choice](#where-the-paper-is-silent) stands at the end.

Ours is the mean over seeds ± the standard deviation. A row of FRCL agrees if our mean is at least the paper's minus its
standard deviation; any other row if it is within two standard deviations of the paper's mean, with the paper's standard
deviation where it has one, else with ours. "Quoted" are values that the paper took from other papers, with other code
and other settings. "n/a" is a number that does not exist for a method. Seconds are those of a machine that may have had
other work at the time."""
QUICK = """\
**QUICK: made by `frcl reproduce --quick`. Two tasks, a dozen steps, small networks: it shows that everything runs, and
its numbers mean nothing.**"""


FIGURES_NOTE = "Each is drawn from the numbers in its CSV file alone."


def page(tables: Sequence[Table], results: Path, figures: Sequence[FigureOf] = (), *, quick: bool = False) -> str:
    """The whole of REPRODUCTION.md."""
    title = "# Reproduction" + " (QUICK)" * quick
    found = {table.name: documents_of(table, results, quick=quick) for table in tables}
    parts = [title, *([QUICK] if quick else []), INTRODUCTION, _overview(tables, found)]
    for table in tables:
        shown = _shown(table, found[table.name], results, quick, "###")
        parts += [f"## {table.title}{' (QUICK)' * quick}", table.note, *shown]
    if figures:
        parts += [f"## Figures{' (QUICK)' * quick}", FIGURES_NOTE]
        parts += [part for figure in figures for part in _figure(figure, results, quick)]
    return "\n\n".join([*parts, "## Where the paper is silent", *_silent()]) + "\n"


def write_page(
    tables: Sequence[Table], results: Path, figures: Sequence[FigureOf] = (), *, quick: bool = False
) -> Path:
    """Write it beside the folder of results."""
    path = results.parent / "REPRODUCTION.md"
    text = page(tables, results, figures, quick=quick)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, text.encode())
    return path


def _overview(tables: Sequence[Table], found: dict[str, Found]) -> str:
    """How much of each table there is, and how much of that agrees."""
    rows = []
    for table in tables:
        there = found[table.name]
        whole = sum(len(there[cell.name]["seeds"]) >= len(cell.seeds) for cell in table.cells if cell.name in there)
        verdicts = [verdict for cell in table.cells if cell.name in there for verdict in _verdicts(cell, there)]
        cells = (
            f"[{table.title.split(':')[0]}](#{_anchor(table.title)})",
            f"{len(there)} of {len(table.cells)}",
            str(whole),
            *(("", "") if table.view else (str(len(verdicts)), str(verdicts.count("yes")))),
        )
        rows.append(cells)
    return grid(("table", "rows measured", "all seeds", "beside a value of the paper", "of those agree"), rows)


def _anchor(title: str) -> str:
    """As GitHub names a heading."""
    kept = "".join(letter for letter in title.lower() if letter.isalnum() or letter in " -")
    return kept.replace(" ", "-")


def _verdicts(cell: Cell, there: Found) -> list[str]:
    """Whether it agrees: one for the accuracy, or one for each threshold; none where the paper has nothing."""
    seeds = there[cell.name]["seeds"]
    if not cell.thresholds:
        return list(filter(None, [agreement(cell, percent(seeds))]))
    scores = {text: boundary_scores(seeds, threshold) for threshold, text in cell.thresholds.items()}
    return [reaches_f1(found, text) for text, found in scores.items() if found is not None]


# -- a table ------------------------------------------------------------------------------------------------------


def _shown(table: Table, found: Found, results: Path, quick: bool, heading: str) -> Iterator[str]:
    """As the table is to be shown."""
    return _sections(table, found, heading) if table.view is None else table.view(table, results, quick)


def _sections(table: Table, found: Found, heading: str) -> Iterator[str]:
    """For each benchmark what was found, then how it was."""
    for benchmark in dict.fromkeys(cell.benchmark for cell in table.cells):
        cells = [cell for cell in table.cells if cell.benchmark == benchmark]
        yield f"{heading} {TITLES.get(benchmark, benchmark)}"
        hidden = any(cell.thresholds for cell in cells)
        yield _boundary_table(cells, found) if hidden else _accuracy_table(cells, found)
        if pairs := _pairs(cells, found):
            yield pairs
        reasons_told = list(_reasons(table.name, cells, found))
        if reasons_told:
            yield "\n".join(reasons_told)
        ways = [line for cell in cells if cell.name in found for line in how_measured(cell, found[cell.name])]
        if ways:
            yield "\n".join(ways)


OPTIMISED, RANDOM = "-frcl-trace-", "-frcl-random-"


def _pairs(cells: Sequence[Cell], found: Found) -> str:
    """What optimised points are worth beside random ones, seed by seed; nothing where one of the two is missing."""
    told = []
    for cell in cells:
        other = cell.name.replace(OPTIMISED, RANDOM)
        if OPTIMISED in cell.name and cell.name in found and other in found:
            gain = paired(found[cell.name]["seeds"], found[other]["seeds"])
            told += [] if gain is None else [f"{cell.row.partition(', ')[2]} {gain.show()}"]
    if not told:
        return ""
    return f"FRCL (trace) minus FRCL (random), mean over the same seeds ± its standard error: {'; '.join(told)}."


def _reasons(table: str, cells: Sequence[Cell], found: Found) -> Iterator[str]:
    """Why each row that does not agree with the paper differs from it; the table of all methods is not the paper's."""
    known = reasons().get(table)
    if known is None:
        return
    for cell in cells:
        if cell.name in found and any(verdict != "yes" for verdict in _verdicts(cell, found)):
            yield f"- Why {cell.row} differs: {known.get(cell.name, NOT_KNOWN)}"


def _accuracy_table(cells: Sequence[Cell], found: Found) -> str:
    return grid(COLUMNS, [_accuracy_row(cell, found.get(cell.name)) for cell in cells])


def _accuracy_row(cell: Cell, one: Document | None) -> list[str]:
    if one is None:
        return [cell.row, _paper(cell), NOT, *[""] * (len(COLUMNS) - 3)]
    learned = [in_percent(one, metric) for metric in ("accuracy_after_learning", "forgetting")]
    calibrated = [plain_mean(one, metric) for metric in ("nll", "ece")]
    verdict = agreement(cell, percent(one["seeds"]))
    first = [cell.row, _paper(cell), in_percent(one), seeds_of(cell, one), verdict]
    return [*first, *learned, *calibrated, f"{bytes_of(one):,}"]


def _paper(cell: Cell) -> str:
    if cell.paper is None:
        return ""
    about = "; ".join(filter(None, ("quoted" * cell.paper.quoted, cell.paper.remark)))
    return cell.paper.value + (f" ({about})" if about else "")


def _boundary_table(cells: Sequence[Cell], found: Found) -> str:
    """A row for each threshold; the paper's values beside ours of the cell that has them, then the other cells."""
    thresholds = next(cell.thresholds for cell in cells if cell.thresholds)
    headings = ["threshold", "paper"]
    for cell in cells:
        seeds = f" (seeds: {seeds_of(cell, found[cell.name])})" if cell.name in found else ""
        headings += [f"ours, {cell.row}{seeds}", *(["F1 agrees"] if cell.thresholds else [])]
    rows = []
    for threshold, text in thresholds.items():
        row = [f"{threshold:g}", text]
        for cell in cells:
            one = found.get(cell.name)
            scores = None if one is None else boundary_scores(one["seeds"], threshold)
            row.append(NOT if scores is None else "/".join(value.show().split(" ")[0] for value in scores.values()))
            if cell.thresholds:
                row.append("" if scores is None else reaches_f1(scores, text))
        rows.append(row)
    return grid(headings, rows)


# -- figures --------------------------------------------------------------------------------------------------------


def _figure(figure: FigureOf, results: Path, quick: bool) -> Iterator[str]:
    """The picture with its words, where its numbers are, and how they were measured."""
    record = read_record(results, figure.name, quick=quick)
    yield f"### {figure.title if record is None else record.title}"
    if record is None:
        yield f"{NOT_MADE}: `frcl reproduce {figure.name}{' --quick' * quick}`"
        return
    png, svg, numbers = (
        path_of_figure(results, figure.name, kind).relative_to(results.parent).as_posix()
        for kind in ("png", "svg", "csv")
    )
    yield f"![{record.title}]({png})"
    yield record.caption
    yield f"- [numbers]({numbers}), [SVG]({svg})\n- {_how_figure(figure, record, quick)}"
    if figure.table is not None:
        yield figure.table.note
        there = documents_of(figure.table, results, quick=quick)
        yield from _shown(figure.table, there, results, quick, "####")


def _how_figure(figure: FigureOf, record: Record, quick: bool) -> str:
    if record.measured is None:
        return f"`frcl reproduce {figure.name}{' --quick' * quick}`"
    return f"`{record.measured['command']}`: {told(where_measured(record.measured), record.measured['seconds'])}"


# -- the end ------------------------------------------------------------------------------------------------------


def choices() -> list[dict[str, str]]:
    """Where the paper leaves something open: what it says, what is done here, why, and how to do otherwise."""
    text = resources.files("paper").joinpath("choices.toml").read_text(encoding="utf-8")
    found: list[dict[str, str]] = tomllib.loads(text)["choice"]
    return found


def reasons() -> dict[str, dict[str, str]]:
    """Why cells differ from the paper, by table and name."""
    text = resources.files("paper").joinpath("reasons.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def _silent() -> Iterator[str]:
    for one in choices():
        yield f"### {one['about']}"
        parts = (("The paper", "paper"), ("Here", "here"), ("Why", "why"))
        lines = [f"- {heading}: {one[name]}" for heading, name in parts]
        yield "\n".join([*lines, f"- Otherwise: `{one['otherwise']}`"])
