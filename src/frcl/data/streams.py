"""Streams made from one data set: split by label, or with permuted inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from frcl.data.options import PERMUTED, BenchmarkOptions, TrainOn
from frcl.data.registry import BENCHMARKS, BenchmarkSpec, Request, Source
from frcl.data.tasks import Split, Task, TaskList, checked_number, first_tasks
from frcl.seeding import fork

PAIRS = ((0, 1), (2, 3), (4, 5), (6, 7), (8, 9))
VALIDATION_SHARE = 1 / 12  # 5,000 of MNIST's 60,000


def task_with_validation(
    name: str, learning: Split, test: Split, *, held: int, train_on: TrainOn, generator: torch.Generator
) -> Task:
    """`held` examples, chosen by the generator, become the validation split; the order is kept."""
    is_held = torch.zeros(len(learning), dtype=torch.bool)
    is_held[torch.randperm(len(learning), generator=generator)[:held]] = True
    train = learning if train_on == "train+validation" else learning[~is_held]
    return Task(name, train, learning[is_held], test, size=len(train))


def split_by_label(
    name: str, base: Task, options: BenchmarkOptions, groups: Sequence[tuple[int, ...]] = PAIRS
) -> TaskList:
    """One task for each group of labels, with the examples of `base` that have these labels (Zenke et al., 2017)."""
    groups = first_tasks(name, groups, options.tasks)
    return TaskList(name, tuple(_with_labels(base, group) for group in groups))


def _with_labels(base: Task, labels: tuple[int, ...]) -> Task:
    train, validation, test = (
        part[torch.isin(part.y, torch.tensor(labels, device=part.y.device))]
        for part in (base.train, base.validation, base.test)
    )
    return Task("/".join(str(label) for label in labels), train, validation, test, size=len(train))


@dataclass(frozen=True)
class PermutedTasks:
    """Task k is the base task with its pixels in the order `orders[k]`; built on demand."""

    name: str
    base: Task
    orders: tuple[Tensor, ...]  # each [D] int64

    @property
    def input_shape(self) -> tuple[int, ...]:
        return tuple(self.base.train.x.shape[1:])

    @property
    def task_names(self) -> tuple[str, ...]:
        return tuple(f"permutation {number}" for number in range(len(self)))

    def __len__(self) -> int:
        return len(self.orders)

    def task(self, number: int) -> Task:
        train, validation = (self._permuted(part, number) for part in (self.base.train, self.base.validation))
        return Task(self.task_names[number], train, validation, self.test_split(number), size=self.base.size)

    def test_split(self, number: int) -> Split:
        return self._permuted(self.base.test, number)

    def _permuted(self, part: Split, number: int) -> Split:
        order = self.orders[checked_number(self, number)]
        return Split(part.x[:, order], part.y)


def permute_pixels(name: str, base: Task, options: BenchmarkOptions, seed: int) -> PermutedTasks:
    """A fixed random order of the pixels for each task. Order k depends on the seed and k alone."""
    pixels = base.train.x.shape[1]
    numbers = first_tasks(name, range(options.permutations), options.tasks, "; set permutations for more")
    orders = [torch.randperm(pixels, generator=fork(seed, f"permutation/{k}")) for k in numbers]
    if options.first_identity:
        orders[0] = torch.arange(pixels)
    return PermutedTasks(name, base, tuple(order.to(base.train.x.device) for order in orders))


def add_streams(
    base: str,
    by_seed: Callable[[Request], Callable[[int], Task]],
    *,
    split: str,
    permuted: str,
    dataset: str | None = None,
) -> None:
    """Register split-BASE and permuted-BASE, described by `split` and `permuted`; `by_seed` loads the base task."""

    def split_source(request: Request) -> Source:
        task = by_seed(request)
        return lambda seed: split_by_label(f"split-{base}", task(seed), request.options)

    def permuted_source(request: Request) -> Source:
        task = by_seed(request)
        return lambda seed: permute_pixels(f"permuted-{base}", task(seed), request.options, seed)

    BENCHMARKS.add(f"split-{base}", BenchmarkSpec(split, split_source, dataset=dataset))
    BENCHMARKS.add(f"permuted-{base}", BenchmarkSpec(permuted, permuted_source, PERMUTED, dataset))
