"""Small synthetic data files, and a server of files that can misbehave in chosen ways."""

from __future__ import annotations

import gzip
import hashlib
import io
import struct
import threading
import time
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np

from frcl.data.datasets import MNIST, DataSet
from frcl.data.drawings import Drawings, from_images, read_archives, to_compact
from frcl.data.files import DataFile
from frcl.data.options import TrainOn
from frcl.data.streams import mnist_task, read_mnist
from frcl.data.tasks import Task

NOWHERE = "http://127.0.0.1:9/"  # the discard port: nothing listens there


def png(bits: np.ndarray, filters: list[int] | None = None) -> bytes:
    """A black-and-white PNG of bits [h, w]; `filters` gives the filter of each line (0 unless given)."""
    height, width = bits.shape
    packed = np.packbits(bits.astype(np.uint8), axis=1)
    lines = b""
    above = np.zeros(packed.shape[1], int)
    for number, line in enumerate(packed.astype(int)):
        kind = filters[number] if filters else 0
        lines += bytes([kind]) + _filtered(kind, line, above)
        above = line
    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")


def chunk(kind: bytes, body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + kind + body + zlib.crc32(kind + body).to_bytes(4, "big")


def _filtered(kind: int, line: np.ndarray, above: np.ndarray) -> bytes:
    left, corner = np.r_[0, line[:-1]], np.r_[0, above[:-1]]
    match kind:
        case 1:
            guess = left
        case 2:
            guess = above
        case 3:
            guess = (left + above) // 2
        case 4:
            p = left + above - corner
            pa, pb, pc = abs(p - left), abs(p - above), abs(p - corner)
            guess = np.where((pa <= pb) & (pa <= pc), left, np.where(pb <= pc, above, corner))
        case _:
            guess = np.zeros_like(line)
    return bytes(((line - guess) % 256).tolist())


def zipped(members: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            member = zipfile.ZipInfo(name, date_time=(2000, 1, 1, 0, 0, 0))  # the same bytes whenever it is made
            member.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(member, content)
    return buffer.getvalue()


def drawing(alphabet: int, character: int, drawer: int, side: int = 105) -> np.ndarray:
    """Paper (1) with a few strokes (0) that differ between all drawings."""
    rng = np.random.default_rng((alphabet, character, drawer))
    bits = np.ones((side, side), np.uint8)
    for _ in range(3):
        row, column = rng.integers(20, 80, 2)
        bits[row : row + 8, 20 : 20 + column // 2] = 0
        bits[10:row, column : column + 8] = 0
    return bits


def archive(alphabets: Mapping[str, int], top: str = "images") -> bytes:
    """A zip archive in Omniglot's layout: alphabet → number of characters."""
    members = {f"{top}/": b""}
    for number, (name, characters) in enumerate(alphabets.items()):
        for character in range(1, characters + 1):
            for drawer in range(1, 21):
                path = f"{top}/{name}/character{character:02d}/{number:02d}{character:02d}_{drawer:02d}.png"
                members[path] = png(drawing(number, character, drawer))
    return zipped(members)


def small_drawings(*characters: int) -> Drawings:
    """Random 28×28 drawings of alphabets A, B, …, with these numbers of characters."""
    rng = np.random.default_rng(5)
    images = {
        (chr(ord("A") + number), character, drawer): rng.integers(0, 2, (28, 28)).astype(np.uint8)
        for number, count in enumerate(characters)
        for character in range(1, count + 1)
        for drawer in range(1, 21)
    }
    return from_images(images, "random drawings")


def idx(array: np.ndarray) -> bytes:
    shape = b"".join(side.to_bytes(4, "big") for side in array.shape)
    return b"\x00\x00\x08" + bytes([array.ndim]) + shape + array.astype(np.uint8).tobytes()


def small_mnist(mirror: str = NOWHERE) -> tuple[DataSet, dict[str, bytes]]:
    """120 + 30 images of 4×4 pixels in MNIST's format: their descriptions, and name → gzipped content."""
    rng = np.random.default_rng(3)
    arrays = {
        "train-images-idx3-ubyte": rng.integers(0, 256, (120, 4, 4)),
        "train-labels-idx1-ubyte": np.arange(120) % 10,
        "t10k-images-idx3-ubyte": rng.integers(0, 256, (30, 4, 4)),
        "t10k-labels-idx1-ubyte": np.arange(30) % 10,
    }
    files = [
        DataFile(f"{name}.gz", "mnist", "sha256 unpacked", hashlib.sha256(idx(array)).hexdigest(), (mirror,))
        for name, array in arrays.items()
    ]
    return DataSet("mnist", tuple(files)), {f"{name}.gz": gzip.compress(idx(array)) for name, array in arrays.items()}


def load_mnist(
    seed: int, train_on: TrainOn = "train+validation", *, data: Path | None = None, files: DataSet = MNIST
) -> Task:
    """MNIST, or files like it, as one task."""
    return mnist_task(*read_mnist(data, files=files), seed, train_on)


def small_omniglot(mirror: str = NOWHERE) -> tuple[DataSet, dict[str, bytes]]:
    """Two archives, with alphabets Aa (2 characters) and Cc (3), and Bb (2)."""
    contents = {"one.zip": archive({"Aa": 2, "Cc": 3}), "two.zip": archive({"Bb": 2})}
    archives = tuple(
        DataFile(name, "omniglot", "md5", hashlib.md5(raw).hexdigest(), (mirror,)) for name, raw in contents.items()
    )
    digest = read_archives(contents).digest()
    compact = DataFile("compact.npz", "omniglot", "sha256 of arrays", digest)
    return DataSet("omniglot", archives, (compact,), lambda given: to_compact(read_archives(given))), contents


@dataclass
class Mirror:
    """A running server. `files` maps a path to its content; the rest says how it misbehaves."""

    address: str
    files: dict[str, bytes]
    cut: set[str] = field(default_factory=set)  # send half of these, and close the connection
    hang: set[str] = field(default_factory=set)  # never answer for these
    stall: set[str] = field(default_factory=set)  # send half of these, and then nothing
    slow: dict[str, float] = field(default_factory=dict)  # seconds that sending one takes
    requests: list[str] = field(default_factory=list)
    end: threading.Event = field(default_factory=threading.Event)


@contextmanager
def mirror(files: Mapping[str, bytes]) -> Iterator[Mirror]:
    """A real HTTP server on a free port of the loopback interface, for as long as the block lasts."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state.requests.append(self.path)
            if self.path in state.hang:
                state.end.wait()
                return
            content = state.files.get(self.path)
            if content is None:
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            sent = content[: len(content) // 2] if self.path in state.cut | state.stall else content
            for start in range(0, len(sent), len(sent) // 20 + 1):
                self.wfile.write(sent[start : start + len(sent) // 20 + 1])
                time.sleep(state.slow.get(self.path, 0.0) / 20)
            if self.path in state.stall:
                state.end.wait()
            self.close_connection = True

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    state = Mirror(f"http://127.0.0.1:{server.server_port}/", dict(files))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield state
    finally:
        state.end.set()
        server.shutdown()
        server.server_close()
        thread.join()
