"""Omniglot's drawings, decoded in memory from the original zip archives or from one compact file."""

import hashlib
import io
import re
import stat
import warnings
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from frcl.errors import DataError
from frcl.files import read_arrays

Array = np.ndarray[Any, np.dtype[Any]]
Key = tuple[str, int, int]  # alphabet, character from 1, drawer

SIDE = 28
DRAWERS = 20  # people who drew each character

# images_background/Greek/character01/0394_01.png
DRAWING = re.compile(r"[^/]+/(?P<alphabet>[^/]+)/character(?P<character>\d{1,3})/\d+_(?P<drawer>\d{1,3})\.png")
LAYOUT = "ALPHABET/characterNN/NNNN_NN.png"
MEMBERS = 100_000  # the larger archive has 20,000 or so
LARGEST_MEMBER = 1 << 20  # bytes; a drawing has a few hundred
LARGEST_TOTAL = 256 << 20  # bytes of an archive or of the compact file when unpacked
LARGEST_SIDE = 4096  # pixels; a drawing has 105


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
        *arrays, names = vars(self).values()
        content = [array.tobytes() for array in arrays] + ["\n".join(names.tolist()).encode()]
        return hashlib.sha256(b"".join(content)).hexdigest()


def checked(drawings: Drawings, where: str) -> Drawings:
    """The drawings, after a check that the arrays are consistent and each character has one drawing per drawer."""
    n = len(drawings)
    *arrays, names = vars(drawings).values()
    if [array.shape for array in arrays] != [(n, SIDE**2 // 8), (n,), (n,), (n,)] or n == 0 or names.dtype.kind != "U":
        raise DataError(f"{where} does not hold Omniglot's drawings: its arrays do not fit together")
    if any(array.dtype != np.uint8 for array in arrays):
        raise DataError(f"{where} does not hold Omniglot's drawings: images and numbers must be uint8")
    if drawings.alphabet.max() >= len(names):
        raise DataError(f"{where} is damaged: a drawing belongs to an alphabet without a name")
    keys = np.stack(arrays[1:], axis=1).astype(np.int64)
    for number, name in enumerate(names.tolist()):
        own = keys[keys[:, 0] == number]
        wanted = [(number, c, d) for c in range(len(own) // DRAWERS) for d in range(1, DRAWERS + 1)]
        if not wanted or not np.array_equal(own, np.array(wanted)):
            raise DataError(f"{where}: {name} is not complete: each character needs drawers 1 to {DRAWERS}, in order")
    return drawings


def from_images(images: Mapping[Key, Array], where: str) -> Drawings:
    """Drawings from pixels [28, 28], 1 = paper."""
    keys = sorted(images)
    alphabets, characters, drawers = zip(*keys, strict=True)
    names = sorted(set(alphabets))
    if len(names) > 255 or min(characters) < 1 or max(*characters, *drawers) > 255:
        raise DataError(f"{where} has more alphabets, characters or drawers than Omniglot can have")
    drawings = Drawings(
        images=np.packbits(np.array([images[key] for key in keys], np.uint8).reshape(-1, SIDE * SIDE), axis=1),
        alphabet=np.searchsorted(names, alphabets).astype(np.uint8),
        character=np.array(characters, np.uint8) - np.uint8(1),
        drawer=np.array(drawers, np.uint8),
        alphabets=np.array(names),
    )
    return checked(drawings, where)


def read_compact(content: bytes, where: str) -> Drawings:
    """Drawings from the bytes of an .npz file with the arrays of `Drawings`; pickled objects are refused."""
    try:
        arrays = read_arrays(io.BytesIO(content), LARGEST_TOTAL)
        found = {name: arrays[name] for name in Drawings.__dataclass_fields__}
    except (ValueError, KeyError) as error:
        raise DataError(f"{where} cannot be read as Omniglot's compact file: {error}") from error
    return checked(Drawings(**found), where)


def to_compact(drawings: Drawings) -> bytes:
    """The bytes of the file that `read_compact` reads."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **vars(drawings))
    return buffer.getvalue()


def read_archives(contents: Mapping[str, bytes]) -> Drawings:
    """The drawings in these archives, given as name → bytes. A drawing in two of them must be the same."""
    images: dict[Key, Array] = {}
    for name, content in contents.items():
        for key, image in read_archive(content, name).items():
            if not np.array_equal(images.setdefault(key, image), image):
                raise DataError(f"{name}: {key[0]} character {key[1]} drawer {key[2]} differs between archives")
    return from_images(images, " and ".join(contents))


def read_archive(raw: bytes, where: str) -> dict[Key, Array]:
    """The pixels [28, 28], 1 = paper, of every drawing in one archive. Nothing is unpacked to disk."""
    images: dict[Key, Array] = {}
    try:
        with zipfile.ZipFile(io.BytesIO(raw)) as archive:
            for member in _safe(archive.infolist(), where):
                name = member.filename
                match = DRAWING.fullmatch(name)
                if match is None:
                    raise DataError(f"{where}: {name!r} is not named like Omniglot's drawings, {LAYOUT}")
                key = match["alphabet"], int(match["character"]), int(match["drawer"])
                if key in images:
                    raise DataError(f"{where}: {name} occurs twice")
                with archive.open(member) as file:
                    content = file.read(LARGEST_MEMBER)  # whatever size it claims to have
                images[key] = shrink(decode_bits(content, f"{where}: {name}"), SIDE)
    except (zipfile.BadZipFile, EOFError, OSError, NotImplementedError, RuntimeError, zlib.error) as error:
        raise DataError(f"{where} is not a readable zip archive: {error}") from error
    if not images:
        raise DataError(f"{where} has no Omniglot drawings ({LAYOUT})")
    return images


def _safe(members: list[zipfile.ZipInfo], where: str) -> list[zipfile.ZipInfo]:
    """The .png members; bombs, links and names outside of the archive's folder, which Omniglot lacks, are refused."""
    if len(members) > MEMBERS:
        raise DataError(f"{where} is refused: it has {len(members)} members, more than {MEMBERS}")
    if sum(member.file_size for member in members) > LARGEST_TOTAL:
        raise DataError(f"{where} is refused: it would unpack to more than {LARGEST_TOTAL >> 20} MiB")
    for member in members:
        name = member.orig_filename
        parts = re.split(r"[/\\]", name)
        if member.file_size > LARGEST_MEMBER:
            raise DataError(f"{where} is refused: {name!r} would unpack to {member.file_size} bytes")
        link = stat.S_ISLNK(member.external_attr >> 16)
        if link or name.startswith(("/", "\\")) or ".." in parts or ":" in parts[0] or "\x00" in name:
            what = "is a link" if link else "leaves the archive's folder"
            raise DataError(f"{where} is refused: its member {name!r} {what}. Get the original archive.")
    return [member for member in members if member.filename.endswith(".png")]


def decode_bits(content: bytes, where: str) -> Array:
    """A black-and-white PNG, one bit per pixel, as an array [height, width] of 0 (black) and 1 (white)."""
    from PIL import Image, UnidentifiedImageError

    try:
        with warnings.catch_warnings(action="error", category=Image.DecompressionBombWarning):
            image = Image.open(io.BytesIO(content), formats=("PNG",))
            if image.mode != "1":
                raise DataError(f"{where} is not a black-and-white PNG, one bit per pixel: its mode is {image.mode!r}")
            if max(image.size) > LARGEST_SIDE:
                raise DataError(f"{where} is refused: more than {LARGEST_SIDE} pixels along a side {image.size}")
            image.verify()  # checks the checksums, which decoding ignores; the image must be opened again afterwards
            return np.asarray(Image.open(io.BytesIO(content), formats=("PNG",)), np.uint8)
    except DataError:
        raise
    except UnidentifiedImageError as error:
        raise DataError(f"{where} is not a readable PNG file") from error
    except Exception as error:  # damaged files raise many kinds of errors in Pillow
        is_bomb = isinstance(error, Image.DecompressionBombError | Image.DecompressionBombWarning)
        raise DataError(f"{where} is {'refused' if is_bomb else 'damaged'}: {error}") from error


def shrink(image: Array, side: int) -> Array:
    """The pixels nearest to the centres of a `side` × `side` grid, as in the usual 28×28 version of Omniglot."""
    height, width = image.shape
    centres = np.arange(side) * 2 + 1
    return image[np.ix_(centres * height // (2 * side), centres * width // (2 * side))]
