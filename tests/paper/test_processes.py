"""Several processes at once: no seed is measured twice, and no result is lost."""

import contextlib
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from frcl.errors import BusyError
from paper.locks import locked
from paper.measure import Place, Wanted, attend, measure, state_of
from paper.runs import Home
from paper_helpers import FIRST, TABLE, Watch, file_of, measured, session


def home_of(place: Place) -> Path:
    return place.runs / TABLE.name / FIRST.name


def left_behind(place: Place) -> list[str]:
    """Folders of runs that are still there."""
    return [path.name for path in home_of(place).iterdir() if path.is_dir()]


class Meanwhile(Watch):
    """Does something once, in the middle of a run."""

    def __init__(self, act) -> None:
        super().__init__()
        self._act = act

    def step(self, seed, task, log):
        act, self._act = self._act, lambda: None
        act()


def test_a_cell_that_another_process_measures_is_left_to_it(place):
    said = []
    with Home(home_of(place)) as other:
        assert other.claim([0])
        attend(state_of(TABLE.name, FIRST, place, Wanted(1)), replace(session(place), say=said.append))
    assert said == [f"{TABLE.name}/{FIRST.name}: left to another process that is measuring it"]
    assert not list(place.results.rglob("*.json"))


def test_seeds_that_another_process_added_are_not_run_again(place):
    before = state_of(TABLE.name, FIRST, place, Wanted(1))
    measured(place, count=1)
    assert list(measure(before, session(place))) == []


def test_processes_with_other_seeds_may_work_on_a_cell_at_once(place):
    """While one measures seed 0, another one measures seed 1; both are in the file afterwards."""
    runs = []
    watch = Meanwhile(lambda: runs.extend(measured(place, only=(1,))))
    assert measured(place, only=(0,), watch=watch) == [[0]]
    assert runs == [[1]]
    assert [one["seed"] for one in file_of(place)["seeds"]] == [0, 1]
    assert measured(place) == [[2]]
    assert left_behind(place) == []


@pytest.mark.parametrize(
    ("first", "second", "expected"), [((1,), (), [[0, 2]]), ((), (1,), []), ((2, 1), (1, 0), [[0]])]
)
def test_no_seed_is_measured_by_two(place, first, second, expected):
    """The second process leaves to the first the seeds that it has started."""
    runs = []

    def another() -> None:
        with contextlib.suppress(BusyError):
            runs.extend(measured(place, only=second))

    measured(place, only=first, watch=Meanwhile(another))
    assert runs == expected
    seeds = [one["seed"] for one in file_of(place)["seeds"]]
    assert seeds == sorted({*(first or FIRST.seeds), *(second or FIRST.seeds)})


def test_seeds_that_others_have_begun_are_named(place):
    said, two = [], replace(FIRST, layers=(*FIRST.layers, {"run": {"seeds_together": 2}}))
    with Home(home_of(place)) as other:
        assert other.claim([2])
        attend(state_of(TABLE.name, two, place), replace(session(place), say=said.append))
    assert said[1:] == [f"{TABLE.name}/{FIRST.name}: seeds 2 are left to another process"]
    assert [one["seed"] for one in file_of(place)["seeds"]] == [0, 1]


def test_measuring_again_needs_the_cell_for_itself(place):
    measured(place, only=(1,))
    with Home(home_of(place)) as other:
        assert other.claim([2])
        with pytest.raises(BusyError, match="another process is measuring"):
            measured(place, count=1, again=True)
    assert [one["seed"] for one in file_of(place)["seeds"]] == [1], "nothing was replaced"
    runs = []

    def another() -> None:
        with contextlib.suppress(BusyError):
            runs.extend(measured(place, only=(2,)))

    assert measured(place, count=1, again=True, watch=Meanwhile(another)) == [[0]]
    assert runs == []


def test_seeds_with_other_options_are_never_put_together(place, tmp_path):
    """Another process, of a newer version, measured the cell with other options in the meantime."""
    other = replace(FIRST, layers=(*FIRST.layers, {"learner": {"points": 4}}))
    elsewhere, said = replace(place, runs=tmp_path / "elsewhere"), []
    watch = Meanwhile(lambda: measured(elsewhere, other, only=(0,)))
    attend(state_of(TABLE.name, FIRST, place, Wanted(None, (2,))), replace(session(place, watch), say=said.append))
    assert said == [f"{TABLE.name}/{FIRST.name}: not changed, since it was measured with other options meanwhile"]
    found = file_of(place)
    assert ([one["seed"] for one in found["seeds"]], found["config"]["learner"]["points"]) == ([0], 4)
    assert left_behind(place) == ["seeds-2"], "what was learned is not thrown away"


@pytest.mark.parametrize(("begun", "asked", "expected"), [
    ((1,), (), [[1], [0, 2]]),  # a seed alone, then all
    ((0, 1), (1, 0), [[0, 1]]),
    ((), (2,), [[0, 1, 2]]),
    ((1,), (0,), [[0]]),  # has nothing to do with what is asked for
])  # fmt: skip
def test_an_interrupted_run_is_taken_up_by_whoever_wants_a_seed_of_it(place, begun, asked, expected):
    with pytest.raises(KeyboardInterrupt):
        measured(place, only=begun, watch=Watch(stop_at=8))
    assert measured(place, only=asked) == expected


def test_what_was_killed_after_it_was_written_is_removed(place, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr("paper.measure.shutil", SimpleNamespace(rmtree=lambda folder: None))
        measured(place, only=(1,))
    assert left_behind(place) == ["seeds-1"]
    assert measured(place, only=(0,)) == [[0]]
    assert left_behind(place) == []


def test_a_result_file_is_written_by_one_process_at_a_time(place, monkeypatch):
    """A process that adds to a file waits until the other has written."""
    order, ready = [], threading.Event()

    def waiting(*args, **how):
        ready.set()
        return locked(*args, **how)

    def add() -> None:
        measured(place, only=(1,))
        order.append("added")

    folder = place.results / TABLE.name
    folder.mkdir(parents=True)
    monkeypatch.setattr("paper.measure.locked", waiting)
    with locked(folder / f".{FIRST.name}.lock"):
        other = threading.Thread(target=add)
        other.start()
        assert ready.wait(60), "it has learned, and wants to write"
        other.join(0.5)
        order.append("let go")
    other.join()
    assert order == ["let go", "added"]


def test_a_lock_file_is_removed_and_can_be_taken_again(tmp_path):
    path = tmp_path / "one.lock"
    with locked(path):
        assert path.is_file()
        with pytest.raises(BusyError, match="another process"), locked(path):
            pass
    assert not path.exists()
    with locked(path), locked(tmp_path / "other.lock"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_lock_is_held_by_one_at_a_time(tmp_path):
    """The file is removed and created again between holders: nobody may enter with a lock on the removed one."""
    inside, most = [], []

    def enter() -> None:
        for _ in range(200):
            with locked(tmp_path / "one.lock", wait=True):
                inside.append(1)
                most.append(len(inside))
                inside.pop()

    others = [threading.Thread(target=enter) for _ in range(4)]
    for one in others:
        one.start()
    for one in others:
        one.join()
    assert max(most) == 1
    assert len(most) == 800
