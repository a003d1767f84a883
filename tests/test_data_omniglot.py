"""Sequential Omniglot on small made-up alphabets: splits, order, augmentation, N."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import ndimage

from data_helpers import small_drawings
from frcl.data.omniglot import Alphabet, alphabets_of, draw_moves, move_images, omniglot_tasks, parts_of
from frcl.data.options import BenchmarkOptions
from frcl.data.tasks import Benchmark, Split, Task
from frcl.errors import OptionError, TaskError

DRAWINGS = small_drawings(3, 5, 2, 4)
PLAIN = BenchmarkOptions(augment=1, train_on="train")


def opened(options: BenchmarkOptions = PLAIN, seed: int = 0) -> Benchmark:
    return omniglot_tasks(DRAWINGS, options, seed)


def alphabets(options: BenchmarkOptions = PLAIN, seed: int = 0) -> list[Alphabet]:
    return alphabets_of(DRAWINGS, options, seed)


def rows(part: Split) -> Counter[bytes]:
    return Counter(image.numpy().tobytes() for image in part.x)


def equal(one: Task, other: Task) -> bool:
    return one.name == other.name and all(
        torch.equal(a.x, b.x) and torch.equal(a.y, b.y)
        for a, b in ((one.train, other.train), (one.validation, other.validation), (one.test, other.test))
    )


@pytest.mark.parametrize("how", ["stratified", "drawer"])
def test_each_character_gives_12_4_4_and_every_drawing_is_used_once(how: str) -> None:
    benchmark = opened(replace(PLAIN, omniglot_split=how))
    for number in range(4):
        task = benchmark.task(number)
        first, classes = {"A": (0, 3), "B": (3, 5), "C": (8, 2), "D": (10, 4)}[task.name]  # labels are of all alphabets
        for part, count in ((task.train, 12), (task.validation, 4), (task.test, 4)):
            assert torch.equal(torch.bincount(part.y - first), torch.full((classes,), count))
            assert part.x.shape == (classes * count, 28, 28)
            assert part.x.dtype == torch.float32
            assert part.y.dtype == torch.int64
        whole = rows(task.train) + rows(task.validation) + rows(task.test)
        own = DRAWINGS.alphabet == DRAWINGS.alphabets.tolist().index(task.name)
        ink = 1 - np.unpackbits(DRAWINGS.images[own], axis=1).astype(np.float32)
        assert whole == Counter(image.tobytes() for image in ink)
        assert max(whole.values()) == 1


def test_labels_belong_to_their_images() -> None:
    task = opened(replace(PLAIN, alphabet_order="alphabetical")).task(1)
    ink = 1 - np.unpackbits(DRAWINGS.images, axis=1).astype(np.float32)
    label = {
        image.tobytes(): 3 + int(character)  # after the three of the first alphabet
        for image, character, alphabet in zip(ink, DRAWINGS.character, DRAWINGS.alphabet, strict=True)
        if alphabet == 1
    }
    for part in (task.train, task.validation, task.test):
        assert [label[image.numpy().tobytes()] for image in part.x] == part.y.tolist()


def test_by_drawer_everyone_gives_the_same_drawers() -> None:
    for alphabet in alphabets():
        parts = parts_of(alphabet, "drawer", seed=0)
        own = DRAWINGS.drawer[DRAWINGS.alphabet == DRAWINGS.alphabets.tolist().index(alphabet.name)]
        drawers = [set(own[parts.numpy() == part].tolist()) for part in range(3)]
        assert drawers == [set(range(1, 13)), set(range(13, 17)), set(range(17, 21))]


def test_the_stratified_split_is_uniform_and_differs_between_characters() -> None:
    alphabet = alphabets(replace(PLAIN, alphabet_order="alphabetical"))[1]
    draws = torch.stack([parts_of(alphabet, "stratified", seed).view(5, 20) for seed in range(300)])
    tested = (draws == 2).double().mean(dim=0)
    # each drawing is tested with probability 1/5; 5 standard deviations of a share over 300 draws
    assert float((tested - 0.2).abs().max()) < 5 * math.sqrt(0.2 * 0.8 / 300)
    assert not torch.equal(draws[0, 0], draws[0, 1])


@pytest.mark.usefixtures("global_random_state_untouched")
def test_the_seed_decides_everything() -> None:
    options = BenchmarkOptions(augment=3)
    first, again, other = opened(options, 1), opened(options, 1), opened(options, 2)
    assert all(equal(first.task(number), again.task(number)) for number in range(4))
    assert equal(first.task(0), first.task(0))
    by_name = {other.task(number).name: other.task(number) for number in range(4)}
    for number in range(4):
        one = first.task(number)
        assert rows(one.test) != rows(by_name[one.name].test)
    orders = {tuple(alphabet.name for alphabet in alphabets(PLAIN, seed)) for seed in range(30)}
    assert len(orders) > 10
    assert {tuple(sorted(order)) for order in orders} == {("A", "B", "C", "D")}
    fixed = {tuple(a.name for a in alphabets(replace(PLAIN, alphabet_order="alphabetical"), s)) for s in range(5)}
    assert fixed == {("A", "B", "C", "D")}


def test_fewer_tasks_are_the_first_ones() -> None:
    assert [a.name for a in alphabets(replace(PLAIN, tasks=2))] == [a.name for a in alphabets()][:2]
    with pytest.raises(OptionError, match="tasks=5 is too many: omniglot has 4"):
        opened(replace(PLAIN, tasks=5))
    with pytest.raises(TaskError, match="omniglot has no task 4"):
        opened().task(4)


@pytest.mark.parametrize(("train_on", "images"), [("train", 12), ("train+validation", 16)])
@pytest.mark.parametrize("size", ["images", "augmented"])
def test_training_data_and_N(train_on: str, images: int, size: str) -> None:
    options = BenchmarkOptions(augment=5, train_on=train_on, size=size, alphabet_order="alphabetical")
    task = opened(options).task(1)
    assert len(task.train) == images * 5 * 5
    assert task.size == (images * 5 if size == "images" else images * 25)
    assert (len(task.validation), len(task.test)) == (20, 20)
    plain = opened(replace(options, augment=1)).task(1)
    assert plain.size == images * 5
    # version 0 of each image is the image, and validation and test are never augmented
    assert torch.equal(task.train.x[::5], plain.train.x)
    assert torch.equal(task.train.y, plain.train.y.repeat_interleave(5))
    assert torch.equal(task.validation.x, plain.validation.x)
    assert torch.equal(task.test.x, plain.test.x)
    overlap = set(rows(plain.validation)) & set(rows(plain.train))
    assert len(overlap) == (20 if train_on == "train+validation" else 0)
    assert not set(rows(plain.test)) & set(rows(plain.train))


def test_an_image_has_the_same_versions_whatever_else_is_trained_on() -> None:
    options = BenchmarkOptions(augment=4, train_on="train")
    few, all_ = opened(options).task(0), opened(replace(options, train_on="train+validation")).task(0)
    assert set(rows(few.train)) < set(rows(all_.train))


def test_test_split_is_the_task_s() -> None:
    benchmark = opened(BenchmarkOptions(augment=2))
    assert torch.equal(benchmark.test_split(2).x, benchmark.task(2).test.x)
    assert torch.equal(benchmark.test_split(2).y, benchmark.task(2).test.y)


def test_versions_lie_between_paper_and_ink_and_differ() -> None:
    train = opened(BenchmarkOptions(augment=20)).task(0).train
    assert float(train.x.min()) >= 0.0
    assert float(train.x.max()) <= 1.0
    assert len(rows(train)) == len(train)


def images_of(n: int, side: int = 28) -> torch.Tensor:
    return torch.rand(n, side, side, generator=torch.Generator().manual_seed(0))


def moves_of(*given: tuple[float, float, float]) -> torch.Tensor:
    return torch.tensor([[(0.0, 0.0, 0.0), *given]], dtype=torch.float64)


def test_whole_moves_are_exact() -> None:
    image = images_of(1)
    right = math.pi / 2
    out = move_images(image, moves_of((right, 0, 0), (-right, 0, 0), (0, 3, 0), (0, 0, -2), (0, 0, 0)))[0]
    assert torch.equal(out[0], image[0])
    assert torch.allclose(out[1], torch.rot90(image[0], -1), atol=1e-5)  # clockwise
    assert torch.allclose(out[2], torch.rot90(image[0], 1), atol=1e-5)
    assert torch.allclose(out[3], torch.nn.functional.pad(image[0], (3, 0))[:, :28], atol=1e-5)
    assert torch.allclose(out[4], torch.nn.functional.pad(image[0], (0, 0, 0, 2))[2:], atol=1e-5)
    assert torch.allclose(out[5], image[0], atol=1e-5)


@pytest.mark.parametrize("seed", range(3))
def test_moves_agree_with_scipy(seed: int) -> None:
    moves = draw_moves(1, 4, rotation=40.0, shift=5.0, generator=torch.Generator().manual_seed(seed))
    image = images_of(1)
    out = move_images(image, moves)[0]
    for version in range(1, 4):
        angle, right, down = moves[0, version].tolist()
        # (row, column) of the target → of the source: turn back by the angle about the centre, after moving back
        back = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
        centre = np.array([13.5, 13.5])
        offset = centre - back @ (centre + np.array([down, right]))
        expected = ndimage.affine_transform(
            image[0].double().numpy(), back, offset, order=1, mode="grid-constant", cval=0.0
        )
        assert np.allclose(out[version].numpy(), expected, atol=1e-4)


def test_moves_fill_their_ranges_and_leave_version_0() -> None:
    moves = draw_moves(400, 5, rotation=15.0, shift=2.0, generator=torch.Generator().manual_seed(0))
    assert moves.shape == (400, 5, 3)
    assert bool((moves[:, 0] == 0).all())
    limits = torch.tensor([math.radians(15.0), 2.0, 2.0], dtype=torch.float64)
    relative = moves[:, 1:] / limits
    assert float(relative.abs().max()) <= 1.0
    assert float(relative.amax()) > 0.99
    assert float(relative.amin()) < -0.99
    # uniform: mean 0, variance 1/3
    assert float(relative.mean(dim=(0, 1)).abs().max()) < 0.06
    assert float((relative.var(dim=(0, 1)) - 1 / 3).abs().max()) < 0.03
