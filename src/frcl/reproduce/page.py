"""REPRODUCTION.md from the result files: every number in it comes from one of them, or is the paper's."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from frcl.experiment.config import resolve
from frcl.files import write_atomically
from frcl.reproduce.cells import Cell, Table
from frcl.reproduce.figures.base import FigureOf, Record, path_of_figure, read_record
from frcl.reproduce.measure import in_words
from frcl.reproduce.numbers import agreement, boundary_scores, ours, percent, reaches_f1
from frcl.reproduce.store import Document, differences, path_of, read_document

TITLES = {"permuted-mnist": "Permuted-MNIST", "split-mnist": "Split-MNIST", "omniglot": "Omniglot"}
NOT, NOT_MADE, NOT_KNOWN = "not measured", "not made yet", "not known"
NOT_AVAILABLE = "n/a"
COLUMNS = (
    "", "paper %", "ours %", "seeds", "agrees", "just after learning %", "forgetting %", "NLL", "ECE", "bytes kept",
)  # fmt: skip
INTRODUCTION = """\
The paper's tables and [figures](#figures), measured. `frcl reproduce page` writes this page from the files under
`results/`, and a test compares the two; `frcl reproduce table1` and so on measure what is missing
([how](docs/reproduction.md)).

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
    found = {table.name: _read(table, results, quick) for table in tables}
    parts = [title, *([QUICK] if quick else []), INTRODUCTION, _overview(tables, found)]
    for table in tables:
        parts += [f"## {table.title}{' (QUICK)' * quick}", table.note, *_sections(table, found[table.name])]
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


Found = dict[str, Document]  # by the name of the cell


def _read(table: Table, results: Path, quick: bool) -> Found:
    documents = {cell.name: read_document(path_of(results, table.name, cell.name), quick=quick) for cell in table.cells}
    return {name: one for name, one in documents.items() if one is not None}


def _overview(tables: Sequence[Table], found: dict[str, Found]) -> str:
    """How much of each table there is, and how much of that agrees."""
    lines = _head(("table", "rows measured", "all seeds", "beside a value of the paper", "of those agree"))
    for table in tables:
        there = found[table.name]
        whole = sum(len(there[cell.name]["seeds"]) >= len(cell.seeds) for cell in table.cells if cell.name in there)
        verdicts = [verdict for cell in table.cells if cell.name in there for verdict in _verdicts(cell, there)]
        cells = (
            f"[{table.title.split(':')[0]}](#{_anchor(table.title)})",
            f"{len(there)} of {len(table.cells)}",
            str(whole),
            str(len(verdicts)),
            str(verdicts.count("yes")),
        )
        lines.append(_line(cells))
    return "\n".join(lines)


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


def _sections(table: Table, found: Found, heading: str = "###") -> Iterator[str]:
    """For each benchmark what was found, then how it was."""
    for benchmark in dict.fromkeys(cell.benchmark for cell in table.cells):
        cells = [cell for cell in table.cells if cell.benchmark == benchmark]
        yield f"{heading} {TITLES.get(benchmark, benchmark)}"
        hidden = any(cell.thresholds for cell in cells)
        yield "\n".join(_boundary_table(cells, found) if hidden else _accuracy_table(cells, found))
        told = list(_reasons(table.name, cells, found))
        if told:
            yield "\n".join(told)
        told = [line for cell in cells if cell.name in found for line in _how(cell, found[cell.name])]
        if told:
            yield "\n".join(told)


def _reasons(table: str, cells: Sequence[Cell], found: Found) -> Iterator[str]:
    """Why each row that does not agree with the paper differs from it; the table of all methods is not the paper's."""
    known = reasons().get(table)
    if known is None:
        return
    for cell in cells:
        if cell.name in found and any(verdict != "yes" for verdict in _verdicts(cell, found)):
            yield f"- Why {cell.row} differs: {known.get(cell.name, NOT_KNOWN)}"


def _accuracy_table(cells: Sequence[Cell], found: Found) -> list[str]:
    return [*_head(COLUMNS), *(_accuracy_row(cell, found.get(cell.name)) for cell in cells)]


def _accuracy_row(cell: Cell, one: Document | None) -> str:
    if one is None:
        return _line((cell.row, _paper(cell), NOT, *[""] * (len(COLUMNS) - 3)))
    seeds = one["seeds"]
    accuracy = percent(seeds)
    numbers = [percent(seeds), percent(seeds, "accuracy_after_learning"), percent(seeds, "forgetting")]
    shown = [NOT_AVAILABLE if value is None else value.show() for value in numbers]
    calibrated = [ours(seeds, name) for name in ("nll", "ece")]
    tail = [NOT_AVAILABLE if value is None else f"{value.mean:.3f}" for value in calibrated]
    kept = f"{one['batches'][0]['memory_bytes']['total']:,}"
    return _line(
        (cell.row, _paper(cell), shown[0], _count(cell, one), agreement(cell, accuracy), *shown[1:], *tail, kept)
    )


def _paper(cell: Cell) -> str:
    if cell.paper is None:
        return ""
    about = "; ".join(filter(None, ("quoted" * cell.paper.quoted, cell.paper.remark)))
    return cell.paper.value + (f" ({about})" if about else "")


def _count(cell: Cell, one: Document) -> str:
    there, wanted = len(one["seeds"]), len(cell.seeds)
    return str(there) if there >= wanted else f"{there} of {wanted}"


def _boundary_table(cells: Sequence[Cell], found: Found) -> list[str]:
    """A row for each threshold; the paper's values beside ours of the cell that has them, then the other cells."""
    thresholds = next(cell.thresholds for cell in cells if cell.thresholds)
    headings = ["threshold", "paper"]
    for cell in cells:
        seeds = f" (seeds: {_count(cell, found[cell.name])})" if cell.name in found else ""
        headings += [f"ours, {cell.row}{seeds}", *(["F1 agrees"] if cell.thresholds else [])]
    lines = _head(headings)
    for threshold, text in thresholds.items():
        row = [f"{threshold:g}", text]
        for cell in cells:
            one = found.get(cell.name)
            scores = None if one is None else boundary_scores(one["seeds"], threshold)
            row.append(NOT if scores is None else "/".join(value.show().split(" ")[0] for value in scores.values()))
            if cell.thresholds:
                row.append("" if scores is None else reaches_f1(scores, text))
        lines.append(_line(row))
    return lines


def _how(cell: Cell, one: Document) -> Iterator[str]:
    """Commands, devices, commits and seconds; batches that differ in nothing but the seeds are one line."""
    alike: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for batch in one["batches"]:
        alike.setdefault((batch["command"], *_where(batch)), []).append(batch)
    for (command, *where), batches in alike.items():
        seconds = sum(batch["seconds"]["total"] for batch in batches)
        seeds = sorted(seed for batch in batches for seed in batch["seeds"])
        word = "seed" if len(seeds) == 1 else "seeds"
        yield f"- `{command}`: {word} {in_words(seeds)}, {_told(where, seconds)}"
    for other in differences(one, resolve(cell.benchmark, *cell.layers)):
        yield f"  - measured with another option than the cell has: `{other}`"


def _where(measured: dict[str, Any]) -> tuple[str, ...]:
    """Device, version of torch, commit and day of a measurement."""
    place = measured["environment"]
    return place["device"], place["torch"], place["commit"] or "unknown", measured["started"][:10]


def _told(where: Sequence[str], seconds: float) -> str:
    device, torch, commit, day = where
    return f"{device}, torch {torch}, {seconds:.0f} s, commit {commit}, {day}"


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
        yield from _sections(figure.table, _read(figure.table, results, quick), "####")


def _how_figure(figure: FigureOf, record: Record, quick: bool) -> str:
    if record.measured is None:
        return f"`frcl reproduce {figure.name}{' --quick' * quick}`"
    return f"`{record.measured['command']}`: {_told(_where(record.measured), record.measured['seconds'])}"


# -- the end ------------------------------------------------------------------------------------------------------


def choices() -> list[dict[str, str]]:
    """Where the paper leaves something open: what it says, what is done here, why, and how to do otherwise."""
    text = resources.files("frcl.reproduce").joinpath("choices.toml").read_text(encoding="utf-8")
    found: list[dict[str, str]] = tomllib.loads(text)["choice"]
    return found


def reasons() -> dict[str, dict[str, str]]:
    """Why cells differ from the paper, by table and name."""
    text = resources.files("frcl.reproduce").joinpath("reasons.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def _silent() -> Iterator[str]:
    for one in choices():
        yield f"### {one['about']}"
        parts = (("The paper", "paper"), ("Here", "here"), ("Why", "why"))
        lines = [f"- {heading}: {one[name]}" for heading, name in parts]
        yield "\n".join([*lines, f"- Otherwise: `{one['otherwise']}`"])


def _head(headings: Sequence[str]) -> list[str]:
    return [_line(headings), "|---" * len(headings) + "|"]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
