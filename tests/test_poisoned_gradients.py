"""A gradient that is not finite where the loss is: the step is refused, and nothing of the learner changes."""

from dataclasses import fields, replace

import pytest
import torch
from torch import Tensor, nn

from frcl import FRCL, MLP, Ensemble, FunctionalKL, NumericalError
from frcl.learners.lockstep import finish
from frcl.methods import METHODS, make_learner
from frcl.regularisers.protocol import Regulariser, Step
from streams import blobs, same_tensors

SMALL = {
    "steps": 12, "batch_size": 40, "points": 6, "search_steps": 5, "fisher_examples": 20, "adapt_steps": 2,
    "compress_steps": 6, "predict_samples": 4,
}  # fmt: skip
COLUMNS = {"progressive", "pnc"}  # these take an MLP alone


class Root(nn.Module):
    """√|h| of a linear layer without bias: at an input of zeros its value is finite, its derivative is not."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 8, bias=False), nn.Linear(8, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x).abs().sqrt())


class RootOfPart(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.abs().sqrt()


def poisonous(name: str) -> nn.Module:
    torch.manual_seed(3)
    if name not in COLUMNS:
        return Root()
    net = MLP(4, (8, 6), seed=3)
    for i, layer in enumerate(net.layers):
        if isinstance(layer, nn.ReLU):
            net.layers[i] = RootOfPart()
        elif isinstance(layer, nn.Linear):
            nn.init.zeros_(layer.bias).requires_grad_(False)
    return net


def make(name: str, seed: int = 0):
    options = METHODS[name].options
    given = {key: value for key, value in SMALL.items() if key in {one.name for one in fields(options)}}
    given |= {"points": 200} if name == "gdumb" else {}  # it learns from these alone
    return make_learner(poisonous(name), replace(options, **given), seed=seed, method=name)


GOOD, NEXT = blobs((0, 1), 40, 1), blobs((0, 1, 2), 60, 2)
BLANK = (NEXT[0] * (torch.arange(60) % 15 != 7)[:, None], NEXT[1])


def same_state(a: dict, b: dict) -> bool:
    return a["meta"] == b["meta"] and same_tensors(a["tensors"], b["tensors"])


TRAINED = [name for name in METHODS if name != "exact-gp"]  # which has no gradient


@pytest.mark.parametrize("seeds", [1, 3])
@pytest.mark.parametrize("name", TRAINED)
def test_a_blank_row_is_refused_and_leaves_no_trace(name, seeds):
    """The minibatches are large enough for the blank row to be drawn within the first few steps."""
    learners = [make(name, seed) for seed in range(seeds)]
    for learner in learners:
        learner.fit(*GOOD)
    before = [learner.state_dict() for learner in learners]
    answers = [learner.predict(GOOD[0], 0).mean for learner in learners]
    stands = []
    with pytest.raises(NumericalError, match=r"gradient of '(theta|mean|log_std|layers|first)"):
        finish(
            [learner.learn(*BLANK) for learner in learners],
            lambda taken: stands.append([learner.state_dict() for learner in learners]),
        )
    after = [learner.state_dict() for learner in learners]
    if stands:  # as after the last step that was taken
        assert all(map(same_state, stands[-1], after))
    for state in after:
        assert all(bool(value.isfinite().all()) for value in state["tensors"].values())
    for learner, state, answer in zip(learners, before, answers, strict=True):
        learner.load_state_dict(state)
        assert torch.equal(learner.predict(GOOD[0], 0).mean, answer)
        learner.fit(*NEXT)
        assert learner.predict(NEXT[0], 1).mean.isfinite().all()


@pytest.mark.parametrize("name", TRAINED)
def test_a_task_refused_in_its_first_step_was_never_opened(name):
    learner = make(name)
    learner.fit(*GOOD)
    before = learner.state_dict()
    with pytest.raises(NumericalError, match="the gradient of"):
        learner.fit(torch.zeros(60, 4), NEXT[1])
    assert same_state(before, learner.state_dict())
    learner.fit(*NEXT)


@pytest.mark.parametrize("name", ["frcl", "frcl-plus"])
def test_a_blank_row_in_a_stream(name):
    learner, other = make(name), make(name)
    for one in (learner, other):
        one.fit(*GOOD)
        one.start_task(labels=(0, 1, 2))
        one.observe(NEXT[0][:20], NEXT[1][:20])
    before = learner.state_dict()
    with pytest.raises(NumericalError, match=r"'theta/first\.weight'"):
        learner.observe(BLANK[0][:20], BLANK[1][:20])
    assert same_state(before, learner.state_dict())
    for one in (learner, other):
        one.observe(NEXT[0][20:], NEXT[1][20:])
        one.end_task()
    assert same_state(learner.state_dict(), other.state_dict())


def test_networks_side_by_side_are_refused_together():
    """The second of two networks that cannot be batched meets the blank row; the first one must not move either."""
    learners = [make("finetune", seed) for seed in range(2)]
    for learner in learners:
        learner.fit(*GOOD)
    before = [learner.state_dict() for learner in learners]
    with pytest.raises(NumericalError):
        finish([learners[0].learn(*NEXT), learners[1].learn(torch.zeros(61, 4), torch.arange(61) % 4)])
    for learner, state in zip(learners, before, strict=True):
        assert learner.step == 0
        assert same_tensors(
            {name: value for name, value in state["tensors"].items() if name.startswith("net/")},
            {name: value for name, value in learner.state_dict()["tensors"].items() if name.startswith("net/")},
        )


class RootOfHead(Regulariser):
    """√|w| of the head, whose mean begins at zero."""

    name = "root-of-head"

    def penalty(self, step: Step, constants: object, draws: object) -> Tensor:
        return step.head.abs().sqrt().sum()


@pytest.mark.parametrize("members", [1, 2])
def test_natural_gradients_are_checked_too(members):
    fixed = MLP(4, (8, 6), seed=1)
    for parameter in fixed.parameters():
        parameter.requires_grad_(False)
    given = {"points": 6, "steps": 5, "search_steps": 5, "initial_mean": "zero"}
    learner = Ensemble(fixed, members, regularisers=[FunctionalKL(), RootOfHead()], **given)
    before = learner.state_dict()
    with pytest.raises(NumericalError, match="'posterior/mean'"):
        learner.fit(*GOOD)
    assert same_state(before, learner.state_dict())


def test_a_gradient_whose_square_overflows_is_refused():
    """Adam's second moment would be infinite for ever."""

    class Steep(Regulariser):
        name = "steep"

        def penalty(self, step: Step, constants: object, draws: object) -> Tensor:
            return 1e22 * (
                step.theta["layers.0.weight" if "layers.0.weight" in step.theta else "layers.1.weight"].sum()
            )

    learner = FRCL(MLP(4, (8, 6), seed=1), regularisers=[Steep()], points=6, steps=5, search_steps=5)
    with pytest.raises(NumericalError, match="too large"):
        learner.fit(*GOOD)


@pytest.mark.parametrize("save", ["state_dict", "save"])
def test_a_state_that_is_not_finite_is_neither_saved_nor_loaded(save, tmp_path):
    learner = FRCL(MLP(4, (8, 6), seed=1), points=6, steps=5, search_steps=5)
    learner.fit(*GOOD)
    good = learner.state_dict()
    with torch.no_grad():
        learner.net.layers[1].bias[2] = float("nan")
    with pytest.raises(NumericalError, match=r"net/layers\.1\.bias"):
        learner.save(tmp_path / "model.frcl") if save == "save" else learner.state_dict()
    assert not list(tmp_path.iterdir())
    for name in ("net/layers.1.bias", "past/0/points/values", "past/0/belief/factor"):
        bad = {**good["tensors"], name: good["tensors"][name] / 0.0}
        with pytest.raises(Exception, match=f"{name}.* not finite"):
            learner.load_state_dict({"meta": good["meta"], "tensors": bad})
    learner.load_state_dict(good)


def test_what_is_not_trained_may_be_infinite():
    """Masks of attention are buffers with −∞."""

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = MLP(4, (8, 6), seed=1)
            self.register_buffer("mask", torch.tensor([0.0, 0.0, 0.0, 0.0, 0.0, -torch.inf]))

        def forward(self, x: Tensor) -> Tensor:
            return (self.inner(x) + self.mask).softmax(-1)

    learner = FRCL(Masked(), points=6, steps=5, search_steps=5)
    learner.fit(*GOOD)
    state = learner.state_dict()
    learner.load_state_dict(state)
    assert same_state(state, learner.state_dict())
