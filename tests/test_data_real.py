"""Facts about the benchmarks that are checked on the real files, in the folder that FRCL_DATA names."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from data_helpers import load_mnist
from frcl.data import Benchmark, BenchmarkOptions, Split, open_benchmark
from frcl.data.drawings import Drawings, read_archives, read_compact, to_compact
from frcl.data.files import MNIST, OMNIGLOT, data_status, fetch
from frcl.data.omniglot import load_omniglot, omniglot_tasks

SMALL = ("images_background_small1.zip", "images_background_small2.zip")


def _has(*names: str) -> bool:
    root = os.environ.get("FRCL_DATA")
    return root is not None and all(
        any((Path(root) / inside / name).is_file() for inside in ("mnist", "omniglot", ".")) for name in names
    )


pytestmark = pytest.mark.real_data
needs_mnist = pytest.mark.skipif(
    not _has(*(file.name for file in MNIST.files)), reason="FRCL_DATA does not name a folder with the MNIST files"
)
needs_omniglot = pytest.mark.skipif(
    not _has(OMNIGLOT.compact[0].name), reason="FRCL_DATA does not name a folder with omniglot28.npz"
)
needs_small = pytest.mark.skipif(
    not _has(OMNIGLOT.compact[0].name, *SMALL), reason="FRCL_DATA does not name a folder with the small archives"
)

# images of each digit: 60,000 for training and validation, 10,000 for testing
TRAIN = (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949)
TEST = (980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009)


def prints(part: Split) -> Counter[bytes]:
    """How often each image is there, with its label."""
    x = (part.x * 255).round().to(torch.uint8).flatten(1).numpy()
    return Counter(
        hashlib.blake2b(image.tobytes() + bytes([int(label)]), digest_size=12).digest()
        for image, label in zip(x, part.y, strict=True)
    )


def same(one: Split, other: Split) -> bool:
    return torch.equal(one.x, other.x) and torch.equal(one.y, other.y)


@needs_mnist
@pytest.mark.parametrize("train_on", ["train", "train+validation"])
def test_split_mnist(train_on: str) -> None:
    stream = open_benchmark("split-mnist", BenchmarkOptions(train_on=train_on), seed=0)
    assert len(stream) == 5
    assert stream.input_shape == (784,)
    tasks = [stream.task(k) for k in range(5)]
    assert [task.name for task in tasks] == ["0/1", "2/3", "4/5", "6/7", "8/9"]
    held = 0
    for k, task in enumerate(tasks):
        count, held_count, test_count = (
            torch.bincount(part.y, minlength=10) for part in (task.train, task.validation, task.test)
        )
        labels = [2 * k, 2 * k + 1]
        learned = count if train_on == "train+validation" else count + held_count
        assert learned.nonzero()[:, 0].tolist() == labels
        assert learned[labels].tolist() == [TRAIN[label] for label in labels]
        assert test_count[labels].tolist() == [TEST[label] for label in labels]
        assert test_count.sum() == len(task.test)
        assert task.size == len(task.train)
        assert (float(task.train.x.min()), float(task.train.x.max())) == (0.0, 1.0)
        held += len(task.validation)
    assert held == 5000
    assert sum(len(task.train) for task in tasks) == (55_000 if train_on == "train" else 60_000)


@pytest.mark.slow
@needs_mnist
def test_no_mnist_image_is_in_two_splits_and_seeds_differ() -> None:
    apart, both, other = (load_mnist(seed, how) for seed, how in ((0, "train"), (0, "train+validation"), (1, "train")))
    assert (len(apart.train), len(apart.validation), len(apart.test)) == (55_000, 5_000, 10_000)
    everything = prints(both.train)
    assert set(everything.values()) == {1}  # no image is there twice to begin with
    assert prints(apart.train) + prints(apart.validation) == everything
    assert not everything.keys() & prints(apart.test).keys()
    assert same(apart.validation, both.validation)
    assert same(apart.validation, load_mnist(0, "train").validation)
    assert not same(apart.validation, other.validation)
    assert same(apart.test, other.test)


@needs_mnist
def test_permuted_mnist() -> None:
    stream = open_benchmark("permuted-mnist", seed=0)
    assert len(stream) == 10
    assert stream.input_shape == (784,)
    plain = load_mnist(0)
    orders = torch.stack(stream.orders)  # type: ignore[attr-defined]
    assert torch.equal(orders.sort(dim=1).values, torch.arange(784).expand(10, 784))
    assert len({tuple(order.tolist()) for order in orders} | {tuple(range(784))}) == 11
    for k in range(10):
        test = stream.test_split(k)
        assert torch.equal(test.x, plain.test.x[:, orders[k]])
        assert torch.bincount(test.y).tolist() == list(TEST)
    last = stream.task(9)
    assert (len(last.train), len(last.validation), len(last.test), last.size) == (60_000, 5_000, 10_000, 60_000)
    assert torch.bincount(last.train.y).tolist() == list(TRAIN)
    assert torch.equal(last.validation.x, plain.validation.x[:, orders[9]])
    first = open_benchmark("permuted-mnist", BenchmarkOptions(first_identity=True, tasks=1), seed=0).task(0)
    assert same(first.test, plain.test)


@pytest.fixture(scope="module")
def drawings() -> Drawings:
    return load_omniglot()


@needs_omniglot
def test_omniglot_s_alphabets(drawings: Drawings) -> None:
    assert (len(drawings), len(drawings.alphabets)) == (32_460, 50)
    characters = {
        name: int(drawings.character[drawings.alphabet == number].max()) + 1
        for number, name in enumerate(drawings.alphabets.tolist())
    }
    assert sum(characters.values()) == 1623
    assert max(characters.values()) == 55
    assert min(characters.values()) == 14
    assert characters["Greek"] == 24
    assert characters["Latin"] == 26
    assert drawings.digest() == OMNIGLOT.compact[0].digest


@needs_omniglot
@pytest.mark.parametrize("how", ["stratified", "drawer"])
def test_every_alphabet_is_split_12_4_4_without_overlap(drawings: Drawings, how: str) -> None:
    options = BenchmarkOptions(augment=1, train_on="train", omniglot_split=how)
    stream = omniglot_tasks(drawings, options, seed=0)
    assert len(stream) == 50
    names, classes, labels = [], [], []
    for number in range(50):
        task = stream.task(number)
        first, last = int(task.train.y.min()), int(task.train.y.max())
        count = last + 1 - first
        labels += range(first, last + 1)
        for part, share in ((task.train, 12), (task.validation, 4), (task.test, 4)):
            assert torch.bincount(part.y - first, minlength=count).tolist() == [share] * count
            assert part.x.shape == (share * count, 28, 28)
        assert task.size == 12 * count
        names.append(task.name)
        classes.append(count)
        which = drawings.alphabets.tolist().index(task.name.replace(" ", "_"))
        own = drawings.alphabet == which
        ink = 1 - np.unpackbits(drawings.images[own], axis=1)
        original = prints(
            Split(torch.from_numpy(ink / 255.0), torch.from_numpy(drawings.character[own].astype(np.int64)))
        )
        parts = [Split(part.x / 255.0, part.y - first) for part in (task.train, task.validation, task.test)]
        assert prints(parts[0]) + prints(parts[1]) + prints(parts[2]) == original
    assert len(set(names)) == 50
    assert sorted(labels) == list(range(1623))
    assert (min(classes), max(classes), sum(classes)) == (14, 55, 1623)


@needs_omniglot
def test_ink_is_1_thin_and_away_from_the_borders(drawings: Drawings) -> None:
    stream = omniglot_tasks(drawings, BenchmarkOptions(augment=1), seed=0)
    x = torch.cat([stream.test_split(number).x for number in range(50)])
    assert set(x.unique().tolist()) == {0.0, 1.0}
    assert 0.05 < float(x.mean()) < 0.12
    assert float(x.mean(dim=(1, 2)).max()) < 0.5  # in every single image ink is the smaller part
    border = torch.cat([x[:, 0], x[:, -1], x[:, :, 0], x[:, :, -1]], dim=1)
    assert float(border.mean()) < 0.002
    assert float(border.mean()) < float(x[:, 10:18, 10:18].mean()) / 50


@needs_omniglot
def test_augmentation_of_the_largest_and_the_smallest_alphabet(drawings: Drawings) -> None:
    stream = omniglot_tasks(drawings, BenchmarkOptions(), seed=0)
    sizes = [len(stream.test_split(number)) // 4 for number in range(50)]
    for classes in (55, 14):
        task = stream.task(sizes.index(classes))
        assert len(task.train) == task.size == classes * 16 * 20
        assert torch.bincount(task.train.y - task.train.y.min()).tolist() == [16 * 20] * classes
        assert len(task.validation) == len(task.test) == classes * 4
        ink = task.train.x.view(-1, 20, 784).sum(dim=2)
        assert float(task.train.x.min()) >= 0.0
        assert float(task.train.x.max()) <= 1.0
        # turned by up to 15° and moved by up to 2 pixels, nearly all ink stays in the picture
        assert 0.97 < float((ink / ink[:, :1]).mean()) < 1.01


@needs_omniglot
def test_omniglot_s_order_and_splits_come_from_the_seed(drawings: Drawings) -> None:
    def opened(seed: int, order: str = "seed") -> Benchmark:
        return omniglot_tasks(drawings, BenchmarkOptions(augment=3, tasks=4, alphabet_order=order), seed)

    first, again, other = opened(0), opened(0), opened(1)
    for k in range(4):
        one, two = first.task(k), again.task(k)
        assert one.name == two.name
        assert all(same(getattr(one, part), getattr(two, part)) for part in ("train", "validation", "test"))
    assert [first.task(k).name for k in range(4)] != [other.task(k).name for k in range(4)]
    fixed, fixed_other = opened(0, "alphabetical"), opened(1, "alphabetical")
    assert [fixed.task(k).name for k in range(4)] == [
        "Alphabet of the Magi",
        "Angelic",
        "Anglo-Saxon Futhorc",
        "Arcadian",
    ]
    assert not same(fixed.task(0).test, fixed_other.task(0).test)


@needs_small
def test_the_reader_of_the_archives_agrees_with_the_compact_file(drawings: Drawings) -> None:
    root = Path(os.environ["FRCL_DATA"])
    folder = root / "omniglot" if (root / "omniglot").is_dir() else root
    read = read_archives({name: (folder / name).read_bytes() for name in SMALL})
    assert len(read) == 4840
    assert read.alphabets.tolist() == [
        "Balinese",
        "Early_Aramaic",
        "Greek",
        "Japanese_(katakana)",
        "Korean",
        "Latin",
        "Sanskrit",
        "Tagalog",
    ]
    for number, name in enumerate(read.alphabets.tolist()):
        own = read.alphabet == number
        known = drawings.alphabet == drawings.alphabets.tolist().index(name)
        assert np.array_equal(read.character[own], drawings.character[known])
        assert np.array_equal(read.drawer[own], drawings.drawer[known])
        # measured: every one of the 3,794,560 pixels is the same
        assert np.array_equal(read.images[own], drawings.images[known])
    again = read_compact(to_compact(read), "again")
    assert again.digest() == read.digest()
    stream = omniglot_tasks(read, BenchmarkOptions(augment=2), seed=0)
    assert sorted(stream.task(k).name for k in range(8))[2] == "Greek"


@needs_omniglot
@needs_mnist
def test_the_files_at_hand_are_verified() -> None:
    status = {one.name: one for one in data_status()}
    assert all(status[file.name].verified for file in (*MNIST.files, *OMNIGLOT.compact))
    assert not any(one.needed and not one.verified for one in status.values())
    assert [one.verified for one in fetch("permuted-mnist")] == [True] * 4
    assert OMNIGLOT.compact[0].find(None).problems == ()
