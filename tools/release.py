"""Build sdist and wheel, look into them, install them apart from this checkout and try them.

    python tools/release.py                                # dependencies are those of this environment
    python tools/release.py --fresh                        # all dependencies are installed, as a user would
    python tools/release.py --also python3.12 python3.13   # other interpreters: install without dependencies, compile;
                                                           # with --fresh: install all and try, as with this one

Needs a package index for hatchling, where it is not installed, and for --fresh.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PIP = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check")
SMOKE = """
import frcl, torch
x = torch.randn(200, 4, generator=torch.Generator().manual_seed(0))
learner = frcl.FRCL(frcl.MLP(4, (16,)), points=8, steps=30)
for k in (0, 1):
    learner.fit(x, (x[:, k] > 0).long())
learner.save("smoke.frcl")
again = frcl.load("smoke.frcl")
assert (again.predict(x, task=0).mean == learner.predict(x, task=0).mean).all()
print("frcl", frcl.__version__, "from", frcl.__file__)
"""


def versions() -> dict[str, str]:
    """The version by the file that states it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    places = {
        "src/frcl/__init__.py": r'^__version__ = "(.+)"$',
        "CITATION.cff": r"^version: (.+)$",
        "CHANGELOG.md": r"^## (\S+) \(\d{4}-\d\d-\d\d\)$",
    }
    found = {"pyproject.toml": str(project["version"])}
    for name, pattern in places.items():
        match = re.search(pattern, (ROOT / name).read_text("utf-8"), re.M)
        found[name] = match[1] if match else "none"
    return found


def run(*command: object, folder: Path) -> str:
    """The output of a command; its failure ends the program."""
    words = [str(word) for word in command]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    result = subprocess.run(words, cwd=folder, env=clean, capture_output=True, text=True, check=False)
    if result.returncode:
        raise SystemExit(f"{' '.join(words)}\n{result.stdout}{result.stderr}")
    return result.stdout


def environment(python: str, folder: Path, *, borrow: bool = False) -> Path:
    """The interpreter of a new virtual environment; with `borrow` it sees the packages of this one."""
    run(python, "-m", "venv", folder, folder=folder.parent)
    own = folder / "bin" / "python"
    if borrow:
        site = Path(run(own, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", folder=folder).strip())
        (site / "borrowed.pth").write_text(sysconfig.get_path("purelib"))
    return own


def built(folder: Path) -> tuple[Path, Path]:
    """The sdist, and the wheel that is built from the sdist alone."""
    python = Path(sys.executable)
    if importlib.util.find_spec("hatchling") is None:
        python = environment(sys.executable, folder / "build")
        run(python, *PIP, "hatchling", folder=folder)
    run(python, "-m", "hatchling", "build", "-t", "sdist", "-d", folder, folder=ROOT)
    (sdist,) = folder.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "source", filter="data")
    (source,) = (folder / "source").iterdir()
    run(python, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, folder=source)
    (wheel,) = folder.glob("*.whl")
    return sdist, wheel


def look_into(sdist: Path, wheel: Path) -> None:
    """Refuse archives that lack something or have too much."""
    with tarfile.open(sdist) as archive:
        source = {name.split("/", 1)[-1] for name in archive.getnames()}
    packed = set(zipfile.ZipFile(wheel).namelist())
    for name in ("paper/cli.py", "tests/test_house.py", "docs/index.md", "Makefile", "README.md"):
        assert name in source, f"{name} is not in the sdist"
    own = {f"frcl/{path.relative_to(ROOT / 'src/frcl').as_posix()}" for path in (ROOT / "src/frcl").rglob("*.py")}
    missing = {*own, "frcl/py.typed", "frcl_main.py", "frcl/experiment/defaults.toml"} - packed
    assert not missing, f"not in the wheel: {sorted(missing)}"
    foreign = {name for name in packed if not re.match(r"frcl/|frcl_main\.py$|frcl-[\d.]+\.dist-info/", name)}
    assert not foreign, f"in the wheel: {sorted(foreign)}"


def tried(python: Path, folder: Path) -> str:
    """What the installed package says of itself, after it was used from Python and as a command."""
    said = run(python, "-c", SMOKE, folder=folder).strip()
    assert str(ROOT) not in said, f"the checkout was imported: {said}"
    run(python.parent / "frcl", "run", "--steps", "5", "--seeds", "1", "--quiet", "--out", "run", folder=folder)
    assert (folder / "run" / "report.html").is_file()
    return said


def used(archive: Path, interpreter: str, place: Path, *, fresh: bool) -> str:
    """Install an archive in an environment of its own and try it; `fresh`: with all its dependencies."""
    python = environment(interpreter, place / "venv", borrow=not fresh)
    how = ["-c", ROOT / "constraints.txt"] if fresh else ["--no-deps", "--ignore-installed"]
    run(python, *PIP, *how, archive, folder=place)
    version = run(python, "--version", folder=place).strip()
    return f"{version}{', fresh' * fresh}: {tried(python, place)}"


def compiled(archive: Path, interpreter: str, place: Path, *, fresh: bool) -> str:
    """Install an archive without its dependencies and compile its modules."""
    python = environment(interpreter, place / "venv")
    run(python, *PIP, "--no-deps", archive, folder=place)
    site = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", folder=place).strip()
    what = f"{site}/frcl", f"{site}/frcl_main.py"
    run(python, "-W", "error", "-m", "compileall", "-q", "-f", *what, folder=place)
    version = run(python, "--version", folder=place).strip()
    return f"{version}: installs without its dependencies, and all modules compile; not run"


def main(arguments: list[str] | None = None) -> None:
    """Everything, with a line for each step that passed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--fresh", action="store_true", help="install all dependencies")
    parser.add_argument("--also", nargs="*", default=[], help="other interpreters")
    given = parser.parse_args(arguments)
    stated = versions()
    assert len(set(stated.values())) == 1, f"versions differ: {stated}"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sdist, wheel = built(folder)
        look_into(sdist, wheel)
        print(f"built: {sdist.name} {sdist.stat().st_size:,} bytes, {wheel.name} {wheel.stat().st_size:,} bytes")
        for archive in (wheel,) if given.fresh else (wheel, sdist):
            place = folder / f"try-{archive.suffix[1:]}"
            place.mkdir()
            print(f"{archive.name}: {used(archive, sys.executable, place, fresh=given.fresh)}", flush=True)
        for number, other in enumerate(given.also):
            place = folder / f"also-{number}"
            place.mkdir()
            how = used if given.fresh else compiled
            print(f"{wheel.name}: {how(wheel, other, place, fresh=given.fresh)}", flush=True)


if __name__ == "__main__":
    main()
