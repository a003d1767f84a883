"""Observers of a run: a live progress bar in a terminal, plain lines elsewhere, or nothing; TensorBoard events."""

import math
import time
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Column, Table

from frcl.errors import OptionError
from frcl.experiment.config import Config
from frcl.experiment.keeper import Observer
from frcl.experiment.metrics import Interval
from frcl.experiment.results import Result
from frcl.learners.types import StepLog, plural

WIDE = 8  # more tasks than this do not fit a matrix in a terminal
REDRAW = 0.1  # seconds between two updates of the bar
FIELDS = (("{task.description}", len("seed 10 task 10/10")), ("{task.fields[terms]}", None))  # of the bar, with widths
PLAIN_SECONDS = 10.0  # between two lines while a task is learned


class Plain(Observer):
    """One line per task, and one every few seconds: for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def begin(self, config: Config, names: list[str]) -> None:
        self._names = names
        tasks = plural(len(names), "task")
        self._say(f"{config.benchmark}: {tasks}, method {config.method}, seeds {list(config.seeds)}")

    def step(self, seed: int, task: int, log: StepLog) -> None:
        if time.monotonic() - self._said > PLAIN_SECONDS:
            parts = f"fit {-log.log_likelihood:.3f}, KL now {log.kl_now:.3f}, KL past {log.kl_past:.3f}"
            place = f"seed {seed}, task {task + 1}/{len(self._names)}, step {log.step}"
            self._say(f"{place}: loss {log.loss:.3f} ({parts})")

    def evaluated(self, seed: int, task: int, row: list[float]) -> None:
        average = f"average {sum(row) / len(row):.2%}, this task {row[-1]:.2%}"
        self._say(f"seed {seed}, task {task + 1}/{len(self._names)} ({self._names[task]}): {average}")

    def _say(self, line: str) -> None:
        self._said = time.monotonic()
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)


class Live(Observer):
    """A progress bar over all steps of all seeds, with the terms of the loss and the accuracy so far."""

    def __init__(self, console: Console) -> None:
        name, terms = (TextColumn(text, table_column=Column(no_wrap=True, min_width=width)) for text, width in FIELDS)
        columns = (name, BarColumn(bar_width=14), TaskProgressColumn(), TimeRemainingColumn(compact=True), terms)
        self._progress = Progress(*columns, console=console, transient=True)
        self._accuracy = ""
        self._done: dict[int, int] = {}  # steps by seed
        self._drawn = 0.0

    def begin(self, config: Config, names: list[str]) -> None:
        self._config, self._names = config, names
        self._bar = self._progress.add_task("", total=len(config.seeds) * len(names) * config.learner.steps, terms="")
        self._progress.start()

    def step(self, seed: int, task: int, log: StepLog) -> None:
        steps, tasks = self._config.learner.steps, len(self._names)
        self._done[seed] = task * steps + (log.step - 1) % steps + 1
        if time.monotonic() - self._drawn < REDRAW:
            return
        self._drawn = time.monotonic()
        before = min(self._config.seeds.index(one) for one in self._done)  # seeds finished before the run was resumed
        done = before * tasks * steps + sum(self._done.values())
        parts = f"loss {log.loss:.3f} now {log.kl_now:.3f} past {log.kl_past:.3f}{self._accuracy}"
        text = f"seed {seed} task {task + 1}/{tasks}"
        self._progress.update(self._bar, completed=done, description=text, terms=parts)

    def evaluated(self, seed: int, task: int, row: list[float]) -> None:
        self._accuracy = f" accuracy {sum(row) / len(row):.1%}"

    def close(self) -> None:
        """Give the terminal back."""
        self._progress.stop()


class TensorBoard(Observer):
    """Writes the terms of every step and the accuracies as TensorBoard events, in one sub-folder per seed."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise OptionError("--tensorboard needs the package tensorboard: pip install 'frcl[tensorboard]'") from error
        self._make, self._folder, self._writers = SummaryWriter, folder, dict[int, Any]()

    def begin(self, config: Config, names: list[str]) -> None:
        self._steps, self._names = config.learner.steps, names

    def step(self, seed: int, task: int, log: StepLog) -> None:
        at = task * self._steps + (log.step - 1) % self._steps
        for name in ("loss", "log_likelihood", "kl_now", "kl_past"):
            self._add(seed, f"step/{name}", getattr(log, name), at)

    def evaluated(self, seed: int, task: int, row: list[float]) -> None:
        for on, value in enumerate(row):
            self._add(seed, f"accuracy/{self._names[on]}", value, task)
        self._add(seed, "accuracy/average", sum(row) / len(row), task)

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()

    def _add(self, seed: int, *scalar: Any) -> None:
        if seed not in self._writers:
            self._writers[seed] = self._make(str(self._folder / f"seed-{seed}"))
        self._writers[seed].add_scalar(*scalar)


class Several(Observer):
    """Passes every event on to more than one observer."""

    def __init__(self, *observers: Observer) -> None:
        def pass_on(event: str, *values: Any) -> None:
            for observer in observers:
                getattr(observer, event)(*values)

        for event in ("begin", "step", "evaluated", "close"):
            setattr(self, event, partial(pass_on, event))


def accuracy_table(result: Result) -> Table:
    """The accuracy matrix of the scenario, mean over seeds; of many tasks its diagonal and its last row."""
    R, where = (result.agnostic, "without the task, ") if result.names_no_task else (result.accuracy, "")
    assert R is not None
    names, mean, seeds = result.tasks, 100 * R.mean(0), len(result.seeds)
    first, title = "after learning", f"Accuracy on each task after learning each task ({where}%, seeds: {seeds})"
    columns = list(zip(names, mean.T, strict=True))
    if len(names) > WIDE:
        first, title = "task", f"Accuracy ({where}mean of {seeds} seeds, %)"
        columns = [("just after learning it", mean.diagonal()), ("at the end", mean[-1])]
    table = Table(first, *(Column(escape(heading), justify="right") for heading, _ in columns), title=title)
    for name, *row in zip(names, *(values for _, values in columns), strict=True):
        table.add_row(escape(name), *("" if math.isnan(value) else f"{value:.1f}" for value in row))
    return table


def in_words(metric: Interval | None, scale: float = 1.0, unit: str = "", digits: int = 2) -> str:
    """ "98.12 ± 0.30 %", or "not available"."""
    if metric is None:
        return "not available"
    spread = "" if metric.std is None else f" ± {scale * metric.std:.{digits}f}"
    return f"{scale * metric.mean:.{digits}f}{spread}{unit}"
