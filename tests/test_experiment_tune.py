"""Tuning looks at validation data alone, tries what the grid says, and returns the best first."""

import json
from dataclasses import fields

import pytest
import torch

from frcl import NumericalError, OptionError
from frcl.data.tasks import Split, Task, TaskList
from frcl.experiment import tune as module
from frcl.experiment.metrics import Scores
from frcl.experiment.runner import benchmark_of, new_learner
from frcl.experiment.tune import BY, Trial, combinations, grid_of, own_grid, try_out, tune, tuning_config
from frcl.methods import METHODS

TINY = {"learner": {"steps": 20}, "network": {"widths": [8]}}


def test_every_method_has_a_grid_of_its_own_options():
    for name, options in ((name, one.options) for name, one in METHODS.items()):
        grid = grid_of(name)
        assert set(grid) <= {field.name for field in fields(options)}
        assert all(len(values) > 1 for values in grid.values())
    with pytest.raises(OptionError, match="nothing to tune"):
        grid_of("nonsense")
    assert list(combinations({"a": [1, 2], "b": [3]})) == [{"a": 1, "b": 3}, {"a": 2, "b": 3}]


def test_test_data_is_never_touched(monkeypatch):
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
    monkeypatch.setattr(module, "benchmark_of", lambda config, seed: TaskList("locked", tasks))
    reached = try_out(tuning_config("finetune", "split-digits", TINY, {}))
    assert 0 <= reached.accuracy <= 1


def test_the_best_comes_first_and_every_trial_is_told():
    told = []
    found = tune("finetune", "split-digits", TINY, on_trial=told.append)
    assert len(found) == len(told) == len(grid_of("finetune")["lr"])
    assert found[0].reached.accuracy == max(trial.reached.accuracy for trial in told)
    assert found[0].options["lr"] in grid_of("finetune")["lr"]


def test_a_trial_has_the_scores_of_a_run_on_validation_data():
    """By hand: a learner of our own for each seed, every task's validation data, plain means."""
    layer = {"learner": {"steps": 60}, "network": {"widths": [16]}, "seeds": [0, 1], "stream": {"tasks": 2}}
    config = tuning_config("finetune", "permuted-digits", layer, {})
    accuracies, losses, errors, gaps = [], [], [], []
    for seed in config.seeds:
        benchmark = benchmark_of(config, seed)
        learner = new_learner(config, benchmark, seed)
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
    reached = try_out(config)
    assert reached.accuracy == pytest.approx(float(sum(accuracies) / 4))
    assert reached.nll == pytest.approx(float(sum(losses) / 4), rel=1e-5)
    assert reached.ece == pytest.approx(float(sum(errors) / 4), abs=1e-5)


@pytest.mark.parametrize(("by", "best"), [("accuracy", "a"), ("nll", "b"), ("ece", "c"), ("agnostic", "b")])
def test_what_decides_may_be_chosen(monkeypatch, by, best):
    made = {
        "a": Scores(0.9, 0.5, ece=0.2, agnostic=0.3), "b": Scores(0.8, 0.1, ece=0.3, agnostic=0.4),
        "c": Scores(0.7, 0.6, ece=0.1, agnostic=0.2),
    }  # fmt: skip
    names = iter(made)
    monkeypatch.setattr(module, "try_out", lambda config: made[next(names)])
    found = tune("finetune", "split-digits", TINY, grid={"steps": [1, 2, 3]}, by=by)
    assert found[0].reached == made[best]
    assert "NLL 0." in found[0].show()
    assert set(found[0].to_json()) == {"options", *BY}


def test_numbers_have_no_ece_to_decide_by(monkeypatch):
    tried = []
    monkeypatch.setattr(module, "try_out", lambda config: tried.append(config) or Scores(0.5, 1.0, ece=None))
    with pytest.raises(OptionError, match="--by ece: what split-digits predicts are numbers"):
        tune("finetune", "split-digits", TINY, by="ece")
    assert len(tried) == 1, "it is noticed at once"
    assert tune("finetune", "split-digits", TINY, by="nll")
    monkeypatch.setattr(module, "try_out", lambda config: Scores(0.5, None, ece=0.1))
    with pytest.raises(NumericalError, match="no trial has a finite NLL"):
        tune("finetune", "split-digits", TINY, by="nll")


def test_a_score_that_there_is_not_never_decides():
    assert Trial({}, Scores(0.9, 1.0, ece=None)).merit("ece") < Trial({}, Scores(0.1, 1.0, ece=0.9)).merit("ece")
    assert "ECE" not in Trial({}, Scores(0.9, 1.0, ece=None)).show()
    with pytest.raises(OptionError, match="--by speed is unknown; choose one of accuracy, nll, ece"):
        tune("finetune", "split-digits", TINY, by="speed")


def test_training_is_on_training_data_alone():
    config = tuning_config("ewc", "split-digits", {}, {"strength": 3.0})
    assert (config.stream.train_on, config.stream.tasks, config.learner.strength) == ("train", 3, 3.0)
    with pytest.raises(OptionError, match="training data alone"):
        tuning_config("ewc", "split-digits", {"stream": {"train_on": "train+validation"}}, {})


def test_values_to_try_may_be_given():
    words = own_grid(["prediction=[summary, head]", 'start=["uniform"]', "current_inputs=[0.1,none]"], "frcl-plus")
    assert words == {"prediction": ["summary", "head"], "start": ["uniform"], "current_inputs": [0.1, "none"]}
    grid = own_grid(["lr=[1e-3,1e-2]", "batch_size=[8]"], "finetune")
    assert grid == {"lr": [1e-3, 1e-2], "batch_size": [8]}
    found = tune("finetune", "split-digits", TINY, grid=grid)
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


def test_a_value_that_cannot_be_is_refused_before_anything_is_learned():
    told = []
    with pytest.raises(OptionError, match="lr_decay"):
        tune("frcl", "split-digits", TINY, grid={"lr_decay": [0.5, 1.5]}, on_trial=told.append)
    assert told == []


def test_optuna_is_an_extra():
    try:
        import optuna  # noqa: F401
    except ImportError:
        with pytest.raises(OptionError, match=r"pip install 'frcl\[tune\]'"):
            tune("finetune", "split-digits", TINY, trials=2)
    else:
        assert len(tune("finetune", "split-digits", TINY, trials=2)) == 2


def test_the_command(monkeypatch, capsys):
    import sys

    from frcl.cli import main

    monkeypatch.setattr(
        sys, "argv", ["frcl", "tune", "finetune", "split-digits", "--set", "steps=10", "--by", "nll", "--json"]
    )
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 0
    found = json.loads(capsys.readouterr().out)
    assert [trial["nll"] for trial in found] == sorted(trial["nll"] for trial in found)
