"""Run folders are read whole, or refused in one line that says what is wrong."""

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from frcl.errors import DataError
from frcl.experiment.results import METRICS, Seconds, StepCurves, read_result, write_result
from frcl.report import find_runs, read_run
from frcl.report.numbers import SCORE_NAMES
from report_samples import bare_run, digits_points, result, rich_run, write_run


def test_everything_is_read_as_written(tmp_path):
    run = read_run(rich_run(tmp_path / "run"))
    found = run.result
    raw = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (found.benchmark, found.method, found.seeds) == ("split-digits", "frcl", (0, 1, 2))
    assert found.tasks == tuple(raw["tasks"])
    assert found.accuracy.shape == (3, 5, 5)
    for s in range(3):
        for after in range(5):
            for on in range(5):
                value, read = raw["accuracy"][s][after][on], found.accuracy[s, after, on]
                assert math.isnan(read) if on > after else read == value
    for key in ("average_accuracy", "forgetting", "nll", "auroc"):
        metric = found.metric(key)
        assert (metric.mean, metric.std, metric.low, metric.high) == tuple(
            raw[key][part] for part in ("mean", "std", "low", "high")
        )
        assert metric.per_seed == tuple(raw[key]["per_seed"])
    assert found.forward_transfer is None
    assert (found.memory_bytes.total, found.memory_bytes.per_task) == (261_700, (52_340,) * 5)
    assert found.memory_bytes.parts == {"points": 51_200, "posterior": 210_500}
    assert found.seconds == Seconds(31.42, 6.1, 1.25, 40.5)
    assert found.peak_memory_bytes == 412_300_100
    assert list(found.calibration.count) == raw["calibration"]["count"]
    assert np.isnan(found.calibration.accuracy[:5]).all()
    assert found.boundaries.true == (400, 800, 1200, 1600)
    assert found.boundaries.found == (400, 800, 1200)
    assert np.isnan(found.boundaries.statistic).sum() == 4
    assert found.boundaries.scores[2].delay is None
    assert found.steps.loss.tolist() == raw["steps"]["loss"]
    assert {number: points.shape for number, points in run.points.items()} == dict.fromkeys(range(5), (40, 64))


def test_what_is_read_is_written_as_it_was(tmp_path):
    for folder in (rich_run(tmp_path / "rich"), bare_run(tmp_path / "bare")):
        path = folder / "result.json"
        raw = json.loads(path.read_text())
        write_result(path, read_result(path))
        written = json.loads(path.read_text())
        assert {key: written[key] for key in raw if key != "memory_bytes"} == {
            key: raw[key] for key in raw if key != "memory_bytes"
        }
        assert raw["memory_bytes"].items() <= written["memory_bytes"].items()


def test_missing_parts_are_empty_and_no_error(tmp_path):
    content = result()
    needed = ("format", "version", "benchmark", "method", "seeds", "tasks", "accuracy")
    run = read_run(write_run(tmp_path / "run", {key: content[key] for key in needed}))
    found = run.result
    assert all(found.metric(name) is None for name in METRICS)
    assert (found.calibration, found.steps, found.boundaries, found.memory_bytes, found.seconds) == (None,) * 5
    assert (run.points, found.command, found.started, found.score) == ({}, "", "", "accuracy")


def test_variance_explained_may_be_negative_where_accuracy_may_not(tmp_path):
    content = result() | {"score": "r2"}
    content["accuracy"][0][4][0] = -3.5
    run = read_run(write_run(tmp_path / "run", content))
    assert (SCORE_NAMES[run.result.score], run.result.accuracy[0, 4, 0]) == ("R²", -3.5)
    refused(write_run(tmp_path / "wrong", content | {"score": "accuracy"}), "-3.5, not between 0 and 1")
    refused(write_run(tmp_path / "other", content | {"score": "points"}), "\"score\" is 'points'")


def test_points_keep_the_number_of_their_task(tmp_path):
    arrays = digits_points(3, 10)
    kept = {"task_7": arrays["task_0"], "task_1": arrays["task_1"][:4], "other": arrays["task_2"]}
    run = read_run(write_run(tmp_path / "run", result(), kept))
    assert {number: len(points) for number, points in run.points.items()} == {1: 4, 7: 10}
    assert [run.task(number) for number in run.points] == ["2/3", "task 8"]
    hidden = read_run(write_run(tmp_path / "hidden", result(hidden=True), kept))
    assert [hidden.task(number) for number in hidden.points] == ["found task 2", "found task 8"]


def test_steps_that_start_again_with_each_task_are_put_in_a_row():
    assert positions(0, 10, 20, 0, 10, 20, 5) == [0, 10, 20, 20, 30, 40, 45]
    assert positions(0, 10, 20, 30) == [0, 10, 20, 30]


def positions(*steps: int) -> list[float]:
    return StepCurves(1, steps, steps, *[np.zeros(len(steps))] * 4).position.tolist()


def test_runs_are_found_at_any_depth_once_and_in_order(tmp_path):
    bare_run(tmp_path / "b" / "deep" / "down")
    rich_run(tmp_path / "a")
    write_run(tmp_path / "a" / "inside", result("nested"))  # belongs to the run folder around it
    (tmp_path / "empty").mkdir()
    assert [run.result.method for run in find_runs([tmp_path])] == ["frcl", "ewc"]
    again = find_runs([tmp_path / "b", tmp_path, tmp_path / "a" / "result.json"])
    assert [run.result.method for run in again] == ["ewc", "frcl"]


DAMAGE = {
    "cut": (lambda text: text[: len(text) // 2], "not JSON"),
    "list": (lambda _: "[1, 2]", "not written by frcl"),
    "foreign": (lambda _: '{"accuracy": 0.9}', "not written by frcl"),
    "newer": (lambda text: text.replace('"version": 1', '"version": 2'), "version 2; this frcl reads version 1"),
    "deep": (lambda _: "[" * 100_000, "not JSON"),
    "a very long number": (lambda text: text.replace("31.42", "9" * 5000), "not JSON"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_foreign_or_cut_file_is_refused_in_one_line(tmp_path, kind):
    change, words = DAMAGE[kind]
    path = rich_run(tmp_path / "run") / "result.json"
    path.write_text(change(path.read_text()))
    refused(tmp_path / "run", words)


FIELDS = {
    "accuracy above one": (("accuracy", 0, 2, 1), 1.5, '"accuracy[0][2][1]" is 1.5'),
    "accuracy missing": (("accuracy", 1, 4, 0), None, '"accuracy[1][4][0]" is null'),
    "accuracy text": (("accuracy", 1, 4, 0), "high", "'high', not a number"),
    "accuracy of the future": (("accuracy", 0, 0, 4), 0.123, '"accuracy[0][0][4]" is 0.123, not null'),
    "row too short": (("accuracy", 0, 3), [0.5, 0.5], '"accuracy[0][3]" has 2 entries, expected 5'),
    "too many axes": (("accuracy",), [[[[1.0]]]], "4 deep"),
    "seed missing": (("seeds",), [0, 1], '"accuracy" has the shape [3, 5, 5], expected [2, 5, 5]'),
    "no tasks": (("tasks",), [], "no seeds or no tasks"),
    "a task that is no text": (("tasks",), [1], '"tasks[0]" is 1, not a text'),
    "no name": (("benchmark",), "", "no benchmark"),
    "a name on two lines": (("benchmark",), ["a\nb"], '"benchmark" is'),
    "metric not a table": (("nll",), 0.3, '"nll" is 0.3, not a table'),
    "metric without a mean": (("nll",), {"std": 0.3}, '"nll.mean" is missing'),
    "metric not finite": (("nll", "mean"), math.inf, '"nll.mean" is inf, not a finite number'),
    "metric not a number": (("nll", "per_seed", 1), math.nan, '"nll.per_seed[1]" is nan, not a finite number'),
    "metric too large": (("ece", "low"), 10**400, '"ece.low" is a number of 1329 bits, not a finite number'),
    "metric of other seeds": (("nll", "per_seed"), [0.1], '"nll.per_seed" has 1 entries, expected 3'),
    "bins": (("calibration", "count"), [1, 2], "differ in length"),
    "steps": (("steps", "loss"), [1.0], "differ in length"),
    "step not whole": (("steps", "step", 3), 0.5, '"steps.step[3]" is 0.5, not a whole number'),
    "statistic": (("boundaries", "statistic"), [1.0], "differ in length"),
    "statistic too large": (("boundaries", "statistic", 0), 10**400, "not a finite number"),
    "score without a threshold": (("boundaries", "scores", 0), {"f1": 1.0}, '"boundaries.scores[0].threshold" is'),
    "bytes": (("memory_bytes", "total"), 1.5, '"memory_bytes.total" is 1.5, not a whole number'),
    "bytes too large": (("memory_bytes", "total"), 10**400, '"memory_bytes.total" is a number of 1329 bits'),
    "bytes by kind": (("memory_bytes", "parts", "points"), "many", "not a whole number"),
    "seconds": (("seconds", "train"), True, '"seconds.train" is True, not a number'),
    "options": (("config",), [1], '"config" is [1], not a table'),
    "environment": (("environment", "torch"), 2, '"environment.torch" is 2, not a text'),
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


@pytest.mark.parametrize("field", ["benchmark", "method", "seeds", "tasks", "accuracy"])
def test_a_missing_field_is_named(tmp_path, field):
    content = result()
    del content[field]
    refused(write_run(tmp_path / "run", content), f'"{field}" is missing')


def refused(folder: Path, words: str) -> None:
    with pytest.raises(DataError) as caught:
        read_run(folder)
    message = str(caught.value)
    assert words in message
    assert "\n" not in message
    assert str(folder) in message
