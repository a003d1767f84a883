"""REPRODUCTION.md is what the result files say."""

import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))
import reproduction  # noqa: E402


def test_the_page_is_generated_from_the_results():
    assert reproduction.PAGE.read_text() == reproduction.page()


def test_results_are_whole():
    for path in reproduction.RESULTS.glob("*.json"):
        found = json.loads(path.read_text())
        assert path.stem == f"{found['benchmark']}-{found['method']}"
        last = [matrix[-1] for matrix in found["accuracy"]]
        mean = sum(sum(row) / len(row) for row in last) / len(last)
        assert abs(mean - found["average_accuracy"]["mean"]) < 1e-9
        assert found["environment"]["torch"]
        assert found["command"].startswith("frcl run")


def test_a_result_that_is_missing_is_said_to_be(monkeypatch, tmp_path):
    monkeypatch.setattr(reproduction, "RESULTS", tmp_path)
    assert reproduction.page().count("not measured") == 45
