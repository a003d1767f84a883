"""The command line: frcl run | resume | report | compare | tune | list | data | bench | check."""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict
from functools import cache, partial
from itertools import chain, count
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from frcl.cli.bench import bench
from frcl.cli.check import check
from frcl.cli.console import err, out, safe, say, say_result, show_table
from frcl.data.registry import BENCHMARKS, known_name
from frcl.distributed import ProcessError, Processes, data_parallel
from frcl.errors import FrclError, OptionError
from frcl.experiment import runner
from frcl.experiment.config import Config, parse_setting, parts_of, read_toml, resolve, to_toml
from frcl.experiment.display import Live, Plain, Several, TensorBoard
from frcl.experiment.keeper import Interrupted, Observer
from frcl.experiment.results import Result
from frcl.learners.options import FRCLOptions
from frcl.methods import METHODS, default_options
from frcl.options import described
from frcl.report import Run, comparison_rows, find_runs, write_report, write_tables
from frcl.report.tables import paired_table, results_table

FAILED, USAGE, STOPPED = 1, 2, 130

app = typer.Typer(
    help="Continual learning that remembers functions: FRCL, its benchmarks and its reports.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

BENCHMARK = "A benchmark (see `frcl list`) or the path of a .toml file that describes your own data."
CONFIG = "Options from a TOML file, such as the config.toml of another run."
OUT = "Folder of the run; runs/BENCHMARK-METHOD by default."
HIDDEN = "One stream; the learner must notice where tasks change."
TRY = "Values to try instead of the method's own, as in curvature=[0.3,1.0]; repeatable."
Paths = Annotated[list[Path], Argument(help="Run folders, or folders that contain some.")]
Device = Annotated[str | None, Option(help="cpu or cuda.")]
Data = Annotated[Path | None, Option(help="Folder with the data files; see `frcl data`.")]
Settings = Annotated[list[str] | None, Option("--set", help="Any other option, as key=value; may be repeated.")]
Board = Annotated[bool, Option("--tensorboard", help="Write TensorBoard events into the run folder.")]
Quiet = Annotated[bool, Option("--quiet", help="Say nothing but errors.")]
Json = Annotated[bool, Option("--json", help="Print the result as JSON, and nothing else.")]


def _doc(name: str) -> str:
    """The description of an option of FRCL, as `help(frcl.FRCL)` has it."""
    return f"{next(doc for own, _, _, doc in described(FRCLOptions()) if own == name)}."


def _settings(method: str = "frcl") -> str:
    """Every option that --set takes, part by part, for the end of a help text; one line each."""
    lines = [f"Options for --set (those of [learner] are of method {method}; `frcl list METHOD` shows another's):"]
    for part, options in parts_of(method).items():
        lines.append(f"[{part}]")
        lines += [f"  {name}={value}  {doc}" for name, _, value, doc in described(options) if name != "seed"]
    return "\b\n" + "\n".join(lines)


@app.command(epilog=_settings())
def run(
    benchmark: Annotated[str | None, Argument(help=BENCHMARK)] = None,
    config: Annotated[Path | None, Option(help=CONFIG)] = None,
    method: Annotated[str | None, Option(help="The method; see `frcl list`.")] = None,
    seeds: Annotated[str | None, Option(help="How many seeds, or which: 10, or 0,3,5.")] = None,
    tasks: Annotated[int | None, Option(help="Only this many tasks, the first ones.")] = None,
    points: Annotated[int | None, Option(help=_doc("points"))] = None,
    steps: Annotated[int | None, Option(help=_doc("steps"))] = None,
    selection: Annotated[str | None, Option(help=_doc("selection"))] = None,
    inference: Annotated[str | None, Option(help=_doc("inference"))] = None,
    scenario: Annotated[
        str | None, Option(help="What the headline is: accuracy with the task, or without: class.")
    ] = None,
    hidden_boundaries: Annotated[bool, Option("--hidden-boundaries", help=HIDDEN)] = False,
    device: Device = None,
    data: Data = None,
    out_folder: Annotated[Path | None, Option("--out", help=OUT)] = None,
    settings: Settings = None,
    overwrite: Annotated[bool, Option("--overwrite", help="Replace a run that is in the folder.")] = False,
    dry_run: Annotated[bool, Option("--dry-run", help="Print the resolved options and stop.")] = False,
    tensorboard: Board = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Learn a benchmark task by task, test after each, and write a report.

    Without arguments it learns split-digits, which comes with scikit-learn, in a minute or so.
    """
    flags = {
        "method": method,
        "seeds": None if seeds is None else _seeds(seeds),
        "device": device,
        "scenario": scenario,
        "data": data and str(data.resolve()),
        "hidden_boundaries": hidden_boundaries or None,
        "stream": _given(tasks=tasks),
        "learner": _given(points=points, steps=steps, selection=selection, inference=inference),
    }
    resolved = _resolved(benchmark, config, _given(**flags), settings or [])
    if dry_run:
        return typer.echo(to_toml(resolved), nl=False)
    folder = out_folder or _free_folder(resolved)
    return _learn(partial(runner.run, resolved, folder, overwrite=overwrite), folder, tensorboard, quiet, as_json)


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
def report(
    paths: Paths,
    out_file: Annotated[Path, Option("--out", help="The HTML file to write.")] = Path("report.html"),
) -> None:
    """Write one self-contained HTML page about a run, or comparing several; tables beside it."""
    runs = find_runs(paths)
    written = write_report(runs, out_file)
    tables = write_tables(runs, out_file.parent / f"{out_file.stem}-tables")
    say(f"report of {len(runs)} run{'s' * (len(runs) != 1)}: {written}")
    say(f"tables: {', '.join(str(path) for path in tables)}")


@app.command()
def compare(paths: Paths, as_json: Json = False) -> None:
    """Put runs side by side: accuracy, forgetting, calibration, memory, time, paired differences."""
    found = comparison_rows(find_runs(paths))
    if as_json:
        return typer.echo(json.dumps(asdict(found), indent=1))
    for table in (results_table(found.rows), paired_table(found.pairs)):
        if table.rows:
            show_table(table.rows, *table.columns, title=table.caption)
    return None


@app.command()
def tune(
    method: Annotated[str, Argument(help="The method to tune; see `frcl list`.")],
    benchmark: Annotated[str, Argument(help="The benchmark to tune it on.")],
    trials: Annotated[int | None, Option(help="Only this many combinations, chosen by Optuna.")] = None,
    device: Device = None,
    data: Data = None,
    settings: Settings = None,
    tries: Annotated[list[str] | None, Option("--try", help=TRY)] = None,
    by: Annotated[str, Option(help="What decides: accuracy, nll, ece or agnostic.")] = "accuracy",
    as_json: Json = False,
) -> None:
    """Choose options among a grid on validation data of the first tasks; test data is never touched."""
    from frcl.experiment.tune import grid_of, own_grid
    from frcl.experiment.tune import tune as search

    grid = own_grid(tries or [], method) or grid_of(method)
    layer: dict[str, Any] = _given(device=device, data=data and str(data.resolve()))
    for text in settings or []:
        for part, values in parse_setting(text, method).items():
            layer[part] = {**layer.get(part, {}), **values} if isinstance(values, dict) else values
    tell: Callable[[str], None] = (lambda _: None) if as_json else say
    tell(f"tuning {', '.join(grid)} of {method} on {benchmark}")
    found = search(
        method, known_name(benchmark), layer, grid=grid, trials=trials, by=by,
        on_trial=lambda trial: tell(f"{trial.show()}  {trial.options}"),
    )  # fmt: skip
    if as_json:
        return typer.echo(json.dumps([trial.to_json() for trial in found]))
    chosen = " ".join(f"--set {name}={value}" for name, value in found[0].options.items())
    return say(f"chosen by {by}, with {found[0].show().strip()} on validation data: {chosen}")


@app.command("list")
def list_names(method: Annotated[str | None, Argument(help="A method whose options to list.")] = None) -> None:
    """List the benchmarks and the methods, or the options of one method."""
    if method is not None:
        return show_table(described(default_options(method)), "option", "type", "default", "description")
    for title, registry in (("Benchmarks", BENCHMARKS), ("Methods", METHODS)):
        rows = [(name, one.description) for name, one in registry.items()]
        show_table(rows, title=title, show_header=False, title_justify="left")
    return None


@app.command("data")
def data_files(
    name: Annotated[
        str | None, Argument(help="A data set or benchmark to make sure of, as mnist or split-cifar.")
    ] = None,
    data: Annotated[Path | None, Option(help="Folder to look in first, and to download to.")] = None,
) -> None:
    """Show which data files are at hand and verified; with a name, download what is missing."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    from frcl.data.files import data_status, fetch

    if name is not None:
        with Progress(TextColumn("{task.description}"), BarColumn(), DownloadColumn(), console=err) as bars:
            bar = cache(partial(bars.add_task, total=None))
            fetch(name, data, on_progress=lambda file, got, total: bars.update(bar(file), completed=got, total=total))
    rows = []
    for file in data_status(data):
        state = "verified" if file.verified else (file.problem or ("missing" if file.needed else "not needed"))
        rows.append((file.dataset, file.name, state, file.path or ""))
    show_table(rows, "data set", "file", "state", "where")


app.command()(bench)
app.command()(check)


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


def _given(**values: Any) -> dict[str, Any]:
    """Only what was said."""
    return {name: value for name, value in values.items() if value is not None}


def _resolved(benchmark: str | None, file: Path | None, flags: dict[str, Any], settings: list[str]) -> Config:
    """What the defaults, a config file, the flags and the settings make together, each over those before it."""
    layer = {} if file is None else read_toml(file)
    named = layer.pop("benchmark", "split-digits")
    method = flags.get("method", layer.get("method", "frcl"))
    return resolve(known_name(benchmark or named), layer, flags, *(parse_setting(text, method) for text in settings))


def _seeds(text: str) -> list[int]:
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        raise OptionError(f"--seeds wants a number, as 10, or a list, as 0,3,5; got {text!r}") from None
    if "," in text:
        return numbers
    if numbers[0] < 1:
        raise OptionError(f"--seeds must be at least 1; got {text}")
    return list(range(numbers[0]))


def _free_folder(config: Config) -> Path:
    """runs/BENCHMARK-METHOD, with a number behind it if that is taken."""
    name = f"{Path(config.benchmark).stem}-{config.method}{'-hidden' if config.hidden_boundaries else ''}"
    names = chain([name], (f"{name}-{number}" for number in count(2)))
    return next(folder for one in names if not (folder := Path("runs") / one).exists())


def _learn(learn: Callable[..., Result], folder: Path, tensorboard: bool, quiet: bool, as_json: bool) -> None:
    """Carry out a run, and report; the first Ctrl-C asks it to stop at the next step, the second stops it at once.

    Of several processes the first alone prints and writes; all of them stop after the same step.
    """
    with data_parallel() as group:
        try:
            result = _carried_out(learn, folder, tensorboard, quiet or as_json, group)
        except (Interrupted, ProcessError) as error:
            if group.is_first:
                raise
            sys.exit(STOPPED if isinstance(error, Interrupted) else FAILED)
    if as_json and group.is_first:
        typer.echo(json.dumps(result.to_json()))
    elif not quiet and group.is_first:
        say_result(result, folder / "report.html")


def _carried_out(
    learn: Callable[..., Result], folder: Path, tensorboard: bool, silent: bool, group: Processes
) -> Result:
    observer: Observer = Observer() if silent or not group.is_first else Live(out) if out.is_terminal else Plain(out)
    if tensorboard and group.is_first:
        observer = Several(observer, TensorBoard(folder / "tensorboard"))
    asked = threading.Event()

    def ask(*_: object) -> None:
        asked.set()
        if group.size == 1:  # torchrun passes a Ctrl-C on to processes that had it already
            signal.signal(signal.SIGINT, signal.default_int_handler)

    handled = (signal.SIGINT,) if group.size == 1 else (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, ask) for number in handled}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def write(result: Result) -> None:
        restore()
        observer.close()
        if group.is_first:
            runs = [Run.of(folder, result)]
            write_report(runs, folder / "report.html", figures=folder / "figures")
            write_tables(runs, folder / "tables")

    try:
        return learn(observer, stop=asked.is_set, after=write)
    finally:
        observer.close()
        restore()
