"""The display of a run: a live progress bar in a terminal, plain lines elsewhere, or nothing."""

from __future__ import annotations

import math
import time

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Column, Table

from frcl.experiment.config import Config
from frcl.experiment.keeper import Observer
from frcl.experiment.metrics import Interval
from frcl.experiment.results import Result
from frcl.learners.types import StepLog

WIDE = 8  # more tasks than this do not fit a matrix in a terminal
REDRAW = 0.1  # seconds between two updates of the bar
PLAIN_SECONDS = 10.0  # between two lines while a task is learned


class Silent:
    """An observer that ignores everything; a base for those that do not need every event."""

    def begin(self, config: Config, names: list[str]) -> None: ...
    def step(self, seed: int, task: int, log: StepLog) -> None: ...
    def evaluated(self, seed: int, task: int, row: list[float]) -> None: ...
    def end(self, result: Result) -> None: ...
    def close(self) -> None: ...


class Plain(Silent):
    """One line per task, and one every few seconds: for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._said = time.monotonic()

    def begin(self, config: Config, names: list[str]) -> None:
        self._config, self._names = config, names
        self._say(f"{config.benchmark}: {len(names)} tasks, method {config.method}, seeds {list(config.seeds)}")

    def step(self, seed: int, task: int, log: StepLog) -> None:
        if time.monotonic() - self._said > PLAIN_SECONDS:
            self._say(f"seed {seed}, task {task + 1}/{len(self._names)}, step {log.step}: {terms(log)}")

    def evaluated(self, seed: int, task: int, row: list[float]) -> None:
        self._say(
            f"seed {seed}, task {task + 1}/{len(self._names)} ({self._names[task]}): "
            f"average {sum(row) / len(row):.2%}, this task {row[-1]:.2%}"
        )

    def _say(self, line: str) -> None:
        self._said = time.monotonic()
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)


class Live:
    """A progress bar over all steps of all seeds, with the terms of the loss and the accuracy so far."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            TextColumn("{task.description}", table_column=Column(no_wrap=True, min_width=len("seed 10 task 10/10"))),
            BarColumn(bar_width=14),
            TaskProgressColumn(),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.fields[terms]}", table_column=Column(no_wrap=True)),
            console=console,
            transient=True,
        )
        self._accuracy = ""
        self._done: dict[int, int] = {}  # steps by seed
        self._drawn = 0.0

    def begin(self, config: Config, names: list[str]) -> None:
        self._config, self._names = config, names
        total = len(config.seeds) * len(names) * config.learner.steps
        self._bar = self._progress.add_task("", total=total, terms="")
        self._progress.start()

    def step(self, seed: int, task: int, log: StepLog) -> None:
        steps = self._config.learner.steps
        self._done[seed] = task * steps + (log.step - 1) % steps + 1
        now = time.monotonic()
        if now - self._drawn < REDRAW:
            return
        self._drawn = now
        before = min(self._config.seeds.index(one) for one in self._done)  # seeds finished before the run was resumed
        done = before * len(self._names) * steps + sum(self._done.values())
        text = f"seed {seed} task {task + 1}/{len(self._names)}"
        parts = f"loss {log.loss:.3f} now {log.kl_now:.3f} past {log.kl_past:.3f}{self._accuracy}"
        self._progress.update(self._bar, completed=done, description=text, terms=parts)

    def evaluated(self, seed: int, task: int, row: list[float]) -> None:
        self._accuracy = f" accuracy {sum(row) / len(row):.1%}"

    def end(self, result: Result) -> None:
        self.close()

    def close(self) -> None:
        """Give the terminal back."""
        self._progress.stop()


class Several:
    """Passes everything on to more than one observer."""

    def __init__(self, *observers: Observer) -> None:
        self._observers = observers

    def begin(self, config: Config, names: list[str]) -> None:
        for observer in self._observers:
            observer.begin(config, names)

    def step(self, seed: int, task: int, log: StepLog) -> None:
        for observer in self._observers:
            observer.step(seed, task, log)

    def evaluated(self, seed: int, task: int, row: list[float]) -> None:
        for observer in self._observers:
            observer.evaluated(seed, task, row)

    def end(self, result: Result) -> None:
        for observer in self._observers:
            observer.end(result)

    def close(self) -> None:
        for observer in self._observers:
            observer.close()


def terms(log: StepLog) -> str:
    """The loss and its parts, in nats per example."""
    return f"loss {log.loss:.3f} (fit {-log.log_likelihood:.3f}, KL now {log.kl_now:.3f}, KL past {log.kl_past:.3f})"


def accuracy_table(result: Result) -> Table:
    """The accuracy matrix, mean over seeds: a row for each task learned, a column for each task tested.

    With many tasks, a row for each task: just after it was learned, and at the end.
    """
    names, mean = result.tasks, 100 * result.accuracy.mean(0)
    if len(names) > WIDE:
        table = Table("task", title=f"Accuracy (mean of {len(result.seeds)} seeds, %)")
        columns = [("just after learning it", mean.diagonal()), ("at the end", mean[-1])]
    else:
        seeds = f"seeds: {len(result.seeds)}"
        table = Table("after learning", title=f"Accuracy on each task after learning each task (%, {seeds})")
        columns = list(zip(names, mean.T, strict=True))
    for heading, _ in columns:
        table.add_column(heading, justify="right")
    for name, *row in zip(names, *(values for _, values in columns), strict=True):
        table.add_row(name, *("" if math.isnan(value) else f"{value:.1f}" for value in row))
    return table


def in_words(metric: Interval | None, scale: float = 1.0, unit: str = "", digits: int = 2) -> str:
    """ "98.12 ± 0.30 %", or "not available"."""
    if metric is None:
        return "not available"
    spread = "" if metric.std is None else f" ± {scale * metric.std:.{digits}f}"
    return f"{scale * metric.mean:.{digits}f}{spread}{unit}"
