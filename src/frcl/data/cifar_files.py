"""CIFAR's images, from compact files, packed without loss, or from the official binary archives; never a pickle."""

import hashlib
import io
import re
import tarfile
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from frcl.errors import DataError
from frcl.files import read_arrays

Array = np.ndarray[Any, np.dtype[Any]]

SIDE = 32
PIXELS = SIDE * SIDE
LARGEST = 256 << 20  # bytes of a file of an archive, or of a compact file when unpacked; the largest has 154 MB
MEMBERS = 32  # of an archive; they have 8 and 5 files
# cifar-10-batches-bin/data_batch_1.bin, cifar-100-binary/train.bin
TRAIN, TEST = re.compile(r".*/(data_batch_[1-9]|train)\.bin"), re.compile(r".*/(test_batch|test)\.bin")


class Images(NamedTuple):
    """pixels [n, 32, 32, 3] and labels [n], uint8 both; in CIFAR-100 the fine labels."""

    pixels: Array
    labels: Array


class Parts(NamedTuple):
    """The images to learn from, and those for testing."""

    train: Images
    test: Images

    def digest(self) -> str:
        """SHA-256 of pixels and labels, of train and of test, however the images are packed."""
        arrays = [*self.train, *self.test]
        return " ".join(hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest() for array in arrays)


def joined(parts: Sequence[Images]) -> Images:
    """Several files as one."""
    return Images(np.concatenate([one.pixels for one in parts]), np.concatenate([one.labels for one in parts]))


def read_compact(content: bytes, where: str) -> Images:
    """Images from an .npz file: `labels`, `count` (images, images per block) and `plane_BLOCK_CHANNEL`."""
    try:
        arrays = read_arrays(io.BytesIO(content), LARGEST)
        labels, (n, size) = arrays["labels"], arrays["count"].tolist()
        if labels.dtype != np.uint8 or labels.shape != (n,) or not 0 < size <= n or n * 3 * PIXELS > LARGEST:
            raise DataError(f"{where} does not hold CIFAR's images: its arrays do not fit together")
        blocks = [
            unpack([arrays[f"plane_{block}_{channel}"].tobytes() for channel in range(3)], min(size, n - start))
            for block, start in enumerate(range(0, n, size))
        ]
    except (ValueError, TypeError, KeyError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{where} cannot be read as a compact file of CIFAR: {error}") from error
    return Images(np.concatenate(blocks), labels)


def unpack(planes: Sequence[bytes], n: int) -> Array:
    """n images [n, 32, 32, 3] from the planes green, red − green and blue − green.

    A plane holds, deflated, the difference of each value from its prediction, modulo 256: the median of left, upper,
    and left + upper − upper left (LOCO-I). One pixel of all images is decoded at a time.
    """
    out = np.empty((n, SIDE, SIDE, 3), np.uint8)
    green: Array = np.zeros((SIDE, SIDE, n), np.int16)
    for channel, plane in zip((1, 0, 2), planes, strict=True):
        rest = _inflated(plane, n * PIXELS).reshape(n, SIDE, SIDE).transpose(1, 2, 0).astype(np.int16, order="C")
        value = np.zeros((1 + SIDE, 1 + SIDE, n), np.int16)  # zeros are above and to the left of the image
        for i in range(SIDE):
            for j in range(SIDE):
                left, upper, corner = value[i + 1, j], value[i, j + 1], value[i, j]
                median = np.clip(left + upper - corner, np.minimum(left, upper), np.maximum(left, upper))
                byte = (median + rest[i, j] + green[i, j]) & 255
                value[i + 1, j + 1] = byte - green[i, j]  # a difference of bytes is known from its sum with the green
        out[..., channel] = (value[1:, 1:] + green).transpose(2, 0, 1)
        green = value[1:, 1:] if channel == 1 else green
    return out


def _inflated(plane: bytes, size: int) -> Array:
    """The bytes of a plane, which must be `size` in number; no more are unpacked."""
    try:
        raw = zlib.decompressobj(-15).decompress(plane, size + 1)
    except zlib.error as error:
        raise DataError(f"a plane of CIFAR's images is damaged: {error}") from error
    if len(raw) != size:
        raise DataError(f"a plane of CIFAR's images has {len(raw)} bytes or more, not {size}")
    return np.frombuffer(raw, np.uint8)


def read_archive(raw: bytes, where: str) -> Parts:
    """Both parts from the official cifar-10-binary.tar.gz or cifar-100-binary.tar.gz; nothing is unpacked to disk.

    A file consists of records: the label (in CIFAR-100 the coarse and the fine one), then red, green and blue plane.
    """
    found: dict[str, Images] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(raw), mode="r:gz") as archive:
            for number, member in enumerate(archive):
                if number >= MEMBERS or member.size > LARGEST:
                    raise DataError(f"{where} is refused: it has more or larger files than CIFAR's archives")
                if TRAIN.fullmatch(member.name) or TEST.fullmatch(member.name):
                    file = archive.extractfile(member) if member.isfile() else None
                    if file is None or member.name in found:
                        raise DataError(f"{where} is refused: {member.name!r} is not a file, or occurs twice")
                    name = member.name.rpartition("/")[2]
                    labels = 2 if name in ("train.bin", "test.bin") else 1
                    found[member.name] = _records(file.read(), labels, f"{where}: {member.name}")
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise DataError(f"{where} is not a readable .tar.gz archive: {error}") from error
    parts = [[found[name] for name in sorted(found) if kind.fullmatch(name)] for kind in (TRAIN, TEST)]
    if not all(parts):
        raise DataError(f"{where} has no binary files of CIFAR; the archives with pickled files are not read")
    return Parts(joined(parts[0]), joined(parts[1]))


def _records(content: bytes, labels: int, where: str) -> Images:
    if not content or len(content) % (labels + 3 * PIXELS):
        raise DataError(f"{where} is damaged: {len(content)} bytes are not a number of records")
    records = np.frombuffer(content, np.uint8).reshape(-1, labels + 3 * PIXELS)
    pixels = records[:, labels:].reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1)
    return Images(np.ascontiguousarray(pixels), records[:, labels - 1].copy())


def to_bytes(parts: Parts) -> bytes:
    """The arrays of both parts as an .npz file, not compressed, which `from_bytes` reads."""
    buffer = io.BytesIO()
    np.savez(buffer, *parts.train, *parts.test)
    return buffer.getvalue()


def from_bytes(content: bytes) -> Parts:
    """What `to_bytes` was given."""
    a, b, c, d = read_arrays(io.BytesIO(content), len(content)).values()
    return Parts(Images(a, b), Images(c, d))
