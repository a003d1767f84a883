"""Baselines are trained by the optimiser that their options name, as torch.optim does it."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from frcl import MLP, OptionError
from frcl.methods import METHODS, make_learner
from frcl.seeding import fork
from streams import blobs

X, Y = blobs((0, 1, 2), 60, 1)
STEPS, BATCH, LR, BACKBONE = 12, 16, 0.05, 0.02
BY_STEPS = [name for name in METHODS if name not in ("exact-gp", "frcl", "frcl-plus")]
SMALL = {"steps": 6, "batch_size": 8, "points": 6, "fisher_examples": 20, "compress_steps": 6}


def trained(settings):
    options = replace(METHODS["finetune"].options, steps=STEPS, batch_size=BATCH, lr=LR, **settings)
    learner = make_learner(MLP(4, (8,), seed=1), options, seed=3)
    program = next(learner.learn(X, Y))
    start = [value.detach().clone() for value in program.optimiser.params.values()]
    learner = make_learner(MLP(4, (8,), seed=1), options, seed=3)
    learner.fit(X, Y)
    return start, [*learner.net.parameters(), learner._state.past[0].head]


def by_torch(start, method, groups, schedule, clip):
    """The same network and minibatches, moved by torch.optim."""
    weight, bias, head = (value.clone().requires_grad_() for value in start)
    backbone, rest = groups
    optimiser = method([{"params": [weight, bias], **backbone}, {"params": [head], **rest}])
    rate = torch.optim.lr_scheduler.LambdaLR(optimiser, schedule)
    rows = torch.randint(len(X), (STEPS, BATCH), generator=fork(3, "batches"))
    for some in rows:
        optimiser.zero_grad()
        hidden = X[some] @ weight.mT + bias
        F.cross_entropy(torch.cat([hidden, torch.ones(BATCH, 1)], 1) @ head.mT, Y[some]).backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_([weight, bias, head], clip)
        optimiser.step()
        rate.step()
    return [weight, bias, head]


def constant(step):
    return 1.0


def rising_and_falling(step):
    return min(1.0, (step + 1) / (0.25 * STEPS)) * min(1.0, (STEPS - step) / (0.5 * STEPS))


CASES = {
    "adam": ({}, torch.optim.Adam, {}, constant, None),
    "adam with decay": ({"weight_decay": 0.1}, torch.optim.Adam, {"weight_decay": 0.1}, constant, None),
    "adamw": (
        {"optimiser": "adamw", "weight_decay": 0.3, "backbone_lr": BACKBONE}, torch.optim.AdamW,
        {"weight_decay": 0.3, "lr": BACKBONE}, constant, None,
    ),
    "sgd": (
        {"optimiser": "sgd", "momentum": 0.8, "weight_decay": 0.1}, torch.optim.SGD,
        {"weight_decay": 0.1, "momentum": 0.8}, constant, None,
    ),
    "schedule and clipping": (
        {"warm_up": 0.25, "lr_decay": 0.5, "clip_norm": 0.2}, torch.optim.Adam, {}, rising_and_falling, 0.2
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_baseline_moves_as_torch_does(name):
    settings, method, backbone, schedule, clip = CASES[name]
    start, found = trained(settings)
    rest = {"lr": LR, **({"weight_decay": 0.0} if method is torch.optim.AdamW else {})}
    rest |= {"momentum": backbone["momentum"]} if "momentum" in backbone else {}
    expected = by_torch(start, method, ({"lr": LR, **backbone}, rest), schedule, clip)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.detach(), other.detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * name.startswith("vcl-")) for name in BY_STEPS]
)
def test_every_method_takes_the_optimiser_and_its_schedule(name):
    def learned(**settings):
        options = METHODS[name].options
        given = {key: value for key, value in SMALL.items() if hasattr(options, key)}
        learner = make_learner(MLP(4, (8,), seed=1), replace(options, **given, **settings), seed=3)
        for x, y in ((X, Y), (X, Y + 3)):
            learner.fit(x, y)
        return torch.cat([learner.predict(X, task).mean for task in (0, 1)])

    plain = learned()
    for settings in ({"optimiser": "sgd"}, {"warm_up": 0.5}, {"lr_decay": 0.5}, {"clip_norm": 1e-3}):
        assert not torch.equal(learned(**settings), plain)


@pytest.mark.parametrize("name", ["vcl", "progressive", "pnc"])
def test_decay_of_shared_weights_is_refused_where_others_are_trained(name):
    for settings in ({"weight_decay": 0.1}, {"backbone_lr": 0.1}):
        with pytest.raises(OptionError, match="for weights that all tasks share"):
            replace(METHODS[name].options, **settings)
