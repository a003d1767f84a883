"""Omniglot's original zip archives, read in memory; nothing is unpacked to disk."""

from __future__ import annotations

import io
import re
import stat
import warnings
import zipfile
import zlib
from collections.abc import Mapping

import numpy as np

from frcl.data.drawings import SIDE, Array, Drawings, from_images
from frcl.errors import DataError

# images_background/Greek/character01/0394_01.png
DRAWING = re.compile(r"[^/]+/(?P<alphabet>[^/]+)/character(?P<character>\d{1,3})/\d+_(?P<drawer>\d{1,3})\.png")
MEMBERS = 100_000  # the larger archive has 20,000 or so
LARGEST_MEMBER = 1 << 20  # bytes; a drawing has a few hundred
LARGEST_TOTAL = 256 << 20
LARGEST_SIDE = 4096  # pixels; a drawing has 105


def read_archives(contents: Mapping[str, bytes]) -> Drawings:
    """The drawings in these archives, given as name → bytes. A drawing in two of them must be the same."""
    images: dict[tuple[str, int, int], Array] = {}
    for name, content in contents.items():
        for key, image in read_archive(content, name).items():
            if key in images and not np.array_equal(images[key], image):
                raise DataError(f"{name}: {key[0]} character {key[1]} drawer {key[2]} differs between archives")
            images[key] = image
    return from_images(images, " and ".join(contents))


def read_archive(raw: bytes, where: str) -> dict[tuple[str, int, int], Array]:
    """(alphabet, character from 1, drawer) → pixels [28, 28], 1 = paper, of every drawing in one archive."""
    try:
        with zipfile.ZipFile(io.BytesIO(raw)) as archive:
            _refuse_unsafe(archive.infolist(), where)
            images: dict[tuple[str, int, int], Array] = {}
            for member in archive.infolist():
                if member.filename.endswith(".png"):
                    key = _key(member.filename, where)
                    if key in images:
                        raise DataError(f"{where}: {member.filename} occurs twice")
                    with archive.open(member) as file:
                        content = file.read(LARGEST_MEMBER)
                    images[key] = shrink(decode_bits(content, f"{where}: {member.filename}"), SIDE)
    except (zipfile.BadZipFile, EOFError, OSError, NotImplementedError, RuntimeError, zlib.error) as error:
        raise DataError(f"{where} is not a readable zip archive: {error}") from error
    if not images:
        raise DataError(f"{where} has no Omniglot drawings (ALPHABET/characterNN/NNNN_NN.png)")
    return images


def _refuse_unsafe(members: list[zipfile.ZipInfo], where: str) -> None:
    """Refuse decompression bombs, links and members outside of the archive's folder, which Omniglot does not have."""
    if len(members) > MEMBERS:
        raise DataError(f"{where} is refused: it has {len(members)} members, more than {MEMBERS}")
    if sum(member.file_size for member in members) > LARGEST_TOTAL:
        raise DataError(f"{where} is refused: it would unpack to more than {LARGEST_TOTAL >> 20} MiB")
    for member in members:
        if member.file_size > LARGEST_MEMBER:
            raise DataError(f"{where} is refused: {member.filename!r} would unpack to {member.file_size} bytes")
        name = member.orig_filename
        parts = re.split(r"[/\\]", name)
        leaves = name.startswith(("/", "\\")) or ".." in parts or ":" in parts[0] or "\x00" in name
        link = stat.S_ISLNK(member.external_attr >> 16)
        if leaves or link:
            what = "is a link" if link else "leaves the archive's folder"
            raise DataError(f"{where} is refused: its member {name!r} {what}. Get the original archive.")


def _key(name: str, where: str) -> tuple[str, int, int]:
    match = DRAWING.fullmatch(name)
    if match is None:
        raise DataError(f"{where}: {name!r} is not named like Omniglot's drawings, ALPHABET/characterNN/NNNN_NN.png")
    return match["alphabet"], int(match["character"]), int(match["drawer"])


def decode_bits(content: bytes, where: str) -> Array:
    """A black-and-white PNG, one bit per pixel, as an array [height, width] of 0 (black) and 1 (white)."""
    from PIL import Image, UnidentifiedImageError

    def opened() -> Image.Image:
        return Image.open(io.BytesIO(content), formats=("PNG",))

    try:
        with warnings.catch_warnings(action="error", category=Image.DecompressionBombWarning), opened() as image:
            if image.mode != "1":
                raise DataError(f"{where} is not a black-and-white PNG, one bit per pixel: its mode is {image.mode!r}")
            if max(image.size) > LARGEST_SIDE:
                raise DataError(f"{where} is refused: more than {LARGEST_SIDE} pixels along a side {image.size}")
            image.verify()  # checks the checksums, which decoding ignores; the image must be opened again afterwards
            with opened() as verified:
                return np.asarray(verified, np.uint8)
    except DataError:
        raise
    except UnidentifiedImageError as error:
        raise DataError(f"{where} is not a readable PNG file") from error
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise DataError(f"{where} is refused: {error}") from error
    except Exception as error:  # damaged files raise many kinds of errors in Pillow
        raise DataError(f"{where} is damaged: {error}") from error


def shrink(image: Array, side: int) -> Array:
    """The pixels nearest to the centres of a `side` × `side` grid, as in the usual 28×28 version of Omniglot."""
    height, width = image.shape
    centres = np.arange(side) * 2 + 1
    return image[np.ix_(centres * height // (2 * side), centres * width // (2 * side))]
