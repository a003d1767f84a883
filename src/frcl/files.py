"""Checkpoint files: tensors and JSON in one safetensors file. Writing is atomic, reading runs no code."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor

from frcl.errors import BusyError, CheckpointError

FORMAT = "frcl-checkpoint"
VERSION = 1
LOCK = ".lock"  # in a folder that one process at a time may write to


def write_atomically(path: Path, content: bytes) -> None:
    """Either the whole new file is there afterwards or the old one still is."""
    name = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(6)}.tmp")
    handle = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)  # the user's umask applies
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        name.replace(path)
    except BaseException:
        name.unlink(missing_ok=True)
        raise


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Inside, no other process can be in here with the same folder; it is free again when this one ends, however.

    Where another one is inside it is refused. Where the system has no such locks nothing is checked.
    """
    try:
        import fcntl
    except ImportError:
        yield
        return
    with (folder / LOCK).open("wb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BusyError(
                f"another process is at work in {folder}; wait until it has ended, or choose another folder"
            ) from error
        except OSError as error:
            if error.errno not in (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP):
                raise
        yield


def _digest(meta: str, tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256(meta.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name}{tensor.dtype}{tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b"")
    return digest.hexdigest()


def save_state(path: str | Path, meta: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Write tensors and a JSON-able `meta` to `path`."""
    path = Path(path)
    if not path.parent.is_dir():
        raise CheckpointError(f"cannot save to {path}: the folder {path.parent} does not exist; create it first")
    local = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    text = json.dumps(meta, sort_keys=True)
    header = {"format": FORMAT, "version": str(VERSION), "meta": text, "digest": _digest(text, local)}
    write_atomically(path, to_bytes(local, metadata=header))


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
    if header.get("version") != str(VERSION):
        raise CheckpointError(
            f"{path} has format version {header.get('version')}; this frcl reads version {VERSION}. "
            "Use the release that wrote it, or a newer one."
        )
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
    """The states whose metas these are and whose tensors `side_by_side` put together.

    Names that it cannot have made raise a ValueError, IndexError or AttributeError.
    """
    states: list[dict[str, Any]] = [{"meta": meta, "tensors": {}} for meta in metas]
    for name, value in tensors.items():
        place, own = name.split("/", 1)
        states[int(place)]["tensors"][own] = value
    return states
