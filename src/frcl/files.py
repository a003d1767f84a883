"""Files, and checkpoints: tensors and JSON in one safetensors file. Writing is atomic, reading runs no code."""

import errno
import hashlib
import json
import math
import os
import re
import secrets
import stat
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.lib import format as npy
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor

from frcl.codec import short
from frcl.errors import BusyError, CheckpointError, DataError, FrclError

FORMAT = "frcl-checkpoint"
VERSION = 1  # of every format that frcl writes
LOCK = ".lock"  # in a folder that one process at a time may write to, where folders cannot be locked
NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EBADF, errno.EINVAL, errno.EISDIR)
TEMPORARY = re.compile(r"\..+\.\d+-[0-9a-f]{12}\.tmp")
HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
LARGEST_DOCUMENT = 256 << 20  # bytes of a JSON or TOML file


def write_atomically(path: Path, content: bytes) -> None:
    """Either the whole new file is there afterwards, even after a power cut, or the old one still is."""
    name = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(6)}.tmp")
    with _naming(path):
        try:
            _write_synced(name, os.O_EXCL, content, 0)
            name.replace(path)
            sync_folder(path.parent)
        except BaseException:
            with suppress(OSError):
                name.unlink()
            raise


def write_at(path: Path, content: bytes, at: int) -> None:
    """Let `path` consist of its first `at` bytes and `content`, and wait until that is on the disk."""
    with _naming(path):
        _write_synced(path, os.O_NOFOLLOW, content, at)


def sync_folder(folder: Path) -> None:
    """Wait until the names of the files in a folder are on the disk, where the system can do that."""
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except PermissionError:  # a folder that may be written to, but not read
        return
    try:
        with _naming(folder):
            os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EBADF):
            raise
    finally:
        os.close(handle)


def sweep(folder: Path) -> None:
    """Remove what a killed `write_atomically` left in a folder and its own folders."""
    for path in folder.rglob(".*.tmp"):
        if TEMPORARY.fullmatch(path.name) and path.is_file() and not path.is_symlink():
            path.unlink(missing_ok=True)


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Add the name of the file to errors of the system, such as a full disk."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def _write_synced(path: Path, flags: int, content: bytes, at: int) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | flags, 0o666)  # the user's umask applies
    try:
        os.ftruncate(handle, at)
        rest = memoryview(content)
        while rest:
            written = os.pwrite(handle, rest, at)
            rest, at = rest[written:], at + written
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def open_regular(path: Path, most: int) -> Iterator[BinaryIO]:
    """A regular file of at most `most` bytes, open for reading. Pipes and devices are refused, not waited for."""
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        if found.st_size > most:
            raise OSError(errno.EFBIG, f"it has more than {most >> 20} MiB", str(path))
        yield file


def read_arrays(file: BinaryIO, most: int) -> dict[str, NDArray[Any]]:
    """The arrays of an .npz file by name, without pickled objects. Any other content is a ValueError of one line.

    The size of each array must be that of its member, and all together unpack to `most` bytes at most: both are
    checked before anything is unpacked.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            if sum(member.file_size for member in archive.infolist()) > most:
                raise ValueError(f"it would unpack to more than {most >> 20} MiB")
            return {m.filename.removesuffix(".npy"): _read_array(archive, m) for m in archive.infolist()}
    except Exception as error:  # damaged archives raise many kinds
        raise ValueError(" ".join(str(error).split()) or repr(error)) from error


def _read_array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> NDArray[Any]:
    with archive.open(member) as file:
        version = npy.read_magic(file)
        if version not in HEADERS:
            raise ValueError(f"{member.filename} is an array of version {version}")
        shape, fortran, dtype = HEADERS[version](file)
        if dtype.hasobject:
            raise ValueError(f"{member.filename} holds Python objects, which are not read")
        size = math.prod(shape) * dtype.itemsize
        if min(shape, default=0) < 0 or size > member.file_size:
            raise ValueError(f"{member.filename} is damaged: its header says {short(shape)}, its length does not")
        content = bytearray(file.read(size))
        file.read()  # checks the checksum
    return np.ndarray(shape, dtype, content, order="F" if fortran else "C")


def read_document(
    path: Path, parse: Callable[[str], Any], error: type[FrclError] = DataError, form: str | None = None
) -> dict[str, Any]:
    """The table in a JSON or TOML file, as `parse` reads it; any other file is an `error` of one line.

    With `form`, the file must say that it has this format, in the version that is read here.
    """
    try:
        with open_regular(path, LARGEST_DOCUMENT) as file:
            found = parse(file.read().decode())
    except OSError as problem:
        raise error(f"cannot read {path}: {problem.strerror or problem}") from problem
    except (ValueError, RecursionError) as problem:
        kind = "UTF-8 text" if isinstance(problem, UnicodeDecodeError) else "JSON" if parse is json.loads else "TOML"
        raise error(f"cannot read {path}: it is not {kind} ({' '.join(str(problem).split())})") from problem
    if not isinstance(found, dict) or found.get("format") != (form or found.get("format")):
        raise error(f'{path} was not written by frcl: it has no "format": "{form}"; name another file')
    if form is not None:
        check_version(path, found.get("version"), error)
    return found


def check_version(path: Path, version: object, error: type[FrclError]) -> None:
    """Refuse a file of another version."""
    if version not in (VERSION, str(VERSION)) or isinstance(version, bool):
        shown = version if isinstance(version, str) else short(version)
        raise error(
            f"{path} has format version {shown}; this frcl reads version {VERSION}. "
            "Use the release that wrote it, or a newer one."
        )


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Lock a folder; a BusyError if another process has locked it. The lock ends with the process, however that ends.

    The folder itself is locked, so that deleting a file does not release it. Where the system cannot lock folders, a
    file inside it is locked; where it has no locks, nothing is checked.
    """
    try:
        import fcntl
    except ImportError:
        yield
        return

    def locked(handle: int) -> bool:
        held.callback(os.close, handle)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BusyError(f"another process is at work in {folder}; wait for it, or choose another folder") from error
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            return False
        return True

    with ExitStack() as held:
        if not locked(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)):
            locked(os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666))
        yield


def _digest(meta: str, tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256(meta.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name}{tensor.dtype}{tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b"")
    return digest.hexdigest()


def save_state(path: str | Path, meta: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Write tensors and a JSON-able `meta` to `path`."""
    path = Path(path)
    if not path.parent.is_dir():
        raise CheckpointError(f"cannot save to {path}: the folder {path.parent} does not exist; create it first")
    if path.is_dir():
        raise CheckpointError(f"cannot save to {path}: it is a folder; name a file in it")
    local = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    text = json.dumps(meta, sort_keys=True)
    header = {"format": FORMAT, "version": str(VERSION), "meta": text, "digest": _digest(text, local)}
    write_atomically(path, _in_order(to_bytes(local, metadata=header)))


def _in_order(content: bytes) -> bytes:
    """A safetensors file with its meta data sorted, so that equal states are equal files: the writer has any order."""
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return b"".join([len(text).to_bytes(8, "little"), text, memoryview(content)[start:]])


def load_state(path: str | Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Read what `save_state` wrote; a foreign, damaged or newer file is refused."""
    path = Path(path)
    if not path.is_file():
        raise CheckpointError(f"no such checkpoint: {path}")
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(f"{path} is not a checkpoint, or is damaged: {error}") from error
    if header.get("format") != FORMAT:
        raise CheckpointError(f"{path} is a safetensors file, but not written by frcl's save()")
    check_version(path, header.get("version"), CheckpointError)
    if _digest(header.get("meta", ""), tensors) != header.get("digest"):
        raise CheckpointError(f"{path} is damaged: its content does not match its checksum")
    try:
        meta = json.loads(header["meta"])
    except (KeyError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not a checkpoint of frcl: its meta data cannot be read: {error!r}") from error
    if not isinstance(meta, dict):
        raise CheckpointError(f"{path} is not a checkpoint of frcl: its meta data are not a JSON object")
    return meta, tensors


def side_by_side(states: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
    """The tensors of several states {"meta", "tensors"} in one: those of state i as "i/name"."""
    return {f"{i}/{name}": value for i, state in enumerate(states) for name, value in state["tensors"].items()}


def apart(metas: Sequence[Any], tensors: Mapping[str, Tensor]) -> list[dict[str, Any]]:
    """The inverse of `side_by_side`; a name of another form is a ValueError, IndexError or AttributeError."""
    states: list[dict[str, Any]] = [{"meta": meta, "tensors": {}} for meta in metas]
    for name, value in tensors.items():
        place, own = name.split("/", 1)
        states[int(place)]["tensors"][own] = value
    return states
