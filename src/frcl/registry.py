"""Things that are chosen by name, and the entry points through which other packages add their own."""

import difflib
import pkgutil
from collections import UserDict
from collections.abc import Iterable, Iterator
from importlib import import_module, metadata
from typing import TypeVar

from frcl.errors import OptionError

T = TypeVar("T")


def suggestion(word: str, known: Iterable[str]) -> str:
    """What to append to the refusal of an unknown word: the nearest known one, or all of them."""
    names = list(known)
    near = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else f"; known are {', '.join(names)}"


def import_modules(package: str, path: Iterable[str]) -> None:
    """Import every module of a package, so that each registers its objects: a new object is one new file."""
    for module in pkgutil.iter_modules(path):
        import_module(f"{package}.{module.name}")


class Registry(UserDict[str, T]):
    """Named objects of one kind. Installed packages add to it through the entry point group `frcl.<plural>`."""

    def __init__(self, kind: str, plural: str | None = None) -> None:
        self.kind = kind
        self.group = f"frcl.{plural or kind + 's'}"
        super().__init__()
        self._plugins_loaded = False

    def add(self, name: str, item: T) -> T:
        """Register `item` under `name`; returns it. A name that is taken is refused."""
        if name in self.data:
            raise OptionError(f"there is already a {self.kind} {name!r}; choose another name")
        self.data[name] = item
        return item

    def __missing__(self, name: str) -> T:
        if name not in self:
            raise OptionError(f"unknown {self.kind} {name!r}{suggestion(name, self)}")
        return self.data[name]

    def __contains__(self, name: object) -> bool:
        if name not in self.data:  # our own names load no plugins, which may import what is being imported
            self._load_plugins()
        return name in self.data

    def __iter__(self) -> Iterator[str]:
        """All names, ours first."""
        self._load_plugins()
        return iter(self.data)

    def _load_plugins(self) -> None:
        """Import what other packages offer, once. Importing a package runs its code, as any import does."""
        if self._plugins_loaded:
            return
        self._plugins_loaded = True
        for entry in metadata.entry_points(group=self.group):
            if entry.name not in self.data:
                self.data[entry.name] = entry.load()
