"""The estimators for scikit-learn: its own checks, incremental learning of digits, streams, copies, failures."""

import copy
import pickle
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_digits, load_iris, make_regression
from sklearn.model_selection import GridSearchCV, cross_val_score, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import frcl
from frcl.adapters.sklearn import tabular_network
from frcl.errors import DataError, LabelError, OptionError
from frcl.sklearn import FRCLClassifier, FRCLRegressor

IRIS = load_iris(return_X_y=True)
SMALL = {
    "hidden_layer_sizes": (16, 16),
    "points": 8,
    "steps": 60,
    "learning_rate": 1e-2,
    "options": {"task_features": 50},
}


@parametrize_with_checks([FRCLClassifier(**SMALL), FRCLRegressor(**SMALL)])
def test_the_checks_of_scikit_learn(estimator, check):
    check(estimator)


# -- tasks ------------------------------------------------------------------------------------------------------


def accuracy_after(groups, seed, **changes):
    """Accuracy over all ten digits after one call of partial_fit for each group of digits; one group: after fit."""
    X, y = load_digits(return_X_y=True)
    X, test_X, y, test_y = train_test_split(X, y, test_size=0.3, random_state=seed, stratify=y)
    model = FRCLClassifier(random_state=seed, **changes)
    for digits in groups:
        rows = np.isin(y, digits)
        (model.fit if len(groups) == 1 else model.partial_fit)(X[rows], y[rows])
    assert model.classes_.tolist() == list(range(10))
    assert len(model.learner_.tasks) == len(groups)
    return model.score(test_X, test_y)


@pytest.mark.slow
def test_disjoint_classes_of_digits_are_learned_as_well_as_at_once():
    """A call for each pair of digits, or with half the steps for each digit: at most two points below one fit."""
    at_once = accuracy_after([range(10)], seed=11)
    assert at_once > 0.95
    assert accuracy_after(np.arange(10).reshape(5, 2), seed=11) > at_once - 0.02
    assert accuracy_after(np.arange(10)[:, None], seed=11, steps=100) > at_once - 0.02


def test_new_classes_may_come_in_any_call_and_need_not_be_numbers():
    X, y = IRIS
    names = np.array(["setosa", "versicolor", "virginica"], dtype=object)[y]
    model = FRCLClassifier(random_state=0, **SMALL)
    model.partial_fit(X[y == 2], names[y == 2])  # a single class, and not the first one
    assert set(model.predict(X)) == {"virginica"}
    model.partial_fit(X[y < 2], names[y < 2])
    assert model.classes_.tolist() == ["setosa", "versicolor", "virginica"]
    probs = model.predict_proba(X)
    assert probs.shape == (150, 3)
    np.testing.assert_allclose(probs.sum(1), 1, atol=1e-12)
    assert (model.classes_[probs.argmax(1)] == model.predict(X)).all()
    assert model.score(X, names) > 0.9
    assert model.predict(X).dtype == names.dtype


@pytest.mark.parametrize("kind", ["<U6", object])
def test_strings_and_numbers_are_not_mixed(kind):
    X, y = IRIS
    model = FRCLClassifier(random_state=0, **SMALL).fit(X, np.array(["x", "y", "z"])[y].astype(kind))
    for given in ({}, {"classes": ["x", "y", "z"]}):
        with pytest.raises(LabelError, match="some labels are strings and others numbers"):
            model.partial_fit(X, y, **given)
    assert model.classes_.tolist() == ["x", "y", "z"]
    assert set(model.predict(X)) <= {"x", "y", "z"}


def test_declared_classes_that_never_come_have_no_probability():
    X, y = IRIS
    model = FRCLClassifier(random_state=0, **SMALL).partial_fit(X[y < 2], y[y < 2], classes=[0, 1, 2, 3])
    assert model.classes_.tolist() == [0, 1, 2, 3]
    assert (model.predict_proba(X)[:, 2:] == 0).all()


def test_a_task_may_be_smaller_than_its_points():
    """Rows are repeated to make points, but counted once."""
    X, y = IRIS
    model = FRCLClassifier(random_state=0, **SMALL).fit(X, y)
    model.partial_fit(X[:3], np.array([7, 7, 8]))
    assert [one.size for one in model.learner_.tasks] == [150, 3]
    assert len(model.learner_.tasks[1].Z) == 8
    few = FRCLClassifier(random_state=0, **{**SMALL, "points": 400}).fit(X, y)
    assert len(few.learner_.tasks[0].Z) == 150


def test_one_fit_is_the_learner_on_standardised_inputs():
    """Oracle: FRCL+ by hand on (x − mean)/std, with the network and seed of the estimator."""
    X, y = IRIS
    model = FRCLClassifier(random_state=3, **SMALL).fit(X, y)
    seed = int(np.random.RandomState(3).randint(np.iinfo(np.int32).max))
    net = tabular_network(4, (16, 16), seed)
    learner = frcl.FRCLPlus(net, points=8, lr=1e-2, seed=seed, task_inference="exact", task_features=50)
    inputs = torch.from_numpy((X - X.mean(0)) / X.std(0))
    learner.fit(inputs, y, steps=60)
    np.testing.assert_allclose(model.predict_proba(X), learner.predict(inputs, task=0).probs.numpy(), rtol=1e-12)
    again = FRCLClassifier(random_state=3, **SMALL).fit(X, y)
    np.testing.assert_array_equal(model.predict_proba(X), again.predict_proba(X))
    other = FRCLClassifier(random_state=4, **SMALL).fit(X, y)
    assert np.abs(model.predict_proba(X) - other.predict_proba(X)).max() > 1e-3


def test_a_column_that_varies_later_only_does_no_harm():
    X, y = IRIS
    wide = np.c_[X, np.where(y == 2, 1e6, 0.0), np.full(len(X), 3.0)]
    model = FRCLClassifier(random_state=0, **SMALL)
    for own in (y < 2, y == 2):
        model.partial_fit(wide[own], y[own])
    assert model.score(wide, y) > 0.9


def test_auto_steps_follow_the_number_of_rows(monkeypatch):
    taken = []
    monkeypatch.setattr(frcl.FRCL, "fit", lambda self, x, y, *, steps, **rest: taken.append(steps))
    for n in (50, 1280, 20_000):
        FRCLRegressor().fit(np.arange(n)[:, None], np.arange(n))
    assert taken == [200, 400, 5000]


# -- streams ----------------------------------------------------------------------------------------------------


def test_minibatches_of_a_stream():
    """Two tasks of digits without a word about where one ends; the second has labels that the first does not."""
    X, y = load_digits(return_X_y=True)
    model = FRCLClassifier((32, 32), points=20, learning_rate=5e-3, boundaries="detect", random_state=0)
    generator = np.random.default_rng(0)
    for digits in ((0, 1), (2, 3)):
        own = np.flatnonzero(np.isin(y, digits))
        for _ in range(60):
            rows = generator.choice(own, 32)
            model.partial_fit(X[rows], y[rows])
        assert model.classes_.tolist() == list(range(max(digits) + 1))
        seen = y <= max(digits)
        assert model.score(X[seen], y[seen]) > 0.85
    assert len(model.learner_.tasks) == 1  # the second is open
    before = model.learner_.state_dict()["tensors"]
    model.predict(X)
    after = model.learner_.state_dict()["tensors"]
    assert all(torch.equal(before[name], after[name]) for name in before | after)


def test_a_stream_that_has_only_begun_predicts_by_its_open_task():
    X, y = IRIS
    model = FRCLClassifier(boundaries="detect", random_state=0, **{**SMALL, "points": 20})
    model.partial_fit(X[::15], y[::15], classes=[0, 1, 2])
    assert model.predict_proba(X).shape == (150, 3)
    model.partial_fit(X[1::5], y[1::5])
    assert model.predict_proba(X).shape == (150, 3)
    assert model.learner_.tasks == ()


@pytest.mark.parametrize("first", [1, 2, 20])
def test_the_numbers_of_a_stream_are_never_taken_for_labels(first):
    """Not y in {0, 1}, and not one or two rows, which are ±1 when they are standardised."""
    generator = np.random.default_rng(0)
    X = generator.normal(size=(400, 3))
    y = (X[:, 0] > 0).astype(float)
    model = FRCLRegressor(boundaries="detect", random_state=0, **{**SMALL, "points": 20})
    for start in [0, *range(first, 400, 20)]:
        rows = slice(start, first if start == 0 else start + 20)
        model.partial_fit(X[rows], y[rows])
    assert model.predict(X).shape == (400,)
    assert model.score(X, y) > 0.3


@pytest.mark.parametrize("first", [1, 2])
def test_a_stream_is_standardised_by_more_than_its_first_minibatch(first):
    """A few unusual rows at its beginning do not decide the scale of all others."""
    X, y = load_digits(return_X_y=True)
    X, y = X[y < 2], y[y < 2]
    model = FRCLClassifier((32, 32), points=20, learning_rate=5e-3, boundaries="detect", random_state=0)
    model.partial_fit(X[:first] * 1e-4, y[:first], classes=[0, 1])
    for start in range(first, 330, 20):
        model.partial_fit(X[start : start + 20], y[start : start + 20])
    seen = np.r_[X[:first] * 1e-4, X[first : 340 + first]]
    np.testing.assert_allclose(model._mean, seen.mean(0), atol=1e-12)
    varies = seen.std(0) > 0
    np.testing.assert_allclose(model._scale[varies], seen.std(0)[varies])
    assert model.learner_.tasks == ()
    assert model.score(X, y) > 0.95


def test_a_minibatch_that_fails_leaves_mean_and_scale():
    X, y = IRIS
    model = FRCLClassifier(boundaries="detect", random_state=0, **{**SMALL, "points": 20}).partial_fit(X, y)
    before = model.predict_proba(X)
    with pytest.raises(LabelError):
        model.partial_fit(X * 100, y.astype(str))
    np.testing.assert_array_equal(model.predict_proba(X), before)


def test_a_parameter_that_comes_too_late_is_warned_of():
    X, y = IRIS
    model = FRCLClassifier(random_state=0, **SMALL).partial_fit(X[y < 2], y[y < 2])
    with pytest.warns(UserWarning, match=r"points is 8 in what has been learned; 9 needs fit\(\), from the start"):
        model.set_params(points=9).partial_fit(X[y == 2], y[y == 2])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.fit(X, y).set_params(steps=20, verbose=False, hidden_layer_sizes=[16, 16]).partial_fit(X, y + 3)
    assert [len(one.Z) for one in model.learner_.tasks] == [9, 9]


def test_the_kind_of_boundaries_stays_what_it_was():
    X, y = IRIS
    for first, then in (("calls", "detect"), ("detect", "calls")):
        model = FRCLClassifier(boundaries=first, random_state=0, **SMALL).partial_fit(X, y)
        model.set_params(boundaries=then)
        with pytest.warns(UserWarning, match=f"boundaries is '{first}' in what has been learned"):
            model.partial_fit(X[:20], y[:20])
        assert len(model.learner_.tasks) == (2 if first == "calls" else 0)
    with pytest.raises(OptionError, match="boundaries"):
        FRCLClassifier(boundaries="x", **SMALL).fit(X, y)


@pytest.mark.parametrize("widths", [16, np.int64(16), np.array([16, 8]), (np.int64(16),)])
def test_numbers_of_numpy_are_numbers(widths):
    X, y = IRIS
    own = {**SMALL, "hidden_layer_sizes": widths, "steps": np.int64(20)}
    model = FRCLClassifier(random_state=0, **own).fit(X, y)
    assert model.learner_.net.arguments["widths"] == np.atleast_1d(widths).tolist()


# -- with the rest of scikit-learn ------------------------------------------------------------------------------


def test_pipelines_grids_and_cross_validation():
    X, y = IRIS
    assert cross_val_score(FRCLClassifier(random_state=0, **SMALL), X, y, cv=2).mean() > 0.9
    model = make_pipeline(MinMaxScaler(), FRCLClassifier(random_state=0, **SMALL))
    grid = GridSearchCV(model, {"frclclassifier__learning_rate": [3.0, 1e-2]}, cv=2).fit(X, y)
    assert grid.best_params_ == {"frclclassifier__learning_rate": 1e-2}
    assert grid.predict(X).shape == (150,)


def test_pandas_in_and_string_labels_out():
    pandas = pytest.importorskip("pandas")
    X, y = IRIS
    frame = pandas.DataFrame(X, columns=list("abcd"))
    labels = pandas.Series(np.array(["x", "y", "z"])[y])
    model = FRCLClassifier(random_state=0, **SMALL).fit(frame, labels)
    assert model.feature_names_in_.tolist() == list("abcd")
    assert set(model.predict(frame)) == {"x", "y", "z"}
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame[list("dcba")])


def test_copies_are_equal_and_independent():
    X, y = IRIS
    model = FRCLClassifier(random_state=0, **SMALL)
    for own in (y < 2, y == 2):
        model.partial_fit(X[own], y[own])
    twins = [pickle.loads(pickle.dumps(model)), copy.deepcopy(model)]  # noqa: S301
    for twin in twins:
        np.testing.assert_array_equal(twin.predict_proba(X), model.predict_proba(X))
        twin.partial_fit(X[:20], np.full(20, 5))
    np.testing.assert_array_equal(*(twin.predict_proba(X) for twin in twins))
    assert model.classes_.tolist() == [0, 1, 2]
    assert not hasattr(clone(model), "learner_")
    assert clone(model).get_params() == model.get_params()


def test_a_network_of_ones_own():
    X, y = IRIS
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh())
    model = FRCLClassifier(network=net, random_state=0, **SMALL).fit(X, y)
    assert model.score(X, y) > 0.9
    assert net[0].weight.dtype == torch.float32


def test_a_call_that_fails_leaves_no_trace(monkeypatch):
    X, y = IRIS
    model = FRCLClassifier(random_state=0, **SMALL).fit(X[y < 2], y[y < 2])
    before = model.predict_proba(X)
    with pytest.raises(ValueError, match="features"):
        model.partial_fit(X[:, :2], y)

    def fail(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(frcl.FRCL, "_close", fail)
        with pytest.raises(KeyboardInterrupt):
            model.partial_fit(X, y + 5)
    assert model.classes_.tolist() == [0, 1]
    np.testing.assert_array_equal(model.predict_proba(X), before)
    model.partial_fit(X[y == 2], y[y == 2])
    assert model.score(X, y) > 0.9
    for wrong in ({"method": "x"}, {"boundaries": "x"}, {"points": 0}, {"options": {"pionts": 3}}):
        with pytest.raises(OptionError):
            FRCLClassifier(**{**SMALL, **wrong}).partial_fit(X, y)


# -- regression -------------------------------------------------------------------------------------------------


def test_regression_keeps_the_first_half_of_a_curve():
    """Both halves of a sine, one after another: the mean fits, and the standard deviation grows off the data."""
    generator = np.random.default_rng(0)
    x = np.sort(generator.uniform(-3, 3, 400))[:, None]
    y = 100 + 20 * np.sin(2 * x[:, 0]) + generator.normal(0, 2, 400)
    model = FRCLRegressor(steps=400, learning_rate=5e-3, random_state=0)
    for own in (x[:, 0] < 0, x[:, 0] >= 0):
        model.partial_fit(x[own], y[own])
    mean, std = model.predict(x, return_std=True)
    assert model.score(x, y) > 0.9
    assert 1.5 < np.median(std) < 6
    assert model.predict([[-40.0]], return_std=True)[1] > 1.5 * np.median(std)
    assert mean.shape == y.shape


def test_regression_with_several_outputs():
    X, y = make_regression(200, 5, n_targets=2, random_state=0)
    model = FRCLRegressor(random_state=0, **{**SMALL, "steps": 300}).fit(X, y)
    mean, std = model.predict(X, return_std=True)
    assert mean.shape == std.shape == (200, 2)
    assert model.score(X, y) > 0.9
    assert model.predict(X[:1]).shape == (1, 2)


def test_targets_keep_their_number_of_columns():
    X, y = make_regression(60, 5, n_targets=2, random_state=0)
    model = FRCLRegressor(random_state=0, **SMALL).partial_fit(X, y)
    before = model.predict(X)
    for wrong in (y[:, 0], y[:, :1], np.c_[y, y]):
        with pytest.raises(DataError, match="column"):
            model.partial_fit(X, wrong)
    np.testing.assert_array_equal(model.predict(X), before)
    flat = FRCLRegressor(random_state=0, **SMALL).partial_fit(X, y[:, 0])
    with pytest.raises(DataError, match="y has 2 columns, and 1 in what has been learned"):
        flat.partial_fit(X, y)
    assert flat.partial_fit(X, y[:, :1]).predict(X).shape == (60,)
    with pytest.raises(DataError, match="targets are too large"):
        FRCLRegressor(**SMALL).fit(X, y * 1e200)


# -- importing --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_it_is_imported_when_it_is_used():
    code = "import sys, frcl; assert 'sklearn' not in sys.modules; frcl.sklearn.FRCLRegressor(); frcl.nothing"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "has no attribute 'nothing'" in result.stderr
