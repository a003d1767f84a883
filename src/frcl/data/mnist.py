"""MNIST from its own IDX files, plain or gzipped."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from frcl.data.download import Progress
from frcl.data.lookup import obtain
from frcl.data.options import TrainOn
from frcl.data.registry import Request
from frcl.data.sources import MNIST, DataFile, MnistFiles
from frcl.data.streams import VALIDATION_SHARE, add_streams, task_with_validation
from frcl.data.tasks import Split, Task
from frcl.errors import DataError
from frcl.seeding import fork


def load_mnist(
    seed: int, train_on: TrainOn = "train+validation", *, data: Path | None = None, files: MnistFiles = MNIST
) -> Task:
    """All ten digits as one task: 55,000 images to train on, 5,000 chosen by the seed for validation, 10,000 for
    testing; x [N, 784] in [0, 1], y the digit."""
    return mnist_task(*read_mnist(data, files=files), seed, train_on)


def read_mnist(
    data: Path | None = None, *, files: MnistFiles = MNIST, on_progress: Progress | None = None
) -> tuple[Split, Split]:
    """The images to learn from and those for testing."""
    contents = obtain(files.all(), data, on_progress=on_progress)
    return (
        _split(contents, files.train_images, files.train_labels),
        _split(contents, files.test_images, files.test_labels),
    )


def mnist_task(learning: Split, test: Split, seed: int, train_on: TrainOn) -> Task:
    """Both parts of MNIST as one task, with a validation split chosen by the seed."""
    held, generator = round(VALIDATION_SHARE * len(learning)), fork(seed, "mnist/validation")
    return task_with_validation("MNIST", learning, test, held=held, train_on=train_on, generator=generator)


def parse_idx(content: bytes, where: str) -> Tensor:
    """An IDX file of unsigned bytes as a uint8 tensor; its header must agree with its length."""
    if len(content) < 4 or content[:3] != b"\x00\x00\x08":
        raise DataError(f"{where} is not an IDX file of unsigned bytes")
    dimensions = content[3]
    start = 4 + 4 * dimensions
    shape = tuple(int.from_bytes(content[4 + 4 * i : 8 + 4 * i], "big") for i in range(dimensions))
    if len(content) != start + math.prod(shape):
        raise DataError(f"{where} is damaged: its header says {shape}, its length does not")
    return torch.from_numpy(np.frombuffer(content, np.uint8, offset=start).reshape(shape).copy())


def _split(contents: dict[str, bytes], images: DataFile, labels: DataFile) -> Split:
    x, y = (parse_idx(contents[file.name], file.name) for file in (images, labels))
    if x.ndim != 3 or y.ndim != 1 or len(x) != len(y):
        raise DataError(
            f"{images.name} has shape {tuple(x.shape)} and {labels.name} {tuple(y.shape)}; expected images "
            "[N, height, width] and as many labels [N]"
        )
    return Split(x.flatten(1).float() / 255.0, y.long())


def _by_seed(request: Request) -> Callable[[int], Task]:
    learning, test = (part.to(request.device) for part in read_mnist(request.data, on_progress=request.on_progress))
    return lambda seed: mnist_task(learning, test, seed, request.options.train_on)


add_streams(
    "mnist",
    _by_seed,
    split="5 tasks, 0/1 to 8/9, of MNIST",
    permuted="10 tasks, all ten digits of MNIST with permuted pixels",
    dataset="mnist",
)
