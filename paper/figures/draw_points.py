"""Figures 4 and 6, drawn from their sheets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import mean
from typing import TYPE_CHECKING

import numpy as np

from paper.figures.base import canvas
from paper.figures.sheets import Sheet
from paper.library import LIGHT, SERIES, WIDTH, Drawing, Floats, number, series, share, to_rgba

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WHICH = {"random": "random start", "trace": "optimised by the trace"}
COLOURS = {"random": LIGHT["axis"], "trace": LIGHT["ink"]}
GAP = 2  # pixels between two images
TITLE_4 = "Figure 4: inducing points in feature space"
TITLE_6 = "Figure 6: inducing points of the Greek alphabet"


def from_hex(text: str) -> Floats:
    """A square image in 0..1 from two hexadecimal digits per pixel."""
    pixels = np.frombuffer(bytes.fromhex(text), np.uint8)
    side = round(len(pixels) ** 0.5)
    found: Floats = pixels.reshape(side, side) / 255.0
    return found


def mosaic(columns: Sequence[Sequence[Floats]], *, upwards: bool = False) -> Floats:
    """Columns of images from the top down, or from the bottom `upwards`; NaN elsewhere."""
    side = next(image.shape[0] for column in columns for image in column)
    step, tallest = side + GAP, max(map(len, columns))
    found = np.full((tallest * step - GAP, len(columns) * step - GAP), np.nan)
    for place, column in enumerate(columns):
        for count, image in enumerate(column):
            top = step * (tallest - 1 - count if upwards else count)
            found[top : top + side, place * step : place * step + side] = image
    return found


def _fall(numbers: Sheet) -> float:
    """The mean relative reduction of the trace term by the searches."""
    before, after = (numbers.where(kind="criterion", which=which).floats("value") for which in WHICH)
    return mean(1 - b / a for a, b in zip(before, after, strict=True))


# -- Figure 4 ------------------------------------------------------------------------------------------------


def draw_figure_4(numbers: Sheet) -> Drawing:
    """Top: the projection. Middle: images of both sets of points. Bottom: the number of classes among them."""
    from matplotlib.figure import Figure

    facts, shown = numbers.settings(), len(set(numbers.where(kind="point").column("start")))
    figure = Figure(figsize=(WIDTH, 4.9 + 0.2 * shown), layout="constrained")
    grid = figure.add_gridspec(3, 2, height_ratios=(3.2, 0.24 * shown, 0.95))
    _projection(figure.add_subplot(grid[0, :]), numbers)
    for place, which in enumerate(WHICH):
        _images(figure.add_subplot(grid[1, place]), numbers, which, shown)
    counts = {which: Counter(map(int, _classes(numbers, which))) for which in WHICH}
    _bars(figure.add_subplot(grid[2, :]), counts)
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=2)
    starts = sum(counts["random"].values())
    caption = (
        f"The first task of Permuted-MNIST after {int(facts['steps']):,} steps, {facts['points']} inducing points, "
        f"{int(facts['search_steps']):,} proposals of the search. Top: t-SNE of the features of the task's examples, "
        "coloured by class, with the points of the first row of images; the digit in a marker is its class. Middle: "
        "the points as images without the permutation, one random start per row, sorted by class, with the number of "
        f"classes. Bottom: the number of classes over {starts} starts."
    )
    return Drawing("figure4", TITLE_4, caption, _text_4(numbers, counts), figure)


def _classes(numbers: Sheet, which: str) -> list[str]:
    return numbers.where(kind="classes", which=which).column("value")


def _colour(label: int) -> str:
    """The colour of a class: one of the series, and two more for the last digits."""
    return series(label) if label < SERIES else (LIGHT["ink"], LIGHT["heat-2"])[label - SERIES]


def _projection(axes: Axes, numbers: Sheet) -> None:
    cloud = numbers.where(kind="example")
    colours = [_colour(int(label)) for label in cloud.column("label")]
    axes.scatter(cloud.floats("x"), cloud.floats("y"), s=4, c=colours, alpha=0.4, linewidths=0, rasterized=True)
    looks = {"random": ("s", LIGHT["card"], 84), "trace": ("o", LIGHT["ink"], 60)}
    for which, (marker, face, size) in looks.items():
        points = numbers.where(kind="point", which=which, start="0")
        x, y = points.floats("x"), points.floats("y")
        axes.scatter(x, y, s=size, marker=marker, facecolors=face, edgecolors=LIGHT["ink"], linewidths=1.1,
                     label=WHICH[which], zorder=3)  # fmt: skip
        for place, label in enumerate(points.column("label")):
            axes.text(x[place], y[place], label, ha="center", va="center_baseline", fontsize=6.5, zorder=4,
                      color=LIGHT["ink"] if which == "random" else LIGHT["card"])  # fmt: skip
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(True)


def _images(axes: Axes, numbers: Sheet, which: str, shown: int) -> None:
    """One row of images per start, sorted by class, with the number of classes at its end."""
    rows = []
    for start in range(shown):
        points = numbers.where(kind="point", which=which, start=str(start))
        pairs = sorted(zip(points.column("label"), points.column("image"), strict=True))
        rows.append([from_hex(image) for _, image in pairs])
    picture = mosaic(list(zip(*rows, strict=True)))
    axes.imshow(to_rgba(picture), interpolation="none")
    step = (picture.shape[0] + GAP) / shown
    for start, count in enumerate(_classes(numbers, which)[:shown]):
        axes.text(picture.shape[1] + 5, step * (start + 0.5), count, va="center", fontsize=8, color=LIGHT["muted"])
    axes.set_title(WHICH[which], fontsize=9)
    axes.axis("off")


def _bars(axes: Axes, counts: dict[str, Counter[int]]) -> None:
    """The share of starts by the number of classes among their points."""
    for place, (which, counted) in enumerate(counts.items()):
        for k, times in counted.items():
            height, x = 100 * times / sum(counted.values()), k + 0.42 * (place - 0.5)
            axes.bar([x], [height], width=0.4, color=COLOURS[which], label=WHICH[which] if k == max(counted) else "")
            axes.text(x, height + 3, f"{height:.0f}", ha="center", fontsize=8, color=LIGHT["muted"])
    low, high = min(map(min, counts.values())), max(map(max, counts.values()))
    axes.set(xlim=(low - 0.6, high + 0.6), ylim=(0, 105), xticks=range(low, high + 1), yticks=[])
    axes.set_xlabel("classes among the points (bars: % of starts)")
    axes.legend(loc="upper left", fontsize=8, handlelength=0.9, handleheight=0.9, borderaxespad=0)
    axes.grid(visible=False)
    axes.spines["left"].set_visible(False)


def _average(counted: Counter[int]) -> float:
    return sum(k * times for k, times in counted.items()) / sum(counted.values())


def _text_4(numbers: Sheet, counts: dict[str, Counter[int]]) -> str:
    most = max(max(counted) for counted in counts.values())
    starts = sum(counts["random"].values())
    said = [
        f"{name} {number(_average(counts[which]), 2)} classes on average, {most} in {counts[which][most]} of {starts}"
        for which, name in WHICH.items()
    ]
    fall = share(_fall(numbers), 0)
    return f"Over {starts} starts: {'; '.join(said)}. The search lowers the trace term by {fall} on average."


# -- Figure 6 ------------------------------------------------------------------------------------------------


def draw_figure_6(numbers: Sheet) -> Drawing:
    """One column of images per character. Top: the random points. Bottom: the points after the search."""
    facts = numbers.settings()
    each, characters = int(facts["each"]), int(facts["characters"])
    columns = {which: _by_character(numbers, which, characters) for which in WHICH}
    heights = [max(map(len, images)) for images in columns.values()]
    figure, places = canvas(WIDTH, 0.55 + 0.19 * sum(heights), 2, 1, height_ratios=heights)
    counts = [len(images) for images in columns["trace"]]
    covered = f"{sum(map(bool, counts))} of {characters} characters, {min(counts)} to {max(counts)} of each"
    titles = (f"(a) random: {each} of each character", f"(b) optimised by the trace: {covered}")
    for axes, title, images in zip(places, titles, columns.values(), strict=True):
        axes.imshow(to_rgba(mosaic(images, upwards=True)), interpolation="none")
        axes.set_title(title, loc="left", fontsize=9)
        axes.axis("off")
    caption = (
        f"The Greek alphabet of Omniglot, {each} points per character, after {int(facts['steps']):,} steps. One column "
        f"for each of the {characters} characters: (a) {each} random examples of each; (b) the points after "
        f"{int(facts['search_steps']):,} proposals of the search by the trace, which does not use the labels."
    )
    text = f"The search lowers the trace term by {share(_fall(numbers), 0)} and ends with points of {covered}."
    return Drawing("figure6", TITLE_6, caption, text, figure)


def _by_character(numbers: Sheet, which: str, characters: int) -> list[list[Floats]]:
    columns: list[list[Floats]] = [[] for _ in range(characters)]
    points = numbers.where(kind="point", which=which)
    for label, image in zip(points.column("label"), points.column("image"), strict=True):
        columns[int(label)].append(from_hex(image))
    return columns
