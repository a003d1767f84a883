"""Your own tasks: arrays, a folder of .npz and .csv files or of images, or a .toml file that describes it."""

import csv
import io
import math
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from frcl.data.images import has_images, read_images
from frcl.data.options import BenchmarkOptions, TrainOn
from frcl.data.tasks import Device, Split, Task, TaskList, first_tasks
from frcl.errors import DataError, OptionError
from frcl.files import open_regular, read_arrays, read_document
from frcl.options import LARGEST_INT
from frcl.registry import suggestion
from frcl.seeding import fork

Array = np.ndarray[Any, np.dtype[Any]]
Parts = dict[str, tuple[Array, Array]]
"""x and y of each part of a task as given, by the suffix of their names; y holds whole numbers, floats or strings."""

DEFAULTS: dict[str, Any] = {
    "test_share": 0.2,  # held out for testing where a task has no test part
    "validation_share": 0.1,  # held out of the rest for validation where a task has no validation part
    "label": None,  # the column of a .csv file with the labels; None: "label", otherwise the last one
    "shape": None,  # each input is reshaped to this, [28, 28] for instance
    "size": None,  # images are resized to this height and width
}
KEYS = ("name", "folder", "files", *DEFAULTS)
SUFFIXES = ("", "_test", "_validation")
LARGEST = 4 << 30  # bytes of a file, and of what it unpacks to
LONGEST = 1000  # characters of a label that is a number
ARRAYS = tuple(f"{array}{suffix}" for suffix in SUFFIXES for array in "xy")
Arrays = tuple[Any, Any] | tuple[Any, Any, Any, Any]  # (x, y) or (x, y, x_test, y_test): arrays, tensors, lists
SHARES = (("test_share", 1e-9, "between 0 and 1"), ("validation_share", 0.0, "from 0 to less than 1"))


def own_tasks(
    source: Sequence[Arrays] | str | Path, *, name: str | None = None, test_share: float | None = None,
    validation_share: float | None = None, options: BenchmarkOptions | None = None,
    seed: int = 0, device: Device = "cpu",
) -> TaskList:  # fmt: skip
    """A benchmark from your data.

        tasks = own_tasks([(x_0, y_0), (x_1, y_1)])       # arrays; or (x, y, x_test, y_test)
        tasks = own_tasks("folder")                       # one .npz or .csv file per task, or TASK/CLASS/*.png
        tasks = own_tasks("data.toml")                    # the same, described

    x is [N, ...] numbers (bytes are taken as pixels and divided by 255), y is [N] labels, whole numbers or names,
    or floats for regression. Where a task has no test part, `test_share` of the examples of each label (0.2 by
    default) is held out by the seed, and so is `validation_share` of the rest (0.1 by default).
    """
    options = options or BenchmarkOptions()
    if isinstance(source, str | Path):
        config = read_config(Path(source))
        raw = [_from_file(file, config) for file in config["files"]]
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
                shapes = f"have shape {list(split.x.shape[1:])}, but those of {tasks[0].name} have {wanted}"
                raise DataError(f"{own}: {what} inputs {shapes}; all tasks need the same")
    return TaskList(config["name"], tuple(tasks), names)


def _from_arrays(name: str, given: Arrays) -> tuple[str, Parts]:
    if not isinstance(given, tuple | list) or len(given) not in (2, 4):
        size = f" of {len(given)}" if isinstance(given, tuple | list) else ""
        raise DataError(f"{name} must be (x, y) or (x, y, x_test, y_test), not a {type(given).__name__}{size}")
    x, y, *test = (as_array(part, name) for part in given)
    return name, {"": (x, y)} | ({"_test": (test[0], test[1])} if test else {})


def _encoding(tasks: Sequence[tuple[str, Parts]]) -> tuple[type[np.generic], tuple[str, ...] | None]:
    """The type of the labels of all tasks, floats if one task has them; and their names, sorted, if they have names."""
    labels = [(name, y) for name, parts in tasks for _, y in parts.values()]
    kinds = {label_kind(y, name): name for name, y in labels}
    if "names" in kinds and "real" in kinds:
        both = f"{kinds['names']} has names as labels, but {kinds['real']} has numbers that are not whole"
        raise DataError(f"{both}; all tasks must be of one kind")
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
        for label in np.unique(y).tolist():
            if len(str(label)) > LONGEST or abs(int(label)) > LARGEST_INT:
                raise DataError(f"{where}: label {str(label)[:30]} does not fit 64 bits; use names or smaller numbers")
        return "whole"
    try:
        numbers = y.astype(float)
    except ValueError:
        return "names"
    if not np.isfinite(numbers).all():
        raise DataError(f"{where}: a target is NaN or infinite; remove or replace it first")
    return "real"


def _split(
    task: str, suffix: str, x: Array, y: Array, shape: Sequence[int] | None, dtype: Any, names: Sequence[str] | None
) -> Split:
    where = f"{task}, {suffix[1:]} part" if suffix else task
    if x.dtype.kind not in "buif":
        raise DataError(f"{where}: x has type {x.dtype}; expected numbers")
    if x.ndim < 2 or len(x) == 0:
        raise DataError(f"{where}: x has shape {x.shape}; expected [N, ...] with at least one example")
    if len(x) != len(y):
        raise DataError(f"{where}: {len(x)} inputs but {len(y)} labels")
    with np.errstate(over="ignore"):
        inputs = torch.from_numpy(np.ascontiguousarray(x, dtype=np.float32))
    inputs = inputs / 255.0 if x.dtype == np.uint8 else inputs
    if not bool(inputs.isfinite().all()):
        row = int((~inputs.flatten(1).isfinite().all(dim=1)).nonzero()[0])
        raise DataError(f"{where}: example {row} has NaN or infinite values; remove or replace them first")
    if shape is not None:
        if inputs[0].numel() != math.prod(shape):
            raise DataError(f"{where}: {inputs[0].numel()} values per example do not fill the shape {list(shape)}")
        inputs = inputs.reshape(-1, *shape)
    labels = y if names is None else np.searchsorted(names, y.astype(str))
    return Split(inputs, torch.from_numpy(np.ascontiguousarray(labels.astype(dtype))))


def _task(name: str, parts: dict[str, Split], config: dict[str, Any], train_on: TrainOn, key: str, seed: int) -> Task:
    """One task; the test and validation parts that are not given are held out of the training part."""
    train, test, validation = parts[""], parts.get("_test"), parts.get("_validation")
    if test is None:
        train, test = _hold_out(train, config["test_share"], fork(seed, f"{key}/test"))
        if len(test) == 0:
            share = f"test_share={config['test_share']:g} of its {len(train)} examples leaves none of any label"
            hint = "give a test part, more examples or a larger share"
            raise DataError(f"{name} has no test part, and {share} for testing: {hint}")
    if validation is None:
        both, (train, validation) = train, _hold_out(train, config["validation_share"], fork(seed, f"{key}/validation"))
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


# -- reading the .toml file, and the .npz or .csv file of each task


def read_config(path: Path) -> dict[str, Any]:
    """The settings in a .toml file, or the default ones of a folder: `name`, `files` and those of DEFAULTS."""
    if path.suffix.lower() != ".toml":
        return DEFAULTS | {"name": path.resolve().name, "files": _files_in(path)}
    table = read_document(path, tomllib.loads)
    for key, value in table.items():
        if key not in KEYS:
            raise OptionError(f"{path}: unknown key {key!r}{suggestion(key, KEYS)}")
        if key in ("name", "folder", "label") and not isinstance(value, str):
            raise OptionError(f"{path}: {key} must be a string, not {value!r}")
    for key, sides in (("shape", table.get("shape", [1])), ("size", table.get("size", [1, 1]))):
        if not (isinstance(sides, list) and sides and all(type(side) is int and side > 0 for side in sides)):
            raise OptionError(f"{path}: {key} must be a list of whole numbers of at least 1, not {sides!r}")
    if len(table.get("size", [1, 1])) != 2:
        raise OptionError(f"{path}: size is the height and the width of images, not {table['size']!r}")
    folder, names = path.parent / table.get("folder", ""), table.get("files")
    if names is None and "folder" not in table:
        raise OptionError(f"{path} must say where the tasks are: folder = ... or files = [...]")
    if names is not None and not (isinstance(names, list) and names and all(isinstance(name, str) for name in names)):
        raise OptionError(f"{path}: files must be a list of file names, not {names!r}")
    for name in (name for name in names or () if not (folder / name).is_dir()):
        if Path(name).suffix.lower() not in READERS:
            raise DataError(f"{path}: {name!r} is neither an .npz nor a .csv file")
        if not (folder / name).is_file():
            raise DataError(f"{path} names {name!r}, but there is no file {folder / name}")
    files = _files_in(folder) if names is None else [folder / name for name in names]
    return DEFAULTS | {"name": path.stem} | table | {"files": files}


def _files_in(folder: Path) -> list[Path]:
    """The .npz and .csv files and folders of images by name; digits are compared as numbers, so 2 comes before 10."""
    if not folder.is_dir():
        raise DataError(f"there is no folder {folder}; expected one with an .npz or .csv file for each task")
    inside = [path for path in folder.iterdir() if path.name[0] != "."]
    found = [p for p in inside if (has_images(p) if p.is_dir() else p.suffix.lower() in READERS)]
    if not found:
        wanted = "one there for each task, or a folder with images, TASK/CLASS/*.png"
        raise DataError(f"the folder {folder} has no .npz or .csv file; put {wanted}")

    def key(path: Path) -> tuple[list[tuple[str, int]], str]:
        parts = re.split(r"(\d+)", path.name)
        return [("", int(part)) if part.isdecimal() else (part, -1) for part in parts], path.name

    return sorted(found, key=key)


def _from_file(path: Path, config: dict[str, Any]) -> tuple[str, Parts]:
    """The name of one task, and the arrays of its file or folder in pairs."""
    is_folder = path.is_dir()
    arrays = read_images(path, config["size"]) if is_folder else READERS[path.suffix.lower()](path, config["label"])
    for name in arrays:
        other = ("y" if name[0] == "x" else "x") + name[1:]
        if other not in arrays:
            raise DataError(f"{path} has {name}, but no {other}")
    if "x" not in arrays:
        raise DataError(f"{path} has no arrays x and y; it has {', '.join(arrays) or 'nothing'}")
    pairs = {suffix: (arrays[f"x{suffix}"], arrays[f"y{suffix}"]) for suffix in SUFFIXES if f"x{suffix}" in arrays}
    return path.name if is_folder else path.stem, pairs


def as_array(given: Any, where: str) -> Array:
    """A tensor, a list or anything else that NumPy converts, as an array."""
    try:
        array = np.asarray(given.detach().cpu() if isinstance(given, Tensor) else given)
    except ValueError as error:
        raise DataError(f"{where}: the rows have different lengths, or it is not an array: {error}") from error
    if array.dtype.kind == "O":
        raise DataError(f"{where}: an array of Python objects is not read; convert it to numbers or strings first")
    return array


def _read_npz(path: Path, label: str | None) -> dict[str, Array]:
    """Arrays x and y, and optionally x_test, y_test, x_validation, y_validation; no pickled objects."""
    try:
        with open_regular(path, LARGEST) as file:
            arrays = read_arrays(file, LARGEST)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise DataError(f"cannot read {path} as an .npz file: {reason}; use numpy.savez(path, x=x, y=y)") from error
    for name in (name for name in arrays if name not in ARRAYS):
        raise DataError(f"{path}: unknown array {name!r}{suggestion(name, ARRAYS)}")
    return arrays


def read_csv(path: Path, label: str | None, task: str | None = None) -> dict[str, Array]:
    """One example per line; labels are in the column `label` if one is named so, else the last; `task` is no input."""
    try:
        with open_regular(path, LARGEST) as file:
            reader = csv.reader(io.TextIOWrapper(file, "utf-8-sig", newline=""), strict=True)
            rows = [(reader.line_num, [cell.strip() for cell in cells]) for cells in reader if any(cells)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"cannot read {path} as a .csv file: {error}") from error
    if not rows:
        raise DataError(f"{path} is empty")
    first, wanted = rows[0][1], label or "label"
    if len(first) < 2:
        raise DataError(f"{path} has one column; expected inputs and a label, separated by commas")
    for line, cells in (row for row in rows if len(row[1]) != len(first)):
        raise DataError(f"{path}, line {line} has {len(cells)} cells; the first line has {len(first)}")
    if label is not None and label not in first:
        hint = suggestion(label, [cell for cell in first if not _is_number(cell)])
        raise DataError(f"{path} has no column {label!r} for the labels in its first line{hint}")
    has_header = wanted in first or not any(_is_number(cell) or not cell for cell in first)
    column = first.index(wanted) if wanted in first else len(first) - 1
    body = rows[has_header:]
    if not body:
        raise DataError(f"{path} has a line of column names, but no examples")
    tasks: dict[str, Array] = {}
    if task is not None:
        if not has_header or task not in first:
            raise DataError(f"{path} has no column {task!r} in its first line{suggestion(task, first)}")
        place = first.index(task)
        tasks["task"] = np.array([cells.pop(place) for _, cells in body])
        column -= place < column
    labels = [cells.pop(column) for _, cells in body]
    if not has_header and len(labels) > 1 and not _is_number(labels[0]) and all(map(_is_number, labels[1:])):
        hint = f"call the labels' column 'label', or say label = {labels[0]!r} in the .toml file"
        raise DataError(f"{path}: the first line looks like column names that are numbers; {hint}")
    for (line, cells), own in zip(body, labels, strict=True):
        if not own:
            raise DataError(f"{path}, line {line}: the label is empty")
        for cell in (cell for cell in cells if not _is_number(cell)):
            raise DataError(f"{path}, line {line}: {cell!r} is not a number")
    return {"x": np.array([cells for _, cells in body]).astype(float), "y": np.array(labels), **tasks}


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


READERS = {".npz": _read_npz, ".csv": read_csv}
