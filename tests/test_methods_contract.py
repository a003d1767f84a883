"""One contract for every method: the table of methods is what these tests run over."""

import gc
import html
import math
import re
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch

from frcl import MLP, BoundaryDetector, DataError, FrclError, LabelError, OptionError, TaskError
from frcl.baselines.options import EWCOptions, TrainingOptions
from frcl.errors import CheckpointError
from frcl.learners.types import Learner
from frcl.methods import METHODS, Method, default_options, make_learner
from frcl.registry import Registry
from streams import blobs, same_tensors

NAMES = list(METHODS)
TRAINED = [name for name in NAMES if name != "exact-gp"]  # those that take gradient steps
REHEARSAL = {"er", "derpp", "agem"}
CORESETS = {"vcl-random", "vcl-kcenter", "sfsvi"}
STORES_LABELS = {"joint", "replay", "gdumb", "vcl-random", "vcl-kcenter", *REHEARSAL}
STORES_DATA = {"frcl", "frcl-plus", "fromp", "sfsvi", *STORES_LABELS}
HAS_VARIANCE = {"exact-gp", "frcl", "frcl-plus", "dlp", "vcl", *CORESETS}
KEPT = {  # where this is more than the heads, or something else
    "frcl": {"points", "posterior"}, "frcl-plus": {"points", "posterior", "heads", "fisher", "anchor", "network"},
    "exact-gp": {"statistics"},
    "joint": {"heads", "points"}, "single": {"heads", "network"}, "replay": {"heads", "points"},
    "lwf": {"heads", "network"}, "vcl": {"posterior"}, "progressive": {"network"},
    "fromp": {"heads", "points", "fisher", "network"},
    **{name: {"posterior", "points"} for name in CORESETS},
    **{name: {"heads", "points"} for name in REHEARSAL}, "gdumb": {"heads", "points", "network"},
    **{name: {"heads", "fisher", "anchor"} for name in ("ewc", "online-ewc", "dlp", "si", "pnc")},
}  # fmt: skip
DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")),
]
SMALL = {
    "steps": 40, "batch_size": 16, "points": 6, "search_steps": 10, "fisher_examples": 50, "adapt_steps": 5,
    "compress_steps": 30, "predict_samples": 8,
}  # fmt: skip


def make(name: str, seed: int = 0, device: str = "cpu", **changes) -> Learner:
    options = METHODS[name].options
    have = {field.name for field in fields(options)}
    given = {key: value for key, value in {**SMALL, **changes}.items() if key in have}
    return make_learner(MLP(4, (16, 8), last="relu", seed=1), replace(options, **given), seed=seed, device=device)


TASKS = [blobs((0, 1), 90, 1), blobs((4, 7, 9), 90, 2), blobs((-2, 3), 60, 3)]


def taught(name: str, count: int = 3, **changes) -> Learner:
    learner = make(name, **changes)
    for x, y in TASKS[:count]:
        learner.fit(x, y)
    return learner


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("device", DEVICES)
def test_tasks_of_different_sizes_are_learned_and_predicted(name, device):
    learner = make(name, device=device, steps=250, compress_steps=250, lr=5e-3, adapt_steps=50, points=10)
    for number, (x, y) in enumerate(TASKS):
        learner.fit(x, y)
        p = learner.predict(x, task=number)
        assert float((p.labels.cpu() == y).double().mean()) > 0.85
    for number, (x, y) in enumerate(TASKS):
        p = learner.predict(x, task=number)
        assert p.classes == tuple(sorted(set(y.tolist())))
        assert p.probs.shape == (len(x), len(p.classes))
        assert p.probs.dtype == torch.float32
        torch.testing.assert_close(p.probs.sum(1).cpu(), torch.ones(len(x)), rtol=0, atol=1e-5)
        assert set(p.labels.tolist()) <= set(p.classes)
        assert p.mean.isfinite().all()
        assert (p.variance >= 0).all()


@pytest.mark.parametrize("name", NAMES)
def test_variance_where_the_method_has_one(name):
    p = taught(name, 2).predict(TASKS[0][0], task=0)
    assert bool((p.variance > 0).all()) == (name in HAS_VARIANCE)


@pytest.mark.parametrize("name", NAMES)
def test_same_seed_same_result(name, global_random_state_untouched):
    first, second, other = (taught(name, 2, seed=seed).state_dict()["tensors"] for seed in (0, 0, 1))
    assert same_tensors(first, second)
    assert not same_tensors(first, other)


@pytest.mark.parametrize("name", NAMES)
def test_predictions_change_nothing_and_repeat(name):
    learner = taught(name, 2)
    before = learner.state_dict()
    first, second = learner.predict(TASKS[0][0], task=0), learner.predict(TASKS[0][0], task=0)
    assert torch.equal(first.probs, second.probs)
    after = learner.state_dict()
    assert same_tensors(before["tensors"], after["tensors"])
    assert before["meta"] == after["meta"]
    torch.testing.assert_close(learner.predict(TASKS[0][0][:3], task=0).probs, first.probs[:3], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", TRAINED)
@pytest.mark.parametrize("at", [1, 17, 40, 55])
def test_resume_in_the_middle_of_a_task_is_bit_for_bit(name, at):
    states = []

    def save(log):
        if log.step == at:
            states.append(whole.state_dict())

    whole = taught(name, 1)
    whole.fit(*TASKS[1], on_step=save)
    whole.fit(*TASKS[2])
    if not states:
        assert at > 40, "every method has these steps"
        return
    resumed = make(name)
    resumed.load_state_dict(states[0])
    resumed.fit(*TASKS[1])
    resumed.fit(*TASKS[2])
    assert same_tensors(whole.state_dict()["tensors"], resumed.state_dict()["tensors"])
    assert whole.state_dict()["meta"] == resumed.state_dict()["meta"]
    assert torch.equal(whole.predict(TASKS[0][0], task=0).probs, resumed.predict(TASKS[0][0], task=0).probs)


@pytest.mark.parametrize("name", NAMES)
def test_a_state_is_a_copy_and_a_foreign_one_is_refused(name):
    learner = taught(name, 1)
    state = learner.state_dict()
    kept = {key: value.clone() for key, value in state["tensors"].items()}
    learner.fit(*TASKS[1])
    assert same_tensors(kept, state["tensors"])
    with pytest.raises(CheckpointError):
        make(name).load_state_dict({})
    with pytest.raises(CheckpointError):
        make(name, steps=41).load_state_dict(state)


@pytest.mark.parametrize("name", NAMES)
def test_past_data_cannot_be_reached(name):
    """Data poisoned with NaN after its task changes nothing later, and only methods that store data hold any of it."""

    def learn(poison: bool) -> dict:
        learner = make(name)
        for x, y in TASKS:
            mine, labels = x.clone(), y.clone()
            learner.fit(mine, labels)
            if poison:
                mine.fill_(math.nan)
                labels.fill_(-99)
        return learner.state_dict()["tensors"]

    assert same_tensors(learn(False), learn(True))
    learner = taught(name, 2)
    gc.collect()
    rows = {tuple(row) for x, _ in TASKS[:2] for row in x.tolist()}
    held, tensors = 0, learner.state_dict()["tensors"]
    for value in tensors.values():
        if value.ndim == 2 and value.shape[1] == 4 and value.is_floating_point():
            held += sum(tuple(row) in rows for row in value.tolist())
    assert (held > 0) == (name in STORES_DATA)
    whole = [key for key, value in tensors.items() if key.startswith(("regularisers/", "own/")) and value.ndim]
    assert any(not tensors[key].is_floating_point() for key in whole) == (name in STORES_LABELS)


def named_in(page: str, pattern: str) -> set[str]:
    """The methods that a sentence of the docs names."""
    found = re.search(pattern, (Path(__file__).resolve().parents[1] / "docs" / page).read_text(), re.S)
    return set(re.findall(r"`([\w-]+)`", found[1]))


def test_the_docs_name_the_methods_that_store_labels():
    assert named_in("files.md", "With labels these are (.*?), and a learner") == STORES_LABELS


@pytest.mark.parametrize("name", NAMES)
def test_memory_is_counted(name):
    learner = make(name)
    assert learner.memory_bytes() == 0
    assert sum(learner.memory_parts().values()) == learner.memory_bytes()
    before = 0
    for x, y in TASKS:
        learner.fit(x, y)
        assert learner.memory_bytes() > before
        before = learner.memory_bytes()
        parts = learner.memory_parts()
        assert sum(parts.values()) == before
        assert set(parts) == KEPT.get(name, {"heads"})
        assert min(parts.values()) > 0
    stored = sum(Z.numel() * Z.element_size() for Z in learner.kept_inputs())
    assert learner.memory_bytes() >= stored
    assert bool(stored) == (name in STORES_DATA)
    assert stored <= learner.memory_parts().get("points", 0)


@pytest.mark.parametrize("name", NAMES)
def test_a_learner_says_what_it_is_and_knows(name):
    learner = taught(name, 2)
    text, bytes_kept = repr(learner), f"2 tasks learned, {learner.memory_bytes():,} bytes kept)"
    kind = {"frcl-plus": "FRCLPlus"}.get(name, type(METHODS[name].options).__name__.removesuffix("Options"))
    assert text.startswith(f"{kind}(540 random features; " if name == "exact-gp" else f"{kind}(MLP")
    assert text.endswith(f"; {bytes_kept}")
    assert all(one.name in text for one in getattr(learner, "regularisers", ()))
    assert f"<p>{html.escape(text)}</p>" in learner._repr_html_()


@pytest.mark.parametrize("name", NAMES)
def test_bad_input_is_refused_and_changes_nothing(name):
    learner = taught(name, 1)
    x, y = TASKS[1]
    before = learner.state_dict()
    for bad_x, bad_y, error in [
        (x * math.nan, y, DataError),
        (x[:, :3], y, FrclError),
        (x, y[:5], DataError),
        (x, torch.zeros_like(y), LabelError),
        (x[:, 0], y, DataError),
    ]:
        if error is LabelError and name == "exact-gp":
            continue  # one class may come alone
        with pytest.raises(error):
            learner.fit(bad_x, bad_y)
    for task in (1, -1, 99):
        with pytest.raises(TaskError, match="unknown task"):
            learner.predict(x, task=task)
    with pytest.raises(TaskError, match="nothing has been learned"):
        make(name).predict(x)
    after = learner.state_dict()
    assert same_tensors(before["tensors"], after["tensors"])
    assert before["meta"] == after["meta"]


@pytest.mark.parametrize("name", TRAINED)
def test_an_open_task_wants_its_own_data(name):
    learner = make(name)

    class Stop(Exception):
        pass

    def stop(log):
        if log.step == 5:
            raise Stop

    with pytest.raises(Stop):
        learner.fit(*TASKS[0], on_step=stop)
    with pytest.raises(TaskError, match="still open"):
        learner.fit(*TASKS[1])
    learner.fit(*TASKS[0])
    whole = taught(name, 1)
    assert same_tensors(whole.state_dict()["tensors"], learner.state_dict()["tensors"])


def test_only_methods_that_say_so_find_boundaries_themselves():
    for name, entry in METHODS.items():
        arguments = {"seed": 0, "detector": BoundaryDetector(), "labels": [0, 1], "method": name}
        if entry.needs_boundaries:
            with pytest.raises(OptionError, match="hidden boundaries are for method frcl or frcl-plus"):
                make_learner(MLP(4, (8,)), entry.options, **arguments)
        else:
            assert make_learner(MLP(4, (8,)), entry.options, **arguments).detector is not None
    assert {name for name, entry in METHODS.items() if not entry.needs_boundaries} == {"frcl", "frcl-plus"}


def test_methods_are_found_by_name_or_by_their_options_and_others_are_refused():
    with pytest.raises(OptionError, match="unknown method 'ewcc'; did you mean 'ewc'"):
        default_options("ewcc")

    class Strange(TrainingOptions):
        """Options that no method has."""

    with pytest.raises(OptionError, match="no method has options of type Strange"):
        make_learner(MLP(4, (8,)), Strange(), seed=0)
    found = make_learner(MLP(4, (8,)), Strange(), seed=0, method="ewc")
    assert type(found) is type(make_learner(MLP(4, (8,)), default_options("ewc"), seed=0))


def test_other_packages_add_methods_by_an_entry_point(monkeypatch):
    class Entry:
        name = "theirs"

        def load(self):
            return Method("theirs", "a method from elsewhere", EWCOptions(strength=7.0), METHODS["ewc"].make)

    fresh = Registry("method")
    monkeypatch.setattr(
        "frcl.registry.metadata.entry_points", lambda group: [Entry()] if group == "frcl.methods" else []
    )
    monkeypatch.setattr("frcl.methods.METHODS", fresh)
    learner = make_learner(MLP(4, (8,)), default_options("theirs"), seed=2, method="theirs")
    assert (learner.options.strength, learner.options.seed) == (7.0, 2)
    assert [one.name for one in learner.regularisers] == ["ewc"]


def test_names_are_what_the_command_line_promises():
    promised = [
        "frcl", "frcl-plus", "exact-gp", "finetune", "joint", "single", "replay", "ewc", "online-ewc", "dlp", "si",
        "vcl", "vcl-random", "vcl-kcenter", "lwf", "fromp", "sfsvi", "progressive", "pnc", "er", "derpp", "agem",
        "gdumb",
    ]  # fmt: skip
    assert NAMES[: len(promised)] == promised
