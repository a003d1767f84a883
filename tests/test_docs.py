"""The documentation is true: its code blocks run, its links lead somewhere, its tables agree with the code."""

import ast
import importlib
import importlib.util
import inspect
import json
import re
import shlex
import subprocess
import sys
import tomllib
from dataclasses import dataclass, fields
from pathlib import Path

import pytest
import typer

import frcl
from frcl import cli
from frcl.data import BENCHMARKS
from frcl.data.options import BenchmarkOptions
from frcl.data.registry import is_own
from frcl.experiment.config import PARTS, PLAIN, Config, DetectorOptions, by_name
from frcl.experiment.keeper import COLUMNS
from frcl.learners import checkpoint
from frcl.likelihoods import LIKELIHOODS
from frcl.likelihoods.bernoulli import Bernoulli
from frcl.likelihoods.poisson import Poisson
from frcl.likelihoods.robustmax import RobustMax

ROOT = Path(__file__).resolve().parents[1]
DOCS = sorted((ROOT / "docs").glob("*.md"))
PAGES = [ROOT / "README.md", *DOCS]
GUIDES = [ROOT / name for name in ("ARCHITECTURE.md", "CONTRIBUTING.md", "GLOSSARY.md", "CHANGELOG.md")]
PACKAGE = ROOT / "src" / "frcl"
SHELL = ("sh", "bash", "shell", "console")
NOT_CODE = ("text", "bibtex", "csv", "html")

# -- blocks ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Block:
    """A fenced block; `runs` is false for one marked no-run, `line` is where its text begins."""

    language: str
    flags: tuple[str, ...]
    text: str
    line: int

    @property
    def runs(self) -> bool:
        return "no-run" not in self.flags


def blocks_of(page: str) -> list[Block]:
    """The fenced blocks of a page, directives such as {toctree} left out."""
    found, opened, lines = [], None, page.splitlines()
    for number, line in enumerate(lines):
        if opened is None and line.startswith("```"):
            opened = number
        elif opened is not None and line.rstrip() == "```":
            language, *flags = lines[opened][3:].split() or [""]
            text = "\n".join(lines[opened + 1 : number]) + "\n"
            found.append(Block(language, tuple(flags), text, opened + 1))
            opened = None
    assert opened is None, f"the block that begins in line {opened and opened + 1} has no end"
    return [block for block in found if not block.language.startswith("{")]


def prose_of(page: str) -> str:
    """The page without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", page, flags=re.S | re.M)


def command_lines(block: Block) -> list[list[str]]:
    """The commands of a shell block as words; in a console block only what comes after a $."""
    lines = block.text.replace("\\\n", " ").splitlines()
    if block.language == "console":
        lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    words = [shlex.split(line, comments=True) for line in lines]
    for command in words:
        while command and re.match(r"\w+=", command[0]):
            command.pop(0)
    return [command for command in words if command]


class Executor:
    """Runs the blocks of one page in order, in one namespace and the current folder; fails at the first wrong one."""

    def __init__(self, monkeypatch, capsys):
        self._patch, self._capsys = monkeypatch, capsys
        self._names = {"__name__": "page"}
        self._said = ""

    def page(self, path: Path, text: str) -> None:
        for block in blocks_of(text):
            if block.language in NOT_CODE and "output" in block.flags:
                assert block.text.strip() == self._said.strip(), f"{path.name}, line {block.line}: another output"
                continue
            self._capsys.readouterr()
            self.block(path, block)
            self._said = self._capsys.readouterr().out

    def block(self, path: Path, block: Block) -> None:
        if block.language == "python":
            code = compile("\n" * block.line + block.text, str(path), "exec")
            if block.runs:
                exec(code, self._names)  # noqa: S102
        elif block.language in SHELL:
            for words in command_lines(block):
                self.command(words, runs=block.runs)
        elif block.language == "toml":
            tomllib.loads(block.text)
        elif block.language == "json":
            json.loads(block.text)
        else:
            assert block.language in NOT_CODE, f"{path.name}, line {block.line}: what is {block.language!r}?"

    def command(self, words: list[str], *, runs: bool) -> None:
        program, arguments = Path(words[0]).name, words[1:]
        if program.startswith("python") and arguments[:2] == ["-m", "frcl"]:
            program, arguments = "frcl", arguments[2:]
        match program:
            case "frcl":
                self.frcl(arguments, runs=runs)
            case "make":
                targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M)
                assert arguments, "make without a target"
                assert all("=" in word or word in targets for word in arguments), words
            case "pip":
                check_install(arguments)
            case "python" | "python3":
                assert arguments[0] == "-m" or (ROOT / arguments[0]).is_file(), words
                if arguments[:2] == ["-m", "pip"]:
                    check_install(arguments[2:])
                if arguments[:2] == ["-m", "paper"]:
                    self.paper(arguments[2:], runs=runs)
            case "git":
                assert arguments[0] == "clone"
            case _:
                assert program in ("cd", "source", ".", "export", "mkdir"), f"nobody knows how to check {words}"

    def frcl(self, arguments: list[str], *, runs: bool) -> None:
        """Run it; a block that must not run is parsed, and `frcl run` is resolved with --dry-run."""
        group = typer.main.get_command(cli.app)
        if arguments and not arguments[0].startswith("-"):
            name, *rest = arguments
            command = group.get_command(None, name)
            assert command is not None, f"frcl has no command {name!r}"
            if "--help" not in rest:
                params = command.make_context(name, list(rest)).params
                known = [None, *BENCHMARKS]
                given = params.get("benchmark")
                assert given in known or is_own(given), f"there is no benchmark {given}"
            if not runs:
                arguments = [*arguments, "--dry-run" if name == "run" else "--help"]
                arguments = ["cpu" if word == "cuda" else word for word in arguments]  # checked, and not here
        self._patch.setattr(sys, "argv", ["frcl", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        unchecked = "--dry-run" in arguments and ended.value.code == 1  # its data files are not here
        assert unchecked or not ended.value.code, f"frcl {' '.join(arguments)} ended with {ended.value.code}"

    def paper(self, arguments: list[str], *, runs: bool) -> None:
        """Run `python -m paper`; a block that must not run is parsed, and its targets are looked up."""
        from paper import cli as paper_cli
        from paper.targets import chosen_targets

        context = typer.main.get_command(paper_cli.app).make_context("paper", list(arguments))
        chosen_targets(context.params["targets"] or ["all"])
        if runs:
            paper_cli.app(arguments, standalone_mode=False)


def check_install(arguments: list[str]) -> None:
    """What pip is to install is this project, with extras it has."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert arguments[0] == "install"
    for word in arguments[1:]:
        if not word.startswith("-"):
            found = re.fullmatch(r"(?:frcl|\.)(?:\[([\w,-]+)\])?", word)
            assert found is not None, f"pip install {word}"
            assert set((found[1] or "").split(",")) <= {"", *extras}, word


@pytest.fixture
def executor(monkeypatch, capsys, tmp_path) -> Executor:
    """In a fresh folder, with no data at hand and no way to download any."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FRCL_DATA", raising=False)
    monkeypatch.setenv("FRCL_MIRRORS", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Executor(monkeypatch, capsys)


SLOW = (
    "README", "tutorial", "getting-started", "own-data", "own-network", "other-libraries", "methods", "frcl-plus",
    "performance",
)  # fmt: skip


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=[pytest.mark.slow] if page.stem in SLOW else [], id=page.name) for page in PAGES],
)
def test_the_blocks_of_a_page_run(page, executor):
    executor.page(page, page.read_text())


def test_there_are_blocks_to_run():
    assert {page.stem for page in DOCS} >= {
        "index", "getting-started", "own-data", "own-network", "streams", "maths", "metrics", "files", "gotchas",
        "reference",
    }  # fmt: skip
    for page in PAGES:
        runnable = [b for b in blocks_of(page.read_text()) if b.runs and b.language in ("python", *SHELL)]
        assert runnable, f"{page.name} has no block to run"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("```python\nlearner.fit()\n```", "'learner' is not defined"),
        ("```python no-run\nlearner.fit(\n```", "never closed"),
        ("```python\nprint(1)\n```\n\n```text output\n2\n```", "another output"),
        ("```sh\nfrcl run --steps 0 --out here\n```", "ended with 2"),
        ("```sh no-run\nfrcl run --stepps 5\n```", "--stepps"),
        ("```sh no-run\nfrcl run splt-mnist\n```", "no benchmark splt-mnist"),
        ("```sh no-run\nfrcl run --set ratte=1\n```", "ended with 2"),
        ("```sh no-run\nfrcl resumee here\n```", "no command 'resumee'"),
        ("```sh no-run\nfrcl resume --jsn here\n```", "--jsn"),
        ("```sh no-run\nfrcl resume\n```", "[Mm]issing argument"),
        ("```sh no-run\npython -m paper tabel1\n```", "there is no target 'tabel1'"),
        ("```sh no-run\npython -m paper table1 --lst\n```", "--lst"),
        ("```console\n$ frcl reports\nall is well\n```", "no command 'reports'"),
        ("```sh\nmake everything\n```", "everything"),
        ("```sh\npip install 'frcl[nothing]'\n```", "nothing"),
        ("```sh\nrm -r here\n```", "nobody knows how to check"),
        ("```toml\nname = \n```", "[Ii]nvalid"),
        ("```pyhton\n1\n```", "what is 'pyhton'"),
        ("```python\n1\n", "has no end"),
    ],
)
def test_a_broken_block_is_noticed(text, complaint, executor):
    with pytest.raises(Exception) as caught:  # noqa: PT011
        executor.page(Path("page.md"), text)
    assert re.search(complaint, f"{caught.value!s} {getattr(caught.value, 'format_message', str)()}")


def test_blocks_share_names_and_output_is_compared(executor):
    executor.page(Path("page.md"), "```python\na = 2\n```\n\n```python\nprint(a)\n```\n\n```text output\n2\n```\n")


# -- links and names --------------------------------------------------------------------------------------------


def anchors(page: Path) -> set[str]:
    """Headings as GitHub and the documentation name them."""
    headings = re.findall(r"^#+ (.+)$", prose_of(page.read_text()), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [*PAGES, *GUIDES], ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)\s]+)\)", prose_of(page.read_text())):
        if re.match(r"https://", link):
            continue
        file, _, anchor = link.partition("#")
        target = page.parent / file if file else page
        assert target.exists(), f"{page.name} links to {link}"
        assert not anchor or anchor in anchors(target), f"{page.name} links to {link}"


def test_every_public_name_is_in_the_docs():
    text = "".join(prose_of(page.read_text()) for page in DOCS)
    assert [name for name in frcl.__all__ if not re.search(rf"`(frcl\.)?{name}\b", text)] == []


def resolved(dotted: str) -> object:
    """The module or the object of that name."""
    parts = dotted.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        for part in parts[count:]:
            found = getattr(found, part)
        return found
    raise AssertionError(dotted)


def in_backticks(page: Path) -> list[str]:
    """What stands in backticks in the text of a page."""
    return re.findall(r"(?<!`)`([^`\n]+)`(?!`)", prose_of(page.read_text()))


@pytest.mark.parametrize("page", [*PAGES, *GUIDES], ids=lambda page: page.name)
def test_dotted_names_are_in_the_code(page):
    groups = {f"frcl.{kind}" for kind in ("likelihoods", "criteria", "regularisers", "methods", "benchmarks")}
    for text in in_backticks(page):
        if found := re.match(r"(?:frcl|paper)(?:\.[a-zA-Z_]\w*)+", text):
            assert found[0] in groups or resolved(found[0]) is not None


@pytest.mark.parametrize("page", [*PAGES, *GUIDES], ids=lambda page: page.name)
def test_paths_are_there(page):
    for text in in_backticks(page):
        if re.fullmatch(r"(?:examples|src|docs|tests|paper|tools)/[a-z\d_/.-]+", text):
            assert (ROOT / text).exists(), text
        elif re.fullmatch(r"(?:\w+/)+\w+\.(?:py|toml)", text):
            assert (PACKAGE / text).exists() or (ROOT / text).exists(), text


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_single_words_are_in_the_code(page):
    code = "".join(file.read_text() for folder in ("src", "paper") for file in (ROOT / folder).rglob("*.py"))
    words = set(re.findall(r"\w+", code)) | {"demo", "examples", "pip", "make"}
    found = [re.fullmatch(r"([a-zA-Z_]\w*)(?:\(\))?", text) for text in in_backticks(page)]
    assert [word[1] for word in found if word and word[1] not in words] == []


def test_the_table_of_formulas_names_the_right_files():
    rows = re.findall(r"^\|.*\| (`frcl\..*`) \| `([\w/]+\.py)` \|$", (ROOT / "docs/maths.md").read_text(), re.M)
    assert len(rows) >= 15
    for names, file in rows:
        for dotted in re.findall(r"`([\w.]+)`", names):
            assert Path(inspect.getsourcefile(resolved(dotted))) == ROOT / "src/frcl" / file


# -- tables -------------------------------------------------------------------------------------------------------


def section(page: str, title: str) -> str:
    """What stands under a heading of the reference, up to the next."""
    found = re.search(rf"^#+ {re.escape(title)}$(.*?)(?=^#|\Z)", (ROOT / "docs" / page).read_text(), re.S | re.M)
    assert found is not None, title
    return found[1]


def test_option_tables_are_current():
    spec = importlib.util.spec_from_file_location("reference", ROOT / "tools" / "reference.py")
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    text = (ROOT / "docs/reference.md").read_text()
    assert tool.written(text) == text, "run `python tools/reference.py`"
    assert len(tool.BLOCK.findall(text)) == text.count("<!-- end of options -->") == 8
    assert "| `lr` | `float` | `0.001` | learning rate |" in tool.table(frcl.FRCLOptions)
    assert "| `lr` |" not in tool.table(frcl.FRCLOptions(points=3))


def test_the_defaults_of_options_in_prose_are_those_of_the_code():
    """`name` (number) in a text is an option of FRCL with its default, unless the detector of a run has the name."""
    defaults = {f.name: f.default for kind in (DetectorOptions, frcl.FRCLOptions) for f in fields(kind)}
    told = [(name, float(n)) for page in PAGES for name, n in re.findall(r"`(\w+)` \(([\d.e-]+)\)", page.read_text())]
    assert {"initial_std", "target_noise", "tolerance"} <= {name for name, _ in told}
    assert [(name, number) for name, number in told if defaults.get(name, number) != number] == []


def test_the_table_of_benchmark_options_is_complete_and_its_defaults_right():
    rows = re.findall(r"^\| `(\w+)` \| `([^`]+)` \| \S.*\|$", section("reference.md", "BenchmarkOptions"), re.M)
    expected = [(f.name, f.default) for f in fields(BenchmarkOptions)]
    assert [(name, ast.literal_eval(default)) for name, default in rows] == expected


def test_the_table_of_the_detector_is_complete_and_its_defaults_right():
    rows = re.findall(
        r"^\| `(\w+)` \| `[^`]+` \| `([^`]+)` \| \S.*\|$", section("reference.md", "BoundaryDetector"), re.M
    )
    given = list(inspect.signature(frcl.BoundaryDetector).parameters.values())
    assert [(name, ast.literal_eval(default)) for name, default in rows] == [(p.name, p.default) for p in given]


@pytest.mark.parametrize("kind", [frcl.Prediction, frcl.StepLog, frcl.Summary], ids=lambda k: k.__name__)
def test_record_tables_are_complete(kind):
    rows = re.findall(r"^\| (`.*?`) \|", section("reference.md", kind.__name__), re.M)
    assert re.findall(r"`(\w+)`", " ".join(rows)) == [f.name for f in fields(kind)]


def shown(name: str, call: object) -> str:
    """A call as the reference shows it: `fit(x, y, size=None)`."""
    given = [p for p in inspect.signature(call).parameters.values() if p.name != "self"]
    parts = [p.name if p.default is p.empty else f"{p.name}={p.default!r}" for p in given]
    return f"`{name}({', '.join(parts)})`".replace("'", '"')


def test_calls_are_shown_as_they_are():
    text = (ROOT / "docs/reference.md").read_text()
    for name, call in (
        ("MLP", frcl.MLP),
        ("ConvNet", frcl.ConvNet),
        ("frcl.load", frcl.load),
        ("CifarNet", frcl.CifarNet),
        ("ResNet18", frcl.ResNet18),
        ("MultiInput", frcl.MultiInput),
        ("freeze_batch_norm", frcl.freeze_batch_norm),
    ):
        assert shown(name, call) in text
    for kind in (frcl.FunctionalKL, frcl.CurrentInputs, frcl.MemoryTargets, frcl.Curvature, frcl.EWC):
        assert shown(kind.__name__, kind) in text
    for kind in (frcl.PathIntegral, frcl.Replay, frcl.KroneckerCurvature):
        assert shown(kind.__name__, kind) in text
    for kind, title in ((frcl.FRCL, "The learner"), (frcl.Ensemble, "Ensemble")):
        told = section("reference.md", title)
        for name, value in vars(kind).items():
            if not name.startswith("_"):
                assert (f"`{name}`" if isinstance(value, property) else shown(name, value)) in told, name


def test_every_likelihood_is_in_the_reference():
    rows = re.findall(r"^\| `(\w+)` \|", section("reference.md", "Likelihoods"), re.M)
    assert sorted(rows) == sorted(["auto", *LIKELIHOODS])


@pytest.mark.parametrize(
    "kind", [checkpoint.Saved, checkpoint.Settings, checkpoint.SavedTask, checkpoint.SavedWindow],
    ids=lambda k: k.__name__,
)  # fmt: skip
def test_the_layout_of_a_checkpoint_is_that_of_its_dataclasses(kind):
    rows = re.findall(r"^\| `(\w+)` \|", section("files.md", kind.__name__), re.M)
    assert rows == [f.name for f in fields(kind)]


def test_the_configuration_shown_has_every_plain_option_with_its_default():
    (block,) = re.findall(r"```toml\n(.*?)```", section("files.md", "config.toml"), re.S)
    shown = {name: value for name, value in tomllib.loads(block).items() if name not in PARTS}
    values = by_name(Config())
    assert tuple(shown) == PLAIN
    assert shown == {name: "none" if values[name] is None else values[name] for name in PLAIN}


def test_the_numbers_of_quadrature_nodes_are_those_of_the_code():
    text = section("maths.md", "Likelihoods")
    for kind in (Bernoulli, RobustMax, Poisson):
        (row,) = re.findall(rf"^\| `{kind.__name__}` \|.*$", text, re.M)
        (count,) = re.findall(r"(\d+) nodes", row)
        assert int(count) == kind.nodes


def test_every_file_and_every_key_of_a_run_is_explained(executor, tmp_path):
    settings = ["--hidden-boundaries", "--tasks", "2", "--steps", "3", "--seeds", "1", "--set", "log_past_every=1"]
    executor.frcl(["run", *settings, "--quiet", "--out", "run"], runs=True)
    text = prose_of((ROOT / "docs/files.md").read_text())
    for path in (tmp_path / "run").iterdir():
        assert f"`{path.name}{'/' * path.is_dir()}`" in text
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    nested = [key for name in ("calibration", "memory_bytes", "seconds") for key in result[name]]
    columns = [name for file in COLUMNS.values() for name in file]
    assert [key for key in (*result, *nested, *columns) if f"`{key}`" not in text] == []
    boundaries = section("metrics.md", "Boundaries")
    scores = [*result["boundaries"], *result["boundaries"]["acted_on"], "delay"]
    assert [key for key in scores if f"`{key}`" not in boundaries] == []


# -- architecture -------------------------------------------------------------------------------------------------


def listed_modules(text: str) -> dict[str, list[str]]:
    """The files that ARCHITECTURE.md lists below src/frcl and paper, in order, as paths relative to each."""
    found: dict[str, list[str]] = {}
    top, room = "", ""
    for indent, name in re.findall(r"^( {4,8})([\w/]+(?:/|\.py|\.toml))(?: |$)", text, re.M):
        if len(indent) == 4:
            top, room = name.rstrip("/"), ""
            found[top] = []
        elif len(indent) == 6 and name.endswith("/"):
            room = name
        else:
            found[top].append(name if len(indent) == 6 else room + name)
    return found


def present_modules(folder: Path) -> set[str]:
    """The modules and TOML files of a package; `__init__` and `__main__` left out."""
    files = [path for path in folder.rglob("*") if path.suffix in (".py", ".toml") and "results" not in path.parts]
    files = [path for path in files if path.parent.name != "results" or path.suffix == ".py"]
    return {str(path.relative_to(folder)) for path in files if not path.name.startswith("__")}


@pytest.mark.parametrize("top", ["src/frcl", "paper"])
def test_the_architecture_lists_every_module_and_no_other(top):
    listed = listed_modules((ROOT / "ARCHITECTURE.md").read_text())[top]
    assert len(listed) == len(set(listed))
    assert set(listed) == present_modules(ROOT / top)


def imported(path: Path) -> set[str]:
    """The rooms of the package that a file imports from."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "frcl":
            names = [node.module] if "." in node.module else [f"frcl.{alias.name}" for alias in node.names]
            found |= {name.split(".")[1] for name in names}
        elif isinstance(node, ast.Import):
            found |= {a.name.split(".")[1] for a in node.names if a.name.startswith("frcl.")}
    return found


def test_the_architecture_lists_rooms_in_the_order_of_imports():
    listed = listed_modules((ROOT / "ARCHITECTURE.md").read_text())["src/frcl"]
    order = list(dict.fromkeys(name.split("/")[0].removesuffix(".py") for name in listed))
    for path in PACKAGE.rglob("*.py"):
        own = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if not own.startswith("__"):
            later = imported(path) & set(order[order.index(own) + 1 :])
            assert not later, f"{path.relative_to(PACKAGE)} imports {later}, which stands below it"


def test_the_list_of_modules_is_read_as_it_is_written():
    text = "    src/frcl/\n      errors.py  x\n      data/  y\n        own.py  z\n    paper/  p\n      cli.py  q\n"
    assert listed_modules(text) == {"src/frcl": ["errors.py", "data/own.py"], "paper": ["cli.py"]}


def test_the_formulas_of_the_architecture_are_in_the_code():
    table = (ROOT / "ARCHITECTURE.md").read_text().split("## Formulas in the code")[1].split("\n## ")[0]
    rows = re.findall(r"^\| .*\| (`.*`) \|$", table, re.M)
    names = [name for row in rows for name in re.findall(r"`([\w/]+\.\w+)`", row)]
    assert len(names) >= 20
    for name in names:
        assert resolved(f"frcl.{name.replace('/', '.')}") is not None


# -- the built pages ----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("sphinx", "myst_parser"))), reason="needs sphinx and myst-parser"
)
def test_the_pages_build_without_a_warning_and_need_no_network(tmp_path):
    command = [sys.executable, "-m", "sphinx", "-W", "-q", "-b", "html", str(ROOT / "docs"), str(tmp_path / "site")]
    built = subprocess.run([*command, "-d", str(tmp_path / "trees")], capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    assert not built.stderr
    for page in DOCS:
        html = (tmp_path / "site" / f"{page.stem}.html").read_text()
        assert not re.search(r'<(?:script|link|img|iframe)\b[^>]*(?:src|href)="(?:https?:)?//', html)
    assert (tmp_path / "site" / "maths.html").read_text().count("<math ") > 50
