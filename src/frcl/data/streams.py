"""Streams made from ten digits, split by label or with permuted pixels: scikit-learn's 8×8 digits, and MNIST."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from frcl.data.files import MNIST, DataSet
from frcl.data.options import IMAGES, PERMUTED, BenchmarkOptions, TrainOn
from frcl.data.registry import BENCHMARKS, BenchmarkSpec, Request
from frcl.data.tasks import Benchmark, BuiltTasks, Progress, Split, Task, TaskList, first_tasks
from frcl.errors import DataError
from frcl.seeding import fork

BySeed = Callable[[int], Task]
PAIRS = ((0, 1), (2, 3), (4, 5), (6, 7), (8, 9))
TEST_SHARE = 0.2  # of scikit-learn's digits
VALIDATION_SHARE = 1 / 12  # 5,000 of MNIST's 60,000


def task_with_validation(
    name: str, learning: Split, test: Split, *, held: int, train_on: TrainOn, generator: torch.Generator
) -> Task:
    """`held` examples, chosen by the generator, become the validation split; the order is kept."""
    is_held = torch.zeros(len(learning), dtype=torch.bool)
    is_held[torch.randperm(len(learning), generator=generator)[:held]] = True
    train = learning if train_on == "train+validation" else learning[~is_held]
    return Task(name, train, learning[is_held], test, size=len(train))


def split_by_label(name: str, base: Task, options: BenchmarkOptions) -> TaskList:
    """One task for each pair of labels, with the examples of `base` that have these labels (Zenke et al., 2017)."""

    def task(group: tuple[int, ...]) -> Task:
        labels = torch.tensor(group, device=base.train.y.device)
        own = base.changed(lambda part: part[torch.isin(part.y, labels)], "/".join(map(str, group)))
        return replace(own, size=len(own.train))

    return TaskList(name, tuple(task(group) for group in first_tasks(name, PAIRS, options.tasks)))


@dataclass(frozen=True)
class PermutedTasks(BuiltTasks):
    """Task k is one and the same task with its pixels in the order `orders[k]`."""

    orders: tuple[Tensor, ...] = ()  # each [D] int64


def permute_pixels(name: str, base: Task, options: BenchmarkOptions, seed: int) -> PermutedTasks:
    """A fixed random order of the pixels for each task. Order k depends on the seed and k alone."""
    pixels, device = base.train.x.shape[1], base.train.x.device
    numbers = first_tasks(name, range(options.permutations), options.tasks, "; set permutations for more")
    orders = [torch.randperm(pixels, generator=fork(seed, f"permutation/{k}")).to(device) for k in numbers]
    if options.first_identity:
        orders[0] = torch.arange(pixels, device=device)

    def permuted(number: int, part: Split) -> Split:
        return Split(part.x[:, orders[number]], part.y)

    def build(number: int) -> Task:
        return base.changed(partial(permuted, number), f"permutation {number}")

    names = tuple(f"permutation {k}" for k in numbers)
    return PermutedTasks(name, names, build, lambda number: permuted(number, base.test), tuple(orders))


def load_digits(seed: int, train_on: TrainOn = "train+validation") -> Task:
    """All ten digits as one task: of the 1,797 images a fifth is for testing and a twelfth for validation."""
    from sklearn import datasets

    pixels, labels = datasets.load_digits(return_X_y=True)
    images = Split(torch.tensor(pixels / 16.0, dtype=torch.float32), torch.tensor(labels, dtype=torch.int64))
    order = torch.randperm(len(images), generator=fork(seed, "digits/test"))
    tested, held = int(TEST_SHARE * len(images)), round(VALIDATION_SHARE * len(images))
    learning, test = images[order[tested:]], images[order[:tested]]
    generator = fork(seed, "digits/validation")
    return task_with_validation("digits", learning, test, held=held, train_on=train_on, generator=generator)


def read_mnist(
    data: Path | None = None, *, files: DataSet = MNIST, on_progress: Progress | None = None
) -> tuple[Split, Split]:
    """The 60,000 images to learn from and the 10,000 for testing: x [N, 784] in [0, 1], y the digit."""
    contents = files.contents(data, on_progress=on_progress)
    names, arrays = list(contents), [parse_idx(content, name) for name, content in contents.items()]
    splits = []
    for i in (0, 2):
        x, y = arrays[i : i + 2]
        if x.ndim != 3 or y.ndim != 1 or len(x) != len(y):
            shapes = f"{names[i]} has shape {tuple(x.shape)} and {names[i + 1]} {tuple(y.shape)}"
            raise DataError(f"{shapes}; expected images [N, height, width] and as many labels [N]")
        splits.append(Split(x.flatten(1).float() / 255.0, y.long()))
    return splits[0], splits[1]


def parse_idx(content: bytes, where: str) -> Tensor:
    """An IDX file of unsigned bytes as a uint8 tensor; its header must agree with its length."""
    if len(content) < 4 or content[:3] != b"\x00\x00\x08":
        raise DataError(f"{where} is not an IDX file of unsigned bytes")
    start = 4 + 4 * content[3]
    shape = tuple(int.from_bytes(content[at : at + 4], "big") for at in range(4, start, 4))
    if len(content) != start + math.prod(shape):
        raise DataError(f"{where} is damaged: its header says {shape}, its length does not")
    return torch.from_numpy(np.frombuffer(content, np.uint8, offset=start).reshape(shape).copy())


def mnist_task(learning: Split, test: Split, seed: int, train_on: TrainOn) -> Task:
    """Both parts of MNIST as one task, with a validation split chosen by the seed."""
    held, generator = round(VALIDATION_SHARE * len(learning)), fork(seed, "mnist/validation")
    return task_with_validation("MNIST", learning, test, held=held, train_on=train_on, generator=generator)


def _digits(request: Request) -> BySeed:
    return lambda seed: load_digits(seed, request.options.train_on).to(request.device)


def _mnist(request: Request) -> BySeed:
    learning, test = (part.to(request.device) for part in read_mnist(request.data, on_progress=request.on_progress))
    return lambda seed: mnist_task(learning, test, seed, request.options.train_on)


def _add(name: str, text: str, by_seed: Callable[[Request], BySeed], *datasets: str) -> None:
    """Register a stream that is made from one task, which `by_seed` loads."""
    permuted = name.startswith("permuted")

    def build(request: Request) -> Callable[[int], Benchmark]:
        task = by_seed(request)
        if permuted:
            return lambda seed: permute_pixels(name, task(seed), request.options, seed)
        return lambda seed: split_by_label(name, task(seed), request.options)

    BENCHMARKS.add(name, BenchmarkSpec(text, build, PERMUTED if permuted else IMAGES, datasets))


_add("split-digits", "5 tasks, 0/1 to 8/9, of scikit-learn's 8×8 digits; nothing to download", _digits)
_add("permuted-digits", "10 tasks, all ten 8×8 digits with permuted pixels; nothing to download", _digits)
_add("split-mnist", "5 tasks, 0/1 to 8/9, of MNIST", _mnist, "mnist")
_add("permuted-mnist", "10 tasks, all ten digits of MNIST with permuted pixels", _mnist, "mnist")
