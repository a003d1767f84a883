"""Sweeps: what is planned, jobs in several processes, and going on after a kill."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from frcl import DataError, OptionError
from frcl.cli import main
from frcl.experiment import sweep as module
from frcl.experiment.config import resolve, saved, to_toml
from frcl.experiment.keeper import Observer
from frcl.experiment.results import MEASURED, RESULT
from frcl.experiment.sweep import carried_out, carry_out, in_processes, in_turn, job_name, plan, read_plan, write_plan
from frcl.files import alone_in

TINY = {"learner": {"steps": 10}, "network": {"widths": [8]}, "stream": {"tasks": 2}, "seeds": [0]}
LONGER = {**TINY, "learner": {"steps": 600}, "run": {"checkpoint_seconds": 0.05}}


def outcome(folder):
    content = json.loads((folder / RESULT).read_text())
    return {name: value for name, value in content.items() if name not in MEASURED}


def planned(methods, settings, skipped=None):
    told = [] if skipped is None else skipped
    return plan("split-digits", methods, lambda one: [TINY, {"method": one}], settings, lambda *one: told.append(one))


def test_every_method_with_every_value_that_it_has():
    skipped = []
    jobs = planned(
        ["frcl", "ewc"], ["points=[5,10]", "strength=[1.0,3.0]", "lr=0.01", "scenario=[task,class]"], skipped
    )
    assert len(jobs) == 8
    assert set(skipped) == {("frcl", "strength"), ("ewc", "points")}
    one = jobs["frcl,points=10,scenario=_class_"]
    assert (one.method, one.learner.points, one.learner.lr, one.scenario) == ("frcl", 10, 0.01, "class")
    assert {config.learner.strength for config in jobs.values() if config.method == "ewc"} == {1.0, 3.0}
    assert all(config.learner.steps == 10 for config in jobs.values())
    assert list(planned(["frcl"], [])) == ["frcl"]


def test_an_option_that_is_a_list_takes_a_list_of_lists():
    assert planned(["ewc"], ["widths=[8,9]"])["ewc"].network.widths == (8, 9)
    jobs = planned(["ewc"], ["network.widths=[[8],[8,9]]"])
    assert [config.network.widths for config in jobs.values()] == [(8,), (8, 9)]
    assert [config.seeds for config in planned(["ewc"], ["seeds=[3,4]"]).values()] == [(3, 4)]
    assert [config.seeds for config in planned(["ewc"], ["seeds=[[3],[4]]"]).values()] == [(3,), (4,)]


@pytest.mark.parametrize(
    ("settings", "message"),
    [(["lr=[]"], "no value to try"), (["lr=1", "lr=2"], "lr twice"), (["lrr=[1]"], "did you mean 'lr'"),
     (["lr=[1,-1]"], "lr must be")],
)  # fmt: skip
def test_plans_that_cannot_be(settings, message):
    with pytest.raises(OptionError, match=message):
        planned(["frcl"], settings)


SHORT = ("split-digits", "--steps", "5", "--tasks", "1", "--seeds", "1", "--set", "network.widths=[8]")


@pytest.fixture
def command(monkeypatch, capsys, tmp_path):
    """`frcl sweep`, in a folder of its own."""

    def call(*arguments, code=0):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["frcl", "sweep", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        said = capsys.readouterr()
        assert end.value.code == code, said.err
        return said

    return call


@pytest.mark.slow
def test_options_beside_resume_are_those_of_the_folder(command):
    begun = (*SHORT, "--method", "finetune,ewc", "--set", "lr=[1e-3,1e-2]", "--set", "strength=3")
    command(*begun, "--out", "here", "--quiet")
    for same in ((), begun, ("--method", "ewc,finetune", "--set", "strength=3.0")):
        command("--resume", "here", "--quiet", *same)
    for other, named in (
        (("--set", "lr=[1e-3]"), "learner.lr is [0.001, 0.01] there, not [0.001]"),
        (("--set", "lr=[1e-3,1e-2,1e-1]"), "learner.lr is [0.001, 0.01] there, not [0.001, 0.01, 0.1]"),
        (("--set", "strength=4"), "learner.strength is [3.0] there, not [4]"),
        (("--seeds", "2"), "seeds is [0] there, not [0, 1]"),
        (("--method", "ewc"), "method is ['ewc', 'finetune'] there, not ['ewc']"),
        (("permuted-digits",), "benchmark is 'split-digits' there"),
        (("--overwrite",), "leave out --dry-run, --overwrite and --out"),
    ):
        said = command("--resume", "here", *other, code=2).err
        assert named in said, said


def test_a_sweep_may_be_overwritten(command, tmp_path):
    """Its runs are removed; what else is in the folder stays."""
    command(*SHORT, "--method", "finetune", "--set", "lr=[1e-3,1e-2]", "--out", "here", "--quiet")
    (tmp_path / "here" / "mine").mkdir()
    command(*SHORT, "--method", "finetune", "--out", "here", code=2)
    command(*SHORT, "--method", "finetune", "--set", "lr=[1e-2,1e-4]", "--out", "here", "--quiet", "--overwrite")
    found = {path.name for path in (tmp_path / "here").iterdir() if path.is_dir()}
    assert found == {"finetune,lr=0.01", "finetune,lr=0.0001", "mine", "tables"}


def test_a_plan_is_written_and_read(tmp_path):
    jobs = planned(["frcl", "ewc"], ["points=[5,10]"])
    write_plan(tmp_path / "new", jobs)
    assert {name: saved(module.tomllib.loads(text)) for name, text in read_plan(tmp_path / "new").items()} == jobs
    with pytest.raises(OptionError, match="frcl sweep --resume"):
        write_plan(tmp_path / "new", jobs)
    with pytest.raises(DataError, match="holds no sweep"):
        read_plan(tmp_path)
    for content in (
        '"jobs": 3',
        '"jobs": {"../a": "x"}',
        '"jobs": {"a/b": "x"}',
        '"jobs": {".": "x"}',
        '"jobs": {"a": 1}',
    ):
        (tmp_path / "sweep.json").write_text(f'{{"format": "frcl-sweep", "version": 1, {content}}}')
        with pytest.raises(DataError, match="damaged"):
            read_plan(tmp_path)


def test_names_are_names_of_files():
    assert job_name({"points": 10, "kind": "a/../b"}, "frcl") == "frcl,points=10,kind=_a_.._b_"
    names = [job_name({"x": "a" * 500 + end}) for end in "bc"]
    assert len(set(names)) == 2
    assert all(len(name) <= 100 and job_name({}, name) == name for name in names)


def test_no_job_takes_the_place_of_another():
    """Names of files are the same for values that differ in other characters alone."""
    wide = ",".join(["100"] * 30)
    jobs = plan("split-digits", ["frcl"], lambda _: [], [f"network.widths=[[{wide},1],[{wide},2]]"])
    assert sorted(config.network.widths[-1] for config in jobs.values()) == [1, 2]
    with pytest.raises(OptionError, match=r"two jobs have the name frcl,data=_a_b_"):
        plan("split-digits", ["frcl"], lambda _: [], ['data=["a b","a/b"]'])
    assert len(plan("split-digits", ["frcl"], lambda _: [], ["lr=[1e-3,1e-3]"])) == 1


def test_a_job_waits_for_a_process_that_ends_soon_and_refuses_another_run(tmp_path, monkeypatch):
    text = to_toml(resolve("split-digits", TINY, {"method": "finetune"}))
    folder = tmp_path / "job"
    folder.mkdir()
    held, free = threading.Event(), threading.Event()

    def hold():
        with alone_in(folder):
            held.set()
            free.wait(10)

    monkeypatch.setattr(module.time, "sleep", lambda _: free.set())
    other = threading.Thread(target=hold)
    other.start()
    held.wait(10)
    carry_out(text, folder)
    other.join()
    assert free.is_set(), "it waited"
    with pytest.raises(OptionError, match="other options"):
        carry_out(text.replace("steps = 10", "steps = 11"), folder)


def test_errors_are_told_and_the_others_go_on(tmp_path):
    good, bad = (
        to_toml(resolve("split-digits", TINY, {"method": one, "learner": options}))
        for one, options in (("finetune", {}), ("frcl", {"points": 9999}))
    )
    found = dict(carried_out({"bad": bad, "good": good}, tmp_path, in_turn))
    assert "9999" in found["bad"]
    assert found["good"].method == "finetune"
    again = dict(
        carried_out({"bad": bad, "good": good}, tmp_path, lambda jobs, folder: iter([(name, "tried") for name in jobs]))
    )
    assert again["bad"] == "tried", "what failed is tried again, what is finished is read"
    assert again["good"].to_json() == found["good"].to_json()


@pytest.mark.slow
def test_a_killed_process_is_replaced_and_the_results_are_the_same(tmp_path):
    jobs = {str(i): to_toml(resolve("split-digits", LONGER, {"method": "finetune", "seeds": [i]})) for i in range(2)}
    killed = []

    def kill():
        while not killed:
            for child in Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split():
                if (
                    "spawn_main" in Path(f"/proc/{child}/cmdline").read_text()
                    and (tmp_path / "0" / "checkpoint.frcl").exists()
                ):
                    os.kill(int(child), signal.SIGKILL)
                    killed.append(child)
                    break
            time.sleep(0.01)

    thread = threading.Thread(target=kill)
    thread.start()
    found = dict(carried_out(jobs, tmp_path, in_processes(2)))
    thread.join()
    for name, text in jobs.items():
        carry_out(text, tmp_path / "whole" / name)
        assert outcome(tmp_path / name) == outcome(tmp_path / "whole" / name)
        assert found[name].seeds == (int(name),)


@pytest.mark.slow
def test_the_command(tmp_path, monkeypatch, capsys):
    """Killed after the first job, resumed; one report; the results are those of single runs."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments, code=0):
        monkeypatch.setattr(sys, "argv", ["frcl", "sweep", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        said = capsys.readouterr()
        assert end.value.code == code, said.err
        return said

    options = (
        "split-digits",
        "--method",
        "frcl,finetune",
        "--seeds",
        "1",
        "--tasks",
        "2",
        "--steps",
        "10",
        "--points",
        "5",
        "--set",
        "lr=[1e-3,1e-2]",
    )
    names = ["frcl,lr=0.001", "frcl,lr=0.01", "finetune,lr=0.001", "finetune,lr=0.01"]
    assert call(*options, "--dry-run").out.split() == names
    assert not (tmp_path / "runs").exists()
    real, count = module.runner.run, []

    def dying(*arguments, **keywords):
        count.append(arguments)
        if len(count) == 2:
            raise KeyboardInterrupt
        return real(*arguments, **keywords)

    monkeypatch.setattr(module.runner, "run", dying)
    said = call(*options, "--out", "here", code=130)
    assert "go on with: frcl sweep --resume here" in said.err
    assert "method finetune has no option points" in said.err
    said = call("--resume", "here")
    assert said.out.splitlines()[-1] == f"report: {Path('here') / 'report.html'}"
    assert "frcl lr=0.01 − finetune lr=0.001" in said.out
    assert len(count) == 2 + 3, "the first was not learned again"
    real(
        resolve("split-digits", {**TINY, "network": {}, "method": "finetune", "learner": {"steps": 10, "lr": 0.01}}),
        tmp_path / "alone",
        Observer(),
    )
    assert outcome(tmp_path / "alone") == outcome(tmp_path / "here" / "finetune,lr=0.01")
    assert set(json.loads(call("--resume", "here", "--json").out)) == set(names)
    for dry in ((), ("--dry-run",)):
        assert "already holds what `frcl sweep` wrote" in call(*options, "--out", "here", *dry, code=2).err
    assert call(*options, "--out", "here", "--dry-run", "--overwrite").out.split() == names
    monkeypatch.setattr(sys, "argv", ["frcl", "resume", "here"])
    with pytest.raises(SystemExit):
        main()
    assert "go on with `frcl sweep --resume here`" in capsys.readouterr().err
    failing = call("split-digits", "--points", "9999", "--tasks", "1", "--out", "bad", code=1).err
    assert "1 of 1 jobs failed" in failing


def test_a_sweep_on_ray_without_ray_leaves_nothing(command, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    options = ("--tasks", "1", "--steps", "2", "--out", "here", "--address", "local")
    assert "pip install 'frcl[ray]'" in command("split-digits", "--method", "finetune", *options, code=2).err
    assert not (tmp_path / "here").exists()


@pytest.mark.slow
def test_ray_is_asked_for_by_name(tmp_path):
    """Without Ray installed, or with it: an address that is none ends in one line."""
    result = subprocess.run(
        [sys.executable, "-m", "frcl", "sweep", "--tasks", "1", "--steps", "2", "--out", tmp_path / "x",
         "--address", "127.0.0.1:1"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode in (1, 2)
    assert "pip install 'frcl[ray]'" in result.stderr or "there is no Ray cluster at '127.0.0.1:1'" in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
