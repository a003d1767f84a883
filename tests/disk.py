"""What a program does to the files of a folder: recorded, made to fail, or cut off as by a power cut."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

CALLS = ("open", "pwrite", "ftruncate", "fsync", "replace", "unlink", "mkdir")
CUTS = ("killed", "nothing unsynced", "names before data", "data before names", "zeros for data")


@dataclass
class State:
    """Files by inode and names by path, as a program sees them and as they surely are on the disk."""

    seen: dict[int, bytes] = field(default_factory=dict)
    synced: dict[int, bytes] = field(default_factory=dict)
    names: dict[Path, int] = field(default_factory=dict)
    synced_names: dict[Path, int] = field(default_factory=dict)

    def left(self, cut: str) -> dict[Path, bytes]:
        """The files after a power cut; what was not synced is lost or kept, whichever `cut` says."""
        names = self.synced_names if cut in ("nothing unsynced", "data before names") else self.names
        contents = self.seen if cut in ("killed", "data before names") else self.synced
        if cut == "zeros for data":  # the length is on the disk, the bytes are not
            contents = {
                inode: (self.synced[inode] + bytes(max(0, len(seen) - len(self.synced[inode]))))[: len(seen)]
                for inode, seen in self.seen.items()
            }
        return {path: contents[inode] for path, inode in names.items()}


class Disk:
    """Watches the calls of `os` that change files under `root`; `states` has the state after each of them.

    With `fail`, a call number from 1 and a function that makes an error, that call fails: a write halfway.
    """

    def __init__(self, root: Path, fail: tuple[int, Callable[[], BaseException]] | None = None) -> None:
        self.root, self.fail = root, fail
        self.states, self.calls = [State()], list[str]()
        self._inodes: dict[int, int] = {}  # by open handle
        self._folders: dict[int, Path] = {}

    @contextmanager
    def watching(self) -> Iterator[Disk]:
        with pytest.MonkeyPatch.context() as patch:
            for name in CALLS:
                patch.setattr(os, name, self._watched(name, getattr(os, name)))
            yield self

    def _watched(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(first: Any, *rest: Any, **options: Any) -> Any:
            if not self._concerns(name, first, rest):
                return real(first, *rest, **options)
            self.calls.append(name)
            if self.fail is not None and len(self.calls) == self.fail[0]:
                if name == "pwrite":
                    self._happened("pwrite", first, (rest[0][: len(rest[0]) // 2], rest[1]), None)
                    real(first, rest[0][: len(rest[0]) // 2], rest[1])
                raise self.fail[1]()
            existed = name == "open" and Path(first).exists()
            found = real(first, *rest, **options)
            self._happened(name, first, rest, found, existed)
            return found

        return call

    def _concerns(self, name: str, first: Any, rest: tuple[Any, ...]) -> bool:
        if name in ("pwrite", "ftruncate", "fsync"):
            return first in self._inodes or first in self._folders
        inside = isinstance(first, str | Path) and Path(first).is_relative_to(self.root)
        if name == "open":
            return inside and (bool(rest[0] & os.O_CREAT) or Path(first).is_dir())
        return inside

    def _number(self, path: Path, existed: bool) -> int:
        """A number of its own for each file, since the system gives those of deleted files again."""
        return self.states[-1].names[path] if existed else len(self.states)

    def _happened(self, name: str, first: Any, rest: tuple[Any, ...], found: Any, existed: bool = False) -> None:
        state = copy.deepcopy(self.states[-1])
        match name:
            case "open" if Path(first).is_dir():
                self._folders[found], _ = Path(first), self._inodes.pop(found, None)
            case "open":
                self._inodes[found], _ = self._number(Path(first), existed), self._folders.pop(found, None)
                if not existed:
                    state.names[Path(first)] = self._inodes[found]
                    state.seen[self._inodes[found]] = state.synced[self._inodes[found]] = b""
            case "pwrite":
                inode, (content, at) = self._inodes[first], rest
                content = bytes(content) if found is None else bytes(content)[:found]
                before = state.seen[inode].ljust(at, b"\0")
                state.seen[inode] = before[:at] + content + before[at + len(content) :]
            case "ftruncate":
                inode = self._inodes[first]
                state.seen[inode] = state.seen[inode][: rest[0]].ljust(rest[0], b"\0")
            case "fsync" if first in self._inodes:
                state.synced[self._inodes[first]] = state.seen[self._inodes[first]]
            case "fsync":
                folder = self._folders[first]
                kept = {path: inode for path, inode in state.synced_names.items() if path.parent != folder}
                state.synced_names = kept | {p: inode for p, inode in state.names.items() if p.parent == folder}
            case "replace":
                state.names[Path(rest[0])] = state.names.pop(Path(first))
            case "unlink":
                state.names.pop(Path(first), None)
        self.states.append(state)


def write_out(files: dict[Path, bytes], root: Path, place: Path) -> None:
    """Write files under `root` to the same names under `place`."""
    for path, content in files.items():
        target = place / path.relative_to(root)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
