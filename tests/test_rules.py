"""How parameters are moved: against the optimisers of torch, alone and stacked, and from the options of a learner."""

import pytest
import torch
from torch.nn.utils import clip_grad_norm_

from frcl import FRCL, MLP
from frcl.engine.program import gradient
from frcl.engine.train import Optimiser, Rule
from frcl.trees import leaf
from streams import accuracy, blobs, same_tensors, small_learner

RULES = {
    "adam": Rule(),
    "adam with decay": Rule(weight_decay=0.3),
    "adamw": Rule("adamw", weight_decay=0.3),
    "sgd": Rule("sgd", momentum=0.8),
    "sgd with decay": Rule("sgd", momentum=0.0, weight_decay=0.3),
    "two rates": Rule(backbone_lr=0.002),
    "all": Rule("adamw", weight_decay=0.1, backbone_lr=0.002, clip_norm=0.5),
    "clipped sgd": Rule("sgd", clip_norm=0.1),
}


def values(seed=0):
    g = torch.Generator().manual_seed(seed)
    return {"theta": {"a": torch.randn(4, 3, generator=g), "b": torch.randn(3, generator=g)},
            "q": torch.randn(2, 5, generator=g)}  # fmt: skip


def leaves(tree):
    return {"theta": {name: leaf(v) for name, v in tree["theta"].items()}, "q": leaf(tree["q"])}


def loss(tree):
    a, b, q = tree["theta"]["a"], tree["theta"]["b"], tree["q"]
    return ((a * b - 0.5) ** 2).sum() + (q - 1).pow(4).sum() + (a.sum() * q.sum()) ** 2 / 50


def of_torch(rule, tree, lr):
    """The optimiser of torch with the same groups."""
    groups = [
        {"params": list(tree["theta"].values()), "lr": rule.backbone_lr or lr, "weight_decay": rule.weight_decay},
        {"params": [tree["q"]], "lr": lr, "weight_decay": 0.0},
    ]
    if rule.method == "sgd":
        return torch.optim.SGD(groups, momentum=rule.momentum)
    return (torch.optim.Adam if rule.method == "adam" else torch.optim.AdamW)(groups)


@pytest.mark.parametrize("name", RULES)
def test_steps_are_those_of_torch(name):
    rule, ours, theirs = RULES[name], leaves(values()), leaves(values())
    optimiser, reference = Optimiser(ours, 0.01, rule=rule), of_torch(rule, theirs, 0.01)
    for _ in range(12):
        optimiser.apply(gradient(loss(ours), optimiser.params))
        reference.zero_grad()
        loss(theirs).backward()
        if rule.clip_norm is not None:
            clip_grad_norm_([*theirs["theta"].values(), theirs["q"]], rule.clip_norm)
        reference.step()
    for part in ("a", "b"):
        torch.testing.assert_close(ours["theta"][part], theirs["theta"][part], rtol=1e-5, atol=1e-6)
        assert not torch.equal(ours["theta"][part], values()["theta"][part])
    torch.testing.assert_close(ours["q"], theirs["q"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["all", "clipped sgd", "sgd with decay"])
def test_stacked_programs_move_as_each_alone(name):
    def made():
        each = [Optimiser(leaves(values(seed)), 0.01, rule=RULES[name]) for seed in range(3)]
        for one in each:
            one.rise = 4.0
        return each

    each, alone = made(), made()
    block = Optimiser.joined(each)
    for _ in range(6):
        found = block.params
        parts = [{"theta": {n: found[f"theta/{n}"][i] for n in "ab"}, "q": found["q"][i]} for i in range(3)]
        block.apply(gradient(sum(loss(part) for part in parts), block.params))
        for one in alone:
            one.apply(gradient(loss(one.tree), one.params))
    for one, lone in zip(each, alone, strict=True):
        for key, value in one.params.items():
            torch.testing.assert_close(value, lone.params[key])


def test_warm_up_is_a_rise_of_lr():
    """Of eight steps the first four have 1/4, 1/2, 3/4 and all of lr; the last two of a decay less."""
    ours, theirs = {"w": leaf(torch.tensor([1.0, -2.0]))}, torch.tensor([1.0, -2.0], requires_grad=True)
    optimiser, reference = Optimiser(ours, 0.1), torch.optim.Adam([theirs])
    optimiser.rise, optimiser.decay = 4.0, (8.0, 2.0)
    for share in (0.25, 0.5, 0.75, 1.0, 1.0, 1.0, 1.0, 0.5):
        for group in reference.param_groups:
            group["lr"] = 0.1 * share
        optimiser.apply(gradient((ours["w"] ** 4).sum(), optimiser.params))
        reference.zero_grad()
        (theirs**4).sum().backward()
        reference.step()
    torch.testing.assert_close(ours["w"], theirs)


OPTIONS = {
    "optimiser": "adamw", "weight_decay": 0.01, "backbone_lr": 2e-3, "clip_norm": 1.0, "warm_up": 0.2, "lr_decay": 0.3,
}  # fmt: skip


@pytest.mark.parametrize("options", [OPTIONS, {"optimiser": "sgd", "lr": 0.05, "clip_norm": 1.0, "steps": 300}])
def test_a_learner_learns_with_them(options):
    tasks = [blobs((0, 1, 2), 150, 1), blobs((3, 4), 150, 2)]
    learner = small_learner(**{"steps": 200, "points": 20, **options})
    for x, y in tasks:
        learner.fit(x, y)
    assert min(accuracy(learner, *task, number) for number, task in enumerate(tasks)) > 0.9


def test_the_options_reach_every_step(tmp_path):
    """A rate of almost zero for the network leaves it as it is; one interrupted half-way goes on with the same rule."""
    x, y = blobs((0, 1), 60, 1)
    still = small_learner(steps=5, backbone_lr=1e-12)
    before = {name: p.detach().clone() for name, p in still.net.named_parameters()}
    still.fit(x, y)
    for name, p in still.net.named_parameters():
        torch.testing.assert_close(p, before[name], rtol=0, atol=1e-9)

    def stop(log):
        if log.step == 7:
            raise KeyboardInterrupt

    whole, half, again = (small_learner(steps=20, **OPTIONS) for _ in range(3))
    whole.fit(x, y)
    with pytest.raises(KeyboardInterrupt):
        half.fit(x, y, on_step=stop)
    again.load_state_dict(half.state_dict())
    again.fit(x, y)
    assert same_tensors(whole.state_dict()["tensors"], again.state_dict()["tensors"])
    for change in ({"warm_up": 0.5}, {"clip_norm": 1e-3}, {"weight_decay": 1.0}, {"momentum": 0.1, "optimiser": "sgd"}):
        other = small_learner(steps=20, **{**OPTIONS, **change})
        other.fit(x, y)
        assert not same_tensors(whole.state_dict()["tensors"], other.state_dict()["tensors"])


def test_weight_decay_shrinks_the_network_alone():
    x, y = blobs((0, 1), 60, 1)
    learners = [
        FRCL(MLP(4, (8, 6), seed=1), points=5, steps=30, optimiser="adamw", weight_decay=w) for w in (0.0, 20.0)
    ]
    sizes = []
    for learner in learners:
        learner.fit(x, y)
        sizes.append(sum(float(p.detach().square().sum()) for p in learner.net.parameters()))
    assert sizes[1] < 0.5 * sizes[0]
