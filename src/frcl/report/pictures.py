"""The inducing inputs of each task as pictures, where they are images."""

from __future__ import annotations

import base64
import io
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from frcl.report.drawing import WIDTH, Drawing, blank, name_in_figure
from frcl.report.numbers import plural
from frcl.report.run import Floats, Run

COLUMNS = 10
MOST_IMAGES = 40  # of one task
TINT = 0.05
SMALLEST_SIDE = 5  # a square number of features under 25 is no picture


@dataclass(frozen=True, eq=False)
class Contact:
    """One task's sheet of images [height, width] or [height, width, 3] in 0..1, NaN between and after the images."""

    task: str
    shown: int
    kept: int
    side: int
    sheet: Floats

    @property
    def caption(self) -> str:
        part = "" if self.shown == self.kept else f", the first {self.shown} shown"
        return f"{plural(self.kept, 'image')} of {self.side}×{self.side}{part}"

    @property
    def text(self) -> str:
        """What the sheet is, in words."""
        return f"Inducing inputs, {self.task}: {self.caption}"


def contact_sheets(run: Run) -> list[Contact]:
    """A sheet for each of the learner's tasks whose inducing inputs are images."""
    pairs = [(run.learners_task(number), as_images(points)) for number, points in run.points.items()]
    found = [(task, images) for task, images in pairs if images is not None and len(images)]
    if not found:
        return []
    low = min(0.0, min(float(images.min()) for _, images in found))
    high = max(max(float(images.max()) for _, images in found), low + 1e-12)
    high = 1.0 if low == 0.0 and high <= 1.0 else high
    return [
        Contact(task, min(len(images), MOST_IMAGES), len(images), images.shape[1],
                sheet((images[:MOST_IMAGES] - low) / (high - low)))
        for task, images in found
    ]  # fmt: skip


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


def data_address(contact: Contact) -> str:
    """The sheet as a PNG inside an address: ink dark on clear, gaps clear."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(to_rgba(contact.sheet)).save(buffer, format="PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def to_rgba(sheet: Floats) -> NDArray[np.uint8]:
    """Grey images become black ink on a clear ground with a faint tint, colour images stay; NaN is clear."""
    clear = np.isnan(sheet) if sheet.ndim == 2 else np.isnan(sheet[..., 0])
    if sheet.ndim == 2:
        colour, cover = np.zeros((*sheet.shape, 3)), TINT + (1 - TINT) * sheet
    else:
        colour, cover = np.where(clear[..., None], 0.0, sheet), np.ones(clear.shape)
    shown = np.concatenate([colour, np.where(clear, 0.0, cover)[..., None]], axis=-1)
    return np.asarray(np.rint(255 * shown), dtype=np.uint8)


def points_figure(contacts: list[Contact]) -> Drawing:
    """All sheets below each other, for the figure files."""
    ratios = [contact.sheet.shape[0] / contact.sheet.shape[1] for contact in contacts]
    height = sum(0.72 * WIDTH * max(ratio, 0.1) + 0.3 for ratio in ratios)
    figure, places = blank(height, rows=len(contacts), height_ratios=[max(ratio, 0.1) for ratio in ratios])
    for axes, contact in zip(places, contacts, strict=True):
        axes.imshow(to_rgba(contact.sheet), interpolation="none")
        axes.set_title(name_in_figure(contact.task), loc="left")
        axes.axis("off")
    text = "; ".join(contact.text for contact in contacts)
    caption = "The inputs kept of each task, of the first seed."
    return Drawing("inducing-images", "Inducing images", caption, text, figure)
