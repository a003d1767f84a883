"""Members in one learner: each learns as it would alone, their predictions are averaged, their state is one."""

import numpy as np
import pytest
import torch
from torch import nn

import frcl
from frcl import FRCL, MLP, Ensemble
from frcl.errors import CheckpointError, LabelError, NetworkError, NumericalError, OptionError, TaskError
from frcl.files import save_state
from streams import blobs, same_tensors

SMALL = {"points": 6, "steps": 30, "batch_size": 16, "lr": 5e-3, "search_steps": 20}
TASKS = [blobs((0, 1), 60, 1), blobs((0, 1, 2), 60, 2)]


def net(seed: int = 1) -> nn.Module:
    return MLP(4, (16, 8), seed=seed).double()


def ensemble(members: int = 3, **options) -> Ensemble:
    return Ensemble(net(), members, **{**SMALL, **options})


def taught(**options) -> Ensemble:
    learner = ensemble(**options)
    for x, y in TASKS:
        learner.fit(x, y)
    return learner


def tensors(learner) -> dict:
    return learner.state_dict()["tensors"]


class Stop(Exception):
    pass


def stop_at(step: int):
    def stop(log):
        if log.step == step:
            raise Stop

    return stop


def interrupted(step: int = 13, **options) -> Ensemble:
    """One task learned, and some steps of the second."""
    learner = ensemble(**options)
    learner.fit(*TASKS[0])
    with pytest.raises(Stop):
        learner.fit(*TASKS[1], on_step=stop_at(step))
    return learner


def regression(seed: int) -> tuple:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(60, 4, generator=g)
    return x, torch.stack([x[:, 0].sin(), x[:, 1] * x[:, 2]], 1) + 0.1 * torch.randn(60, 2, generator=g)


# -- each member is the learner it would be alone --------------------------------------------------------------


def close(member, lone) -> None:
    found, expected = tensors(member), tensors(lone)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("tasks", [TASKS, [regression(1), regression(2)]], ids=["classes", "regression"])
@pytest.mark.parametrize("options", [{}, {"inference": "function"}, {"past_tasks_per_step": 1}], ids=str)
def test_each_member_is_the_learner_of_its_seed(tasks, options):
    learner = ensemble(seed=4, **options)
    for x, y in tasks:
        learner.fit(x, y)
    for i, member in enumerate(learner.members):
        lone = FRCL(net(), seed=4 + i, **SMALL, **options)
        for x, y in tasks:
            lone.fit(x, y)
        close(member, lone)


@pytest.mark.parametrize("widths", [((16, 8), (16, 8)), ((16, 8), (5,))], ids=["equal", "different"])
def test_a_network_for_each_member(widths):
    nets = [MLP(4, wide, seed=i).double() for i, wide in enumerate(widths)]
    learner = Ensemble(nets, members=2, **SMALL)
    lone = [FRCL(one, seed=i, **SMALL) for i, one in enumerate(nets)]
    for x, y in TASKS:
        learner.fit(x, y)
        for one in lone:
            one.fit(x, y)
    for member, one in zip(learner.members, lone, strict=True):
        close(member, one)


def test_labels_device_and_seeds_are_passed_on():
    learner = Ensemble(net(), np.int64(2), 5, labels=["a", "b"], device="cpu", seed=np.int64(3))
    assert [member.options.seed for member in learner.members] == [3, 4]
    assert all(member.labels == ("a", "b") and member.options.points == 5 for member in learner.members)


def test_logs_are_the_means_of_the_members_logs():
    learner, found = ensemble(), []
    lone = [FRCL(net(), seed=i, **SMALL) for i in range(3)]
    for x, y in TASKS:
        each = [[] for _ in lone]
        found.clear()
        learner.fit(x, y, on_step=found.append)
        for one, logs in zip(lone, each, strict=True):
            one.fit(x, y, on_step=logs.append)
        assert len(found) == 30
        for mean, *logs in zip(found, *each, strict=True):
            assert (mean.task, mean.step) == (logs[0].task, logs[0].step)
            for name in ("loss", "log_likelihood", "kl_now", "kl_past"):
                assert getattr(mean, name) == pytest.approx(sum(getattr(log, name) for log in logs) / 3)


# -- prediction -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", [0, 1, None])
def test_predictions_are_those_of_the_mixture(task):
    learner = taught()
    x = 2 * torch.randn(500, 4, generator=torch.Generator().manual_seed(0))
    p, each = learner.predict(x, task), [member.predict(x, task) for member in learner.members]
    torch.testing.assert_close(p.probs, sum(one.probs for one in each) / 3)
    torch.testing.assert_close(p.mean, sum(one.mean for one in each) / 3)
    second_moment = sum(one.variance + one.mean.square() for one in each) / 3
    torch.testing.assert_close(p.variance, second_moment - p.mean.square())
    assert float((p.variance - sum(one.variance for one in each) / 3).max()) > 0
    assert p.labels.tolist() == [p.classes[i] for i in p.probs.argmax(1)]
    assert p.labels.tolist() != each[0].labels.tolist()
    assert p.classes == each[0].classes
    assert p.target_mean is p.target_variance is None


def test_labels_of_any_kind():
    x, y = TASKS[1]
    names = np.array(["cat", "ant", "bee"])[y.numpy()]
    learner = ensemble(steps=150)
    learner.fit(x, names)
    p = learner.predict(x)
    assert p.classes == ("ant", "bee", "cat")
    assert np.mean(p.labels == names) > 0.9


def test_regression_averages_the_noise_too():
    learner = ensemble()
    x, y = regression(1)
    learner.fit(x, y)
    p, each = learner.predict(x), [member.predict(x) for member in learner.members]
    assert p.probs is p.labels is p.classes is None
    second_moment = sum(one.variance + one.mean.square() for one in each) / 3
    torch.testing.assert_close(p.variance, second_moment - p.mean.square())
    noise = sum(one.target_variance - one.variance for one in each) / 3
    torch.testing.assert_close(p.target_variance - p.variance, noise)
    assert float(noise.min()) > 0.01
    torch.testing.assert_close(p.target_mean, p.mean)


@pytest.mark.parametrize(
    "options",
    [{}, {"prior_std": 3.0**0.5}, {"prior_std": 1.0, "points": 20}, {"inference": "function"}],
    ids=str,
)
def test_the_mean_alone_is_that_of_a_prediction(options):
    """For the task being learned and for past ones; with σ_w and more points than features too."""
    learner = interrupted(**options)
    x = TASKS[1][0]
    for one in (learner, *learner.members):
        for task in (0, 1):
            torch.testing.assert_close(one.mean(x, task), one.predict(x, task).mean, rtol=1e-10, atol=1e-12)
        assert not one.mean(x, 0).requires_grad
        with pytest.raises(TaskError, match="unknown task 2"):
            one.mean(x, 2)


def test_what_is_kept():
    learner = taught()
    assert learner.memory_bytes() == sum(member.memory_bytes() for member in learner.members) > 0
    assert [len(summaries) for summaries in learner.tasks] == [3, 3]
    for number, summaries in enumerate(learner.tasks):
        assert all(a is b.tasks[number] for a, b in zip(summaries, learner.members, strict=True))
    assert not torch.equal(learner.tasks[0][0].Z, learner.tasks[0][1].Z)


# -- saving and going on ----------------------------------------------------------------------------------------------


def test_a_saved_ensemble_is_the_same(tmp_path):
    learner, x = taught(seed=2), TASKS[0][0]
    learner.save(tmp_path / "model.frcl")
    again = frcl.load(tmp_path / "model.frcl", net(seed=9))
    assert isinstance(again, Ensemble)
    fresh = ensemble(seed=2)
    fresh.load_state_dict(learner.state_dict())
    for one in (again, fresh):
        assert same_tensors(tensors(one), tensors(learner))
        assert one.state_dict()["meta"] == learner.state_dict()["meta"]
        for task in (0, 1):
            assert torch.equal(one.predict(x, task).probs, learner.predict(x, task).probs)
            assert torch.equal(one.predict(x, task).variance, learner.predict(x, task).variance)


def test_networks_of_different_shape_are_loaded_one_by_one(tmp_path):
    nets = [MLP(4, (8,)).double(), MLP(4, (5,)).double()]
    learner = Ensemble(nets, members=2, **SMALL)
    learner.fit(*TASKS[0])
    learner.save(tmp_path / "model.frcl")
    again = frcl.load(tmp_path / "model.frcl", nets)
    assert same_tensors(tensors(again), tensors(learner))
    with pytest.raises(CheckpointError, match="does not fit this network"):
        frcl.load(tmp_path / "model.frcl", nets[0])


@pytest.mark.parametrize("at", [1, 13, 29])
def test_interrupted_it_goes_on_exactly(at, tmp_path):
    """The same object, one that got the state, and one that was read from a file."""
    whole, stopped = taught(), interrupted(at)
    stopped.save(tmp_path / "half.frcl")
    loaded, copied = frcl.load(tmp_path / "half.frcl", net()), ensemble()
    copied.load_state_dict(stopped.state_dict())
    for learner in (stopped, loaded, copied):
        logs = []
        learner.fit(*TASKS[1], on_step=logs.append)
        assert [log.step for log in logs] == list(range(at + 1, 31))
        assert same_tensors(tensors(learner), tensors(whole))
        assert torch.equal(learner.predict(TASKS[0][0], 0).probs, whole.predict(TASKS[0][0], 0).probs)


def test_a_state_that_does_not_fit_is_refused_and_changes_nothing(tmp_path):
    learner, plain = taught(), FRCL(net(), **SMALL)
    plain.fit(*TASKS[0])
    before = tensors(learner)
    broken = interrupted().state_dict()
    del broken["tensors"]["2/past/0/points/values"]
    for state, complaint in [
        (plain.state_dict(), "not the state of an ensemble"),
        (ensemble(2).state_dict(), "the state is of 2 members; this ensemble has 3"),
        (ensemble(seed=1).state_dict(), "other options: seed"),
        (broken, "incomplete"),
        ({"meta": {"members": 3}, "tensors": {}}, "not the state of an ensemble"),
        ({"meta": {"members": [1, 2, 3]}, "tensors": {}}, "incomplete"),
        ({"meta": {"members": []}}, "not the state of an ensemble"),
        (None, "not the state of an ensemble"),
    ]:
        with pytest.raises(CheckpointError, match=complaint):
            learner.load_state_dict(state)
        assert same_tensors(tensors(learner), before)
    with pytest.raises(CheckpointError, match="incomplete"):
        plain.load_state_dict(learner.state_dict())


@pytest.mark.parametrize("meta", [{"members": []}, {"members": 3}, {"members": [1]}, {"members": [{}]}], ids=str)
def test_a_file_without_an_ensemble_is_refused(meta, tmp_path):
    save_state(tmp_path / "odd.frcl", meta, {"a": torch.zeros(1)})
    with pytest.raises(CheckpointError, match=r"not the state of an ensemble|options cannot be read"):
        frcl.load(tmp_path / "odd.frcl", net())


# -- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"members": 0}, "members must be a whole number of at least 1, not 0"),
        ({"members": True}, "not True"),
        ({"members": 2.0}, "not 2.0"),
        ({"members": 2, "detector": frcl.BoundaryDetector()}, "cannot look for task boundaries"),
        ({"members": 2, "seed": "a"}, "seed must be a whole number"),
        ({"members": 2, "lrr": 1.0}, "did you mean 'lr'"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_options_that_make_no_sense_are_refused(given, complaint):
    with pytest.raises(OptionError, match=complaint):
        Ensemble(net(), **given)


@pytest.mark.parametrize("count", [1, 3])
def test_the_number_of_networks_must_be_that_of_members(count):
    with pytest.raises(OptionError, match=f"there are {count} networks for 2 members"):
        Ensemble([net() for _ in range(count)], members=2)


@pytest.mark.parametrize(
    ("data", "error"),
    [
        ((TASKS[1][0], torch.zeros(60, dtype=torch.long)), LabelError),
        ((TASKS[1][0], 1e200 * torch.randn(60, dtype=torch.float64)), NumericalError),
    ],
    ids=["refused", "not finite"],
)
def test_after_an_error_all_members_are_as_before(data, error):
    learner, twin = ensemble(), ensemble()
    for one in (learner, twin):
        one.fit(*TASKS[0])
    with pytest.raises(error):
        learner.fit(*data)
    assert same_tensors(tensors(learner), tensors(twin))
    for one in (learner, twin):
        one.fit(*TASKS[1])
    assert same_tensors(tensors(learner), tensors(twin))


def test_a_member_that_cannot_begin_keeps_the_others_from_beginning():
    nets = [net(), net()]
    with torch.no_grad():
        next(nets[1].parameters()).fill_(torch.nan)
    learner = Ensemble(nets, members=2, **SMALL)
    with pytest.raises(NetworkError):
        learner.fit(*TASKS[0])
    assert not any("learning" in repr(member) for member in learner.members)
    with pytest.raises(TaskError, match="nothing has been learned"):
        learner.predict(TASKS[0][0])


def test_an_open_task_wants_its_own_data_or_is_dropped():
    learner = interrupted()
    before = tensors(learner)
    with pytest.raises(TaskError, match="still open"):
        learner.fit(*TASKS[0])
    assert same_tensors(tensors(learner), before)
    learner.abandon_task()
    assert len(learner.tasks) == 1
    with pytest.raises(TaskError, match="no task is open"):
        learner.abandon_task()
    learner.fit(*TASKS[1])
    assert len(learner.tasks) == 2
