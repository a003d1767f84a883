"""Output of the command line: one console for results, one for errors and progress."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from rich.console import Console
from rich.table import Table

out, err = Console(), Console(stderr=True)
say = partial(out.print, highlight=False, markup=False, soft_wrap=True)


def show_table(rows: Iterable[Iterable[object]], *headings: str, **style: Any) -> None:
    """Print rows of cells under headings."""
    table = Table(*headings, **style)
    for row in rows:
        table.add_row(*map(str, row))
    out.print(table)
