"""Changes of a network are noticed, and what was computed before is then not used again; predictions of one example."""

import statistics
import time

import pytest
import torch
from torch import nn

import frcl
from frcl import MLP
from frcl.features import with_bias
from frcl.few import FEW
from frcl.learners.few import few_features, few_moments
from frcl.summary import head_moments, make_head
from frcl.weights import Watched
from streams import blobs

TASKS = [blobs((0, 1), 90, 1), blobs((4, 7, 9), 90, 2)]
SMALL = {"points": 10, "steps": 10, "search_steps": 10}


def first(net):
    return next(net.parameters())


def by_data(net):
    first(net).data[0, 0] += 0.5


def by_exchange(net):
    value = first(net).data
    value[[0, 1]] = value[[1, 0]]


def by_negation(net):
    first(net).data.neg_()


def by_numpy(net):
    first(net).detach().numpy()[0, 0] += 0.5


def by_new_data(net):
    first(net).data = first(net).data + 0.5


def by_copy(net):
    with torch.no_grad():
        first(net).mul_(1.5)


def by_loading(net):
    net.load_state_dict({name: 1.5 * value for name, value in net.state_dict().items()})


def by_module(net):
    net.layers[1] = nn.Linear(4, 16)


def by_parameter(net):
    net.layers[1].weight = nn.Parameter(1.5 * net.layers[1].weight.detach())


def by_addition(net):
    net.layers.append(nn.Tanh())


CHANGES = [by_data, by_exchange, by_negation, by_numpy, by_new_data, by_copy, by_loading, by_module, by_parameter,
           by_addition]  # fmt: skip


def taught(kind=frcl.FRCL, **options):
    learner = kind(MLP(4, (16, 8), seed=1), **{**SMALL, **options})
    for x, y in TASKS:
        learner.fit(x, y)
    return learner


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_change_is_noticed_once(change):
    watched = Watched(net := MLP(4, (16, 8)))
    before = watched.version()
    net(torch.zeros(2, 4)).sum().backward()  # reading the weights, and gradients, change nothing
    assert watched.version() == before
    change(net)
    assert watched.version() == before + 1
    assert watched.version() == before + 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_buffers_and_every_type_and_order_of_weights_are_watched(dtype):
    net = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4)).to(dtype).to(memory_format=torch.channels_last)
    watched = Watched(net)
    for value in net.state_dict().values():
        before = watched.version()
        value.data.add_(1)
        if value.is_floating_point():
            assert watched.version() == before + 1
    before = watched.version()
    net[1].num_batches_tracked.add_(1)
    assert watched.version() == before + 1


@pytest.mark.parametrize("rows", [1, FEW + 1])
@pytest.mark.parametrize("kind", [frcl.FRCL, frcl.FRCLPlus])
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_predictions_follow_the_weights(change, kind, rows):
    """After a change by hand they are those of a learner that never predicted before."""
    (learner, other), x = (taught(kind), taught(kind)), TASKS[1][0][:rows]
    before = [learner.predict(x, task=1), learner.predict(x)]
    torch.manual_seed(0)
    change(learner.net)
    torch.manual_seed(0)
    change(other.net)
    after, fresh = ([one.predict(x, task=1), one.predict(x)] for one in (learner, other))
    for found, expected, old in zip(after, fresh, before, strict=True):
        assert torch.equal(found.probs, expected.probs)
        assert torch.equal(found.variance, expected.variance)
        assert not torch.equal(found.probs, old.probs)


@pytest.mark.parametrize("M", [5, 9, 14])
@pytest.mark.parametrize("covariance", ["full", "shared", "diagonal"])
def test_few_inputs_have_the_moments_of_many(M, covariance):
    generator = torch.Generator().manual_seed(3)
    learner = frcl.FRCL(MLP(4, (8, 8), seed=1), **{**SMALL, "points": M}, covariance=covariance)
    learner.fit(*TASKS[1])
    belief = learner.tasks[0].belief
    outputs = torch.randn(6, 8, generator=generator)
    head = make_head(with_bias(torch.randn(M, 8, generator=generator)), belief)
    expected = head_moments(head, with_bias(2.5 * outputs))
    for found, part in zip(few_moments(head, few_features(outputs.numpy(), 2.5)), expected, strict=True):
        torch.testing.assert_close(torch.from_numpy(found), part.float())


@pytest.mark.parametrize("points", [6, 40])
@pytest.mark.parametrize("task", [0, 1])
@pytest.mark.parametrize("options", [{}, {"held_out": 0.2}])
@pytest.mark.parametrize("kind", [frcl.FRCL, frcl.FRCLPlus])
def test_one_example_is_predicted_as_among_many(kind, options, task, points):
    learner, x = taught(kind, points=points, **options), TASKS[task][0][: 2 * FEW]
    many, y = learner.predict(x, task=task), TASKS[task][1][: 2 * FEW]
    for row in (0, 5):
        one = learner.predict(x[row : row + 1], task=task)
        for name in ("mean", "variance", "probs"):
            torch.testing.assert_close(getattr(one, name)[0], getattr(many, name)[row], rtol=1e-5, atol=1e-6)
        assert one.labels[0] == many.labels[row]
        torch.testing.assert_close(one.log_predictive(y[row : row + 1])[0], many.log_predictive(y)[row])


def test_heads_beyond_the_size_of_the_cache_are_made_again(monkeypatch):
    import frcl.learners.predict as module

    learner, x = taught(), TASKS[0][0]
    kept = [learner.predict(x, task=task).probs for task in (0, 1)]
    monkeypatch.setattr(module, "CACHED", 1)
    learner._predictor._heads.clear()
    for task in (0, 1, 0):
        assert torch.equal(learner.predict(x, task=task).probs, kept[task])
    assert len(learner._predictor._heads[learner._state].made) == 1


def test_one_prediction_takes_a_few_times_the_network():
    """The limit of `frcl bench` is 5; here it is far wider, for machines that do other work."""
    learner = frcl.FRCL(MLP(784, (100, 100)), points=40, steps=2, search_steps=2)
    learner.fit(torch.rand(200, 784, generator=torch.Generator().manual_seed(0)), torch.arange(200) % 10)
    x = torch.zeros(1, 784)

    def seconds(work):
        begin = time.thread_time()
        for _ in range(100):
            work()
        return time.thread_time() - begin

    with torch.no_grad():
        pairs = [(seconds(lambda: learner.predict(x, 0)), seconds(lambda: learner.net(x))) for _ in range(9)]
    assert statistics.median(ours / bare for ours, bare in pairs[1:]) < 9


def test_a_large_tensor_is_read_by_torch_and_not_by_the_threads_of_numpy():
    net = nn.Linear(600, 600)
    watched = Watched(net)
    assert [len(left) for left, _, _ in watched._others] == [600]
    assert watched.version() == 0
    net.weight.data[599, 599] += 1e-3
    assert watched.version() == 1
