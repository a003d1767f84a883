"""Split and permuted streams, the embedded digits, options, and benchmarks by name."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from sklearn import datasets

from data_helpers import small_drawings
from frcl.data import BENCHMARKS, BenchmarkOptions, Split, Task, open_benchmark
from frcl.data.omniglot import omniglot_tasks
from frcl.data.options import COMMON, IMAGES, OMNIGLOT, PERMUTED
from frcl.data.streams import permute_pixels, split_by_label, task_with_validation
from frcl.errors import DataError, OptionError, TaskError

BOTH = ("split-digits", "permuted-digits")


def rows(part: Split) -> Counter[bytes]:
    return Counter(image.numpy().tobytes() + bytes([int(y)]) for image, y in zip(part.x, part.y, strict=True))


def base(n: int = 60) -> Task:
    g = torch.Generator().manual_seed(0)
    learning = Split(torch.rand(n, 6, generator=g), torch.arange(n) % 10)
    test = Split(torch.rand(20, 6, generator=g), torch.arange(20) % 10)
    return task_with_validation("base", learning, test, held=5, train_on="train", generator=g)


@pytest.mark.parametrize("train_on", ["train", "train+validation"])
def test_validation_is_part_of_training_only_where_asked(train_on: str) -> None:
    learning = Split(torch.rand(60, 2, generator=torch.Generator().manual_seed(1)), torch.arange(60))
    task = task_with_validation(
        "t", learning, learning, held=5, train_on=train_on, generator=torch.Generator().manual_seed(2)
    )
    train, validation = set(task.train.y.tolist()), set(task.validation.y.tolist())
    assert len(validation) == 5
    if train_on == "train":
        assert not train & validation
        assert len(task.train) == task.size == 55
    else:
        assert validation < train
        assert len(task.train) == task.size == 60
    assert train | validation == set(range(60))
    assert task.train.y.tolist() == sorted(train)
    assert torch.equal(task.train.x, learning.x[task.train.y])
    assert torch.equal(task.validation.x, learning.x[task.validation.y])


def test_split_by_label_gives_each_example_to_one_task() -> None:
    whole = base()
    split = split_by_label("s", whole, BenchmarkOptions())
    assert [split.task(k).name for k in range(5)] == ["0/1", "2/3", "4/5", "6/7", "8/9"]
    for k in range(5):
        task = split.task(k)
        for part in (task.train, task.validation, task.test):
            assert set(part.y.tolist()) <= {2 * k, 2 * k + 1}
        assert set(task.train.y.tolist()) == {2 * k, 2 * k + 1}
        assert task.size == len(task.train)
        assert split.test_split(k) is task.test
    for name in ("train", "validation", "test"):
        joined = sum((rows(getattr(split.task(k), name)) for k in range(5)), Counter[bytes]())
        assert joined == rows(getattr(whole, name))


def test_permuted_tasks_move_all_pixels_of_all_parts_in_one_way() -> None:
    whole = base()
    stream = permute_pixels("p", whole, BenchmarkOptions(permutations=4), seed=3)
    assert len(stream) == 4
    assert stream.input_shape == (6,)
    for k in range(4):
        task, order = stream.task(k), stream.orders[k]
        assert task.name == f"permutation {k}"
        assert sorted(order.tolist()) == list(range(6))
        for name in ("train", "validation", "test"):
            part, original = getattr(task, name), getattr(whole, name)
            assert all(torch.equal(part.x[:, j], original.x[:, order[j]]) for j in range(6))
            assert torch.equal(part.y, original.y)
        assert torch.equal(stream.test_split(k).x, task.test.x)
        assert task.size == whole.size


def test_the_first_permutation_is_random_unless_asked_otherwise() -> None:
    identity = torch.arange(64)
    default, first = (
        open_benchmark("permuted-digits", BenchmarkOptions(first_identity=flag), seed=0) for flag in (False, True)
    )
    plain = open_benchmark("split-digits", seed=0)
    assert not torch.equal(default.orders[0], identity)  # type: ignore[attr-defined]
    assert torch.equal(first.orders[0], identity)  # type: ignore[attr-defined]
    for k in range(1, 10):
        assert torch.equal(default.orders[k], first.orders[k])  # type: ignore[attr-defined]
        assert not torch.equal(default.orders[k], default.orders[k - 1])  # type: ignore[attr-defined]
    joined = sum((rows(plain.task(k).test) for k in range(5)), Counter[bytes]())
    assert rows(first.task(0).test) == joined


def test_a_permutation_depends_on_the_seed_and_its_number_alone() -> None:
    few = open_benchmark("permuted-digits", BenchmarkOptions(tasks=3), seed=0)
    more = open_benchmark("permuted-digits", BenchmarkOptions(permutations=12), seed=0)
    other = open_benchmark("permuted-digits", seed=1)
    assert (len(few), len(more)) == (3, 12)
    for k in range(3):
        assert torch.equal(few.test_split(k).x, more.test_split(k).x)
        assert not torch.equal(few.orders[k], other.orders[k])  # type: ignore[attr-defined]


@pytest.mark.parametrize("train_on", ["train", "train+validation"])
def test_digits_are_scikit_learn_s_each_in_one_part(train_on: str) -> None:
    benchmark = open_benchmark("split-digits", BenchmarkOptions(train_on=train_on), seed=5)
    pixels, labels = datasets.load_digits(return_X_y=True)
    original = rows(Split(torch.tensor(pixels / 16.0, dtype=torch.float32), torch.tensor(labels)))
    assert len(benchmark) == 5
    assert benchmark.input_shape == (64,)
    tasks = [benchmark.task(k) for k in range(5)]
    train, validation, test = (
        sum((rows(getattr(task, name)) for task in tasks), Counter[bytes]()) for name in ("train", "validation", "test")
    )
    assert (validation.total(), test.total()) == (150, 359)
    assert train.total() == (1288 if train_on == "train" else 1438)
    assert train + test + (validation if train_on == "train" else Counter()) == original
    assert all(float(t.train.x.min()) >= 0.0 and float(t.train.x.max()) == 1.0 for t in tasks)
    assert all(t.train.x.dtype == torch.float32 and t.train.y.dtype == torch.int64 for t in tasks)


@pytest.mark.usefixtures("global_random_state_untouched")
@pytest.mark.parametrize("name", BOTH)
def test_the_same_seed_gives_the_same_stream_and_another_another(name: str) -> None:
    first, again, other = (open_benchmark(name, BenchmarkOptions(tasks=2), seed=seed) for seed in (4, 4, 5))
    for k in range(2):
        for part in ("train", "validation", "test"):
            one, same, different = (getattr(b.task(k), part) for b in (first, again, other))
            assert torch.equal(one.x, same.x)
            assert torch.equal(one.y, same.y)
            assert rows(one) != rows(different)


def test_tensors_are_put_on_the_device() -> None:
    task = open_benchmark("permuted-digits", seed=0, device="meta").task(0)
    for part in (task.train, task.validation, task.test):
        assert part.x.device.type == part.y.device.type == "meta"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", [*BOTH, "omniglot"])
def test_a_gpu_has_the_same_stream(name: str) -> None:
    if name == "omniglot":
        options = BenchmarkOptions(augment=4)
        on_cpu, on_gpu = (omniglot_tasks(small_drawings(3, 2), options, 0, device) for device in ("cpu", "cuda"))
    else:
        on_cpu, on_gpu = (open_benchmark(name, seed=0, device=device) for device in ("cpu", "cuda"))
    for number in range(2):
        one, other = on_cpu.task(number), on_gpu.task(number)
        assert (one.name, one.size) == (other.name, other.size)
        for part in ("train", "validation", "test"):
            assert getattr(other, part).x.is_cuda
            assert torch.allclose(getattr(one, part).x, getattr(other, part).x.cpu(), atol=1e-4)
            assert torch.equal(getattr(one, part).y, getattr(other, part).y.cpu())


@pytest.mark.parametrize("name", BOTH)
def test_a_task_that_does_not_exist_is_refused(name: str) -> None:
    benchmark = open_benchmark(name, seed=0)
    for number in (-1, len(benchmark)):
        with pytest.raises(TaskError, match=f"{name} has no task {number}; its tasks are 0 to {len(benchmark) - 1}"):
            benchmark.task(number)
        with pytest.raises(TaskError):
            benchmark.test_split(number)


def test_too_many_tasks_are_refused() -> None:
    with pytest.raises(OptionError, match="tasks=6 is too many: split-digits has 5"):
        open_benchmark("split-digits", BenchmarkOptions(tasks=6), seed=0)
    with pytest.raises(OptionError, match="permuted-digits has 10; set permutations for more"):
        open_benchmark("permuted-digits", BenchmarkOptions(tasks=11), seed=0)


@pytest.mark.parametrize(
    ("given", "nearest_name"),
    [("split-mnits", "split-mnist"), ("permuted_mnist", "permuted-mnist"), ("Omniglot", "omniglot")],
)
def test_an_unknown_benchmark_suggests_the_nearest(given: str, nearest_name: str) -> None:
    with pytest.raises(OptionError) as caught:
        open_benchmark(given, seed=0)
    message = str(caught.value)
    assert f"there is no benchmark {given!r}; did you mean {nearest_name!r}?" in message
    assert ".toml" in message
    assert "\n" not in message


def test_nothing_is_suggested_for_a_word_unlike_all() -> None:
    with pytest.raises(OptionError, match=f"there is no benchmark 'xyzzy'; known are {', '.join(BENCHMARKS)}"):
        open_benchmark("xyzzy", seed=0)


def test_a_data_folder_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    for nowhere in (tmp_path / "nowhere", str(tmp_path / "nowhere")):
        with pytest.raises(DataError, match=r"the data folder .*nowhere does not exist"):
            open_benchmark("split-mnist", seed=0, data=nowhere)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"tasks": 0}, "tasks must be a whole number of at least 1, not 0"),
        ({"tasks": True}, "tasks must be a whole number"),
        ({"permutations": 2.5}, "permutations must be a whole number"),
        ({"augment": 0}, "augment must be a whole number"),
        ({"train_on": "test"}, "train_on='test' is unknown; choose one of train, train\\+validation"),
        ({"omniglot_split": "random"}, "omniglot_split='random' is unknown"),
        ({"alphabet_order": "random"}, "choose one of seed, alphabetical"),
        ({"size": "big"}, "size='big' is unknown; choose one of images, augmented"),
        ({"rotation": -1.0}, "rotation must be a number from 0 to 180"),
        ({"shift": 28.5}, "shift must be a number from 0 to 28, not 28.5"),
        ({"rotation": float("nan")}, "rotation must be a number"),
        ({"shift": "2"}, "shift must be a number, not '2'"),
        ({"first_identity": 1}, "first_identity must be True or False"),
    ],
)
def test_options_out_of_range_are_refused(given: dict[str, object], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        BenchmarkOptions(**given)  # type: ignore[arg-type]


def test_an_option_without_meaning_for_the_benchmark_is_refused() -> None:
    with pytest.raises(OptionError, match="augment=5 has no meaning for split-digits; its options are tasks, train_on"):
        open_benchmark("split-digits", BenchmarkOptions(augment=5), seed=0)
    with pytest.raises(OptionError, match="first_identity=True has no meaning for split-digits"):
        open_benchmark("split-digits", BenchmarkOptions(first_identity=True), seed=0)
    with pytest.raises(OptionError, match=r"shift=1\.0 has no meaning for permuted-digits"):
        open_benchmark("permuted-digits", BenchmarkOptions(shift=1.0), seed=0)
    assert {field.name for field in fields(BenchmarkOptions)} == {*COMMON, *PERMUTED, *OMNIGLOT, *IMAGES}
