"""Seeds that learn together are the seeds that learn alone: every method, in one block or side by side, resumed too."""

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from frcl import MLP, ConvNet
from frcl.engine.batching import can_stack
from frcl.learners.lockstep import together
from frcl.methods import METHODS, make_learner
from streams import same_tensors

NAMES = [name for name in METHODS if name != "exact-gp"]  # those that take gradient steps
SEEDS = (0, 1, 2)
SMALL = {
    "steps": 60, "batch_size": 16, "lr": 5e-3, "points": 6, "search_steps": 10, "fisher_examples": 50,
    "adapt_steps": 12, "compress_steps": 25, "predict_samples": 8,
}  # fmt: skip
# old heads have the gradient of a penalty, at first rounding (see `task`); FROMP and S-FSVI multiply it by a precision,
# and Adam by the learning rate over 1e-8
LARGE = {"fromp": 1e-8, "sfsvi": 1e-5}
DOUBLE = {"lwf": 1e-8, "frcl-plus": 1e-9, **LARGE}
DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")),
]
Task = tuple[Tensor, Tensor]


def make(name: str, seed: int, net: nn.Module | None = None, device: str = "cpu", **changes: Any) -> Any:
    options = METHODS[name].options
    have = {field.name for field in fields(options)}
    given = {key: value for key, value in {**SMALL, **changes}.items() if key in have}
    net = MLP(4, (16, 8), last="relu", seed=seed).double() if net is None else net
    return make_learner(net, replace(options, **given), seed=seed, device=device)


def task(number: int, seed: int) -> Task:
    """Two tasks, with two and with three classes; each seed has data of its own, so that nothing is shared by mistake.

    Every unit of the network sees both sides of zero. A weight that the data do not reach would have the gradient of a
    penalty alone, zero but for rounding, which Adam divides by its own size: it amplifies what is to be compared.
    """
    g = torch.Generator().manual_seed(10 * seed + number)
    x = torch.randn(90, 4, generator=g)
    return x, (x @ torch.randn(4, 2 + number, generator=g)).argmax(1)


def learn_together(learners: Sequence[Any], tasks: Sequence[Task]) -> int:
    """Returns how many steps were taken."""
    return sum(len(taken) for taken in together([one.learn(*own) for one, own in zip(learners, tasks, strict=True)]))


def close(found: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float) -> None:
    """Each tensor to the tolerance, as a part of its largest element; random streams and indices are the same."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if value.is_floating_point() and value.numel():
            scale = max(float(value.abs().max()), 1e-3)
            torch.testing.assert_close(
                found[name], value, rtol=0, atol=tolerance * scale, msg=lambda m, n=name: f"{n}: {m}"
            )
        else:
            assert torch.equal(found[name], value), name


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", NAMES)
def test_two_tasks_in_double_precision(name, device):
    alone, group = ([make(name, seed, device=device) for seed in SEEDS] for _ in range(2))
    for number in range(2):
        tasks = [task(number, seed) for seed in SEEDS]
        steps = []
        alone[0].fit(*tasks[0], on_step=steps.append)
        for learner, own in zip(alone[1:], tasks[1:], strict=True):
            learner.fit(*own)
        assert learn_together(group, tasks) == len(steps)
    for one, other, seed in zip(alone, group, SEEDS, strict=True):
        close(other.state_dict()["tensors"], one.state_dict()["tensors"], DOUBLE.get(name, 1e-10))
        for number in range(2):
            x = task(number, seed)[0]
            found, expected = other.predict(x, number).probs, one.predict(x, number).probs
            torch.testing.assert_close(found, expected, rtol=0, atol=DOUBLE.get(name, 1e-10))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in ("agem", "sfsvi"))) for name in NAMES]
)
def test_one_task_in_single_precision(name):
    def learners() -> list[Any]:
        nets = [MLP(4, (16, 8), last="relu", seed=seed) for seed in SEEDS]
        own = {"points": 90} if name == "gdumb" else {}  # it learns from these alone: with few the gradient vanishes
        return [make(name, seed, net, steps=200, **own) for seed, net in zip(SEEDS, nets, strict=True)]

    alone, group = learners(), learners()
    tasks = [task(1, seed) for seed in SEEDS]
    for learner, own in zip(alone, tasks, strict=True):
        learner.fit(*own)
    learn_together(group, tasks)
    for one, other in zip(alone, group, strict=True):
        close(other.state_dict()["tensors"], one.state_dict()["tensors"], 1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_programs_of_seeds_stand_in_one_block(name):
    """All but those of learning on all data, which are too large for that, and those of convolutions."""
    learners = [make(name, seed, steps=2, compress_steps=2) for seed in SEEDS]
    for number in range(2):
        tasks = [task(number, seed) for seed in SEEDS]
        works = [one.learn(*own) for one, own in zip(learners, tasks, strict=True)]
        assert can_stack([next(work) for work in works]) == (name != "joint")
        learn_together(learners, tasks)


@pytest.mark.parametrize("name", NAMES)
def test_networks_of_equal_shape_that_are_not_the_same_function_do_not(name):
    other = MLP(4, (16, 8), last="linear", seed=3).double()
    assert not can_stack([next(one.learn(*task(0, 0))) for one in (make(name, 0), make(name, 0, other))])


@pytest.mark.parametrize("name", NAMES)
def test_what_a_network_holds_fixed_is_of_each_seed(name):
    def learners() -> list[Any]:
        nets = [MLP(4, (16, 8), last="relu", seed=seed).double() for seed in SEEDS]
        for net in nets:
            net.layers[1].weight.requires_grad_(False)
        return [make(name, seed, net, steps=5, compress_steps=5) for seed, net in zip(SEEDS, nets, strict=True)]

    alone, group = learners(), learners()
    for number in range(2):
        tasks = [task(number, seed) for seed in SEEDS]
        for learner, own in zip(alone, tasks, strict=True):
            learner.fit(*own)
        learn_together(group, tasks)
    for one, other in zip(alone, group, strict=True):
        close(other.state_dict()["tensors"], one.state_dict()["tensors"], LARGE.get(name, 1e-10))


@pytest.mark.parametrize("name", NAMES)
def test_convolutions_are_computed_side_by_side_and_bit_for_bit(name):
    def learners() -> list[Any]:
        changes = {"steps": 6, "compress_steps": 5, "adapt_steps": 3, "search_steps": 3}
        return [make(name, seed, ConvNet(2, filters=(4, 3), seed=seed), **changes) for seed in SEEDS]

    alone, group = learners(), learners()
    for number in range(2):
        tasks = [(x.reshape(-1, 2, 2), y) for x, y in (task(number, seed) for seed in SEEDS)]
        for learner, own in zip(alone, tasks, strict=True):
            learner.fit(*own)
        learn_together(group, tasks)
    for one, other in zip(alone, group, strict=True):
        assert same_tensors(one.state_dict()["tensors"], other.state_dict()["tensors"])


@pytest.mark.parametrize("at", [1, 37, 60, 72])
@pytest.mark.parametrize("name", NAMES)
def test_a_resumed_group_is_the_whole_one_bit_for_bit(name, at):
    """States saved after so many steps of the second task, loaded into fresh learners that go on together."""
    whole, resumed = ([make(name, seed) for seed in SEEDS] for _ in range(2))
    first, second = ([task(number, seed) for seed in SEEDS] for number in range(2))
    learn_together(whole, first)
    states: list[Any] = []
    works = [one.learn(*own) for one, own in zip(whole, second, strict=True)]
    for step, _ in enumerate(together(works), 1):
        if step == at:
            states = [one.state_dict() for one in whole]
    if not states:
        assert at > 60, "every method has these steps"
        return
    for one, state in zip(resumed, states, strict=True):
        one.load_state_dict(state)
    assert learn_together(resumed, second) == step - at
    for one, other, (x, _) in zip(whole, resumed, first, strict=True):
        assert same_tensors(one.state_dict()["tensors"], other.state_dict()["tensors"])
        assert one.state_dict()["meta"] == other.state_dict()["meta"]
        assert torch.equal(one.predict(x, 0).probs, other.predict(x, 0).probs)
