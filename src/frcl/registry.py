"""Things that are chosen by name, and the entry points through which other packages add their own."""

import difflib
import pkgutil
import warnings
from collections import UserDict
from collections.abc import Iterable, Iterator
from importlib import import_module, metadata
from typing import Any, TypeVar, get_args

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
    """Named objects of one kind. Installed packages add to it through the entry point group `frcl.<kind>s`.

    They are instances of `of`, or with `of=type[Base]` subclasses. `plural` replaces `<kind>s` in the name of the group
    where English has another plural. What cannot be added from another package is left out with one warning; asking for
    it by name is refused with the reason.
    """

    def __init__(self, kind: str, plural: str | None = None, of: Any = object) -> None:
        self.kind, self.of = kind, of
        self.group = f"frcl.{plural or kind + 's'}"
        super().__init__()
        self._plugins_loaded = False
        self._broken: dict[str, str] = {}  # why a name of another package is not there

    def add(self, name: str, item: T) -> T:
        """Register `item` under `name`; returns it. A name that is taken is refused."""
        if name in self.data:
            raise OptionError(f"there is already a {self.kind} {name!r}; choose another name")
        bases = get_args(self.of)
        if not (isinstance(item, type) and issubclass(item, bases) if bases else isinstance(item, self.of)):
            wanted = f"a subclass of {bases[0].__name__}" if bases else f"of type {self.of.__name__}"
            raise OptionError(f"a {self.kind} is {wanted}, not {item!r}")
        self.data[name] = item
        return item

    def __missing__(self, name: str) -> T:
        if name not in self:
            raise OptionError(f"unknown {self.kind} {name!r}{suggestion(name, self)}")
        return self.data[name]

    def __contains__(self, name: object) -> bool:
        if name not in self.data:  # our own names load no plugins, which may import what is being imported
            self._load_plugins()
        if name not in self.data and name in self._broken:
            raise OptionError(self._broken[str(name)])
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
        refused = []
        for entry in metadata.entry_points(group=self.group):
            try:
                item = entry.load()
                if self.data.get(entry.name) is not item:  # it may have registered itself
                    self.add(entry.name, item)
            except Exception as error:
                package = entry.dist.name if entry.dist else entry.value
                self._broken[entry.name] = (
                    f"{self.kind} {entry.name!r} of package {package} (entry point group {self.group}) cannot be used: "
                    f"{type(error).__name__}: {error}. Mend or uninstall the package."
                )
                refused.append(self._broken[entry.name])
        for text in refused:  # last: a warning may be an error
            warnings.warn(text, stacklevel=3)
