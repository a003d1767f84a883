"""Folders of images as tasks, in Python and on the command line."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from frcl.cli import app
from frcl.data import open_benchmark, own_tasks
from frcl.errors import DataError, OptionError


def draw(path: Path, value: int, shape: tuple[int, ...] = (6, 8, 3)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.arange(np.prod(shape)).reshape(shape) % 50 + value
    Image.fromarray(pixels.astype(np.uint8)).save(path)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Two tasks; image k of a class has the value 20 · class + k in its first pixel."""
    for task, kinds in (("task2", ("cat", "dog")), ("task10", ("bus", "car", "tram"))):
        for number, kind in enumerate(kinds):
            for k in range(10):
                draw(tmp_path / "photos" / task / kind / f"{k}.png", 20 * number + k)
    return tmp_path / "photos"


def test_classes_are_folders(photos):
    tasks = own_tasks(photos)
    assert (tasks.name, tasks.task_names, tasks.input_shape) == ("photos", ("task2", "task10"), (3, 6, 8))
    assert tasks.label_names == ("bus", "car", "cat", "dog", "tram")
    task = tasks.task(1)
    assert (len(task.train), len(task.test)) == (24, 6)
    for split in (task.train, task.test):
        first = (255 * split.x[:, 0, 0, 0]).round().long()
        assert torch.equal(torch.tensor([0, 1, 4])[first // 20], split.y)
    image = (255 * task.train.x[0]).round().long()
    wanted = np.arange(6 * 8 * 3).reshape(6, 8, 3) % 50
    assert torch.equal(image - image[0, 0, 0], torch.tensor(wanted).movedim(2, 0))


def test_parts_may_be_given(tmp_path):
    for part, count in (("train", 5), ("test", 2), ("validation", 1)):
        for kind in ("3", "7"):
            for k in range(count):
                draw(tmp_path / "one" / part / kind / f"{k}.png", 9 * k, (4, 4))
    task = own_tasks(tmp_path).task(0)
    assert [len(part) for part in (task.train, task.test, task.validation)] == [12, 4, 2]
    assert task.train.x.shape[1:] == (1, 4, 4)  # grey
    assert sorted(task.test.y.unique().tolist()) == [3, 7]


def test_images_are_resized_on_demand(photos):
    draw(photos / "task2" / "cat" / "x.png", 0, (12, 5))
    with pytest.raises(DataError, match=r"x.png has 12×5 pixels, 0.png has 6×8; say size = \[height, width\]"):
        own_tasks(photos)
    description = photos.parent / "photos.toml"
    description.write_text('folder = "photos"\nsize = [5, 4]\nfiles = ["task10", "task2"]\n')
    tasks = own_tasks(description)
    assert (tasks.task_names, tasks.input_shape) == (("task10", "task2"), (3, 5, 4))
    for wrong in ("size = [5]", "size = [5, 0]", "size = 5"):
        description.write_text(f'folder = "photos"\n{wrong}\n')
        with pytest.raises(OptionError, match="size"):
            own_tasks(description)


def test_what_cannot_be_read_is_named(photos):
    (photos / "task2" / "cat" / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\nand nothing more")
    with pytest.raises(DataError, match=r"cannot read .*broken.png as an image"):
        own_tasks(photos)
    (photos / "task2" / "cat" / "broken.png").unlink()
    (photos / "task3").mkdir()  # a folder without images is no task
    assert len(own_tasks(photos)) == 2
    for file in (photos / "task2").glob("*/*"):
        file.unlink()
    draw(photos / "task2" / "test" / "cat" / "0.png", 0)
    (photos / "task2" / "train").mkdir()
    with pytest.raises(DataError, match="train has no images"):
        own_tasks(photos)


def test_a_size_that_is_too_large_is_refused(photos, monkeypatch):
    monkeypatch.setattr("frcl.data.images.LARGEST", 20 * 6 * 8 * 3 - 1)
    with pytest.raises(DataError, match=r"20 images like .* take more than"):
        own_tasks(photos)
    monkeypatch.setattr("frcl.data.images.LARGEST_IMAGE", 40)
    with pytest.raises(DataError, match="cannot read"):
        own_tasks(photos)


def test_a_folder_on_the_command_line(photos, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert open_benchmark("photos", seed=0).task_names == ("task2", "task10")
    line = ["run", "photos", "--seeds", "1", "--steps", "3", "--points", "4", "--quiet", "--out", "out"]
    result = CliRunner().invoke(app, line)
    assert result.exit_code == 0, result.output
    assert (tmp_path / "out" / "result.json").is_file()
    missing = CliRunner().invoke(app, ["run", "photo"])
    assert missing.exit_code != 0
