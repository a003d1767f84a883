"""FROMP and S-FSVI with one head whose rows are labels: rows, predictions, Σ of shared rows, seeds together, resume."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from frcl import MLP
from frcl import likelihoods as models
from frcl.baselines.common import Finished
from frcl.features import FeatureMap
from frcl.learners.lockstep import together
from frcl.methods import METHODS, make_learner
from frcl.regularisers import MemorablePast
from frcl.regularisers.heads import grown_head, head_rows, one_head, row_tensors
from frcl.regularisers.protocol import Task
from streams import blobs, same_tensors

NAMES = ["fromp", "sfsvi"]
SMALL = {"steps": 20, "batch_size": 16, "points": 6, "context": 5, "predict_samples": 8, "shared_head": True}
SAME = [blobs((0, 1), 60, 1), blobs((0, 1), 60, 2)]
OVERLAPPING = [blobs((0, 1), 60, 1), blobs((1, 5), 60, 2), blobs((5, 0, 7), 60, 3)]


def make(name: str, seed: int = 0, dtype: torch.dtype = torch.float32, **changes):
    options = METHODS[name].options
    given = {key: value for key, value in {**SMALL, **changes}.items() if hasattr(options, key)}
    net = MLP(4, (16, 8), last="relu", seed=1).to(dtype)
    return make_learner(net, replace(options, **given), seed=seed, method=name)


def tasks(*labels: tuple[int, ...]) -> list[models.Softmax]:
    return [models.Softmax(one) for one in labels]


def test_rows_of_labels_and_the_head_that_has_them():
    likelihoods = tasks((0, 1), (1, 5), (0, 5, 7))
    assert head_rows(likelihoods, shared=True) == [[0, 1], [1, 2], [0, 2, 3]]
    assert head_rows(likelihoods, shared=False) == [[0, 1], [2, 3], [4, 5, 6]]
    rows = head_rows(likelihoods, shared=True)
    heads = [torch.full((len(own), 2), float(i)) for i, own in enumerate(rows)]
    assert one_head(heads[:2], rows[:2])[:, 0].tolist() == [0.0, 1.0, 1.0]
    assert grown_head(heads[:2], rows, heads[2])[:, 0].tolist() == [0.0, 1.0, 1.0, 2.0]
    assert grown_head([], rows[:1], heads[0])[:, 0].tolist() == [0.0, 0.0]
    own, past = row_tensors(rows, torch.device("cpu"))
    assert own.tolist() == [0, 2, 3]
    assert past.tolist() == [[0, 1], [1, 2]]


@pytest.mark.parametrize("name", NAMES)
def test_tasks_with_the_same_labels_have_one_function(name):
    """Whatever task is named, and if none is; with heads of their own they have two."""
    learner, apart = make(name), make(name, shared_head=False)
    for one in (learner, apart):
        for x, y in SAME:
            one.fit(x, y)
    x = SAME[0][0]
    first, second, none = (learner.predict(x, task=task).probs for task in (0, 1, None))
    assert torch.equal(first, second)
    torch.testing.assert_close(none, first)
    assert not torch.equal(apart.predict(x, task=0).probs, apart.predict(x, task=1).probs)


def heads(learner, task: int) -> Tensor:
    own = learner._state.own
    return learner._state.past[task].head if not hasattr(own, "contexts") else own.heads[task].mean


@pytest.mark.parametrize("name", NAMES)
def test_labels_in_several_tasks_are_one_row(name):
    learner = make(name)
    for x, y in OVERLAPPING:
        learner.fit(x, y)
    assert torch.equal(heads(learner, 0)[1], heads(learner, 1)[0])  # 1
    assert torch.equal(heads(learner, 1)[1], heads(learner, 2)[1])  # 5
    assert torch.equal(heads(learner, 0)[0], heads(learner, 2)[0])  # 0
    assert set(learner.predict(OVERLAPPING[0][0]).classes) == {0, 1, 5, 7}
    learner.forget(1)
    learner.fit(*blobs((5, 1), 60, 4))
    assert torch.equal(heads(learner, 2)[0], heads(learner, 0)[1])


@pytest.mark.parametrize("name", NAMES)
def test_a_step_moves_all_rows_that_past_tasks_have(name):
    """The regulariser of past tasks trains their rows too, where the open task does not have them."""
    learner, rows = make(name, steps=2, lr=1e-2), {}
    learner.fit(*OVERLAPPING[0])
    before = heads(learner, 0)[0].clone()  # label 0, which the second task does not have
    learner.fit(*OVERLAPPING[1], on_step=lambda log: rows.update({log.step: learner.predict(SAME[0][0], task=0).probs}))
    assert not torch.equal(rows[1], rows[2])
    assert not torch.equal(heads(learner, 0)[0], before)


@pytest.mark.parametrize("name", NAMES)
def test_seeds_together_learn_what_each_learns_alone(name):
    alone, group = ([make(name, seed, torch.float64) for seed in range(2)] for _ in range(2))
    for x, y in OVERLAPPING:
        for one in alone:
            one.fit(x.double(), y)
        list(together([one.learn(x.double(), y) for one in group]))
    for one, other in zip(alone, group, strict=True):
        for task in range(3):
            found, expected = (each.predict(OVERLAPPING[0][0].double(), task=task).probs for each in (other, one))
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_resume_in_the_middle_of_a_task_is_bit_for_bit(name):
    whole, states = make(name), []
    whole.fit(*OVERLAPPING[0])
    whole.fit(*OVERLAPPING[1], on_step=lambda log: states.append(whole.state_dict()) if log.step == 7 else None)
    resumed = make(name)
    resumed.load_state_dict(states[0])
    resumed.fit(*OVERLAPPING[1])
    for one in (whole, resumed):
        one.fit(*OVERLAPPING[2])
    assert same_tensors(whole.state_dict()["tensors"], resumed.state_dict()["tensors"])
    assert whole.state_dict()["meta"] == resumed.state_dict()["meta"]


def test_precisions_of_a_shared_row_are_added():
    regulariser, likelihoods = MemorablePast(), tasks((0, 1), (1, 5))
    regulariser.heads = [torch.tensor([[1.0], [2.0]]), torch.tensor([[10.0], [20.0]])]
    past = [Finished(one, 10, head) for one, head in zip(likelihoods, regulariser.heads, strict=True)]
    task = Task(FeatureMap(MLP(1, (1,))), {}, {}, past, likelihoods[0], 10.0, shared_head=True)
    assert [one[:, 0].tolist() for one in regulariser._head_precisions(task)] == [[1.0, 12.0], [12.0, 20.0]]
    assert regulariser._head_precisions(replace(task, shared_head=False)) is regulariser.heads
