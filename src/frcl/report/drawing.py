"""Figures as files and as SVG in a page; the same figure always gives the same bytes."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from frcl.files import write_atomically
from frcl.report.palette import LIGHT
from frcl.report.tables import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 4.6  # inches; 10-point text stays readable on a phone
LONGEST_NAME = 18
PNG_DPI = 220
ROLES = {colour: role for role, colour in LIGHT.items()}


@dataclass(frozen=True, eq=False)
class Drawing:
    """A figure with a caption, a description `text` for screen readers, and a table of its data."""

    name: str
    title: str
    caption: str
    text: str
    figure: Figure
    table: Table | None = None


@contextmanager
def style() -> Iterator[None]:
    """Inside, figures are drawn and written in the style of the report."""
    import matplotlib

    look: dict[Any, Any] = {
        "svg.hashsalt": "frcl",
        "text.parse_math": False,
        "font.family": "sans-serif",
        "font.sans-serif": ["DejaVu Sans"],
        "font.size": 9.8,
        "axes.titlesize": 10,
        "axes.edgecolor": LIGHT["axis"],
        "axes.labelcolor": LIGHT["muted"],
        "axes.titlecolor": LIGHT["ink"],
        "axes.linewidth": 0.8,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.axisbelow": True,
        "axes.grid": True,
        "grid.color": LIGHT["line"],
        "grid.linewidth": 0.8,
        "xtick.color": LIGHT["axis"],
        "ytick.color": LIGHT["axis"],
        "xtick.labelcolor": LIGHT["muted"],
        "ytick.labelcolor": LIGHT["muted"],
        "text.color": LIGHT["ink"],
        "lines.linewidth": 1.8,
        "lines.markersize": 4.5,
        "legend.frameon": False,
        "legend.labelcolor": LIGHT["ink"],
        "legend.handlelength": 1.6,
        "legend.columnspacing": 1.4,
    }
    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from", category=UserWarning)
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(look)
        yield


def blank(height: float, rows: int = 1, **options: Any) -> tuple[Figure, list[Axes]]:
    """A new figure with `rows` axes in one column."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    axes = figure.subplots(rows, 1, squeeze=False, **options)
    return figure, list(axes[:, 0])


def name_in_figure(name: str, longest: int = LONGEST_NAME) -> str:
    """A label for a figure: one line, printable, not too long, and never hidden by matplotlib (leading underscore)."""
    plain = "".join(letter if letter.isprintable() else " " for letter in name).strip() or "?"
    short = plain if len(plain) <= longest else plain[: longest - 1] + "…"
    return f" {short}" if short.startswith("_") else short


def inline_svg(drawing: Drawing) -> str:
    """SVG for an HTML page: text as text, colours as CSS variables, unique ids, hidden from screen readers.

    The description for screen readers belongs to the surrounding element. Only tags are rewritten, never the text
    between them, which may come from anyone.
    """
    svg = _saved(drawing.figure, "svg", {"svg.fonttype": "none"}, transparent=True).decode()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = re.sub(r">\s+<", "><", svg)
    tags = "".join(re.findall(r"<[^>]+>", svg))
    used = frozenset(re.findall(r'(?:url\(#|href="#)([^)"]+)', tags))
    return re.sub(r"<[^>]+>", lambda match: _page_tag(match[0], drawing.name, used), svg).strip()


def _page_tag(tag: str, name: str, used: frozenset[str]) -> str:
    """One tag of a saved figure, rewritten for the page."""
    tag = re.sub(r"\s+", " ", tag)
    if tag.startswith("<svg "):
        box = re.search(r'viewBox="[^"]*"', tag)
        return f'<svg {box[0] if box else ""} aria-hidden="true" focusable="false">'
    tag = re.sub(r' id="([^"]*)"', lambda m: f' id="{name}-{m[1]}"' if m[1] in used else "", tag)
    tag = re.sub(r'(url\(#|href="#)', rf"\g<1>{name}-", tag)
    tag = re.sub(r"font-family: [^;\"]*", "font-family: inherit", tag)
    tag = re.sub(r"font: ([^;\"]*)", _page_font, tag)
    tag = re.sub(r"#[0-9a-f]{6}\b", lambda m: f"var(--{ROLES[m[0]]})" if m[0] in ROLES else m[0], tag)
    return re.sub(r"\d+\.\d{3,}", lambda m: f"{float(m[0]):.2f}", tag)


def _page_font(match: re.Match[str]) -> str:
    """The font of the page, with the size and weight of the figure."""
    size = re.search(r"[\d.]+px", match[1])
    weight = "; font-weight: bold" if "bold" in match[1] or "700" in match[1] else ""
    return f"font-family: inherit; font-size: {size[0] if size else '10px'}{weight}"


def save(drawing: Drawing, folder: Path) -> list[Path]:
    """Write the figure as `name.png` and `name.svg` on white."""
    paths = []
    for kind, settings in (("png", {}), ("svg", {"svg.fonttype": "path"})):
        path = folder / f"{drawing.name}.{kind}"
        write_atomically(path, _saved(drawing.figure, kind, settings, transparent=False))
        paths.append(path)
    return paths


def _saved(figure: Figure, kind: str, settings: dict[Any, Any], *, transparent: bool) -> bytes:
    import matplotlib

    metadata = {"Date": None, "Creator": None} if kind == "svg" else {"Software": None}
    buffer = io.BytesIO()
    with matplotlib.rc_context(settings):
        figure.savefig(buffer, format=kind, dpi=PNG_DPI, transparent=transparent, metadata=metadata)
    return buffer.getvalue()
