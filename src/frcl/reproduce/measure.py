"""Runs what is missing of a table, and adds it to the result files."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from frcl.errors import BusyError, FrclError, OptionError
from frcl.experiment import runner
from frcl.experiment.config import Config, read_toml, resolve, saved, to_dict
from frcl.experiment.keeper import Observer, read_checkpoint
from frcl.files import alone_in
from frcl.reproduce.cells import Cell, Table
from frcl.reproduce.numbers import percent
from frcl.reproduce.store import (
    Document,
    common_seeds,
    differences,
    document,
    merged,
    path_of,
    read_document,
    write_document,
)


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
    def wanted(self) -> tuple[int, ...]:
        return self.asked.of(self.cell)

    @property
    def missing(self) -> tuple[int, ...]:
        return tuple(seed for seed in self.wanted if seed not in self.there)

    @property
    def unmeasured(self) -> tuple[int, ...]:
        """All seeds of the cell that are not there, asked for or not."""
        return tuple(seed for seed in self.cell.seeds if seed not in self.there)

    def in_words(self) -> str:
        text = f"{self.table}/{self.cell.name}: {len(self.there)} of {len(self.cell.seeds)} seeds"
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
    other = [f"{one.table}/{one.cell.name} ({'; '.join(one.differs)})" for one in states if one.differs]
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
    name = f"{state.table}/{state.cell.name}"
    if state.differs:
        session.say(f"{name}: left as it is, since it was measured with other options")
    elif lacking and state.missing:
        session.say(f"{name}: skipped, since {lacking}")
    else:
        try:
            _report(state, session)
        except BusyError:
            session.say(f"{name}: left to another process that is at work on it")


def _report(state: State, session: Session) -> None:
    """Measure what is missing, and say what was found."""
    for found in measure(state, session):
        accuracy = percent(found["seeds"])
        shown = "not available" if accuracy is None else f"{accuracy.show()} %"
        paper = "" if state.cell.paper is None else f", the paper {state.cell.paper.value}"
        seeds = f"{len(found['seeds'])} of {len(state.cell.seeds)} seeds"
        session.say(f"{state.table}/{state.cell.name}: {shown} with {seeds}{paper}")


def measure(state: State, session: Session) -> Iterator[Document]:
    """Run the missing seeds of a cell, as many at a time as are trained together; yields the file after each run.

    A run that was interrupted is taken up first, also if it has more seeds than were asked for. Processes that were
    asked for some seeds by their number may work on a cell at the same time: each has a folder of its own.
    """
    whole = session.place.runs / state.table / state.cell.name
    own = whole.with_name(whole.name + "".join(f"-seed-{seed}" for seed in state.asked.only))
    begun = _interrupted(whole, session.place.config(state.cell, state.cell.seeds), state.unmeasured)
    whole.parent.mkdir(parents=True, exist_ok=True)
    for folder in dict.fromkeys((whole, own) if begun else (own,)):
        try:
            with alone_in(folder.parent, f".{folder.name}.lock"):
                yield from _measure_alone(state, session, folder)
                return
        except BusyError:
            if folder == own:
                raise


def _measure_alone(state: State, session: Session, folder: Path) -> Iterator[Document]:
    place, left, anew = session.place, list(state.missing), session.again
    path = path_of(place.results, state.table, state.cell.name)
    if not anew:  # another process may have been here since the list was made
        there = state_of(state.table, state.cell, place).there
        left = [seed for seed in left if seed not in there]
    while left:
        if not session.may_start():
            session.say(f"{state.table}/{state.cell.name}: seeds {in_words(left)} not started, the time is up")
            return
        done = _one_run(state, left, session, folder)
        found = _add(path, done, session, anew=anew)
        shutil.rmtree(folder)
        anew = False
        measured = done["batches"][0]["seeds"]
        left = [seed for seed in left if seed not in measured]
        yield found


def _add(path: Path, done: Document, session: Session, *, anew: bool) -> Document:
    """Put a run into the file of its cell, which other processes may write to as well."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with alone_in(path.parent, wait=True):
        stored = None if anew else read_document(path, quick=session.place.quick)
        if stored is not None and common_seeds(stored, done):
            session.say(f"{done['table']}/{done['cell']}: another process was faster; what it found stays")
            return stored
        found = merged(stored, done)
        write_document(path, found)
    return found


def _one_run(state: State, left: Sequence[int], session: Session, folder: Path) -> Document:
    """Take up the run in the folder if it fits, else begin one with the first of the seeds that are left."""
    place, observer = session.place, session.observer()
    config = place.config(state.cell, left)
    begun = _interrupted(folder, config, state.unmeasured)
    try:
        if begun is not None:
            config, result = begun, runner.resume(folder, observer)
        else:
            config = place.config(state.cell, left[: runner.seeds_at_once(config)])
            result = runner.run(config, folder, observer, overwrite=True)
    finally:
        observer.close()
    records = read_checkpoint(folder)[0].records
    command = _command(state, place, config.seeds)
    return document(state.table, state.cell.name, config, result, records, command, quick=place.quick)


def _interrupted(folder: Path, config: Config, unmeasured: Sequence[int]) -> Config | None:
    """The configuration of the run in a folder if it is the one that is wanted, for seeds that are not there yet."""
    if not (folder / "config.toml").is_file():
        return None
    try:
        found = saved(read_toml(folder / "config.toml"))
        read_checkpoint(folder)
    except FrclError:
        return None  # of another version, or damaged: it is begun anew
    same = {**to_dict(found), "seeds": None} == {**to_dict(config), "seeds": None}
    return found if same and set(found.seeds) <= set(unmeasured) else None


def _command(state: State, place: Place, seeds: Sequence[int]) -> str:
    """How to get these seeds, without where anything lies on this machine."""
    words = ["frcl reproduce", state.table, "--rows", state.cell.name, *state.asked.words(state.cell, seeds)]
    words += ["--device", place.device] if place.device != "cpu" else []
    return " ".join(words + ["--quick"] * place.quick)
