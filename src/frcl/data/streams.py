"""Streams made from one data set: split by label, or with permuted inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from frcl.data.options import PERMUTED, BenchmarkOptions, TrainOn
from frcl.data.registry import BENCHMARKS, BenchmarkSpec, Request, Source
from frcl.data.tasks import Benchmark, Split, Task, TaskList, checked_number, first_tasks
from frcl.seeding import fork

PAIRS = ((0, 1), (2, 3), (4, 5), (6, 7), (8, 9))


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

    def task(group: tuple[int, ...]) -> Task:
        labels = torch.tensor(group, device=base.train.y.device)
        own = base.changed(lambda part: part[torch.isin(part.y, labels)], "/".join(map(str, group)))
        return replace(own, size=len(own.train))

    return TaskList(name, tuple(task(group) for group in first_tasks(name, groups, options.tasks)))


@dataclass(frozen=True)
class PermutedTasks(Benchmark):
    """Task k is the base task with its pixels in the order `orders[k]`; built on demand."""

    name: str
    base: Task
    orders: tuple[Tensor, ...]  # each [D] int64

    @property
    def task_names(self) -> tuple[str, ...]:
        return tuple(f"permutation {number}" for number in range(len(self.orders)))

    def task(self, number: int) -> Task:
        return self.base.changed(lambda part: self._permuted(part, number), f"permutation {number}")

    def test_split(self, number: int) -> Split:
        return self._permuted(self.base.test, number)

    def _permuted(self, part: Split, number: int) -> Split:
        return Split(part.x[:, self.orders[checked_number(self, number)]], part.y)


def permute_pixels(name: str, base: Task, options: BenchmarkOptions, seed: int) -> PermutedTasks:
    """A fixed random order of the pixels for each task. Order k depends on the seed and k alone."""
    pixels = base.train.x.shape[1]
    numbers = first_tasks(name, range(options.permutations), options.tasks, "; set permutations for more")
    orders = [torch.randperm(pixels, generator=fork(seed, f"permutation/{k}")) for k in numbers]
    if options.first_identity:
        orders[0] = torch.arange(pixels)
    return PermutedTasks(name, base, tuple(order.to(base.train.x.device) for order in orders))


def add_streams(
    base: str, by_seed: Callable[[Request], Callable[[int], Task]], split: str, permuted: str, dataset: str | None
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
