"""The runs of a cell that are in progress: which seeds are this process's own, and what was interrupted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from frcl.errors import BusyError, FrclError
from frcl.experiment.config import Config, read_toml, saved, to_dict
from frcl.experiment.keeper import read_checkpoint
from frcl.files import alone_in


@dataclass(frozen=True)
class Run:
    """A run in its folder; one that was begun was interrupted, and is taken up."""

    folder: Path
    config: Config
    begun: bool

    @property
    def seeds(self) -> set[int]:
        return set(self.config.seeds)


class Home:
    """The folder of a cell, with a folder for each run. A seed belongs to one process at a time, until it leaves."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._held, self._own = folder, ExitStack(), set[int]()

    def __enter__(self) -> Home:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._held.close()
        self._own.clear()

    def claim(self, seeds: Sequence[int]) -> bool:
        """Make these seeds this process's own, all of them; False, and none of them, if another one has one."""
        more = [seed for seed in dict.fromkeys(seeds) if seed not in self._own]
        with ExitStack() as these:
            try:
                for seed in more:
                    these.enter_context(alone_in(self._folder, f".seed-{seed}.lock"))
            except BusyError:
                return False
            self._held.enter_context(these.pop_all())
        self._own |= set(more)
        return True

    def new(self, config: Config) -> Run:
        """A run to begin; a folder that a run with the same seeds left behind is overwritten."""
        return Run(self._folder / "-".join(("seeds", *map(str, config.seeds))), config, begun=False)

    def interrupted(self, config: Config) -> Iterator[Run]:
        """Runs with the same options, whatever their seeds."""
        for folder in sorted(self._folder.glob("seeds-*")):
            found = _readable(folder, config)
            if found is not None:
                yield Run(folder, found, begun=True)


def _readable(folder: Path, config: Config) -> Config | None:
    """The configuration of a run that can be taken up; None if it has other options or is damaged."""
    try:
        found = saved(read_toml(folder / "config.toml"))
        if {**to_dict(found), "seeds": None} != {**to_dict(config), "seeds": None}:
            return None
        read_checkpoint(folder)
    except FrclError:
        return None
    return found
