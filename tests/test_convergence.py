"""One set of default options: q(w) converges, whatever the scale of a network's outputs and where q begins."""

import copy

import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from torch import nn

import frcl
from frcl import FRCL, MLP, Ensemble
from streams import blobs, same_tensors

SCALES = (0.1, 1.0, 10.0)


class Scaled(nn.Module):
    """A network whose outputs are multiplied by a number."""

    def __init__(self, net: nn.Module, scale: float) -> None:
        super().__init__()
        self.net, self.scale = net, scale

    def forward(self, x):
        return self.scale * self.net(x)


def frozen(net: nn.Module) -> nn.Module:
    return net.requires_grad_(False)


@pytest.fixture(scope="module")
def digits():
    """Training and test halves of the digits."""
    data = load_digits()
    x, y = torch.tensor(data.data / 16, dtype=torch.float32), torch.tensor(data.target)
    rows = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    train, test = rows[:1300], rows[1300:]
    return (x[train], y[train]), (x[test], y[test])


def share(learner: FRCL, x, y, task: int | None = None) -> float:
    return float((learner.predict(x, task).labels == y).double().mean())


# -- fixed features --------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("scale", SCALES)
def test_on_fixed_features_it_is_as_good_as_logistic_regression(scale, digits):
    """Within 300 steps of default options, minus one point, for every initial_std."""
    (x, y), (x_test, y_test) = digits
    net = frozen(Scaled(MLP(64, (100, 100), seed=0), scale))
    ours = {}
    for std in (0.05, 0.5, 5.0):
        learner = FRCL(net, points=100, steps=300, initial_std=std)
        learner.fit(x, y)
        ours[std] = share(learner, x_test, y_test)
    for features in (net, net.net):  # of that scale, and of scale 1
        regression = LogisticRegression(max_iter=5000).fit(features(x).numpy(), y)
        assert min(ours.values()) >= regression.score(features(x_test).numpy(), y_test) - 0.01
    assert min(ours.values()) > 0.9
    assert len(set(ours.values())) == 1


def test_on_fixed_features_the_start_of_q_and_the_scale_do_not_matter(digits):
    """The same tasks at the same steps: equal predictions for another initial_std, close ones for another scale."""
    (x, y), (x_test, _) = digits

    def means(scale: float, **options) -> torch.Tensor:
        learner = FRCL(frozen(Scaled(MLP(64, (30,), seed=0), scale)), points=20, steps=100, **options)
        learner.fit(x, y, on_step=lambda log: found.append(learner.mean(x_test, 0)) if log.step == 99 else None)
        return found.pop()

    found: list[torch.Tensor] = []
    one = means(1.0)
    assert torch.equal(means(1.0, initial_std=3.0), one)
    for scale in (0.1, 10.0):
        torch.testing.assert_close(means(scale), one, atol=1e-2, rtol=1e-2)


def test_natural_steps_are_taken_where_no_weight_is_trained():
    """With a shared or diagonal covariance too; not in function space, nor of low rank, nor if one is trained."""
    x, y = blobs((0, 1, 2), 60, 1)

    def by_adam(net, **options) -> bool:
        learner = FRCL(net, points=5, steps=2, **options)
        seen = []
        learner.fit(x, y, on_step=lambda log: seen.append(learner._state.current.optimiser))
        assert (seen[0].natural is None) == ("posterior/mean" in seen[0].exp_avg)
        return seen[0].natural is None

    fixed, free = frozen(MLP(4, (6,), seed=1)), MLP(4, (6,), seed=1)
    partly = MLP(4, (6, 6), seed=1)
    partly.layers[1].requires_grad_(False)
    assert [by_adam(net) for net in (fixed, partly, free)] == [False, True, True]
    assert [by_adam(fixed, covariance=one) for one in ("shared", "diagonal", "lowrank")] == [False, False, True]
    assert by_adam(fixed, inference="function")


@pytest.mark.parametrize("covariance", ["full", "shared", "diagonal"])
def test_natural_steps_resume_exactly_and_learn_together_as_alone(covariance, tmp_path):
    """Saved in the middle of a task; and as members of an ensemble, each with the scale of its own network."""
    tasks = [blobs((0, 1, 2), 60, seed) for seed in (1, 2)]
    options = {"points": 5, "steps": 20, "search_steps": 10, "covariance": covariance, "lr_decay": 0.5}
    nets = [frozen(MLP(4, (6,), seed=i).double()) for i in range(2)]
    nets[1].layers[-1].weight.mul_(5.0)
    lone = [FRCL(net, seed=i, **options) for i, net in enumerate(nets)]
    members = Ensemble(nets, 2, **options)
    for x, y in tasks:
        members.fit(x, y)

        def keep(log) -> None:
            if (len(lone[0].tasks), log.step) == (1, 7):
                lone[0].save(tmp_path / "half.frcl")

        for one in lone:
            one.fit(x, y, on_step=keep)
    resumed = frcl.load(tmp_path / "half.frcl", nets[0])
    resumed.fit(*tasks[1])
    assert same_tensors(resumed.state_dict()["tensors"], lone[0].state_dict()["tensors"])
    assert len({one.feature_scale for one in lone}) == 2
    for member, one in zip(members.members, lone, strict=True):
        assert member.feature_scale == one.feature_scale
        for task, (x, _) in enumerate(tasks):
            torch.testing.assert_close(member.predict(x, task).mean, one.predict(x, task).mean, rtol=1e-6, atol=1e-8)


# -- a network that is trained ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_scale_of_the_outputs_does_not_matter_in_training(digits):
    """The same network with its outputs times 0.1, 1 and 10, default options: accuracies within a point."""
    (x, y), (x_test, y_test) = digits
    found = []
    for scale in SCALES:
        learner = FRCL(Scaled(MLP(64, (100, 100), seed=0), scale), points=100, steps=300)
        learner.fit(x, y)
        found.append(share(learner, x_test, y_test))
    assert min(found) > 0.94
    assert max(found) - min(found) <= 0.01


@pytest.fixture(scope="module")
def pretrained(digits):
    """A network trained on the digits 0 to 4, and few examples of the others."""
    (x, y), (x_test, y_test) = digits
    net = plainly_trained(MLP(64, (100, 100), seed=0), x[y < 5], y[y < 5], 300)[0]
    rows, test = (y >= 5).nonzero()[:200, 0], y_test >= 5
    return net, (x[rows], y[rows] - 5), (x_test[test], y_test[test] - 5)


def plainly_trained(net: nn.Module, x, y, steps: int, seed: int = 1) -> tuple[nn.Module, nn.Module]:
    """The network and a linear head after so many steps of Adam on the cross-entropy."""
    g = torch.Generator().manual_seed(seed)
    net, head = copy.deepcopy(net), MLP(100, (5,), seed=seed)
    with torch.no_grad():
        head.layers[1].weight.mul_(3**-0.5 / 2**0.5)  # as nn.Linear begins
    optimiser = torch.optim.Adam([*net.parameters(), *head.parameters()], 1e-3)
    for _ in range(steps):
        rows = torch.randint(len(x), (128,), generator=g)
        optimiser.zero_grad()
        nn.functional.cross_entropy(head(net(x[rows])), y[rows]).backward()
        optimiser.step()
    return net, head


@pytest.mark.slow
@pytest.mark.parametrize("steps", [50, 300, 1000])
def test_fine_tuning_is_as_good_as_adam_with_a_linear_head(steps, pretrained):
    """Minus one point, on average over four seeds, and the features do not collapse."""
    net, (x, y), (x_test, y_test) = pretrained
    with torch.no_grad():
        before = float(net(x).norm(dim=1).mean())
    gains = []
    for seed in range(4):
        tuned, head = plainly_trained(net, x, y, steps, seed)
        learner = FRCL(net, points=40, steps=steps, seed=seed)
        learner.fit(x, y)
        with torch.no_grad():
            plain = float((head(tuned(x_test)).argmax(1) == y_test).double().mean())
            assert float(learner.net(x).norm(dim=1).mean()) > 0.5 * before
        gains.append(share(learner, x_test, y_test) - plain)
    assert sum(gains) / len(gains) >= -0.01
