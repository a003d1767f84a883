"""Predictions without a task: the mixture against its definition, the inference of the task, every learner."""

import copy
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch.distributions import Categorical, MixtureSameFamily, Normal

import frcl
from frcl import FRCL, MLP, Ensemble, Prediction, TaskError
from frcl.data.tasks import BuiltTasks, Split
from frcl.errors import DataError
from frcl.exact.fixed import whole_features
from frcl.exact.model import ExactModel, Tasks, added, all_sums
from frcl.experiment.metrics import evaluated
from frcl.inference import Asked, Exact, InputFeatures, Points, Summaries, task_inference
from frcl.learners.mixture import RARE, in_each_task, mixed, mixture_moments, over_labels, summed
from frcl.learners.types import Beliefs
from frcl.likelihoods import Softmax
from frcl.methods import METHODS, make_learner
from streams import same_tensors


def close(a, b, **tolerance):
    torch.testing.assert_close(torch.as_tensor(a).double(), torch.as_tensor(b).double(), **tolerance)


def digit_tasks(pairs=((0, 1), (2, 3), (4, 5))):
    pixels, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(labels)
    return [(x[which], y[which]) for which in (torch.isin(y, torch.tensor(pair)) for pair in pairs)]


TASKS = digit_tasks()
X = torch.cat([x[:50] for x, _ in TASKS])
Y = torch.cat([y[:50] for _, y in TASKS])
OF_TASK = torch.arange(3).repeat_interleave(50)
SMALL = {"steps": 150, "batch_size": 32, "points": 12, "lr": 3e-3, "search_steps": 20, "compress_steps": 50}


def learner_of(name="frcl", tasks=TASKS, **changes):
    options = METHODS[name].options
    have = {field.name for field in fields(options)}
    given = {
        key: value for key, value in {**SMALL, "features": 60, "task_features": 60, **changes}.items() if key in have
    }
    learner = make_learner(MLP(64, (32, 16), seed=1), replace(options, **given), seed=0, method=name)
    for x, y in tasks:
        learner.fit(x, y)
    return learner


# -- the mixture


def some_probs(n, C, seed):
    return torch.rand(n, C, generator=torch.Generator().manual_seed(seed)).softmax(1)


def in_classes(classes, seed, n=5):
    probs = some_probs(n, len(classes), seed)
    return Prediction(probs, probs, probs, classes)


def test_labels_of_tasks_are_mixed_with_the_probabilities_of_the_tasks():
    each, weights = [in_classes((3, 1), 1), in_classes((1, 2, 7), 2)], some_probs(5, 2, 3)
    p = mixed(each, weights, None)
    assert p.classes == (1, 2, 3, 7)
    for i in range(5):
        expected = dict.fromkeys(p.classes, 0.0)
        for k, one in enumerate(each):
            for c, label in enumerate(one.classes):
                expected[label] += float(weights[i, k] * one.probs[i, c])
        close(p.probs[i], list(expected.values()), rtol=1e-6, atol=1e-7)
    assert p.labels.tolist() == [p.classes[i] for i in p.probs.argmax(1)]
    assert torch.equal(p.task_probs, weights)
    close(p.variance, p.probs * (1 - p.probs))
    close(p.log_predictive([3, 1, 2, 7, 1]), p.probs[range(5), [2, 0, 1, 3, 0]].log(), rtol=1e-6, atol=1e-7)
    assert mixed(each, weights, None, named=True).task_probs is None


def test_strings_stay_strings_and_are_not_mixed_with_numbers():
    weights = some_probs(5, 2, 3)
    p = mixed([in_classes(("b", "a"), 1), in_classes(("a", "c"), 2)], weights, None)
    assert p.classes == ("a", "b", "c")
    assert isinstance(p.labels, np.ndarray)
    with pytest.raises(TaskError, match="strings"):
        mixed([in_classes(("b", "a"), 1), in_classes((1, 2), 2)], weights, None)


def numbers(seed, C=2, n=4):
    mean, variance = torch.randn(n, C, generator=torch.Generator().manual_seed(seed)), some_probs(n, C, seed)

    def density(y):
        return Normal(mean, (variance + 0.1).sqrt()).log_prob(y).sum(1)

    return Prediction(mean, variance, target_mean=mean, target_variance=variance + 0.1, density=density)


def test_moments_and_density_of_numbers_are_those_of_a_mixture():
    each, weights = [numbers(1), numbers(2), numbers(3)], some_probs(4, 3, 4)
    p = mixed(each, weights, None)
    means, stds = (torch.stack([getattr(one, name) for one in each], -1) for name in ("target_mean", "target_variance"))
    mixture = MixtureSameFamily(Categorical(weights[:, None].expand(4, 2, 3)), Normal(means, stds.sqrt()))
    close(p.target_mean, mixture.mean, rtol=1e-5, atol=1e-6)
    close(p.target_variance, mixture.variance, rtol=1e-5, atol=1e-6)
    y = torch.zeros(4, 2)
    expected = (
        torch.stack([w * one.log_predictive(y).exp() for w, one in zip(weights.T, each, strict=True)]).sum(0).log()
    )
    close(p.log_predictive(y), expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(TaskError, match="different kinds"):
        mixed([numbers(1), in_classes((0, 1), 1, 4)], some_probs(4, 2, 1), None)
    with pytest.raises(TaskError, match="different kinds"):
        mixed([numbers(1), numbers(1, C=1)], some_probs(4, 2, 1), None)


def test_rare_tasks_are_predicted_by_their_mean_and_the_others_in_full():
    full, quick = [in_classes((0, 1), k) for k in (1, 2)], [in_classes((0, 1), k) for k in (3, 4)]
    asked_for = []

    def within(task, rows):
        asked_for.append((task, None if rows is None else rows.tolist()))
        return full[task] if rows is None else Prediction(*[full[task].probs[rows]] * 3, (0, 1))

    weights = torch.tensor([[1.0, 0.0], [0.5, 0.5], [1 - RARE, RARE], [1 - RARE / 2, RARE / 2], [0.9, 0.1]])
    each = in_each_task(Beliefs(asked(), within, lambda task: quick[task]), weights, range(2))
    assert asked_for == [(0, None), (1, [1, 2, 4])]
    close(each[0].probs, full[0].probs)
    close(each[1].probs[[1, 2, 4]], full[1].probs[[1, 2, 4]])
    close(each[1].probs[[0, 3]], quick[1].probs[[0, 3]])
    whole = in_each_task(Beliefs(asked(), within), weights, range(2))  # nothing is cheaper: all in full
    assert all(torch.equal(one.probs, own.probs) for one, own in zip(whole, full, strict=True))


def test_one_certain_task_is_no_mixture():
    mean, variance = mixture_moments([(torch.ones(2, 1), torch.ones(2, 1)), (9 * torch.ones(2, 1), torch.ones(2, 1))],
                                     torch.tensor([[1.0, 0.0], [0.5, 0.5]]))  # fmt: skip
    assert mean.tolist() == [[1.0], [5.0]]
    assert variance.tolist() == [[1.0], [17.0]]


def test_columns_are_summed_by_group():
    assert summed(torch.tensor([[1.0, 2.0, 4.0]]), [1, 0, 1], 3).tolist() == [[2.0, 5.0, 0.0]]
    p = over_labels(torch.tensor([[0.2, 0.5, 0.3]]), [4, 2, 4], None, None)
    close(p.probs, [[0.5, 0.5]])


# -- the inference of the task


def asked(points=(), features=None, version=0):
    return Asked(X, lambda: X[:, :8] if features is None else features, lambda: points, list, version)


def test_exact_inference_is_the_exact_model_with_a_column_for_every_class_of_every_task():
    features, kept = InputFeatures(40, "auto", 0), Tasks()
    way, model, whole = Exact(features), ExactModel(features), Tasks()
    for number, (x, y) in enumerate(TASKS):
        kept = way.ended(kept, x, y - 2 * number, Softmax((0, 1)))
        whole = added(whole, number, model.of(x, torch.nn.functional.one_hot(y - 2 * number, 2)), own_gram=False)
    model.tasks = whole
    probs = model.believe(X).log_probs.exp()
    found = way.infer(kept, asked())
    close(found.log_probs.exp(), probs.view(-1, 3, 2).sum(-1), rtol=1e-9, atol=1e-12)
    assert float((found.log_probs.argmax(1) == OF_TASK).double().mean()) > 0.9


def test_a_class_without_examples_is_no_column():
    way = Exact(InputFeatures(20, "auto", 0))
    kept = way.ended(Tasks(), *TASKS[0], Softmax(tuple(range(5))))
    assert kept.blocks[0].squares.tolist() == TASKS[0][1].bincount().double().tolist()


def points_of(count=20):
    return [Points(x[:count], x[:count, :8], y[:count] - 2 * k) for k, (x, y) in enumerate(TASKS)]


def test_summaries_are_the_exact_model_of_the_points_on_both_kinds_of_features():
    features = InputFeatures(40, "auto", 0)
    found = Summaries(features).infer(Tasks(), asked(points_of()))
    model, kept = ExactModel(lambda Phi: Phi), Tasks()
    for number, one in enumerate(points_of()):
        Phi = torch.cat([features(one.x), whole_features(one.features)], 1)
        kept = added(kept, number, model.of(Phi, torch.nn.functional.one_hot(one.classes)), own_gram=False)
    model.tasks = kept
    assert float(all_sums(kept, classes=True).examples) == 60
    probs = model.believe(torch.cat([features(X), whole_features(X[:, :8])], 1)).log_probs.exp()
    close(found.log_probs.exp(), probs.view(-1, 3, 2).sum(-1), rtol=1e-9, atol=1e-12)
    assert float((found.log_probs.argmax(1) == OF_TASK).double().mean()) > 0.9


def test_summaries_are_learned_again_when_the_network_has_moved_and_only_then():
    way = Summaries(InputFeatures(10, "auto", 0))
    first = way.infer(Tasks(), asked(points_of(), version=0)).log_probs
    with pytest.raises(RuntimeError):
        way.infer(Tasks(), asked(points_of(), features=-X, version=0))  # other features do not fit the model
    moved = [one._replace(features=one.features.flip(1)) for one in points_of()]
    assert torch.equal(way.infer(Tasks(), asked(moved, version=0)).log_probs, first)
    assert not torch.equal(way.infer(Tasks(), asked(moved, version=1)).log_probs, first)


def test_both_is_the_geometric_mean():
    ways = {name: task_inference(name, 40, "auto", 0) for name in ("summaries", "exact", "both")}
    kept = Tasks()
    for number, (x, y) in enumerate(TASKS):
        kept = ways["exact"].ended(kept, x, y - 2 * number, Softmax((0, 1)))
    logs = {name: way.infer(kept, asked(points_of())).log_probs for name, way in ways.items()}
    close(logs["both"], (0.5 * (logs["exact"] + logs["summaries"])).log_softmax(1), rtol=1e-9, atol=1e-9)


def test_heads_are_compared_by_their_largest_probability():
    probs = [torch.tensor([[0.9, 0.1]]), torch.tensor([[0.2, 0.3, 0.5]])]
    found = task_inference("heads", 1, "auto", 0).infer(Tasks(), asked()._replace(probs=lambda: probs))
    close(found.log_probs.exp(), [[0.9 / 1.4, 0.5 / 1.4]], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", ["frcl", "ewc"])
def test_a_fixed_network_infers_the_task_as_the_exact_gp_on_its_features(name):
    net, model = MLP(64, (32, 16), seed=1).requires_grad_(False), frcl.ExactGP(MLP(64, (32, 16), seed=1))
    learner = make_learner(net, replace(METHODS[name].options, steps=5, task_inference="exact"), seed=0, method=name)
    for x, y in TASKS:
        learner.fit(x, y)
        model.fit(x, y)
    assert torch.equal(learner._state.task_sums.gram, model._model.tasks.gram)
    close(learner.predict(X).task_probs, model.predict(X).task_probs, rtol=0, atol=0.02)  # rounded after a scale


def test_a_network_that_is_thawed_infers_the_task_from_the_points():
    def taught(way):
        net = MLP(64, (32, 16), seed=1).requires_grad_(False)
        learner = FRCL(net, points=12, steps=5, task_inference=way, task_features=60)
        for x, y in TASKS[:2]:
            learner.fit(x, y)
        return learner

    learner = taught("auto")
    assert learner.memory_parts()["sums"] > 0
    learner.net.requires_grad_(True)
    close(learner.predict(X).task_probs, taught("summaries").predict(X).task_probs)
    learner.fit(*TASKS[2])
    assert "sums" not in learner.memory_parts()
    assert learner.predict(X).task_probs.shape == (len(X), 3)
    learner = taught("exact")
    learner.net.requires_grad_(True)
    with pytest.raises(TaskError, match="freeze it again"):
        learner.fit(*TASKS[2])


@pytest.mark.slow
def test_features_of_a_network_that_do_not_fit_leave_the_points():
    net = MLP(64, (32, 2000), seed=1).requires_grad_(False)
    learner = FRCL(net, points=12, steps=1, covariance="diagonal")
    x, y = TASKS[0]
    learner.fit(x, y)
    assert "sums" not in learner.memory_parts()


def test_auto_answers_from_sums_where_there_are_some_else_from_the_summaries():
    ways = {name: task_inference(name, 60, "auto", 0) for name in ("auto", "summaries", "exact")}
    kept = Tasks()
    for number, (x, y) in enumerate(TASKS):
        kept = ways["auto"].sums.ended(kept, x, y - 2 * number, Softmax((0, 1)))
    logs = {name: way.infer(kept, asked(points_of())).log_probs for name, way in ways.items()}
    assert torch.equal(logs["auto"], logs["exact"])
    assert not torch.equal(logs["auto"], logs["summaries"])
    assert torch.equal(ways["auto"].infer(Tasks(), asked(points_of())).log_probs, logs["summaries"])


# -- learners


@pytest.mark.parametrize("name", list(METHODS))
def test_every_method_predicts_over_all_labels(name):
    learner = learner_of(name)
    p = learner.predict(X)
    assert p.classes == (0, 1, 2, 3, 4, 5)
    assert p.task_probs.shape == (150, 3)
    close(p.task_probs.sum(1), torch.ones(150), rtol=0, atol=1e-5)
    close(p.probs.sum(1), torch.ones(150), rtol=0, atol=1e-5)
    named = learner.predict(X, task=OF_TASK)
    for k in range(3):
        own = k == OF_TASK
        close(named.probs[own][:, 2 * k : 2 * k + 2], learner.predict(X, task=k).probs[own], rtol=0, atol=1e-6)
    assert float((named.labels == Y).double().mean()) > 0.8
    if name != "exact-gp":
        expected = sum(p.task_probs[:, k, None] * learner.predict(X, task=k).probs for k in (1,))
        close(p.probs[:, 2:4], expected, rtol=0, atol=1e-5)
    assert (p.novelty is None) == (name not in ("frcl", "frcl-plus", "exact-gp"))


@pytest.mark.parametrize("way", ["auto", "summaries", "exact", "both"])
def test_tasks_are_inferred(way, tmp_path):
    learner = learner_of(task_inference=way, points=30, steps=200)
    p = learner.predict(X)
    assert float((p.task_probs.argmax(1) == OF_TASK).double().mean()) > 0.9
    assert float((p.labels == Y).double().mean()) > 0.85
    assert ("sums" in learner.memory_parts()) == (way != "summaries")
    learner.save(tmp_path / "learner.frcl")
    loaded = frcl.load(tmp_path / "learner.frcl", MLP(64, (32, 16)))
    assert torch.equal(loaded.predict(X).probs, p.probs)
    assert same_tensors(loaded.state_dict()["tensors"], learner.state_dict()["tensors"])


def test_what_is_kept_to_infer_the_task_changes_nothing_where_it_is_named():
    each = [learner_of("frcl-plus", task_inference=way, steps=20) for way in ("auto", "summaries")]
    for k in range(3):
        one, other = (learner.predict(X, task=k) for learner in each)
        assert torch.equal(one.probs, other.probs)
    parts, fewer = (learner.memory_parts() for learner in each)
    assert parts.pop("sums") == 4 * (61 * 62 // 2 + 61 * 6 + 6 + 3)
    assert parts == fewer


def test_forgetting_without_the_data_drops_the_sums_and_the_points_infer_the_task():
    """From then on the learner is one that never kept sums; with the data they go on."""
    learner, plain = learner_of(steps=5), learner_of(task_inference="summaries", steps=5)
    assert "sums" in learner.memory_parts()
    for one in (learner, plain):
        one.forget(1)
        one.fit(*TASKS[1])
    assert "sums" not in learner.memory_parts()
    assert torch.equal(learner.predict(X).task_probs, plain.predict(X).task_probs)
    twin = FRCL(MLP(64, (32, 16)), options=learner.options)
    twin.load_state_dict(learner.state_dict())
    assert torch.equal(twin.predict(X).task_probs, plain.predict(X).task_probs)
    with_data, exact = learner_of(steps=5), learner_of(task_inference="exact", steps=5)
    for one in (with_data, exact):
        one.forget(1, *TASKS[1])
        one.fit(*TASKS[1])
    assert torch.equal(with_data.predict(X).task_probs, exact.predict(X).task_probs)
    for _ in range(3):
        learner.forget(0)
    learner.fit(*TASKS[1])
    assert "sums" in learner.memory_parts(), "no task is without its sums"


def test_sums_take_no_more_bytes_than_the_first_task_has_numbers():
    x, y = TASKS[0]
    for rows, features in ((len(x), 105), (130, 63), (80, None)):
        learner = learner_of(tasks=[(x[:rows], y[:rows]), *TASKS[1:]], task_features=400, steps=5)
        if features is None:
            assert "sums" not in learner.memory_parts(), "fewer than 50 features"
        else:
            K = features + 1
            assert len(learner._state.task_sums.gram) == K
            assert 4 * K * (K + 1) // 2 <= 64 * rows < 4 * (K + 1) * (K + 2) // 2
            assert learner.memory_parts()["sums"] == 4 * (K * (K + 1) // 2 + 6 * K + 6 + 3)
        twin = FRCL(MLP(64, (32, 16)), options=learner.options)
        twin.load_state_dict(learner.state_dict())
        assert torch.equal(twin.predict(X).task_probs, learner.predict(X).task_probs)


def test_bounded_memory_is_all_for_points_by_default():
    learner = learner_of(memory=4000, steps=5)
    assert "sums" not in learner.memory_parts()
    assert learner.predict(X).task_probs.shape == (150, 3)
    assert "sums" in learner_of(memory=30_000, task_inference="exact", steps=5).memory_parts()


def test_a_baseline_can_keep_sums_too():
    learner = learner_of("finetune", task_inference="exact")
    assert float((learner.predict(X).task_probs.argmax(1) == OF_TASK).double().mean()) > 0.9
    assert learner.memory_parts()["sums"] == 4 * (61 * 62 // 2 + 61 * 6 + 6 + 3)


@pytest.mark.parametrize("name", ["frcl", "frcl-plus", "exact-gp", "ewc", "vcl", "pnc"])
def test_what_is_predicted_in_a_task_follows_from_a_prediction_without(name):
    learner = learner_of(name, tasks=TASKS[:2], steps=5)
    p = learner.predict(X)
    for k in range(2):
        own, named = p.in_task(k), learner.predict(X, task=k)
        assert own.classes == named.classes
        for part in ("probs", "mean", "variance"):
            close(getattr(own, part), getattr(named, part), rtol=0, atol=1e-6)
    with pytest.raises(TaskError):
        p.in_task(2)
    assert named.in_task is None
    learner.fit(*TASKS[2])
    with pytest.raises(TaskError, match="changed since"):
        p.in_task(0)


@pytest.mark.parametrize("name", ["frcl", "frcl-plus", "ewc", "replay", "pnc"])
def test_features_are_computed_once_for_all_heads(name):
    learner = learner_of(name, steps=5)
    learner.predict(X)  # what is kept until the network moves is made here
    rows = []
    learner.net.register_forward_pre_hook(lambda _, args: rows.append(len(args[0])))
    p = learner.predict(X)
    p.in_task(1)
    assert rows == [len(X)]


def test_a_run_passes_test_inputs_through_the_network_once():
    learner = learner_of("frcl", steps=5)
    whole = BuiltTasks("digits", ("a", "b", "c"), None, lambda k: Split(*TASKS[k]))
    learner.predict(X)
    rows = []
    learner.net.register_forward_pre_hook(lambda _, args: rows.append(len(args[0])))
    named, agnostic = evaluated(learner, whole, [0, 1, 2], whole=True)
    assert rows == [len(x) for x, _ in TASKS]
    each = [learner.predict(x, task=k).labels == y for k, (x, y) in enumerate(TASKS)]
    close(named, torch.stack([right.double().mean() for right in each]), rtol=0, atol=1e-6)
    each = [learner.predict(x).labels == y for x, y in TASKS]
    close(agnostic.accuracy, torch.stack([right.double().mean() for right in each]), rtol=0, atol=1e-6)


def test_the_mean_stands_in_for_a_rare_task():
    """The mixture is within the probability of the rare tasks of what all heads give."""
    learner = learner_of("frcl-plus", points=30, task_inference="summaries")
    p = learner.predict(X)
    each = [learner.predict(X, task=k).probs for k in range(3)]
    exact = torch.cat([p.task_probs[:, k, None] * each[k] for k in range(3)], 1)
    rare = torch.where(p.task_probs < RARE, p.task_probs, 0.0)
    assert int((rare > 0).sum()) > 5, "some tasks are rare here"
    gap = (p.probs - exact).abs()
    assert bool((gap <= rare.sum(1, keepdim=True) + 1e-6).all())
    assert float(gap[(rare == 0).all(1)].max()) < 1e-6


def test_one_task_is_predicted_by_itself():
    learner = learner_of(tasks=TASKS[:1])
    p, own = learner.predict(X[:50]), learner.predict(X[:50], task=0)
    assert torch.equal(p.probs, own.probs)
    assert torch.equal(p.mean, own.mean)
    close(p.task_probs, torch.ones(50, 1))
    assert float(learner.predict(X[50:]).novelty.median()) > 1.2 * float(p.novelty.median())


def test_permuted_inputs_share_their_labels():
    order = torch.randperm(64, generator=torch.Generator().manual_seed(5))
    x, y = TASKS[0]
    learner = learner_of(tasks=[(x, y), (x[:, order], y)])
    p = learner.predict(torch.cat([x, x[:, order]]))
    assert p.classes == (0, 1)
    assert float((p.task_probs.argmax(1) == torch.arange(2).repeat_interleave(len(x))).double().mean()) > 0.99
    assert float((p.labels == torch.cat([y, y])).double().mean()) > 0.97


@pytest.mark.parametrize("way", ["exact", "summaries"])
def test_brighter_images_of_the_same_labels_are_another_task(way):
    x, y = TASKS[0][0].view(-1, 8, 8), TASKS[0][1]
    net = torch.nn.Sequential(torch.nn.Flatten(), MLP(64, (32, 16), seed=1))
    learner = FRCL(net, points=80, steps=100, lr=3e-3, search_steps=20, task_inference=way)
    learner.fit(x, y)
    learner.fit(x + 0.5, 1 - y)
    p = learner.predict(torch.cat([x, x + 0.5]))
    assert float((p.task_probs.argmax(1) == torch.arange(2).repeat_interleave(len(x))).double().mean()) > 0.95
    assert float((p.labels == torch.cat([y, 1 - y])).double().mean()) > 0.9


@pytest.mark.parametrize("shape", [(1, 64), (64, 1), (64, 1, 1)])
@pytest.mark.parametrize("name", ["frcl", "exact-gp"])
def test_inputs_too_narrow_for_filters_are_flat(name, shape):
    x, y = TASKS[0][0].view(-1, *shape), TASKS[0][1]
    net = torch.nn.Sequential(torch.nn.Flatten(), MLP(64, (32, 16), seed=1))
    options = METHODS[name].options
    steps = {"steps": 20, "points": 10} if name == "frcl" else {}
    learner = make_learner(net, replace(options, **steps), seed=0, method=name)
    learner.fit(x, y)
    assert learner.predict(x).probs.isfinite().all()


@pytest.mark.parametrize("way", ["auto", "summaries", "exact", "both"])
def test_features_that_the_inputs_do_not_have_are_refused_before_anything_is_learned(way):
    learner = FRCL(MLP(63, (16,)), points=4, steps=5, task_inference=way, task_kind="conv")
    with pytest.raises(DataError, match="dense"):
        learner.fit(torch.rand(20, 63), torch.arange(20) % 2)
    assert (learner.step, learner._state.current) == (0, None)


def test_regression_tasks_are_mixed():
    x = torch.linspace(-1, 1, 60)[:, None]
    tasks = [(x - 3, torch.sin(3 * x[:, 0])), (x + 3, torch.cos(3 * x[:, 0]) + 4)]
    learner = FRCL(MLP(1, (32, 16)), points=10, steps=200, lr=5e-3, task_features=40)
    for one in tasks:
        learner.fit(*one)
    p = learner.predict(torch.cat([tasks[0][0], tasks[1][0]]))
    assert p.probs is None
    assert float((p.task_probs.argmax(1) == torch.arange(2).repeat_interleave(60)).double().mean()) > 0.95
    own = learner.predict(tasks[1][0], task=1)
    sure = p.task_probs[60:, 1] > 0.999
    close(p.target_mean[60:][sure], own.target_mean[sure], rtol=0, atol=0.05)
    assert p.log_predictive(torch.cat([y for _, y in tasks])).isfinite().all()


def test_only_the_tasks_that_are_named_have_a_part():
    """Two regression tasks and one of classes: what was not named is no obstacle, and its labels are not shown."""
    x = torch.linspace(-1, 1, 60)[:, None]
    learner = FRCL(MLP(1, (16,)), points=10, steps=20)
    for y in (torch.sin(3 * x[:, 0]), torch.cos(3 * x[:, 0]), (x[:, 0] > 0).long()):
        learner.fit(x, y)
    p, each = learner.predict(x[:3], task=[0, 1, 0]), [learner.predict(x[:3], task=k) for k in range(3)]
    for row, task in enumerate((0, 1, 0)):
        close(p.target_mean[row], each[task].target_mean[row])
        close(p.target_variance[row], each[task].target_variance[row], rtol=1e-4, atol=1e-6)
    close(learner.predict(x[:3], task=[2, 2, 2]).probs, each[2].probs)
    for tasks in ([0, 2, 0], None):
        with pytest.raises(TaskError, match="different kinds of targets"):
            learner.predict(x[:3], task=tasks)


@pytest.mark.parametrize("name", ["frcl", "finetune", "er", "exact-gp"])
def test_the_labels_are_those_of_the_tasks_that_are_named(name):
    learner = learner_of(name, steps=5)
    p, whole = learner.predict(X, task=2 * (OF_TASK > 0).long()), learner.predict(X, task=OF_TASK)
    assert p.classes == (0, 1, 4, 5)
    close(p.probs[100:, 2:], whole.probs[100:, 4:], rtol=0, atol=1e-6)
    assert learner.predict(X, task=torch.full((len(X),), 1)).classes == (2, 3)


def test_a_stream_needs_no_task_number():
    learner = FRCL(MLP(64, (32, 16)), points=12, lr=5e-3, task_features=60, labels=None)
    for x, y in TASKS[:2]:
        learner.start_task(labels=sorted(set(y.tolist())))
        for start in range(0, 300, 30):
            learner.observe(x[start : start + 30], y[start : start + 30])
        p = learner.predict(X[:50])
        assert float((p.labels == Y[:50]).double().mean()) > 0.9
        assert p.classes == ((0, 1) if y[0] < 2 else (0, 1, 2, 3)), "the open task has its part"
        if y[0] < 2:
            learner.end_task()
    for _ in range(2):
        p = learner.predict(X[:100])
        assert p.classes == (0, 1, 2, 3)
        assert float((p.task_probs.argmax(1) == OF_TASK[:100]).double().mean()) > 0.9
        if learner.step:
            learner.end_task()


WAYS = [(way, space) for way in ("auto", "summaries", "exact", "both") for space in ("weight", "function")]


def in_stream(tasks, way="auto", space="weight", stretch=25):
    """Learners in a stream with a detector, after each stretch; minibatches are those of every call."""
    learner = FRCL(
        MLP(64, (32, 16)), points=20, lr=5e-3, stream_steps=2, task_features=60, task_inference=way, inference=space,
        search_steps=20, detector=frcl.BoundaryDetector(),
    )  # fmt: skip
    generator = torch.Generator().manual_seed(0)
    for number in tasks:
        x, y = TASKS[number]
        for _ in range(stretch):
            rows = torch.randint(len(x), (32,), generator=generator)
            log = learner.observe(x[rows], y[rows])
            yield learner, number, log


@pytest.mark.parametrize(("way", "space"), WAYS)
def test_the_open_task_of_a_stream_answers_too(way, space):
    """Also in the first stretch, and where a task has returned; sums infer the task as if it ended here."""
    known = 0
    for step, (learner, number, log) in enumerate(in_stream((0, 1, 0), way, space), 1):
        known = max(known, log.task + 1)
        if step % 25 not in (5, 0):
            continue
        p, done = learner.predict(X[:100]), copy.deepcopy(learner)
        rows = OF_TASK[:100] == number
        assert p.classes == tuple(range(2 * known))
        assert p.task_probs.shape == (100, known)
        assert float((p.labels == Y[:100])[rows].double().mean()) > 0.55, "0.5 if it were not for its labels"
        assert p.novelty.isfinite().all()
        own = learner.predict(X[:100], task=log.task).probs
        close(p.in_task(log.task).probs, own)
        columns = slice(2 * log.task, 2 * log.task + 2)
        close(p.probs[:, columns], p.task_probs[:, log.task, None] * own, rtol=0, atol=1e-3)
        done.end_task()
        if way in ("auto", "exact") and done._state.task_sums.blocks:
            assert torch.equal(done.predict(X[:100]).task_probs, p.task_probs)
        elif known > 1:
            assert float((p.task_probs[rows, log.task] > 0.5).double().mean()) > 0.6
    assert known == 2
    assert log.task == 0


@pytest.mark.parametrize("way", ["auto", "summaries", "exact", "both"])
def test_asking_changes_nothing_of_what_is_learned(way):
    """Bit for bit: logs, state and what is predicted in the end, with predictions after every minibatch and without."""
    logs = []
    for both in zip(*(in_stream((0, 1, 0, 2), way) for _ in range(2)), strict=True):
        (asked_often, quiet), _, (one, other) = zip(*both, strict=True)
        asked_often.predict(X[:10]).in_task(0)
        assert repr(one) == repr(other)  # a statistic may be NaN
        logs.append(one)
    assert any(one.returned for one in logs)
    for _ in range(2):
        states = [learner.state_dict() for learner in (asked_often, quiet)]
        assert states[0]["meta"] == states[1]["meta"]
        assert same_tensors(*(state["tensors"] for state in states))
        assert torch.equal(asked_often.predict(X).probs, quiet.predict(X).probs)
        if quiet.step:
            for learner in (asked_often, quiet):
                learner.end_task()


def test_a_restored_stream_answers_as_the_one_that_was_saved(tmp_path):
    for step, (learner, _, _) in enumerate(in_stream((0, 1)), 1):
        if step in (10, 40):
            learner.save(tmp_path / "learner.frcl")
            loaded = frcl.load(tmp_path / "learner.frcl")
            assert torch.equal(loaded.predict(X).probs, learner.predict(X).probs)
    with pytest.raises(TaskError, match="still being learned"):
        learner.export()
    learner.end_task()
    program, p = learner.export().module(), learner.predict(X)
    close(program(X)[0], p.probs, rtol=0, atol=1e-3)


def test_a_stream_without_sums_of_a_past_task_goes_by_the_points():
    learner, plain = (learner_of(tasks=TASKS[:2], steps=20, task_inference=way) for way in ("auto", "summaries"))
    for one in (learner, plain):
        one.forget(0)  # with all sums
        one.observe(*(part[:40] for part in TASKS[2]))
    assert torch.equal(learner.predict(X).task_probs, plain.predict(X).task_probs)
    assert plain.predict(X).task_probs.shape == (150, 2)


def test_a_task_being_learned_has_no_part_unless_it_is_named():
    class Stop(Exception):
        pass

    def stop(log):
        raise Stop

    learner = learner_of(tasks=TASKS[:1])
    with pytest.raises(Stop):
        learner.fit(*TASKS[1], on_step=stop)
    assert learner.predict(X).classes == (0, 1)
    assert learner.predict(X, task=1).classes == (2, 3)


def test_an_ensemble_averages_its_members():
    ensemble = Ensemble(MLP(64, (32, 16)), members=2, points=12, steps=60, task_features=40)
    for x, y in TASKS[:2]:
        ensemble.fit(x, y)
    p, each = ensemble.predict(X), [member.predict(X) for member in ensemble.members]
    for name in ("probs", "task_probs", "novelty"):
        close(getattr(p, name), (getattr(each[0], name) + getattr(each[1], name)) / 2, rtol=1e-5, atol=1e-6)
    assert p.classes == (0, 1, 2, 3)
    assert ensemble.predict(X, task=OF_TASK.clamp_max(1)).classes == (0, 1, 2, 3)
    for k in range(2):
        own, named = p.in_task(k), ensemble.predict(X, task=k)
        assert own.classes == named.classes
        for name in ("probs", "mean", "variance"):
            close(getattr(own, name), getattr(named, name), rtol=0, atol=1e-6)
    assert named.in_task is None
    ensemble.forget(0)
    with pytest.raises(TaskError, match="changed since"):
        p.in_task(0)


@pytest.mark.parametrize(
    "task", [[0, 1], torch.zeros(150), torch.ones(150, dtype=torch.bool), [7] * 150, [-1] * 150, "0", 1.5, True]
)
def test_odd_task_numbers_are_refused(task):
    learner = learner_of("finetune")
    with pytest.raises(TaskError):
        learner.predict(X, task=task)


@pytest.mark.parametrize("task", [torch.tensor(1), np.array(1), np.int64(1)])
def test_a_task_may_be_named_by_an_array_of_one_number(task):
    learner = learner_of("finetune")
    assert torch.equal(learner.predict(X, task=task).probs, learner.predict(X, task=1).probs)
