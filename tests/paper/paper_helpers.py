"""A small table of digits and helpers to measure it."""

import json
import sys

import pytest

from frcl.experiment.keeper import Observer
from paper.cells import Cell, Paper, Table
from paper.cli import main as paper_main
from paper.measure import Place, Session, Wanted, measure, state_of

SMALL = {"stream": {"tasks": 2}, "network": {"widths": [6]}, "run": {"checkpoint_seconds": 0.0}}
FRCL = {"method": "frcl", "learner": {"steps": 6, "points": 3, "search_steps": 4, "batch_size": 10}}
PLAIN = {"method": "finetune", "learner": {"steps": 6, "batch_size": 10}}
STREAM = {"method": "frcl", "hidden_boundaries": True, "learner": {**FRCL["learner"], "steps": 30}}
TABLE = Table(
    "table1",
    "Table 1: digits",
    "For tests.",
    (
        Cell("split-digits-frcl-3", "split-digits", "FRCL", (FRCL, SMALL), (0, 1, 2), Paper("50.0 ± 40.0")),
        Cell("split-digits-finetune", "split-digits", "Fine", (PLAIN, SMALL), (0, 1), Paper("3", quoted=True)),
    ),
)
HIDDEN = Table(
    "table3",
    "Table 3: digits",
    "For tests.",
    (
        Cell(
            "split-digits-window-1", "split-digits", "window of 1", (STREAM, SMALL), (0, 1), None, {4.0: "0.5/1.0/0.67"}
        ),
    ),
)
FIRST = TABLE.cells[0]


class Watch(Observer):
    """Records the seeds of each run; may interrupt one at a step."""

    def __init__(self, stop_at: int | None = None) -> None:
        self.runs: list[list[int]] = []
        self._stop_at, self._steps = stop_at, 0

    def begin(self, config, names):
        self.runs.append(list(config.seeds))

    def step(self, seed, task, log):
        self._steps += 1
        if self._steps == self._stop_at:
            raise KeyboardInterrupt


def session(place: Place, watch: Watch | None = None, *, again: bool = False, may_start=lambda: True) -> Session:
    one = watch or Watch()
    return Session(place, lambda: one, lambda line: None, may_start, again=again)


def measured(
    place: Place,
    cell: Cell = FIRST,
    count: int | None = None,
    table: str = "table1",
    only: tuple[int, ...] = (),
    **how,
) -> list[list[int]]:
    """Measure the missing seeds; returns the seeds of each run."""
    watch = how.pop("watch", Watch())
    again = how.get("again", False)
    for _ in measure(state_of(table, cell, place, Wanted(count, only), again=again), session(place, watch, **how)):
        pass
    return watch.runs


def file_of(place: Place, cell: Cell = FIRST, table: str = "table1") -> dict:
    return json.loads((place.results / table / f"{cell.name}.json").read_text())


def command(arguments, monkeypatch, capsys, main=paper_main) -> tuple[int, list[str], str]:
    """Run a command line; returns the exit code, the lines on stdout, and stderr as one line."""
    monkeypatch.setattr(sys, "argv", ["paper", *arguments])
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main()
    printed = capsys.readouterr()
    return int(ended.value.code or 0), printed.out.splitlines(), " ".join(printed.err.split())
