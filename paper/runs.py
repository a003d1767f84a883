"""Runs of a cell in progress: the seeds claimed by this process, and runs that were interrupted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from frcl import FrclError
from paper.library import BusyError, Config, check_resumable, saved_config, to_dict
from paper.locks import locked


@dataclass(frozen=True)
class Run:
    """A run in its folder: a new one, or one that was interrupted and can be resumed."""

    folder: Path
    config: Config
    interrupted: bool

    @property
    def seeds(self) -> set[int]:
        return set(self.config.seeds)


class Home:
    """The folder of a cell, with one subfolder per run. Each seed is claimed by at most one process at a time."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._locks, self._claimed = folder, ExitStack(), set[int]()

    def __enter__(self) -> Home:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._locks.close()
        self._claimed.clear()

    def claim(self, seeds: Sequence[int]) -> bool:
        """Claim all of these seeds for this process; if another process has one of them, claim none."""
        more = [seed for seed in dict.fromkeys(seeds) if seed not in self._claimed]
        with ExitStack() as these:
            try:
                for seed in more:
                    these.enter_context(locked(self._folder / f".seed-{seed}.lock"))
            except BusyError:
                return False
            self._locks.enter_context(these.pop_all())
        self._claimed |= set(more)
        return True

    def new(self, config: Config) -> Run:
        """A new run; it overwrites the folder of an earlier run with the same seeds."""
        return Run(self._folder / "-".join(("seeds", *map(str, config.seeds))), config, interrupted=False)

    def interrupted(self, config: Config) -> Iterator[Run]:
        """Interrupted runs with the same options, whatever their seeds."""
        for folder in sorted(self._folder.glob("seeds-*")):
            found = _resumable(folder, config)
            if found is not None:
                yield Run(folder, found, interrupted=True)


def _resumable(folder: Path, config: Config) -> Config | None:
    """The configuration of a run that can be resumed; None if it has other options or is damaged."""
    try:
        found = saved_config(folder)
        if {**to_dict(found), "seeds": None} != {**to_dict(config), "seeds": None}:
            return None
        check_resumable(folder)
    except FrclError:
        return None
    return found
