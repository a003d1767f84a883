"""Sweeps on a Ray cluster: a machine, a process and the driver are killed, and the results stay the same."""

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from frcl import DataError, OptionError
from frcl.adapters.ray import SHARED, on_worker, search_on_ray, write_files
from frcl.experiment.config import resolve, to_toml
from frcl.experiment.keeper import read_checkpoint
from frcl.experiment.results import MEASURED, RESULT, read_result
from frcl.experiment.sweep import carry_out, read_plan
from frcl.experiment.tune import Search, tune

HERE = Path(__file__).parent
TINY = {"learner": {"steps": 20}, "network": {"widths": [8]}, "stream": {"tasks": 2}, "seeds": [0, 1]}
RAY = importlib.util.find_spec("ray") is not None
needs_ray = pytest.mark.skipif(not RAY, reason="ray is not installed: pip install 'frcl[ray]'")
SWEEP = [
    "split-digits", "--method", "frcl,ewc", "--seeds", "2", "--tasks", "2", "--steps", "250", "--set", "points=[5,10]",
    "--set", "network.widths=[16]", "--set", "checkpoint_seconds=0.1", "--quiet",
]  # fmt: skip
PATIENCE = 300.0  # seconds, on a machine that is busy with other tests


def outcome(folder):
    """The content of result.json without times and names of machines."""
    content = json.loads((folder / RESULT).read_text())
    return {name: value for name, value in content.items() if name not in MEASURED}


def environment():
    return {**os.environ, "OMP_NUM_THREADS": "1", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "RAY_DEDUP_LOGS": "0"}


@pytest.fixture
def frcl():
    """Starts the command; what still runs when the test ends is killed."""
    started = []

    def start(*arguments):
        started.append(
            subprocess.Popen(
                [sys.executable, "-m", "frcl", *map(str, arguments)], env=environment(), text=True,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            )
        )  # fmt: skip
        return started[-1]

    yield start
    for process in started:
        process.kill()
        with contextlib.suppress(ValueError):  # it was waited for
            process.communicate()


def wait_for(condition, what):
    until = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < until, f"waited in vain for {what}"
        time.sleep(0.02)


def working_in(folder):
    """The processes that hold the lock of a job's folder."""
    found = set()
    for handle in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):  # it has ended, or is not ours
            place = handle.readlink()
            if place.parent == folder and place.is_dir():
                found.add(int(handle.parts[2]))
    return found


@pytest.fixture(scope="module")
def cluster():
    """The address of a cluster of three nodes, and a function that kills one of them."""
    process = subprocess.Popen(
        [sys.executable, HERE / "ray_cluster.py"], env=environment(), text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip

    def kill():
        process.stdin.write("kill\n")
        process.stdin.flush()
        assert process.stdout.readline() == "killed\n"

    try:
        yield process.stdout.readline().strip(), kill
    finally:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        process.wait(60)
        process.stdout.close()


@needs_ray
@pytest.mark.slow
def test_a_job_a_node_and_the_driver_are_killed_and_the_results_are_the_same(cluster, frcl, tmp_path):
    address, kill_node = cluster
    folder = tmp_path / "killed"
    driver = frcl("sweep", *SWEEP, "--out", folder, "--address", address, "--gpus", "0.5")
    seen = {}  # when each job began, as its checkpoint says

    def begun():
        for path in folder.glob("*/checkpoint.frcl"):
            seen.setdefault(path.parent.name, read_checkpoint(path.parent)[0].started)
        return len(seen) >= 2

    wait_for(begun, "two jobs with checkpoints")
    os.kill(working_in(folder).pop(), signal.SIGKILL)
    kill_node()
    wait_for(lambda: list(folder.glob(f"*/{RESULT}")), "a finished job")
    driver.send_signal(signal.SIGKILL)
    driver.communicate()
    done = {path: path.stat().st_mtime_ns for path in folder.glob(f"*/{RESULT}")}
    jobs = read_plan(folder)
    assert set(jobs) == {"frcl,points=5", "frcl,points=10", "ewc"}
    assert len(done) < len(jobs), "it was killed too late to show anything"
    again = frcl("sweep", "--resume", folder, "--address", address)
    said, errors = again.communicate(timeout=PATIENCE)
    assert again.returncode == 0, errors
    assert "report:" in said
    for path, written in done.items():
        assert path.stat().st_mtime_ns == written, "finished jobs are not learned again"
    for name, text in jobs.items():
        carry_out(text, tmp_path / "whole" / name)
        assert outcome(folder / name) == outcome(tmp_path / "whole" / name), name
    for name, started in seen.items():
        assert read_result(folder / name / RESULT).started == started, "it went on, it did not begin again"
    assert (folder / "report.html").exists()
    assert (folder / "tables" / "paired.md").exists()


@needs_ray
@pytest.mark.slow
def test_ray_tune_finds_what_the_grid_finds(cluster, tmp_path):
    """The same options have the same scores; what is asked again in the same folder is not learned again."""
    code = (
        "import sys, json; from pathlib import Path; from frcl.adapters.ray import search_on_ray\n"
        "from frcl.experiment.tune import Search\n"
        "for _ in range(2):\n"
        "    found = search_on_ray(Search.read(Path(sys.argv[1])), Path(sys.argv[1]), sys.argv[2])\n"
        "    times = [path.stat().st_mtime_ns for path in sorted(Path(sys.argv[1]).glob('*/result.json'))]\n"
        "    print(json.dumps([[trial.to_json() for trial in found], times]))"
    )
    search = Search("finetune", "split-digits", TINY, {"lr": [1e-4, 1e-2]}, trials=3)
    folder = tmp_path / "ray"
    search.write(folder)
    process = subprocess.run(
        [sys.executable, "-c", code, folder, cluster[0]], env=environment(), text=True, capture_output=True, check=False
    )
    assert process.returncode == 0, process.stderr
    first, second = map(json.loads, process.stdout.splitlines())
    assert first == second
    found, _ = first
    grid = {
        trial.options["lr"]: trial.to_json()
        for trial in tune(Search("finetune", "split-digits", TINY, {"lr": [1e-4, 1e-2]}), tmp_path / "grid")
    }
    ended = [trial for trial in found if "error" not in trial]
    assert ended
    assert all(trial == grid[trial["options"]["lr"]] for trial in ended)
    assert found[0]["accuracy"] == max(trial["accuracy"] for trial in ended)


def test_where_folders_are_not_shared_files_come_back(tmp_path):
    text = to_toml(resolve("split-digits", TINY, {"method": "finetune"}))
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    (here / SHARED).write_text("token")
    assert on_worker(text, str(here / "job"), "token") == (None, {})
    error, files = on_worker(text, str(there / "job"), "token")
    assert error is None
    assert not there.exists()
    write_files(there / "job", files)
    assert outcome(there / "job") == outcome(here / "job")
    failing = to_toml(resolve("split-digits", TINY, {"method": "frcl", "learner": {"points": 9999}}))
    error, files = on_worker(failing, str(there / "bad"), "token")
    assert "9999" in error
    assert files == {}
    with pytest.raises(DataError, match="outside"):
        write_files(there, {"../x": b""})


@pytest.mark.skipif(RAY, reason="ray is installed")
def test_ray_is_an_extra(tmp_path):
    with pytest.raises(OptionError, match=r"pip install 'frcl\[ray\]'"):
        search_on_ray(Search("finetune", "split-digits", TINY, {"lr": [1e-3]}), tmp_path, "local")
