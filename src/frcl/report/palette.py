"""All colours, for the light and the dark theme; safe for colour-blind readers, tested for contrast.

Figures are drawn in the light colours. Each light colour has exactly one role, so that a page can replace it by
the CSS variable of the role, which follows the theme of the reader.
"""

from __future__ import annotations

HEAT_LEVELS = ORDERED = 9
SERIES = 8


def _theme(plain: str, series: str, order: str, heat: str, dark_text_on: range) -> dict[str, str]:
    """Colours by role: those of the page, of series, of ordered items, of heat, and of text on heat."""
    groups = {"series": series, "order": order, "heat": heat}
    return (
        dict(zip(("page", "card", "ink", "muted", "line", "axis", "accent"), plain.split(), strict=True))
        | {f"{name}-{n}": colour for name, colours in groups.items() for n, colour in enumerate(colours.split())}
        | {f"on-heat-{n}": f"#0d131{n:x}" if n in dark_text_on else f"#fefef{n:x}" for n in range(HEAT_LEVELS)}
    )


LIGHT = _theme(
    "#f6f7f9 #ffffff #17202c #566171 #dfe3e9 #98a2b0 #0a61a3",
    "#0b6fb8 #c24a14 #1d9e78 #6a2c8c #c08a00 #1f8fb5 #8f1d4f #6b7481",
    "#472b6f #3a3d83 #21518f #006492 #00768d #008580 #0d9170 #54995d #829e4b",
    "#eef4fb #c3defb #9cc7f4 #78afe7 #5897d7 #3778b6 #2569a8 #13538c #063f6d",
    range(0, 5),
)
DARK = _theme(
    "#0f141b #171d26 #e8ecf2 #a0abb9 #2c3542 #66717f #79bdf8",
    "#60aef7 #ee7a45 #52dcab #9e63d2 #f5d166 #86e0f7 #d9577f #b4bdc9",
    "#9175c1 #8088d5 #699bdf #4eaee0 #3cbfd7 #47cdc7 #6bd8b3 #97df9e #c3e28d",
    "#202d3a #25405b #2b547e #336a9f #4484c2 #5496d8 #6eadee #8cc5ff #aedcff",
    range(4, HEAT_LEVELS),
)


def series(number: int) -> str:
    """The colour of the `number`-th series; colours repeat after `SERIES`."""
    return LIGHT[f"series-{number % SERIES}"]


def in_order(number: int, of: int) -> str:
    """The colour of the `number`-th of `of` ordered items."""
    return LIGHT[f"order-{round(number * (ORDERED - 1) / max(of - 1, 1))}"]


def heat(share: float) -> tuple[str, str]:
    """The colour for a share between 0 and 1, and that of text on it."""
    level = min(int(min(max(share, 0.0), 1.0) * HEAT_LEVELS), HEAT_LEVELS - 1)
    return LIGHT[f"heat-{level}"], LIGHT[f"on-heat-{level}"]
