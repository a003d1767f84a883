"""The house rules that a machine can check: imports go one way, the core is light, nothing is hidden."""

import ast
import re
import subprocess
import sys
import tomllib
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "frcl"
FILES = sorted(PACKAGE.rglob("*.py"))
PAPER = sorted((ROOT / "paper").rglob("*.py"))

# a room may import from rooms that stand before it, and from itself
ORDER = [
    "errors",
    "registry",
    "options",
    "inputs",
    "trees",
    "codec",
    "seeding",
    "files",
    "distributed",
    "graphs",
    "few",
    "linalg",
    "weights",
    "frozen",
    "features",
    "augment",
    "exact",
    "image_networks",
    "pretrained",
    "likelihoods",
    "posterior",
    "summary",
    "checks",
    "selection",
    "budget",
    "boundary",
    "regularisers",
    "engine",
    "inference",
    "learners",
    "baselines",
    "methods",
    "data",
    "experiment",
    "report",
    "adapters",
    "sklearn",
    "bench",
    "cli",
    "__main__",
]


def room(module: str) -> str:
    return module.split(".")[1]


def inner(module: str, name: str) -> str:
    """The module that `from module import name` imports: a module of that name, or `module` itself."""
    place = PACKAGE.joinpath(*module.split(".")[1:], name)
    return f"{module}.{name}" if place.with_suffix(".py").exists() or place.is_dir() else module


def imports(path: Path) -> list[str]:
    """The modules of the package that a file imports; not those that only the type checker sees."""
    found, tree = [], ast.parse(path.read_text())
    skipped = [
        set(ast.walk(node))
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    ]
    for node in ast.walk(tree):
        if any(node in part for part in skipped):
            continue
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("frcl."):
            found += [inner(node.module, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module == "frcl":
            found += [f"frcl.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name.startswith("frcl.")]
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_go_one_way(path):
    if path == PACKAGE / "__init__.py":
        return
    own = path.relative_to(PACKAGE).with_suffix("").parts[0]
    for module in imports(path):
        if module == "frcl.__version__":
            continue
        assert ORDER.index(room(module)) <= ORDER.index(own), f"{own} imports {module}"


def modules(path: Path) -> set[str]:
    """All modules that a file imports, with the names that it takes from packages."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_the_library_does_not_import_the_reproduction(path):
    assert not [name for name in modules(path) if name.split(".")[0] == "paper"]


@pytest.mark.parametrize("path", PAPER, ids=lambda p: str(p.relative_to(ROOT)))
def test_the_reproduction_uses_public_names_and_one_file_of_others(path):
    import frcl

    names = {name for name in modules(path) if name.split(".")[0] == "frcl"}
    public = {"frcl", *(f"frcl.{name}" for name in frcl.__all__)}
    assert path.name == "library.py" or names <= public


@pytest.mark.parametrize("path", sorted((ROOT / "tests").glob("*.py")), ids=lambda p: p.name)
def test_tests_of_the_library_do_not_use_the_reproduction(path):
    if path.name != "test_docs.py":  # which checks the commands of both
        assert not [name for name in modules(path) if name.split(".")[0] == "paper"]
    assert path == Path(__file__) or "paper/results" not in path.read_text()


def test_the_reproduction_is_in_the_sdist_and_not_in_the_wheel():
    targets = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]
    assert targets["wheel"]["packages"] == ["src/frcl"]
    assert "paper" in targets["sdist"]["include"]


def test_no_modules_import_each_other_in_a_circle():
    """Of any length: an order exists in which every module comes after those that it imports."""
    graph = {}
    for path in FILES:
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        name = ".".join(("frcl", *(parts[:-1] if parts[-1] == "__init__" else parts)))
        graph[name] = {module for module in imports(path) if module != "frcl.__version__"}
    try:
        list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        raise AssertionError(" imports ".join(reversed(error.args[1]))) from None
    with pytest.raises(CycleError):
        list(TopologicalSorter({**graph, "frcl.errors": {"frcl.cli"}}).static_order())


def test_the_core_imports_torch_and_numpy_alone():
    code = "import frcl, sys; print(','.join(sorted({m.split('.')[0] for m in sys.modules})))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    heavy = {"scipy", "sklearn", "matplotlib", "typer", "rich", "jinja2", "requests", "PIL", "pandas"}
    assert not heavy & set(loaded.strip().split(","))


@pytest.mark.parametrize("path", [*FILES, *PAPER], ids=lambda p: str(p.relative_to(ROOT)))
def test_style(path):
    text = path.read_text()
    tree = ast.parse(text)
    assert ast.get_docstring(tree) or not text, "every module says what it is"
    assert len(text.splitlines()) <= 400
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            assert node.end_lineno - node.lineno <= 60, f"{node.name} is too long to read"
    for word in ("nan_to_num", "TO" + "DO", "FIX" + "ME", "hasattr("):
        assert word not in text
    assert not any(line.lstrip().startswith("print(") for line in text.splitlines())


def test_public_names_are_there():
    import frcl

    for name in frcl.__all__:
        assert hasattr(frcl, name)
    assert sorted(frcl.__all__) == sorted(set(frcl.__all__))


WORDS = re.compile(
    r"\banew\b|\bso many\b|\bslopes?\b|what it gives|has the floor|\bworked out\b|could not be had|"
    r"nobody (listens|looks|tells)|(?<!standard )\bdeviations?\b(?! from)",
    re.IGNORECASE,
)
PROSE = [*FILES, *PAPER, *(ROOT / "docs").glob("*.md"), *ROOT.glob("*.md"), *(ROOT / "examples").rglob("*.py")]


@pytest.mark.parametrize("path", PROSE, ids=lambda p: str(p.relative_to(ROOT)))
def test_the_usual_words_are_used(path):
    """GLOSSARY.md says which words the field has for what these meant here."""
    found = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if WORDS.search(line)]
    assert not found


def test_the_lock_file_has_every_dependency_with_its_hash():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *(one for name in ("test", "dev", "docs") for one in extras[name])]
    lines = [line for line in (ROOT / "requirements.lock").read_text().splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"[\w.-]+==\S+ --hash=sha256:[0-9a-f]{64}", line) for line in lines)
    locked = {re.split("==", line)[0].lower().replace("_", "-") for line in lines}
    assert {re.split(r"[\[<>=]", one)[0].lower().replace("_", "-") for one in wanted} - locked == {"torch"}


@pytest.mark.parametrize("call", ["fit", "observe"])
def test_a_call_runs_through_few_functions_in_few_files(call):
    """`python tools/count_functions.py --names` lists them; a helper that is called once may belong to its caller."""
    sys.path.insert(0, str(ROOT / "tools"))
    from count_functions import measured

    functions = measured()[call]
    assert len(functions) <= 120
    assert len({file for file, _ in functions}) <= 15
