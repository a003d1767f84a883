"""Several runs in one folder, carried out by processes of this machine or of others; any of them may be killed.

A job is one run: all seeds of one configuration. An engine carries out jobs, each in the folder of its name.
"""

import itertools
import json
import re
import shutil
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from hashlib import sha256
from multiprocessing import get_context
from pathlib import Path
from typing import Any, get_origin, get_type_hints

from frcl.errors import BusyError, DataError, FrclError, OptionError
from frcl.experiment import runner
from frcl.experiment.config import (
    PARTS,
    Config,
    by_name,
    foreign,
    parts_of,
    read_toml,
    resolve,
    saved,
    setting_for,
    to_toml,
)  # fmt: skip
from frcl.experiment.keeper import Observer
from frcl.experiment.results import RESULT, Result, read_result
from frcl.files import VERSION, alone_in, read_document, write_atomically

FORMAT, PLAN = "frcl-sweep", "sweep.json"
ATTEMPTS = 5  # times that processes are started again after one was killed
PATIENCE = 60.0  # seconds to wait until another process has left the folder of a job
LONGEST = 100  # characters of a job's name; of longer ones the end is a digest

Jobs = Mapping[str, str]  # the text of config.toml by name
Engine = Callable[
    [Jobs, Path], Iterator[tuple[str, str | None]]
]  # yields each job that ended, and its error if it failed


def values_of(layer: Mapping[str, Any], method: str) -> tuple[str, list[Any]]:
    """The option of a setting and its values: those of a list; of a list of lists where the option itself is a list."""
    ((name, value),), part = layer.items(), ""
    is_list = name == "seeds"
    if name in PARTS:
        part, ((name, value),) = name, value.items()
        is_list = get_origin(get_type_hints(type(parts_of(method)[part])).get(name)) is tuple
    several = isinstance(value, list) and (not is_list or all(isinstance(one, list) for one in value))
    if several and not value:
        raise OptionError(f"{name}=[] has no value to try")
    return f"{part}.{name}" if part else name, value if several else [value]


def plan(
    benchmark: str,
    methods: Sequence[str],
    shared: Callable[[str], Sequence[Mapping[str, Any]]],
    settings: Sequence[str],
    on_skipped: Callable[[str, str], object] = lambda *_: None,
) -> dict[str, Config]:
    """A job for every method and every combination of the values in `settings`, such as `points=[10,40]`.

    `shared` has the layers of all jobs of a method. Settings that a method does not have, but another one has, are left
    out for it, and `on_skipped` is told.
    """
    jobs: dict[str, Config] = {}
    for method in methods:
        grid: dict[str, list[Any]] = {}
        for layer in (setting_for(text, method, methods) for text in settings):
            name, values = values_of(layer, method)
            if foreign(layer, method, methods):
                on_skipped(method, name.rpartition(".")[2])
            elif name in grid:
                raise OptionError(f"--set has {name} twice; give all its values in one list")
            else:
                grid[name] = values
        below = list(shared(method))
        for options in combinations(grid):
            varied = {name.rpartition(".")[2]: value for name, value in options.items() if len(grid[name]) > 1}
            name, config = job_name(varied, method), resolve(benchmark, *below, *map(_layer, options.items()))
            if jobs.setdefault(name, config) != config:
                raise OptionError(f"two jobs have the name {name}; sweep over their values in separate folders")
    return jobs


def _layer(option: tuple[str, Any]) -> dict[str, Any]:
    (part, dot, name), value = option[0].partition("."), option[1]
    return {part: {name: value}} if dot else {part: value}


def combinations(grid: Mapping[str, list[Any]]) -> Iterator[dict[str, Any]]:
    """Every combination, the first option slowest."""
    return (dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values()))


def job_name(options: Mapping[str, Any], *before: str) -> str:
    """A name for files: `frcl,points=10,lr=0.001`."""
    text = ",".join([*before, *(f"{name}={json.dumps(value)}" for name, value in options.items())])
    name = re.sub(r"[^\w.=,+-]+", "_", text)
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 9]}-{sha256(text.encode()).hexdigest()[:8]}"


def write_plan(folder: Path, jobs: Mapping[str, Config], *, overwrite: bool = False) -> None:
    """Write the jobs of a new sweep into its folder; `overwrite`: also where one is there, whose runs are removed."""
    old = read_plan(folder) if overwrite and (folder / PLAN).exists() else {}
    content = {"format": FORMAT, "jobs": {name: to_toml(config) for name, config in jobs.items()}}
    begin(folder / PLAN, content, old.__contains__ if overwrite else None)


def check_free(path: Path, *, overwrite: bool) -> None:
    """Refuse a folder in which the file of a sweep or a search is already, unless it may be overwritten."""
    if path.exists() and not overwrite:
        folder, kind = path.parent, path.stem
        raise OptionError(
            f"{folder} already holds what `frcl {kind}` wrote: go on with `frcl {kind} --resume {folder}`, or "
            "choose another --out, or --overwrite"
        )


def begin(path: Path, content: Mapping[str, Any], own: Callable[[str], bool] | None) -> None:
    """Begin a sweep or a search by its file. One that is there is refused; or else its folders, `own`, are removed."""
    folder = path.parent
    folder.mkdir(parents=True, exist_ok=True)
    with alone_in(folder):
        check_free(path, overwrite=own is not None)
        for run in folder.iterdir() if path.exists() else ():
            if own is not None and own(run.name) and run.is_dir():
                shutil.rmtree(run)
        write_atomically(path, (json.dumps({**content, "version": VERSION}, indent=1) + "\n").encode())


def differing_values(jobs: Sequence[Config], settings: Sequence[str]) -> dict[str, tuple[Any, Any]]:
    """The options whose values in `settings`, such as `points=[10,40]`, are not those of the jobs, with both."""
    found, methods = dict[str, tuple[Any, Any]](), list(dict.fromkeys(job.method for job in jobs))
    for method, text in itertools.product(methods, settings):
        layer = setting_for(text, method, methods)
        if not foreign(layer, method, methods):
            name, values = values_of(layer, method)
            said = [None if value == "none" else value for value in values]
            made = [by_name(job).get(name) for job in jobs if job.method == method]
            if any(one not in made for one in said) or any(one not in said for one in made):
                found[name] = ([one for i, one in enumerate(made) if one not in made[:i]], said)
    return found


def read_plan(folder: Path) -> dict[str, str]:
    """The jobs of the sweep in a folder."""
    if not (folder / PLAN).is_file():
        raise DataError(f"{folder} holds no sweep: there is no {PLAN} in it")
    jobs = read_document(folder / PLAN, json.loads, form=FORMAT).get("jobs")
    if not isinstance(jobs, dict) or not all(isinstance(text, str) for text in jobs.values()):
        raise DataError(f"{folder / PLAN} is damaged: it has no table of jobs")
    if any(name != job_name({}, name) or name.startswith(".") for name in jobs):
        raise DataError(f"{folder / PLAN} is damaged: a job has a name that is not one of a folder")
    return jobs


def carry_out(text: str, folder: Path, observer: Observer | None = None) -> Result:
    """The result of a job: read if it is finished, else of a new run or of one that goes on from its checkpoint."""
    until, config = time.monotonic() + PATIENCE, saved(tomllib.loads(text))
    while True:
        try:
            if not (folder / "config.toml").exists():
                return runner.run(config, folder, observer or Observer())
            if saved(read_toml(folder / "config.toml")) != config:
                raise OptionError(f"{folder} holds a run with other options; choose another folder")
            if (folder / RESULT).exists():
                return read_result(folder / RESULT)
            return runner.resume(folder, observer or Observer())
        except BusyError:  # such as a process of a machine that was lost, which ends soon
            if time.monotonic() > until:
                raise
            time.sleep(1.0)


def attempt(text: str, folder: Path) -> str | None:
    """Carry out a job in this process; returns the message of an error."""
    try:
        carry_out(text, folder)
    except FrclError as error:
        return str(error)
    return None


def in_turn(jobs: Jobs, folder: Path) -> Iterator[tuple[str, str | None]]:
    """One job after another, in this process."""
    return ((name, attempt(text, folder / name)) for name, text in jobs.items())


def in_processes(count: int) -> Engine:
    """`count` jobs at a time, each in a process of its own; what a killed process leaves is taken up by another."""

    def engine(jobs: Jobs, folder: Path) -> Iterator[tuple[str, str | None]]:
        left = dict(jobs)
        for _ in range(ATTEMPTS):
            pool = ProcessPoolExecutor(count, mp_context=get_context("spawn"))
            try:
                futures = {pool.submit(attempt, text, folder / name): name for name, text in left.items()}
                for future in as_completed(futures):
                    error = future.result()
                    del left[futures[future]]
                    yield futures[future], error
                return
            except BrokenProcessPool:
                continue
            finally:
                pool.shutdown(wait=False, cancel_futures=True)
        yield from ((name, f"its process was killed {ATTEMPTS} times") for name in left)

    return engine


def carried_out(jobs: Jobs, folder: Path, engine: Engine) -> Iterator[tuple[str, Result | str]]:
    """Carry out the jobs that are not finished; yields the result of every job, or the message of its error."""
    left = {name: text for name, text in jobs.items() if not (folder / name / RESULT).exists()}
    yield from ((name, carry_out(text, folder / name)) for name, text in jobs.items() if name not in left)
    for name, error in engine(left, folder) if left else ():
        yield name, error or read_result(folder / name / RESULT)
