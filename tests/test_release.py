"""The release: one version everywhere, archives that are complete and hold no more, errors that are said."""

import importlib.util
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import frcl

ROOT = Path(__file__).resolve().parents[1]
spec = importlib.util.spec_from_file_location("release", ROOT / "tools" / "release.py")
release = importlib.util.module_from_spec(spec)
spec.loader.exec_module(release)


def test_one_version_is_stated_everywhere():
    assert set(release.versions().values()) == {frcl.__version__}


def test_the_package_says_that_it_is_typed():
    assert (ROOT / "src/frcl/py.typed").is_file()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "Typing :: Typed" in project["classifiers"]


@pytest.fixture
def archives(tmp_path):
    """An sdist and a wheel with the right names in them, and empty files."""
    names = {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src").rglob("*.py")}
    names |= {"frcl/py.typed", "frcl/experiment/defaults.toml", "frcl-0.2.0.dist-info/METADATA"}
    sources = ["paper/cli.py", "tests/test_house.py", "docs/index.md", "Makefile", "README.md"]

    def made(without=(), more=()):
        sdist, wheel = tmp_path / "frcl-0.2.0.tar.gz", tmp_path / "frcl.whl"
        with tarfile.open(sdist, "w:gz") as archive:
            for name in sources:
                if name not in without:
                    archive.add(ROOT / name, f"frcl-0.2.0/{name}")
        with zipfile.ZipFile(wheel, "w") as archive:
            for name in sorted(names - set(without)) + list(more):
                archive.writestr(name, "")
        return sdist, wheel

    return made


def test_archives_are_looked_into(archives):
    release.look_into(*archives())
    for without, complaint in (
        (["frcl/py.typed"], "not in the wheel"),
        (["frcl_main.py"], "not in the wheel"),
        (["frcl/learners/frcl.py"], "not in the wheel"),
        (["paper/cli.py"], "paper/cli.py is not in the sdist"),
    ):
        with pytest.raises(AssertionError, match=complaint):
            release.look_into(*archives(without))
    for more in ("paper/cli.py", "tests/test_house.py", "frcl2/x.py"):
        with pytest.raises(AssertionError, match="in the wheel: "):
            release.look_into(*archives((), [more]))


def test_a_command_that_fails_ends_the_check(tmp_path):
    with pytest.raises(SystemExit, match="no such thing"):
        release.run("python3", "-c", "raise SystemExit('no such thing')", folder=tmp_path)
