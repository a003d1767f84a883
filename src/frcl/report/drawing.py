"""Colours, and figures as files and as SVG in a page; the same figure always gives the same bytes."""

import io
import re
import tomllib
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from frcl.files import write_atomically
from frcl.report.numbers import TEXTS
from frcl.report.tables import Rows, Table

WIDTH = 4.6  # inches; 10-point text stays readable on a phone
LONGEST_NAME = 18
PNG_DPI = 220
HEAT_LEVELS = 9
SERIES = 8
LOOK = tomllib.loads(Path(__file__).with_name("style.toml").read_text(encoding="utf-8"))
LIGHT: dict[str, str] = LOOK["light"]  # colours by role
DARK: dict[str, str] = LOOK["dark"]
ROLES = {colour: role for role, colour in LIGHT.items()}


def series(number: int) -> str:
    """The colour of the `number`-th series; colours repeat after `SERIES`."""
    return LIGHT[f"series-{number % SERIES}"]


def heat(share: float) -> tuple[str, str]:
    """The colour for a share between 0 and 1, and that of text on it."""
    level = min(int(min(max(share, 0.0), 1.0) * HEAT_LEVELS), HEAT_LEVELS - 1)
    return LIGHT[f"heat-{level}"], LIGHT[f"on-heat-{level}"]


@dataclass(frozen=True, eq=False)
class Drawing:
    """A figure with a caption, a description `text` for screen readers, and a table of its data."""

    name: str
    title: str
    caption: str
    text: str
    figure: Figure
    table: Table | None = None


def drawing(
    key: str, figure: Figure, rows: Rows = (), columns: tuple[str, ...] = (), name: str = "", **values: Any
) -> Drawing:
    """A drawing with the texts that texts.toml has under `key`, `values` filled in, and a table of `rows`."""
    given = dict(TEXTS["figures"][key])
    columns = columns or tuple(given.pop("columns", ()))
    texts = {part: text.format_map(values) for part, text in given.items()}
    caption = texts.pop("table", "")
    return Drawing(name or key, figure=figure, table=Table(key, caption, columns, rows) if caption else None, **texts)


@contextmanager
def style() -> Iterator[None]:
    """Inside, figures are drawn and written in the style of the report."""
    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from", category=UserWarning)
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(LOOK["settings"] | {name: LIGHT[role] for name, role in LOOK["colours"].items()})
        yield


def blank(height: float, rows: int = 1, **options: Any) -> tuple[Figure, list[Axes]]:
    """A new figure with `rows` axes in one column."""
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    return figure, list(figure.subplots(rows, 1, squeeze=False, **options)[:, 0])


def name_in_figure(name: str, longest: int = LONGEST_NAME) -> str:
    """A label for a figure: one line, printable, not too long, and never hidden by matplotlib (leading underscore)."""
    plain = "".join(letter if letter.isprintable() else " " for letter in name).strip() or "?"
    short = plain if len(plain) <= longest else plain[: longest - 1] + "…"
    return f" {short}" if short.startswith("_") else short


def save(drawing: Drawing, folder: Path) -> list[Path]:
    """Write the figure as `name.png` and `name.svg` on white."""
    paths = [folder / f"{drawing.name}.{kind}" for kind in ("png", "svg")]
    for path in paths:
        write_atomically(path, _saved(drawing.figure, path.suffix[1:], "path", transparent=False))
    return paths


def _saved(figure: Figure, kind: str, text_as: str, *, transparent: bool) -> bytes:
    metadata = {"Date": None, "Creator": None} if kind == "svg" else {"Software": None}
    buffer = io.BytesIO()
    with matplotlib.rc_context({"svg.fonttype": text_as}):
        figure.savefig(buffer, format=kind, dpi=PNG_DPI, transparent=transparent, metadata=metadata)
    return buffer.getvalue()


def inline_svg(drawing: Drawing) -> str:
    """SVG for an HTML page: text as text, colours as CSS variables, unique ids, hidden from screen readers.

    The element around it has their description. Only tags are rewritten, never text, which may come from anyone.
    """
    svg = _saved(drawing.figure, "svg", "none", transparent=True).decode()
    unwanted = r"^.*?(?=<svg)|<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->"
    svg = re.sub(r">\s+<", "><", re.sub(unwanted, "", svg, flags=re.DOTALL))
    used = set(re.findall(r'(?:url\(#|href="#)([^)"]+)', "".join(re.findall(r"<[^>]+>", svg))))
    return re.sub(r"<[^>]+>", lambda match: _page_tag(match[0], drawing.name, used), svg).strip()


def _page_tag(tag: str, name: str, used: set[str]) -> str:
    """One tag of a saved figure, rewritten for the page."""
    tag = re.sub(r"\s+", " ", tag)
    if tag.startswith("<svg "):
        box = re.search(r'viewBox="[^"]*"', tag)
        return f'<svg {box[0] if box else ""} aria-hidden="true" focusable="false">'
    tag = re.sub(r' id="([^"]*)"', lambda m: f' id="{name}-{m[1]}"' if m[1] in used else "", tag)
    tag = re.sub(r'(url\(#|href="#)', rf"\g<1>{name}-", tag)
    tag = re.sub(r"font-family: [^;\"]*", "font-family: inherit", tag)
    tag = re.sub(r"font: ([\d.]+px)[^;\"]*", r"font-family: inherit; font-size: \1", tag)
    tag = re.sub(r"#[0-9a-f]{6}\b", lambda m: f"var(--{ROLES[m[0]]})" if m[0] in ROLES else m[0], tag)
    return re.sub(r"\d+\.\d{3,}", lambda m: f"{float(m[0]):.2f}", tag)
