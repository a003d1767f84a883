"""Interruptions at every point of a call, real signals at random moments, and threads: one step or none."""

import os
import random
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import frcl
from frcl import FRCL, MLP, BoundaryDetector, Ensemble, FRCLPlus
from frcl.engine.program import StepLock, indivisible
from streams import blobs, same_tensors
from test_doctored_states import baseline

PACKAGE = str(Path(frcl.__file__).parent)
TASKS = [blobs((0, 1), 40, 1), blobs((0, 1, 2), 60, 2)]
SMALL = {"points": 4, "steps": 3, "batch_size": 16, "search_steps": 2}


def net() -> MLP:
    return MLP(4, (6,), seed=1)


def state_of(learner) -> tuple[str, dict]:
    state = learner.state_dict()
    return str(state["meta"]), state["tensors"]


def same(a, b) -> bool:
    return a[0] == b[0] and same_tensors(a[1], b[1])


class Interrupting:
    """Raises KeyboardInterrupt at the n-th call of a function of the package from where it begins; counts them."""

    def __init__(self, at: int | None) -> None:
        self.at, self.count = at, 0

    def __enter__(self) -> "Interrupting":
        sys.setprofile(self)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def __call__(self, frame, event, argument) -> None:
        if event != "call" or not frame.f_code.co_filename.startswith(PACKAGE):
            return
        if frame.f_code.co_qualname.startswith(("StepLock", "indivisible")) or frame.f_code.co_name == "<genexpr>":
            return  # where interruptions are put off; and what may be freed, where an exception has nowhere to go
        self.count += 1
        if self.count == self.at:
            sys.setprofile(None)
            raise KeyboardInterrupt


def in_last_step(learner):
    """All steps of the second task are taken; what is left is to close it."""
    learner.fit(*TASKS[0])

    def stop(log) -> None:
        if log.step == SMALL["steps"] and log.task == 1:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        learner.fit(*TASKS[1], on_step=stop)
    return learner


def in_stream(learner):
    learner.fit(*TASKS[0])
    learner.start_task(labels=(0, 1, 2))
    for rows in (slice(0, 20), slice(20, 40)):
        learner.observe(TASKS[1][0][rows], TASKS[1][1][rows])
    return learner


def after_one(learner):
    learner.fit(*TASKS[0])
    return learner


PLUS = {**SMALL, "fisher_examples": 8, "held_out": 0.2}
CASES = {
    "frcl closing": (lambda: in_last_step(FRCL(net(), **SMALL)), lambda one: one.fit(*TASKS[1])),
    "frcl-plus closing": (lambda: in_last_step(FRCLPlus(net(), **PLUS)), lambda one: one.fit(*TASKS[1])),
    "ewc closing": (lambda: in_last_step(baseline_of("ewc")), lambda one: one.fit(*TASKS[1])),
    "replay closing": (lambda: in_last_step(baseline_of("replay")), lambda one: one.fit(*TASKS[1])),
    "vcl closing": (lambda: in_last_step(baseline_of("vcl-random")), lambda one: one.fit(*TASKS[1])),
    "ensemble closing": (
        lambda: in_last_step(Ensemble(net(), 2, **SMALL)), lambda one: one.fit(*TASKS[1])),
    "ensemble+ closing": (
        lambda: in_last_step(Ensemble(net(), 2, **{**SMALL, "curvature": 1.0, "fisher_examples": 8})),
        lambda one: one.fit(*TASKS[1])),
    "end_task": (lambda: in_stream(FRCL(net(), **SMALL)), lambda one: one.end_task()),
    "end_task, detector": (
        lambda: in_stream(FRCL(net(), detector=BoundaryDetector(1e9), **SMALL)), lambda one: one.end_task()),
    "first observe": (lambda: after_one(FRCL(net(), **SMALL)), lambda one: one.observe(*TASKS[1])),
    "first observe, plus": (lambda: after_one(FRCLPlus(net(), **PLUS)), lambda one: one.observe(*TASKS[1])),
    "boundary": (
        lambda: in_stream(FRCL(net(), detector=BoundaryDetector(
            -1e9, warm_up=0, minimum_time=0, pause=2), labels=(0, 1, 2), **SMALL)),
        lambda one: one.observe(TASKS[1][0][40:] * 5.0, TASKS[1][1][40:])),
}  # fmt: skip


def baseline_of(name: str, steps: int = SMALL["steps"]):
    learner = baseline(name)
    learner.options = replace(learner.options, steps=steps)
    return learner


@pytest.mark.parametrize("case", list(CASES))
def test_an_interruption_at_any_call_changes_nothing(case):
    make, act = CASES[case]
    learner, whole, fresh = make(), make(), make()
    before = state_of(learner)
    with Interrupting(None) as at_first:
        act(fresh)
    for one in (learner, whole):  # what it caches of past tasks is there from now on
        with pytest.raises(KeyboardInterrupt), Interrupting(at_first.count):
            act(one)
        assert same(state_of(one), before)
    with Interrupting(None) as counted:
        act(whole)
    after = state_of(whole)
    assert not same(before, after)
    points = list(range(1, counted.count + 1))
    stride = max(1, len(points) // 150)
    first = random.Random(3).randrange(stride)
    for at in [*points[first::stride], *points[-5:]]:
        with pytest.raises(KeyboardInterrupt), Interrupting(at):
            act(learner)
        assert same(state_of(learner), before), f"call {at} of {counted.count}"
    act(learner)
    assert same(state_of(learner), after)


# -- signals ----------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def python_handles_ctrl_c():
    """A shell starts background processes with SIGINT ignored, in which no signal would arrive."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.slow
@pytest.mark.parametrize("make", [
    lambda: FRCL(MLP(4, (8, 6), seed=1), **{**SMALL, "steps": 400}),
    lambda: Ensemble(MLP(4, (8, 6), seed=1), 2, **{**SMALL, "steps": 400}),
])  # fmt: skip
def test_signals_at_random_moments_cost_nothing(make):
    """Ctrl-C every few milliseconds; each time fit() is called again, and the result has the same bits."""
    whole, stopped = make(), make()
    for task in TASKS:
        whole.fit(*task)
    moments, interrupted = random.Random(5), 0
    for task in TASKS:
        while True:
            timer = threading.Timer(moments.uniform(0.002, 0.05), os.kill, (os.getpid(), signal.SIGINT))
            try:
                timer.start()
                stopped.fit(*task)
                timer.cancel()
                timer.join()
                time.sleep(0.001)  # a signal sent meanwhile
                break
            except KeyboardInterrupt:
                interrupted += 1
                timer.join()
                if stopped_after(stopped, task):
                    break
    assert interrupted > 5
    assert same(state_of(whole), state_of(stopped))


def stopped_after(learner, task) -> bool:
    """Whether the signal came after fit() had returned."""
    members = getattr(learner, "members", [learner])
    return all(len(one.tasks) == (1 if task is TASKS[0] else 2) for one in members)


def test_the_second_signal_does_not_wait():
    done = []

    def press_twice() -> None:
        for name in ("first", "second"):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)
            done.append(name)

    with pytest.raises(KeyboardInterrupt), indivisible():
        press_twice()
    assert done == ["first"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_signal_is_raised_at_the_end_by_the_handler_in_force():
    seen, before = [], signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, lambda *_: seen.append("told"))
    try:
        with indivisible():
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)
            assert not seen
        assert seen == ["told"]
    finally:
        signal.signal(signal.SIGINT, before)


# -- threads ----------------------------------------------------------------------------------------------------------


def test_a_lock_is_handed_to_the_one_who_waits():
    lock, got, stop = StepLock(), [], threading.Event()

    def loop() -> None:
        while not stop.is_set():
            with lock, lock:
                time.sleep(0.0005)

    thread = threading.Thread(target=loop)
    thread.start()
    begin = time.monotonic()
    for _ in range(50):
        with lock:
            got.append(1)
    stop.set()
    thread.join()
    assert time.monotonic() - begin < 5.0


@pytest.mark.slow
@pytest.mark.parametrize("make", [
    lambda: FRCL(MLP(4, (8, 6), seed=1), **{**SMALL, "steps": 150}),
    lambda: Ensemble(MLP(4, (8, 6), seed=1), 2, **{**SMALL, "steps": 150}),
    lambda: baseline_of("ewc", 150),
])  # fmt: skip
def test_predictions_and_states_belong_to_one_step(make):
    """One thread learns, others predict and save: each state is that of a step, and learning is not disturbed."""
    x = TASKS[0][0]
    whole, learner = make(), make()
    whole.fit(*TASKS[0])
    steps: dict[int, tuple] = {}

    answers = {}

    def noted(log) -> None:
        steps[log.step] = state_of(whole)
        answers[log.step] = whole.predict(x, 0).mean

    whole.fit(*TASKS[1], on_step=noted)
    learner.fit(*TASKS[0])
    done, found, given, failed = threading.Event(), [], [], []

    def saving() -> None:
        try:
            while not done.is_set():
                found.append(learner.state_dict())
                given.append(learner.predict(x, 0).mean)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=saving)
    thread.start()
    learner.fit(*TASKS[1])
    done.set()
    thread.join()
    assert not failed
    assert same(state_of(whole), state_of(learner))
    middle = 0
    for state in found:
        members = state["meta"].get("members", [state["meta"]])
        current = members[0]["current"]
        if current is None:
            continue
        count = current["adam"]["steps"] if "adam" in current else members[0]["adam"]["steps"]
        if count:
            assert same((str(state["meta"]), state["tensors"]), steps[count])
            middle += 1
    assert middle > 3
    ours = [*answers.values(), whole.predict(x, 0).mean]
    start = make()
    start.fit(*TASKS[0])
    ours.append(start.predict(x, 0).mean)
    for one in given:
        assert any(torch.equal(one, other) for other in ours)
