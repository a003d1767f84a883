"""A power cut, a full disk, an interrupt or too little memory at any moment of a run costs nothing but time."""

import errno
import itertools
import os
import shutil
from pathlib import Path

import pytest
import torch
from torch.overrides import TorchFunctionMode

from disk import CUTS, Disk, write_out
from frcl.experiment import keeper, runner
from frcl.experiment.config import resolve
from frcl.experiment.keeper import Observer
from frcl.experiment.results import Result
from test_experiment_runner import comparable

LAYER = {
    "seeds": [0],
    "network": {"widths": [6]},
    "learner": {"steps": 2, "points": 3, "search_steps": 2, "batch_size": 10},
    "stream": {"tasks": 2},
    "run": {"checkpoint_seconds": 0.0, "log_past_every": 1},
}
CONFIG = resolve("split-digits", LAYER)
LOGS = ("log.csv", "kl_past.csv")


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """A checkpoint after every step, and no waiting for a real disk."""
    monkeypatch.setattr(keeper, "PATIENCE", -1.0)
    monkeypatch.setattr(os, "fsync", lambda handle: None)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> tuple[Path, Result]:
    folder = tmp_path_factory.mktemp("whole") / "run"
    return folder, runner.run(CONFIG, folder, Observer())


def same(folder: Path, result: Result, whole: tuple[Path, Result]) -> bool:
    return comparable(result) == comparable(whole[1]) and all(
        (folder / name).read_bytes() == (whole[0] / name).read_bytes() for name in LOGS
    )


def finish(folder: Path) -> Result:
    """What a user does after a crash: resume, or run where nothing has begun."""
    if (folder / "config.toml").exists():
        return runner.resume(folder, Observer())
    return runner.run(CONFIG, folder, Observer())


def some(calls: int, every: int) -> range:
    return range(1, calls + 1, every)


@pytest.mark.parametrize("every", [9, pytest.param(1, marks=pytest.mark.slow)])
def test_a_power_cut_after_any_write_loses_nothing(every, whole, tmp_path):
    """All writes of a run are recorded; what each cut of that sequence may leave on the disk is resumed."""
    folder = tmp_path / "recorded" / "run"
    folder.parent.mkdir()
    with Disk(folder.parent).watching() as disk:
        runner.run(CONFIG, folder, Observer())
    assert len(disk.states) > 60
    tried = set()
    for number, cut in itertools.product(range(0, len(disk.states), every), CUTS):
        files = disk.states[number].left(cut)
        key = frozenset(files.items())
        if key in tried or folder / "config.toml" not in files:
            continue
        tried.add(key)
        place = tmp_path / "cut"
        write_out(files, folder, place)
        assert same(place, finish(place), whole), (number, cut)
        assert not list(place.glob(".*.tmp"))
        shutil.rmtree(place)
    assert len(tried) > 10


def test_the_power_cut_notices_a_write_that_is_not_synced(whole, tmp_path, monkeypatch):
    """The simulation is pessimistic enough to see a log that is not on the disk before the checkpoint is."""
    real = runner.Keeper.checkpoint

    def unsynced(self, learners):
        with monkeypatch.context() as patch:
            patch.setattr("frcl.files.write_at", lambda path, content, at: path.write_bytes(b""))
            real(self, learners)

    folder = tmp_path / "recorded" / "run"
    folder.parent.mkdir()
    monkeypatch.setattr(runner.Keeper, "checkpoint", unsynced)
    monkeypatch.setattr("frcl.experiment.keeper._step_curves", lambda *_: None)
    with Disk(folder.parent).watching() as disk:
        runner.run(CONFIG, folder, Observer())
    monkeypatch.undo()
    write_out(disk.states[-1].left("nothing unsynced"), folder, tmp_path / "cut")
    with pytest.raises(runner.CheckpointError, match=r"log\.csv is shorter than when it was written"):
        runner.resume(tmp_path / "cut", Observer())


FAULTS = {
    "full": lambda: OSError(errno.ENOSPC, "No space left on device"),
    "interrupted": KeyboardInterrupt,
    "memory": MemoryError,
}


@pytest.mark.parametrize(
    ("every", "fault"), [(11, "full"), *(pytest.param(1, fault, marks=pytest.mark.slow) for fault in FAULTS)]
)
def test_every_write_fails_once(every, fault, whole, tmp_path):
    """Opening, writing, syncing, renaming, removing: after any failure the run goes on to the equal result."""
    with Disk(tmp_path / "count").watching() as disk:
        runner.run(CONFIG, tmp_path / "count" / "run", Observer())
    assert {"open", "pwrite", "ftruncate", "fsync", "replace"} <= set(disk.calls)
    for number in some(len(disk.calls), every):
        folder = tmp_path / "failed" / "run"
        error = FAULTS[fault]()
        with Disk(folder.parent, fail=(number, FAULTS[fault])).watching(), pytest.raises(type(error)) as caught:
            runner.run(CONFIG, folder, Observer())
        if fault == "full" and disk.calls[number - 1] in ("pwrite", "ftruncate", "fsync", "replace"):
            assert str(folder.parent) in str(caught.value)  # the file, or its folder
            assert ".tmp" not in str(caught.value)
        assert same(folder, finish(folder), whole), (fault, number)
        shutil.rmtree(folder.parent)


ALLOCATIONS = {
    "the bytes of a checkpoint": "frcl.files.to_bytes",
    "the state of a learner": "frcl.learners.frcl.FRCL.state_dict",
    "a row of a log": "frcl.experiment.keeper.Keeper._log",
    "a step": "frcl.experiment.keeper.Observer.step",
    "predictions": "frcl.learners.frcl.FRCL.predict",
    "the inducing inputs": "numpy.savez_compressed",
    "the result": "frcl.experiment.results.write_result",
}


@pytest.mark.parametrize("what", ALLOCATIONS)
@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
def test_every_allocation_fails_once(what, error, whole, tmp_path, monkeypatch):
    module, _, name = ALLOCATIONS[what].rpartition(".")
    owner = pytest.importorskip(module) if module in ("numpy", "frcl.files", "frcl.experiment.results") else None
    if owner is None:
        package, _, kind = module.rpartition(".")
        owner = getattr(pytest.importorskip(package), kind)
    real = getattr(owner, name)
    for number in itertools.count(1):
        folder, calls = tmp_path / str(number), itertools.count(1)

        def failing(*given, calls=calls, number=number, **options):
            if next(calls) == number:
                raise error
            return real(*given, **options)

        with monkeypatch.context() as patch:
            patch.setattr(owner, name, failing)
            try:
                runner.run(CONFIG, folder, Observer())
                break  # there is no call of that number
            except error:
                pass
        assert same(folder, finish(folder), whole), number
    assert number > 1


# safetensors has another way where the first fails; the second would leave gradients off
ALLOCATE_NOTHING = (torch.Tensor.untyped_storage, torch._C._set_grad_enabled)


class NoMemory(TorchFunctionMode):
    """Counts the operations of torch, each of which may allocate, and fails at one of them."""

    def __init__(self, at: int = 0) -> None:
        super().__init__()
        self.at, self.calls = at, 0

    def __torch_function__(self, function, types, given=(), options=None):
        if function not in ALLOCATE_NOTHING:
            self.calls += 1
            if self.calls == self.at:
                raise MemoryError
        return function(*given, **(options or {}))


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")  # where safetensors tries another way
@pytest.mark.parametrize("parts", [8, pytest.param(120, marks=pytest.mark.slow)])
def test_an_operation_without_memory_costs_nothing_but_time(parts, whole, tmp_path):
    for attempt in range(2):  # the first call of some functions takes more operations than the next
        with NoMemory() as count:
            runner.run(CONFIG, tmp_path / f"count{attempt}", Observer())
    assert count.calls > 1000
    for number in range(7, count.calls, count.calls // parts):
        folder = tmp_path / str(number)
        with pytest.raises(MemoryError), NoMemory(number):
            runner.run(CONFIG, folder, Observer())
        assert same(folder, finish(folder), whole), number


def test_the_disk_knows_what_a_cut_leaves(tmp_path):
    """The oracle itself, on a sequence whose outcome is known."""
    with Disk(tmp_path).watching() as disk:
        handle = os.open(tmp_path / "a", os.O_WRONLY | os.O_CREAT)
        os.pwrite(handle, b"12", 0)
        os.fsync(handle)
        os.pwrite(handle, b"34", 2)
        os.close(handle)
    state, a = disk.states[-1], tmp_path / "a"
    assert [state.left(cut) for cut in CUTS] == [{a: b"1234"}, {}, {a: b"12"}, {}, {a: b"12\0\0"}]
    with Disk(tmp_path).watching() as disk:
        disk.states[-1].names[a], disk.states[-1].seen[0], disk.states[-1].synced[0] = 0, b"1", b"1"
        (tmp_path / "a").replace(tmp_path / "b")
        handle = os.open(tmp_path, os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)
    assert disk.states[-1].left("nothing unsynced") == {tmp_path / "b": b"1"}
