"""The inducing inputs of each task as contact sheets, where they are images."""

import base64
import io
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from frcl.experiment.metrics import Floats
from frcl.report.drawing import WIDTH, Drawing, blank, drawing, name_in_figure
from frcl.report.numbers import plural
from frcl.report.run import Run

COLUMNS = 10
MOST_IMAGES = 40  # of one task
TINT = 0.05
SMALLEST_SIDE = 5  # fewer than 25 features are not taken for an image


@dataclass(frozen=True, eq=False)
class Contact:
    """The images of one task on one sheet: RGBA pixels [height, width, 4], clear between the images."""

    task: str
    caption: str
    text: str
    pixels: NDArray[np.uint8]
    ink: bool  # whether the images are grey, so that they can be inverted on a dark page

    @property
    def address(self) -> str:
        """The sheet as a PNG in a data URL."""
        buffer = io.BytesIO()
        Image.fromarray(self.pixels).save(buffer, format="PNG", optimize=True)
        return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def contact_sheets(run: Run) -> list[Contact]:
    """A sheet for each of the learner's tasks whose inducing inputs are images."""
    pairs = [(run.task(number), as_images(points)) for number, points in run.points.items()]
    found = [(task, images) for task, images in pairs if images is not None and len(images)]
    low = min((float(images.min()) for _, images in found), default=0.0)
    high = max((float(images.max()) for _, images in found), default=1.0)
    low, high = min(low, 0.0), max(high, 1.0 if low >= 0.0 else low + 1e-12)
    sheets = []
    for task, images in found:
        shown, side = images[:MOST_IMAGES], images.shape[1]
        part = "" if len(shown) == len(images) else f", the first {len(shown)} shown"
        caption = f"{plural(len(images), 'image')} of {side}×{side}{part}"
        text, pixels = f"Inducing inputs, {task}: {caption}", to_rgba(sheet((shown - low) / (high - low)))
        sheets.append(Contact(task, caption, text, pixels, ink=images.ndim == 3))
    return sheets


def as_images(points: NDArray[Any]) -> Floats | None:
    """[M, H, W] or [M, H, W, 3]: the last two axes if they are square, else the flat length if it is a square."""
    values: Floats = points.astype(np.float64)
    if values.ndim >= 3 and values.shape[-1] == values.shape[-2] >= SMALLEST_SIDE:
        if values.ndim == 4 and values.shape[1] == 3:
            return values.transpose(0, 2, 3, 1)
        return np.asarray(values.reshape(len(values), -1, *values.shape[-2:]).mean(1))
    length = math.prod(values.shape[1:])
    side = math.isqrt(length)
    return values.reshape(len(values), side, side) if side >= SMALLEST_SIDE and side * side == length else None


def sheet(images: Floats) -> Floats:
    """Images in rows of `COLUMNS`, a gap of one pixel (two for large ones) between them."""
    count, side, _, *colours = images.shape
    columns, gap = min(count, COLUMNS), 1 if side < 20 else 2
    rows, step = math.ceil(count / columns), side + gap
    tiles = np.full((rows * columns, step, step, *colours), np.nan)
    tiles[:count, :side, :side] = images
    grid = tiles.reshape(rows, columns, step, step, *colours).swapaxes(1, 2)
    return grid.reshape(rows * step, columns * step, *colours)[:-gap, :-gap]


def to_rgba(sheet: Floats) -> NDArray[np.uint8]:
    """Grey images become black on a transparent, faintly tinted ground; colour images stay; NaN is transparent."""
    clear = np.isnan(sheet if sheet.ndim == 2 else sheet[..., 0])
    colour, cover = np.where(clear[..., None], 0.0, sheet.reshape(*clear.shape, -1)), np.ones(clear.shape)
    if sheet.ndim == 2:
        colour, cover = np.zeros((*sheet.shape, 3)), TINT + (1 - TINT) * sheet
    shown = np.concatenate([colour, np.where(clear, 0.0, cover)[..., None]], axis=-1)
    return np.asarray(np.rint(255 * shown), dtype=np.uint8)


def points_figure(run: Run) -> Drawing | str:
    """All sheets in one figure, for the files; the page shows the same sheets in a grid."""
    sheets = contact_sheets(run)
    if not sheets:
        parts = run.result.memory_bytes.parts if run.result.memory_bytes else {}
        none = "points.npz is missing" if parts.get("points") else "the run kept no inducing points"
        kept = "the inputs kept are not images" if run.points else none
        return f"Inducing images: {kept}."
    ratios = [max(one.pixels.shape[0] / one.pixels.shape[1], 0.1) for one in sheets]
    figure, places = blank(sum(0.72 * WIDTH * ratio + 0.3 for ratio in ratios), rows=len(sheets), height_ratios=ratios)
    for axes, one in zip(places, sheets, strict=True):
        axes.imshow(one.pixels, interpolation="none")
        axes.set_title(name_in_figure(one.task), loc="left")
        axes.axis("off")
    return drawing("inducing-images", figure, told="; ".join(one.text for one in sheets))
