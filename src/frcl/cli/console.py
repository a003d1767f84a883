"""Output of the command line: one console for results, one for errors and progress."""

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from frcl.distributed import is_follower
from frcl.experiment.display import accuracy_table, in_words
from frcl.experiment.results import Result

out, err = Console(), Console(stderr=True)
WIDEST = 10_000  # columns of a table in a pipe


def say(text: str) -> None:
    """Print one or more lines as they are."""
    out.print(safe(text), highlight=False, markup=False, soft_wrap=True)


def note(text: str) -> None:
    """Print a remark beside the results."""
    if not is_follower():
        err.print(safe(f"note: {text}"), highlight=False, markup=False, soft_wrap=True)


def safe(text: object) -> str:
    """Text for a terminal: names from files may hold escape sequences, or what no encoding has."""
    return re.sub(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\ud800-\udfff]", "?", str(text))


def show_table(rows: Iterable[Iterable[object]], *headings: str, right: bool = False, **style: Any) -> None:
    """Print rows of cells under headings; with `right` all columns but the first are numbers.

    The first cell of a row is its name: it is folded and never cut, so that names that begin alike can be told apart.
    In a pipe there are no frames, and lines are as long as they need to be.
    """
    table = Table(*headings, **style) if out.is_terminal else Table(*headings, **style, box=None, pad_edge=False)
    for column in table.columns[1:] if right else ():
        column.justify, column.no_wrap = "right", True
    for column in table.columns[:1]:
        column.overflow = "fold"
    for row in rows:
        table.add_row(*(escape(safe(cell)) for cell in row))
    width = None if out.is_terminal else max(out.width, Console(width=WIDEST).measure(table).maximum)
    (out if width is None else Console(width=width)).print(table)


@contextmanager
def bar(what: str, total: int | None = None, *, quiet: bool = False) -> Iterator[Callable[..., None]]:
    """A progress bar on a terminal, and the function that counts one more; it may name what comes next."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True, disable=quiet or not err.is_terminal) as bars:
        task = bars.add_task(what, total=total)
        yield lambda what=what: bars.update(task, description=what, advance=1)


def say_result(result: Result, page: Path) -> None:
    """Print the accuracies and the other metrics of a run, and the path of its report."""
    out.print(accuracy_table(result))
    scale, unit, name = 100.0, " %", "average accuracy"
    if result.score == "r2":
        scale, unit, name = 1.0, "", "average share of variance explained (R²)"
    lines = [f"{name} {in_words(result.average_accuracy, scale, unit)}"]
    if result.agnostic_accuracy is not None:
        inferred = f", task inferred {in_words(result.task_accuracy, 100.0, ' %')}" if result.task_accuracy else ""
        lines.append(f"{name} without the task {in_words(result.agnostic_accuracy, scale, unit)}{inferred}")
    scores = [f"NLL {in_words(result.nll, digits=3)}, ECE {in_words(result.ece, digits=3)}"]
    if result.agnostic_nll is not None or result.agnostic_ece is not None:
        without = (in_words(metric, digits=3) for metric in (result.agnostic_nll, result.agnostic_ece))
        scores.append("without the task NLL {}, ECE {}".format(*without))
    turn = -1 if result.names_no_task else 1
    for line in [*lines[::turn], f"forgetting {in_words(result.forgetting, scale, unit)}", *scores[::turn]]:
        say(line)
    say(f"report: {page}")
