"""Configuration of the documentation: `sphinx-build -W -b html docs site`. Building needs no network."""

from __future__ import annotations

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

extensions = ["myst_parser"]
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]
language = "en_GB"
nitpicky = True

html_theme = "alabaster"
html_title = "frcl"
html_show_sourcelink = False
html_copy_source = False
html_static_path = ["_static"]
html_math_renderer = "mathml"
html_theme_options = {
    "description": "Continual learning that remembers functions",
    "page_width": "70rem",
    "body_max_width": "48rem",
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


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the renderer of formulas."""
    app.add_html_math_renderer("mathml", (inline_math, None), (block_math, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
