"""REPRODUCTION.md is what the result files say, and the result files are whole."""

import json
from pathlib import Path

import pytest

from frcl.experiment.metrics import AccuracyMatrix
from frcl.reproduce.cells import TABLES
from frcl.reproduce.page import page
from frcl.reproduce.store import read_document, to_text

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results"
FILES = sorted(RESULTS.glob("*/*.json"))


def test_the_page_is_generated_from_the_results():
    assert (ROOT / "REPRODUCTION.md").read_text() == page(TABLES, RESULTS)


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_result_is_whole(path):
    found = read_document(path, quick=False)
    assert (found["table"], found["cell"]) == (path.parent.name, path.stem)
    cells = {cell.name: cell for table in TABLES if table.name == found["table"] for cell in table.cells}
    assert path.stem in cells
    seeds = [one["seed"] for one in found["seeds"]]
    assert seeds == sorted(set(seeds))
    assert set(seeds) <= set(cells[path.stem].seeds)
    assert sorted(seed for batch in found["batches"] for seed in batch["seeds"]) == seeds
    assert path.read_text() == to_text(found)
    assert str(ROOT) not in json.dumps(found)
    for batch in found["batches"]:
        assert batch["command"].startswith(("frcl run", "frcl reproduce"))
        assert batch["environment"]["torch"]
    for one in found["seeds"]:
        assert one["average_accuracy"] == pytest.approx(sum(one["last_row"]) / len(one["last_row"]), abs=1e-12)
        assert one["accuracy_after_learning"] == pytest.approx(sum(one["diagonal"]) / len(one["diagonal"]), abs=1e-12)
        if "accuracy" in one:
            matrix = AccuracyMatrix(len(one["accuracy"]))
            for row in one["accuracy"]:
                matrix.append(row)
            assert one["forgetting"] == pytest.approx(matrix.forgetting(), abs=1e-12)


def test_a_result_that_is_missing_is_said_to_be(tmp_path):
    thresholds = sum(len(cell.thresholds) for table in TABLES for cell in table.cells)
    accuracies = sum(len(table.cells) for table in TABLES if table.name != "table3")
    assert page(TABLES, tmp_path).count("not measured |") == accuracies + 2 * thresholds
