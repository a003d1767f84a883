"""Files with a correct checksum and odd content: a CheckpointError that says what, or a learner equal to the file."""

import contextlib
import copy
import json
import random
from dataclasses import fields, replace

import pytest
import torch
from torch import Tensor

import frcl
from frcl import FRCL, MLP, BoundaryDetector, CheckpointError, FrclError, FRCLPlus
from frcl.files import load_state, save_state
from frcl.methods import METHODS, make_learner
from streams import blobs, same_tensors
from test_poisoned_gradients import SMALL

DEEP: object = 0
for _ in range(500):
    DEEP = [DEEP]
ODD = (
    None, True, False, 0, 1, -1, 7, 10**19, 10**400, -0.5, 1e308, float("nan"), float("inf"), "", "a", "\u0000", [],
    [1], {}, {"tensor": "absent"}, {"tensor": 3}, DEEP,
)  # fmt: skip
FIT = {"points": 6, "steps": 4, "batch_size": 16, "search_steps": 3}


class Stop(Exception):
    pass


def stop(log) -> None:
    if log.step == 3:
        raise Stop


def net() -> MLP:
    return MLP(4, (8, 6), seed=1)


def in_fit(learner):
    learner.fit(*blobs((0, 1), 40, 1))
    with pytest.raises(Stop):
        learner.fit(*blobs((0, 1, 2), 60, 2), on_step=stop)
    return learner


def in_stream(learner):
    learner.fit(*blobs((0, 1), 40, 1))
    x, y = blobs((0, 1, 2), 60, 2)
    learner.start_task(labels=(0, 1, 2), size=60)
    for rows in (slice(0, 20), slice(20, 40), slice(40, 60)):
        learner.observe(x[rows], y[rows])
    return learner


def declared(learner):
    learner.start_task(labels=("a", "b"), size=60)
    return learner


def baseline(name: str):
    options = METHODS[name].options
    given = {key: value for key, value in SMALL.items() if key in {one.name for one in fields(options)}}
    return make_learner(net(), replace(options, **given), seed=0, method=name)


MAKERS = {
    "fit": lambda: in_fit(FRCL(net(), **FIT)),
    "declared": lambda: declared(FRCL(net(), **FIT)),
    "function space": lambda: in_fit(FRCL(net(), inference="function", learn_inputs=True, **FIT)),
    "stream": lambda: in_stream(
        FRCL(net(), detector=BoundaryDetector(50.0, window=2, rescore=True), window=50, **FIT)
    ),
    "plain detector": lambda: in_stream(FRCL(net(), detector=BoundaryDetector(50.0, window=2), window=50, **FIT)),
    "plus": lambda: in_fit(FRCLPlus(net(), **{**FIT, "fisher_examples": 10, "held_out": 0.2})),
    **{name: lambda name=name: in_fit(baseline(name)) for name in METHODS if not name.startswith(("frcl", "exact-gp"))},
}  # fmt: skip
WITHOUT_OPTIONS = ("settings", "options")  # checked where they are made


def places(tree, path=()):
    """The path of every value."""
    if path:
        yield path
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        if not path and key in WITHOUT_OPTIONS:
            continue
        yield from places(value, (*path, key))


def doctored_meta(meta):
    for path in places(meta):
        for odd in ODD:
            changed = copy.deepcopy(meta)
            inside = changed
            for key in path[:-1]:
                inside = inside[key]
            inside[path[-1]] = odd
            yield f"{path} = {str(odd)[:20]}", changed


def doctored_tensors(tensors):
    for name, value in tensors.items():
        odd: list[Tensor] = [value[:-1] if value.ndim else value.expand(2), value[None], value.new_zeros(0)]
        if value.is_floating_point():
            odd += [value / 0.0, value.double() if value.dtype == torch.float32 else value.float(), value.long()]
            odd += [-value, -value.abs() - 1.0, torch.zeros_like(value)]
        else:
            odd += [value.float(), torch.full_like(value, -1 if value.dtype == torch.int64 else 255), value * 0 + 99]
        for i, one in enumerate(odd):
            yield f"{name} {i}", {**tensors, name: one.contiguous()}
        yield f"{name} absent", {key: kept for key, kept in tensors.items() if key != name}
    yield "extra", {**tensors, "extra": torch.zeros(2)}


def judged(learner, meta, tensors, before) -> bool:
    """Whether the state was loaded; then the learner is equal to it and predicts. Else it is as it was."""
    try:
        learner.load_state_dict({"meta": meta, "tensors": tensors})
    except CheckpointError:
        now = learner.state_dict()
        assert json.dumps(now["meta"]) == before[0]
        assert same_tensors(now["tensors"], before[1])
        return False
    now = learner.state_dict()
    assert json.loads(json.dumps(now["meta"])) == json.loads(json.dumps(meta))
    assert same_tensors(now["tensors"], tensors)
    count = len(learner._state.past) + (learner._state.current is not None)
    for task in range(count):
        with contextlib.suppress(FrclError):
            assert learner.predict(torch.ones(3, 4), task).mean.isfinite().all()
    return True


@pytest.mark.parametrize("name", list(MAKERS))
def test_odd_values_are_refused_or_kept(name):
    check_odd_values(name, 150)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(MAKERS))
def test_all_odd_values_are_refused_or_kept(name):
    check_odd_values(name, None)


def check_odd_values(name: str, most: int | None) -> None:
    original, other = MAKERS[name](), MAKERS[name]()
    state = original.state_dict()
    meta, tensors = json.loads(json.dumps(state["meta"])), state["tensors"]
    before = json.dumps(other.state_dict()["meta"]), other.state_dict()["tensors"]
    refused, wrong = 0, []
    cases = [(what, one, tensors) for what, one in doctored_meta(meta)]
    cases += [(what, meta, one) for what, one in doctored_tensors(tensors)]
    if most is not None:
        cases = random.Random(7).sample(cases, min(most, len(cases)))
    for what, doctored, values in cases:
        try:
            if judged(other, doctored, values, before):
                other.load_state_dict({"meta": meta, "tensors": tensors})
            else:
                refused += 1
        except Exception as error:
            wrong.append(f"{what}: {error!r}"[:300])
            other.load_state_dict({"meta": meta, "tensors": tensors})
    assert not wrong, "\n".join(wrong[:20])
    assert refused > 0.6 * len(cases)


def test_settings_with_odd_values_are_refused_by_load(tmp_path):
    learner = in_stream(FRCL(net(), detector=BoundaryDetector(50.0), regularisers=[frcl.FunctionalKL()], **FIT))
    path = tmp_path / "model.frcl"
    learner.save(path)
    meta, tensors = load_state(path)
    for place in places(meta["settings"]):
        for odd in ODD:
            changed = copy.deepcopy(meta)
            inside = changed["settings"]
            for key in place[:-1]:
                inside = inside[key]
            inside[place[-1]] = odd
            if isinstance(odd, int) and odd > 2**64:
                continue  # not written in JSON by everyone: see below
            save_state(path, changed, tensors)
            try:
                found = frcl.load(path, net())
            except CheckpointError:
                continue
            del changed["network"]  # the file describes it; the network was given
            assert json.loads(json.dumps(found.state_dict()["meta"])) == json.loads(json.dumps(changed)), (place, odd)


@pytest.mark.parametrize("text", ["[]", "3", "null", '"a"', "[" * 100_000, "9" * 5000, '{"settings": 1e999}', "{"])
def test_meta_data_that_are_no_object(text, tmp_path, monkeypatch):
    path = tmp_path / "model.frcl"
    with monkeypatch.context() as patch:
        patch.setattr("frcl.files.json.dumps", lambda *_, **__: text)
        save_state(path, {}, {})
    with pytest.raises(CheckpointError):
        frcl.load(path, net())


def test_a_window_and_its_count_belong_together():
    learner = MAKERS["stream"]()
    for seen in (0, 49, -3):
        state = learner.state_dict()
        state["meta"]["current"]["window"]["seen"] = seen
        with pytest.raises(CheckpointError, match="window"):
            learner.load_state_dict(state)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda learner: learner.start_task(5), "labels are a list"),
        (lambda learner: learner.start_task("ab"), "labels are a list"),
        (lambda learner: learner.start_task(size="a"), "size is the number of examples"),
        (lambda learner: learner.start_task(size=True), "size is the number of examples"),
        (lambda learner: learner.start_task(size=2.5), "size is the number of examples"),
        (lambda learner: learner.fit(*blobs((0, 1), 40, 1), size="a"), "size is the number of examples"),
        (lambda learner: learner.fit(*blobs((0, 1), 40, 1), size=True), "size is the number of examples"),
        (lambda learner: FRCL(net(), labels=5), "labels are a list"),
    ],
)
def test_arguments_of_a_task(call, error):
    with pytest.raises(FrclError, match=error):
        call(FRCL(net(), **FIT))
