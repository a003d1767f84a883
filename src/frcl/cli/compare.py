"""`frcl compare`: finished runs side by side, in tables that fit a terminal."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument

from frcl.cli.console import say, show_table
from frcl.cli.options import Json
from frcl.report import Run, comparison_rows, find_runs
from frcl.report.tables import COLUMNS, Table, paired_table, results_table

INFERRED = ("Task inferred %", "No task NLL", "No task ECE %")
PARTS = (("Accuracy %", "Forgetting pp", "No task %"), INFERRED, ("NLL nats", "ECE %", "Kept", "Time"))  # 80 columns

Paths = Annotated[list[Path], Argument(help="Run folders, or folders that contain some.")]


def compare(paths: Paths, as_json: Json = False) -> None:
    """Put runs side by side: accuracy, forgetting, calibration, memory, time, and paired differences of all pairs."""
    runs = find_runs(paths)
    if as_json:
        return typer.echo(json.dumps(asdict(comparison_rows(runs)), indent=1))
    return show_comparison(runs)


def show_comparison(runs: Sequence[Run]) -> None:
    """Tables of the runs of each benchmark, and one of the differences of all pairs."""
    found = comparison_rows(runs)
    for benchmark in dict.fromkeys(row.benchmark for row in found.rows):
        rows = [row for row in found.rows if row.benchmark == benchmark]
        table = results_table(rows).without("Benchmark")
        say(f"{benchmark}: mean ± standard deviation over seeds")
        for part in PARTS:
            if part is not INFERRED or any(row.metrics["agnostic_accuracy"] is not None for row in rows):
                _show(table.without(*(column for column in COLUMNS if column not in part)))
    if found.pairs:
        table = paired_table(found.pairs)
        say(table.caption)
        single = len({pair.benchmark for pair in found.pairs}) == 1
        _show(table.without("First keeps", "Second keeps", *(["Benchmark"] * single)))


def _show(table: Table) -> None:
    rows = [
        [cell.replace("not available", "–").replace("\N{NO-BREAK SPACE}", " ") for cell in row] for row in table.rows
    ]
    show_table(rows, *table.columns, right=True)
