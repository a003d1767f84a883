"""Ten digits as one task: scikit-learn's embedded 8×8 digits, and MNIST from its own IDX files."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from frcl.data.datasets import MNIST, DataSet
from frcl.data.files import Progress
from frcl.data.options import TrainOn
from frcl.data.registry import Request
from frcl.data.streams import add_streams, task_with_validation
from frcl.data.tasks import Split, Task
from frcl.errors import DataError
from frcl.seeding import fork

TEST_SHARE = 0.2  # of scikit-learn's digits
VALIDATION_SHARE = 1 / 12  # 5,000 of MNIST's 60,000


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
    x, y, x_test, y_test = (parse_idx(content, name) for name, content in contents.items())
    return _split(x, y, "training"), _split(x_test, y_test, "test")


def _split(x: Tensor, y: Tensor, part: str) -> Split:
    if x.ndim != 3 or y.ndim != 1 or len(x) != len(y):
        raise DataError(
            f"MNIST's {part} images have shape {tuple(x.shape)} and their labels {tuple(y.shape)}; expected images "
            "[N, height, width] and as many labels [N]"
        )
    return Split(x.flatten(1).float() / 255.0, y.long())


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


def _mnist_by_seed(request: Request) -> Callable[[int], Task]:
    learning, test = (part.to(request.device) for part in read_mnist(request.data, on_progress=request.on_progress))
    return lambda seed: mnist_task(learning, test, seed, request.options.train_on)


add_streams(
    "digits",
    lambda request: lambda seed: load_digits(seed, request.options.train_on).to(request.device),
    "5 tasks, 0/1 to 8/9, of scikit-learn's 8×8 digits; nothing to download",
    "10 tasks, all ten 8×8 digits with permuted pixels; nothing to download",
    None,
)
add_streams(
    "mnist",
    _mnist_by_seed,
    "5 tasks, 0/1 to 8/9, of MNIST",
    "10 tasks, all ten digits of MNIST with permuted pixels",
    "mnist",
)
