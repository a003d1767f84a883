"""`frcl tune`: chooses options on validation data; saves every trial, and goes on after a kill."""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from frcl.cli.console import bar, say
from frcl.cli.options import Benchmark, Flags, completed, free_folder, keys, methods, shares_flags
from frcl.cli.sweep import Place, refuse_other
from frcl.errors import OptionError
from frcl.experiment.config import over, to_toml
from frcl.experiment.keeper import Interrupted
from frcl.experiment.runner import check
from frcl.experiment.sweep import check_free, combinations
from frcl.experiment.tune import BY, EXTENSIONS, SEARCH, Search, Trial, grid_of, own_grid
from frcl.experiment.tune import tune as search_in
from frcl.files import alone_in

TRY = "Values to try instead of the method's own, as in curvature=[0.3,1.0]; repeatable."
EXTEND = (
    f"How often a grid whose smallest or largest value wins is extended beyond it, {EXTENSIONS} by default; 0: never. "
    "Not with --trials or --engine ray."
)
DECIDES = f"What decides: {', '.join(BY)}; accuracy by default."
ENGINE = "grid: every combination, or --trials of them; ray: Ray Tune, Optuna chooses and ASHA ends poor trials early."


@shares_flags
def tune(
    flags: Flags,
    place: Place,
    method: Annotated[str | None, Argument(help="The method to tune; see `frcl list`.", autocompletion=methods)] = None,
    benchmark: Benchmark = None,
    trials: Annotated[int | None, Option(min=1, help="Only this many combinations, chosen by Optuna.")] = None,
    tries: Annotated[list[str] | None, Option("--try", help=TRY, autocompletion=keys)] = None,
    by: Annotated[str | None, Option(help=DECIDES, autocompletion=completed(BY))] = None,
    extend: Annotated[int | None, Option(min=0, help=EXTEND)] = None,
    engine: Annotated[str, Option(help=ENGINE, autocompletion=completed(("grid", "ray")))] = "grid",
) -> None:
    """Choose options among a grid on validation data of the first tasks; test data is never touched.

    Every trial is a run in the folder of the search: frcl tune --resume FOLDER goes on after an interruption.
    """
    _check_engine(engine, extend, trials)
    place.check(search=engine == "ray")
    tell: Callable[[str], None] = (lambda _: None) if flags.as_json or flags.quiet else say
    if place.resume is None:
        tuned, name, layer = _shared(flags, method, benchmark)
        decided = by or "accuracy", trials, EXTENSIONS if extend is None else extend
        search = Search(tuned, name, layer, own_grid(tries or [], tuned) or grid_of(tuned), *decided)
        config, *_ = search.configs()
        folder = flags.out or free_folder(f"{Path(name).stem}-{tuned}-tune")
        if flags.dry_run:
            typer.echo(to_toml(config), nl=False)
            check_free(folder / SEARCH, overwrite=place.overwrite)
            return check(config)
        search.write(folder, overwrite=place.overwrite)
    else:
        said = {"benchmark": benchmark, "method": method, "--by": by, "--trials": trials, "--extend": extend}
        folder, search = place.resume, _resumed(place.resume, flags, place, said, tries or [])
    shown = ", ".join(f"{name}={json.dumps(values)}" for name, values in search.grid.items())
    tell(f"tuning {search.method} on {search.benchmark}: {shown}")

    def show(trial: Trial) -> None:
        advance()
        tell(f"{trial.show()}  {trial.options}")

    device = search.config({}).device
    with alone_in(folder), bar("trials", quiet=flags.quiet or flags.as_json) as advance:
        try:
            if engine == "ray":
                from frcl.adapters.ray import search_on_ray

                address = "local" if place.address == "none" else place.address
                found = search_on_ray(search, folder, address, cpus=place.cpus, gpus=place.gpus_for(device))
                for trial in found:
                    show(trial)
            else:
                found = search_in(
                    search, folder, place.engine(device), on_trial=show,
                    on_extended=lambda name, edge, value: tell(edge_wins(name, edge, value)),
                )  # fmt: skip
        except KeyboardInterrupt:
            raise Interrupted(f"stopped; go on with: frcl tune --resume {folder}") from None
    if flags.as_json:
        return typer.echo(json.dumps([trial.to_json() for trial in found]))
    chosen = " ".join(f"--set {name}={value}" for name, value in found[0].options.items())
    tell(f"trials: {folder}")
    return tell(f"chosen by {search.by}, with {found[0].show().strip()} on validation data: {chosen}")


def _check_engine(engine: str, extend: int | None, trials: int | None) -> None:
    if engine not in ("grid", "ray"):
        raise OptionError(f"--engine {engine} is unknown; choose grid or ray")
    if extend and (engine == "ray" or trials is not None):
        raise OptionError(f"--extend {extend} is for trials of every combination: not with --trials or --engine ray")


def _resumed(folder: Path, flags: Flags, place: Place, said: Mapping[str, Any], tries: Sequence[str]) -> Search:
    """The search in a folder, of which nothing else may be said."""
    search = Search.read(folder)
    jobs = [search.config(options) for options in combinations(search.grid)]
    extend = search.extensions if search.trials is None else 0
    made = {"--by": search.by, "--trials": search.trials, "--extend": extend}
    refuse_other(folder, flags, place, jobs, said, made, flags.settings or [], tries)
    return search


def edge_wins(name: str, edge: float, value: float) -> str:
    """What is said where a grid is extended."""
    which = "largest" if value > edge else "smallest"
    return f"{name}={edge} is the {which} value and the best: trying {value} too"


def _shared(flags: Flags, method: str | None, benchmark: str | None) -> tuple[str, str, dict[str, Any]]:
    """The method, the benchmark, and the layer of options that all trials share."""
    if method is None or benchmark is None:
        raise OptionError("frcl tune wants a method and a benchmark, as in: frcl tune ewc split-digits")
    name, methods = flags.chosen(benchmark, method)
    if len(methods) > 1:
        raise OptionError(f"one method is tuned at a time; got {method!r}")
    layer = reduce(over, flags.layers(method, methods))
    del layer["method"]
    return method, name, layer
