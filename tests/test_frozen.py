"""Networks with a frozen front: the same results as without remembering it, and the front computed once."""

from dataclasses import fields, replace

import pytest
import torch
from torch import nn

import frcl
from frcl import FRCL, MLP, CropFlip, FrozenFront, NetworkError
from frcl.frozen import LEAST, _found
from frcl.learners.lockstep import finish
from frcl.methods import METHODS, make_learner

GENERATOR = torch.Generator().manual_seed(0)
X = torch.rand(60, 3, 6, 6, generator=GENERATOR)
Y = torch.arange(60) % 3
SMALL = {"steps": 8, "batch_size": 8, "points": 6, "search_steps": 5, "fisher_examples": 20, "predict_samples": 4}
METHODS_WITH_ONE_NETWORK = ["frcl", "frcl-plus", "finetune", "ewc", "si", "lwf", "replay", "joint", "vcl"]


class Counting(nn.Module):
    """A convolution with batch norm that counts the inputs that pass through it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layer, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        self.norm(self.layer(X))
        self.rows: list[int] = []

    def __deepcopy__(self, memo):
        copy = Counting()
        copy.load_state_dict(self.state_dict())
        copy.rows = self.rows
        for own, other in zip(copy.parameters(), self.parameters(), strict=True):
            own.requires_grad_(other.requires_grad)
        return copy.train(self.training)

    def forward(self, x):
        self.rows.append(len(x))
        return torch.relu(self.norm(self.layer(x))).flatten(1)


def rest():
    return MLP(64, (8, 5), seed=2)


def split():
    return FrozenFront(Counting(), rest())


def whole():
    """The same network as one, whose first part is frozen but never remembered."""
    front = frcl.freeze_batch_norm(Counting()).eval().requires_grad_(False)
    return nn.Sequential(front, rest())


@pytest.fixture(autouse=True)
def empty():
    _found.clear()
    yield
    _found.clear()


def make(name, net, **changes):
    options = METHODS[name].options
    have = {field.name for field in fields(options)}
    given = {key: value for key, value in {**SMALL, **changes}.items() if key in have}
    return make_learner(net, replace(options, **given), seed=3)


def learned(name, net, augment=None, **changes):
    learner = make(name, net, **changes)
    for shift in (0, 3, 6):
        learner.fit(X, Y + shift, **({} if augment is None else {"augment": augment}))
    return learner


@pytest.mark.parametrize("augment", [None, CropFlip(1)])
@pytest.mark.parametrize("name", METHODS_WITH_ONE_NETWORK)
def test_results_are_those_of_the_network_as_one(name, augment):
    """FRCL+ compares current inputs with those of old tasks by what the front makes of them: there it differs."""
    own = {"current_inputs": 0.0} if name == "frcl-plus" else {}
    one, other = learned(name, split(), augment, **own), learned(name, whole(), augment, **own)
    for task in range(3):
        torch.testing.assert_close(one.predict(X, task).mean, other.predict(X, task).mean, rtol=1e-3, atol=1e-3)


def test_current_inputs_are_compared_by_their_front_with_and_without_augmentation():
    learner = learned("frcl-plus", split())
    (means,) = [one.means for one in learner.regularisers if one.name == "current-inputs"]
    with torch.no_grad():
        torch.testing.assert_close(means[0], learner.net.front(X).mean(0))
    plain = learned("frcl-plus", split(), CropFlip(0, flip=False))
    for task in range(3):
        torch.testing.assert_close(learner.predict(X, task).mean, plain.predict(X, task).mean, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", ["frcl", "frcl-plus", "ewc", "replay"])
def test_the_front_sees_each_input_once(name):
    net = split()
    net.front.rows.clear()
    learner = make(name, net, steps=50)
    for shift in (0, 3):
        learner.fit(X, Y + shift)
        learner.predict(X[:40], 0)
    passed = sum(rows for rows in net.front.rows if rows >= LEAST)
    assert passed <= len(X) + 40 + 2 * 20  # and the examples of the Fisher information of each task
    few = sum(rows for rows in net.front.rows if rows < LEAST)
    assert few < 300  # checks, and stored points; 50 steps have 800 inputs


def test_what_is_remembered_follows_the_content_of_inputs_and_weights():
    net = split()
    with torch.no_grad():
        first = net.prepare(X)
        count = len(net.front.rows)
        assert torch.equal(net.prepare(X.clone()), first)
        assert len(net.front.rows) == count
        other = net.prepare(X + 1e-3)
        assert len(net.front.rows) == count + 1
        assert not torch.equal(other, first)
        net.front.layer.weight.mul_(2.0)
        assert torch.equal(net.prepare(X), net.front(X))
        assert not torch.equal(net.prepare(X), first)


def test_memory_is_bounded_and_the_longest_unused_is_forgotten(monkeypatch):
    net = split()
    size = net.prepare(X).nbytes
    monkeypatch.setattr("frcl.frozen.LARGEST", 2 * size)
    for shift in range(4):
        net.prepare(X + shift)
    assert sum(one.nbytes for one in _found.values()) <= 2 * size
    count = len(net.front.rows)
    net.prepare(X + 3)
    assert len(net.front.rows) == count
    net.prepare(X)
    assert len(net.front.rows) == count + 1


def test_gradients_pass_through_and_nothing_is_remembered_then():
    net = split()
    x = X.clone().requires_grad_()
    net(x).sum().backward()
    assert x.grad is not None
    assert not _found


def test_seeds_are_trained_as_one_program_where_the_rest_allows_it():
    alone, together = ([make("frcl", split(), lr=1e-3) for _ in range(2)] for _ in range(2))
    for i, one in enumerate(together):
        one.options = replace(one.options, seed=i)
    works = [one.learn(X, Y) for one in alone]
    programs = [next(work) for work in works]
    assert all(program.stackable and program.x.shape == (60, 64) for program in programs)
    for one in together:
        one.fit(X, Y)
    finish([one.learn(X, Y) for one in [make("frcl", split()) for _ in range(2)]])


def test_a_saved_learner_goes_on(tmp_path):
    class Stop(Exception):
        pass

    def stop(log):
        if log.step == 4:
            raise Stop

    learner, other = make("frcl-plus", split()), make("frcl-plus", split())
    expected = learned("frcl-plus", split())
    learner.fit(X, Y)
    learner.fit(X, Y + 3)
    with pytest.raises(Stop):
        learner.fit(X, Y + 6, on_step=stop)
    other.load_state_dict(learner.state_dict())
    other.fit(X, Y + 6)
    for task in range(3):
        assert torch.equal(other.predict(X, task).mean, expected.predict(X, task).mean)
    other.save(tmp_path / "one.frcl")
    loaded = frcl.load(tmp_path / "one.frcl", split())
    assert torch.equal(loaded.predict(X, 1).mean, other.predict(X, 1).mean)


def test_a_network_without_trained_weights_takes_natural_steps_on_remembered_features():
    net = FrozenFront(nn.Sequential(Counting(), nn.Linear(64, 5)))
    learner = FRCL(net, points=6, steps=30, batch_size=16)
    for shift in (0, 3):
        learner.fit(X, Y + shift)
    assert not any(parameter.requires_grad for parameter in learner.net.parameters())
    assert sum(rows for rows in net.front[0].rows if rows >= LEAST) <= len(X) + 20


def test_a_prediction_is_exported_with_its_front():
    front = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten())
    learner = learned("frcl", FrozenFront(front, rest()))
    exported = learner.export(task=1).module()
    torch.testing.assert_close(exported(X)[0], learner.predict(X, 1).probs, rtol=1e-4, atol=1e-5)


def test_an_exact_gp_remembers_features_too():
    net = FrozenFront(nn.Sequential(Counting()))
    learner = frcl.ExactGP(net)
    learner.fit(X, Y)
    before = len(net.front[0].rows)
    learner.fit(X, Y + 3)
    learner.predict(X)
    assert sum(rows for rows in net.front[0].rows[before:] if rows >= LEAST) == 0


def test_the_front_stays_in_evaluation_mode_and_other_things_are_refused():
    net = split().train()
    assert net.rest.training
    assert not net.front.training
    assert not any(parameter.requires_grad for parameter in net.front.parameters())
    for wrong in ("resnet", None):
        with pytest.raises(NetworkError, match="expected a network"):
            FrozenFront(wrong)
    with pytest.raises(NetworkError, match="the frozen part gave"):
        FrozenFront(nn.Flatten(0))(X)


@pytest.mark.parametrize("settings", [{}, {"past_tasks_per_step": 1}])
def test_divergences_of_a_frozen_network_are_computed_once_and_are_those_of_every_step(settings):
    net = FrozenFront(nn.Sequential(Counting()))
    learner = FRCL(net, points=6, steps=12, batch_size=8, search_steps=5, **settings)
    learner.fit(X, Y)
    learner.fit(X[:40], Y[:40] + 3)
    logs = []
    learner.fit(X, Y + 6, on_step=logs.append)
    first, second = learner.past_divergences()[:2]
    found = torch.tensor([log.kl_past for log in logs])
    if settings:  # each step has one of two tasks, and counts it twice
        expected = torch.tensor([2 * first, 2 * second]) / 60
        nearest = (found[:, None] - expected).abs().min(1).values
        assert float(nearest.max()) < 1e-3 * float(expected.max())
        assert len({round(value, 4) for value in found.tolist()}) == 2
    else:
        torch.testing.assert_close(found, torch.full_like(found, (first + second) / 60), rtol=1e-4, atol=1e-5)
