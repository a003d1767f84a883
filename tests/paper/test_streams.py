"""The table of the default detector."""

from dataclasses import replace

from frcl.experiment.config import resolve
from paper.measure import Place
from paper.page import page
from paper.streams import ROWS, STREAMS_TABLE
from paper_helpers import SMALL, STREAM, file_of, measured


def test_every_row_has_the_default_detector_and_declares_nothing():
    for row in ROWS:
        config = row.cell.config()
        options = config.detector.options()
        assert options == resolve(row.benchmark).detector.options()
        assert (options["threshold"], options["expected_run"]) == (None, 1_000_000)
        assert config.learner.task_size is None
        assert config.learner.steps == (row.steps or resolve(row.benchmark).learner.steps)


def test_what_the_learner_acted_on_is_scored(tmp_path, monkeypatch):
    row = replace(ROWS[0], benchmark="split-digits", seeds=(0, 1), steps=40, tasks=2)
    monkeypatch.setattr("paper.streams.TITLES", {"split-digits": "Digits"})
    monkeypatch.setattr("paper.streams.ROWS", (row,))
    cell = replace(row.cell, layers=(*row.cell.layers, SMALL, {"learner": {**STREAM["learner"], "steps": 40}}))
    table = replace(STREAMS_TABLE, cells=(cell,))
    place = Place(tmp_path / "paper/results", tmp_path / "runs")
    assert "not measured |" in page([table], place.results)
    measured(place, cell, table="streams")
    one = file_of(place, cell, "streams")
    assert [seed["switches"]["true"] for seed in one["seeds"]] == [[40], [40]]
    for seed, found in zip(one["seeds"], ([41, 60], [43]), strict=True):
        seed["switches"]["found"] = found
    monkeypatch.setattr("paper.streams.documents_of", lambda *_, **__: {cell.name: one})
    shown = page([table], place.results)
    line = next(line for line in shown.splitlines() if line.startswith("| Digits"))
    columns = [part.strip() for part in line.split("|")[1:-1]]
    f1 = (2 / 3 + 1) / 2
    assert columns == [
        "Digits, 2 alphabets", "40", "2", f"0.750 / 1.000 / {f1:.3f}", "1.00", "0.667", "2", "1",
        f"no: {1 - f1:.3f} below",
    ]  # fmt: skip
