"""The list of deliberate mutations stays applicable; `make mutants` runs it."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))
from mutants import MUTANTS, path_of  # noqa: E402


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.what)
def test_each_mutation_changes_one_place(mutant):
    text = path_of(mutant).read_text()
    assert text.count(mutant.old) == 1
    assert mutant.new != mutant.old
    assert (ROOT / mutant.tests).is_file()


def test_there_are_enough_of_them():
    assert len(MUTANTS) >= 10
    assert len({m.what for m in MUTANTS}) == len(MUTANTS)
