"""The notebook is the tutorial, and its cells, run in order, print what stands in it."""

import ast
import contextlib
import importlib.util
import io
import json
from pathlib import Path

import matplotlib
import pytest

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOK = json.loads((ROOT / "examples" / "tutorial.ipynb").read_text(encoding="utf-8"))
CODE = [cell for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]


@pytest.fixture
def tool(monkeypatch):
    spec = importlib.util.spec_from_file_location("notebook", ROOT / "tools" / "notebook.py")
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def test_the_notebook_has_the_cells_of_the_page(tool):
    cells = [(cell["cell_type"], "".join(cell["source"])) for cell in NOTEBOOK["cells"]]
    assert cells == tool.parts_of((ROOT / "docs/tutorial.md").read_text(encoding="utf-8")), "python tools/notebook.py"
    assert (NOTEBOOK["nbformat"], NOTEBOOK["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in NOTEBOOK["cells"]}) == len(NOTEBOOK["cells"])


def test_a_page_is_split_into_cells(tool):
    code, said = "```python\nx = 1\nprint(x)\n```", "```text output\n1\n```"
    page = f"# T\n\n[a](b.md#c)\n\n{code}\n\n{said}\n\n![f](tutorial-1.png)\n\nend\n"
    assert tool.parts_of(page) == [
        ("markdown", "# T\n\n[a](../docs/b.md#c)"), ("code", "x = 1\nprint(x)"), ("markdown", "end")
    ]  # fmt: skip
    assert tool.executed("print(1)", {}) == ("1\n", [])


def test_a_cell_has_the_figures_that_it_opens(tool):
    from matplotlib import pyplot

    other = pyplot.figure()  # of something else in this process
    said, pictures = tool.executed("from matplotlib import pyplot\n_ = pyplot.figure(), pyplot.figure()", {})
    assert said == ""
    assert [picture[:4] for picture in pictures] == [b"\x89PNG"] * 2
    assert pyplot.get_fignums() == [other.number]


def test_figures_of_the_notebook_are_those_of_the_page():
    drawn = [one for cell in CODE for one in cell["outputs"] if one["output_type"] == "display_data"]
    page = (ROOT / "docs/tutorial.md").read_text(encoding="utf-8")
    assert [f"tutorial-{number + 1}.png" in page for number in range(len(drawn) + 1)] == [True] * len(drawn) + [False]
    assert all((ROOT / "docs" / f"tutorial-{number + 1}.png").is_file() for number in range(len(drawn)))


@pytest.mark.slow
def test_the_cells_run_and_print_what_they_say(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    matplotlib.use("Agg")
    names = {"__name__": "__main__"}
    for cell in CODE:
        source, said = "".join(cell["source"]), io.StringIO()
        ast.parse(source)
        with contextlib.redirect_stdout(said):
            exec(compile(source, "tutorial.ipynb", "exec"), names)  # noqa: S102
        printed = "".join(line for one in cell["outputs"] if one["output_type"] == "stream" for line in one["text"])
        assert said.getvalue() == printed
