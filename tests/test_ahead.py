"""What no step changes is computed once for each example: the result is that of computing it in every step."""

from typing import Any

import pytest
import torch
from torch import Tensor

from frcl import MLP
from frcl.augment import CropFlip
from frcl.engine import ahead
from frcl.engine.ahead import of_examples, of_rows
from frcl.learners.lockstep import together
from frcl.methods import default_options, make_learner
from frcl.options import changed

D = torch.float64
SMALL = {"steps": 30, "batch_size": 8, "points": 6, "search_steps": 5, "compress_steps": 20, "fisher_examples": 20}


def learner_of(method: str, **given: Any) -> Any:
    options = default_options(method)
    known = {key: value for key, value in {**SMALL, **given}.items() if hasattr(options, key)}
    return make_learner(MLP(16, (12, 8), seed=0).double(), changed(options, known), seed=0, method=method)


def tasks(sizes: tuple[int, ...] = (60, 60)) -> list[tuple[Tensor, Tensor]]:
    g = torch.Generator().manual_seed(0)
    inputs = [torch.rand(size, 16, generator=g, dtype=D) for size in sizes]
    return [(x, (x @ torch.randn(16, 3, generator=g, dtype=D)).argmax(1)) for x in inputs]


@pytest.fixture
def counted(monkeypatch):
    """How many tables were made, and of how many examples."""
    made: list[int] = []
    plain = ahead.of_rows

    def note(table, rows):
        made.extend(len(part) for part in table)
        return plain(table, rows)

    for module in ("frcl.engine.ahead", "frcl.baselines.progressive", "frcl.baselines.progress_and_compress"):
        monkeypatch.setattr(f"{module}.of_rows", note)
    return made


@pytest.mark.parametrize("method", ["lwf", "frcl-plus", "progressive", "pnc"])
def test_a_table_gives_what_every_step_would_compute(method, counted, monkeypatch):
    found = []
    for largest in (ahead.LARGEST, 0):
        counted.clear()
        monkeypatch.setattr(ahead, "LARGEST", largest)
        learner = learner_of(method)
        for x, y in tasks():
            learner.fit(x, y)
        assert set(counted) == ({60} if largest else set())
        x = tasks()[1][0]
        found.append([learner.predict(x, task).probs for task in (0, 1)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("method", ["lwf", "progressive", "pnc"])
def test_inputs_that_are_augmented_are_not_known_ahead(method, counted):
    learner = learner_of(method)
    for x, y in tasks():
        learner.fit(x.view(-1, 1, 4, 4), y, augment=CropFlip(1))
    assert not counted


@pytest.mark.parametrize("method", ["progressive", "pnc"])
def test_the_rows_of_many_steps_are_not_held_at_once(method, monkeypatch):
    held, plain = [], ahead.of_rows

    def note(table, rows):
        found = plain(table, rows)
        held.append(sum(part.nbytes for part in found))
        return found

    monkeypatch.setattr("frcl.baselines.progressive.of_rows", note)
    monkeypatch.setattr("frcl.baselines.progress_and_compress.of_rows", note)
    found = []
    for most in (1 << 30, 5000):
        monkeypatch.setattr(ahead, "AT_ONCE", most)
        held.clear()
        learner = learner_of(method)
        for x, y in tasks():
            learner.fit(x, y)
        found.append(max(held))
    assert found[1] <= 5000 < found[0]


def test_finished_columns_read_the_inputs_that_are_augmented():
    plain, augmented = learner_of("progressive"), learner_of("progressive")
    for x, y in tasks():
        plain.fit(1 - x, y)
        augmented.fit(x, y, augment=lambda x, generator: 1 - x)
    x = tasks()[1][0]
    torch.testing.assert_close(augmented.predict(x, 1).probs, plain.predict(x, 1).probs)


def test_a_learner_with_a_table_and_one_without_are_not_stacked():
    first, second = (learner_of("lwf", steps=10) for _ in range(2))
    data = [tasks((60, 60)), tasks((60, 200))]  # 80 uses: of 200 examples each step computes its own
    for number in range(2):
        works = [one.learn(*own[number]) for one, own in zip((first, second), data, strict=True)]
        assert len(list(together(works))) == 10
    alone = learner_of("lwf", steps=10)
    for x, y in data[1]:
        alone.fit(x, y)
    x = data[1][1][0]
    torch.testing.assert_close(second.predict(x, 0).probs, alone.predict(x, 0).probs)


def test_tables_are_made_where_they_save_time_and_memory(monkeypatch):
    x = torch.arange(10.0)[:, None]
    assert of_examples(lambda part: [2 * part], x, 9) is None
    (table,) = of_examples(lambda part: [2 * part], x, 10) or ()
    torch.testing.assert_close(table, 2 * x)
    monkeypatch.setattr(ahead, "CHUNK", 3)
    (parts,) = of_examples(lambda part: [2 * part], x, 10) or ()
    torch.testing.assert_close(parts, table)
    rows = torch.tensor([[3, 1], [0, 9]])
    torch.testing.assert_close(of_rows([table], rows)[0], 2 * x[rows])
    monkeypatch.setattr(ahead, "LARGEST", 39)
    assert of_examples(lambda part: [2 * part], x, 10) is None
    assert of_examples(lambda part: [], x, 10) == []
