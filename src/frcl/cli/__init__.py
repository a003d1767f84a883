"""The command line: frcl run | resume | report | compare | tune | list | data | bench."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from frcl.cli.bench import bench
from frcl.data.registry import BENCHMARKS, known_name
from frcl.errors import FrclError, OptionError
from frcl.experiment import runner
from frcl.experiment.config import Config, parse_setting, parts_of, read_toml, resolve, to_toml
from frcl.experiment.display import Live, Plain, Several, Silent, TensorBoard, accuracy_table, in_words
from frcl.experiment.keeper import Interrupted, Observer
from frcl.experiment.results import Result
from frcl.learners.options import FRCLOptions
from frcl.methods import METHODS, default_options
from frcl.options import described
from frcl.report import Run, comparison_rows, find_runs, write_report, write_tables

DONE, FAILED, USAGE, STOPPED = 0, 1, 2, 130

app = typer.Typer(
    help="Continual learning that remembers functions: FRCL, its benchmarks and its reports.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
out, err = Console(), Console(stderr=True)

Quiet = Annotated[bool, typer.Option("--quiet", help="Say nothing but errors.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON, and nothing else.")]
Board = Annotated[bool, typer.Option("--tensorboard", help="Write TensorBoard events into the run folder.")]


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
    benchmark: Annotated[
        str | None,
        typer.Argument(help="A benchmark (see `frcl list`) or the path of a .toml file that describes your own data."),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="Options from a TOML file, such as the config.toml of another run.")
    ] = None,
    method: Annotated[str | None, typer.Option(help="The method; see `frcl list`.")] = None,
    seeds: Annotated[str | None, typer.Option(help="How many seeds, or which: 10, or 0,3,5.")] = None,
    tasks: Annotated[int | None, typer.Option(help="Only this many tasks, the first ones.")] = None,
    points: Annotated[int | None, typer.Option(help=_doc("points"))] = None,
    steps: Annotated[int | None, typer.Option(help=_doc("steps"))] = None,
    selection: Annotated[str | None, typer.Option(help=_doc("selection"))] = None,
    inference: Annotated[str | None, typer.Option(help=_doc("inference"))] = None,
    hidden_boundaries: Annotated[
        bool, typer.Option("--hidden-boundaries", help="One stream; the learner must notice where tasks change.")
    ] = False,
    device: Annotated[str | None, typer.Option(help="cpu or cuda.")] = None,
    data: Annotated[Path | None, typer.Option(help="Folder with the data files; see `frcl data`.")] = None,
    out_folder: Annotated[
        Path | None, typer.Option("--out", help="Folder of the run; runs/BENCHMARK-METHOD by default.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Any other option, as key=value; may be repeated.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a run that is in the folder.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the resolved options and stop.")] = False,
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
        "data": None if data is None else str(data.resolve()),
        "hidden_boundaries": True if hidden_boundaries else None,
        "stream": _given(tasks=tasks),
        "learner": _given(points=points, steps=steps, selection=selection, inference=inference),
    }
    resolved = _resolved(benchmark, config, _given(**flags), settings or [])
    if dry_run:
        typer.echo(to_toml(resolved), nl=False)
        return
    folder = out_folder or _free_folder(resolved)
    with _stoppable() as stop:
        observer = _observer(quiet, as_json, folder / "tensorboard" if tensorboard else None)
        result = _finally_closed(
            observer, lambda: runner.run(resolved, folder, observer, stop=stop, overwrite=overwrite)
        )
    _conclude(result, folder, quiet, as_json)


@app.command()
def resume(
    folder: Annotated[Path, typer.Argument(help="The folder of a run that was interrupted.")],
    tensorboard: Board = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Go on with a run where it stopped; the result is that of a run without interruption."""
    with _stoppable() as stop:
        observer = _observer(quiet, as_json, folder / "tensorboard" if tensorboard else None)
        result = _finally_closed(observer, lambda: runner.resume(folder, observer, stop=stop))
    _conclude(result, folder, quiet, as_json)


@app.command()
def report(
    paths: Annotated[list[Path], typer.Argument(help="Run folders, or folders that contain some.")],
    out_file: Annotated[Path, typer.Option("--out", help="The HTML file to write.")] = Path("report.html"),
) -> None:
    """Write one self-contained HTML page about a run, or comparing several; tables beside it."""
    runs = find_runs(paths)
    written = write_report(runs, out_file)
    tables = write_tables(runs, out_file.parent / f"{out_file.stem}-tables")
    out.print(f"report of {len(runs)} run{'s' * (len(runs) != 1)}: {written}", highlight=False, soft_wrap=True)
    out.print(f"tables: {', '.join(str(path) for path in tables)}", highlight=False, soft_wrap=True)


@app.command()
def compare(
    paths: Annotated[list[Path], typer.Argument(help="Run folders, or folders that contain some.")],
    as_json: Json = False,
) -> None:
    """Put runs side by side: accuracy, forgetting, calibration, memory, time, paired differences."""
    found = comparison_rows(find_runs(paths))
    if as_json:
        from dataclasses import asdict

        typer.echo(json.dumps(asdict(found), indent=1))
        return
    table = Table("run", "benchmark", "seeds", "accuracy %", "forgetting %", "NLL", "ECE", "bytes kept", "seconds")
    for row in found.rows:
        scores = ((row.average_accuracy, 100), (row.forgetting, 100), (row.nll, 1), (row.ece, 1))
        cells = [in_words(metric, scale) for metric, scale in scores]
        ends = ["" if v is None else f"{v:,.0f}" for v in (row.memory_bytes, row.seconds)]
        table.add_row(row.label, row.benchmark, str(row.seeds), *cells, *ends)
    out.print(table)
    for pair in found.pairs:
        gap = pair.difference
        bounds = "" if gap.low is None or gap.high is None else f" [{100 * gap.low:+.2f}, {100 * gap.high:+.2f}]"
        out.print(
            f"{pair.first} − {pair.second} on {pair.benchmark}: {100 * gap.mean:+.2f} points of accuracy"
            f"{bounds} over {len(pair.seeds)} paired seeds",
            highlight=False,
            soft_wrap=True,
        )


@app.command()
def tune(
    method: Annotated[str, typer.Argument(help="The method to tune; see `frcl list`.")],
    benchmark: Annotated[str, typer.Argument(help="The benchmark to tune it on.")],
    trials: Annotated[int | None, typer.Option(help="So many combinations, chosen by Optuna; all without it.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda.")] = None,
    data: Annotated[Path | None, typer.Option(help="Folder with the data files.")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help="Any other option, as key=value.")] = None,
    tries: Annotated[
        list[str] | None,
        typer.Option("--try", help="Values to try instead of the method's own, as in curvature=[0.3,1.0]; repeatable."),
    ] = None,
    by: Annotated[str, typer.Option(help="What decides: accuracy, nll or ece.")] = "accuracy",
    as_json: Json = False,
) -> None:
    """Choose options among a grid on validation data of the first tasks; test data is never touched."""
    from frcl.experiment.tune import Trial, grid_of, own_grid
    from frcl.experiment.tune import tune as search

    grid = own_grid(tries or [], method) or grid_of(method)

    layers = [parse_setting(text, method) for text in settings or []]
    layer: dict[str, Any] = _given(device=device, data=None if data is None else str(data.resolve()))
    for one in layers:
        for part, values in one.items():
            layer[part] = {**layer.get(part, {}), **values} if isinstance(values, dict) else values

    def say(line: str) -> None:
        if not as_json:
            out.print(line, highlight=False, markup=False, soft_wrap=True)

    def told(trial: Trial) -> None:
        say(f"{trial.reached.show()}  {trial.options}")

    say(f"tuning {', '.join(grid)} of {method} on {benchmark}")
    found = search(method, known_name(benchmark), layer, grid=grid, trials=trials, by=by, on_trial=told)
    best = found[0]
    chosen = " ".join(f"--set {name}={value}" for name, value in best.options.items())
    say(f"chosen by {by}, with {best.reached.show().strip()} on validation data: {chosen}")
    if as_json:
        typer.echo(json.dumps([trial.to_json() for trial in found]))


@app.command("list")
def list_names(
    method: Annotated[str | None, typer.Argument(help="A method whose options to list.")] = None,
) -> None:
    """List the benchmarks and the methods, or the options of one method."""
    if method is not None:
        table = Table("option", "type", "default", "description")
        for row in described(default_options(method)):
            table.add_row(*(str(cell) for cell in row))
        out.print(table)
        return
    benchmarks = [(name, spec.description) for name, spec in BENCHMARKS.items()]
    methods = [(name, method.description) for name, method in METHODS.items()]
    for title, rows in (("Benchmarks", benchmarks), ("Methods", methods)):
        table = Table(title=title, show_header=False, title_justify="left")
        for name, text in rows:
            table.add_row(name, text)
        out.print(table)


@app.command("data")
def data_files(
    name: Annotated[str | None, typer.Argument(help="A data set to make sure of: mnist or omniglot.")] = None,
    data: Annotated[Path | None, typer.Option(help="Folder to look in first, and to download to.")] = None,
) -> None:
    """Show which data files are at hand and verified; with a name, download what is missing."""
    from frcl.data.datasets import data_status, fetch

    if name is not None:
        with _download_bar() as progress:
            fetch(name, data, on_progress=progress)
    table = Table("data set", "file", "state", "where")
    for file in data_status(data):
        state = "verified" if file.verified else (file.problem or ("missing" if file.needed else "not needed"))
        table.add_row(file.dataset, file.name, state, "" if file.path is None else str(file.path))
    out.print(table)


app.command()(bench)


def main() -> None:
    """Run the command line."""
    run_app(app, "frcl")


def run_app(app: typer.Typer, name: str) -> None:
    """Run an app; a mistake ends in one line and an exit code, never in a traceback."""
    try:
        app(prog_name=name)
    except Interrupted as error:
        code = _complain(str(error), STOPPED)
    except OptionError as error:
        code = _complain(f"error: {error}", USAGE)
    except (FrclError, OSError) as error:
        code = _complain(f"error: {error}", FAILED)
    else:
        code = DONE
    sys.exit(code)


# -- helpers ------------------------------------------------------------------------------------------------


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
    base = Path("runs") / name
    number = 1
    while (base if number == 1 else base.with_name(f"{name}-{number}")).exists():
        number += 1
    return base if number == 1 else base.with_name(f"{name}-{number}")


def _observer(quiet: bool, as_json: bool, events: Path | None) -> Observer:
    display: Observer
    if quiet or as_json:
        display = Silent()
    elif out.is_terminal:
        display = Live(out)
    else:
        display = Plain(out)
    return display if events is None else Several(display, TensorBoard(events))


def _finally_closed(observer: Observer, work: Callable[[], Result]) -> Result:
    try:
        return work()
    finally:
        observer.close()


@contextmanager
def _stoppable() -> Iterator[Any]:
    """While inside, the first Ctrl-C asks the run to stop at the next step, the second one stops it at once."""
    asked = False

    def ask(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _download_bar() -> Iterator[Any]:
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    with Progress(TextColumn("{task.description}"), BarColumn(), DownloadColumn(), console=err) as bars:
        known: dict[str, Any] = {}

        def update(name: str, received: int, total: int | None) -> None:
            if name not in known:
                known[name] = bars.add_task(name, total=total)
            bars.update(known[name], completed=received, total=total)

        yield update


def _conclude(result: Result, folder: Path, quiet: bool, as_json: bool) -> None:
    one = Run.of(folder, result)
    page = write_report([one], folder / "report.html", figures=folder / "figures")
    write_tables([one], folder / "tables")
    if as_json:
        typer.echo(json.dumps(result.to_json()))
    elif not quiet:
        out.print(accuracy_table(result))
        scale, unit = (100.0, " %") if result.score == "accuracy" else (1.0, "")
        name = "average accuracy" if result.score == "accuracy" else "average share of variance explained (R²)"
        out.print(f"{name} {in_words(result.average_accuracy, scale, unit)}", highlight=False)
        out.print(f"forgetting {in_words(result.forgetting, scale, unit)}", highlight=False)
        out.print(f"NLL {in_words(result.nll, digits=3)}, ECE {in_words(result.ece, digits=3)}", highlight=False)
        out.print(f"report: {page}", highlight=False, soft_wrap=True)


def _complain(message: str, code: int) -> int:
    err.print(message, style="red" if code != STOPPED else None, highlight=False, markup=False, soft_wrap=True)
    return code
