"""Loading without the network: those of frcl from the file, others by a name that is allowed; hostile files."""

import json
import sys

import numpy as np
import pytest
import torch
from torch import nn

import frcl
from frcl import CheckpointError, CifarNet, ConvNet, FrozenFront, ResNet18
from frcl.files import load_state, save_state
from frcl.learners.networks import build, describe
from streams import blobs, same_tensors

SMALL = {"points": 6, "steps": 10, "search_steps": 5}
X, Y = blobs((0, 1), 60, 1)
IMAGES = torch.rand(20, 3, 16, 16, generator=torch.Generator().manual_seed(0))


class Wide(nn.Module):
    """A network of the user, which keeps its arguments."""

    def __init__(self, width: int = 8, *, slope: float = 0.1) -> None:
        super().__init__()
        self.arguments = {"width": width, "slope": slope}
        self.linear, self.slope = nn.Linear(4, width), slope

    def forward(self, x):
        return nn.functional.leaky_relu(self.linear(x), self.slope)


class Fixed(nn.Linear):
    """A network of the user without arguments."""

    def __init__(self) -> None:
        super().__init__(4, 7)


class Tanhs(nn.Module):
    """A network of the user with the weights of one of ours, and another function."""

    def __init__(self, inputs: int, widths: tuple[int, ...]) -> None:
        super().__init__()
        self.layers = frcl.MLP(inputs, widths).layers

    def forward(self, x):
        return torch.tanh(self.layers(x))


class Forgetful(nn.Linear):
    """A network of the user whose arguments nobody keeps."""


def saved(net, path, x=X, y=Y):
    learner = frcl.FRCL(net, **SMALL)
    learner.fit(x, y)
    learner.save(path)
    return learner


@pytest.mark.parametrize(
    ("net", "x"),
    [
        (frcl.MLP(4, (9, 5), last="relu", seed=3), X),
        (frcl.MLP(4, (9, 5)).double(), X.double()),
        (ConvNet(16, channels=3, filters=(4, 3), pooling="valid"), IMAGES),
        (CifarNet(16, filters=(4,), width=6), IMAGES),
        (ResNet18(width=4), IMAGES),
        (FrozenFront(ConvNet(16, channels=3, filters=(4, 3), seed=1), frcl.MLP(48, (5,), seed=2)), IMAGES),
        (FrozenFront(frcl.MLP(4, (9, 5), seed=1)).eval(), X),
        (FrozenFront(frcl.MLP(4, (9, 5)), frcl.MLP(5, (4,))).double(), X.double()),
    ],
    ids=["MLP", "float64", "ConvNet", "CifarNet", "ResNet18", "front and rest", "front", "front of float64"],
)
def test_our_networks_are_made_from_the_file(net, x, tmp_path):
    y = torch.arange(len(x)) % 2
    learner = saved(net, tmp_path / "model", x, y)
    loaded = frcl.load(tmp_path / "model")
    assert type(loaded.net) is type(net)
    assert (str(loaded.net), loaded.net.training) == (str(net), net.training)
    assert [p.requires_grad for p in loaded.net.parameters()] == [p.requires_grad for p in net.parameters()]
    assert same_tensors(learner.state_dict()["tensors"], loaded.state_dict()["tensors"])
    assert torch.equal(learner.predict(x, task=0).probs, loaded.predict(x, task=0).probs)
    learner.fit(x, y)
    loaded.fit(x, y)
    assert same_tensors(learner.state_dict()["tensors"], loaded.state_dict()["tensors"])


def test_an_ensemble_is_made_from_the_file(tmp_path):
    learner = frcl.Ensemble(frcl.MLP(4, (9, 5)), 2, **SMALL)
    learner.fit(X, Y)
    learner.save(tmp_path / "model")
    assert torch.equal(frcl.load(tmp_path / "model").predict(X).probs, learner.predict(X).probs)
    nets = frcl.MLP(4, (9, 5)), Tanhs(4, (9, 5))
    learner = frcl.Ensemble(nets, 2, **SMALL)
    learner.fit(X, Y)
    learner.save(tmp_path / "model")
    with pytest.raises(CheckpointError, match="give one of the same shape"):
        frcl.load(tmp_path / "model")
    assert torch.equal(frcl.load(tmp_path / "model", nets).predict(X).probs, learner.predict(X).probs)


def test_sizes_of_numpy_are_in_the_description():
    assert describe(frcl.MLP(np.int64(4), np.array([9, 5])))["arguments"] == GOOD["arguments"]
    assert describe(ConvNet(8, filters=(np.int64(3),)))["arguments"]["filters"] == [3]


def test_parts_of_the_user_are_imported_where_they_are_allowed(tmp_path):
    learner = saved(FrozenFront(Wide(6, slope=0.3), frcl.MLP(6, (5,))), tmp_path / "model")
    with pytest.raises(CheckpointError, match="allow="):
        frcl.load(tmp_path / "model")
    loaded = frcl.load(tmp_path / "model", allow=[f"{__name__}.Wide"])
    assert torch.equal(loaded.predict(X).probs, learner.predict(X).probs)


@pytest.mark.parametrize("net", [Wide(6, slope=0.3), Fixed()], ids=["with arguments", "without"])
def test_networks_of_the_user_are_imported_where_they_are_allowed(net, tmp_path):
    learner = saved(net, tmp_path / "model")
    name = f"{__name__}.{type(net).__name__}"
    with pytest.raises(CheckpointError, match="allow="):
        frcl.load(tmp_path / "model")
    with pytest.raises(CheckpointError, match="allow="):
        frcl.load(tmp_path / "model", allow=["another.Net", name.upper()])
    with pytest.raises(CheckpointError, match="allow="):
        frcl.load(tmp_path / "model", allow=name)  # a text is not a list of names
    for loaded in (frcl.load(tmp_path / "model", allow=[name]), frcl.load(tmp_path / "model", type(net)())
                   if isinstance(net, Fixed) else frcl.load(tmp_path / "model", Wide(6, slope=0.3))):  # fmt: skip
        assert torch.equal(loaded.predict(X).probs, learner.predict(X).probs)


def test_networks_that_cannot_be_described_are_asked_for(tmp_path):
    class Local(frcl.MLP):
        pass

    changed = frcl.MLP(4, (9, 5))
    changed.layers[2] = nn.Tanh()
    hooked = frcl.MLP(4, (9, 5))
    hooked.layers[1].register_forward_hook(lambda layer, given, out: 2 * out)
    odd = Wide()
    odd.arguments = {"width": torch.ones(())}
    front = FrozenFront(nn.Linear(4, 5), frcl.MLP(5, (5,)))
    rest, twice = FrozenFront(frcl.MLP(4, (5,)), nn.Linear(5, 5)), FrozenFront(FrozenFront(frcl.MLP(4, (5,))))
    others = Forgetful(4, 5), Local(4, (5,)), nn.Sequential(nn.Linear(4, 5)), front, rest, twice
    for net in (changed, hooked, odd, *others):
        assert describe(net) is None
        saved(net, tmp_path / "model")
        with pytest.raises(CheckpointError, match="give one of the same shape"):
            frcl.load(tmp_path / "model", allow=["torch.nn.Linear"])
        frcl.load(tmp_path / "model", net)


# -- hostile files ------------------------------------------------------------------------------------------------

GOOD = {"name": "frcl.MLP", "arguments": {"inputs": 4, "widths": [9, 5], "last": "linear"}, "dtype": "torch.float32",
        "training": True}  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        {"name": "os.system"}, {"name": 3}, {"name": ""}, {"name": "frcl.MLP.__init__"}, {"arguments": None},
        {"arguments": {"inputs": "4", "widths": [9, 5]}}, {"arguments": {"inputs": 4, "other": 1}},
        {"arguments": {"inputs": 4, "widths": [2**20] * 8}}, {"arguments": {"inputs": 2**62, "widths": [9, 5]}},
        {"arguments": {"inputs": -4, "widths": [9, 5]}}, {"arguments": {"inputs": 4, "widths": [9, 6]}},
        {"arguments": {"inputs": 4, "widths": [9, 5], "last": "exec"}}, {"arguments": {"inputs": [4], "widths": {}}},
        {"dtype": "torch.int8"}, {"dtype": ["torch.float32"]}, {"training": "yes"}, {"more": 1},
        {"name": "frcl.ResNet18", "arguments": {"width": 10**6}},
    ],
    ids=str,
)  # fmt: skip
def test_descriptions_that_are_forged_are_refused(change, tmp_path):
    """No code is run, no memory taken; the error is a CheckpointError."""
    saved(frcl.MLP(4, (9, 5)), tmp_path / "model")
    meta, tensors = load_state(tmp_path / "model")
    assert meta["network"] == GOOD
    save_state(tmp_path / "forged", {**meta, "network": json.loads(json.dumps({**GOOD, **change}))}, tensors)
    with pytest.raises(CheckpointError):
        frcl.load(tmp_path / "forged")


@pytest.mark.parametrize(
    "parts",
    [
        {}, {"front": None, "rest": None}, {"front": GOOD}, {"front": GOOD, "rest": None, "more": 1},
        {"front": {**GOOD, "name": "os.system"}, "rest": None}, {"front": GOOD, "rest": {**GOOD, "name": "os.system"}},
        {"front": {**GOOD, "arguments": {"inputs": 4, "widths": [2**20] * 8}}, "rest": None},
        {"front": GOOD, "rest": 3}, {"front": GOOD, "rest": GOOD},
        {"front": {**GOOD, "name": "frcl.FrozenFront"}, "rest": None},
    ],
    ids=str,
)  # fmt: skip
def test_parts_that_are_forged_are_refused(parts, tmp_path):
    saved(FrozenFront(frcl.MLP(4, (9, 5)), frcl.MLP(5, (5,))), tmp_path / "model")
    meta, tensors = load_state(tmp_path / "model")
    assert meta["network"]["arguments"]["front"] == {**GOOD, "training": False}
    forged = {**meta["network"], "arguments": parts}
    save_state(tmp_path / "forged", {**meta, "network": json.loads(json.dumps(forged))}, tensors)
    with pytest.raises(CheckpointError):
        frcl.load(tmp_path / "forged")


def test_a_forged_name_is_not_imported(tmp_path, monkeypatch):
    """A module next to the file that would do harm when imported stays alone, allowed names apart."""
    (tmp_path / "harmful.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(CheckpointError, match="allow"):
        build({**GOOD, "name": "harmful.Net"}, {}, [])
    assert "harmful" not in sys.modules
    for name in ("os.system", "json.JSONDecoder", "os.nothing", "no_such_module.Net", "Net"):
        with pytest.raises(CheckpointError):
            build({**GOOD, "name": name}, {}, [name])
