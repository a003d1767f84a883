"""Trees of tensors, and structured state as JSON and tensors: what goes in comes out, and damage is named."""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import pytest
import torch
from torch import Tensor

from frcl import codec
from frcl.errors import CheckpointError
from frcl.likelihoods import Likelihood, Softmax
from frcl.trees import (
    batch_axes,
    copied,
    detached,
    leaf,
    named_tensors,
    shapes,
    stack,
    total_bytes,
    tree_map,
    with_tensors,
)


class Pair(NamedTuple):
    a: Tensor
    b: Tensor | None = None
    count: int = 3


def tree(value: float = 0.0) -> dict[str, Any]:
    return {
        "theta": {"layer.weight": torch.full((2, 3), value), "bias": torch.full((3,), value + 1)},
        "pair": Pair(torch.full((4,), value + 2), None, 5),
        "rest": (torch.full((), value + 3), [torch.full((1, 2), value + 4), "word"]),
        "word": "constant",
    }


NAMES = ["theta/layer.weight", "theta/bias", "pair/a", "rest/0", "rest/1/0"]


# -- trees ---------------------------------------------------------------------------------------------------


def test_a_map_keeps_structure_types_and_constants():
    doubled = tree_map(lambda a, b: a + b, tree(1.0), tree(1.0))
    assert type(doubled["pair"]) is Pair
    assert doubled["pair"][1:] == (None, 5)
    assert type(doubled["rest"]) is tuple
    assert type(doubled["rest"][1]) is list
    assert (doubled["word"], doubled["rest"][1][1]) == ("constant", "word")
    for (name, value), (_, one) in zip(named_tensors(doubled), named_tensors(tree(1.0)), strict=True):
        assert torch.equal(value, 2 * one), name
    assert tree_map(torch.neg, torch.ones(2)).tolist() == [-1.0, -1.0]
    assert tree_map(torch.neg, None) is None


def test_trees_of_different_structure_are_refused():
    with pytest.raises(ValueError, match="argument 2 is"):
        tree_map(torch.add, (torch.ones(1), torch.ones(1)), (torch.ones(1),))
    with pytest.raises(KeyError):
        tree_map(torch.add, {"a": torch.ones(1)}, {"b": torch.ones(1)})


def test_names_and_the_way_back():
    given = tree()
    found = dict(named_tensors(given))
    assert list(found) == NAMES
    replaced = with_tensors(given, {name: value + 7 for name, value in found.items()})
    assert type(replaced["pair"]) is Pair
    assert dict(named_tensors(replaced)).keys() == found.keys()
    for name, value in named_tensors(replaced):
        assert torch.equal(value, found[name] + 7)
    same = with_tensors(given, found)
    assert all(a is b for (_, a), (_, b) in zip(named_tensors(same), named_tensors(given), strict=True))
    assert dict(named_tensors(torch.ones(1), "x")).keys() == {"x"}
    assert list(named_tensors(None)) == []
    assert shapes(given)[0] == ("theta/layer.weight", (2, 3), "torch.float32")
    assert total_bytes(given) == 4 * (6 + 3 + 4 + 1 + 2)


@pytest.mark.parametrize("dim", [0, -1])
def test_stacked_and_taken_apart(dim):
    each = [tree(value) for value in (0.0, 10.0, 20.0)]
    block = stack(each, dim)
    assert type(block["pair"]) is Pair
    assert (block["pair"].b, block["pair"].count, block["word"]) == (None, 5, "constant")
    for i, one in enumerate(each):
        apart = tree_map(lambda value, i=i: value.select(dim, i), block)
        for (name, value), (_, expected) in zip(named_tensors(apart), named_tensors(one), strict=True):
            assert torch.equal(value, expected), name


def test_vmap_over_a_tree_with_constants():
    each = [Pair(torch.arange(3.0) + i, None, 4) for i in range(2)]
    block = stack(each)
    axes = batch_axes(block)
    assert axes == Pair(0, None, None)
    assert type(axes) is Pair

    def function(pair: Pair, more: dict[str, Any]) -> Tensor:
        assert pair.b is None
        return pair.count * pair.a.sum() + more["x"][0] * more["times"]

    more = {"x": (torch.tensor([1.0, 2.0]), "word"), "times": 10}
    assert batch_axes(more) == {"x": (0, None), "times": None}
    found = torch.vmap(function, in_dims=(axes, batch_axes(more)))(block, more)
    assert found.tolist() == [4 * 3.0 + 10.0, 4 * 6.0 + 20.0]


def test_copies_leaves_and_gradients():
    given = tree()
    assert all(value.requires_grad and value.is_leaf for _, value in named_tensors(tree_map(leaf, given)))
    live = tree_map(lambda value: leaf(value) * 2, given)
    assert not any(value.requires_grad for _, value in named_tensors(detached(live)))
    for kept, shares in ((copied(given), False), (detached(given), True)):
        for (_, a), (_, b) in zip(named_tensors(kept), named_tensors(given), strict=True):
            assert (a.data_ptr() == b.data_ptr()) == shares


# -- codec ---------------------------------------------------------------------------------------------------


class Moments(NamedTuple):
    steps: int
    average: dict[str, Tensor]


@dataclass(frozen=True)
class Inner:
    x: Tensor
    y: Tensor | None = None
    share: float = 0.5


@dataclass
class Outer:
    name: str
    flag: bool
    size: int | None
    label: int | str
    kind: Literal["a", "b"]
    inner: Inner
    others: list[Inner]
    moments: Moments | None
    shape: tuple[int, ...]
    shown: set[int]
    anything: dict[str, Any] = field(default_factory=dict)
    likelihood: Likelihood | None = None


def example() -> Outer:
    return Outer(
        name="one", flag=True, size=None, label="cat", kind="b", inner=Inner(torch.arange(3.0)),
        others=[Inner(torch.ones(2), torch.zeros(1, dtype=torch.int64), 1), Inner(torch.empty(0))],
        moments=Moments(7, {"layers.1/weight": torch.full((2, 2), 5.0, dtype=torch.float64)}),
        shape=(3, 4), shown={2, 1}, anything={"list": [1, None, {"deep": torch.ones(1)}], "flag": False},
        likelihood=Softmax(("ant", "bee"), samples=3),
    )  # fmt: skip


def through_json(value: Any) -> dict[str, Any]:
    state = codec.pack(value)
    return {"meta": json.loads(json.dumps(state["meta"])), "tensors": state["tensors"]}


def test_everything_comes_back():
    given, found = example(), codec.unpack(Outer, through_json(example()))
    for name in ("name", "flag", "size", "label", "kind", "shape", "shown", "likelihood"):
        assert getattr(found, name) == getattr(given, name), name
        assert type(getattr(found, name)) is type(getattr(given, name)), name
    assert type(found.inner) is Inner
    assert found.inner.y is None
    assert (found.inner.share, found.others[0].share) == (0.5, 1.0)
    assert type(found.others[0].share) is float
    assert type(found.moments) is Moments
    assert found.moments.steps == 7
    assert found.anything["list"][:2] == [1, None]
    tensors = [(given.inner.x, found.inner.x), (given.others[0].y, found.others[0].y)]
    tensors += [(given.others[1].x, found.others[1].x), (torch.ones(1), found.anything["list"][2]["deep"])]
    tensors += [(given.moments.average["layers.1/weight"], found.moments.average["layers.1/weight"])]
    for a, b in tensors:
        assert torch.equal(a, b)
        assert a.dtype == b.dtype
    again = codec.pack(found)
    assert again["meta"] == codec.pack(given)["meta"]
    assert again["tensors"].keys() == codec.pack(given)["tensors"].keys()
    without = example()
    without.moments, without.label, without.size = None, 4, 9
    other = codec.unpack(Outer, through_json(without))
    assert (other.moments, other.label, other.size) == (None, 4, 9)


def test_states_share_nothing_with_what_they_came_from():
    given = example()
    state = codec.pack(given)
    given.inner.x.zero_()
    assert state["tensors"]["inner/x"].tolist() == [0.0, 1.0, 2.0]
    found = codec.unpack(Outer, state)
    found.inner.x.fill_(9.0)
    assert state["tensors"]["inner/x"].tolist() == [0.0, 1.0, 2.0]


def test_tensors_go_where_they_are_wanted():
    found = codec.unpack(Inner, codec.pack(Inner(torch.ones(2))), torch.device("meta"))
    assert found.x.is_meta


Change = Callable[[dict[str, Any], dict[str, Tensor]], object]
DAMAGE: list[tuple[str, Change, str]] = [
    ("missing key", lambda m, t: m.pop("name"), r'"name" is missing'),
    ("missing key inside", lambda m, t: m["others"][1].pop("y"), r'"others\[1\]\.y" is missing'),
    ("missing field of a named tuple", lambda m, t: m["moments"].pop("steps"), r'"moments\.steps" is missing'),
    ("unknown key", lambda m, t: m.update(more=1), r'"more" is unknown'),
    ("unknown key inside", lambda m, t: m["inner"].update(z=1), r'"inner\.z" is unknown'),
    (
        "text for a number",
        lambda m, t: m["inner"].update(share="half"),
        r'"inner\.share" is .half., not a number',
    ),
    ("number for text", lambda m, t: m.update(name=3), r'"name" is 3, not a text'),
    ("number for a flag", lambda m, t: m.update(flag=1), r'"flag" is 1, not true or false'),
    (
        "flag for a number",
        lambda m, t: m["moments"].update(steps=True),
        r'"moments\.steps" is True, not a whole number',
    ),
    ("fraction for a whole number", lambda m, t: m.update(size=2.5), r'"size" is 2\.5, not a whole number'),
    (
        "nothing for a number",
        lambda m, t: m["inner"].update(share=None),
        r'"inner\.share" is None, not a number',
    ),
    ("none of a union's types", lambda m, t: m.update(label=2.5), r'"label" is 2\.5, not a whole number or a text'),
    ("flag for a union", lambda m, t: m.update(label=True), r'"label" is True, not a whole number or a text'),
    ("NaN", lambda m, t: m["inner"].update(share=math.nan), r'"inner\.share" is nan, not a finite number'),
    (
        "infinity",
        lambda m, t: m["others"][0].update(share=-math.inf),
        r'"others\[0\]\.share" is -inf, not a finite number',
    ),
    ("not an object", lambda m, t: m.update(inner=[1]), r'"inner" is \[1\], not a table'),
    (
        "not an object of tensors",
        lambda m, t: m["moments"].update(average=3),
        r'"moments\.average" is 3, not a table',
    ),
    ("not a likelihood", lambda m, t: m.update(likelihood="softmax"), r'"likelihood" is .softmax., not a table'),
    ("not a list", lambda m, t: m.update(others={"0": {}}), r'"others" is .*, not a list'),
    ("a long text is cut", lambda m, t: m.update(shape="x" * 99), r'"shape" is .x{38}…, not a list'),
    ("missing tensor", lambda m, t: t.pop("others/0/y"), r'"others\[0\]\.y" is not in the file'),
    ("tensor without a name", lambda m, t: m["inner"].update(x={}), r'"inner\.x" is not in the file'),
    ("tensor with an odd name", lambda m, t: m["inner"].update(x={"tensor": [1]}), r'"inner\.x" is not in'),
    ("number for a tensor", lambda m, t: m["inner"].update(x=3), r'"inner\.x" is 3, not a table'),
    (
        "missing tensor of a tree",
        lambda m, t: t.pop("anything/list/2/deep"),
        r'"anything\.list\[2\]\.deep" is not in the file',
    ),
    ("unknown likelihood", lambda m, t: m["likelihood"].update(name="softmix"), "unknown likelihood 'softmix'"),
    ("odd setting of a likelihood", lambda m, t: m["likelihood"].update(odd=1), "odd"),
]


@pytest.mark.parametrize(("change", "message"), [item[1:] for item in DAMAGE], ids=[item[0] for item in DAMAGE])
def test_damage_is_refused_and_named(change, message):
    state = through_json(example())
    change(state["meta"], state["tensors"])
    with pytest.raises(CheckpointError, match=message) as caught:
        codec.unpack(Outer, state)
    assert str(caught.value).startswith("the state is incomplete, or not one made by state_dict(): ")


@pytest.mark.parametrize(
    "state", [None, 3, [], {}, {"meta": {}}, {"tensors": {}}, {"meta": {}, "tensors": []}], ids=str
)
def test_what_is_no_state_at_all_is_refused(state):
    with pytest.raises(CheckpointError, match=r"not a state made by state_dict\(\)"):
        codec.unpack(Outer, state)


@pytest.mark.parametrize("device", [None, torch.device("cpu")])
def test_tensors_that_are_none_are_refused(device):
    state = codec.pack(Inner(torch.ones(2)))
    state["tensors"]["x"] = 3
    with pytest.raises(CheckpointError, match="incomplete"):
        codec.unpack(Inner, state, device)
