"""Few inputs are predicted as among many, though with arrays; what nobody reads is not computed."""

import contextlib
import runpy

import numpy as np
import pytest
import torch
from torch import nn

import frcl
import frcl.few
from frcl import MLP, ConvNet
from frcl.errors import DataError, NumericalError
from frcl.exact.fixed import RandomFeatures, rounded, whole_features
from frcl.exact.linear import class_log_probs, class_model, solve_by_evidence, sums_of
from frcl.few import FEW, array_of, arrays, is_finite, log_softmax, log_sum_exp, product, softmax
from frcl.learners.few import few_features, few_moments, mixture_of, predictive, weighted_columns
from frcl.learners.mixture import RARE, columns_of, summed
from frcl.learners.types import Later, Prediction
from frcl.likelihoods import Bernoulli, Softmax
from frcl.methods import default_options, make_learner
from frcl.options import changed
from frcl.posterior import Moments
from streams import blobs

SMALL = {"points": 10, "steps": 10, "search_steps": 10, "task_features": 60}
APART = [blobs((0, 1), 90, 1), blobs((4, 7, 9), 90, 2), blobs((5, 6, 8), 90, 3)]
SHARED = [(x, y % 3) for x, y in APART[1:]]
MIXED_UP = [(x, (y + shift) % 4) for shift in range(3) for x, y in [blobs((0, 1, 2, 3), 90, 5)]]
NAMES = [(x, np.array([f"class {label}" for label in y.tolist()])) for x, y in APART]
NUMBERS = [(x, x[:, :2].sin() + shift) for shift, (x, _) in enumerate(APART)]
FIELDS = ("mean", "variance", "probs", "target_mean", "target_variance", "task_probs", "novelty")


def learned(tasks, kind=frcl.FRCL, net=None, **options):
    learner = kind(MLP(4, (8, 8), seed=1) if net is None else net, **{**SMALL, **options})
    for x, y in tasks:
        learner.fit(x, y)
    return learner


def learned_by_ewc():
    learner = make_learner(MLP(4, (8, 8), seed=1), changed(default_options("ewc"), {"steps": 10}), seed=0, method="ewc")
    for x, y in APART:
        learner.fit(x, y)
    return learner


def as_among_many(learner, tasks, task=None):
    """Of a few inputs is believed what is believed where each of them is asked for often."""
    x = torch.cat([x[:FEW] for x, _ in tasks])
    for rows in ([0], [1, FEW + 2, 5], list(range(FEW))):
        n, often = len(rows), rows * (FEW + 1)
        few, many = (
            learner.predict(x[own], task[own] if isinstance(task, torch.Tensor) else task) for own in (rows, often)
        )
        for name in FIELDS:
            found, expected = getattr(few, name), getattr(many, name)
            assert (found is None) == (expected is None), name
            if found is not None:
                assert found.dtype == expected.dtype
                torch.testing.assert_close(found, expected[:n], rtol=2e-4, atol=2e-6, msg=name)
        if many.labels is not None:
            assert few.classes == many.classes
            assert list(few.labels) == list(many.labels[:n])
            densities = (one.log_predictive(one.labels)[:n] for one in (few, many))
            torch.testing.assert_close(*densities, rtol=1e-4, atol=1e-5)
        if few.in_task is not None:
            torch.testing.assert_close(few.in_task(0).mean, many.in_task(0).mean[:n], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "tasks", [APART, SHARED, MIXED_UP, NAMES, NUMBERS], ids=["apart", "shared", "mixed", "names", "numbers"]
)
@pytest.mark.parametrize("kind", [frcl.FRCL, frcl.FRCLPlus])
def test_without_the_task(kind, tasks):
    as_among_many(learned(tasks, kind), tasks)


@pytest.mark.parametrize(
    "options",
    [
        *({"task_inference": name} for name in ("summaries", "exact", "both")),
        *({"covariance": name, "points": M} for name in ("shared", "diagonal") for M in (5, 20)),
        {"covariance": "lowrank"},
        {"held_out": 0.2},
        {"points": 5, "prediction": "head", "head_variance": 0.3},
        {"inference": "function"},
        {"likelihood": "robustmax"},
        {"net": MLP(4, (8, 8), seed=1).double()},
        {"net": MLP(4, (8, 8), seed=1).bfloat16()},
        {"net": MLP(4, (8, 8), seed=1).requires_grad_(False)},
        {"bfloat16": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("tasks", [APART, MIXED_UP], ids=["apart", "mixed"])
def test_with_other_options(options, tasks):
    as_among_many(learned(tasks, **options), tasks)


def test_where_each_input_names_its_task():
    learner = learned(APART)
    as_among_many(learner, APART, task=torch.arange(3).repeat_interleave(FEW))
    as_among_many(learner, APART, task=torch.zeros(3 * FEW, dtype=torch.int64))
    as_among_many(learner, APART, task=2)


@pytest.mark.parametrize("inference", ["auto", "summaries"])
def test_the_open_task_of_a_stream(inference):
    learner = learned(MIXED_UP[:1], task_inference=inference)
    for _ in range(4):
        learner.observe(*APART[1])
    as_among_many(learner, [MIXED_UP[0], APART[1]])
    as_among_many(learner, [MIXED_UP[0], APART[1]], task=1)


def test_images():
    generator = torch.Generator().manual_seed(0)
    tasks = [(torch.rand(60, 8, 8, generator=generator), torch.arange(60) % 3 + first) for first in (0, 2)]
    learner = learned(tasks, net=ConvNet(8, filters=(6,)), task_inference="exact")
    as_among_many(learner, tasks)


@pytest.mark.parametrize("tasks", [APART, SHARED, NAMES, NUMBERS], ids=["apart", "shared", "names", "numbers"])
@pytest.mark.parametrize("features", [60, "network"])
def test_the_exact_model(tasks, features):
    of_network = features == "network"
    learner = frcl.ExactGP(MLP(4, (16, 12), seed=2) if of_network else features)
    for x, y in tasks:
        learner.fit(x, y)
    as_among_many(learner, tasks)
    if tasks is not NUMBERS:
        as_among_many(learner, tasks, task=len(tasks) - 1)
        as_among_many(learner, tasks, task=torch.arange(len(tasks)).repeat_interleave(FEW))


@pytest.mark.parametrize("tasks", [APART, NUMBERS], ids=["apart", "numbers"])
def test_an_ensemble(tasks):
    learner = learned(tasks, frcl.Ensemble, members=2)
    as_among_many(learner, tasks)
    as_among_many(learner, tasks, task=1)


def test_the_heads_of_another_method_infer_the_task():
    as_among_many(learned_by_ewc(), APART)


@pytest.mark.parametrize("kind", [frcl.FRCL, frcl.Ensemble, frcl.ExactGP])
@pytest.mark.parametrize("size", [torch.nan, torch.inf, 1e30, 3e38])
def test_few_inputs_are_refused_as_many_are(kind, size):
    learner = frcl.ExactGP(60) if kind is frcl.ExactGP else kind(MLP(4, (8, 8), seed=1), **SMALL)
    for x, y in APART[:2]:
        learner.fit(x, y)

    def raised(x, task):
        try:
            found = learner.predict(x, task)
        except (DataError, NumericalError) as error:
            return type(error), str(error)
        return bool(found.probs.isfinite().all())

    x = torch.full((FEW + 1, 4), size)
    for task in (None, 0):
        assert raised(x[:1], task) == raised(x, task)


@pytest.mark.parametrize("kind", [frcl.FRCL, frcl.ExactGP])
def test_what_numpy_raises_is_no_error_of_a_prediction(kind):
    """exp underflows where one class is certain."""
    learner = frcl.ExactGP(60) if kind is frcl.ExactGP else learned(APART[:2])
    for x, y in APART if kind is frcl.ExactGP else ():
        learner.fit(x, y)
    with np.errstate(all="raise"):
        for task in (None, 0, 1):
            found = learner.predict(1e3 * APART[1][0][:3], task)
            assert found.probs.isfinite().all()
            assert found.variance.isfinite().all()


def test_features_that_overflow_are_no_error_of_numpy():
    with np.errstate(all="raise"):
        Phi = few_features(np.full((1, 2), 3e38, np.float32), 10.0)
    assert Phi.tolist() == [[np.inf, np.inf, 1.0]]


class ErrstateOfNumPy1(contextlib.ContextDecorator):
    """As in NumPy 1.26, where one object is entered again by each call that it decorates."""

    def __init__(self, **given):
        self.given = given

    def __enter__(self):
        self.before = np.seterr(**self.given)

    def __exit__(self, *_):
        np.seterr(**self.before)


def test_numpy_warns_as_before_after_a_prediction(monkeypatch):
    before = np.geterr()
    monkeypatch.setattr(np, "errstate", ErrstateOfNumPy1)
    quiet = runpy.run_path(frcl.few.__file__)["quiet"]
    try:
        assert quiet(quiet(np.geterr))()["over"] == "ignore"
        assert np.geterr() == before
    finally:
        np.seterr(**before)


def test_inputs_that_are_negative_by_a_bit():
    """Such a tensor has no array."""
    x = torch.complex(APART[0][0], APART[0][0]).conj().imag[:3]
    assert x.is_neg()
    learner = learned(APART[:2])
    torch.testing.assert_close(learner.predict(x).probs, learner.predict(x.resolve_neg()).probs)


# -- the parts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(7,), (8, 8)])
def test_whole_features_of_few_inputs(shape):
    random = RandomFeatures(shape, 50)
    x = torch.rand(FEW + 1, *shape, generator=torch.Generator().manual_seed(0))
    many = rounded(random(x))
    assert torch.equal(random.whole(x[:3]), many[:3])
    assert torch.equal(whole_features(random(x)[:3]), many[:3])
    assert torch.equal(random.whole(1e-3 * x[:1]), rounded(random(1e-3 * x[:1])))


def test_class_probabilities_of_arrays():
    g = torch.Generator().manual_seed(0)
    Phi, y = torch.randn(80, 6, generator=g).double(), torch.arange(80) % 4
    sums = sums_of(Phi, nn.functional.one_hot(y, 4).double())
    model = class_model(sums, solve_by_evidence(sums))
    found = class_log_probs(arrays(model), Phi[:9].numpy())
    torch.testing.assert_close(torch.from_numpy(found), class_log_probs(model, Phi[:9]), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_large_products_of_arrays_have_the_threads_of_torch(dtype, monkeypatch):
    g = np.random.default_rng(0)
    a, b = g.normal(size=(3, 8)).astype(dtype), g.normal(size=(9, 8)).T
    expected = a @ b
    for alone in (3 * b.size, 3 * b.size - 1):
        monkeypatch.setattr("frcl.few.ALONE", alone)
        with torch.profiler.profile() as profile:
            found = product(a, b)
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found, expected, rtol=1e-12)
        assert any("mm" in one.key for one in profile.key_averages()) == (alone < 3 * b.size)


@pytest.mark.parametrize("size", [10, 20_000])
def test_squares_are_finite(size):
    x = np.ones(size)
    assert is_finite(x, x)
    for wrong in (np.nan, np.inf, 1e200):
        x[3] = wrong
        with np.errstate(over="ignore"):
            assert not is_finite(np.ones(2), x)


class AtMean(Softmax):
    """Inherits formulas that take arrays, and has one that does not."""

    def probabilities(self, mean, variance, draws):
        return mean.softmax(-1)


def test_the_formulas_of_a_subclass_are_given_tensors():
    mean = torch.randn(2, 3, generator=torch.Generator().manual_seed(0))
    found = predictive(AtMean((0, 1, 2)), Moments(mean, torch.ones_like(mean)), torch.zeros(4, 1, 3), {})
    torch.testing.assert_close(found.probs, mean.softmax(-1))


def test_sums_of_exponentials_of_arrays():
    x = torch.tensor([[1e4, 1e4 - 1, -torch.inf], [-2.0, 0.5, 1.0]], dtype=torch.float64)
    for formula in (log_sum_exp, log_softmax, lambda one: softmax(one, 1)):
        torch.testing.assert_close(torch.from_numpy(formula(x.numpy())), formula(x))
    many = torch.randn(FEW, 100, generator=torch.Generator().manual_seed(0)).double()
    torch.testing.assert_close(torch.from_numpy(log_sum_exp(many.numpy())), many.logsumexp(-1))
    assert log_sum_exp(np.zeros((2, 0))).tolist() == [-np.inf, -np.inf]


def test_columns_of_one_label_are_added():
    values = torch.rand(FEW + 1, 4, generator=torch.Generator().manual_seed(0))
    classes, index = columns_of(("b", "a", "c", "b"))
    assert classes == ("a", "b", "c")
    expected = torch.stack([values[:, 1], values[:, [0, 3]].sum(1), values[:, 2]], 1)
    torch.testing.assert_close(summed(values, index, 3), expected)
    torch.testing.assert_close(summed(values[:2], index, 3), expected[:2])


def test_a_mixture_is_the_weighted_sum_of_what_each_task_says():
    """By the moments and the likelihood of each task alone; below RARE the functions are taken as known."""
    learner = learned(APART, held_out=0.2)
    state, model, predictor = learner._state, learner._model, learner._predictor
    Phi = few_features(learner.net(APART[0][0][:3]).detach().numpy(), float(model.scale))
    weights = np.array([[0.5, 0.3, 0.2], [1.0 - RARE, RARE / 4, RARE / 2], [0.0, 0.0, 1.0]], np.float32)
    mixture = mixture_of(state.past)
    assert [one.places for one in mixture.groups] == [[0], [1, 2]]
    assert [type(one.likelihood) for one in mixture.groups] == [Bernoulli, Softmax]
    assert mixture.labels == (0, 1, 4, 7, 9, 5, 6, 8)
    head = lambda place: predictor._head(state, place)  # noqa: E731
    found = weighted_columns(mixture, head, Phi, weights, model.predictive_draws)
    parts = []
    for k, one in enumerate(state.past):
        mean, variance = map(torch.from_numpy, few_moments(head(k), Phi))
        variance = torch.where(torch.from_numpy(weights[:, k]) < RARE, 0.0, variance.mT).mT
        moments = mean / one.temperature, variance / one.temperature**2
        probs = one.likelihood.predictive(*moments, model.predictive_draws(one.likelihood), {}).probs
        parts.append(torch.from_numpy(weights[:, k : k + 1]) * probs)
    torch.testing.assert_close(torch.from_numpy(found), torch.cat(parts, 1), rtol=1e-5, atol=1e-7)
    assert weighted_columns(mixture, head, 1e30 * Phi, weights, model.predictive_draws) is None


def test_mixtures_of_few_sets_of_tasks_are_kept(monkeypatch):
    monkeypatch.setattr("frcl.learners.predict.MIXTURES", 2)
    learner, x = learned(APART), APART[0][0][:2]
    sets = [(0, 0), (0, 1), (0, 2), (1, 2), (0, 1)]
    expected = [learner.predict(x.repeat(FEW, 1), torch.tensor(one).repeat(FEW)).probs[:2] for one in sets]
    for tasks, probs in zip(sets, expected, strict=True):
        torch.testing.assert_close(learner.predict(x, torch.tensor(tasks)).probs, probs, rtol=1e-4, atol=1e-6)
    assert list(learner._predictor._heads[learner._state].mixtures) == [(1, 2), (0, 1)]


def test_no_mixture_of_numbers():
    assert mixture_of(learned(NUMBERS[:2])._state.past) is None


def test_a_field_is_computed_when_it_is_read():
    asked = []
    value = torch.ones(2, 1)
    p = Prediction(lambda: asked.append("mean") or value, value, novelty=lambda: asked.append("novelty") or value[:, 0])
    assert not asked
    assert p.mean is value
    assert p.mean is value
    assert asked == ["mean"]
    assert p.novelty.tolist() == [1.0, 1.0]
    assert asked == ["mean", "novelty"]
    assert Prediction(value, value).novelty is None
    with pytest.raises(AttributeError):
        _ = Prediction.mean
    assert isinstance(vars(Prediction)["mean"], Later)


@pytest.mark.parametrize("kind", [frcl.FRCL, frcl.ExactGP])
def test_labels_do_not_wait_for_the_novelty(kind, monkeypatch):
    import frcl.exact.model as module

    learner = learned(APART) if kind is frcl.FRCL else frcl.ExactGP(60)
    if kind is frcl.ExactGP:
        learner.fit(*APART[0])
    calls, leverage = [], module.leverage
    monkeypatch.setattr(module, "leverage", lambda *given: calls.append(1) or leverage(*given))
    p = learner.predict(APART[0][0][:1])
    assert p.labels[0] in p.classes
    assert not calls
    assert p.novelty.shape == (1,)
    assert calls


def test_arrays_share_the_memory_of_tensors():
    x = torch.zeros(2)
    array_of(x)[0] = 1.0
    assert x.tolist() == [1.0, 0.0]
