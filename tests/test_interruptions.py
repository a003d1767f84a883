"""What an interrupted or failed call leaves behind: nothing, whenever its traceback is freed."""

import gc

import pytest
import torch
from torch import Tensor

import frcl
from frcl import FRCL, MLP, Ensemble, FunctionalKL
from frcl.regularisers.protocol import Regulariser, Step
from streams import blobs, same_tensors

SMALL = {"points": 6, "steps": 20, "batch_size": 16, "search_steps": 10}


class Stopping(Regulariser):
    """Raises once, when a task ends in the learner that it is told to stop."""

    name = "stopping"
    armed: list[object] = []  # noqa: RUF012
    count = 0

    def penalty(self, step: Step, constants: object, draws: object) -> Tensor | None:
        return None

    def end(self, *given: object) -> None:
        if Stopping.armed:
            Stopping.count += 1
            if Stopping.count == Stopping.armed[0]:
                Stopping.armed = []
                raise KeyboardInterrupt


def net() -> MLP:
    return MLP(4, (8, 6), seed=1)


def test_an_ensemble_stopped_while_it_closes_learns_the_same_again():
    """All members go back to where they stood; no late clean-up moves the streams of one of them."""
    task = blobs((0, 1, 2), 60, 1)
    whole, stopped = (Ensemble(net(), members=3, regularisers=[FunctionalKL(), Stopping()], **SMALL) for _ in range(2))
    whole.fit(*task)
    Stopping.armed, Stopping.count = [2], 0
    with pytest.raises(KeyboardInterrupt):
        stopped.fit(*task)
    gc.collect()
    stopped.fit(*task)
    assert same_tensors(whole.state_dict()["tensors"], stopped.state_dict()["tensors"])


def test_a_traceback_that_is_kept_does_no_harm(monkeypatch):
    """Stopped during the selection of points; the exception is kept, and freed two tasks later."""
    tasks = [blobs((0, 1, 2), 60, seed) for seed in range(3)]
    whole, stopped = FRCL(net(), **SMALL), FRCL(net(), **SMALL)
    for task in tasks:
        whole.fit(*task)

    def failing(searches):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("frcl.learners.base.run_searches", failing)
        with pytest.raises(KeyboardInterrupt) as kept:
            stopped.fit(*tasks[0])
    for task in tasks:
        stopped.fit(*task)
    del kept
    gc.collect()
    assert same_tensors(whole.state_dict()["tensors"], stopped.state_dict()["tensors"])


def test_members_stopped_in_a_step_are_free_of_their_block():
    """The exception is freed while the ensemble trains again: its weights must follow the training."""
    task = blobs((0, 1, 2), 60, 1)
    whole, stopped = (Ensemble(net(), members=3, **SMALL) for _ in range(2))
    whole.fit(*task)
    kept = []

    def stop(log):
        if log.step == 7 and not kept:
            kept.append(1)
            raise InterruptedError

    with pytest.raises(InterruptedError) as error:
        stopped.fit(*task, on_step=stop)
    held = [error]
    del error

    def free(log):
        if log.step == 12:
            held.clear()
            gc.collect()

    stopped.fit(*task, on_step=free)
    assert same_tensors(whole.state_dict()["tensors"], stopped.state_dict()["tensors"])


@pytest.mark.parametrize("error", [KeyError, KeyboardInterrupt])
def test_a_minibatch_that_fails_in_any_way_is_undone(error, monkeypatch):
    learner = FRCL(net(), **SMALL)
    x, y = blobs((0, 1, 2), 60, 1)
    learner.fit(x, y)
    before = learner.state_dict()

    def failing(self, *given):
        raise error("stopped")

    with monkeypatch.context() as patch:
        patch.setattr("frcl.engine.train.StreamSteps.step", failing)
        with pytest.raises(error):
            learner.observe(x, y)
    assert same_tensors(before["tensors"], learner.state_dict()["tensors"])
    assert before["meta"] == learner.state_dict()["meta"]


def test_a_regulariser_that_fails_at_the_beginning_leaves_no_open_task():
    class Failing(Stopping):
        name = "failing"

        def constants(self, task: object) -> object:
            raise KeyError("weights")

    learner = FRCL(net(), regularisers=[Failing()], **SMALL)
    with pytest.raises(KeyError):
        learner.fit(*blobs((0, 1, 2), 60, 1))
    assert learner.step == 0
    assert "learning" not in repr(learner)


# -- regularisers of the baselines inside FRCL ------------------------------------------------------------------


def test_replay_takes_minibatches_smaller_than_its_buffer():
    learner = FRCL(net(), regularisers=[frcl.Replay(points=20)], labels=[0, 1, 2], **SMALL)
    x, y = blobs((0, 1, 2), 60, 1)
    for number in range(6):
        learner.observe(x[10 * number : 10 * number + 10], y[10 * number : 10 * number + 10])
    learner.end_task()
    assert [len(kept) for kept in learner.regularisers[0].kept_inputs()] == [20]
    with pytest.raises(frcl.DataError, match="fewer than the 3000 to keep"):
        FRCL(net(), regularisers=[frcl.Replay(points=3000)], **SMALL).observe(x, y)


@pytest.mark.parametrize("regulariser", [frcl.EWC(examples=20), frcl.PathIntegral(), frcl.Curvature(examples=20)])
@pytest.mark.parametrize("frozen", [(), (0,), (1,), (2,), (0, 1, 2)])
def test_weights_may_be_frozen_and_thawed_between_tasks(regulariser, frozen):
    learner = FRCL(net(), regularisers=[regulariser], **SMALL)
    for number in range(4):
        for parameter in learner.net.layers[1].parameters():
            parameter.requires_grad_(number not in frozen)
        learner.fit(*blobs((0, 1, 2), 60, number))
    assert all(bool(p.isfinite().all()) for p in learner.net.parameters())


def test_a_network_without_trained_weights_has_nothing_to_anchor():
    fixed = net()
    for parameter in fixed.parameters():
        parameter.requires_grad_(False)
    learner = FRCL(fixed, regularisers=[frcl.EWC(examples=20), frcl.PathIntegral()], **SMALL)
    for number in range(3):
        learner.fit(*blobs((0, 1, 2), 60, number))
    assert torch.equal(learner.net.layers[1].weight, fixed.layers[1].weight)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: frcl.EWC(fisher="exat"), "fisher of ewc='exat' is unknown; choose one of exact, sampled, empirical"),
        (lambda: frcl.Curvature(examples=0), "examples of curvature must be a whole number of at least 1"),
        (lambda: frcl.Curvature(prior_precision=-1.0), "prior_precision of curvature must be a positive number"),
        (lambda: frcl.Replay(points=0), "points of replay must be a whole number of at least 1"),
        (lambda: frcl.FunctionalKL("much"), "weight of functional-kl must be a number"),
        (lambda: FRCL(net(), regularisers=FunctionalKL()), "regularisers is a list of regularisers"),
        (lambda: FRCL(net(), regularisers=["ewc"]), "regularisers is a list of regularisers"),
        (lambda: FRCL(net(), options={"points": 3}), "options must be of type FRCLOptions"),
        (lambda: FRCL(net(), detector=3), "detector must be of type BoundaryDetector"),
    ],
)
def test_settings_that_make_no_sense_are_refused(make, message):
    with pytest.raises(frcl.OptionError, match=message):
        make()
