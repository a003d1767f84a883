"""Write examples/tutorial.ipynb, with outputs, and the figures of docs/tutorial.md: the blocks of that page, run.

    python tools/notebook.py

Outputs of the page (`text output` blocks) are rewritten too; a test compares the notebook with the page.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import re
import tempfile
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch

torch.set_num_threads(1)  # as the tests, which compare the outputs

ROOT = Path(__file__).resolve().parents[1]
PAGE, NOTEBOOK = ROOT / "docs" / "tutorial.md", ROOT / "examples" / "tutorial.ipynb"
SITE = "../docs/"
PYTHON = re.compile(r"^```python\n(.*?)^```$", re.S | re.M)
OUTPUT = re.compile(r"\n```text output\n.*?^```$\n?", re.S | re.M)
FIGURE = re.compile(r"^!\[[^\]]*\]\(tutorial-\d+\.png\)\n", re.M)


def parts_of(page: str) -> list[tuple[str, str]]:
    """The cells of the page, ("markdown" or "code", text); outputs and figures are left out."""
    pieces = PYTHON.split(FIGURE.sub("", OUTPUT.sub("", page)))
    named = [("code" if number % 2 else "markdown", piece.strip("\n")) for number, piece in enumerate(pieces)]
    links = [(kind, re.sub(r"\]\((?=[\w-]+\.md)", f"]({SITE}", text) if kind == "markdown" else text)
             for kind, text in named]  # fmt: skip
    return [(kind, text) for kind, text in links if text]


def executed(code: str, names: dict[str, Any]) -> tuple[str, list[bytes]]:
    """What a cell prints, and the figures that it opens as PNG; they are closed."""
    said, pictures, others = io.StringIO(), [], set(plt.get_fignums())
    with contextlib.redirect_stdout(said):
        exec(compile(code, "tutorial", "exec"), names)  # noqa: S102
    for number in [number for number in plt.get_fignums() if number not in others]:
        picture = io.BytesIO()
        plt.figure(number).savefig(picture, dpi=110)
        pictures.append(picture.getvalue())
        plt.close(number)
    return said.getvalue(), pictures


def lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def cell(kind: str, text: str, number: int, said: str = "", pictures: list[bytes] | None = None) -> dict[str, Any]:
    """A cell as the format of notebooks, 4.5, has it."""
    made: dict[str, Any] = {"cell_type": kind, "id": f"cell-{number}", "metadata": {}, "source": lines(text)}
    if kind == "code":
        stream = [{"output_type": "stream", "name": "stdout", "text": lines(said)}] if said else []
        images = [base64.b64encode(picture).decode() for picture in pictures or []]
        shown = [{"output_type": "display_data", "data": {"image/png": one}, "metadata": {}} for one in images]
        made |= {"execution_count": None, "outputs": [*stream, *shown]}
    return made


def main() -> None:
    """Run the page in a temporary folder; write the notebook, the figures and the outputs of the page."""
    page, names, cells, count = PAGE.read_text("utf-8"), dict[str, Any](__name__="__main__"), [], 0
    bare = OUTPUT.sub("", page)
    here = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for number, (kind, text) in enumerate(parts_of(page)):
            said, pictures = executed(text, names) if kind == "code" else ("", [])
            cells.append(cell(kind, text, number, said, pictures))
            for picture in pictures:
                count += 1
                (PAGE.parent / f"tutorial-{count}.png").write_bytes(picture)
            if said:
                block = f"```python\n{text}\n```\n"
                bare = bare.replace(block, f"{block}\n```text output\n{said}```\n")
        os.chdir(here)
    kernel = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    document = {"cells": cells, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}
    NOTEBOOK.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", "utf-8")
    PAGE.write_text(bare, "utf-8")


if __name__ == "__main__":
    main()
