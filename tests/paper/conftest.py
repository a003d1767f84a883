"""Fixtures of the tests of the reproduction."""

import pytest

from paper.measure import Place


@pytest.fixture
def place(tmp_path) -> Place:
    """Measure on the CPU, into an empty folder."""
    return Place(tmp_path / "results", tmp_path / "runs")
