"""Split CIFAR: CIFAR-10 followed by parts of CIFAR-100, or either of them in groups of classes."""

from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from weakref import ref

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from frcl.data.cifar_files import Images, Parts, from_bytes, joined, read_compact
from frcl.data.files import CIFAR10, CIFAR100, DataSet
from frcl.data.options import IMAGES, BenchmarkOptions
from frcl.data.registry import BENCHMARKS, BenchmarkSpec, Request, Source
from frcl.data.streams import PAIRS, task_with_validation
from frcl.data.tasks import BuiltTasks, Device, Progress, Split, Task, first_tasks
from frcl.seeding import fork

VALIDATION_SHARE = 0.1
CLASSES = 10  # of CIFAR-100 in each task
OFFSET = 10  # split-cifar: the labels of CIFAR-100 come after the ten of CIFAR-10


@dataclass(frozen=True)
class ImageTask:
    """Examples as bytes: x [n, 3, 32, 32] uint8, y [n] int64."""

    name: str
    learning: Split
    test: Split


def image_tasks(name: str, tasks: Sequence[ImageTask], options: BenchmarkOptions, seed: int) -> BuiltTasks:
    """Tasks whose images are kept as bytes, and converted to floats in [0, 1] on demand."""

    def build(number: int) -> Task:
        own = tasks[number]
        held, generator = round(VALIDATION_SHARE * len(own.learning)), fork(seed, f"cifar/validation/{own.name}")
        task = task_with_validation(
            own.name, own.learning, own.test, held=held, train_on=options.train_on, generator=generator
        )
        return task.changed(_as_floats, own.name)

    return BuiltTasks(name, tuple(task.name for task in tasks), build, lambda number: _as_floats(tasks[number].test))


_floats: MutableMapping[Tensor, ref[Tensor]] = WeakTensorKeyDictionary()  # of bytes, while someone uses them


def _as_floats(part: Split) -> Split:
    """The images in [0, 1]; seeds that use the same bytes at the same time share them."""
    held = _floats.get(part.x)
    found = None if held is None else held()
    if found is None:
        found = part.x.float() / 255.0
        _floats[part.x] = ref(found)
    return Split(found, part.y)


def read_cifar(
    files: DataSet, data: Path | None = None, *, whole: bool = False, on_progress: Progress | None = None
) -> Parts:
    """The images of a data set, from its compact files or the official archive; `whole` prefers the archive."""
    contents = files.contents(data, on_progress=on_progress, whole=whole)
    if set(contents) == {file.name for file in files.files}:
        return from_bytes(next(iter(contents.values())))
    read = {name: read_compact(content, name) for name, content in contents.items()}
    train, test = ([one for name, one in read.items() if ("test" in name) is tested] for tested in (False, True))
    return Parts(joined(train), joined(test))


def of_classes(parts: Parts, name: str, labels: Sequence[int], device: Device, offset: int = 0) -> ImageTask:
    """The images with these labels, in their order; `offset` is added to the labels."""

    def split(images: Images) -> Split:
        y = torch.from_numpy(images.labels).long()
        own = torch.isin(y, torch.tensor(labels))
        x = torch.from_numpy(images.pixels)[own].permute(0, 3, 1, 2).contiguous()
        return Split(x, y[own] + offset).to(device)

    return ImageTask(name, split(parts.train), split(parts.test))


def cifar10_tasks(parts: Parts, device: Device = "cpu") -> list[ImageTask]:
    """One task for each pair of classes."""
    return [of_classes(parts, "/".join(map(str, pair)), pair, device) for pair in PAIRS]


def cifar100_tasks(parts: Parts, device: Device = "cpu", offset: int = 0) -> list[ImageTask]:
    """One task for every ten classes that are present."""
    groups = [range(i, i + CLASSES) for i in range(0, int(parts.train.labels.max()) + 1, CLASSES)]
    return [of_classes(parts, f"CIFAR-100 {own[0]}–{own[-1]}", own, device, offset) for own in groups]


def split_cifar_tasks(ten: Parts, hundred: Parts, device: Device = "cpu") -> list[ImageTask]:
    """CIFAR-10, then five tasks of ten classes of CIFAR-100 (Zenke et al., 2017; Pan et al., 2020)."""
    whole = of_classes(ten, "CIFAR-10", range(10), device)
    return [whole, *cifar100_tasks(first_half(hundred), device, OFFSET)]


def first_half(parts: Parts) -> Parts:
    """The images of the first fifty classes of CIFAR-100: what the compact files hold."""
    train, test = (Images(*(array[one.labels < 50] for array in one)) for one in parts)
    return Parts(train, test)


def _add(name: str, text: str, tasks_of: Callable[..., list[ImageTask]], *datasets: DataSet) -> None:
    """Register a stream whose tasks `tasks_of` makes from the images of these data sets."""
    whole = tasks_of is cifar100_tasks

    def build(request: Request) -> Source:
        every = [read_cifar(one, request.data, whole=whole, on_progress=request.on_progress) for one in datasets]
        tasks = tasks_of(*every, request.device)
        advice = "; ten tasks need the official archive" if whole and len(tasks) == 5 else ""
        chosen = first_tasks(name, tasks, request.options.tasks, advice)
        return lambda seed: image_tasks(name, chosen, request.options, seed)

    BENCHMARKS.add(name, BenchmarkSpec(text, build, IMAGES, datasets=tuple(one.name for one in datasets)))


_add("split-cifar", "6 tasks: CIFAR-10, then ten classes of CIFAR-100 at a time", split_cifar_tasks, CIFAR10, CIFAR100)
_add("split-cifar10", "5 tasks, two classes of CIFAR-10 each", cifar10_tasks, CIFAR10)
_add("split-cifar100", "10 tasks (5 from the compact files), ten classes of CIFAR-100 each", cifar100_tasks, CIFAR100)
