"""Forgetting a task on purpose: nothing of it is left in memory or in the file; the others are as they were."""

import gc

import pytest
import torch

import frcl
from frcl import MLP, CheckpointError, ExactGP, TaskError, codec
from frcl.exact.linear import POWERS
from frcl.files import save_state
from frcl.methods import METHODS
from streams import same_tensors
from test_methods_contract import SMALL, STORES_DATA, make

NAMES = [name for name in METHODS if name != "exact-gp"]
STORES = STORES_DATA
LABELS = [(10, 11), (777_001, 777_002, 777_003), (20, 21)]


def task(number, n=60):
    """Blobs with random centres, whose inputs are different numbers in every task."""
    generator = torch.Generator().manual_seed(number)
    labels = torch.tensor(LABELS[number])
    y = labels[torch.arange(n) % len(labels)]
    centres = 3 * torch.randn(len(labels), 4, generator=generator)
    return centres[torch.arange(n) % len(labels)] + torch.randn(n, 4, generator=generator), y


TASKS = [task(0), None, task(2)]  # the one that is forgotten is not kept alive here
X = TASKS[0][0]


def traces(learner):
    """The bytes of everything that belongs to task 1 alone: its examples, and what is kept of it."""
    found = [row.numpy().tobytes() for row in task(1)[0]]
    own = [codec.pack(learner._state.past[1])]
    own += [codec.pack({"a": value[1]}) for one in learner.regularisers for value in one.state().values()
            if isinstance(value, list) and value]  # fmt: skip
    own += [codec.pack({"a": value[1]}) for value in vars(getattr(learner._state, "own", object)).values()
            if isinstance(value, list) and value]  # fmt: skip
    tensors = [tensor for one in own for tensor in one["tensors"].values()]
    return found + [tensor.contiguous().numpy().tobytes() for tensor in tensors if tensor.numel() > 3]


def saved_bytes(learner, folder):
    state = learner.state_dict()
    save_state(folder / "state", state["meta"], state["tensors"])
    return (folder / "state").read_bytes()


def bytes_in_memory():
    gc.collect()
    tensors = [one for one in gc.get_objects() if type(one) in (torch.Tensor, torch.nn.Parameter) and one.numel()]
    return b"|".join(one.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes() for one in tensors)


def taught(name, numbers=(0, 1, 2), **changes):
    learner = make(name, **changes)
    for number in numbers:
        learner.fit(*task(number))
    return learner


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in ("frcl", "frcl-plus", "ewc", "replay") else pytest.mark.slow)
        for name in NAMES
        if name != "progressive"
    ],
)
def test_nothing_of_the_task_is_left(name, tmp_path):
    earlier = bytes_in_memory()  # tensors of other tests may have some of the same values
    learner = taught(name)
    learner.predict(X)  # caches are filled
    before = [learner.predict(X, task=k).probs for k in (0, 2)]
    found = traces(learner)
    file, memory = saved_bytes(learner, tmp_path), bytes_in_memory()
    assert all(trace in file for trace in found[60:])
    assert any(row in file for row in found[:60]) == (name in STORES)
    assert any(row in memory for row in found[:60]) == (name in STORES)
    assert b"777002" in file
    del memory
    learner.forget(1)
    file, memory = saved_bytes(learner, tmp_path), bytes_in_memory()
    assert not any(trace in file for trace in found)
    assert not any(trace in memory for trace in found if trace not in earlier)
    assert b"777002" not in file
    after = [learner.predict(X, task=k).probs for k in (0, 1)]
    if name not in ("vcl-random", "vcl-kcenter"):  # there the draws of adaptation follow the number of the task
        assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert set(learner.predict(X).classes) == {10, 11, 20, 21}
    twin = make(name)
    twin.load_state_dict(learner.state_dict())
    for one in (learner, twin):
        one.fit(*task(1))
    assert same_tensors(learner.state_dict()["tensors"], twin.state_dict()["tensors"])


@pytest.mark.parametrize("name", NAMES)
def test_a_learner_that_forgets_its_only_task_keeps_nothing(name):
    learner = taught(name, [0])
    learner.forget(0)
    assert learner.memory_bytes() == 0
    fresh = make(name)
    for one, other in zip(learner.regularisers, fresh.regularisers, strict=True):
        assert one.state() == other.state()
    with pytest.raises(TaskError, match="nothing has been learned"):
        learner.predict(X)
    learner.fit(*task(1))
    assert learner.predict(X).probs.shape == (60, 3)


def test_only_the_latest_column_of_a_progressive_network_can_go():
    learner = taught("progressive")
    before = learner.state_dict()
    with pytest.raises(TaskError, match="later columns"):
        learner.forget(1)
    assert same_tensors(before["tensors"], learner.state_dict()["tensors"])
    learner.forget(2)
    fewer = taught("progressive", [0, 1])
    assert torch.equal(learner.predict(X, task=1).probs, fewer.predict(X, task=1).probs)


def test_what_cannot_be_forgotten_is_said():
    learner = taught("frcl", [0, 1])
    for wrong in (2, -1, "a"):
        with pytest.raises(TaskError, match="task"):
            learner.forget(wrong)
    learner.observe(*task(2))
    with pytest.raises(TaskError, match="task 2 is still open"):
        learner.forget(0)
    learner.end_task()
    learner.forget(0)
    assert len(learner.tasks) == 2


# -- exactly ------------------------------------------------------------------------------------------------------


def frozen():
    return MLP(4, (16, 8), seed=3).requires_grad_(False)


@pytest.mark.parametrize("per_task", [False, True])
@pytest.mark.parametrize("network", [False, True], ids=["random features", "frozen network"])
@pytest.mark.parametrize("gone", [0, 1, 2])
def test_an_exact_gp_is_as_if_it_had_never_learned_the_task(gone, network, per_task):
    """Bit for bit: its state, its file and its predictions."""

    def learned(numbers):
        learner = ExactGP(frozen() if network else 30, per_task=per_task)
        for number in numbers:
            learner.fit(*task(number))
        return learner

    learner, never = learned(range(3)), learned(k for k in range(3) if k != gone)
    learner.forget(gone, *(() if per_task else task(gone)))
    one, other = learner.state_dict(), never.state_dict()
    assert one["meta"] == other["meta"]
    assert same_tensors(one["tensors"], other["tensors"])
    a, b = learner.predict(X), never.predict(X)
    assert a.classes == b.classes
    for name in ("mean", "variance", "probs", "novelty", "task_probs"):
        assert torch.equal(getattr(a, name), getattr(b, name))


@pytest.mark.parametrize("per_task", [False, True])
@pytest.mark.parametrize("gone", [0, 1, 2])
def test_what_was_measured_on_a_task_is_forgotten_with_it(gone, per_task):
    """The losses by which the power is chosen: those of later tasks stay as measured, all else is bit for bit."""
    learner, never = (ExactGP(30, per_task=per_task, held_out=0.3) for _ in range(2))
    for number in range(3):
        learner.fit(*task(number))
        if number != gone:
            never.fit(*task(number))
    left = [one for number, one in enumerate(learner._state.losses) if number != gone]
    learner.forget(gone, *(() if per_task else task(gone)))
    assert learner._state.losses == left
    total = [sum(each) for each in zip(*left, strict=True)]
    assert learner._model.power == POWERS[total.index(min(total))]
    assert left[:gone] == never._state.losses[:gone]
    assert same_tensors(learner.state_dict()["tensors"], never.state_dict()["tensors"])
    if gone == 2:
        assert learner.state_dict()["meta"] == never.state_dict()["meta"]
        assert torch.equal(learner.predict(X).probs, never.predict(X).probs)
    again = ExactGP(30, per_task=per_task, held_out=0.3)
    again.load_state_dict(learner.state_dict())
    assert torch.equal(again.predict(X).probs, learner.predict(X).probs)
    state = learner.state_dict()
    state["meta"]["state"]["losses"] = left[:1]
    with pytest.raises(CheckpointError, match="losses of powers"):
        again.load_state_dict(state)


def test_an_exact_regression_forgets_up_to_rounding():
    tasks = [(x, torch.stack([x.sin().sum(1), x[:, 0]], 1)) for x in (task(k)[0] for k in range(3))]
    learner, never = ExactGP(30, per_task=True), ExactGP(30)
    for number, (x, y) in enumerate(tasks):
        learner.fit(x, y)
        if number != 1:
            never.fit(x, y)
    learner.forget(1)
    torch.testing.assert_close(learner.predict(X).mean, never.predict(X).mean, rtol=1e-5, atol=1e-6)


def test_a_frozen_network_knows_nothing_of_the_task():
    """The summaries of the other tasks are those that would have been learned without it, of equal seeds."""
    learner = frcl.FRCL(frozen(), **{k: SMALL[k] for k in ("steps", "batch_size", "points", "search_steps")})
    before = learner.net.state_dict()
    for number in (0, 1, 2):
        learner.fit(*task(number))
    kept = codec.pack([learner.tasks[0], learner.tasks[2]])
    learner.forget(1)
    assert same_tensors(kept["tensors"], codec.pack(list(learner.tasks))["tensors"])
    assert same_tensors(before, learner.net.state_dict())


@pytest.mark.parametrize("kind", [frcl.FRCL, frcl.FRCLPlus])
@pytest.mark.parametrize("changes", [{}, {"inference": "function"}, {"task_inference": "exact", "held_out": 0.2}])
def test_with_a_frozen_network_the_last_task_might_never_have_been(kind, changes):
    """Predictions, with the task named and without, are those of a learner that only learned the first task."""
    options = {**{key: SMALL[key] for key in ("steps", "batch_size", "points", "search_steps")}, **changes}
    learner, alone = kind(frozen(), **options), kind(frozen(), **options)
    for one, numbers in ((learner, (0, 1)), (alone, (0,))):
        for number in numbers:
            one.fit(*task(number))
    learner.forget(1, *task(1))
    inputs = torch.cat([X, task(1)[0]])
    for named in (0, None):
        found, expected = learner.predict(inputs, task=named), alone.predict(inputs, task=named)
        assert torch.equal(found.probs, expected.probs)
        if named == 0:
            assert torch.equal(found.mean, expected.mean)
            assert torch.equal(found.variance, expected.variance)
    assert same_tensors(*(codec.pack([one.tasks[0], one._state.task_sums])["tensors"] for one in (learner, alone)))


@pytest.mark.parametrize("inference", ["exact", "both"])
def test_sums_over_all_examples_need_the_data(inference):
    learner, never = taught("frcl", task_inference=inference), taught("frcl", [0, 2], task_inference=inference)
    before = learner.state_dict()
    with pytest.raises(TaskError, match=r"forget\(1, x, y\)"):
        learner.forget(1)
    with pytest.raises(TaskError, match="not exactly"):
        learner.forget(1, *(part[:50] for part in task(1)))
    assert same_tensors(before["tensors"], learner.state_dict()["tensors"])
    learner.forget(1, *task(1))
    assert torch.equal(learner._state.task_sums.gram, never._state.task_sums.gram)
    assert learner.predict(X).task_probs.shape == (60, 2)
    if inference == "exact":
        torch.testing.assert_close(learner.predict(X).task_probs, never.predict(X).task_probs)


def test_an_ensemble_forgets_in_every_member_or_in_none():
    learner = frcl.Ensemble(MLP(4, (8, 8)), 2, points=6, steps=20, search_steps=5, task_inference="exact")
    for number in range(3):
        learner.fit(*task(number))
    with pytest.raises(TaskError, match="give its"):
        learner.forget(1)
    assert len(learner.tasks) == 3
    learner.forget(1, *task(1))
    assert [len(member.tasks) for member in learner.members] == [2, 2]
    assert learner.predict(X).classes == (10, 11, 20, 21)
