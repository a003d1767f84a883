"""All colours, for the light and the dark theme; safe for colour-blind readers, tested for contrast.

Figures are drawn in the light colours. Each light colour has exactly one role, so that a page can replace it by
the CSS variable of the role, which follows the theme of the reader.
"""

from __future__ import annotations

HEAT_LEVELS = 9
SERIES = 8

_HEAT_LIGHT = (
    "#eef4fb", "#c3defb", "#9cc7f4", "#78afe7", "#5897d7", "#3778b6", "#2569a8", "#13538c", "#063f6d",
)  # fmt: skip
_HEAT_DARK = (
    "#202d3a", "#25405b", "#2b547e", "#336a9f", "#4484c2", "#5496d8", "#6eadee", "#8cc5ff", "#aedcff",
)  # fmt: skip
_SERIES_LIGHT = ("#0b6fb8", "#c24a14", "#1d9e78", "#6a2c8c", "#c08a00", "#1f8fb5", "#8f1d4f", "#6b7481")
_SERIES_DARK = ("#60aef7", "#ee7a45", "#52dcab", "#9e63d2", "#f5d166", "#86e0f7", "#d9577f", "#b4bdc9")
_ORDER_LIGHT = (
    "#472b6f", "#3a3d83", "#21518f", "#006492", "#00768d", "#008580", "#0d9170", "#54995d", "#829e4b",
)  # fmt: skip
_ORDER_DARK = (
    "#9175c1", "#8088d5", "#699bdf", "#4eaee0", "#3cbfd7", "#47cdc7", "#6bd8b3", "#97df9e", "#c3e28d",
)  # fmt: skip


def _roles(plain: dict[str, str], series: tuple[str, ...], order: tuple[str, ...], heat: tuple[str, ...],
           dark_text_on: range) -> dict[str, str]:  # fmt: skip
    text = {
        f"on-heat-{level}": f"#0d131{level:x}" if level in dark_text_on else f"#fefef{level:x}"
        for level in range(HEAT_LEVELS)
    }
    return (
        plain
        | {f"series-{number}": colour for number, colour in enumerate(series)}
        | {f"order-{number}": colour for number, colour in enumerate(order)}
        | {f"heat-{level}": colour for level, colour in enumerate(heat)}
        | text
    )


LIGHT = _roles(
    {
        "page": "#f6f7f9",
        "card": "#ffffff",
        "ink": "#17202c",
        "muted": "#566171",
        "line": "#dfe3e9",
        "axis": "#98a2b0",
        "accent": "#0a61a3",
    },
    _SERIES_LIGHT, _ORDER_LIGHT, _HEAT_LIGHT, range(0, 5),
)  # fmt: skip
DARK = _roles(
    {
        "page": "#0f141b",
        "card": "#171d26",
        "ink": "#e8ecf2",
        "muted": "#a0abb9",
        "line": "#2c3542",
        "axis": "#66717f",
        "accent": "#79bdf8",
    },
    _SERIES_DARK, _ORDER_DARK, _HEAT_DARK, range(4, HEAT_LEVELS),
)  # fmt: skip


def series(number: int) -> str:
    """The colour of the `number`-th series; colours repeat after `SERIES`."""
    return LIGHT[f"series-{number % SERIES}"]


def in_order(number: int, of: int) -> str:
    """The colour of the `number`-th of `of` ordered items."""
    return LIGHT[f"order-{round(number * (len(_ORDER_LIGHT) - 1) / max(of - 1, 1))}"]


def heat(share: float) -> tuple[str, str]:
    """The colour for a share between 0 and 1, and that of text on it."""
    level = min(int(min(max(share, 0.0), 1.0) * HEAT_LEVELS), HEAT_LEVELS - 1)
    return LIGHT[f"heat-{level}"], LIGHT[f"on-heat-{level}"]
