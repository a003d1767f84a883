"""Omniglot's drawings in memory and in one compact file."""

from __future__ import annotations

import hashlib
import io
import zipfile
from dataclasses import dataclass
from typing import Any

import numpy as np

from frcl.errors import DataError

Array = np.ndarray[Any, np.dtype[Any]]

SIDE = 28
DRAWERS = 20  # people who drew each character
FIELDS = ("images", "alphabet", "character", "drawer", "alphabets")
LARGEST = 64 << 20  # bytes of a compact file when unpacked


@dataclass(frozen=True, eq=False)
class Drawings:
    """n drawings, sorted by alphabet, character and drawer."""

    images: Array  # [n, 98] uint8: numpy.packbits of 784 pixels, 1 = paper, 0 = ink
    alphabet: Array  # [n] uint8, index into `alphabets`
    character: Array  # [n] uint8, from 0 within its alphabet
    drawer: Array  # [n] uint8, 1 to 20
    alphabets: Array  # names, sorted

    def __len__(self) -> int:
        return len(self.images)

    def digest(self) -> str:
        """SHA-256 of the content, however the file was packed."""
        total = hashlib.sha256()
        for name in FIELDS[:-1]:
            total.update(np.ascontiguousarray(getattr(self, name)).tobytes())
        total.update("\n".join(self.alphabets.tolist()).encode())
        return total.hexdigest()


def checked(drawings: Drawings, where: str) -> Drawings:
    """The drawings, after a check that the arrays are consistent and each character has one drawing per drawer."""
    n = len(drawings.images)
    shapes = [getattr(drawings, name).shape for name in FIELDS[:-1]]
    if shapes != [(n, SIDE * SIDE // 8), (n,), (n,), (n,)] or n == 0 or drawings.alphabets.dtype.kind != "U":
        raise DataError(f"{where} does not hold Omniglot's drawings: its arrays do not fit together")
    if any(getattr(drawings, name).dtype != np.uint8 for name in FIELDS[:-1]):
        raise DataError(f"{where} does not hold Omniglot's drawings: images and numbers must be uint8")
    if drawings.alphabet.max() >= len(drawings.alphabets):
        raise DataError(f"{where} is damaged: a drawing belongs to an alphabet without a name")
    keys = np.stack((drawings.alphabet, drawings.character, drawings.drawer), axis=1).astype(np.int64)
    for number, name in enumerate(drawings.alphabets.tolist()):
        own = keys[keys[:, 0] == number]
        characters = len(own) // DRAWERS
        wanted = [(number, c, d) for c in range(characters) for d in range(1, DRAWERS + 1)]
        if characters == 0 or not np.array_equal(own, np.array(wanted)):
            raise DataError(f"{where}: {name} is not complete: each character needs drawers 1 to {DRAWERS}, in order")
    return drawings


def read_compact(content: bytes, where: str) -> Drawings:
    """Drawings from the bytes of an .npz file with the arrays of `Drawings`; pickled objects are refused."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as packed:
            if sum(member.file_size for member in packed.infolist()) > LARGEST:
                raise DataError(f"{where} is refused: it would unpack to more than {LARGEST >> 20} MiB")
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            found = {name: arrays[name] for name in FIELDS}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, NotImplementedError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{where} cannot be read as Omniglot's compact file: {error}") from error
    return checked(Drawings(**found), where)


def to_compact(drawings: Drawings) -> bytes:
    """The bytes of the file that `read_compact` reads."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **{name: getattr(drawings, name) for name in FIELDS})
    return buffer.getvalue()


def from_images(images: dict[tuple[str, int, int], Array], where: str) -> Drawings:
    """Drawings from (alphabet, character from 1, drawer) → pixels [28, 28], 1 = paper."""
    keys = sorted(images)
    names = sorted({alphabet for alphabet, _, _ in keys})
    number = {name: index for index, name in enumerate(names)}
    if len(names) > 255 or any(not (1 <= character <= 255 and drawer <= 255) for _, character, drawer in keys):
        raise DataError(f"{where} has more alphabets, characters or drawers than Omniglot can have")
    return checked(
        Drawings(
            images=np.packbits(np.array([images[key] for key in keys], np.uint8).reshape(-1, SIDE * SIDE), axis=1),
            alphabet=np.array([number[alphabet] for alphabet, _, _ in keys], np.uint8),
            character=np.array([character - 1 for _, character, _ in keys], np.uint8),
            drawer=np.array([drawer for _, _, drawer in keys], np.uint8),
            alphabets=np.array(names),
        ),
        where,
    )
