"""Inputs as they are stored: restored exactly, in one byte per number where they have at most 256 values, or in two."""

import pytest
import torch

import frcl
from frcl.methods import default_options, make_learner
from frcl.options import changed
from frcl.summary import LEVELS, StoredInputs, stored_inputs

BYTES = torch.arange(3 * 400, dtype=torch.int64).reshape(3, 400) * 7 % 256


@pytest.mark.parametrize(
    "x",
    [
        BYTES.float() / 255,
        BYTES.float(),
        (BYTES.float() / 255 - 0.1307) / 0.3081,
        BYTES.double() / 255,
        (BYTES.float() / 255).bfloat16(),
        BYTES,
        (BYTES.float() / 255).reshape(3, 1, 20, 20),
    ],
    ids=["divided by 255", "0 to 255", "normalised", "float64", "bfloat16", "int64", "images"],
)
def test_bytes_are_restored_exactly(x):
    stored = stored_inputs(x)
    assert stored.table is not None
    assert stored.values.dtype == torch.uint8
    assert stored.is_sound
    assert stored.inputs.dtype == x.dtype
    assert torch.equal(stored.inputs, x)
    levels = len(x.unique())
    assert sum(one.numel() * one.element_size() for one in stored.kept) == x.numel() + levels * x.element_size()


@pytest.mark.parametrize(
    "x", [torch.rand(2, 300), torch.arange(LEVELS + 1.0).repeat(2, 9) / 3, torch.rand(1, 3), BYTES.to(torch.uint8)],
    ids=["floats", "one value too many", "smaller as it is", "bytes"],
)  # fmt: skip
def test_other_inputs_are_kept_as_they_are(x):
    stored = stored_inputs(x)
    assert stored.table is None
    assert torch.equal(stored.inputs, x)
    assert stored.inputs.dtype == x.dtype
    assert stored.values.data_ptr() != x.data_ptr()  # a copy


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_numbers_of_half_precision_take_two_bytes(dtype):
    x = torch.randn(4, 100, generator=torch.Generator().manual_seed(1)).half().to(dtype)
    stored = stored_inputs(x)
    assert stored.is_sound
    assert stored.inputs.dtype == dtype
    assert torch.equal(stored.inputs, x)
    assert sum(one.nbytes for one in stored.kept) == 2 * x.numel()
    for other in (x + 1e-4, x * 1e6, x * 1e-6):  # too fine, too large, too small for it
        assert stored_inputs(other.contiguous()).table is None


def test_the_last_value_of_a_full_table_is_found():
    x = torch.arange(float(LEVELS)).flip(0).repeat(2, 4)
    assert len(stored_inputs(x).table) == LEVELS
    assert torch.equal(stored_inputs(x).inputs, x)


def test_unsound_tables_are_told():
    values, table = torch.tensor([[0, 1]], dtype=torch.uint8), torch.tensor([0.0, 1.0])
    assert StoredInputs(values, table).is_sound
    assert not StoredInputs(values + 1, table).is_sound
    assert not StoredInputs(values.int(), table).is_sound
    assert not StoredInputs(values, table.flip(0)).is_sound
    assert not StoredInputs(values[:0], table).is_sound
    assert not StoredInputs(values, table[None]).is_sound
    assert StoredInputs(table.half(), table[:0]).is_sound
    assert not StoredInputs(table.half(), table).is_sound
    assert not StoredInputs(table.half(), table[:0].int()).is_sound


def images(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(60) % 2
    dots = torch.randint(0, 200, (60, 36), generator=generator)
    dots[:, :6] += 40 * y[:, None]
    return dots.float() / 255, y


@pytest.mark.parametrize("method", ["frcl", "frcl-plus", "replay", "vcl-random"])
def test_learners_count_and_save_bytes(method, tmp_path):
    options = changed(default_options(method), {"points": 10, "steps": 3, "batch_size": 8})
    learner = make_learner(frcl.MLP(36, (8, 8)), options, seed=0, method=method)
    for seed in (0, 1):
        learner.fit(*images(seed))
    kept = learner.kept_inputs()
    for seed in (0, 1):
        x = images(seed)[0]
        assert all((row == x).all(1).any() for row in kept[seed])
    tables = sum(4 * len(Z.unique()) for Z in kept)
    labels = 2 * 10 * 8 if method in ("replay", "vcl-random") else 0
    assert learner.memory_parts()["points"] == 2 * 10 * 36 + tables + labels
    other = make_learner(frcl.MLP(36, (8, 8), seed=1), options, seed=0, method=method)
    other.load_state_dict(learner.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(kept, other.kept_inputs(), strict=True))
    for one in (learner, other):
        one.fit(*images(2))
    x = images(3)[0]
    assert torch.equal(learner.predict(x, 0).probs, other.predict(x, 0).probs)


def test_points_of_half_precision_are_saved_so(tmp_path):
    x, y = images(0)
    x = (x + torch.arange(36) / 4).half().float()  # more than 256 values
    learner = frcl.FRCL(frcl.MLP(36, (8, 8)), points=20, steps=2)
    summary = learner.fit(x, y)
    assert summary.kept()["points"][0].dtype == torch.float16
    assert all((row == x).all(1).any() for row in summary.Z)
    learner.save(tmp_path / "half.frcl")
    again = frcl.load(tmp_path / "half.frcl", frcl.MLP(36, (8, 8)))
    assert torch.equal(again.tasks[0].Z, summary.Z)
    assert again.memory_bytes() == learner.memory_bytes()


def test_a_state_with_a_wrong_index_is_refused():
    learner = frcl.FRCL(frcl.MLP(36, (8, 8)), points=10, steps=2)
    learner.fit(*images(0))
    state = learner.state_dict()
    state["tensors"]["past/0/points/values"][0, 0] = 255
    with pytest.raises(frcl.CheckpointError, match="not indices of a table"):
        learner.load_state_dict(state)
