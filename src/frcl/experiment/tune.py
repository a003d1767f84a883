"""Choosing hyper-parameters on validation data of the first tasks; test data is never touched."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from frcl.data.tasks import Benchmark, Seen
from frcl.errors import NumericalError, OptionError
from frcl.experiment.agnostic import agnostic_row
from frcl.experiment.config import Config, bundled, parse_setting, resolve
from frcl.experiment.environment import threads
from frcl.experiment.metrics import Scores, means
from frcl.experiment.runner import Seed, benchmark_of, new_learner, seeds_at_once
from frcl.learners.lockstep import finish

BY = ("accuracy", "nll", "ece", "agnostic")  # what may decide
TASKS = 3  # how many tasks of the benchmark are used, the first ones


def validation_only(inner: Benchmark) -> Seen:
    """The benchmark with its validation data where test data is asked for."""
    return Seen(
        inner, lambda _, task: replace(task, test=task.validation), lambda number: inner.task(number).validation
    )


@dataclass(frozen=True)
class Trial:
    """One combination of options, and the means over tasks and seeds that it reached on the validation data."""

    options: dict[str, Any]
    reached: Scores

    def to_json(self) -> dict[str, Any]:
        return {"options": self.options, **{name: getattr(self.reached, name) for name in BY}}

    def show(self) -> str:
        shown = (
            ("{:7.2%}", self.reached.accuracy),
            ("NLL {:.4f}", self.reached.nll),
            ("ECE {:.4f}", self.reached.ece),
            ("{:.2%} without the task", self.reached.agnostic),
        )
        return ", ".join(form.format(value).replace("%", " %") for form, value in shown if value is not None)

    def merit(self, by: str) -> float:
        """What is best where it is highest."""
        value = getattr(self.reached, by)
        return -math.inf if value is None else float(-value if by in ("nll", "ece") else value)


def grid_of(method: str) -> dict[str, list[Any]]:
    """The values to try for each option of a method."""
    grid: dict[str, list[Any]] = bundled("grids.toml").get(method, {})
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


def combinations(grid: Mapping[str, list[Any]]) -> Iterator[dict[str, Any]]:
    """Every combination, the first option slowest."""
    return (dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values()))


def tuning_config(method: str, benchmark: str, layer: Mapping[str, Any], options: Mapping[str, Any]) -> Config:
    """The configuration of one trial: training data alone, the first tasks alone."""
    base = {"method": method, "stream": {"tasks": TASKS, "train_on": "train"}, "seeds": [0]}
    config = resolve(benchmark, base, layer, {"learner": dict(options)})
    if config.stream.train_on != "train":
        raise OptionError("tuning learns from the training data alone: leave train_on as it is")
    return config


def try_out(config: Config) -> Scores:
    """Learn the tasks with every seed, then look at the validation data of all; also where no task is named."""
    found: list[Scores] = []
    agnostic: list[float] = []
    at_once = seeds_at_once(config)
    with threads(config.run.threads, tf32=config.run.tf32):
        for first in range(0, len(config.seeds), at_once):
            group = []
            for seed in config.seeds[first : first + at_once]:
                benchmark = validation_only(benchmark_of(config, seed))
                group.append(Seed(seed, benchmark, new_learner(config, benchmark, seed)))
            for number in range(len(group[0].benchmark)):
                finish([one.learn(number) for one in group])
            found += [one.judge(on) for one in group for on in range(len(one.benchmark))]
            rows = [
                agnostic_row(one.learner, one.benchmark, [*range(len(one.benchmark))], whole=False) for one in group
            ]
            agnostic += [value for row in rows if row is not None for value in row.accuracy]
    return replace(means(found), agnostic=sum(agnostic) / len(agnostic) if agnostic else None)


def tune(
    method: str,
    benchmark: str,
    layer: Mapping[str, Any],
    *,
    grid: Mapping[str, list[Any]] | None = None,
    trials: int | None = None,
    by: str = BY[0],
    on_trial: Callable[[Trial], None] | None = None,
) -> list[Trial]:
    """All trials, the best first: a grid, by default the method's, or `trials` combinations of it that Optuna chose."""
    if by not in BY:
        raise OptionError(f"--by {by} is unknown; choose one of {', '.join(BY)}")
    grid = grid or grid_of(method)
    for options in combinations(grid):
        tuning_config(method, benchmark, layer, options)  # refuses what cannot be before anything is learned
    done: list[Trial] = []

    def attempt(options: dict[str, Any]) -> float:
        trial = Trial(options, try_out(tuning_config(method, benchmark, layer, options)))
        if by == "ece" and trial.reached.ece is None:
            raise OptionError(f"--by ece: what {benchmark} predicts are numbers, not classes; choose accuracy or nll")
        done.append(trial)
        if on_trial is not None:
            on_trial(trial)
        return trial.merit(by)

    if trials is None:
        for options in combinations(grid):
            attempt(options)
    else:
        _with_optuna(grid, trials, attempt)
    if all(trial.merit(by) == -math.inf for trial in done):
        raise NumericalError(f"--by {by}: no trial has a finite {by.upper()}; try other values")
    return sorted(done, key=lambda trial: -trial.merit(by))


def _with_optuna(grid: Mapping[str, list[Any]], trials: int, attempt: Callable[[dict[str, Any]], float]) -> None:
    try:
        import optuna
    except ImportError as error:
        raise OptionError("--trials needs the package optuna: pip install 'frcl[tune]'") from error

    def objective(trial: Any) -> float:
        return attempt({name: trial.suggest_categorical(name, values) for name, values in grid.items()})

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=0))
    study.optimize(objective, n_trials=trials)
