"""bfloat16: the network in bfloat16, everything else as it is."""

from dataclasses import fields, replace

import pytest
import torch
from torch import nn

from frcl import MLP, OptionError
from frcl.features import FeatureMap, trained_parts
from frcl.learners.lockstep import finish
from frcl.methods import METHODS, make_learner
from streams import blobs

TASKS = [blobs((0, 1, 2), 90, 1), blobs((4, 7, 9), 90, 2)]
ONE_NETWORK = [name for name in METHODS if name not in ("exact-gp", "progressive", "pnc")]
SMALL = {"steps": 60, "batch_size": 16, "points": 9, "search_steps": 5, "fisher_examples": 20, "predict_samples": 4}


class Watching(nn.Module):
    """Remembers the type in which its layer computed."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.seen = nn.Linear(4, 8), set()

    def __deepcopy__(self, memo):
        return self

    def forward(self, x):
        out = self.layer(x)
        self.seen.add(out.dtype)
        return out


def make(name, net, **changes):
    options = METHODS[name].options
    have = {field.name for field in fields(options)}
    given = {key: value for key, value in {**SMALL, **changes}.items() if key in have}
    return make_learner(net, replace(options, **given), seed=3)


@pytest.mark.parametrize("name", ONE_NETWORK)
def test_every_method_learns_with_the_network_in_bfloat16(name):
    learner = make(name, MLP(4, (16, 8), seed=1), bfloat16=True, lr=5e-3)
    for x, y in TASKS:
        learner.fit(x, y)
        found = learner.predict(x, 0 if y is TASKS[0][1] else 1)
        assert (found.labels == y).float().mean() > 0.8
        assert found.mean.dtype == torch.float32
    state = learner.state_dict()["tensors"]
    assert not any(value.dtype in (torch.bfloat16, torch.float16) for value in state.values())
    assert all(p.dtype == torch.float32 for p in trained_parts(learner.net).values())


def test_the_layers_compute_in_bfloat16_in_training_and_prediction():
    for asked, dtype in ((True, torch.bfloat16), (False, torch.float32)):
        net = Watching()
        learner = make("frcl-plus", net, bfloat16=asked, steps=3)
        for x, y in TASKS:
            learner.fit(x, y)
        net.seen.clear()
        learner.predict(TASKS[0][0], 0)
        learner.mean(TASKS[0][0], 0)
        assert net.seen == {dtype}


def test_features_are_those_of_rounded_operands():
    net, x = MLP(4, (8,), seed=1), TASKS[0][0]
    weights = dict(net.named_parameters())
    found = FeatureMap(net, bfloat16=True)(weights, x)
    rounded = [value.detach().bfloat16() for value in weights.values()]
    expected = torch.nn.functional.linear(x.bfloat16(), *rounded).float()
    torch.testing.assert_close(found[:, :-1].detach(), expected, rtol=2e-2, atol=2e-2)
    exact = FeatureMap(net)(weights, x)
    assert found.dtype == torch.float32
    assert 1e-5 < float((found - exact).detach().abs().max()) < 0.1 * float(exact.detach().abs().max())
    learned = {name: value.detach().requires_grad_() for name, value in weights.items()}
    for name, value in learned.items():
        (by_half,) = torch.autograd.grad(FeatureMap(net, bfloat16=True)(learned, x).square().sum(), value)
        (by_float,) = torch.autograd.grad(FeatureMap(net)(learned, x).square().sum(), value)
        assert by_half.dtype == torch.float32, name
        assert float((by_half - by_float).abs().max()) < 0.05 * float(by_float.abs().max())


def test_seeds_together_are_those_alone():
    alone, together = ([make("frcl", MLP(4, (8,), seed=i), bfloat16=True, steps=20) for i in (1, 2)] for _ in range(2))
    x, y = TASKS[0]
    for one in alone:
        one.fit(x, y)
    finish([one.learn(x, y) for one in together])
    for one, other in zip(alone, together, strict=True):
        torch.testing.assert_close(one.predict(x, 0).mean, other.predict(x, 0).mean, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("name", ["progressive", "pnc"])
def test_methods_with_several_columns_refuse_it(name):
    with pytest.raises(OptionError, match="bfloat16 is for methods with one network"):
        replace(METHODS[name].options, bfloat16=True)
