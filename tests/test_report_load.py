"""Run folders are read whole, or refused in one line that says what is wrong."""

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from frcl.errors import DataError
from frcl.report import find_runs, read_run
from frcl.report.fields import over_all_tasks
from report_samples import bare_run, digits_points, result, rich_run, write_run


def test_everything_is_read_as_written(tmp_path):
    run = read_run(rich_run(tmp_path / "run"))
    raw = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (run.benchmark, run.method, run.seeds) == ("split-digits", "frcl", (0, 1, 2))
    assert run.tasks == tuple(raw["tasks"])
    assert run.accuracy.shape == (3, 5, 5)
    for s in range(3):
        for after in range(5):
            for on in range(5):
                value = raw["accuracy"][s][after][on]
                assert math.isnan(run.accuracy[s, after, on]) if on > after else run.accuracy[s, after, on] == value
    for key in ("average_accuracy", "forgetting", "nll", "auroc"):
        found = run.metrics[key]
        assert (found.mean, found.std, found.low, found.high) == tuple(
            raw[key][part] for part in ("mean", "std", "low", "high")
        )
        assert found.per_seed == tuple(raw[key]["per_seed"])
    assert "forward_transfer" not in run.metrics
    assert (run.memory_total, run.memory) == (261_700, (52_340,) * 5)
    assert run.kinds == {"points": 51_200, "posterior": 210_500}
    assert run.seconds["select"] == 6.1
    assert run.peak_memory == 412_300_100
    assert run.calibration is not None
    assert run.calibration.count.tolist() == raw["calibration"]["count"]
    assert np.isnan(run.calibration.accuracy[:5]).all()
    assert run.boundaries is not None
    assert run.boundaries.true.tolist() == [400, 800, 1200, 1600]
    assert run.boundaries.found.tolist() == [400, 800, 1200]
    assert np.isnan(run.boundaries.statistic).sum() == 4
    assert run.boundaries.scores[2].precision is None
    assert run.steps is not None
    assert run.steps.terms["loss"].tolist() == raw["steps"]["loss"]
    assert {number: points.shape for number, points in run.points.items()} == dict.fromkeys(range(5), (40, 64))


def test_missing_parts_are_empty_and_no_error(tmp_path):
    content = result()
    needed = ("format", "version", "benchmark", "method", "seeds", "tasks", "accuracy")
    run = read_run(write_run(tmp_path / "run", {key: content[key] for key in needed}))
    assert run.metrics == {}
    assert (run.calibration, run.steps, run.boundaries, run.memory_total, run.peak_memory) == (None,) * 5
    assert (run.points, run.command, run.started, run.score) == ({}, "", "", "accuracy")


def test_values_above_the_diagonal_are_not_read(tmp_path):
    content = result()
    content["accuracy"][0][0][4] = 0.123
    assert math.isnan(read_run(write_run(tmp_path / "run", content)).accuracy[0, 0, 4])


def test_variance_explained_may_be_negative_where_accuracy_may_not(tmp_path):
    content = result() | {"score": "r2"}
    content["accuracy"][0][4][0] = -3.5
    run = read_run(write_run(tmp_path / "run", content))
    assert (run.score_word, run.accuracy[0, 4, 0]) == ("R²", -3.5)
    refused(write_run(tmp_path / "wrong", content | {"score": "accuracy"}), "-3.5, not between 0 and 1")
    refused(write_run(tmp_path / "other", content | {"score": "points"}), "\"score\" is 'points'")


def test_points_keep_the_number_of_their_task(tmp_path):
    arrays = digits_points(3, 10)
    kept = {"task_7": arrays["task_0"], "task_1": arrays["task_1"][:4], "other": arrays["task_2"]}
    run = read_run(write_run(tmp_path / "run", result(), kept))
    assert {number: len(points) for number, points in run.points.items()} == {1: 4, 7: 10}
    assert [run.learners_task(number) for number in run.points] == ["2/3", "task 8"]
    hidden = read_run(write_run(tmp_path / "hidden", result(hidden=True), kept))
    assert [hidden.learners_task(number) for number in hidden.points] == ["found task 2", "found task 8"]


def test_steps_that_start_again_with_each_task_are_put_in_a_row():
    assert over_all_tasks(np.array([0.0, 10, 20, 0, 10, 20, 5])).tolist() == [0, 10, 20, 20, 30, 40, 45]
    assert over_all_tasks(np.array([0.0, 10, 20, 30])).tolist() == [0, 10, 20, 30]


def test_runs_are_found_at_any_depth_once_and_in_order(tmp_path):
    bare_run(tmp_path / "b" / "deep" / "down")
    rich_run(tmp_path / "a")
    write_run(tmp_path / "a" / "inside", result("nested"))  # belongs to the run folder around it
    (tmp_path / "empty").mkdir()
    assert [run.method for run in find_runs([tmp_path])] == ["frcl", "ewc"]
    again = find_runs([tmp_path / "b", tmp_path, tmp_path / "a" / "result.json"])
    assert [run.method for run in again] == ["ewc", "frcl"]


DAMAGE = {
    "cut": (lambda text: text[: len(text) // 2], "not JSON"),
    "list": (lambda _: "[1, 2]", "not written by frcl"),
    "foreign": (lambda _: '{"accuracy": 0.9}', "not written by frcl"),
    "newer": (lambda text: text.replace('"version": 1', '"version": 2'), "version 2; this frcl reads version 1"),
    "deep": (lambda _: "[" * 100_000, "not JSON"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_foreign_or_cut_file_is_refused_in_one_line(tmp_path, kind):
    change, words = DAMAGE[kind]
    path = rich_run(tmp_path / "run") / "result.json"
    path.write_text(change(path.read_text()))
    refused(tmp_path / "run", words)


FIELDS = {
    "accuracy above one": (("accuracy", 0, 2, 1), 1.5, "accuracy[0][2][1]"),
    "accuracy missing": (("accuracy", 1, 4, 0), None, "accuracy[1][4][0]"),
    "accuracy text": (("accuracy", 1, 4, 0), "high", "'high', not a number"),
    "row too short": (("accuracy", 0, 3), [0.5, 0.5], '"accuracy[0][3]" has 2 entries, expected 5'),
    "seed missing": (("seeds",), [0, 1], '"accuracy" has 3 entries, expected 2'),
    "no tasks": (("tasks",), [], "no seeds or no tasks"),
    "no name": (("benchmark",), "", '"benchmark" is not a text'),
    "metric not a table": (("nll",), 0.3, '"nll" is not a table'),
    "bins": (("calibration", "count"), [1, 2], "same number of bins"),
    "steps": (("steps", "loss"), [1.0], "differ in length"),
    "statistic": (("boundaries", "statistic"), [1.0], "differ in length"),
    "bytes": (("memory_bytes", "total"), 1.5, "whole number"),
    "bytes by kind": (("memory_bytes", "parts", "points"), "many", "whole number"),
    "seconds": (("seconds", "train"), True, "not a number"),
}


@pytest.mark.parametrize("kind", FIELDS)
def test_a_damaged_field_is_named(tmp_path, kind):
    keys, value, words = FIELDS[kind]
    content = result(hidden=True)
    place = content
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = value
    refused(write_run(tmp_path / "run", content), words)


def test_what_is_not_a_run_is_refused(tmp_path):
    refused(tmp_path, "has no result.json")
    (tmp_path / "result.json").write_bytes(b"\xff\xfe\x00")
    refused(tmp_path, "not UTF-8")
    with pytest.raises(DataError, match="no such folder"):
        find_runs([tmp_path / "nowhere"])
    (tmp_path / "void").mkdir()
    with pytest.raises(DataError, match="no run in"):
        find_runs([tmp_path / "void"])


@pytest.mark.parametrize("kind", ["garbage", "cut", "pickle", "nan", "flat"])
def test_damaged_points_are_refused(tmp_path, kind):
    folder = write_run(tmp_path / "run", result(), digits_points(5, 10))
    path = folder / "points.npz"
    match kind:
        case "garbage":
            path.write_bytes(b"not an archive")
        case "cut":
            path.write_bytes(path.read_bytes()[:-200])
        case "pickle":
            np.savez(path, task_0=np.array([{"a": 1}], dtype=object))
        case "nan":
            np.savez(path, task_0=np.full((3, 64), np.nan))
        case "flat":
            np.savez(path, task_0=np.zeros(64))
    refused(folder, "points.npz")


def test_importing_the_package_loads_no_plotting(tmp_path):
    code = "import sys, frcl.report; print([m for m in ('matplotlib', 'jinja2', 'PIL') if m in sys.modules])"
    source = Path(__file__).parents[1] / "src"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={"PYTHONPATH": str(source)})
    assert done.stdout.strip() == "[]", done.stderr


def refused(folder: Path, words: str) -> None:
    with pytest.raises(DataError) as caught:
        read_run(folder)
    message = str(caught.value)
    assert words in message
    assert "\n" not in message
    assert str(folder) in message
