"""Markdown for measured cells: numbers, how they were measured, tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from paper.cells import Cell, Table
from paper.measure import in_words
from paper.numbers import ours, percent
from paper.store import Document, differences, path_of, read_document

TITLES = {"permuted-mnist": "Permuted-MNIST", "split-mnist": "Split-MNIST", "omniglot": "Omniglot"}
NOT, NOT_AVAILABLE = "not measured", "n/a"

Found = dict[str, Document]  # result files by the name of the cell


def documents_of(table: Table, results: Path, *, quick: bool) -> Found:
    """The result files of a table that exist."""
    documents = {cell.name: read_document(path_of(results, table.name, cell.name), quick=quick) for cell in table.cells}
    return {name: one for name, one in documents.items() if one is not None}


def grid(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    first, *rest = (f"| {' | '.join(cells)} |" for cells in (headings, *rows))
    return "\n".join([first, "|---" * len(headings) + "|", *rest])


# -- a cell -------------------------------------------------------------------------------------------------------


def in_percent(one: Document | None, metric: str = "average_accuracy", digits: int = 2) -> str:
    """Mean ± standard deviation over seeds."""
    if one is None:
        return NOT
    value = percent(one["seeds"], metric)
    return NOT_AVAILABLE if value is None else value.show(digits)


EARLIER = " †"
EARLIER_MEANS = "† Measured with earlier options than the current ones"


def marked(cell: Cell, one: Document | None, digits: int = 2, metric: str = "average_accuracy") -> str:
    """The accuracy of a cell, with a dagger if it was measured with other options than its current ones."""
    others = one is not None and differences(one, cell.config())
    return in_percent(one, metric, digits) + EARLIER * bool(others)


def plain_mean(one: Document | None, metric: str) -> str:
    """Mean over seeds of a metric that is not in per cent."""
    if one is None:
        return NOT
    value = ours(one["seeds"], metric)
    return NOT_AVAILABLE if value is None else f"{value.mean:.3f}"


def bytes_of(one: Document) -> int:
    """Bytes that a learner keeps after the last task, for the first seed; without the sums that infer the task.

    Tables in which the task is named do without those.
    """
    return int(one["batches"][0]["memory_bytes"]["total"]) - bytes_by_kind(one).get("sums", 0)


def bytes_by_kind(one: Document) -> dict[str, int]:
    """The same by kind; empty for an old result file without kinds."""
    parts: dict[str, int] = one["batches"][0]["memory_bytes"].get("parts", {})
    return parts


def seeds_of(cell: Cell, one: Document) -> str:
    """The number of measured seeds, "3 of 5" if some are missing."""
    measured, wanted = len(one["seeds"]), len(cell.seeds)
    return str(measured) if measured >= wanted else f"{measured} of {wanted}"


def how_measured(cell: Cell, one: Document) -> Iterator[str]:
    """Commands, devices, commits and seconds; batches that differ only in their seeds share a line."""
    alike: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for batch in one["batches"]:
        alike.setdefault((batch["command"], *where_measured(batch)), []).append(batch)
    for (command, *where), batches in alike.items():
        seconds = sum(batch["seconds"]["total"] for batch in batches)
        seeds = sorted(seed for batch in batches for seed in batch["seeds"])
        word = "seed" if len(seeds) == 1 else "seeds"
        yield f"- `{command}`: {word} {in_words(seeds)}, {measured_in_words(where, seconds)}"
    for other in differences(one, cell.config()):
        yield f"  - measured with another option than the current one: `{other}`"


def ways_of(cells: Iterable[Cell], found: Found, more: Sequence[str] = ()) -> Iterator[str]:
    """The list of how cells were measured, with `more` lines at its end; nothing if it is empty."""
    lines = [line for cell in cells if cell.name in found for line in how_measured(cell, found[cell.name])]
    if lines or more:
        yield "\n".join([*lines, *more])


def where_measured(measured: dict[str, Any]) -> tuple[str, ...]:
    """Device, version of torch, commit and day of a measurement."""
    environment = measured["environment"]
    return environment["device"], environment["torch"], environment["commit"] or "unknown", measured["started"][:10]


def measured_in_words(where: Sequence[str], seconds: float) -> str:
    """Where something was measured, and how long it took."""
    device, torch, commit, day = where
    return f"{device}, torch {torch}, {seconds:.0f} s, commit {commit}, {day}"
