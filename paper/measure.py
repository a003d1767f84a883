"""Runs what is missing of a table, and adds it to the result files."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from frcl.errors import BusyError, OptionError
from frcl.experiment import runner
from frcl.experiment.config import Config, resolve
from frcl.experiment.keeper import Observer, read_checkpoint
from frcl.files import alone_in
from paper.cells import Cell, Table
from paper.numbers import percent
from paper.runs import Home, Run
from paper.store import Document, differences, document, merged, path_of, read_document, write_document


@dataclass(frozen=True)
class Place:
    """Where it is measured, and where the results are kept."""

    results: Path
    runs: Path  # runs in progress
    device: str = "cpu"
    data: Path | None = None
    quick: bool = False

    def config(self, cell: Cell, seeds: Sequence[int]) -> Config:
        where = {"seeds": list(seeds), "device": self.device}
        data = {} if self.data is None else {"data": str(self.data.resolve())}
        return resolve(cell.benchmark, *cell.layers, {**where, **data})


@dataclass(frozen=True)
class Wanted:
    """Which seeds of a cell are asked for: all, the first so many, or some by their number."""

    count: int | None = None
    only: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.count is not None and self.only:
            raise OptionError("--seeds and --seed exclude each other: the first so many, or some by their number")

    def of(self, cell: Cell) -> tuple[int, ...]:
        return tuple(seed for seed in cell.seeds[: self.count] if not self.only or seed in self.only)

    def words(self, cell: Cell, seeds: Sequence[int]) -> list[str]:
        """How a run of these seeds is asked for on the command line: as it was, if it was asked for all of them."""
        wanted = self.of(cell)
        if set(seeds) <= set(wanted):
            seeds = wanted
        first = tuple(seeds) == cell.seeds[: len(seeds)]
        return ["--seeds", str(len(seeds))] if first else [f"--seed {seed}" for seed in seeds]


ALL_SEEDS = Wanted()


@dataclass(frozen=True)
class State:
    """A cell, and what is there of it."""

    table: str
    cell: Cell
    asked: Wanted
    there: tuple[int, ...]  # the seeds that are in the result file
    differs: tuple[str, ...]  # options with which the file was made and that are others now

    @property
    def name(self) -> str:
        return f"{self.table}/{self.cell.name}"

    @property
    def wanted(self) -> tuple[int, ...]:
        return self.asked.of(self.cell)

    @property
    def missing(self) -> tuple[int, ...]:
        return tuple(seed for seed in self.wanted if seed not in self.there)

    def in_words(self) -> str:
        text = f"{self.name}: {len(self.there)} of {len(self.cell.seeds)} seeds"
        text += f", missing {in_words(self.missing)}" if self.missing else ""
        return text + (f"; measured with other options: {'; '.join(self.differs)}" if self.differs else "")


def in_words(seeds: Sequence[int]) -> str:
    """ "0–9" for neighbours, else "0, 3, 5"."""
    if len(seeds) > 2 and list(seeds) == list(range(seeds[0], seeds[-1] + 1)):
        return f"{seeds[0]}–{seeds[-1]}"
    return ", ".join(map(str, seeds))


def chosen_cells(table: Table, patterns: Sequence[str]) -> list[Cell]:
    """Those whose name fits one of the patterns; all without any."""
    return [cell for cell in table.cells if not patterns or any(fnmatchcase(cell.name, one) for one in patterns)]


def state_of(table: str, cell: Cell, place: Place, asked: Wanted = ALL_SEEDS, *, again: bool = False) -> State:
    """What is there and what is not, of the seeds asked for; with `again` as if there were nothing."""
    stored = None if again else read_document(path_of(place.results, table, cell.name), quick=place.quick)
    there = () if stored is None else tuple(one["seed"] for one in stored["seeds"])
    differs = () if stored is None else tuple(differences(stored, place.config(cell, cell.seeds)))
    return State(table, cell, asked, there, differs)


def check_options(states: Sequence[State]) -> None:
    """Refuse cells whose results were made with other options than they would be now."""
    other = [f"{one.name} ({'; '.join(one.differs)})" for one in states if one.differs]
    if other:
        raise OptionError(
            f"results with other options are left as they are: {', '.join(other)}. Say --again to measure them anew, "
            "in place of what is there."
        )


@dataclass(frozen=True)
class Session:
    """How cells are measured: where, who watches, who is told, until when."""

    place: Place
    observer: Callable[[], Observer]  # one for each run
    say: Callable[[str], None]
    may_start: Callable[[], bool]
    again: bool = False  # measure anew, in place of what is there


def attend(state: State, session: Session, lacking: str = "") -> None:
    """Measure what is missing of a cell, or say why not; `lacking` says why its data is not at hand."""
    if state.differs:
        session.say(f"{state.name}: left as it is, since it was measured with other options")
    elif lacking and state.missing:
        session.say(f"{state.name}: skipped, since {lacking}")
    else:
        try:
            _report(state, session)
        except BusyError:
            session.say(f"{state.name}: left to another process that is at work on it")


def _report(state: State, session: Session) -> None:
    """Measure what is missing, and say what was found."""
    for found in measure(state, session):
        accuracy = percent(found["seeds"])
        shown = "not available" if accuracy is None else f"{accuracy.show()} %"
        paper = "" if state.cell.paper is None else f", the paper {state.cell.paper.value}"
        seeds = f"{len(found['seeds'])} of {len(state.cell.seeds)} seeds"
        session.say(f"{state.name}: {shown} with {seeds}{paper}")


def measure(state: State, session: Session) -> Iterator[Document]:
    """Run the missing seeds of a cell, as many at a time as are trained together; yields the file after each run.

    A run that was interrupted is taken up first if it has one of these seeds, also if it has more than were asked for.
    Several processes may work on a cell, each with seeds of its own; to measure it anew is for one alone.
    """
    left, anew = list(state.missing), session.again
    with Home(session.place.runs / state.table / state.cell.name) as home:
        if anew and not home.claim(state.cell.seeds):
            raise BusyError(f"another process is at work on {state.name}; wait until it has ended")
        first = True
        while left:
            if not session.may_start():
                session.say(f"{state.name}: seeds {in_words(left)} not started, the time is up")
                return
            run = _next_run(state, session.place, home, left, anew=anew)
            if run is None:
                left = _unmeasured(state, session.place, left, anew=anew)
                if left and first:
                    raise BusyError(f"another process is at work on {state.name}")
                if left:
                    session.say(f"{state.name}: seeds {in_words(left)} are left to another process")
                return
            found = _add(state, session.place, _carried_out(state, session, run), run.config, anew=anew)
            if found is None:
                session.say(f"{state.name}: left as it is, other options were measured meanwhile")
                return
            shutil.rmtree(run.folder)
            anew = first = False
            left = [seed for seed in left if seed not in run.seeds]
            yield found


def _next_run(state: State, place: Place, home: Home, left: Sequence[int], *, anew: bool) -> Run | None:
    """One that was interrupted, else one with the first seeds that are left and free; None if there are none.

    What is there is looked up after the claim: who had a seed before may have written it.
    """
    whole = place.config(state.cell, state.cell.seeds)
    for run in home.interrupted(whole):
        written = not _unmeasured(state, place, run.config.seeds, anew=anew)
        if (written or run.seeds & set(left)) and home.claim(run.config.seeds):
            unmeasured = _unmeasured(state, place, run.config.seeds, anew=anew)
            if not unmeasured:
                shutil.rmtree(run.folder)  # it was killed after its seeds had been written
            elif run.seeds == set(unmeasured):
                return run
    mine: list[int] = []
    for seed in left:
        if len(mine) < runner.seeds_at_once(whole) and home.claim([seed]):
            mine += _unmeasured(state, place, [seed], anew=anew)
    return home.new(place.config(state.cell, mine)) if mine else None


def _unmeasured(state: State, place: Place, seeds: Sequence[int], *, anew: bool) -> list[int]:
    """Those of some seeds that are not in the file by now; all of them where it is going to be replaced."""
    there = state_of(state.table, state.cell, place, again=anew).there
    return [seed for seed in seeds if seed not in there]


def _carried_out(state: State, session: Session, run: Run) -> Document:
    """Begin a run or take it up; what it found."""
    observer = session.observer()
    try:
        if run.begun:
            result = runner.resume(run.folder, observer)
        else:
            result = runner.run(run.config, run.folder, observer, overwrite=True)
    finally:
        observer.close()
    records = read_checkpoint(run.folder)[0].records
    command = _command(state, session.place, run.config.seeds)
    return document(state.table, state.cell.name, run.config, result, records, command, quick=session.place.quick)


def _add(state: State, place: Place, done: Document, config: Config, *, anew: bool) -> Document | None:
    """Put a run into the file of its cell, which others may write to as well; None if that has other options now."""
    path = path_of(place.results, state.table, state.cell.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    with alone_in(path.parent, wait=True):
        stored = None if anew else read_document(path, quick=place.quick)
        if stored is not None and differences(stored, config):
            return None
        found = merged(stored, done)
        write_document(path, found)
    return found


def _command(state: State, place: Place, seeds: Sequence[int]) -> str:
    """How to get these seeds, without where anything lies on this machine."""
    words = ["frcl reproduce", state.table, "--rows", state.cell.name, *state.asked.words(state.cell, seeds)]
    words += ["--device", place.device] if place.device != "cpu" else []
    return " ".join(words + ["--quick"] * place.quick)
