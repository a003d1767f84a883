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
import textwrap
import tomllib
from dataclasses import dataclass, fields
from pathlib import Path

import pytest
import torch
import typer

import frcl
from frcl import cli
from frcl.baselines.options import FinetuneOptions
from frcl.baselines.penalised import Penalised
from frcl.data import BENCHMARKS
from frcl.data.options import BenchmarkOptions
from frcl.experiment.config import DetectorOptions, RunOptions
from frcl.experiment.keeper import COLUMNS
from frcl.experiment.networks import NetworkOptions
from frcl.learners.lockstep import together
from frcl.regularisers.protocol import Heads, Moment, Place
from paper import cli as paper_cli
from paper.targets import chosen_targets
from streams import blobs
from test_house import ORDER

ROOT = Path(__file__).resolve().parents[1]
DOCS = sorted((ROOT / "docs").glob("*.md"))
PAGES = [ROOT / "README.md", *DOCS]
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
                assert given in known or given.endswith(".toml"), f"there is no benchmark {given}"
            if not runs:
                arguments = [*arguments, "--dry-run" if name == "run" else "--help"]
        self._patch.setattr(sys, "argv", ["frcl", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert not ended.value.code, f"frcl {' '.join(arguments)} ended with {ended.value.code}"

    def paper(self, arguments: list[str], *, runs: bool) -> None:
        """Run `python -m paper`; a block that must not run is parsed, and its targets are looked up."""
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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_blocks_of_a_page_run(page, executor):
    executor.page(page, page.read_text())


def test_there_are_blocks_to_run():
    assert {page.stem for page in DOCS} >= {
        "index", "getting-started", "own-data-and-network", "maths", "metrics", "files", "gotchas", "reference"
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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_names_in_the_text_are_in_the_code(page):
    prose = prose_of(page.read_text())
    for dotted in re.findall(r"`(frcl(?:\.[a-zA-Z_]\w*)+)", prose):
        resolved(dotted)
    files = re.findall(r"`((?:examples|src|docs|tests|paper)/[a-z\d_/.]+)`", prose)
    assert [name for name in files if not (ROOT / name).exists()] == []
    code = "".join(file.read_text() for folder in ("src", "paper") for file in (ROOT / folder).rglob("*.py"))
    words = set(re.findall(r"\w+", code)) | {"demo", "examples", "pip", "make"}
    assert [word for word in re.findall(r"`([a-zA-Z_]\w*)(?:\(\))?`", prose) if word not in words] == []


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


@pytest.mark.parametrize(
    "kind", [frcl.FRCLOptions, DetectorOptions, BenchmarkOptions, NetworkOptions, RunOptions], ids=lambda k: k.__name__
)
def test_option_tables_are_complete_and_their_defaults_right(kind):
    rows = re.findall(r"^\| `(\w+)` \| `([^`]+)` \| \S.*\|$", section("reference.md", kind.__name__), re.M)
    assert [(name, ast.literal_eval(default)) for name, default in rows] == [(f.name, f.default) for f in fields(kind)]


def test_the_table_of_the_detector_is_complete_and_its_defaults_right():
    rows = re.findall(r"^\| `(\w+)` \| `([^`]+)` \| \S.*\|$", section("reference.md", "BoundaryDetector"), re.M)
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
    for name, call in (("MLP", frcl.MLP), ("ConvNet", frcl.ConvNet), ("frcl.load", frcl.load)):
        assert shown(name, call) in text
    for kind, title in ((frcl.FRCL, "The learner"), (frcl.Ensemble, "Ensemble")):
        told = section("reference.md", title)
        for name, value in vars(kind).items():
            if not name.startswith("_"):
                assert (f"`{name}`" if isinstance(value, property) else shown(name, value)) in told, name


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


# -- for those who change it --------------------------------------------------------------------------------------


def test_the_rooms_stand_in_the_order_of_imports():
    listed = re.findall(r"^ {6}(\w+)(?:\.py|/) ", (ROOT / "ARCHITECTURE.md").read_text(), re.M)
    assert listed == [room for room in ORDER if not room.startswith(("cli_", "__"))]


@pytest.mark.parametrize("name", ["ARCHITECTURE.md", "CONTRIBUTING.md", "GLOSSARY.md"])
def test_files_and_functions_that_are_named_are_there(name):
    text = (ROOT / name).read_text()
    for path in re.findall(r"`((?:\w+/)*\w+\.(?:py|toml))`", text):
        found = [folder for folder in ("", "src/frcl", "src/frcl/learners") if (ROOT / folder / path).is_file()]
        assert found or path == "regularisers/l2.py", path
    for row in re.findall(r"^\| .*\|$", text, re.M):
        for file, attribute in re.findall(r"`([a-z_/]+)\.([a-z]\w+)`", row):
            assert attribute in ("py", "toml") or resolved(f"frcl.{file.replace('/', '.')}.{attribute}")


@pytest.fixture
def added_method():
    """The class that CONTRIBUTING.md writes."""
    (code,) = re.findall(r"^ +```python\n(.*?)^ +```$", (ROOT / "CONTRIBUTING.md").read_text(), re.S | re.M)
    names = {"__name__": __name__}
    exec(compile(textwrap.dedent(code), "CONTRIBUTING.md", "exec"), names)  # noqa: S102
    return names["L2"]


def test_the_method_that_contributing_adds_has_its_value(added_method):
    params = {"w": torch.randn(3, 2, generator=torch.Generator().manual_seed(0)), "head/0": torch.zeros(2, 3)}
    model, method = Heads(torch.nn.Identity()), added_method(0.3)
    method.begin(Moment(model, params, 0, 10.0))
    there = {name: value + 0.1 for name, value in params.items()}
    for at, expected in ((params, 0.0), (there, 0.3 * 6 * 0.01)):
        value = method.penalty(Place(model, 0), at, method.constants(), torch.zeros(1, 2), {})
        assert float(value) == pytest.approx(expected)


def test_the_method_that_contributing_adds_learns_many_seeds_at_once(added_method):
    def learner(seed: int) -> Penalised:
        options = FinetuneOptions(steps=9, batch_size=10, seed=seed)
        return Penalised(frcl.MLP(4, (8,), seed=seed).double(), options, added_method(0.3))

    alone, group = ([learner(seed) for seed in range(2)] for _ in range(2))
    for x, y in (blobs((0, 1), 30, 1), blobs((0, 1, 2), 30, 2)):
        for one in alone:
            one.fit(x, y)
        penalties = [
            [terms[3] for terms in step] for taken in together([one.learn(x, y) for one in group]) for step in taken
        ]
        assert penalties[0] == [0.0, 0.0]
        assert min(penalties[-1]) > 0.0
    for one, other in zip(alone, group, strict=True):
        for name, value in one.state_dict()["tensors"].items():
            torch.testing.assert_close(other.state_dict()["tensors"][name], value, rtol=1e-10, atol=1e-10)
    group[0].load_state_dict(alone[0].state_dict())


# -- the built pages ----------------------------------------------------------------------------------------------


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
