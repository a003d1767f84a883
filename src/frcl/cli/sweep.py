"""`frcl sweep`: several methods and options, on this machine or on a Ray cluster; results in one folder."""

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Option

from frcl.cli.compare import show_comparison
from frcl.cli.console import bar, note, say
from frcl.cli.options import Benchmark, Flags, MethodNames, completed, free_folder, shares_flags
from frcl.codec import short
from frcl.distributed import is_launched
from frcl.errors import FrclError, OptionError
from frcl.experiment.config import Config, differing, saved
from frcl.experiment.display import in_words
from frcl.experiment.keeper import Interrupted
from frcl.experiment.results import Result
from frcl.experiment.runner import check
from frcl.experiment.sweep import (
    PLAN,
    Engine,
    carried_out,
    check_free,
    differing_values,
    in_processes,
    in_turn,
    plan,
    read_plan,
    write_plan,
)
from frcl.files import alone_in
from frcl.report import find_runs, write_report, write_tables

ADDRESS = (
    "Where: none, processes of this machine; or Ray: local, on this machine; auto, the cluster of this machine; "
    "or the address of a cluster."
)
JOBS = "Without Ray: how many jobs at a time, each in a process of its own."
CPUS = "With Ray: CPUs for each job."
GPUS = "With Ray: GPUs for each job, as 1 or 0.25; by default 1 on CUDA."
RESUME = "Go on with what is in this folder; options may be said again, but no others. None is needed but where."
OVERWRITE = "Replace the sweep or search that is in the folder: its runs are removed."


@dataclass(frozen=True)
class Place:
    """Options that say where jobs are carried out, and of which folder."""

    address: Annotated[str, Option(help=ADDRESS, autocompletion=completed(("none", "local", "auto")))] = "none"
    jobs: Annotated[int, Option(min=1, help=JOBS)] = 1
    cpus: Annotated[float, Option(min=0.0, help=CPUS)] = 1.0
    gpus: Annotated[float | None, Option(min=0.0, help=GPUS)] = None
    resume: Annotated[Path | None, Option(help=RESUME)] = None
    overwrite: Annotated[bool, Option("--overwrite", help=OVERWRITE)] = False

    def check(self, *, search: bool = False) -> None:
        """Refuse what cannot be done here, before anything is written; a `search` is one of Ray Tune."""
        if is_launched():
            raise OptionError("torchrun is for frcl run and frcl resume; start this command by itself")
        if search or self.address != "none":
            from frcl.adapters.ray import imported

            imported(search=search)

    def engine(self, device: str) -> Engine:
        """What carries out jobs that compute on this device."""
        if self.address == "none":
            return in_turn if self.jobs == 1 else in_processes(self.jobs)
        from frcl.adapters.ray import on_ray

        return on_ray(self.address, cpus=self.cpus, gpus=self.gpus_for(device))

    def gpus_for(self, device: str) -> float:
        """GPUs of a job: as said, or one where it computes on CUDA."""
        return float(device.startswith("cuda")) if self.gpus is None else self.gpus


def refuse_other(
    folder: Path, flags: Flags, place: Place, jobs: Sequence[Config], said: Mapping[str, Any],
    made: Mapping[str, Any], fixed: Sequence[str], lists: Sequence[str],
) -> None:  # fmt: skip
    """Refuse what is said beside --resume and is not what the jobs of the folder were made with.

    `said` has the benchmark, the method, and what is in `made` beside the jobs; None where it was not said. `fixed` are
    settings of all jobs, `lists` those with values to try.
    """
    if flags.dry_run or place.overwrite or flags.out not in (None, folder):
        raise OptionError("--resume goes on with what is in its folder: leave out --dry-run, --overwrite and --out")
    first, methods = jobs[0], list(dict.fromkeys(job.method for job in jobs))
    name, names = flags.chosen(said["benchmark"], said["method"], (first.benchmark, ",".join(methods)))
    pairs: dict[str, tuple[Any, Any]]
    pairs = {"benchmark": (first.benchmark, name), "method": (sorted(methods), sorted(names))}
    pairs |= {key: (value, said[key]) for key, value in made.items() if said[key] is not None}
    found = {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}
    layers = {one: flags.layers(one, methods, fixed) for one in methods}
    for job in jobs:
        found |= differing(job, *layers[job.method])
    found |= differing_values(jobs, lists)
    if found:
        named = "; ".join(f"{key} is {short(own)} there, not {short(other)}" for key, (own, other) in found.items())
        raise OptionError(f"{folder} was begun with other options: {named}. Leave them out, or begin in another folder")


@shares_flags
def sweep(flags: Flags, place: Place, benchmark: Benchmark = None, method: MethodNames = None) -> None:
    """Learn with several methods and options, as in --method frcl,ewc --set lr=[1e-3,1e-2], and write one report.

    A job is all seeds of one configuration, trained as one program. A list given by --set is a list of values to try;
    for an option that is a list itself give a list of lists. Any process may be killed: frcl sweep --resume FOLDER
    ends with the results of an uninterrupted sweep.
    """
    place.check()
    folder = place.resume or _planned(flags, place, benchmark, method)
    if folder is None:
        return
    texts, found, silent = read_plan(folder), dict[str, Result | str](), flags.quiet or flags.as_json
    if place.resume is not None and texts:
        jobs = [saved(tomllib.loads(text)) for text in texts.values()]
        said = {"benchmark": benchmark, "method": method}
        refuse_other(folder, flags, place, jobs, said, {}, (), flags.settings or [])
    cuda = next((text for text in texts.values() if tomllib.loads(text).get("device") != "cpu"), None)
    engine = place.engine("cuda" if cuda else "cpu")
    with alone_in(folder), bar("jobs", len(texts), quiet=silent) as advance:
        try:
            for job, one in carried_out(texts, folder, engine):
                found[job] = one
                advance()
                if not silent:
                    say(f"{job}: {one if isinstance(one, str) else in_words(one.average_accuracy, 100.0, ' %')}")
        except KeyboardInterrupt:
            raise Interrupted(f"stopped; go on with: frcl sweep --resume {folder}") from None
        _report(folder, {job: found[job] for job in texts}, flags)


def _planned(flags: Flags, place: Place, benchmark: str | None, method: str | None) -> Path | None:
    """The folder of a new sweep with its plan; none with --dry-run."""
    name, methods = flags.chosen(benchmark, method)
    skipped: dict[str, None] = {}
    planned = plan(
        name, methods, lambda one: flags.layers(one, methods, ()), flags.settings or [],
        lambda one, option: skipped.setdefault(f"method {one} has no option {option}: skipped"),
    )  # fmt: skip
    for text in () if flags.quiet else skipped:
        note(text)
    folder = flags.out or free_folder(f"{Path(name).stem}-sweep")
    if flags.dry_run:
        check_free(folder / PLAN, overwrite=place.overwrite)
        for job, config in planned.items():
            say(job)
            check(config)
        return None
    write_plan(folder, planned, overwrite=place.overwrite)
    return folder


def _report(folder: Path, found: Mapping[str, Result | str], flags: Flags) -> None:
    """Write one report of all jobs that ended well; name those that failed."""
    errors = {job: one for job, one in found.items() if isinstance(one, str)}
    if len(errors) < len(found):
        runs = find_runs([folder / job for job in found if job not in errors])
        write_report(runs, folder / "report.html")
        write_tables(runs, folder / "tables")
        if flags.as_json:
            typer.echo(json.dumps({job: one.to_json() for job, one in found.items() if isinstance(one, Result)}))
        elif not flags.quiet:
            show_comparison(runs)
            say(f"report: {folder / 'report.html'}")
    if errors:
        job, error = next(iter(errors.items()))
        raise FrclError(
            f"{len(errors)} of {len(found)} jobs failed; the first is {job}: {error}. "
            f"`frcl sweep --resume {folder}` tries them again"
        )
