"""Bad input gets a named error at once and leaves the learner as it was."""

import math

import numpy as np
import pytest
import torch

from frcl import FRCL, MLP, BoundaryDetector, DataError, FrclError, LabelError, NumericalError, OptionError, TaskError
from streams import blobs, same_tensors, small_learner

X, Y = blobs((0, 1), 60, 1)


def with_value(value: float) -> torch.Tensor:
    x = X.clone()
    x[7, 2] = value
    return x


BAD_DATA = [
    (with_value(math.nan), Y, DataError, "inputs contain NaN"),
    (with_value(math.inf), Y, DataError, "inputs contain NaN or infinite"),
    (X[:, 0], Y, DataError, r"inputs must be \[examples, ...\]"),
    (X[:0], Y[:0], DataError, "at least one example"),
    (X[:50], Y, DataError, "50 inputs but 60 targets"),
    (X, Y[0], DataError, "60 inputs but 0 targets"),
    (X[:, :3], Y, FrclError, "shape"),
    (X + 0j, Y, DataError, "complex"),
    (np.array([["a"] * 4] * 60), Y, DataError, "expected numbers"),
    (X, torch.zeros(60).long(), LabelError, "at least two classes; got"),
    (X, Y.float(), DataError, "look like labels"),
    (X, Y[:, None], LabelError, "one per example"),
    (X, torch.where(Y == 0, math.nan, 0.3), DataError, "targets contain NaN"),
    (X, np.array([{}] * 60), DataError, "not supported"),
    (X[:4], Y[:4], DataError, "4 examples are fewer than the 6 inducing points"),
]


@pytest.mark.parametrize(("x", "y", "error", "message"), BAD_DATA)
@pytest.mark.parametrize("experienced", [False, True])
def test_bad_data_is_refused_by_fit(x, y, error, message, experienced):
    learner = small_learner(steps=3)
    if experienced:
        learner.fit(X, Y)
    before = learner.state_dict()
    with pytest.raises(error, match=message):
        learner.fit(x, y)
    after = learner.state_dict()
    assert same_tensors(before["tensors"], after["tensors"])
    assert before["meta"] == after["meta"]
    learner.fit(X, Y)


@pytest.mark.parametrize(("x", "y", "error", "message"), BAD_DATA[:-1])
@pytest.mark.parametrize("started", [False, True])
@pytest.mark.parametrize("watched", [False, True])
def test_bad_data_is_refused_by_observe(x, y, error, message, started, watched):
    learner = small_learner(detector=BoundaryDetector(5.0, warm_up=0, minimum_time=0) if watched else None)
    if started:
        learner.observe(X, Y)
        if message in ("at least two classes; got",):  # fine inside a task that has both
            return
        if message in ("look like labels", "targets contain NaN"):
            error, message = LabelError, "pass integers"
    before = learner.state_dict()
    with pytest.raises(error, match=message):
        learner.observe(x, y)
    after = learner.state_dict()
    assert same_tensors(before["tensors"], after["tensors"])
    assert before["meta"] == after["meta"]
    learner.observe(X, Y)


def test_a_boundary_whose_new_task_is_unusable_changes_nothing():
    learner = small_learner(detector=BoundaryDetector(-1e9, warm_up=0, minimum_time=1))
    learner.observe(X, Y)
    learner.observe(X, Y)
    before = learner.state_dict()
    with pytest.raises(LabelError, match="at least two classes"):
        learner.observe(X, torch.ones(60).long())
    after = learner.state_dict()
    assert same_tensors(before["tensors"], after["tensors"])
    assert before["meta"] == after["meta"]


def test_prediction_is_checked_too():
    learner = small_learner(steps=3)
    learner.fit(X, Y)
    with pytest.raises(TaskError, match="unknown task 1; tasks 0 to 0"):
        learner.predict(X, task=1)
    with pytest.raises(TaskError, match="unknown task -1"):
        learner.predict(X, task=-1)
    with pytest.raises(DataError, match="NaN"):
        learner.predict(with_value(math.nan))
    with pytest.raises(DataError, match="earlier ones had"):
        learner.predict(X[:, :3])


def test_regression_targets_are_checked():
    learner = small_learner(steps=3)
    y = torch.rand(60, 2, generator=torch.Generator().manual_seed(0))
    learner.start_task()
    learner.observe(X, y)
    with pytest.raises(DataError, match=r"must be \[N, 2\]"):
        learner.observe(X, y[:, 0])
    with pytest.raises(DataError, match="got strings"):
        learner.observe(X, np.array(["a"] * 60))
    with pytest.raises(DataError, match="targets contain NaN"):
        learner.observe(X, y * math.nan)
    whole = small_learner(steps=3)
    whole.fit(X, Y.float(), likelihood="gaussian")
    assert whole.tasks[0].target.labels is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pionts": 3}, "unknown option 'pionts'; did you mean 'points'"),
        ({"points": 0}, "points must be a whole number of at least 1"),
        ({"points": 2.5}, "points must be a whole number"),
        ({"rate": -1.0}, "rate must be a positive number"),
        ({"noise": 0.0}, "noise must be a positive number"),
        ({"noise": math.nan}, "noise must be a positive number"),
        ({"selection": "best"}, "selection='best' is unknown; choose one of random, trace"),
        ({"selection": "elbo", "search": "greedy"}, 'search="greedy" is for selection="trace"'),
        ({"inference": "function", "selection": "elbo"}, "chooses its points before learning"),
        ({"learn_inputs": True}, 'needs inference="function"'),
        ({"past_tasks_per_step": 0}, "past_tasks_per_step must be"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(OptionError, match=message):
        FRCL(MLP(4, (3,)), **options)


def test_options_that_do_not_fit_the_task():
    regression = torch.rand(60, generator=torch.Generator().manual_seed(0))
    for options, y, error, message in [
        ({"selection": "error"}, regression, OptionError, "a regression task has none"),
        ({"points_per_class": 2}, regression, OptionError, "points_per_class is for classification"),
        ({"likelihood": "bernoulli"}, torch.arange(60) % 3, OptionError, "for 2 classes; this task has 3"),
        ({"likelihood": "softmax"}, regression, LabelError, "the targets are floats"),
        ({"labels": (0, "a")}, Y, LabelError, "all integers or all strings"),
        ({"labels": ("a", "b")}, Y, LabelError, "has labels|has \\['a', 'b'\\]|this task has"),
    ]:
        learner = small_learner(**options)
        before = learner.state_dict()["meta"]
        with pytest.raises(error, match=message):
            learner.fit(X, y)
        assert learner.state_dict()["meta"] == before


def test_a_loss_that_is_not_finite_stops_before_the_update():
    learner = small_learner(steps=50)
    learner.fit(X, Y)
    with torch.no_grad():
        learner.net.layers[-1].weight.mul_(1e30)
    before = {name: value.clone() for name, value in learner.net.state_dict().items()}
    with pytest.raises(NumericalError, match="this step was not taken"):
        learner.fit(X, Y)
    assert same_tensors(before, learner.net.state_dict())
