"""Measures the missing seeds of cells, and adds them to the result files."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from frcl import OptionError
from paper.cells import Cell, Table
from paper.library import BusyError, Config, Observer, carry_out, seeds_at_once
from paper.locks import locked
from paper.numbers import percent
from paper.runs import Home, Run
from paper.store import Document, differences, document, merged, path_of, read_document, write_document

COMMAND = "python -m paper"


@dataclass(frozen=True)
class Place:
    """The folders of results and of runs in progress, the device and the data."""

    results: Path
    runs: Path
    device: str = "cpu"
    data: Path | None = None
    quick: bool = False

    def config(self, cell: Cell, seeds: Sequence[int]) -> Config:
        data = {} if self.data is None else {"data": str(self.data.resolve())}
        return cell.config({"seeds": list(seeds), "device": self.device, **data})

    def command(self, *words: str) -> str:
        """A command line that measures something as here. It names no path of this machine."""
        device = ["--device", self.device] if self.device != "cpu" else []
        return " ".join([COMMAND, *words, *device, *["--quick"] * self.quick])


@dataclass(frozen=True)
class Wanted:
    """The requested seeds of a cell: all, the first `count`, or `only` some."""

    count: int | None = None
    only: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.count is not None and self.only:
            raise OptionError("--seeds and --seed exclude each other: a number of seeds, or some by their number")

    def of(self, cell: Cell) -> tuple[int, ...]:
        return tuple(seed for seed in cell.seeds[: self.count] if not self.only or seed in self.only)

    def words(self, cell: Cell, seeds: Sequence[int]) -> list[str]:
        """Options of the command line for these seeds: those that were given, if they include the seeds."""
        wanted = self.of(cell)
        if set(seeds) <= set(wanted):
            seeds = wanted
        first = tuple(seeds) == cell.seeds[: len(seeds)]
        return ["--seeds", str(len(seeds))] if first else [f"--seed {seed}" for seed in seeds]


ALL_SEEDS = Wanted()


@dataclass(frozen=True)
class State:
    """A cell, the seeds requested of it and the seeds in its result file."""

    table: str
    cell: Cell
    asked: Wanted
    measured: tuple[int, ...]
    differs: tuple[str, ...]  # options of the result file that differ from the current ones

    @property
    def name(self) -> str:
        return f"{self.table}/{self.cell.name}"

    @property
    def wanted(self) -> tuple[int, ...]:
        return self.asked.of(self.cell)

    @property
    def missing(self) -> tuple[int, ...]:
        return tuple(seed for seed in self.wanted if seed not in self.measured)

    def in_words(self) -> str:
        text = f"{self.name}: {len(self.measured)} of {len(self.cell.seeds)} seeds"
        text += f", missing {in_words(self.missing)}" if self.missing else ""
        return text + (f"; measured with other options: {'; '.join(self.differs)}" if self.differs else "")


def in_words(seeds: Sequence[int]) -> str:
    """ "0–9" for consecutive seeds, else "0, 3, 5"."""
    if len(seeds) > 2 and list(seeds) == list(range(seeds[0], seeds[-1] + 1)):
        return f"{seeds[0]}–{seeds[-1]}"
    return ", ".join(map(str, seeds))


def chosen_cells(table: Table, patterns: Sequence[str]) -> list[Cell]:
    """The cells whose name matches one of the patterns; all cells without patterns."""
    return [cell for cell in table.cells if not patterns or any(fnmatchcase(cell.name, one) for one in patterns)]


def state_of(table: str, cell: Cell, place: Place, asked: Wanted = ALL_SEEDS, *, again: bool = False) -> State:
    """The state of a cell; with `again`, as if there were no result file."""
    stored = None if again else read_document(path_of(place.results, table, cell.name), quick=place.quick)
    if stored is None:
        return State(table, cell, asked, (), ())
    measured = tuple(one["seed"] for one in stored["seeds"])
    return State(table, cell, asked, measured, tuple(differences(stored, cell.config())))


def current_accuracy(table: str, cell: Cell, place: Place) -> tuple[float, float | str, int] | None:
    """Mean and standard deviation ("" with one seed) of the accuracy in %, and the number of seeds.

    None if the cell is not measured, or measured with other options than its current ones.
    """
    found = read_document(path_of(place.results, table, cell.name), quick=place.quick)
    if found is None or differences(found, cell.config()):
        return None
    accuracy = percent(found["seeds"])
    if accuracy is None:
        return None
    return accuracy.mean, "" if accuracy.std is None else accuracy.std, len(found["seeds"])


def check_options(states: Sequence[State]) -> None:
    """Refuse cells whose results were measured with other options than the current ones."""
    other = [f"{one.name} ({'; '.join(one.differs)})" for one in states if one.differs]
    if other:
        raise OptionError(
            f"results measured with other options are not changed: {', '.join(other)}. Use --again to measure them "
            "again and replace them."
        )


@dataclass(frozen=True)
class Session:
    """How cells are measured: the place, observer and messages, and until when."""

    place: Place
    observer: Callable[[], Observer]  # creates the observer of a run
    say: Callable[[str], None]
    may_start: Callable[[], bool]
    again: bool = False  # replace the results that exist


def attend(state: State, session: Session, lacking: str = "") -> None:
    """Measure the missing seeds of a cell, or say why not; `lacking` is the reason why its data is unavailable."""
    if state.differs:
        session.say(f"{state.name}: not changed, since it was measured with other options")
    elif lacking and state.missing:
        session.say(f"{state.name}: skipped, since {lacking}")
    else:
        try:
            _report(state, session)
        except BusyError:
            session.say(f"{state.name}: left to another process that is measuring it")


def _report(state: State, session: Session) -> None:
    """Measure the missing seeds, and say what was found."""
    for found in measure(state, session):
        accuracy = percent(found["seeds"])
        shown = "not available" if accuracy is None else f"{accuracy.show()} %"
        paper = "" if state.cell.paper is None else f", the paper {state.cell.paper.value}"
        seeds = f"{len(found['seeds'])} of {len(state.cell.seeds)} seeds"
        session.say(f"{state.name}: {shown} with {seeds}{paper}")


def measure(state: State, session: Session) -> Iterator[Document]:
    """Run the missing seeds of a cell, in groups that are trained together; yields the result file after each run.

    An interrupted run with one of these seeds is resumed first, even if it has more seeds than requested. Several
    processes may measure a cell, each with its own seeds; replacing it requires that no other process does.
    """
    left, again = list(state.missing), session.again
    with Home(session.place.runs / state.table / state.cell.name) as home:
        if again and not home.claim(state.cell.seeds):
            raise BusyError(f"another process is measuring {state.name}; wait until it has finished")
        first = True
        while left:
            if not session.may_start():
                session.say(f"{state.name}: seeds {in_words(left)} not started, the time is up")
                return
            run = _next_run(state, session.place, home, left, again=again)
            if run is None:
                left = _unmeasured(state, session.place, left, again=again)
                if left and first:
                    raise BusyError(f"another process is measuring {state.name}")
                if left:
                    session.say(f"{state.name}: seeds {in_words(left)} are left to another process")
                return
            finished = carry_out(run.config, run.folder, session.observer(), resume=run.interrupted)
            command = session.place.command(
                state.table, "--rows", state.cell.name, *state.asked.words(state.cell, run.config.seeds)
            )
            new = document(state.table, state.cell.name, run.config, finished, command, quick=session.place.quick)
            found = _add(state, session.place, new, again=again)
            if found is None:
                session.say(f"{state.name}: not changed, since it was measured with other options meanwhile")
                return
            shutil.rmtree(run.folder)
            again = first = False
            left = [seed for seed in left if seed not in run.seeds]
            yield found


def _next_run(state: State, place: Place, home: Home, left: Sequence[int], *, again: bool) -> Run | None:
    """An interrupted run, else a new one with the first seeds that are not claimed; None if there are none.

    The result file is read after a claim, since the previous owner of a seed may have written it.
    """
    whole = place.config(state.cell, state.cell.seeds)
    for run in home.interrupted(whole):
        written = not _unmeasured(state, place, run.config.seeds, again=again)
        if (written or run.seeds & set(left)) and home.claim(run.config.seeds):
            unmeasured = _unmeasured(state, place, run.config.seeds, again=again)
            if not unmeasured:
                shutil.rmtree(run.folder)  # it was killed after its seeds had been written
            elif run.seeds == set(unmeasured):
                return run
    mine: list[int] = []
    for seed in left:
        if len(mine) < seeds_at_once(whole) and home.claim([seed]):
            mine += _unmeasured(state, place, [seed], again=again)
    return home.new(place.config(state.cell, mine)) if mine else None


def _unmeasured(state: State, place: Place, seeds: Sequence[int], *, again: bool) -> list[int]:
    """The seeds that are not in the result file; all of them if it is going to be replaced."""
    measured = state_of(state.table, state.cell, place, again=again).measured
    return [seed for seed in seeds if seed not in measured]


def _add(state: State, place: Place, new: Document, *, again: bool) -> Document | None:
    """Add a run to the result file, to which other processes may write too; None if that has other options now."""
    path = path_of(place.results, state.table, state.cell.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    with locked(path.with_name(f".{path.stem}.lock"), wait=True):
        stored = None if again else read_document(path, quick=place.quick)
        if stored is not None and differences(stored, state.cell.config()):
            return None
        found = merged(stored, new)
        write_document(path, found)
    return found
