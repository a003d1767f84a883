"""Entry points of other packages: one that cannot be used is named, and breaks nothing else."""

import os
import subprocess
import sys
import warnings
from importlib import metadata
from pathlib import Path

import pytest

from frcl import OptionError, Regulariser
from frcl.data import BENCHMARKS
from frcl.likelihoods import LIKELIHOODS
from frcl.methods import METHODS
from frcl.registry import Registry
from frcl.regularisers import REGULARISERS, FunctionalKL
from frcl.selection import CRITERIA, Criterion

ROOT = Path(__file__).resolve().parents[1]
GOOD = "frcl.regularisers:FunctionalKL"


def registry(monkeypatch, values: dict[str, str], of: object = object) -> Registry:
    """A registry with one object of its own, "ours", and entry points of other packages."""
    entries = [metadata.EntryPoint(name, value, "frcl.things") for name, value in values.items()]
    monkeypatch.setattr(metadata, "entry_points", lambda group: entries if group == "frcl.things" else [])
    found: Registry = Registry("thing", of=of)
    found.add("ours", FunctionalKL)
    return found


BROKEN = [
    ("no_such_module:Thing", "ModuleNotFoundError: No module named 'no_such_module'"),
    ("frcl.registry:Missing", "AttributeError: module 'frcl.registry' has no attribute 'Missing'"),
    ("frcl.registry:suggestion", "OptionError: a thing is a subclass of Regulariser, not <function suggestion"),
    ("frcl.registry:Registry", "OptionError: a thing is a subclass of Regulariser, not <class 'frcl.registry"),
]


@pytest.mark.parametrize(("value", "reason"), BROKEN)
def test_an_entry_that_cannot_be_used_is_named_once_and_the_others_stay(monkeypatch, value, reason):
    things = registry(monkeypatch, {"theirs": value, "good": GOOD}, of=type[Regulariser])
    with pytest.warns(UserWarning, match="cannot be used") as seen:
        assert list(things) == ["ours", "good"]
    (text,) = [str(one.message) for one in seen]
    assert text.startswith(f"thing 'theirs' of package {value} (entry point group frcl.things) cannot be used: ")
    assert reason in text
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert things["good"] is FunctionalKL
        for ask in (lambda: things["theirs"], lambda: "theirs" in things):
            with pytest.raises(OptionError) as refused:
                ask()
            assert str(refused.value) == text
        with pytest.raises(OptionError, match="unknown thing 'goood'; did you mean 'good'"):
            things["goood"]


@pytest.mark.parametrize("ask", [lambda things: "other" in things, list])
def test_the_first_question_is_answered_as_the_second_one_is(monkeypatch, ask):
    things = registry(monkeypatch, {"theirs": "no_such_module:Thing"})
    with pytest.warns(UserWarning, match="'theirs' of package no_such_module:Thing"):
        first = ask(things)
    assert ask(things) == first


def test_a_name_of_our_own_stays_ours(monkeypatch):
    things = registry(monkeypatch, {"ours": "frcl.regularisers:EWC", "good": GOOD})
    with pytest.warns(UserWarning, match="'ours' of package .* there is already a thing 'ours'; choose another name"):
        assert list(things) == ["ours", "good"]
    assert things["ours"] is FunctionalKL


def test_an_object_that_registers_itself_as_it_is_imported_is_no_clash(monkeypatch):
    assert list(registry(monkeypatch, {"ours": GOOD})) == ["ours"]


def test_every_registry_knows_what_it_holds():
    for known in (BENCHMARKS, METHODS, CRITERIA, LIKELIHOODS, REGULARISERS):
        with pytest.raises(OptionError, match=f"a {known.kind} is (of type|a subclass of) .*, not 7"):
            known.add("seven", 7)
    with pytest.raises(OptionError, match="a method is of type Method, not "):
        METHODS.add("criterion", Criterion("random"))


@pytest.mark.slow
def test_the_commands_go_on_beside_a_broken_package(tmp_path):
    """An installed package, as pip leaves it, whose module is not there."""
    info = tmp_path / "site" / "broken_things-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-things\nVersion: 1.0\n")
    groups = ("benchmarks", "methods", "likelihoods", "criteria", "regularisers")
    (info / "entry_points.txt").write_text("".join(f"[frcl.{one}]\nlost = lost_module:Thing\n" for one in groups))
    environment = {
        **os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(info.parent)]), "OMP_NUM_THREADS": "1",
    }  # fmt: skip

    def frcl(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "frcl", *arguments]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    listed = frcl("list")
    assert (listed.returncode, "lost" in listed.stdout) == (0, False)
    assert "split-digits" in listed.stdout
    reason = "'lost' of package broken-things (entry point group frcl.{}) cannot be used: ModuleNotFoundError"
    assert [listed.stderr.count(reason.format(one)) for one in ("benchmarks", "methods")] == [1, 1]
    ran = frcl("run", "split-digits", "--dry-run")
    assert ran.returncode == 0, ran.stderr
    asked = frcl("run", "split-digits", "--method", "lost", "--dry-run")
    assert asked.returncode == 2
    assert f"error: method {reason.format('methods')}" in asked.stderr
    assert "Traceback" not in listed.stderr + ran.stderr + asked.stderr
