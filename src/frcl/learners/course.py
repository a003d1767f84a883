"""How long and how fast one call of fit() learns, and the bar that shows it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from frcl.errors import OptionError
from frcl.learners.types import OnStep, StepLog
from frcl.options import MethodOptions


@dataclass(frozen=True)
class Course:
    """What a call of fit() says in place of the options: steps, or passes over the data; the learning rate."""

    steps: int | None = None
    epochs: float | None = None
    lr: float | None = None

    def __post_init__(self) -> None:
        if self.steps is not None and self.epochs is not None:
            raise OptionError("steps and epochs both say how long to learn; give one of them")
        if self.steps is not None and (type(self.steps) is not int or self.steps < 1):
            raise OptionError(f"steps must be a whole number of at least 1, not {self.steps!r}")
        for name, value in (("epochs", self.epochs), ("lr", self.lr)):
            if value is not None and (type(value) not in (int, float) or not 0 < value < math.inf):
                raise OptionError(f"{name} must be a positive number, not {value!r}")

    def stop(self, examples: int, options: MethodOptions) -> int:
        """The number of steps; minibatches are drawn at random, so an epoch has as many examples as the data."""
        if self.epochs is not None:
            return math.ceil(self.epochs * examples / options.batch_size)
        return options.steps if self.steps is None else self.steps


@contextmanager
def progress_bar(task: int, stop: int, on_step: OnStep) -> Iterator[OnStep]:
    """`on_step` that also moves a bar in a terminal or a notebook."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns) as bars:
        bar = bars.add_task(f"task {task}", total=stop)

        def told(log: StepLog) -> None:
            bars.update(bar, completed=log.step, description=f"task {task}  loss {log.loss:.3f}")
            if on_step is not None:
                on_step(log)

        yield told
