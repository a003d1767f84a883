"""Your own data: arrays, folders, and the .toml file that describes them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from frcl.data import BenchmarkOptions, open_benchmark, own_tasks
from frcl.errors import DataError, FrclError, OptionError

RNG = np.random.default_rng(0)


def examples(n: int = 40, shape: tuple[int, ...] = (3,), classes: int = 2) -> tuple[np.ndarray, np.ndarray]:
    """Inputs whose first value is their own number, so that they can be told apart."""
    x = RNG.random((n, *shape)).astype(np.float32)
    x.reshape(n, -1)[:, 0] = np.arange(n)
    return x, np.arange(n) % classes


def numbers(x: torch.Tensor) -> list[int]:
    return [int(value) for value in x.flatten(1)[:, 0]]


def write_csv(path: Path, *lines: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return path


def csv_lines(n: int = 10, label: Any = lambda k: k % 2) -> list[str]:
    return [f"{k},{k / 2},{label(k)}" for k in range(n)]


def test_three_lines_of_python() -> None:
    tasks = own_tasks([examples(), examples(50, classes=5)])
    task = tasks.task(1)
    assert (tasks.name, len(tasks), tasks.input_shape, task.name) == ("own tasks", 2, (3,), "task 1")
    assert sorted(numbers(task.train.x) + numbers(task.test.x)) == list(range(50))
    assert torch.bincount(task.test.y).tolist() == [2] * 5  # a fifth of each label
    assert set(numbers(task.validation.x)) < set(numbers(task.train.x))
    assert torch.equal(torch.tensor(numbers(task.train.x)) % 5, task.train.y)
    assert (task.train.x.dtype, task.train.y.dtype) == (torch.float32, torch.int64)
    assert task.size == len(task.train) == 40


def test_a_test_part_is_used_as_it_is() -> None:
    x, y = examples()
    x_test, y_test = examples(7)
    task = own_tasks([(x, y, x_test, y_test)]).task(0)
    assert torch.equal(task.test.x, torch.from_numpy(x_test))
    assert torch.equal(task.test.y, torch.from_numpy(y_test))
    assert torch.equal(task.train.x, torch.from_numpy(x))


def test_validation_is_kept_apart_where_only_train_is_trained_on() -> None:
    options = BenchmarkOptions(train_on="train")
    task = own_tasks([examples(100)], validation_share=0.25, test_share=0.2, options=options).task(0)
    assert (len(task.train), len(task.validation), len(task.test), task.size) == (60, 20, 20, 60)
    parts = [set(numbers(part.x)) for part in (task.train, task.validation, task.test)]
    assert set.union(*parts) == set(range(100))
    assert sum(map(len, parts)) == 100


@pytest.mark.usefixtures("global_random_state_untouched")
def test_what_is_held_out_depends_on_the_seed() -> None:
    data = [examples(), examples()]
    tests = [[numbers(own_tasks(data, seed=seed).test_split(k).x) for k in (0, 1)] for seed in (1, 1, 2)]
    assert tests[0] == tests[1] != tests[2]
    assert tests[0][0] != tests[0][1]


def test_no_label_loses_all_its_examples() -> None:
    x, _ = examples(6)
    task = own_tasks([(x, [0, 0, 0, 0, 1, 1])], test_share=0.9).task(0)
    assert sorted(task.train.y.tolist()) == [0, 1]


def test_tensors_lists_and_bytes_are_understood() -> None:
    pixels = torch.tensor([[0, 51], [255, 0], [1, 2], [3, 4]], dtype=torch.uint8)
    task = own_tasks([(pixels, [True, False, True, False], [[0, 255]], [1])]).task(0)
    assert torch.equal(task.train.x[:2], torch.tensor([[0.0, 0.2], [1.0, 0.0]]))
    assert task.train.y.tolist() == [1, 0, 1, 0]
    assert task.test.x.tolist() == [[0.0, 255.0]]  # not bytes: taken as they are
    assert (own_tasks([examples(), examples()], options=BenchmarkOptions(tasks=1))).tasks[0].name == "task 0"


def test_names_get_one_numbering_over_all_tasks() -> None:
    x, _ = examples(4)
    tasks = own_tasks([(x, ["dog", "cat", "dog", "cat"], x, ["cat"] * 4), (x, ["eel", "cat"] * 2, x, ["eel"] * 4)])
    assert tasks.label_names == ("cat", "dog", "eel")
    assert tasks.task(0).train.y.tolist() == [1, 0, 1, 0]
    assert tasks.task(1).train.y.tolist() == [2, 0, 2, 0]
    assert tasks.task(1).test.y.tolist() == [2, 2, 2, 2]


def test_labels_that_are_numbers_keep_their_values() -> None:
    x, _ = examples(4)
    tasks = own_tasks([(x, [7, -3, 7, -3], x, [7, 7, 7, 7])])
    assert tasks.task(0).train.y.tolist() == [7, -3, 7, -3]
    assert tasks.label_names is None


def test_floats_are_for_regression() -> None:
    x, _ = examples(20)
    tasks = own_tasks([(x, np.linspace(0, 1, 20)), (x, np.arange(20))])
    assert all(tasks.task(k).train.y.dtype == torch.float32 for k in (0, 1))
    assert len(tasks.task(0).test) == 4
    several = own_tasks([(x, RNG.random((20, 3)))])
    assert several.task(0).train.y.shape == (16, 3)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "the list is empty"),
        ([(1, 2, 3)], r"task 0 must be \(x, y\) or \(x, y, x_test, y_test\), not a tuple of 3"),
        ([5], "task 0 must be .* not a int"),
        ([([[1.0], [2.0, 3.0]], [0, 1])], "task 0: the rows have different lengths"),
        ([([[1.0], [2.0]], [0, 1, 2])], "task 0: 2 inputs but 3 labels"),
        ([([1.0, 2.0], [0, 1])], r"x has shape \(2,\); expected \[N, ...\]"),
        ([(np.zeros((0, 3)), np.zeros(0, int))], "with at least one example"),
        ([([["a"], ["b"]], [0, 1])], "x has type <U1; expected numbers"),
        ([(np.zeros((4, 2), complex), [0, 1, 0, 1])], "x has type complex128"),
        ([([[1.0], [np.nan]], [0, 1])], "example 1 has NaN or infinite values"),
        ([([[1.0], [1e300]], [0, 1])], "example 1 has NaN or infinite values"),
        ([([[1.0], [2.0]], [0.5, np.inf])], "a target is NaN or infinite"),
        ([([[1.0], [2.0]], [[0], [1]])], r"labels have shape \(2, 1\); expected one for each example"),
        ([([[1.0], [2.0]], np.array([{}, {}]))], "Python objects"),
        ([([[1.0], [2.0]], np.array([1j, 2]))], "labels of type complex128"),
        ([([[1.0], [2.0]], [0, 1])], "no test part, and test_share=0.2 of its 2 examples leaves none"),
        ([([[1.0], [2.0]], [0, 1], [[1.0]], [2])], "label 2 is in the test part, but not in the training part"),
        (
            [([[1.0], [2.0]], [0, 1], [[1.0, 2.0]], [1])],
            r"test inputs have shape \[2\], but those of task 0 have \[1\]",
        ),
        (
            [examples(), examples(shape=(4,))],
            r"task 1: training inputs have shape \[4\], but those of task 0 have \[3\]",
        ),
        ([(np.zeros((10, 1)), ["a", "b"] * 5), (np.zeros((10, 1)), [0.5, 1.5] * 5)], "all tasks must be of one kind"),
    ],
)
def test_unusable_arrays_are_refused(given: Any, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        own_tasks(given)
    assert "\n" not in str(caught.value)


def test_a_folder_of_npz_files_in_order_of_name(tmp_path: Path) -> None:
    for number in (10, 2, 1):
        x, y = examples(20, (4, 4))
        np.savez(tmp_path / f"task{number}.npz", x=x, y=y + number)
    (tmp_path / "notes.txt").write_text("not a task")
    (tmp_path / ".hidden.csv").write_text("not a task either")
    tasks = own_tasks(tmp_path)
    assert tasks.name == tmp_path.name
    assert [tasks.task(k).name for k in range(3)] == ["task1", "task2", "task10"]
    assert tasks.input_shape == (4, 4)
    assert set(tasks.task(2).train.y.tolist()) == {10, 11}


def test_all_parts_of_an_npz_file_are_used(tmp_path: Path) -> None:
    x, y = examples(20)
    np.savez(tmp_path / "a.npz", x=x, y=y, x_test=x[:4], y_test=y[:4], x_validation=x[4:7] + 100, y_validation=y[4:7])
    both, train = (
        own_tasks(tmp_path, options=BenchmarkOptions(train_on=how)).task(0) for how in ("train+validation", "train")
    )
    assert numbers(train.train.x) == list(range(20))
    assert numbers(both.train.x) == [*range(20), 104, 105, 106]
    for task in (both, train):
        assert numbers(task.validation.x) == [104, 105, 106]
        assert numbers(task.test.x) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": np.zeros((4, 2))}, "has x, but no y"),
        ({"x": np.zeros((4, 2)), "y": np.zeros(4, int), "y_test": np.zeros(4, int)}, "has y_test, but no x_test"),
        ({"images": np.zeros((4, 2))}, "unknown array 'images'"),
        ({"x": np.zeros((4, 2)), "y": np.zeros(4, int), "x_tests": np.zeros(1)}, "did you mean 'x_test'"),
        ({}, "has no arrays x and y; it has nothing"),
        ({"x": np.array([{}]), "y": np.zeros(1)}, "holds Python objects, which are not read"),
        (
            {"x": np.ones((4, 2)), "y": [0, 1, 0, 1], "x_validation": np.ones((1, 3)), "y_validation": [0]},
            r"inputs have shape \[2\], but \[3\] for validation",
        ),
    ],
)
def test_unusable_npz_files_are_refused(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(DataError, match=message):
        own_tasks(tmp_path, test_share=0.5)


def test_files_that_are_not_npz_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    for content in (b"", b"nonsense", b"\x80\x04K\x01."):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"cannot read .*a\.npz as an \.npz file: File is not a zip file"):
            own_tasks(tmp_path)
    with path.open("wb") as file:
        np.save(file, np.zeros(3))
    with pytest.raises(DataError, match=r"a\.npz as an \.npz file: File is not a zip file"):
        own_tasks(tmp_path)
    x, y = examples()
    np.savez(path, x=x, y=y)
    damaged = bytearray(path.read_bytes())
    damaged[200] ^= 255
    path.write_bytes(damaged)
    with pytest.raises(DataError, match=r"cannot read .*a\.npz as an \.npz file: Bad CRC"):
        own_tasks(tmp_path)


@pytest.mark.parametrize(
    "lines",
    [
        csv_lines(),
        ["width,height,kind", *csv_lines()],
        ["width,height,label", *csv_lines()],
        ["0,1,label", *csv_lines()],
        ["label,width,height", *[f"{k % 2},{k},{k / 2}" for k in range(10)]],
        ['"width","height, in cm","label"', "", *[line.replace(",", " , ") for line in csv_lines()], ""],
        ["\ufeffwidth,height,kind", *csv_lines()],
    ],
    ids=["bare", "header", "label last", "numbers as names", "label first", "quotes and spaces", "byte order mark"],
)
def test_csv_with_and_without_a_first_line_of_names(tmp_path: Path, lines: list[str]) -> None:
    write_csv(tmp_path / "a.csv", *lines)
    task = own_tasks(tmp_path).task(0)
    x = torch.cat([task.train.x, task.test.x])
    y = torch.cat([task.train.y, task.test.y])
    assert sorted(numbers(x)) == list(range(10))
    assert torch.equal(x[:, 1], x[:, 0] / 2)
    assert torch.equal(x[:, 0].long() % 2, y)
    assert y.dtype == torch.int64


def test_csv_labels_may_be_names_or_floats(tmp_path: Path) -> None:
    write_csv(tmp_path / "names" / "1.csv", *csv_lines(label=lambda k: "cat" if k % 2 else "dog"))
    write_csv(tmp_path / "names" / "2.csv", *csv_lines(label=lambda k: k % 2 + 3))
    tasks = own_tasks(tmp_path / "names")
    assert tasks.label_names == ("3", "4", "cat", "dog")
    assert all(
        int(y) == 3 - int(x) % 2 for x, y in zip(tasks.task(0).train.x[:, 0], tasks.task(0).train.y, strict=True)
    )
    assert set(tasks.task(1).train.y.tolist()) == {0, 1}
    write_csv(tmp_path / "floats" / "1.csv", *csv_lines(label=lambda k: k / 4))
    regression = own_tasks(tmp_path / "floats").task(0)
    assert regression.train.y.dtype == torch.float32
    assert torch.equal(regression.train.y, regression.train.x[:, 0] / 4)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "a.csv is empty"),
        (["a,b,label"], "a line of column names, but no examples"),
        (["1", "2"], "has one column"),
        (["1,2,0", "1,2"], "line 2 has 2 cells; the first line has 3"),
        (["a,b,c", "1,2,0", "", "1,x,0"], "line 4: 'x' is not a number"),
        (["1,2,0", "1,,0"], "line 2: '' is not a number"),
        (["1,,0", "1,2,0"], "line 1: '' is not a number"),
        (["1,2,0", "1,nan,0"], "example 1 has NaN or infinite values"),
        (["1,2,0", "1,2,"], "line 2: the label is empty"),
        (["1,2,0", "1,2,nan"], "a target is NaN or infinite"),
        (["0,1,target", "1,2,0", "1,2,1"], "the first line looks like column names that are numbers"),
        (['1,"2,0'], "cannot read .* as a .csv file"),
    ],
)
def test_unusable_csv_files_are_refused(tmp_path: Path, lines: list[str], message: str) -> None:
    write_csv(tmp_path / "a.csv", *lines)
    with pytest.raises(DataError, match=message):
        own_tasks(tmp_path)


def test_csv_that_is_not_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(DataError, match=r"cannot read .* as a \.csv file"):
        own_tasks(tmp_path)


def test_an_empty_or_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"has no \.npz or \.csv file; put one there for each task"):
        own_tasks(tmp_path)
    with pytest.raises(DataError, match=r"there is no folder .*nowhere"):
        own_tasks(tmp_path / "nowhere")


def test_a_toml_file_describes_the_data(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        write_csv(tmp_path / "tasks" / f"{number}.csv", "a,b,kind,c", *[f"{k},0,{k % 2},{number}" for k in range(20)])
    toml = tmp_path / "data.toml"
    toml.write_text('name = "my tasks"\nfolder = "tasks"\ntest_share = 0.5\nlabel = "kind"\nshape = [3, 1]\n')
    tasks = open_benchmark(str(toml), BenchmarkOptions(tasks=2), seed=0)
    assert (tasks.name, len(tasks), tasks.input_shape) == ("my tasks", 2, (3, 1))
    task = tasks.task(1)
    assert (task.name, len(task.train), len(task.test)) == ("2", 10, 10)
    assert bool((task.train.x[:, 2] == 2).all())
    assert torch.equal(task.train.x[:, 0, 0].long() % 2, task.train.y)
    assert [own_tasks(toml).task(k).name for k in range(3)] == ["1", "2", "3"]


def test_a_toml_file_may_list_the_files(tmp_path: Path) -> None:
    for name in ("b", "a", "c"):
        write_csv(tmp_path / "tasks" / f"{name}.csv", *csv_lines())
    for text in ('folder = "tasks"\nfiles = ["c.csv", "a.csv"]', 'files = ["tasks/c.csv", "tasks/a.csv"]'):
        (tmp_path / "mine.toml").write_text(text)
        tasks = own_tasks(str(tmp_path / "mine.toml"))
        assert (tasks.name, [task.name for task in tasks.tasks]) == ("mine", ["c", "a"])


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ('folder = "tasks"\ntest_shar = 0.1', OptionError, "unknown key 'test_shar'; did you mean 'test_share'?"),
        ('folder = "tasks"\nzzz = 0.1', OptionError, r"unknown key 'zzz'; known are name, folder, files"),
        ('name = "x"', OptionError, "must say where the tasks are"),
        ("folder = 3", OptionError, "folder must be a string, not 3"),
        ("folder = ", DataError, "it is not TOML"),
        ('folder = "other"', DataError, "there is no folder"),
        ('files = ["gone.csv"]', DataError, "names 'gone.csv', but there is no file"),
        ('files = ["data.toml"]', DataError, "is neither an .npz nor a .csv file"),
        ("files = []", OptionError, "files must be a list of file names"),
        ('files = "a.csv"', OptionError, "files must be a list of file names"),
        ('folder = "tasks"\ntest_share = 1.0', OptionError, "test_share must be a number between 0 and 1, not 1.0"),
        ('folder = "tasks"\ntest_share = 0', OptionError, "test_share must be a number between 0 and 1"),
        ('folder = "tasks"\nvalidation_share = "x"', OptionError, "validation_share must be a number from 0"),
        ('folder = "tasks"\nlabel = "kid"', DataError, "no column 'kid' for the labels.*did you mean 'kind'"),
        ('folder = "tasks"\nshape = [2, 2]', DataError, r"2 values per example do not fill the shape \[2, 2\]"),
        ('folder = "tasks"\nshape = [0]', OptionError, "shape must be a list of whole numbers"),
        ('folder = "tasks"\nshape = 2', OptionError, "shape must be a list of whole numbers"),
    ],
)
def test_mistakes_in_the_toml_file_are_explained(
    tmp_path: Path, text: str, error: type[FrclError], message: str
) -> None:
    write_csv(tmp_path / "tasks" / "a.csv", "width,height,kind", *csv_lines())
    (tmp_path / "data.toml").write_text(text)
    with pytest.raises(error, match=message):
        own_tasks(tmp_path / "data.toml")


def test_a_missing_toml_file_and_meaningless_options_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot read .*gone\.toml: No such file"):
        open_benchmark(str(tmp_path / "gone.toml"), seed=0)
    with pytest.raises(OptionError, match="augment=2 has no meaning for your own data"):
        open_benchmark(str(tmp_path / "gone.toml"), BenchmarkOptions(augment=2), seed=0)
    with pytest.raises(OptionError, match="tasks=2 is too many: own tasks has 1"):
        own_tasks([examples()], options=BenchmarkOptions(tasks=2))
    with pytest.raises(OptionError, match="test_share must be a number between 0 and 1, not 2"):
        own_tasks([examples()], test_share=2)


@pytest.mark.parametrize("kind", ["pipe.npz", "pipe.csv", "device.npz", "device.csv"])
def test_pipes_and_devices_are_refused_at_once(tmp_path: Path, kind: str) -> None:
    x, y = examples()
    np.savez(tmp_path / "a.npz", x=x, y=y)
    if kind.startswith("pipe"):
        os.mkfifo(tmp_path / kind)
    else:
        (tmp_path / kind).symlink_to("/dev/zero")
    with pytest.raises(DataError, match=rf"cannot read .*{kind} .*it is not a regular file"):
        own_tasks(tmp_path)


@pytest.mark.parametrize("text", ["test_share = " + "9" * 5000, "x = " + "[" * 20000, "x = " + "[" * 900 + "]" * 900])
def test_hostile_toml_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "data.toml").write_text(f"folder = '.'\n{text}\n")
    with pytest.raises(DataError, match=r"data\.toml: it is not TOML") as caught:
        own_tasks(tmp_path / "data.toml")
    assert "\n" not in str(caught.value)


def test_a_shape_of_astronomical_size_is_refused(tmp_path: Path) -> None:
    x, y = examples()
    np.savez(tmp_path / "a.npz", x=x, y=y)
    (tmp_path / "data.toml").write_text(f"folder = '.'\nshape = [{'9' * 400}]\n")
    with pytest.raises(DataError, match="do not fill the shape"):
        own_tasks(tmp_path / "data.toml")


@pytest.mark.parametrize("label", [2**63, 10**20, -(10**20)])
def test_labels_beyond_64_bits_are_refused(tmp_path: Path, label: int) -> None:
    """As numbers they would wrap around, as text they would have been taken for a regression."""
    x, _ = examples()
    if 0 <= label < 2**64:
        with pytest.raises(DataError, match="does not fit 64 bits"):
            own_tasks([(x, np.full(len(x), label, np.uint64))])
    (tmp_path / "a.csv").write_text("".join(f"1,2,{label + k % 2}\n" for k in range(20)))
    with pytest.raises(DataError, match="does not fit 64 bits"):
        own_tasks(tmp_path)


def test_the_largest_labels_of_64_bits_are_kept(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("".join(f"1,2,{2**63 - 1 - k % 2}\n" for k in range(20)))
    assert own_tasks(tmp_path).task(0).train.y.unique().tolist() == [2**63 - 2, 2**63 - 1]


def test_a_file_beyond_the_size_limit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = examples()
    np.savez_compressed(tmp_path / "a.npz", x=np.zeros((len(x), 4000)), y=y)
    (tmp_path / "b.csv").write_text("1,2,0\n" * 20000)
    monkeypatch.setattr("frcl.data.own.LARGEST", 100_000)
    for name in ("a.npz", "b.csv"):
        (tmp_path / "data.toml").write_text(f"files = ['{name}']\n")
        with pytest.raises(DataError, match=rf"cannot read .*{name}.* more than 0 MiB"):
            own_tasks(tmp_path / "data.toml")
