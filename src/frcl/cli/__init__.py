"""The command line: frcl run | resume | report | compare | tune | stream | sweep | list | data | bench | check."""

import json
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from functools import cache, partial
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn
from typer import Argument, Option

from frcl import __version__
from frcl.cli.bench import bench
from frcl.cli.check import check
from frcl.cli.compare import Paths, compare, show_comparison
from frcl.cli.console import err, out, safe, say, say_result, show_table
from frcl.cli.options import Benchmark, Flags, Json, MethodNames, Quiet, completed, free_folder, methods, shares_flags
from frcl.cli.stream import stream
from frcl.cli.sweep import sweep
from frcl.cli.tune import tune
from frcl.data.files import DATASETS, data_status, fetch
from frcl.data.registry import BENCHMARKS
from frcl.distributed import ProcessError, data_parallel
from frcl.errors import FrclError, OptionError
from frcl.experiment import runner
from frcl.experiment.config import parts_of, resolve, to_toml
from frcl.experiment.display import Live, Plain, Several, TensorBoard
from frcl.experiment.keeper import Interrupted, Observer
from frcl.experiment.results import Result
from frcl.methods import METHODS, default_options
from frcl.options import described
from frcl.report import find_runs, read_run, write_report, write_tables

FAILED, USAGE, STOPPED = 1, 2, 130
FETCHED = {*BENCHMARKS, *(one.name for one in DATASETS)}
DATA = "A data set or benchmark to make sure of, as mnist or split-cifar."


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"frcl {__version__}")
        raise typer.Exit


app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False)

Version = Annotated[bool, Option("--version", is_eager=True, callback=_version, help="Print the version.")]
Page = Annotated[Path, Option("--out", help="The HTML file to write.")]
Board = Annotated[bool, Option("--tensorboard", help="Write TensorBoard events into the run folder.")]
OneMethod = Annotated[str | None, Argument(help="A method whose options to list.", autocompletion=methods)]


@app.callback()
def top(version: Version = False) -> None:
    """Continual learning that remembers functions: FRCL, its benchmarks and its reports."""


def _settings() -> str:
    """Every option that --set takes, part by part, for the end of a help text; one line each."""
    lines = ["Options for --set (those of [learner] are of method frcl; `frcl list METHOD` shows another's):"]
    for part, options in parts_of("frcl").items():
        lines.append(f"[{part}]")
        lines += [f"  {name}={value}  {doc}" for name, _, value, doc in described(options) if name != "seed"]
    return "\b\n" + "\n".join(lines)


@app.command(epilog=_settings())
@shares_flags
def run(
    flags: Flags,
    benchmark: Benchmark = None,
    method: MethodNames = None,
    overwrite: Annotated[bool, Option("--overwrite", help="Replace a run that is in the folder.")] = False,
    tensorboard: Board = False,
) -> None:
    """Learn a benchmark task by task, test after each, and write a report.

    Without arguments it learns split-digits, which comes with scikit-learn, in a minute or so. With several methods, as
    in --method frcl,ewc, it learns with one after another and compares them.
    """
    with data_parallel() as group:
        known, names = flags.chosen(benchmark, method)
        pairs = []
        for config in [resolve(known, *flags.layers(name, names)) for name in names]:
            free = f"{Path(known).stem}-{config.method}{'-hidden' if config.hidden_boundaries else ''}"
            below = config.method if len(names) > 1 else ""
            pairs.append((config, free_folder(free) if flags.out is None else flags.out / below))
        for config, folder in pairs if flags.dry_run and group.is_first else ():
            typer.echo(to_toml(config), nl=False)
            runner.check_free(folder, overwrite=overwrite)
            runner.check(config)
        if flags.dry_run:
            return
        found = []
        for config, folder in pairs:
            learn = partial(runner.run, config, folder, overwrite=overwrite)
            found.append((folder, _learn(learn, folder, tensorboard, flags.quiet, flags.as_json)))
        if len(found) > 1 and group.is_first and not (flags.quiet or flags.as_json):
            show_comparison([read_run(*one) for one in found])


@app.command()
def resume(
    folder: Annotated[Path, Argument(help="The folder of a run that was interrupted.")],
    tensorboard: Board = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Go on with a run where it stopped; the result is that of a run without interruption."""
    _learn(partial(runner.resume, folder), folder, tensorboard, quiet, as_json)


@app.command()
def report(paths: Paths, out_file: Page = Path("report.html")) -> None:
    """Write one self-contained HTML page about a run, or comparing several; tables beside it."""
    runs = find_runs(paths)
    written = write_report(runs, out_file)
    tables = write_tables(runs, out_file.parent / f"{out_file.stem}-tables")
    say(f"report of {len(runs)} run{'s' * (len(runs) != 1)}: {written}")
    say(f"tables: {', '.join(str(path) for path in tables)}")


@app.command("list")
def list_names(method: OneMethod = None) -> None:
    """List the benchmarks and the methods, or the options of one method."""
    if method is not None:
        return show_table(described(default_options(method)), "option", "type", "default", "description")
    for title, registry in (("Benchmarks", BENCHMARKS), ("Methods", METHODS)):
        rows = [(name, one.description) for name, one in registry.items()]
        show_table(rows, title=title, show_header=False, title_justify="left")
    return None


@app.command("data")
def data_files(
    name: Annotated[str | None, Argument(help=DATA, autocompletion=completed(FETCHED))] = None,
    data: Annotated[Path | None, Option(help="Folder to look in first, and to download to.")] = None,
) -> None:
    """Show which data files are at hand and verified; with a name, download what is missing."""
    if name is not None:
        with Progress(TextColumn("{task.description}"), BarColumn(), DownloadColumn(), console=err) as bars:
            bar = cache(partial(bars.add_task, total=None))
            fetch(name, data, on_progress=lambda file, got, total: bars.update(bar(file), completed=got, total=total))
    rows = []
    for file in data_status(data):
        state = "verified" if file.verified else (file.problem or ("missing" if file.needed else "not needed"))
        rows.append((file.dataset, file.name, state, file.path or ""))
    show_table(rows, "data set", "file", "state", "where")


for _command in (compare, tune, sweep, bench, check, stream):
    app.command()(_command)


def main() -> None:
    """Run the command line."""
    run_app(app, "frcl")


def run_app(app: typer.Typer, name: str) -> None:
    """Run an app; a mistake ends in one line and an exit code, never in a traceback."""
    try:
        try:
            app(prog_name=name)
        except (FrclError, OSError, MemoryError, RuntimeError) as error:
            reason = str(error)
            if isinstance(error, MemoryError) or "can't allocate memory" in reason:  # torch has no error of its own
                reason = f"out of memory: {reason.splitlines()[0][-200:]}" if reason else "out of memory"
            elif not isinstance(error, FrclError | OSError):
                raise
            stopped = isinstance(error, Interrupted)
            message, style = (reason, None) if stopped else (f"error: {reason}", "red")
            err.print(safe(message), style=style, highlight=False, markup=False, soft_wrap=True)
            sys.exit(STOPPED if stopped else USAGE if isinstance(error, OptionError) else FAILED)
    except KeyboardInterrupt:  # while a message was printed
        sys.exit(STOPPED)


def _learn(learn: Callable[..., Result], folder: Path, tensorboard: bool, quiet: bool, as_json: bool) -> Result:
    """Carry out a run, and report; the first Ctrl-C asks it to stop at the next step, the second stops it at once.

    Of several processes the first alone prints and writes; all of them stop after the same step.
    """
    with data_parallel() as group, ExitStack() as learning:
        silent = quiet or as_json or not group.is_first
        observer: Observer = Observer() if silent else Live(out) if out.is_terminal else Plain(out)
        if tensorboard and group.is_first:
            observer = Several(observer, TensorBoard(folder / "tensorboard"))
        asked = threading.Event()

        def ask(*_: object) -> None:
            asked.set()
            if group.size == 1:  # torchrun passes a Ctrl-C on to processes that had it already
                signal.signal(signal.SIGINT, signal.default_int_handler)

        def write(result: Result) -> None:
            learning.close()
            if group.is_first:
                runs = [read_run(folder, result)]
                write_report(runs, folder / "report.html", figures=folder / "figures")
                write_tables(runs, folder / "tables")

        learning.callback(observer.close)
        for number in (signal.SIGINT,) if group.size == 1 else (signal.SIGINT, signal.SIGTERM):
            learning.callback(signal.signal, number, signal.signal(number, ask))
        try:
            result = learn(observer, stop=asked.is_set, after=write)
        except (Interrupted, ProcessError) as error:
            if group.is_first:
                raise
            sys.exit(STOPPED if isinstance(error, Interrupted) else FAILED)
    if as_json and group.is_first:
        typer.echo(json.dumps(result.to_json()))
    elif not quiet and group.is_first:
        say_result(result, folder / "report.html")
    return result
