"""Whole runs on a GPU with the settings of the paper: seconds from first step to result, and the accuracy."""

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from frcl.bench.measure import Goal, Measurement, in_turn
from frcl.experiment import runner
from frcl.experiment.config import Config, resolve
from frcl.experiment.display import in_words
from frcl.experiment.keeper import Observer
from frcl.learners.options import FRCLOptions

RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "split-mnist": ("split-mnist", {"seeds": list(range(10)), "learner": {"points": 40}}),
    "permuted-mnist": ("permuted-mnist", {"seeds": list(range(10)), "learner": {"points": 200}}),
    "permuted-mnist, one seed": ("permuted-mnist", {"seeds": [0], "learner": {"points": 200}}),
    "omniglot": ("omniglot", {"seeds": list(range(5)), "learner": {"points_per_class": 2, "start": "balanced"}}),
}

GOALS: dict[Goal, tuple[str, ...]] = {  # and the runs each is computed from: one, or two for a ratio
    Goal("split-mnist", "Split-MNIST, 10 seeds, 40 points", 12, unit="s"): ("split-mnist",),
    Goal("permuted-mnist", "Permuted-MNIST, 10 seeds, 200 points", 25, unit="s"): ("permuted-mnist",),
    Goal("ten-to-one", "Permuted-MNIST, 10 seeds relative to one", 1.8): ("permuted-mnist", "permuted-mnist, one seed"),
    Goal("omniglot", "Omniglot, 50 alphabets, 5 seeds, 2 points per character", 600, unit="s"): ("omniglot",),
}


def configurations(goals: Sequence[Goal], device: str, data: Path | None) -> dict[str, Config]:
    """The runs that these goals need, each once."""
    place: dict[str, Any] = {"device": device} | ({} if data is None else {"data": str(data.resolve())})
    return {name: resolve(*RUNS[name], place) for goal in goals for name in GOALS[goal]}


def measure_runs(
    goals: Sequence[Goal], configs: Mapping[str, Config], repeat: int, advance: Callable[[], object]
) -> list[Measurement]:
    """Time all runs in turn, `repeat` times over, and compute the measure of each goal."""
    for config in {config.benchmark: config for config in configs.values()}.values():
        runner.benchmark_of(config, config.seeds[0])  # fails early if data is missing
    first, accuracies = next(iter(configs.values())), dict.fromkeys(configs, "")
    assert isinstance(first.learner, FRCLOptions)
    learner, stream = replace(first.learner, steps=3, search_steps=3), replace(first.stream, tasks=2)
    _timed(replace(first, seeds=(0,), learner=learner, stream=stream))  # loads the libraries

    def side(name: str) -> float:
        seconds, accuracies[name] = _timed(configs[name])
        advance()
        return seconds

    seconds = in_turn({name: partial(side, name) for name in configs}, repeat, lambda: None)
    found = []
    for goal in goals:
        times = dict(zip(("ours", "other"), (seconds[name] for name in GOALS[goal]), strict=False))
        found.append(goal.measured(times, "; ".join(accuracies[name] for name in GOALS[goal])))
    return found


class _Clock(Observer):
    """Starts when a run has read its data and made its learners; that set-up is not timed."""

    began = 0.0

    def begin(self, config: Config, names: list[str]) -> None:
        self.began = time.monotonic()


def _timed(config: Config) -> tuple[float, str]:
    """Seconds from the first step of a run until its result is written, and its accuracy."""
    clock = _Clock()
    with tempfile.TemporaryDirectory() as folder:
        result = runner.run(config, Path(folder) / "run", clock)
        seconds = time.monotonic() - clock.began
    return seconds, f"average accuracy {in_words(result.average_accuracy, 100, ' %')}"
