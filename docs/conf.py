"""Configuration of the documentation: `sphinx-build -W -b html docs site`. Building needs no network."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from docutils.nodes import SkipNode
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.util import logging

project = "frcl"
author = copyright = "The frcl developers"
release = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text("utf-8"))["project"]["version"]

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
autodoc_typehints = "none"
autodoc_member_order = "bysource"
napoleon_google_docstring = False
nitpick_ignore_regex = [("py:.*", ".*")]  # types in docstrings are words
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]
language = "en_GB"
toc_object_entries = False
nitpicky = True

html_theme = "alabaster"
html_title = "frcl"
html_show_sourcelink = False
html_copy_source = False
html_static_path = ["_static"]
html_math_renderer = "mathml"
html_theme_options = {
    "description": "Continual learning that remembers functions",
    "page_width": "84rem",
    "body_max_width": "62rem",
    "sidebar_width": "15rem",
    "font_family": "system-ui, sans-serif",
    "head_font_family": "system-ui, sans-serif",
    "show_powered_by": False,
}


def mathml(node: Any, *, as_block: bool) -> str:
    """A formula as MathML, which browsers render without a script; a formula that cannot be parsed is a warning."""
    try:
        return str(tex2mathml(node.astext(), as_block=as_block))
    except MathError as error:
        logging.getLogger(__name__).warning("formula %r: %s", node.astext(), error, location=node)
        return "<code>formula</code>"


def inline_math(writer: Any, node: Any) -> None:
    """Render an inline formula."""
    writer.body.append(mathml(node, as_block=False))
    raise SkipNode


def block_math(writer: Any, node: Any) -> None:
    """Render a displayed formula."""
    writer.body.append(f'<div class="math">{mathml(node, as_block=True)}</div>')
    raise SkipNode


def keyword_section(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Show the options of a learner as a section of parameters of their own."""
    at = next((number for number, line in enumerate(lines) if line.startswith("Every field of")), None)
    if at is not None:
        rest = [line.removeprefix("    ") for line in lines[at + 1 :]]
        rest = [line if line.startswith(" ") else line.replace(": ", " : ", 1) for line in rest]
        lines[at:] = ["Other Parameters", "----------------", *rest[1:]]


def plain_paragraphs(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Show the paragraphs of a docstring that are columns or formulas as they stand."""
    text = "\n".join(lines)
    shown = []
    for paragraph in text.split("\n\n"):
        own = paragraph.split("\n")
        is_prose = own[0].lstrip().startswith((":", "..", "-", "*")) or not any(own)
        columns = any(re.search(r"\S {3,}\S", line) for line in own) or all(line.startswith("    ") for line in own)
        if columns and not is_prose:
            own = ["::", "", *(f"    {line}" for line in own)]
        shown.append("\n".join(own))
    lines[:] = "\n\n".join(shown).split("\n")


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the renderer of formulas."""
    app.connect("autodoc-process-docstring", keyword_section, priority=100)
    app.connect("autodoc-process-docstring", plain_paragraphs, priority=900)
    app.add_html_math_renderer("mathml", (inline_math, None), (block_math, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
