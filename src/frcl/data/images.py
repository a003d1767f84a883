"""Folders of images as tasks: TASK/CLASS/*.png, or TASK/train/CLASS/*.png beside TASK/test and TASK/validation."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from frcl.errors import DataError
from frcl.files import open_regular

IMAGES = (".png", ".jpg", ".jpeg", ".bmp")
PARTS = {"train": "", "test": "_test", "validation": "_validation"}
GREY = ("1", "L", "LA")
LARGEST_IMAGE = 64 << 20  # bytes of a file, and pixels
LARGEST = 4 << 30  # bytes of all images of a part


def has_images(folder: Path) -> bool:
    """Whether this is the folder of a task: with folders of classes, or of parts, in which there are images."""
    inside = [path for path in _folders(folder) if path.name in PARTS] or [folder]
    return any(_images(path) for part in inside for path in _folders(part))


def read_images(folder: Path, size: Sequence[int] | None) -> dict[str, NDArray[Any]]:
    """Arrays as an .npz file has them: x uint8 [N, channels, height, width], y the names of the classes.

    `size` [height, width] is what images are resized to; without it all must be of one size. Grey images have one
    channel, where all of a part are grey.
    """
    parts = {path.name: path for path in _folders(folder) if path.name in PARTS} or {"train": folder}
    found: dict[str, NDArray[Any]] = {}
    for name, part in parts.items():
        files = [file for of_class in _folders(part) for file in _images(of_class)]
        if not files:
            raise DataError(f"{part} has no images; expected CLASS/*.png, with one folder for each class")
        found[f"x{PARTS[name]}"] = _stacked(files, size)
        found[f"y{PARTS[name]}"] = np.array([file.parent.name for file in files])
    return found


def _stacked(files: Sequence[Path], size: Sequence[int] | None) -> NDArray[Any]:
    each: list[NDArray[Any]] = []
    for file in files:
        each.append(_read(file, size))
        if len(files) * each[0].nbytes > LARGEST:
            raise DataError(f"{len(files)} images like {file} take more than {LARGEST >> 30} GiB; say a smaller size")
        (height, width), (first_height, first_width) = each[-1].shape[1:], each[0].shape[1:]
        if (height, width) != (first_height, first_width):
            given = f"{height}×{width} pixels, {files[0].name} has {first_height}×{first_width}"
            raise DataError(f"{file} has {given}; say size = [height, width] in a .toml file to resize all of them")
    channels = max(map(len, each))  # grey images among coloured ones have three equal channels
    return np.stack([np.broadcast_to(pixels, (channels, *pixels.shape[1:])) for pixels in each])


def _read(file: Path, size: Sequence[int] | None) -> NDArray[Any]:
    """The pixels of an image, uint8 [1, height, width], or [3, height, width] if it has colours."""
    from PIL import Image, UnidentifiedImageError

    try:
        with open_regular(file, LARGEST_IMAGE) as opened, Image.open(opened) as image:
            if image.width * image.height > LARGEST_IMAGE:
                raise DataError(f"{file} has {image.width}×{image.height} pixels, which are too many")
            plain = image.convert("L" if image.mode in GREY else "RGB")
            pixels = np.asarray(plain if size is None else plain.resize((size[1], size[0])))
            return np.moveaxis(np.atleast_3d(pixels), 2, 0)
    except (OSError, ValueError, SyntaxError, UnidentifiedImageError, Image.DecompressionBombError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"cannot read {file} as an image: {error}") from error


def _folders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir() and path.name[0] != ".")


def _images(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in IMAGES and path.name[0] != ".")
