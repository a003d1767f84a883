"""Your own tasks: arrays, a folder of .npz and .csv files, or a .toml file that describes such a folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from frcl.data.options import BenchmarkOptions, TrainOn
from frcl.data.own_config import OwnConfig, folder_config, read_config
from frcl.data.own_files import Array, RawTask, as_array, read_task
from frcl.data.own_labels import encode_labels
from frcl.data.tasks import Split, Task, TaskList, first_tasks
from frcl.errors import DataError
from frcl.seeding import fork

Arrays = tuple[Any, Any] | tuple[Any, Any, Any, Any]  # (x, y) or (x, y, x_test, y_test): arrays, tensors, lists


def own_tasks(
    source: Sequence[Arrays] | str | Path,
    *,
    name: str | None = None,
    test_share: float | None = None,
    validation_share: float | None = None,
    options: BenchmarkOptions | None = None,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> TaskList:
    """A benchmark from your data.

        tasks = own_tasks([(x_0, y_0), (x_1, y_1)])       # arrays; or (x, y, x_test, y_test)
        tasks = own_tasks("folder")                       # one .npz or .csv file a task
        tasks = own_tasks("data.toml")                    # the same, described

    x is [N, ...] numbers (bytes are taken as pixels and divided by 255), y is [N] labels, whole numbers or names,
    or floats for regression. Where a task has no test part, `test_share` of the examples of each label is held
    out by the seed (0.2 unless given), and so is `validation_share` of the rest (0.1).
    """
    options = BenchmarkOptions() if options is None else options
    config, raw = _read(source)
    config = config.changed(name=name, test_share=test_share, validation_share=validation_share)
    encoded, label_names = encode_labels(raw)
    chosen = first_tasks(config.name, encoded, options.tasks)
    tasks = tuple(
        _task(one, config, options.train_on, f"own/{number}", seed).to(device) for number, one in enumerate(chosen)
    )
    _same_inputs(tasks)
    return TaskList(config.name, tasks, label_names)


def _read(source: Sequence[Arrays] | str | Path) -> tuple[OwnConfig, list[RawTask]]:
    if isinstance(source, str | Path):
        path = Path(source)
        config = read_config(path) if path.suffix.lower() == ".toml" else folder_config(path)
        return config, [read_task(file, config.label) for file in config.files]
    if not source:
        raise DataError("there are no tasks: the list is empty; give one (x, y) or (x, y, x_test, y_test) a task")
    return OwnConfig("own tasks"), [_from_arrays(f"task {number}", given) for number, given in enumerate(source)]


def _from_arrays(name: str, given: Arrays) -> RawTask:
    if not isinstance(given, tuple | list) or len(given) not in (2, 4):
        size = f" of {len(given)}" if isinstance(given, tuple | list) else ""
        raise DataError(f"{name} must be (x, y) or (x, y, x_test, y_test), not a {type(given).__name__}{size}")
    arrays = [as_array(part, name) for part in given]
    return RawTask(name, (arrays[0], arrays[1]), test=(arrays[2], arrays[3]) if len(arrays) == 4 else None)


@dataclass(frozen=True)
class _Learning:
    train: Split
    validation: Split


def _task(raw: RawTask, config: OwnConfig, train_on: TrainOn, stream: str, seed: int) -> Task:
    examples = _split(raw.name, raw.train, config.shape)
    if raw.test is not None:
        test = _split(f"{raw.name}, test part", raw.test, config.shape)
    else:
        examples, test = _hold_out(examples, config.test_share, fork(seed, f"{stream}/test"))
        if len(test) == 0:
            raise DataError(
                f"{raw.name} has no test part, and test_share={config.test_share:g} of its {len(examples)} examples "
                "leaves none of any label for testing: give a test part, more examples or a larger share"
            )
    if raw.validation is not None:
        learning = _Learning(examples, _split(f"{raw.name}, validation part", raw.validation, config.shape))
        both = _joined(learning.train, learning.validation, raw.name)
    else:
        both = examples
        learning = _Learning(*_hold_out(examples, config.validation_share, fork(seed, f"{stream}/validation")))
    train = both if train_on == "train+validation" else learning.train
    task = Task(raw.name, train, learning.validation, test, size=len(train))
    _known_labels(task)
    return task


def _split(where: str, part: tuple[Array, Array], shape: tuple[int, ...] | None) -> Split:
    """x and y as tensors, checked."""
    x, y = part
    if x.dtype.kind not in "buif":
        raise DataError(f"{where}: x has type {x.dtype}; expected numbers")
    if x.ndim < 2 or len(x) == 0:
        raise DataError(f"{where}: x has shape {x.shape}; expected [N, ...] with at least one example")
    if len(x) != len(y):
        raise DataError(f"{where}: {len(x)} inputs but {len(y)} labels")
    with np.errstate(over="ignore"):
        inputs = torch.from_numpy(np.ascontiguousarray(x, dtype=np.float32))
    if x.dtype == np.uint8:
        inputs = inputs / 255.0
    if not bool(inputs.isfinite().all()):
        row = int((~inputs.flatten(1).isfinite().all(dim=1)).nonzero()[0])
        raise DataError(f"{where}: example {row} has NaN or infinite values; remove or replace them first")
    if shape is not None:
        if inputs[0].numel() != int(np.prod(shape)):
            raise DataError(f"{where}: {inputs[0].numel()} values an example do not fill the shape {list(shape)}")
        inputs = inputs.reshape(-1, *shape)
    return Split(inputs, torch.from_numpy(np.ascontiguousarray(y)))


def _hold_out(examples: Split, share: float, generator: torch.Generator) -> tuple[Split, Split]:
    """(kept, held): `share` of the examples of each label, rounded, but never all of them; the order is kept."""
    held = torch.zeros(len(examples), dtype=torch.bool)
    for members in _groups(examples.y):
        count = min(round(share * len(members)), len(members) - 1)
        held[members[torch.randperm(len(members), generator=generator)[:count]]] = True
    return examples[~held], examples[held]


def _groups(y: Tensor) -> list[Tensor]:
    """The indices of the examples of each label; of all examples together for regression."""
    if y.is_floating_point():
        return [torch.arange(len(y))]
    return [(y == label).nonzero()[:, 0] for label in sorted(set(y.tolist()))]


def _joined(first: Split, second: Split, where: str) -> Split:
    if first.x.shape[1:] != second.x.shape[1:]:
        raise DataError(
            f"{where}: inputs have shape {list(first.x.shape[1:])}, but {list(second.x.shape[1:])} for validation"
        )
    return Split(torch.cat([first.x, second.x]), torch.cat([first.y, second.y]))


def _known_labels(task: Task) -> None:
    """Labels that cannot be learned cannot be tested."""
    if task.train.y.is_floating_point():
        return
    known = set(task.train.y.tolist())
    for what, part in (("test", task.test), ("validation", task.validation)):
        unknown = sorted(set(part.y.tolist()) - known)
        if unknown:
            raise DataError(f"{task.name}: label {unknown[0]} is in the {what} part, but not in the training part")


def _same_inputs(tasks: Sequence[Task]) -> None:
    """All parts of all tasks must have inputs of one shape."""
    wanted = tasks[0].train.x.shape[1:]
    for task in tasks:
        for what, part in (("training", task.train), ("validation", task.validation), ("test", task.test)):
            if part.x.shape[1:] != wanted:
                raise DataError(
                    f"{task.name}: {what} inputs have shape {list(part.x.shape[1:])}, but those of {tasks[0].name} "
                    f"have {list(wanted)}; all tasks need the same"
                )
