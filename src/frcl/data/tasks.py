"""Tasks and benchmarks: a benchmark is a numbered sequence of tasks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from frcl.errors import OptionError, TaskError

T = TypeVar("T")
Device = torch.device | str
Progress = Callable[[str, int, int | None], None]  # file name, bytes received, total bytes or None if unknown


@dataclass(frozen=True)
class Split:
    """Examples: x [n, ...] float32, in [0, 1] for images; y [n] int64 labels (floats for regression)."""

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, which: Tensor) -> Split:
        """The examples at these indices, or where this mask is true."""
        return Split(self.x[which], self.y[which])

    def to(self, device: Device) -> Split:
        return Split(self.x.to(device), self.y.to(device))


@dataclass(frozen=True)
class Task:
    """One task. `validation` is part of `train` only with train_on="train+validation"."""

    name: str
    train: Split  # for training, after augmentation
    validation: Split  # for choosing hyper-parameters; never augmented
    test: Split  # for reporting; never augmented
    size: int  # N of the objective

    def changed(self, function: Callable[[Split], Split], name: str) -> Task:
        """The task with `function` applied to each part, and another name."""
        return Task(name, function(self.train), function(self.validation), function(self.test), self.size)

    def to(self, device: Device) -> Task:
        return self.changed(lambda part: part.to(device), self.name)


class Benchmark(Protocol):
    """A sequence of tasks, numbered from 0. The same number always gives the same task."""

    name: str

    @property
    def task_names(self) -> tuple[str, ...]: ...

    def task(self, number: int) -> Task: ...

    def test_split(self, number: int) -> Split:
        """`task(number).test`, where possible without the cost of building the training data."""
        return self.task(number).test

    @property
    def input_shape(self) -> tuple[int, ...]:
        return tuple(self.test_split(0).x.shape[1:])

    def __len__(self) -> int:
        return len(self.task_names)


@dataclass(frozen=True)
class TaskList(Benchmark):
    """A benchmark whose tasks are all in memory."""

    name: str
    tasks: tuple[Task, ...]
    label_names: tuple[str, ...] | None = None  # label i is called label_names[i]; None if labels have no names

    @property
    def task_names(self) -> tuple[str, ...]:
        return tuple(task.name for task in self.tasks)

    def task(self, number: int) -> Task:
        return self.tasks[checked_number(self, number)]


@dataclass(frozen=True)
class BuiltTasks(Benchmark):
    """A benchmark whose tasks are built on demand; `test_of` gives the test data of a task without building it."""

    name: str
    names: tuple[str, ...]
    build: Callable[[int], Task]
    test_of: Callable[[int], Split]

    @property
    def task_names(self) -> tuple[str, ...]:
        return self.names

    def task(self, number: int) -> Task:
        return self.build(checked_number(self, number))

    def test_split(self, number: int) -> Split:
        return self.test_of(checked_number(self, number))


def validation_only(inner: Benchmark) -> Benchmark:
    """The benchmark with its validation data where test data is asked for."""

    def build(number: int) -> Task:
        task = inner.task(number)
        return replace(task, test=task.validation)

    return BuiltTasks(inner.name, inner.task_names, build, lambda number: inner.task(number).validation)


def checked_number(benchmark: Benchmark, number: int) -> int:
    if not 0 <= number < len(benchmark):
        raise TaskError(f"{benchmark.name} has no task {number}; its tasks are 0 to {len(benchmark) - 1}")
    return number


def first_tasks(name: str, tasks: Sequence[T], wanted: int | None, advice: str = "") -> tuple[T, ...]:
    """The first `wanted` tasks, all of them for None; too large a number is refused."""
    if wanted is not None and wanted > len(tasks):
        raise OptionError(f"tasks={wanted} is too many: {name} has {len(tasks)}{advice}")
    return tuple(tasks[:wanted])
