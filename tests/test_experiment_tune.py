"""Tuning looks at validation data alone, tries what the grid says, and returns the best first."""

import json
import sys
from dataclasses import fields, replace

import pytest
import torch

from frcl import DataError, NumericalError, OptionError
from frcl.cli import main
from frcl.data import registry
from frcl.data.tasks import Split, Task, TaskList
from frcl.experiment import sweep
from frcl.experiment.config import to_toml
from frcl.experiment.runner import benchmark_of, new_learner
from frcl.experiment.sweep import carry_out, combinations
from frcl.experiment.tune import BY, Search, Trial, grid_of, own_grid, tune
from frcl.methods import METHODS

TINY = {"learner": {"steps": 20}, "network": {"widths": [8]}}


def searching(method="finetune", layer=TINY, grid=None, **options):
    return Search(method, "split-digits", layer, grid or grid_of(method), **options)


def made_up(monkeypatch, reached):
    """Instead of learning: `reached(options)` are the scores of a trial, or a text, its error."""
    tried = []

    def engine(jobs, folder):
        for name in jobs:
            tried.append(name)
            yield name, None

    def trial(options, found):
        scores = reached(options)
        return (
            Trial(options, dict.fromkeys(BY), scores)
            if isinstance(scores, str)
            else Trial(options, dict.fromkeys(BY) | scores)
        )

    monkeypatch.setattr(sweep, "read_result", lambda path: path)
    monkeypatch.setattr(Trial, "of", staticmethod(trial))
    return engine, tried


def test_every_method_has_a_grid_of_its_own_options(monkeypatch):
    for name, options in ((name, one.options) for name, one in METHODS.items()):
        grid = grid_of(name)
        assert set(grid) <= {field.name for field in fields(options)}
        assert all(len(values) > 1 for values in grid.values())
    with pytest.raises(OptionError, match="unknown method 'nonsense'"):
        grid_of("nonsense")
    monkeypatch.setattr("frcl.experiment.tune.bundled", lambda name: {})
    with pytest.raises(OptionError, match="nothing to tune for method 'ewc'"):
        grid_of("ewc")
    assert list(combinations({"a": [1, 2], "b": [3]})) == [{"a": 1, "b": 3}, {"a": 2, "b": 3}]


def test_test_data_is_never_touched(monkeypatch, tmp_path):
    """A benchmark whose test data raises when looked at."""

    class Locked(Split):
        def __getattribute__(self, name):
            if name in ("x", "y"):
                raise AssertionError("test data was touched")
            return super().__getattribute__(name)

    x = torch.rand(60, 4, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] > 0.5).long()
    open_part = Split(x, y)
    locked = Locked(x, y)
    tasks = tuple(Task(str(i), open_part, Split(x[:20], y[:20]), locked, 60) for i in range(2))
    build = lambda request: lambda seed: TaskList("locked", tasks)  # noqa: E731
    monkeypatch.setitem(registry.BENCHMARKS.data, "locked", registry.BenchmarkSpec("a test", build))
    search = Search("finetune", "locked", TINY, {"lr": [1e-3]})
    found = tune(search, tmp_path)
    assert found[0].error is None
    assert 0 <= found[0].reached["accuracy"] <= 1
    untuned = to_toml(search.config({})).replace('"validation"', '"test"')
    with pytest.raises(AssertionError, match="touched"):
        carry_out(untuned, tmp_path / "test")


def test_the_best_comes_first_and_every_trial_is_told(tmp_path):
    told = []
    found = tune(searching(extensions=0), tmp_path, on_trial=told.append)
    assert len(found) == len(told) == len(grid_of("finetune")["lr"])
    assert found[0].reached["accuracy"] == max(trial.reached["accuracy"] for trial in told)
    assert found[0].options["lr"] in grid_of("finetune")["lr"]


def test_a_trial_has_the_scores_of_a_run_on_validation_data(tmp_path):
    """By hand: a learner of our own for each seed, every task's validation data, plain means."""
    layer = {"learner": {"steps": 60}, "network": {"widths": [16]}, "seeds": [0, 1], "stream": {"tasks": 2}}
    search = Search("finetune", "permuted-digits", layer, {"lr": [1e-3]})
    config = search.config({"lr": 1e-3})
    plain = replace(config, stream=replace(config.stream, test_on="test"))
    accuracies, losses, errors, gaps = [], [], [], []
    for seed in config.seeds:
        benchmark = benchmark_of(plain, seed)
        learner = new_learner(plain, benchmark, seed)
        for number in range(2):
            task = benchmark.task(number)
            learner.fit(task.train.x, task.train.y)
        for number in range(2):
            held = benchmark.task(number).validation
            x, y = held.x, held.y
            prediction = learner.predict(x, task=number)
            columns = torch.tensor([prediction.classes.index(int(one)) for one in y])
            own = prediction.probs[torch.arange(len(y)), columns]
            confidence, right = prediction.probs.max(1).values, (prediction.labels == y).double()
            accuracies.append(right.mean())
            losses.append(-own.double().log().mean())
            bins = (confidence.double() * 10).ceil().clamp(1, 10)  # (0, 0.1], (0.1, 0.2], ...
            errors.append(sum(abs((confidence.double() - right)[bins == b].sum()) for b in range(1, 11)) / len(y))
            gaps.append(abs((confidence.double() - right).sum()) / len(y))
    assert sum(errors) > sum(gaps) + 1e-3, "bins err in both directions, so it matters what they are"
    (found,) = tune(search, tmp_path)
    assert found.reached["accuracy"] == pytest.approx(float(sum(accuracies) / 4))
    assert found.reached["nll"] == pytest.approx(float(sum(losses) / 4), rel=1e-5)
    assert found.reached["ece"] == pytest.approx(float(sum(errors) / 4), abs=1e-5)


@pytest.mark.parametrize(("by", "best"), [("accuracy", 1), ("nll", 2), ("ece", 3), ("agnostic", 2)])
def test_what_decides_may_be_chosen(monkeypatch, tmp_path, by, best):
    made = {
        1: {"accuracy": 0.9, "nll": 0.5, "ece": 0.2, "agnostic": 0.3},
        2: {"accuracy": 0.8, "nll": 0.1, "ece": 0.3, "agnostic": 0.4},
        3: {"accuracy": 0.7, "nll": 0.6, "ece": 0.1, "agnostic": 0.2},
    }
    engine, _ = made_up(monkeypatch, lambda options: made[options["steps"]])
    found = tune(searching(grid={"steps": [1, 2, 3]}, by=by, extensions=0), tmp_path, engine)
    assert found[0].reached == made[best]
    assert "NLL 0." in found[0].show()
    assert set(found[0].to_json()) == {"options", *BY}


@pytest.mark.parametrize(
    ("values", "best", "tried"),
    [
        ([0.1, 1.0, 10.0], 1000.0, [100.0, 1000.0, 10000.0]),  # larger by the same ratio until it is inside
        ([0.1, 1.0, 10.0], 0.01, [0.01, 0.001]),
        ([0.1, 1.0, 10.0], 1.0, []),
        ([0.0, 0.1, 0.3], 0.0, []),  # zero switches a term off
        ([0.0, 0.1], 0.2, [0.2, 0.4]),
        ([10, 20], 40, [40, 80]),  # whole numbers stay whole
        ([1e-3], 1e-3, []),
    ],
)
def test_a_grid_whose_edge_wins_is_extended(monkeypatch, tmp_path, values, best, tried):
    name = "steps" if isinstance(values[0], int) else "strength"
    engine, names = made_up(monkeypatch, lambda options: {"accuracy": -abs(options[name] - best)})
    told = []
    found = tune(searching("ewc", {}, {name: values}), tmp_path, engine, on_extended=lambda *one: told.append(one))
    assert found[0].options[name] == best
    assert [value for _, _, value in told] == pytest.approx(tried)
    assert len(names) == len(set(names)) == len(values) + len(tried), "nothing is tried twice"


def test_a_grid_is_extended_as_a_grid_as_often_as_is_said_and_no_further_than_is_possible(monkeypatch, tmp_path):
    engine, names = made_up(monkeypatch, lambda options: {"accuracy": options["strength"] - options["lr"]})
    grid = {"strength": [1.0, 2.0], "lr": [0.5, 1.0]}
    found = tune(searching("ewc", {}, grid, extensions=1), tmp_path, engine)
    assert found[0].options == {"strength": 4.0, "lr": 0.25}
    assert len(names) == 9
    engine, names = made_up(monkeypatch, lambda options: {"accuracy": options["lr_decay"]})
    found = tune(searching("frcl", {}, {"lr_decay": [0.5, 1.0]}), tmp_path / "other", engine)
    assert found[0].options == {"lr_decay": 1.0}, "2.0 is not a share"
    engine, names = made_up(monkeypatch, lambda options: {"accuracy": min(options["strength"], 10.0)})
    tune(searching("ewc", {}, {"strength": [1.0, 10.0, 100.0]}), tmp_path / "equal", engine)
    assert len(names) == 3, "a value inside that is as good is no reason to go on"


def test_trials_that_fail_are_told_and_never_chosen(monkeypatch, tmp_path):
    engine, _ = made_up(monkeypatch, lambda options: "it diverged" if options["lr"] > 1e-3 else {"accuracy": 0.1})
    found = tune(searching(grid={"lr": [1e-3, 1.0]}, extensions=0), tmp_path, engine)
    assert [trial.error for trial in found] == [None, "it diverged"]
    assert found[1].show() == found[1].to_json()["error"] == "it diverged"
    engine, _ = made_up(monkeypatch, lambda options: "it diverged")
    with pytest.raises(NumericalError, match="it diverged"):
        tune(searching(), tmp_path / "other", engine)


def test_numbers_have_no_ece_to_decide_by(tmp_path):
    rows = [f"{i / 10},{i % 7}.5" for i in range(60)]
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.csv").write_text("x,label\n" + "\n".join(rows))
    (tmp_path / "own.toml").write_text('name = "own"\nfolder = "data"\n')
    search = Search("frcl", str(tmp_path / "own.toml"), TINY | {"stream": {"tasks": 1}}, {"lr": [1e-3, 1e-2]}, by="ece")
    told = []
    with pytest.raises(OptionError, match=r"--by ece: what .*own.toml predicts are numbers"):
        tune(search, tmp_path / "search", on_trial=told.append)
    assert told == [], "it is noticed at once"


def test_a_score_that_there_is_not_never_decides(monkeypatch, tmp_path):
    none = Trial({}, {"accuracy": 0.9, "nll": 1.0, "ece": None, "agnostic": None})
    assert none.merit("ece") < Trial({}, {"ece": 0.9}).merit("ece")
    assert "ECE" not in none.show()
    engine, _ = made_up(monkeypatch, lambda options: {"accuracy": 0.5, "nll": None})
    with pytest.raises(NumericalError, match="no trial has a finite NLL"):
        tune(searching(by="nll"), tmp_path, engine)
    with pytest.raises(OptionError, match="--by speed is unknown; choose one of accuracy, nll, ece"):
        searching(by="speed")


def test_a_search_goes_on_after_a_kill(tmp_path):
    """Killed in the second of three trials: finished trials are not learned again, and the results are the same."""
    search, folder = searching(extensions=0), tmp_path / "killed"
    search.write(folder)
    assert Search.read(folder) == search
    with pytest.raises(OptionError, match="frcl tune --resume"):
        search.write(folder)
    started = []

    def dying(jobs, folder):
        for name, text in jobs.items():
            if len(started) == 1:
                raise KeyboardInterrupt
            started.append(name)
            carry_out(text, folder / name)
            yield name, None

    with pytest.raises(KeyboardInterrupt):
        tune(search, folder, dying)
    before = (folder / started[0] / "result.json").stat().st_mtime_ns
    found = tune(Search.read(folder), folder)
    assert (folder / started[0] / "result.json").stat().st_mtime_ns == before
    whole = tune(search, tmp_path / "whole")
    assert [trial.to_json() for trial in found] == [trial.to_json() for trial in whole]
    (folder / "tune.json").write_text('{"format": "frcl-tune", "version": 1, "method": 3}')
    with pytest.raises(DataError, match="damaged"):
        Search.read(folder)
    with pytest.raises(DataError, match="holds no search"):
        Search.read(tmp_path)


def test_training_is_on_training_data_alone():
    config = searching("ewc", {}).config({"strength": 3.0})
    assert (config.stream.train_on, config.stream.tasks, config.learner.strength) == ("train", 3, 3.0)
    assert config.stream.test_on == "validation"
    with pytest.raises(OptionError, match="training data alone"):
        searching("ewc", {"stream": {"train_on": "train+validation"}}).config({})
    with pytest.raises(OptionError, match="test_on=validation needs train_on=train"):
        replace(config.stream, train_on="train+validation")


def test_values_to_try_may_be_given(tmp_path):
    words = own_grid(["prediction=[summary, head]", 'start=["uniform"]', "current_inputs=[0.1,none]"], "frcl-plus")
    assert words == {"prediction": ["summary", "head"], "start": ["uniform"], "current_inputs": [0.1, "none"]}
    grid = own_grid(["lr=[1e-3,1e-2]", "batch_size=[8]"], "finetune")
    assert grid == {"lr": [1e-3, 1e-2], "batch_size": [8]}
    found = tune(searching(grid=grid, extensions=0), tmp_path)
    assert sorted(trial.options["lr"] for trial in found) == grid["lr"]
    assert {trial.options["batch_size"] for trial in found} == {8}


@pytest.mark.parametrize(
    ("text", "message"),
    [("lr", "--try wants key=value"),
     ("lr=1e-3", r"--try lr=\[0.1,1.0\]"), ("lr=[]", "a list of values"), ("seeds=[0,1]", "is for --set"),
     ("network.widths=[3]", "is for --set"), ("lrs=[1.0]", "did you mean 'lr'")],
)  # fmt: skip
def test_values_that_cannot_be_tried(text, message):
    with pytest.raises(OptionError, match=message):
        own_grid([text], "finetune")


def test_a_name_to_try_is_given_once():
    with pytest.raises(OptionError, match="lr twice"):
        own_grid(["lr=[1e-3]", "lr=[1e-2]"], "finetune")


def test_a_value_that_cannot_be_is_refused_before_anything_is_learned(tmp_path):
    told = []
    with pytest.raises(OptionError, match="lr_decay"):
        tune(searching("frcl", grid={"lr_decay": [0.5, 1.5]}), tmp_path, on_trial=told.append)
    assert told == []


def test_optuna_is_an_extra(tmp_path):
    try:
        import optuna  # noqa: F401
    except ImportError:
        with pytest.raises(OptionError, match=r"pip install 'frcl\[tune\]'"):
            tune(searching(trials=2), tmp_path)
    else:
        found = tune(searching(trials=4), tmp_path)
        times = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/result.json")}
        assert len(found) == len(times)
        assert [one.to_json() for one in tune(searching(trials=4), tmp_path)] == [one.to_json() for one in found]
        assert times == {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/result.json")}


@pytest.fixture
def command(monkeypatch, capsys, tmp_path):
    """`frcl tune`, in a folder of its own."""

    def call(*arguments, code=0):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["frcl", "tune", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        said = capsys.readouterr()
        assert end.value.code == code, said.err
        return said

    return call


def test_the_command_takes_the_options_of_a_run(command, tmp_path):
    options = (
        "--steps",
        "10",
        "--tasks",
        "2",
        "--seeds",
        "0,1",
        "--points",
        "3",
        "--by",
        "nll",
        "--out",
        "here",
        "--set",
        "network.widths=[8]",
    )
    said = command("finetune", "split-digits", *options, "--json")
    found = json.loads(said.out)
    assert [trial["nll"] for trial in found] == sorted(trial["nll"] for trial in found)
    assert "finetune has no option points" in said.err
    config = json.loads(next((tmp_path / "here").glob("*/result.json")).read_text())["config"]
    assert (config["learner"]["steps"], config["stream"]["tasks"], config["seeds"]) == (10, 2, [0, 1])
    assert json.loads(command("--resume", "here", "--json").out) == found
    command("finetune", "split-digits", *options, code=2)
    assert "the largest value" not in command("finetune", "split-digits", "--dry-run").out


SHORT = ("finetune", "split-digits", "--steps", "5", "--tasks", "1", "--try", "lr=[1e-3,1e-2]", "--seeds", "1")


def test_options_beside_resume_are_those_of_the_folder(command):
    begun = (*SHORT, "--set", "network.widths=[8]")
    command(*begun, "--extend", "0", "--out", "here", "--quiet")
    for same in ((), begun, ("--try", "learner.lr=[0.01,0.001]", "--by", "accuracy", "--extend", "0")):
        command("--resume", "here", "--quiet", *same)
    for other, named in (
        (("--try", "lr=[1e-3,1]"), r"learner.lr is [0.001, 0.01] there, not [0.001, 1]"),
        (("--set", "network.widths=[9]"), "network.widths is [8] there, not [9]"),
        (("--seeds", "2", "--tasks", "2"), "seeds is [0] there, not [0, 1]"),
        (("--seeds", "2", "--tasks", "2"), "stream.tasks is 1 there, not 2"),
        (("ewc",), "method is ['finetune'] there, not ['ewc']"),
        (("finetune", "permuted-digits"), "benchmark is 'split-digits' there, not 'permuted-digits'"),
        (("--by", "nll"), "--by is 'accuracy' there, not 'nll'"),
        (("--trials", "2"), "--trials is None there, not 2"),
        (("--extend", "1"), "--extend is 0 there, not 1"),
        (("--overwrite",), "leave out --dry-run, --overwrite and --out"),
        (("--out", "there"), "leave out --dry-run, --overwrite and --out"),
    ):
        said = command("--resume", "here", *other, code=2).err
        assert named in said, said


def test_a_search_may_be_overwritten(command, tmp_path):
    """Its trials are removed; what else is in the folder stays."""
    command(*SHORT, "--extend", "0", "--out", "here", "--quiet")
    for name in ("mine", "ray"):
        (tmp_path / "here" / name).mkdir()
    command(*SHORT, "--out", "here", code=2)
    other = [*SHORT[:-3], "lr=[1e-4,1e-3]", *SHORT[-2:], "--set", "network.widths=[9]", "--extend", "0"]
    command(*other, "--out", "here", "--quiet", "--overwrite")
    found = {path.name for path in (tmp_path / "here").iterdir() if path.is_dir()}
    assert found == {"lr=0.0001", "lr=0.001", "mine"}
    assert "widths = [9]" in (tmp_path / "here" / "lr=0.001" / "config.toml").read_text()


@pytest.mark.parametrize("dry", [(), ("--dry-run",)])
def test_a_search_that_is_refused_leaves_nothing(command, tmp_path, monkeypatch, dry):
    """Every combination is checked first, so that the corrected command has the folder to itself."""
    wrong = [*SHORT[:-3], "lr=[1e-3,-1]", *SHORT[-2:], "--out", "here"]
    assert "lr must be a positive number" in command(*wrong, *dry, code=2).err
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert "frcl[tune]" in command(*SHORT, "--trials", "2", "--out", "here", *dry, code=2).err
    assert not (tmp_path / "here").exists()
    command(*SHORT, "--extend", "0", "--out", "here", *dry)


@pytest.mark.parametrize("package", ["ray", "optuna"])
def test_a_search_on_ray_without_a_package_leaves_nothing(command, tmp_path, monkeypatch, package):
    if package == "optuna":
        pytest.importorskip("ray")
    monkeypatch.setitem(sys.modules, package, None)
    assert "pip install 'frcl[ray]'" in command(*SHORT, "--engine", "ray", "--out", "here", code=2).err
    assert not (tmp_path / "here").exists()


def test_a_dry_run_refuses_the_folder_that_the_search_would(command, tmp_path):
    command(*SHORT, "--extend", "0", "--out", "here", "--quiet")
    assert "here already holds what `frcl tune` wrote" in command(*SHORT, "--out", "here", "--dry-run", code=2).err
    command(*SHORT, "--out", "here", "--dry-run", "--overwrite")
    assert len(list((tmp_path / "here").glob("*/result.json"))) == 2


@pytest.mark.parametrize("other", [("--trials", "2"), ("--engine", "ray")])
def test_a_grid_is_extended_where_every_combination_is_tried(command, other):
    assert "not with --trials or --engine ray" in command(*SHORT, "--extend", "2", *other, code=2).err


def test_the_command_says_that_it_extends_the_grid(command, tmp_path):
    said = command(
        "finetune",
        "split-digits",
        "--steps",
        "10",
        "--tasks",
        "1",
        "--try",
        "lr=[1e-5,1e-4]",
        "--extend",
        "1",
        "--by",
        "nll",
    ).out
    assert "lr=0.0001 is the largest value and the best: trying 0.001 too" in said
    assert "--set lr=0.001" in said.splitlines()[-1]
    assert (tmp_path / "runs" / "split-digits-finetune-tune" / "tune.json").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [((), "wants a method and a benchmark"), (("ewc,si", "split-digits"), "one method is tuned at a time"),
     (("ewc", "split-digits", "--by", "speed"), "--by speed is unknown"),
     (("ewcc", "split-digits"), "did you mean 'ewc'")],
)  # fmt: skip
def test_mistakes(command, arguments, message):
    assert message in command(*arguments, code=2).err
