"""Whole runs on a GPU with the settings of the paper: seconds from first step to result, accuracy beside them."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from frcl.bench.measure import Goal, Measurement
from frcl.display import Silent, in_words
from frcl.experiment import runner
from frcl.experiment.config import Config, resolve
from frcl.experiment.keeper import Observer
from frcl.experiment.results import Result
from frcl.learners.options import FRCLOptions

RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "split-mnist": ("split-mnist", {"seeds": list(range(10)), "learner": {"points": 40}}),
    "permuted-mnist": ("permuted-mnist", {"seeds": list(range(10)), "learner": {"points": 200}}),
    "permuted-mnist, one seed": ("permuted-mnist", {"seeds": [0], "learner": {"points": 200}}),
    "omniglot": ("omniglot", {"seeds": list(range(5)), "learner": {"points_per_class": 2, "start": "balanced"}}),
}

GOALS: dict[Goal, tuple[str, ...]] = {  # and the runs that each is made of: one, or two whose ratio it is
    Goal("split-mnist", "Split-MNIST, 10 seeds, 40 points", 12, unit="s"): ("split-mnist",),
    Goal("permuted-mnist", "Permuted-MNIST, 10 seeds, 200 points", 25, unit="s"): ("permuted-mnist",),
    Goal("ten-to-one", "Permuted-MNIST, 10 seeds, times one seed", 1.8): (
        "permuted-mnist", "permuted-mnist, one seed",
    ),
    Goal("omniglot", "Omniglot, 50 alphabets, 5 seeds, 2 points per character", 600, unit="s"): ("omniglot",),
}  # fmt: skip


def configurations(goals: Sequence[Goal], device: str, data: Path | None) -> dict[str, Config]:
    """The runs that these goals need, each once."""
    names = dict.fromkeys(name for goal in goals for name in GOALS[goal])
    place: dict[str, Any] = {"device": device} | ({} if data is None else {"data": str(data.resolve())})
    return {name: resolve(RUNS[name][0], RUNS[name][1], place) for name in names}


def warm_up(configs: Mapping[str, Config]) -> None:
    """One tiny run: loads libraries, and shows at once if the data is not there."""
    for config in {config.benchmark: config for config in configs.values()}.values():
        runner.benchmark_of(config, config.seeds[0])
    first = next(iter(configs.values()))
    assert isinstance(first.learner, FRCLOptions)
    learner, stream = replace(first.learner, steps=3, search_steps=3), replace(first.stream, tasks=2)
    _run(replace(first, seeds=(0,), learner=learner, stream=stream), Silent())


def measure_runs(
    goals: Sequence[Goal], configs: Mapping[str, Config], repeat: int, told: Callable[[], None]
) -> list[Measurement]:
    """Every run once, in turn, `repeat` times over; then what each goal is made of."""
    warm_up(configs)
    seconds: dict[str, list[float]] = {name: [] for name in configs}
    accuracies: dict[str, str] = {}
    for _ in range(repeat):
        for name, config in configs.items():
            taken, result = _timed(config)
            seconds[name].append(taken)
            accuracies[name] = f"average accuracy {in_words(result.average_accuracy, 100, ' %')}"
            told()
    return [_measurement(goal, GOALS[goal], seconds, accuracies) for goal in goals]


def _measurement(
    goal: Goal, names: tuple[str, ...], seconds: Mapping[str, list[float]], accuracies: Mapping[str, str]
) -> Measurement:
    how = "; ".join(accuracies[name] for name in names)
    if len(names) == 1:
        return Measurement(goal, seconds[names[0]], {"ours": seconds[names[0]]}, how)
    ours, other = (seconds[name] for name in names)
    ratios = [goal.ratio(*both) for both in zip(ours, other, strict=True)]
    return Measurement(goal, ratios, {"ours": ours, "other": other}, how)


class _Clock(Silent):
    """Starts when a run has read its data and made its learners: that is set-up, the rest is the run."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def begin(self, config: Config, names: list[str]) -> None:
        self._began = time.monotonic()

    def seconds(self) -> float:
        return time.monotonic() - self._began


def _timed(config: Config) -> tuple[float, Result]:
    """Seconds from the first step of a run until its result is written, and the result."""
    clock = _Clock()
    result = _run(config, clock)
    return clock.seconds(), result


def _run(config: Config, observer: Observer) -> Result:
    with tempfile.TemporaryDirectory() as folder:
        return runner.run(config, Path(folder) / "run", observer)
