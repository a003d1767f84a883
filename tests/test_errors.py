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
    (X, torch.where(Y == 0, math.nan, 0.3), DataError, "targets contain values that are NaN"),
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
    if message == "at least two classes; got":  # in a stream the other labels may come later
        assert learner.observe(x, y).step == 1
        return
    if started:
        learner.observe(X, Y)
        if message in ("look like labels", "targets contain values that are NaN"):
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
    with pytest.raises(DataError, match="NaN"):
        learner.observe(X, torch.full((60,), math.nan))
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
    with pytest.raises(DataError, match="targets contain values that are NaN"):
        learner.observe(X, y * math.nan)
    whole = small_learner(steps=3)
    whole.fit(X, Y.float(), likelihood="gaussian")
    assert whole.tasks[0].likelihood.classes is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pionts": 3}, "unknown option 'pionts'; did you mean 'points'"),
        ({"points": 0}, "points must be a whole number of at least 1"),
        ({"points": 2.5}, "points must be a whole number"),
        ({"lr": -1.0}, "lr must be a positive number"),
        ({"u_noise": 0.0}, "u_noise must be a positive number"),
        ({"u_noise": math.nan}, "u_noise must be a positive number"),
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
        ({"labels": ("a", "b")}, Y, LabelError, "has labels|has \\['a', 'b'\\]|this task has"),
    ]:
        learner = small_learner(**options)
        before = learner.state_dict()["meta"]
        with pytest.raises(error, match=message):
            learner.fit(X, y)
        assert learner.state_dict()["meta"] == before


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("y", [Y, torch.arange(60) % 3])
def test_a_loss_that_is_not_finite_leaves_the_learner_as_it_was(stream, y):
    """Inputs so large that the first step has no finite loss: nothing is open afterwards, no stream has moved."""
    learner = small_learner(steps=50)
    learner.fit(X, Y)
    before = learner.state_dict()
    with pytest.raises(NumericalError, match="this step was not taken"):
        (learner.observe if stream else learner.fit)(X * 1e25, y)
    after = learner.state_dict()
    assert same_tensors(before["tensors"], after["tensors"])
    assert before["meta"] == after["meta"]
    learner.fit(X, Y)


def test_a_task_that_diverged_can_be_dropped():
    learner = small_learner(steps=50)

    def spoil(log):
        if log.step == 5:
            with torch.no_grad():
                learner.net.layers[-1].weight.mul_(1e30)

    with pytest.raises(NumericalError):
        learner.fit(X, Y, on_step=spoil)
    with pytest.raises(TaskError, match=r"drop the task with abandon_task\(\)"):
        learner.fit(X + 1, Y)
    with pytest.raises(TaskError, match=r"abandon_task\(\)"):
        learner.end_task()
    learner.abandon_task()
    with torch.no_grad():
        learner.net.layers[-1].weight.mul_(1e-30)
    learner.fit(X, Y)
    with pytest.raises(TaskError, match="no task is open"):
        learner.abandon_task()


def test_a_boundary_that_cannot_be_acted_on_changes_nothing():
    """The new task has more points than the window holds: the old one is not ended."""
    learner = small_learner(
        points_per_class=3, window=20, detector=BoundaryDetector(-1e9, warm_up=0, minimum_time=1), steps=3
    )
    learner.observe(X, Y)
    learner.observe(X, Y)
    before = learner.state_dict()
    with pytest.raises(OptionError, match="cannot be chosen from a window of 20"):
        learner.observe(X, torch.arange(60) % 10)
    after = learner.state_dict()
    assert same_tensors(before["tensors"], after["tensors"])
    assert before["meta"] == after["meta"]


def test_unusual_arrays_are_taken_or_refused_by_name():
    learner = small_learner(steps=2)
    odd = X.numpy()[::-1, ::-1]
    learner.fit(odd, Y.numpy()[::-1])
    learner.fit(X.numpy().astype(">f4"), Y.numpy().astype(">i8"))
    learner.fit(X.numpy().astype(np.longdouble), Y.numpy().astype(np.uint8))
    learner.fit(X, np.array(["a", "b"] * 30, dtype=object))
    target = torch.rand(60, generator=torch.Generator().manual_seed(0)).requires_grad_()
    learner.fit(X, target)
    learner.fit(X, target.detach().numpy()[::-1])
    for x, y, error, message in [
        ([[1.0], [1.0, 2.0]], [0, 1], DataError, "not a regular array"),
        (X, [[0], [1, 2]] * 30, DataError, "not a regular array"),
        (X.to_sparse(), Y, DataError, "sparse"),
        (X, Y + 0j, DataError, "complex"),
        (X, torch.zeros(60, 0), DataError, "no outputs"),
        (X, np.array([2**64 - 1, 0] * 30, dtype=np.uint64), LabelError, "64-bit"),
        (X, 1e300 * torch.rand(60, 1, dtype=torch.float64), DataError, "infinite in torch.float32"),
        (X.long(), Y, DataError, "earlier ones were floats"),
    ]:
        with pytest.raises(error, match=message):
            learner.fit(x, y)
    with pytest.raises(OptionError, match="unknown likelihood 'gausian'"):
        learner.fit(X, Y, likelihood="gausian")
    with pytest.raises(OptionError, match="unknown likelihood 'gausian'"):
        learner.start_task(likelihood="gausian")
    for labels, message in (((1,), "at least two classes"), ((0, "a"), "all integers or all strings")):
        with pytest.raises(LabelError, match=message):
            learner.start_task(labels=labels)
        with pytest.raises(LabelError, match=message):
            small_learner(labels=labels)


def test_numpy_scalars_are_plain_numbers(tmp_path):
    learner = small_learner(steps=2, points=np.int64(4), seed=np.int64(3), labels=torch.arange(2))
    learner.start_task(labels=np.array([0, 1]), size=60)
    learner.observe(X, Y)
    learner.save(tmp_path / "model.frcl")
    with pytest.raises(OptionError, match="seed must be a whole number"):
        small_learner(seed="a")


def test_predictions_from_impossible_inputs_and_tasks():
    learner = small_learner(steps=2)
    learner.fit(X, Y)
    with pytest.raises(NumericalError, match="too large to predict from"):
        learner.predict(X * 1e36)
    for task in (0.0, "0", True):
        with pytest.raises(TaskError, match="named by its number"):
            learner.predict(X, task=task)
    assert learner.predict(X, task=np.int64(0)).probs.shape == (60, 2)


def test_a_network_that_fails_later_is_named():
    table = torch.nn.Sequential(torch.nn.Embedding(5, 3), torch.nn.Flatten())
    tokens = torch.arange(60).reshape(30, 2) % 5
    learner = FRCL(table, points=3, steps=2)
    learner.fit(tokens, torch.arange(30) % 2)
    for call in (lambda: learner.predict(tokens + 5), lambda: learner.fit(tokens + 5, torch.arange(30) % 2)):
        with pytest.raises(FrclError, match="the network failed"):
            call()


def test_features_of_another_type_are_refused():
    class Wide(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 3)

        def forward(self, x):
            return self.layer(x).double()

    learner = FRCL(Wide(), points=3, steps=2)
    with pytest.raises(FrclError, match=r"weights are torch.float32, its features torch.float64"):
        learner.fit(X, Y)
    with pytest.raises(FrclError, match="is float16"):
        FRCL(MLP(4, (3,)).half())


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_one_value_that_is_not_finite_is_seen_among_many_and_large_ones_are_not_taken_for_it(bad):
    inputs = FRCL(MLP(40, (3,)))._inputs
    x = torch.full((50, 40), 1e38)  # whose sum overflows
    assert torch.equal(inputs(x), x)
    for row, column in [(0, 0), (49, 39), (20, 7)]:
        spoiled = torch.randn(50, 40)
        spoiled[row, column] = bad
        with pytest.raises(FrclError, match="NaN or infinite"):
            inputs(spoiled)
    both = torch.zeros(4, 40)
    both[0, 0], both[1, 1] = float("inf"), -float("inf")
    with pytest.raises(FrclError, match="NaN or infinite"):
        inputs(both)
