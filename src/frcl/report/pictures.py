"""The inducing inputs of each task as contact sheets, where they are images."""

from __future__ import annotations

import base64
import io
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from frcl.experiment.metrics import Floats
from frcl.report.drawing import WIDTH, Drawing, blank, name_in_figure
from frcl.report.numbers import plural
from frcl.report.run import Run, learners_task

COLUMNS = 10
MOST_IMAGES = 40  # of one task
TINT = 0.05
SMALLEST_SIDE = 5  # fewer than 25 features are not taken for an image


@dataclass(frozen=True, eq=False)
class Contact:
    """The images of one task on one sheet: RGBA pixels [height, width, 4], clear between the images.

    ink: whether the images are grey, so that they can be inverted on a dark page
    """

    task: str
    caption: str
    pixels: NDArray[np.uint8]
    ink: bool

    @property
    def text(self) -> str:
        return f"Inducing inputs, {self.task}: {self.caption}"

    @property
    def address(self) -> str:
        """The sheet as a PNG in a data URL."""
        from PIL import Image

        buffer = io.BytesIO()
        Image.fromarray(self.pixels).save(buffer, format="PNG", optimize=True)
        return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def contact_sheets(run: Run) -> list[Contact]:
    """A sheet for each of the learner's tasks whose inducing inputs are images."""
    pairs = [(learners_task(run.result, number), as_images(points)) for number, points in run.points.items()]
    found = [(task, images) for task, images in pairs if images is not None and len(images)]
    low = min((float(images.min()) for _, images in found), default=0.0)
    high = max((float(images.max()) for _, images in found), default=1.0)
    low, high = min(low, 0.0), max(high, 1.0 if low >= 0.0 else low + 1e-12)
    sheets = []
    for task, images in found:
        shown = images[:MOST_IMAGES]
        part = "" if len(shown) == len(images) else f", the first {len(shown)} shown"
        caption = f"{plural(len(images), 'image')} of {images.shape[1]}×{images.shape[1]}{part}"
        sheets.append(Contact(task, caption, to_rgba(sheet((shown - low) / (high - low))), images.ndim == 3))
    return sheets


def as_images(points: NDArray[Any]) -> Floats | None:
    """[M, H, W] or [M, H, W, 3]: the last two axes if they are square, else the flat length if it is a square."""
    values: Floats = points.astype(np.float64)
    if values.ndim >= 3 and values.shape[-1] == values.shape[-2] >= SMALLEST_SIDE:
        if values.ndim == 4 and values.shape[1] == 3:
            return values.transpose(0, 2, 3, 1)
        grey: Floats = values.reshape(len(values), -1, *values.shape[-2:]).mean(1)
        return grey
    length = math.prod(values.shape[1:])
    side = math.isqrt(length)
    if side < SMALLEST_SIDE or side * side != length:
        return None
    return values.reshape(len(values), side, side)


def sheet(images: Floats) -> Floats:
    """Images in rows of `COLUMNS`, a gap of one pixel (two for large ones) between them."""
    count, side, gap = len(images), images.shape[1], 1 if images.shape[1] < 20 else 2
    columns = min(count, COLUMNS)
    rows = math.ceil(count / columns)
    step = side + gap
    found = np.full((rows * step - gap, columns * step - gap, *images.shape[3:]), np.nan)
    for place, image in enumerate(images):
        top, left = step * (place // columns), step * (place % columns)
        found[top : top + side, left : left + side] = image
    return found


def to_rgba(sheet: Floats) -> NDArray[np.uint8]:
    """Grey images become black on a transparent, faintly tinted ground; colour images stay; NaN is transparent."""
    clear = np.isnan(sheet) if sheet.ndim == 2 else np.isnan(sheet[..., 0])
    if sheet.ndim == 2:
        colour, cover = np.zeros((*sheet.shape, 3)), TINT + (1 - TINT) * sheet
    else:
        colour, cover = np.where(clear[..., None], 0.0, sheet), np.ones(clear.shape)
    shown = np.concatenate([colour, np.where(clear, 0.0, cover)[..., None]], axis=-1)
    return np.asarray(np.rint(255 * shown), dtype=np.uint8)


def points_figure(contacts: list[Contact]) -> Drawing:
    """All sheets in one figure, for the files; the page shows the same sheets in a grid."""
    ratios = [max(contact.pixels.shape[0] / contact.pixels.shape[1], 0.1) for contact in contacts]
    height = sum(0.72 * WIDTH * ratio + 0.3 for ratio in ratios)
    figure, places = blank(height, rows=len(contacts), height_ratios=ratios)
    for axes, contact in zip(places, contacts, strict=True):
        axes.imshow(contact.pixels, interpolation="none")
        axes.set_title(name_in_figure(contact.task), loc="left")
        axes.axis("off")
    text = "; ".join(contact.text for contact in contacts)
    return Drawing("inducing-images", "Inducing images", "The inputs kept of each task, first seed.", text, figure)
