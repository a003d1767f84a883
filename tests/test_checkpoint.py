"""Saving, loading, resuming: bit for bit, without pickle, and only what fits."""

import json
import os
import pickle

import pytest
import torch
from safetensors.torch import save_file

import frcl
from frcl import FRCL, MLP, BoundaryDetector, CheckpointError
from frcl.files import load_state, save_state, write_atomically
from streams import blobs, same_tensors, small_learner

HELD = {
    "current_inputs": 1.0, "memory_targets": 1.0, "curvature": 1.0, "prediction": "corrected", "fisher_examples": 20,
}  # fmt: skip
KINDS = [
    {},
    {"inference": "function", "points": 8},
    {"inference": "function", "points": 8, "learn_inputs": True},
    {"past_tasks_per_step": 1},
    HELD,
    {**HELD, "past_tasks_per_step": 1, "train_heads": False, "prediction": "head"},
    {**HELD, "inference": "function", "points": 8},
    {**HELD, "detector": BoundaryDetector(5.0, window=3, warm_up=2, minimum_time=2)},
    {"detector": BoundaryDetector(5.0, window=3, warm_up=2, minimum_time=2), "initial_std": 1.0},
]


def net(seed: int = 99) -> MLP:
    return MLP(4, (16, 8), seed=seed)


def play(learner: FRCL, start: int, stop: int) -> None:
    """Two finished tasks, then a stream: actions numbered so that any of them can be the last before a save."""
    x, y = blobs((0, 1, 2), 600, 5)
    for action in range(start, stop):
        if action == 0:
            learner.fit(*blobs((0, 1), 90, 1))
        elif action == 1:
            learner.fit(*blobs((3, 4, 5), 90, 2))
        elif action == 2:
            learner.start_task(labels=(0, 1, 2), size=500)
        elif action == 12:
            learner.end_task()
        else:
            rows = slice(20 * action, 20 * action + 20)
            learner.observe(x[rows], y[rows])


@pytest.mark.parametrize("options", KINDS)
@pytest.mark.parametrize("stop", [1, 3, 5, 9, 13])
def test_resume_is_bit_for_bit(options, stop, tmp_path):
    whole = small_learner(steps=8, **options)
    play(whole, 0, 16)
    first = small_learner(steps=8, **options)
    play(first, 0, stop)
    first.save(tmp_path / "model.frcl")
    second = frcl.load(tmp_path / "model.frcl", net())
    third = small_learner(steps=8, **options)
    third.load_state_dict(first.state_dict())
    for resumed in (second, third):
        play(resumed, stop, 16)
        assert same_tensors(whole.state_dict()["tensors"], resumed.state_dict()["tensors"])
        assert whole.state_dict()["meta"] == resumed.state_dict()["meta"]


@pytest.mark.parametrize("share", [0.0, 0.8])
def test_resume_in_the_middle_of_fit(share):
    x, y = blobs((0, 1, 2), 90, 1)
    states = []
    whole = small_learner(steps=25, lr_decay=share)
    whole.fit(*blobs((0, 1), 60, 2))
    whole.fit(x, y, on_step=lambda log: states.append(whole.state_dict()) if log.step == 10 else None)
    resumed = small_learner(steps=25, lr_decay=share)
    resumed.load_state_dict(states[0])
    resumed.fit(x, y)
    assert same_tensors(whole.state_dict()["tensors"], resumed.state_dict()["tensors"])


def test_predictions_survive(tmp_path):
    learner = small_learner(steps=10)
    x, y = blobs((0, 1, 2), 90, 1)
    learner.fit(x, y)
    learner.fit(x, torch.rand(90, generator=torch.Generator().manual_seed(0)))
    learner.fit(x.numpy(), ["a", "b", "c"] * 30)
    learner.save(tmp_path / "model.frcl")
    loaded = frcl.load(tmp_path / "model.frcl", net())
    for task in range(3):
        before, after = learner.predict(x, task), loaded.predict(x, task)
        assert torch.equal(before.mean, after.mean)
        assert torch.equal(before.variance, after.variance)
        assert before.classes == after.classes
    assert loaded.options == learner.options


def test_a_state_is_a_copy():
    learner = small_learner(steps=5)
    x, y = blobs((0, 1), 60, 1)
    learner.observe(x, y)
    state = learner.state_dict()
    kept = {name: value.clone() for name, value in state["tensors"].items()}
    learner.observe(x, y)
    assert same_tensors(kept, state["tensors"])
    other = small_learner(steps=5)
    other.load_state_dict(state)
    other.observe(x, y)
    assert same_tensors(kept, state["tensors"])


def test_files_hold_no_code_and_no_past_data(tmp_path):
    learner = small_learner(steps=5)
    x, y = blobs((0, 1), 600, 1)
    learner.fit(x, y)
    path = tmp_path / "model.frcl"
    learner.save(path)
    with pytest.raises((pickle.UnpicklingError, ValueError)):
        pickle.loads(path.read_bytes())  # noqa: S301
    meta, tensors = load_state(path)
    json.dumps(meta)
    assert sum(t.numel() for n, t in tensors.items() if n.startswith("past/")) == 6 * 4 + 6 + 6 * 6
    assert not any(name.startswith("current/") for name in tensors)


@pytest.fixture
def saved(tmp_path):
    learner = small_learner(steps=5)
    learner.fit(*blobs((0, 1), 60, 1))
    path = tmp_path / "model.frcl"
    learner.save(path)
    return path


def test_damaged_and_foreign_files_are_refused(saved, tmp_path):
    content = saved.read_bytes()
    flipped = bytearray(content)
    flipped[-40] ^= 1
    cases = {
        "truncated": content[: len(content) // 2],
        "flipped": bytes(flipped),
        "empty": b"",
        "text": b"hello",
        "pickle": pickle.dumps({"a": 1}),
        "huge header": (2**62).to_bytes(8, "little") + b"{}",
    }
    for name, bad in cases.items():
        path = tmp_path / name
        path.write_bytes(bad)
        with pytest.raises(CheckpointError, match=name if name in ("truncated",) else "damaged|not a checkpoint"):
            frcl.load(path, net())
    with pytest.raises(CheckpointError, match="no such checkpoint"):
        frcl.load(tmp_path / "absent.frcl", net())
    foreign = tmp_path / "foreign.safetensors"
    save_file({"a": torch.zeros(2)}, foreign)
    with pytest.raises(CheckpointError, match="not written by frcl"):
        frcl.load(foreign, net())
    meta, tensors = load_state(saved)
    del meta["past"]
    save_state(saved, meta, tensors)
    with pytest.raises(CheckpointError, match="incomplete"):
        frcl.load(saved, net())


def test_the_checkpoint_of_a_run_is_told_apart(tmp_path):
    save_state(tmp_path / "checkpoint.frcl", {"progress": {}, "learner": None}, {})
    with pytest.raises(CheckpointError, match="checkpoint of a run, not a saved learner"):
        frcl.load(tmp_path / "checkpoint.frcl", net())


def test_a_newer_format_is_refused(saved, monkeypatch):
    monkeypatch.setattr("frcl.files.VERSION", 2)
    with pytest.raises(CheckpointError, match="format version 1; this frcl reads version 2"):
        frcl.load(saved, net())


def test_a_network_of_another_shape_is_refused(saved):
    for other in (MLP(4, (16, 9)), MLP(4, (16, 8, 3)), MLP(4, (16, 8)).double()):
        with pytest.raises(CheckpointError, match="does not fit this network: 'layers"):
            frcl.load(saved, other)


def test_a_state_that_does_not_fit_leaves_the_learner_as_it_was(saved):
    meta, tensors = load_state(saved)
    del meta["network"]
    learner = small_learner(steps=5)
    learner.fit(*blobs((0, 1), 60, 7))
    before = learner.state_dict()
    broken = {name: value for name, value in tensors.items() if not name.endswith("factor")}
    for state in ({"meta": meta, "tensors": broken}, {}, {"meta": {}, "tensors": {}}):
        with pytest.raises(CheckpointError):
            learner.load_state_dict(state)
    with pytest.raises(CheckpointError, match="other options: steps"):
        small_learner(steps=6).load_state_dict({"meta": meta, "tensors": tensors})
    with pytest.raises(CheckpointError, match="other detector"):
        small_learner(steps=5, detector=BoundaryDetector()).load_state_dict({"meta": meta, "tensors": tensors})
    assert same_tensors(before["tensors"], learner.state_dict()["tensors"])
    assert before["meta"] == learner.state_dict()["meta"]


def test_frozen_parameters_stay_frozen(tmp_path):
    frozen = net()
    frozen.layers[1].weight.requires_grad_(False)
    learner = FRCL(frozen, points=4, steps=3)
    x, y = blobs((0, 1), 60, 1)
    learner.observe(x, y)
    learner.save(tmp_path / "model.frcl")
    loaded = frcl.load(tmp_path / "model.frcl", net())
    assert not loaded.net.layers[1].weight.requires_grad
    for one in (learner, loaded):
        one.observe(x, y)
    assert same_tensors(learner.state_dict()["tensors"], loaded.state_dict()["tensors"])


def test_states_of_the_wrong_shape_are_refused():
    learner = small_learner(steps=3)
    x, y = blobs((0, 1), 60, 1)
    learner.fit(x, y)
    learner.observe(x, y)
    for name, change in [
        ("past/0/belief/mean", lambda t: t[:, :2]),
        ("past/0/belief/factor", lambda t: t[:, :2]),
        ("past/0/points/values", lambda t: t[:2]),
        ("streams/batches", lambda t: t[:10]),
        ("current/posterior/mean", lambda t: t[:, :3]),
    ]:
        state = learner.state_dict()
        state["tensors"][name] = change(state["tensors"][name])
        other = small_learner(steps=3)
        before = other.state_dict()
        with pytest.raises(CheckpointError):
            other.load_state_dict(state)
        assert same_tensors(before["tensors"], other.state_dict()["tensors"])


def test_a_fit_is_taken_up_only_as_it_began():
    x, y = blobs((0, 1), 90, 1)
    states = []
    whole = small_learner(steps=12)
    whole.fit(x, y, on_step=lambda log: states.append(whole.state_dict()) if log.step == 5 else None)
    for change in ({"y": 1 - y}, {"size": 7}, {"likelihood": "softmax"}):
        resumed = small_learner(steps=12)
        resumed.load_state_dict(states[0])
        with pytest.raises(frcl.TaskError, match="exactly as it began"):
            resumed.fit(**{"x": x, "y": y, **change})
    torch.set_num_threads(2)
    try:
        resumed.fit(x, y)
    finally:
        torch.set_num_threads(1)


def test_writing_is_all_or_nothing(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def fail(descriptor):
        raise OSError("disk full")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    with pytest.raises(CheckpointError, match="does not exist; create it first"):
        save_state(tmp_path / "no" / "file", {}, {})
    for folder in (tmp_path, ""):
        with pytest.raises(CheckpointError, match="it is a folder; name a file in it"):
            save_state(folder, {}, {})


def test_files_have_the_mode_that_the_user_wants(tmp_path):
    before = os.umask(0o027)
    try:
        write_atomically(tmp_path / "file", b"content")
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o640


def test_equal_states_are_equal_files(tmp_path):
    """Byte for byte, in whatever order their parts come; also with a name outside of ASCII."""
    parts = {"w": torch.randn(3, 2), "é": torch.arange(5), "none": torch.zeros(0)}
    found = set()
    for number in range(12):
        order = reversed(parts.items()) if number % 2 else parts.items()
        save_state(tmp_path / "state", {"a": 1, "b": 2} if number % 2 else {"b": 2, "a": 1}, dict(order))
        found.add((tmp_path / "state").read_bytes())
    assert len(found) == 1
    meta, tensors = load_state(tmp_path / "state")
    assert meta == {"a": 1, "b": 2}
    assert same_tensors(tensors, parts)
