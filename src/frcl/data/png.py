"""The PNG files of Omniglot: one bit a pixel, not interlaced. Nothing else is read."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import numpy as np

from frcl.errors import DataError

Pixels = np.ndarray[Any, np.dtype[np.uint8]]

SIGNATURE = b"\x89PNG\r\n\x1a\n"
LARGEST = 4096  # pixels along a side; more is a mistake or an attack


def decode_bits(content: bytes, name: str) -> Pixels:
    """A greyscale PNG of bit depth 1 as an array [height, width] of 0 (black) and 1 (white)."""
    chunks = _chunks(content, name)
    header = chunks.get(b"IHDR", b"")
    if len(header) != 13:
        raise DataError(f"{name} is damaged: it has no PNG header")
    width, height, depth, colour, packing, filtering, interlace = struct.unpack(">IIBBBBB", header)
    if (depth, colour, packing, filtering, interlace) != (1, 0, 0, 0, 0):
        raise DataError(f"{name} is not a black-and-white PNG (one bit a pixel, greyscale, not interlaced)")
    if not (1 <= width <= LARGEST and 1 <= height <= LARGEST):
        raise DataError(f"{name} says it has {width} × {height} pixels; at most {LARGEST} a side are read")
    row = (width + 7) // 8
    expected = height * (row + 1)
    try:
        lines = zlib.decompressobj().decompress(chunks.get(b"IDAT", b""), expected + 1)
    except zlib.error as error:
        raise DataError(f"{name} is damaged: {error}") from error
    if len(lines) != expected:
        raise DataError(f"{name} is damaged: it holds {len(lines)} bytes of pixels, not {expected}")
    packed = _unfilter(np.frombuffer(lines, np.uint8).reshape(height, row + 1), name)
    return np.unpackbits(packed, axis=1)[:, :width]


def shrink(image: Pixels, side: int) -> Pixels:
    """The pixels nearest to the centres of a `side` × `side` grid, as the usual 28×28 Omniglot is made."""
    height, width = image.shape
    centres = np.arange(side) * 2 + 1
    return image[np.ix_(centres * height // (2 * side), centres * width // (2 * side))]


def _chunks(content: bytes, name: str) -> dict[bytes, bytes]:
    """Chunk type → data, the data of equal types joined; checksums are verified."""
    if not content.startswith(SIGNATURE):
        raise DataError(f"{name} is not a PNG file")
    found: dict[bytes, bytes] = {}
    start = len(SIGNATURE)
    while b"IEND" not in found:
        if start + 12 > len(content):
            raise DataError(f"{name} is damaged: it ends too early")
        length = int.from_bytes(content[start : start + 4], "big")
        body = content[start + 4 : start + 8 + length]
        check = content[start + 8 + length : start + 12 + length]
        if len(check) != 4 or zlib.crc32(body) != int.from_bytes(check, "big"):
            raise DataError(f"{name} is damaged: a checksum is wrong")
        found[body[:4]] = found.get(body[:4], b"") + body[4:]
        start += 12 + length
    return found


def _unfilter(lines: Pixels, name: str) -> Pixels:
    """Undo PNG's filters; with less than a byte a pixel, "left" is the byte before."""
    kinds, coded = lines[:, 0], lines[:, 1:]
    if not kinds.any():
        return coded
    out = np.zeros_like(coded)
    above = np.zeros(coded.shape[1], np.uint8)
    for number, (kind, line) in enumerate(zip(kinds.tolist(), coded, strict=True)):
        match kind:
            case 0:
                out[number] = line
            case 1:
                out[number] = np.cumsum(line, dtype=np.uint8)
            case 2:
                out[number] = line + above
            case 3 | 4:
                out[number] = _predicted(kind, line.tolist(), above.tolist())
            case _:
                raise DataError(f"{name} is damaged: PNG filter {kind} does not exist")
        above = out[number]
    return out


def _predicted(kind: int, line: list[int], above: list[int]) -> list[int]:
    """Filters 3 (average) and 4 (Paeth): each byte depends on the one before it."""
    out: list[int] = []
    left = corner = 0
    for byte, up in zip(line, above, strict=True):
        if kind == 3:
            guess = (left + up) // 2
        else:
            # the nearest of left, up and corner to left + up − corner; the first of equals
            guess = min((left, up, corner), key=lambda value: abs(left + up - corner - value))
        left, corner = (byte + guess) % 256, up
        out.append(left)
    return out
