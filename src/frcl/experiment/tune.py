"""Choosing hyper-parameters on validation data of the first tasks; test data is never touched.

Every trial is a run in a folder of its own, so that a search that was killed goes on where it stopped.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from frcl.codec import Damaged, from_json
from frcl.errors import DataError, FrclError, NumericalError, OptionError
from frcl.experiment.config import Config, bundled, parse_setting, resolve, to_toml
from frcl.experiment.results import MetricName, Result
from frcl.experiment.sweep import Engine, begin, carried_out, combinations, in_turn, job_name
from frcl.files import read_document
from frcl.methods import METHODS

BY: dict[str, MetricName] = {
    "accuracy": "average_accuracy", "nll": "nll", "ece": "ece", "agnostic": "agnostic_accuracy",
}  # what may decide  # fmt: skip
TASKS = 3  # how many tasks of the benchmark are used, the first ones
EXTENSIONS = 3  # how often a grid is extended at most
FORMAT, SEARCH = "frcl-tune", "tune.json"
Grid = Mapping[str, list[Any]]


@dataclass(frozen=True)
class Trial:
    """One combination of options, and the means over tasks and seeds that it reached on the validation data."""

    options: dict[str, Any]
    reached: dict[str, float | None]
    error: str | None = None

    @classmethod
    def of(cls, options: dict[str, Any], found: Result | str) -> Trial:
        """The trial that ended with a result, or with an error message."""
        if isinstance(found, str):
            return cls(options, dict.fromkeys(BY), found)
        metrics = {by: found.metric(name) for by, name in BY.items()}
        return cls(options, {by: None if metric is None else metric.mean for by, metric in metrics.items()})

    def to_json(self) -> dict[str, Any]:
        return {"options": self.options, **self.reached, **({"error": self.error} if self.error else {})}

    def show(self) -> str:
        forms = {"accuracy": "{:7.2%}", "nll": "NLL {:.4f}", "ece": "ECE {:.4f}", "agnostic": "{:.2%} without the task"}
        shown = [(forms[by], value) for by, value in self.reached.items() if value is not None]
        return self.error or ", ".join(form.format(value).replace("%", " %") for form, value in shown)

    def merit(self, by: str) -> float:
        """What is best where it is highest."""
        value = self.reached[by]
        return -math.inf if value is None else float(-value if by in ("nll", "ece") else value)


@dataclass(frozen=True)
class Search:
    """What is searched: saved in the folder of the search, so that it can go on."""

    method: str
    benchmark: str
    layer: dict[str, Any]  # what all trials share
    grid: dict[str, list[Any]]
    by: str = "accuracy"
    trials: int | None = None  # chosen by Optuna; None: all combinations
    extensions: int = EXTENSIONS

    def __post_init__(self) -> None:
        if self.by not in BY:
            raise OptionError(f"--by {self.by} is unknown; choose one of {', '.join(BY)}")

    @property
    def count(self) -> int:
        """How many trials, before the grid is extended."""
        return self.trials or math.prod(map(len, self.grid.values()))

    def config(self, options: Mapping[str, Any]) -> Config:
        """The configuration of one trial: training data alone, the first tasks alone."""
        base = {"method": self.method, "stream": {"tasks": TASKS, "train_on": "train"}, "seeds": [0]}
        config = resolve(self.benchmark, base, self.layer, {"learner": dict(options)})
        if config.stream.train_on != "train":
            raise OptionError("tuning learns from the training data alone: leave train_on as it is")
        return replace(config, stream=replace(config.stream, test_on="validation"))

    def configs(self) -> list[Config]:
        """The configuration of every combination; refuses what cannot be, before anything is written or learned."""
        if self.trials is not None:
            _optuna()
        return [self.config(options) for options in combinations(self.grid)]

    def write(self, folder: Path, *, overwrite: bool = False) -> None:
        """Begin a new search in a folder; with `overwrite` also where one is there, whose trials are removed."""
        first = next(iter(Search.read(folder).grid), "") if overwrite and (folder / SEARCH).exists() else ""
        own = (lambda name: name == "ray" or name.startswith(f"{first}=")) if overwrite else None
        begin(folder / SEARCH, {"format": FORMAT, **asdict(self)}, own)

    @classmethod
    def read(cls, folder: Path) -> Search:
        """The search in a folder."""
        if not (folder / SEARCH).is_file():
            raise DataError(f"{folder} holds no search: there is no {SEARCH} in it")
        content = read_document(folder / SEARCH, json.loads, form=FORMAT)
        try:
            return from_json(cls, content)
        except (Damaged, RecursionError) as error:
            raise DataError(f"{folder / SEARCH} is damaged: {error}") from error


def grid_of(method: str) -> dict[str, list[Any]]:
    """The values to try for each option of a method."""
    grid: dict[str, list[Any]] = bundled("grids.toml").get(method) or dict(METHODS[method].grid)
    if not grid:
        raise OptionError(f"there is nothing to tune for method {method!r}")
    return grid


def own_grid(texts: Sequence[str], method: str) -> dict[str, list[Any]]:
    """A grid from texts like `curvature=[0.3, 1.0]`, one for each option of the learner."""
    grid: dict[str, list[Any]] = {}
    for text in texts:
        layer = parse_setting(text, method, "--try")
        for name, values in layer.get("learner", {}).items():
            if not isinstance(values, list) or not values:
                raise OptionError(f"--try wants a list of values, as in --try {name}=[0.1,1.0]; got {text!r}")
            if name in grid:
                raise OptionError(f"--try has {name} twice; give all its values in one list")
            grid[name] = values
        if set(layer) != {"learner"}:
            raise OptionError(f"--try is for options of the learner; got {text!r}. What all trials share is for --set")
    return grid


def tune(
    search: Search,
    folder: Path,
    engine: Engine = in_turn,
    *,
    on_trial: Callable[[Trial], None] = lambda _: None,
    on_extended: Callable[[str, Any, Any], None] = lambda *_: None,
) -> list[Trial]:
    """All trials, the best first: every combination of the grid, or `trials` combinations of it that Optuna chose.

    Where the best value of a number is the smallest or largest of the grid, the grid is extended beyond it, and
    `on_extended` is told. Trials that are finished in the folder are read from there.
    """
    search.configs()
    done: dict[str, Trial] = {}

    def attempt(each: Sequence[dict[str, Any]]) -> None:
        named = {job_name(options): options for options in each}
        jobs = {name: to_toml(search.config(options)) for name, options in named.items() if name not in done}
        for name, found in carried_out(jobs, folder, engine):
            done[name] = Trial.of(named[name], found)
            if search.by == "ece" and isinstance(found, Result) and done[name].reached["ece"] is None:
                raise OptionError(
                    f"--by ece: what {search.benchmark} predicts are numbers, not classes; choose accuracy or nll"
                )
            on_trial(done[name])

    if search.trials is None:
        attempt(list(combinations(search.grid)))
        grid = search.grid
        for _ in range(search.extensions):
            beyond = {name: (edge, value) for name, edge, value in _beyond(grid, list(done.values()), search)}
            if not beyond:
                break
            grid = {
                name: [*values, *(value for own, (_, value) in beyond.items() if own == name)]
                for name, values in grid.items()
            }
            for name, (edge, value) in beyond.items():
                on_extended(name, edge, value)
            attempt(list(combinations(grid)))
    else:
        _with_optuna(search, lambda options: attempt([options]), done)
    found = list(done.values())
    if all(trial.merit(search.by) == -math.inf for trial in found):
        errors = [trial.error for trial in found if trial.error]
        raise NumericalError(
            errors[0] if errors else f"--by {search.by}: no trial has a finite {search.by.upper()}; try other values"
        )
    return sorted(found, key=lambda trial: -trial.merit(search.by))


def _beyond(grid: Grid, done: Sequence[Trial], search: Search) -> Iterator[tuple[str, Any, Any]]:
    """For each option whose best value is at an edge of its numbers: one value beyond it, in the same ratio."""
    winner = max(done, key=lambda trial: trial.merit(search.by))
    best = winner.merit(search.by)
    if best == -math.inf:
        return
    for name, values in grid.items():
        numbers = sorted({value for value in values if type(value) in (int, float)})
        if len(numbers) < 2 or len(numbers) < len(set(map(str, values))):
            continue
        merits = {number: max(t.merit(search.by) for t in done if t.options[name] == number) for number in numbers}
        winners = [number for number in numbers if merits[number] == best]
        for edge, inner in ((numbers[0], numbers[1]), (numbers[-1], numbers[-2])):
            if winners == [edge] and edge != 0:  # zero switches a term off
                value = edge * edge / inner if edge * inner > 0 else 2 * edge - inner
                value = round(value) if type(edge) is int else float(f"{value:.6g}")
                if value not in numbers and _is_possible(search, {**winner.options, name: value}):
                    yield name, edge, value


def _is_possible(search: Search, options: Mapping[str, Any]) -> bool:
    try:
        search.config(options)
    except FrclError:
        return False
    return True


def _optuna() -> Any:
    """The module, of an extra."""
    try:
        import optuna
    except ImportError as error:
        raise OptionError("--trials needs the package optuna: pip install 'frcl[tune]'") from error
    return optuna


def _with_optuna(search: Search, attempt: Callable[[dict[str, Any]], None], done: Mapping[str, Trial]) -> None:
    """One trial after another; what was asked before a kill is asked again, and its results are known."""
    optuna = _optuna()

    def objective(trial: Any) -> float:
        options = {name: trial.suggest_categorical(name, values) for name, values in search.grid.items()}
        attempt(options)
        merit = done[job_name(options)].merit(search.by)
        if merit == -math.inf:
            raise optuna.TrialPruned
        return merit

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=0))
    study.optimize(objective, n_trials=search.trials)
