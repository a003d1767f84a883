"""Your own tasks: arrays, a folder of .npz and .csv files, or a .toml file that describes such a folder."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from frcl.data.options import BenchmarkOptions, TrainOn
from frcl.data.own_files import DEFAULTS, Array, Parts, as_array, read_config, read_parts
from frcl.data.tasks import Device, Split, Task, TaskList, first_tasks
from frcl.errors import DataError, OptionError
from frcl.options import LARGEST_INT
from frcl.seeding import fork

Arrays = tuple[Any, Any] | tuple[Any, Any, Any, Any]  # (x, y) or (x, y, x_test, y_test): arrays, tensors, lists
SHARES = (("test_share", 1e-9, "between 0 and 1"), ("validation_share", 0.0, "from 0 to less than 1"))


def own_tasks(
    source: Sequence[Arrays] | str | Path, *, name: str | None = None, test_share: float | None = None,
    validation_share: float | None = None, options: BenchmarkOptions | None = None,
    seed: int = 0, device: Device = "cpu",
) -> TaskList:  # fmt: skip
    """A benchmark from your data.

        tasks = own_tasks([(x_0, y_0), (x_1, y_1)])       # arrays; or (x, y, x_test, y_test)
        tasks = own_tasks("folder")                       # one .npz or .csv file per task
        tasks = own_tasks("data.toml")                    # the same, described

    x is [N, ...] numbers (bytes are taken as pixels and divided by 255), y is [N] labels, whole numbers or names,
    or floats for regression. Where a task has no test part, `test_share` of the examples of each label (0.2 by
    default) is held out by the seed, and so is `validation_share` of the rest (0.1 by default).
    """
    options = options or BenchmarkOptions()
    if isinstance(source, str | Path):
        config = read_config(Path(source))
        raw = [(file.stem, read_parts(file, config["label"])) for file in config["files"]]
    else:
        config = DEFAULTS | {"name": "own tasks"}
        raw = [_from_arrays(f"task {number}", given) for number, given in enumerate(source)]
    if not raw:
        raise DataError("there are no tasks: the list is empty; give one (x, y) or (x, y, x_test, y_test) per task")
    given = {"name": name, "test_share": test_share, "validation_share": validation_share}
    config |= {key: value for key, value in given.items() if value is not None}
    for key, lowest, span in SHARES:
        value = config[key]
        if isinstance(value, bool) or not isinstance(value, int | float) or not lowest <= value < 1:
            where = f"{source}: " if given[key] is None else ""
            raise OptionError(f"{where}{key} must be a number {span}, not {value!r}")
    dtype, names = _encoding(raw)
    tasks: list[Task] = []
    for number, (own, parts) in enumerate(first_tasks(config["name"], raw, options.tasks)):
        splits = {part: _split(own, part, *pair, config["shape"], dtype, names) for part, pair in parts.items()}
        task = _task(own, splits, config, options.train_on, f"own/{number}", seed).to(device)
        tasks.append(task)
        wanted = list(tasks[0].train.x.shape[1:])
        for what, split in (("training", task.train), ("validation", task.validation), ("test", task.test)):
            if list(split.x.shape[1:]) != wanted:
                raise DataError(
                    f"{own}: {what} inputs have shape {list(split.x.shape[1:])}, but those of {tasks[0].name} "
                    f"have {wanted}; all tasks need the same"
                )
    return TaskList(config["name"], tuple(tasks), names)


def _from_arrays(name: str, given: Arrays) -> tuple[str, Parts]:
    if not isinstance(given, tuple | list) or len(given) not in (2, 4):
        size = f" of {len(given)}" if isinstance(given, tuple | list) else ""
        raise DataError(f"{name} must be (x, y) or (x, y, x_test, y_test), not a {type(given).__name__}{size}")
    x, y, *test = (as_array(part, name) for part in given)
    return name, {"": (x, y)} | ({"_test": (test[0], test[1])} if test else {})


def _encoding(tasks: Sequence[tuple[str, Parts]]) -> tuple[type[np.generic], tuple[str, ...] | None]:
    """The type of all labels, and the names of labels 0, 1, … if they have names.

    The kind is decided over all tasks: names get one numbering, in sorted order; floats in one task make all floats.
    """
    labels = [(name, y) for name, parts in tasks for _, y in parts.values()]
    kinds = {label_kind(y, name): name for name, y in labels}
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
    if kind in "biu" or (kind == "U" and all(re.fullmatch(r"[+-]?\d+", text) for text in np.unique(y).tolist())):
        large = [label for label in np.unique(y).tolist() if not _fits_int64(str(label))]
        if large:
            raise DataError(f"{where}: label {str(large[0])[:30]} does not fit 64 bits; use names or smaller numbers")
        return "whole"
    try:
        numbers = y.astype(float)
    except ValueError:
        return "names"
    if not np.isfinite(numbers).all():
        raise DataError(f"{where}: a target is NaN or infinite; remove or replace it first")
    return "real"


def _fits_int64(number: str) -> bool:
    digits = number.lstrip("+-0")
    return digits in ("", "False", "True") or (len(digits) < 20 and int(digits) <= LARGEST_INT)


def _split(
    task: str, suffix: str, x: Array, y: Array, shape: Sequence[int] | None, dtype: Any, names: Sequence[str] | None
) -> Split:
    """x and y as tensors, checked."""
    where = f"{task}, {suffix[1:]} part" if suffix else task
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
        if inputs[0].numel() != math.prod(shape):
            raise DataError(f"{where}: {inputs[0].numel()} values per example do not fill the shape {list(shape)}")
        inputs = inputs.reshape(-1, *shape)
    labels = y if names is None else np.searchsorted(names, y.astype(str))
    return Split(inputs, torch.from_numpy(np.ascontiguousarray(labels.astype(dtype))))


def _task(
    name: str, parts: dict[str, Split], config: dict[str, Any], train_on: TrainOn, stream: str, seed: int
) -> Task:
    """One task; the test and validation parts that are not given are held out of the training part."""
    train, test, validation = parts[""], parts.get("_test"), parts.get("_validation")
    if test is None:
        train, test = _hold_out(train, config["test_share"], fork(seed, f"{stream}/test"))
        if len(test) == 0:
            raise DataError(
                f"{name} has no test part, and test_share={config['test_share']:g} of its {len(train)} examples "
                "leaves none of any label for testing: give a test part, more examples or a larger share"
            )
    both = train
    if validation is None:
        train, validation = _hold_out(train, config["validation_share"], fork(seed, f"{stream}/validation"))
    elif train.x.shape[1:] != validation.x.shape[1:]:
        shapes = [list(part.x.shape[1:]) for part in (train, validation)]
        raise DataError(f"{name}: inputs have shape {shapes[0]}, but {shapes[1]} for validation")
    else:
        both = Split(torch.cat([train.x, validation.x]), torch.cat([train.y, validation.y]))
    used = both if train_on == "train+validation" else train
    for what, part in (("test", test), ("validation", validation)):
        unknown = sorted(set(part.y.tolist()) - set(used.y.tolist())) if not used.y.is_floating_point() else []
        if unknown:
            raise DataError(f"{name}: label {unknown[0]} is in the {what} part, but not in the training part")
    return Task(name, used, validation, test, size=len(used))


def _hold_out(examples: Split, share: float, generator: torch.Generator) -> tuple[Split, Split]:
    """(kept, held): `share` of the examples of each label, rounded, but never all of them; the order is kept."""
    y = examples.y
    groups = [torch.ones(len(y)) > 0] if y.is_floating_point() else [y == label for label in y.unique()]
    held = torch.zeros(len(y), dtype=torch.bool)
    for members in (group.nonzero()[:, 0] for group in groups):
        count = min(round(share * len(members)), len(members) - 1)
        held[members[torch.randperm(len(members), generator=generator)[:count]]] = True
    return examples[~held], examples[held]
