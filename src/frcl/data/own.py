"""Your own tasks: arrays, a folder of .npz and .csv files, or a .toml file that describes such a folder."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from frcl.data.options import BenchmarkOptions, TrainOn
from frcl.data.own_files import Array, OwnConfig, RawTask, as_array, folder_config, read_config, read_csv, read_npz
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
        tasks = own_tasks("folder")                       # one .npz or .csv file per task
        tasks = own_tasks("data.toml")                    # the same, described

    x is [N, ...] numbers (bytes are taken as pixels and divided by 255), y is [N] labels, whole numbers or names,
    or floats for regression. Where a task has no test part, `test_share` of the examples of each label (0.2 by
    default) is held out by the seed, and so is `validation_share` of the rest (0.1 by default).
    """
    options = BenchmarkOptions() if options is None else options
    config, raw = _read(source)
    config = config.changed(name=name, test_share=test_share, validation_share=validation_share)
    dtype, label_names = _encoding(raw)
    chosen = first_tasks(config.name, raw, options.tasks)
    tasks = []
    for number, one in enumerate(chosen):
        parts = {
            part: None if pair is None else _split(f"{one.name}{where}", pair, config.shape, dtype, label_names)
            for part, where, pair in _parts(one)
        }
        tasks.append(_task(one.name, parts, config, options.train_on, f"own/{number}", seed).to(device))
    _check_inputs(tasks)
    return TaskList(config.name, tuple(tasks), label_names)


def _read(source: Sequence[Arrays] | str | Path) -> tuple[OwnConfig, list[RawTask]]:
    if isinstance(source, str | Path):
        path = Path(source)
        config = read_config(path) if path.suffix.lower() == ".toml" else folder_config(path)
        return config, [
            read_npz(file) if file.suffix.lower() == ".npz" else read_csv(file, config.label) for file in config.files
        ]
    if not source:
        raise DataError("there are no tasks: the list is empty; give one (x, y) or (x, y, x_test, y_test) per task")
    return OwnConfig("own tasks"), [_from_arrays(f"task {number}", given) for number, given in enumerate(source)]


def _from_arrays(name: str, given: Arrays) -> RawTask:
    if not isinstance(given, tuple | list) or len(given) not in (2, 4):
        size = f" of {len(given)}" if isinstance(given, tuple | list) else ""
        raise DataError(f"{name} must be (x, y) or (x, y, x_test, y_test), not a {type(given).__name__}{size}")
    arrays = [as_array(part, name) for part in given]
    return RawTask(name, (arrays[0], arrays[1]), test=(arrays[2], arrays[3]) if len(arrays) == 4 else None)


def _parts(task: RawTask) -> list[tuple[str, str, tuple[Array, Array] | None]]:
    """(name of the part, how a message refers to it, its arrays)."""
    return [
        ("train", "", task.train),
        ("test", ", test part", task.test),
        ("validation", ", validation part", task.validation),
    ]


# -- labels: whole numbers stay, names become numbers, floats are for regression -----------------------------------


def _encoding(tasks: Sequence[RawTask]) -> tuple[type[np.int64] | type[np.float32], tuple[str, ...] | None]:
    """The type of all labels, and the names of labels 0, 1, … if they have names.

    The kind is decided over all tasks: names get one numbering, in sorted order; floats in one task make all floats.
    """
    labels = [(task.name, pair[1]) for task in tasks for _, _, pair in _parts(task) if pair is not None]
    kinds = {label_kind(y, where): where for where, y in labels}
    if "names" in kinds and "real" in kinds:
        raise DataError(
            f"{kinds['names']} has names as labels, but {kinds['real']} has numbers that are not whole; "
            "all tasks must be of one kind"
        )
    if "names" in kinds:
        return np.int64, tuple(sorted({str(label) for _, y in labels for label in np.unique(y)}))
    return (np.float32 if "real" in kinds else np.int64), None


def label_kind(y: Array, where: str) -> Literal["whole", "real", "names"]:
    """Whole numbers, other numbers, or names; strings that read as numbers count as numbers."""
    kind = y.dtype.kind
    if y.ndim != 1 and kind != "f":
        raise DataError(f"{where}: labels have shape {y.shape}; expected one for each example, [N]")
    if kind not in "biufU":
        raise DataError(f"{where}: labels of type {y.dtype} are not read; use whole numbers, strings or floats")
    if kind in "biu" or (kind == "U" and all(re.fullmatch(r"[+-]?\d{1,18}", text) for text in np.unique(y).tolist())):
        return "whole"
    try:
        numbers = y.astype(float)
    except ValueError:
        return "names"
    if not np.isfinite(numbers).all():
        raise DataError(f"{where}: a target is NaN or infinite; remove or replace it first")
    return "real"


# -- tensors -------------------------------------------------------------------------------------------------------


def _split(
    where: str, part: tuple[Array, Array], shape: tuple[int, ...] | None, dtype: Any, names: tuple[str, ...] | None
) -> Split:
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
            raise DataError(f"{where}: {inputs[0].numel()} values per example do not fill the shape {list(shape)}")
        inputs = inputs.reshape(-1, *shape)
    labels = y if names is None else np.searchsorted(names, y.astype(str))
    return Split(inputs, torch.from_numpy(np.ascontiguousarray(labels.astype(dtype))))


def _task(
    name: str, parts: dict[str, Split | None], config: OwnConfig, train_on: TrainOn, stream: str, seed: int
) -> Task:
    """One task; the test and validation parts that are not given are held out of the training part."""
    train, test, validation = parts["train"], parts["test"], parts["validation"]
    assert train is not None
    if test is None:
        train, test = _hold_out(train, config.test_share, fork(seed, f"{stream}/test"))
        if len(test) == 0:
            raise DataError(
                f"{name} has no test part, and test_share={config.test_share:g} of its {len(train)} examples "
                "leaves none of any label for testing: give a test part, more examples or a larger share"
            )
    if validation is None:
        both = train
        train, validation = _hold_out(train, config.validation_share, fork(seed, f"{stream}/validation"))
    elif train.x.shape[1:] != validation.x.shape[1:]:
        shapes = [list(part.x.shape[1:]) for part in (train, validation)]
        raise DataError(f"{name}: inputs have shape {shapes[0]}, but {shapes[1]} for validation")
    else:
        both = Split(torch.cat([train.x, validation.x]), torch.cat([train.y, validation.y]))
    used = both if train_on == "train+validation" else train
    task = Task(name, used, validation, test, size=len(used))
    _check_labels(task)
    return task


def _hold_out(examples: Split, share: float, generator: torch.Generator) -> tuple[Split, Split]:
    """(kept, held): `share` of the examples of each label, rounded, but never all of them; the order is kept."""
    y = examples.y
    groups = (
        [y == label for label in sorted(set(y.tolist()))] if not y.is_floating_point() else [y.new_ones(len(y)) > 0]
    )
    held = torch.zeros(len(examples), dtype=torch.bool)
    for members in (group.nonzero()[:, 0] for group in groups):
        count = min(round(share * len(members)), len(members) - 1)
        held[members[torch.randperm(len(members), generator=generator)[:count]]] = True
    return examples[~held], examples[held]


def _check_labels(task: Task) -> None:
    """A label that is not in the training part cannot be tested."""
    if task.train.y.is_floating_point():
        return
    for what, part in (("test", task.test), ("validation", task.validation)):
        unknown = sorted(set(part.y.tolist()) - set(task.train.y.tolist()))
        if unknown:
            raise DataError(f"{task.name}: label {unknown[0]} is in the {what} part, but not in the training part")


def _check_inputs(tasks: Sequence[Task]) -> None:
    """All parts of all tasks must have inputs of one shape."""
    wanted = tasks[0].train.x.shape[1:]
    for task in tasks:
        for what, part in (("training", task.train), ("validation", task.validation), ("test", task.test)):
            if part.x.shape[1:] != wanted:
                raise DataError(
                    f"{task.name}: {what} inputs have shape {list(part.x.shape[1:])}, but those of {tasks[0].name} "
                    f"have {list(wanted)}; all tasks need the same"
                )
