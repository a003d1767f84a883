"""Whole runs on a GPU with the settings of the paper: seconds from first step to result, and the accuracy."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from frcl.bench.measure import Goal, Measurement, ratios
from frcl.display import Silent, in_words
from frcl.experiment import runner
from frcl.experiment.config import Config, resolve
from frcl.experiment.results import Result
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
    """One tiny run: loads the libraries, and fails early if data is missing."""
    for config in {config.benchmark: config for config in configs.values()}.values():
        runner.benchmark_of(config, config.seeds[0])
    first = next(iter(configs.values()))
    assert isinstance(first.learner, FRCLOptions)
    learner, stream = replace(first.learner, steps=3, search_steps=3), replace(first.stream, tasks=2)
    _timed(replace(first, seeds=(0,), learner=learner, stream=stream))


def measure_runs(
    goals: Sequence[Goal], configs: Mapping[str, Config], repeat: int, advance: Callable[[], object]
) -> list[Measurement]:
    """Time all runs in turn, `repeat` times over, and compute the measure of each goal."""
    warm_up(configs)
    seconds: dict[str, list[float]] = {name: [] for name in configs}
    accuracies: dict[str, str] = {}
    for _ in range(repeat):
        for name, config in configs.items():
            taken, result = _timed(config)
            seconds[name].append(taken)
            accuracies[name] = f"average accuracy {in_words(result.average_accuracy, 100, ' %')}"
            advance()
    found = []
    for goal in goals:
        how = "; ".join(accuracies[name] for name in GOALS[goal])
        ours, *other = (seconds[name] for name in GOALS[goal])
        found.append(ratios(goal, ours, other[0], how) if other else Measurement(goal, ours, {"ours": ours}, how))
    return found


class _Clock(Silent):
    """Starts when a run has read its data and made its learners; that set-up is not timed."""

    began = 0.0

    def begin(self, config: Config, names: list[str]) -> None:
        self.began = time.monotonic()


def _timed(config: Config) -> tuple[float, Result]:
    """Seconds from the first step of a run until its result is written, and the result."""
    clock = _Clock()
    with tempfile.TemporaryDirectory() as folder:
        result = runner.run(config, Path(folder) / "run", clock)
        return time.monotonic() - clock.began, result
