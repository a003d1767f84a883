"""Reading Omniglot's files: PNG, the zip archives, the compact form; and IDX."""

from __future__ import annotations

import io
import struct
import tracemalloc
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest

from data_helpers import archive, chunk, drawing, idx, png, small_drawings, zipped
from frcl.data import drawings as drawings_module
from frcl.data.drawings import (
    Drawings,
    checked,
    decode_bits,
    read_archive,
    read_archives,
    read_compact,
    shrink,
    to_compact,
)
from frcl.data.streams import parse_idx
from frcl.errors import DataError


@pytest.mark.parametrize("kind", [0, 1, 2, 3, 4, None])
def test_a_png_is_decoded_with_every_filter(kind: int | None) -> None:
    rng = np.random.default_rng(1)
    bits = rng.integers(0, 2, (31, 45))
    filters = rng.integers(0, 5, 31).tolist() if kind is None else [kind] * 31
    decoded = decode_bits(png(bits, filters), "f")
    assert decoded.dtype == np.uint8
    assert np.array_equal(decoded, bits)


def test_pixels_split_over_several_chunks_are_joined() -> None:
    bits = drawing(0, 1, 1)
    content = png(bits)
    start = content.index(b"IDAT") - 4
    length = int.from_bytes(content[start : start + 4], "big")
    body = content[start + 8 : start + 8 + length]
    parts = chunk(b"tEXt", b"x") + chunk(b"IDAT", body[:7]) + chunk(b"IDAT", body[7:])
    assert np.array_equal(decode_bits(content[:start] + parts + content[start + 12 + length :], "f"), bits)


def damaged_pngs() -> dict[str, tuple[str, bytes]]:
    """Kind of damage → (what the message says, the file)."""
    good = png(drawing(0, 1, 1))
    flipped = bytearray(good)
    flipped[len(good) // 2] ^= 1
    signature = good[:8]

    def made(width: int, height: int, colour: int, lines: bytes | None, depth: int = 1) -> bytes:
        header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
        body = b"nonsense" if lines is None else zlib.compress(lines)
        return signature + chunk(b"IHDR", header) + chunk(b"IDAT", body) + chunk(b"IEND", b"")

    return {
        "another format": ("is not a readable PNG", b"GIF89a" + good),
        "empty": ("is not a readable PNG", b""),
        "no end": ("is damaged", good[:-12]),
        "half": ("is damaged", good[: len(good) // 2]),
        "checksum": ("is damaged: .*checksum", bytes(flipped)),
        "no header": ("is not a readable PNG", signature + chunk(b"IEND", b"")),
        "colour": ("is not a black-and-white PNG", made(8, 8, 2, bytes(200), depth=8)),
        "8 bits": ("one bit per pixel", made(8, 8, 0, bytes(72), depth=8)),
        "no pixels": ("is not a readable PNG", made(0, 8, 0, b"")),
        "wide": ("is refused: more than 4096 pixels", made(100_000, 8, 0, b"")),
        "large": ("is refused: .*144000000 pixels", made(12_000, 12_000, 0, b"")),
        "bomb": ("is refused: .*10000000000 pixels", made(100_000, 100_000, 0, b"")),
        "too few pixels": ("is damaged", made(8, 8, 0, bytes(9))),
        "unknown filter": ("is damaged", made(8, 8, 0, bytes([9, 0] * 8))),
        "not compressed": ("is damaged", made(8, 8, 0, None)),
    }


@pytest.mark.parametrize("kind", list(damaged_pngs()))
def test_a_damaged_png_is_refused(kind: str) -> None:
    message, content = damaged_pngs()[kind]
    with pytest.raises(DataError, match=f"^a.zip: f.png .*{message}") as caught:
        decode_bits(content, "a.zip: f.png")
    assert "\n" not in str(caught.value)


def test_pixels_beyond_the_size_of_the_image_are_not_decompressed() -> None:
    content = png(np.zeros((8, 8), np.uint8))
    start = content.index(b"IDAT") - 4
    header = content[:start]
    flood = header + chunk(b"IDAT", zlib.compress(bytes(1 << 26))) + chunk(b"IEND", b"")
    tracemalloc.start()
    assert decode_bits(flood, "f").shape == (8, 8)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 23


def test_shrinking_takes_the_pixel_nearest_to_each_centre() -> None:
    image = np.arange(105 * 105).reshape(105, 105)
    # target pixel i has its centre at (i + 1/2) 105/28 in the large image
    nearest = np.floor((np.arange(28) + 0.5) * 105 / 28).astype(int)
    assert np.array_equal(shrink(image, 28), image[nearest][:, nearest])  # type: ignore[arg-type]
    assert np.array_equal(shrink(image, 105), image)  # type: ignore[arg-type]


def test_archives_are_read_in_order_of_alphabet_character_and_drawer() -> None:
    drawings = read_archives({"one.zip": archive({"Zz": 2, "Aa": 3}), "two.zip": archive({"Mm": 1})})
    assert drawings.alphabets.tolist() == ["Aa", "Mm", "Zz"]
    assert np.bincount(drawings.alphabet).tolist() == [60, 20, 40]
    assert drawings.drawer.tolist() == list(range(1, 21)) * 6
    assert drawings.character[:60].tolist() == [0] * 20 + [1] * 20 + [2] * 20
    # Zz was the first alphabet of its archive: character 2, drawer 7
    which = 60 + 20 + 20 + 6
    expected = shrink(drawing(0, 2, 7), 28)
    assert np.array_equal(np.unpackbits(drawings.images[which]).reshape(28, 28), expected)
    assert 0 < (expected == 0).mean() < 0.5  # ink is the smaller part


def test_the_same_alphabet_in_two_archives_must_be_the_same() -> None:
    twice = read_archives({"one.zip": archive({"Aa": 1}), "two.zip": archive({"Aa": 1})})
    assert len(twice) == 20
    with pytest.raises(DataError, match=r"two\.zip: Bb character 1 drawer 1 differs between archives"):
        read_archives({"one.zip": archive({"Bb": 1}), "two.zip": archive({"Aa": 1, "Bb": 1})})


@pytest.mark.parametrize(
    "name",
    ["/etc/passwd.png", "../out.png", "images/../../out.png", "C:/out.png", "images\\..\\out.png", "\\\\host\\a.png"],
)
def test_members_that_leave_the_folder_are_refused(name: str) -> None:
    content = zipped({"images/Aa/character01/0101_01.png": png(drawing(0, 1, 1)), name: b""})
    with pytest.raises(DataError, match=r"a\.zip is refused: its member .* leaves the archive's folder"):
        read_archive(content, "a.zip")


def test_links_are_refused() -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        link = zipfile.ZipInfo("images/Aa/character01/0101_01.png")
        link.create_system = 3
        link.external_attr = 0o120777 << 16
        file.writestr(link, "/etc/passwd")
    with pytest.raises(DataError, match="is a link"):
        read_archive(buffer.getvalue(), "a.zip")


def test_archives_that_unpack_to_absurd_sizes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "images/Aa/character01/0101_01.png"
    with pytest.raises(DataError, match="would unpack to 2097152 bytes"):
        read_archive(zipped({name: bytes(2 << 20)}), "a.zip")
    good = archive({"Aa": 1})
    monkeypatch.setattr(drawings_module, "MEMBERS", 20)
    with pytest.raises(DataError, match="it has 21 members, more than 20"):
        read_archive(good, "a.zip")
    monkeypatch.setattr(drawings_module, "MEMBERS", 21)
    assert len(read_archive(good, "a.zip")) == 20
    monkeypatch.setattr(drawings_module, "LARGEST_TOTAL", 1 << 10)
    with pytest.raises(DataError, match="would unpack to more than"):
        read_archive(good, "a.zip")


def test_a_member_longer_than_it_says_is_refused() -> None:
    content = bytearray(zipped({"images/Aa/character01/0101_01.png": bytes(5000)}))
    for start in (content.index(b"PK\x03\x04") + 22, content.index(b"PK\x01\x02") + 24):
        content[start : start + 4] = (100).to_bytes(4, "little")
    with pytest.raises(DataError, match=r"a\.zip"):
        read_archive(bytes(content), "a.zip")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"no zip", "is not a readable zip archive"),
        (zipped({"readme.txt": b"hello"}), "has no Omniglot drawings"),
        (zipped({"images/Aa/0101_01.png": png(drawing(0, 1, 1))}), "is not named like Omniglot's drawings"),
        (zipped({"images/Aa/character01/0101_01.png": b"x"}), "is not a readable PNG file"),
        (archive({"Aa": 1})[:-200], "is not a readable zip archive"),
    ],
)
def test_other_archives_are_refused(content: bytes, message: str) -> None:
    with pytest.raises(DataError, match=f"a.zip.*{message}"):
        read_archive(content, "a.zip")


def test_a_character_without_all_its_drawers_is_refused() -> None:
    members = {f"images/Aa/character01/0101_{drawer:02d}.png": png(drawing(0, 1, drawer)) for drawer in range(1, 20)}
    with pytest.raises(DataError, match="Aa is not complete"):
        read_archives({"a.zip": zipped(members)})


def test_the_compact_form_keeps_everything_and_no_objects() -> None:
    drawings = small_drawings(2, 3)
    content = to_compact(drawings)
    again = read_compact(content, "f")
    for name in vars(drawings):
        assert np.array_equal(getattr(again, name), getattr(drawings, name))
        assert getattr(again, name).dtype == getattr(drawings, name).dtype
    assert again.digest() == drawings.digest()
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        assert all(arrays[name].dtype.kind in "uU" for name in arrays)


def test_the_digest_notices_every_array() -> None:
    drawings = small_drawings(2)
    digests = {drawings.digest()}
    for name in vars(drawings):
        changed = {field: array.copy() for field, array in vars(drawings).items()}
        if name == "alphabets":
            changed[name][0] = "B"
        else:
            changed[name].flat[3] ^= 1
        digests.add(Drawings(**changed).digest())
    assert len(digests) == 6


def test_damaged_compact_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawings = small_drawings(1)
    content = to_compact(drawings)
    with pytest.raises(DataError, match="f cannot be read"):
        read_compact(content[:-50], "f")
    with pytest.raises(DataError, match="f cannot be read"):
        read_compact(b"", "f")
    buffer = io.BytesIO()
    np.savez(buffer, images=np.array([{}], dtype=object))
    with pytest.raises(DataError, match="f cannot be read"):
        read_compact(buffer.getvalue(), "f")
    monkeypatch.setattr(drawings_module, "LARGEST_TOTAL", 1000)
    with pytest.raises(DataError, match=r"f cannot be read .* would unpack to more than"):
        read_compact(content, "f")


def test_drawings_that_do_not_fit_together_are_refused() -> None:
    good = vars(small_drawings(2))
    assert len(checked(Drawings(**good), "f")) == 40
    for change, message in [
        ({"drawer": good["drawer"][:-1]}, "do not fit together"),
        ({"images": good["images"][:, :-1]}, "do not fit together"),
        ({"drawer": good["drawer"].astype(np.int64)}, "must be uint8"),
        ({"alphabet": good["alphabet"] + 1}, "without a name"),
        ({"drawer": good["drawer"][::-1].copy()}, "A is not complete"),
        ({"alphabets": np.array(["A", "B"])}, "B is not complete"),
    ]:
        with pytest.raises(DataError, match=message):
            checked(Drawings(**{**good, **change}), "f")


def test_idx_is_read_and_its_header_believed_only_if_it_fits() -> None:
    array = np.arange(24).reshape(2, 3, 4)
    assert np.array_equal(parse_idx(idx(array), "f").numpy(), array)
    for content, message in [
        (idx(array)[:-1], "header says"),
        (idx(array) + b"\x00", "header says"),
        (b"\x00\x00\x0d" + idx(array)[3:], "is not an IDX file"),
        (b"", "is not an IDX file"),
        (b"\x00\x00\x08\x03\x00", "header says|damaged"),
    ]:
        with pytest.raises(DataError, match=message):
            parse_idx(content, "f")
