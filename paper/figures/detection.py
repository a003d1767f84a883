"""Figures 5 and 7: boundary scores over a stream, and statistics that detect a switch (Section 3, Appendix E)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from frcl import BoundaryDetector
from paper.cells import CALM_3, OMNIGLOT, Cell, Layer
from paper.figures.base import FigureSpec
from paper.figures.draw_detection import TITLE_5, TITLE_7, draw_figure_5, draw_figure_7
from paper.figures.sheets import Rows, Sheet
from paper.library import (
    Benchmark,
    Config,
    benchmark_of,
    declared_switches,
    fork,
    new_frcl,
    run_environment,
    score_boundaries,
    source_of,
    stream_labels,
)
from paper.measure import Place

PERMUTED = "permuted-mnist"
STREAMS: dict[str, Layer] = {
    PERMUTED: {"method": "frcl", "learner": CALM_3},
    OMNIGLOT: {"method": "frcl", "learner": CALM_3},
}


@dataclass(frozen=True)
class Minibatch:
    """Minibatch number `step` of a stream; `first` marks the first one of its task."""

    step: int
    task: int
    first: bool
    x: Tensor
    y: Tensor


def minibatches(benchmark: Benchmark, config: Config, seed: int) -> Iterator[Minibatch]:
    """The stream of a run with hidden boundaries: `steps` minibatches of each task in turn."""
    steps, size = config.learner.steps, config.learner.batch_size
    for task in range(len(benchmark)):
        train = benchmark.task(task).train
        for t in range(steps * task, steps * (task + 1)):
            rows = torch.randint(len(train), (size,), generator=fork(seed, f"stream/{t}")).to(train.x.device)
            yield Minibatch(t, task, t == steps * task, train.x[rows], train.y[rows])


def true_switches(benchmark: Benchmark, config: Config) -> list[int]:
    return [config.learner.steps * task for task in range(1, len(benchmark))]


# -- Figure 5 ------------------------------------------------------------------------------------------------

SEED = 0
ALPHABETS: Layer = {
    "hidden_boundaries": True,
    "stream": {"tasks": 5},
    "learner": {"steps": 1000},
    "detector": {"threshold": 5.0},
}
QUICK_ALPHABETS: Layer = {
    "stream": {"tasks": 3, "augment": 2},
    "network": {"widths": [8, 8, 8, 8]},
    "learner": {"steps": 40, "search_steps": 20},
}


def measure_figure_5(place: Place) -> Sheet:
    """Some alphabets as one stream with hidden boundaries: mean score and statistic of each minibatch."""
    layers = (STREAMS[OMNIGLOT], ALPHABETS, QUICK_ALPHABETS) if place.quick else (STREAMS[OMNIGLOT], ALPHABETS)
    config = place.config(Cell("figure5", OMNIGLOT, "", layers, (SEED,)), [SEED])
    benchmark = benchmark_of(config, SEED)
    learner = new_frcl(config, benchmark, SEED)
    facts = {"threshold": config.detector.threshold, "steps": config.learner.steps, "batch": config.learner.batch_size}
    rows = Rows(facts, "step", "score", "statistic", "found")
    for task, name in enumerate(benchmark.task_names):
        rows.add("task", name=name, step=task * config.learner.steps)
    with run_environment(config):
        for batch in minibatches(benchmark, config, SEED):
            score = float(learner.familiarity(batch.x).mean()) if batch.step else math.nan
            log = learner.observe(batch.x, batch.y)
            rows.add("minibatch", step=batch.step, score=score, statistic=log.statistic, found=int(log.boundary))
    return rows.sheet()


# -- Figure 7 ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Variant:
    """A way to test: how the statistics of all functions are aggregated, on scores or on their logarithms."""

    aggregate: Literal["max", "median", "mean"]
    log_space: bool

    @property
    def space(self) -> str:
        return "log" if self.log_space else "plain"

    def detector(self, config: Config) -> BoundaryDetector:
        """A detector that declares no switch itself; `told_stream` resets it at each."""
        options = config.detector
        return BoundaryDetector(
            NEVER, window=options.window, log_space=self.log_space, aggregate=self.aggregate,
            warm_up=options.warm_up, minimum_time=options.minimum_time, pause=options.pause,
        )  # fmt: skip


NEVER = 1e300
AGGREGATES: tuple[Literal["max", "median", "mean"], ...] = ("max", "median", "mean")
VARIANTS = tuple(Variant(aggregate, log_space) for log_space in (True, False) for aggregate in AGGREGATES)
THRESHOLDS = tuple(0.25 * k for k in range(161))
QUANTILES = (0.05, 0.95, 1.0)
SEEDS = (0, 1, 2)
PERMUTATIONS: Layer = {"learner": {"steps": 1000}}
QUICK_PERMUTATIONS: Layer = {"stream": {"tasks": 3}, "learner": {"steps": 40, "points": 10, "search_steps": 20}}


def measure_figure_7(place: Place) -> Sheet:
    """One stream per seed. The learner is told the switches, so that all variants see the same scores."""
    seeds = SEEDS[:1] if place.quick else SEEDS
    layers = (STREAMS[PERMUTED], PERMUTATIONS, QUICK_PERMUTATIONS) if place.quick else (STREAMS[PERMUTED], PERMUTATIONS)
    config = place.config(Cell("figure7", PERMUTED, "", layers, seeds), seeds)
    source = source_of(config)
    facts = {"steps": config.learner.steps, "batch": config.learner.batch_size, "seeds": len(seeds),
             "tasks": len(source(seeds[0])), "tolerance": config.detector.tolerance}  # fmt: skip
    rows = Rows(facts, "aggregate", "space", "seed", "threshold", "precision", "recall", "f1")
    elsewhere: dict[Variant, list[float]] = {variant: [] for variant in VARIANTS}
    for seed in seeds:
        benchmark = source(seed)
        true = true_switches(benchmark, config)
        for variant, statistic in told_stream(benchmark, config, seed).items():
            name = {"aggregate": variant.aggregate, "space": variant.space}
            for step in true:
                rows.add("switch", **name, seed=seed, value=statistic[step])
            elsewhere[variant] += [v for t, v in enumerate(statistic) if t not in true and not math.isnan(v)]
            add_scores(rows, name | {"seed": seed}, statistic, true, config)
    for variant, values in elsewhere.items():
        spread = torch.tensor(values, dtype=torch.float64).quantile(
            torch.tensor(QUANTILES, dtype=torch.float64), interpolation="lower"
        )
        for quantile, value in zip(QUANTILES, spread.tolist(), strict=True):
            rows.add("elsewhere", name=quantile, aggregate=variant.aggregate, space=variant.space, value=value)
    return rows.sheet()


def told_stream(benchmark: Benchmark, config: Config, seed: int) -> dict[Variant, list[float]]:
    """The statistic of each minibatch for each variant, NaN where no test is made.

    The first minibatch of a task is scored under the previous task, as in Algorithm 1; then that task ends.
    """
    learner, labels = new_frcl(config, benchmark, seed), stream_labels(benchmark)
    detectors = {variant: variant.detector(config) for variant in VARIANTS}
    found: dict[Variant, list[float]] = {variant: [] for variant in VARIANTS}
    with run_environment(config):
        for batch in minibatches(benchmark, config, seed):
            scores = learner.familiarity(batch.x).cpu() if batch.step else None
            for variant, detector in detectors.items():
                found[variant].append(math.nan if scores is None else detector.update(scores).statistic)
                if batch.first and batch.task:
                    detector.reset()
            if batch.first:
                if batch.task:
                    learner.end_task()
                learner.start_task(labels)
            learner.observe(batch.x, batch.y)
    return found


def add_scores(rows: Rows, name: dict[str, object], statistic: list[float], true: list[int], config: Config) -> None:
    """Precision, recall and F1 at each threshold."""
    tested = [None if math.isnan(value) else value for value in statistic]
    for threshold in THRESHOLDS:
        declared = declared_switches(tested, threshold, config.detector.waits.pause)
        score = score_boundaries(true, declared, threshold, config.detector.tolerance)
        rows.add("score", **name, threshold=threshold, precision=score.precision, recall=score.recall, f1=score.f1)


FIGURES = (
    FigureSpec("figure5", TITLE_5, measure_figure_5, draw_figure_5, (OMNIGLOT,)),
    FigureSpec("figure7", TITLE_7, measure_figure_7, draw_figure_7, (PERMUTED,)),
)
