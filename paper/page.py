"""REPRODUCTION.md, written from the result files."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

from paper.cells import Cell, Table
from paper.figures.base import FigureSpec, Record, path_of_figure, read_record
from paper.library import write_atomically
from paper.markdown import (
    EARLIER,
    EARLIER_MEANS,
    NOT,
    TITLES,
    Found,
    bytes_of,
    documents_of,
    grid,
    in_percent,
    marked,
    measured_in_words,
    plain_mean,
    seeds_of,
    ways_of,
    where_measured,
)
from paper.measure import COMMAND
from paper.numbers import agreement, agrees_f1, boundary_scores, paired, percent, printed
from paper.reasons import NOT_KNOWN, read_reasons
from paper.store import Document, differences

NOT_MADE = "not made yet"
COLUMNS = (
    "", "paper %", "ours %", "seeds", "agrees", "just after learning %", "forgetting %", "NLL", "ECE", "bytes kept",
)  # fmt: skip
INTRODUCTION = """\
The tables and [figures](#figures) of the paper, measured. `python -m paper page` writes this page from the files in
`paper/results/`, and a test compares the two; `python -m paper table1` etc. measure missing results
([how](docs/reproduction.md)). Not in the paper are [FRCL+](#frcl-against-the-published-numbers), compared with the best
published numbers, and its [ablation](#ablation-what-each-regulariser-does).

Networks, learning rates, batch sizes and steps are those of the paper's Appendices F and G. Regularisation strengths of
the methods other than FRCL were chosen on validation data by `frcl tune`; they are in
`src/frcl/experiment/defaults.toml`. All methods have one head per task and are given the task. Details that the paper
does not specify are [listed at the end](#where-the-paper-is-silent), with our choices, and so are the points where it
is [explicit and we differ](#where-we-differ-from-the-paper).

"Ours" is the mean over seeds ± the standard deviation. A row agrees if our mean is within two standard deviations of
the paper's, above or below: the paper's standard deviation if it has one, else ours; an F1 of Table 3 if it is within
two standard errors of our mean. A row that does not agree has a reason below its table, whether it is worse or better.
"Quoted" marks values that the paper took from other papers, with other code and other settings. "n/a" marks a number
that does not exist for a method. Seconds were measured on machines that may have had other work at the time."""
QUICK = f"""\
**QUICK: made by `{COMMAND} --quick`. Two tasks, a dozen steps, small networks: a check that everything runs. The
numbers mean nothing.**"""
EARLIER_NOTE = (
    f"{EARLIER_MEANS}, which `{COMMAND}` would use now: the options that differ are listed below the table. Such a "
    "number, and what is said of its agreement with the paper, is about the earlier options."
)
FIGURES_NOTE = "Each figure is drawn from the numbers in its CSV file."


def page(
    tables: Sequence[Table],
    results: Path,
    figures: Sequence[FigureSpec] = (),
    folder: Path | None = None,
    *,
    quick: bool = False,
) -> str:
    """The text of REPRODUCTION.md in `folder`, by default the parent of `results`."""
    title = "# Reproduction" + " (QUICK)" * quick
    found = {table.name: documents_of(table, results, quick=quick) for table in tables}
    parts = [title, *([QUICK] if quick else []), INTRODUCTION, _overview(tables, found)]
    for table in tables:
        shown = _shown(table, found[table.name], results, quick, "###")
        parts += [f"## {table.title}{' (QUICK)' * quick}", table.note, *shown]
    if figures:
        parts += [f"## Figures{' (QUICK)' * quick}", FIGURES_NOTE]
        parts += [part for figure in figures for part in _figure(figure, results, folder or results.parent, quick)]
    parts += ["## Where we differ from the paper", *_choices(explicit=True)]
    text = "\n\n".join([*parts, "## Where the paper is silent", *_choices(explicit=False)]) + "\n"
    return text.replace(INTRODUCTION, f"{INTRODUCTION}\n\n{EARLIER_NOTE}") if EARLIER in text else text


def write_page(
    tables: Sequence[Table], results: Path, figures: Sequence[FigureSpec], folder: Path, *, quick: bool = False
) -> Path:
    """Write REPRODUCTION.md into a folder."""
    path = folder / "REPRODUCTION.md"
    text = page(tables, results, figures, folder, quick=quick)
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(path, text.encode())
    return path


def _overview(tables: Sequence[Table], found: dict[str, Found]) -> str:
    """The number of measured rows of each table, and of values that agree with the paper."""
    rows = []
    for table in tables:
        measured = found[table.name]
        cells = [cell for cell in table.cells if cell.name in measured]
        whole = sum(len(measured[cell.name]["seeds"]) >= len(cell.seeds) for cell in cells)
        verdicts = [verdict for cell in cells for verdict in _verdicts(cell, measured)]
        title = f"[{table.title.split(':')[0]}](#{_anchor(table.title)})"
        agree = ("", "") if table.view else (str(len(verdicts)), str(verdicts.count("yes")))
        rows.append((title, f"{len(cells)} of {len(table.cells)}", str(whole), *agree))
    return grid(("table", "rows measured", "with all seeds", "values also in the paper", "of which agree"), rows)


def _anchor(title: str) -> str:
    """The anchor of a heading on GitHub."""
    kept = "".join(letter for letter in title.lower() if letter.isalnum() or letter in " -")
    return kept.replace(" ", "-")


def _verdicts(cell: Cell, measured: Found) -> list[str]:
    """Whether a cell agrees with the paper: one verdict for the accuracy, or one per threshold that the paper has."""
    seeds = measured[cell.name]["seeds"]
    if not cell.thresholds:
        return list(filter(None, [agreement(cell, percent(seeds))]))
    scores = [(text, boundary_scores(seeds, threshold)) for threshold, text in cell.thresholds.items()]
    return [agrees_f1(found, text, len(seeds)) for text, found in scores if found is not None]


# -- a table ------------------------------------------------------------------------------------------------------


def _shown(table: Table, found: Found, results: Path, quick: bool, heading: str) -> Iterator[str]:
    """The section of a table."""
    return _sections(table, found, heading) if table.view is None else table.view(table, results, quick)


def _sections(table: Table, found: Found, heading: str) -> Iterator[str]:
    """For each benchmark the results, then how they were measured."""
    for benchmark in dict.fromkeys(cell.benchmark for cell in table.cells):
        cells = [cell for cell in table.cells if cell.benchmark == benchmark]
        yield f"{heading} {TITLES.get(benchmark, benchmark)}"
        hidden = any(cell.thresholds for cell in cells)
        yield _boundary_table(cells, found) if hidden else _accuracy_table(cells, found)
        if pairs := _pairs(cells, found):
            yield pairs
        if ranks := _ranks(cells, found):
            yield ranks
        if reasons := list(_reasons(table.name, cells, found)):
            yield "\n".join(reasons)
        yield from ways_of(cells, found)


OPTIMISED, RANDOM = "-frcl-trace-", "-frcl-random-"


def _pairs(cells: Sequence[Cell], found: Found) -> str:
    """The paired difference of optimised and random points; empty if one of the two is missing."""
    parts = []
    for cell in cells:
        other = cell.name.replace(OPTIMISED, RANDOM)
        if OPTIMISED in cell.name and cell.name in found and other in found:
            gain = paired(found[cell.name]["seeds"], found[other]["seeds"])
            parts += [] if gain is None else [f"{cell.row.partition(', ')[2]} {gain.show()}"]
    if not parts:
        return ""
    return f"FRCL (trace) minus FRCL (random), mean over the common seeds ± its standard error: {'; '.join(parts)}."


def _ranks(cells: Sequence[Cell], found: Found) -> str:
    """Where the paper has FRCL (trace) above another row and we have it below, in words; empty if nowhere."""
    wrong, above = [], []
    for cell in (one for one in cells if OPTIMISED in one.name and one.name in found and one.paper):
        own, points = percent(found[cell.name]["seeds"]), cell.row.partition(", ")[2]
        for other in (one for one in cells if one.name in found and "frcl" not in one.name):
            theirs, same = percent(found[other.name]["seeds"]), other.row.partition(", ")[2] in ("", points)
            if own is None or theirs is None or not same or theirs.mean <= own.mean:
                continue
            pair = f"{other.row} ({theirs.mean:.1f}) above {cell.row} ({own.mean:.1f})"
            if other.paper is None:
                above.append(pair)
            elif cell.paper and printed(other.paper.value).mean < printed(cell.paper.value).mean:
                wrong.append(pair)
    text = f"The paper's own ranking does not hold here: {'; '.join(wrong)}." if wrong else ""
    return " ".join(filter(None, (text, f"Not in the paper: {'; '.join(above)}." if above else "")))


def _reasons(table: str, cells: Sequence[Cell], found: Found) -> Iterator[str]:
    """Why each row that does not agree with the paper differs from it, for the tables of the paper."""
    known = read_reasons().get(table)
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
    first = [cell.row, _paper(cell), marked(cell, one), seeds_of(cell, one), verdict]
    return [*first, *learned, *calibrated, f"{bytes_of(one):,}"]


def _paper(cell: Cell) -> str:
    if cell.paper is None:
        return ""
    about = "; ".join(filter(None, ("quoted" * cell.paper.quoted, cell.paper.remark)))
    return cell.paper.value + (f" ({about})" if about else "")


def _boundary_table(cells: Sequence[Cell], found: Found) -> str:
    """One row per threshold: the paper's value, then ours of each cell; at the end what the learners have learned."""
    thresholds = next(cell.thresholds for cell in cells if cell.thresholds)
    headings = ["threshold", "paper"]
    for cell in cells:
        one = found.get(cell.name)
        seeds = (
            "" if one is None else f" (seeds: {seeds_of(cell, one)}){EARLIER * bool(differences(one, cell.config()))}"
        )
        headings += [f"ours, {cell.row}{seeds}", *(["F1 agrees"] if cell.thresholds else [])]
    rows = []
    for threshold, text in thresholds.items():
        row = [f"{threshold:g}", text]
        for cell in cells:
            one = found.get(cell.name)
            scores = None if one is None else boundary_scores(one["seeds"], threshold)
            row.append(NOT if scores is None else "/".join(value.show().split(" ")[0] for value in scores.values()))
            if cell.thresholds:
                row.append("" if one is None or scores is None else agrees_f1(scores, text, len(one["seeds"])))
        rows.append(row)
    rows.append(["accuracy of the learner %", ""])
    for cell in cells:
        rows[-1] += [in_percent(found.get(cell.name)), *([""] if cell.thresholds else [])]
    return grid(headings, rows)


# -- figures --------------------------------------------------------------------------------------------------------


def _figure(figure: FigureSpec, results: Path, folder: Path, quick: bool) -> Iterator[str]:
    """The picture with its caption, links to its numbers, and how they were measured."""
    record = read_record(results, figure.name, quick=quick)
    yield f"### {figure.title if record is None else record.title}"
    if record is None:
        yield f"{NOT_MADE}: `{COMMAND} {figure.name}{' --quick' * quick}`"
        return
    png, svg, numbers = (
        Path(os.path.relpath(path_of_figure(results, figure.name, kind), folder)).as_posix()
        for kind in ("png", "svg", "csv")
    )
    yield f"![{record.title}]({png})"
    yield record.caption
    yield f"- [numbers]({numbers}), [SVG]({svg})\n- {_how_figure(figure, record, quick)}"
    if figure.table is not None:
        yield figure.table.note
        yield from _shown(figure.table, documents_of(figure.table, results, quick=quick), results, quick, "####")


def _how_figure(figure: FigureSpec, record: Record, quick: bool) -> str:
    measured = record.measured
    if measured is None:
        return f"`{COMMAND} {figure.name}{' --quick' * quick}`"
    return f"`{measured['command']}`: {measured_in_words(where_measured(measured), measured['seconds'])}"


# -- texts --------------------------------------------------------------------------------------------------------


HERE = Path(__file__).parent


def read_choices() -> list[dict[str, str]]:
    """Details in which we chose: the paper's text, our choice, the reason, and the command for another choice.

    Those with `explicit` are specified by the paper, in another way.
    """
    found: list[dict[str, str]] = tomllib.loads((HERE / "choices.toml").read_text(encoding="utf-8"))["choice"]
    return found


def _choices(*, explicit: bool) -> Iterator[str]:
    for one in (one for one in read_choices() if ("explicit" in one) == explicit):
        yield f"### {one['about']}"
        parts = (("The paper", "paper"), ("Here", "here"), ("Why", "why"))
        lines = [f"- {heading}: {one[name]}" for heading, name in parts]
        yield "\n".join([*lines, f"- Otherwise: `{one['otherwise']}`"])
