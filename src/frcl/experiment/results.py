"""The one schema of a run's results: the dataclasses that write result.json and read it back."""

import json
from collections.abc import Sized
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from frcl.codec import Damaged, from_json, to_json
from frcl.errors import DataError
from frcl.experiment.metrics import BoundaryScore, Floats, Interval, Scores
from frcl.files import VERSION, read_document, write_atomically

RESULT = "result.json"
FORMAT = "frcl-result"
MEASURED = ("seconds", "peak_memory_bytes", "environment", "command", "started")  # differ between equal runs
Score = Literal["accuracy", "r2"]
MetricName = Literal[
    "average_accuracy", "accuracy_after_learning", "backward_transfer", "forward_transfer", "forgetting", "nll",
    "brier", "ece", "auroc", "agnostic_accuracy", "task_accuracy", "agnostic_nll", "agnostic_ece", "novelty_auroc",
]  # fmt: skip
METRICS: tuple[MetricName, ...] = MetricName.__args__  # type: ignore[attr-defined]
RANGES: dict[MetricName, tuple[float, float]] = {
    "backward_transfer": (-1.0, 1.0), "forward_transfer": (-1.0, 1.0), "forgetting": (-1.0, 1.0), "brier": (0.0, 2.0),
    "nll": (0.0, np.inf), "agnostic_nll": (0.0, np.inf),
}  # of the metrics that are not between 0 and 1  # fmt: skip
Part = Literal["train", "select", "evaluate"]


@dataclass
class SeedRecord:
    """The results of one seed; filled while the seed is learned, and kept in the checkpoint."""

    rows: list[list[float]] = field(default_factory=list)  # row i of the accuracy matrix: on tasks 0 to i
    bytes: list[int] = field(default_factory=list)  # kept after each task
    parts: dict[str, int] = field(default_factory=dict)  # bytes kept after the last task, by kind
    alone: list[float] = field(default_factory=list)  # accuracy of a new learner on each task, for forward transfer
    learned_as: list[int] = field(default_factory=list)  # number of the learner's task that predicts for each task
    score: Score = "accuracy"  # the quantity in `rows`
    final: Scores = field(default_factory=Scores)
    agnostic: list[list[float]] = field(default_factory=list)  # as `rows`, where no task is named
    agnostic_final: Scores = field(default_factory=Scores)
    task_accuracy: list[float | None] = field(default_factory=list)  # of the inferred task, after each task
    novelty_auroc: list[float | None] = field(default_factory=list)  # of the next task, after each task
    task: int = 0  # hidden boundaries: the learner's task of the last minibatch,
    true: list[int] = field(default_factory=list)  # hidden boundaries: minibatches of the switches,
    found: list[int] = field(default_factory=list)  # of the declared switches,
    statistic: list[float | None] = field(default_factory=list)  # and the test statistic of every minibatch


def _check_lengths(name: str, *columns: Sized) -> None:
    if len({len(column) for column in columns}) > 1:
        raise Damaged(f'the columns of "{name}" differ in length')


@dataclass(frozen=True)
class Memory:
    """Bytes kept of past tasks by one seed, after the last task; `parts` by kind: points, posterior and so on."""

    total: int
    per_task: tuple[int, ...] = ()
    parts: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Seconds:
    """Wall-clock time of all seeds together."""

    train: float = 0.0
    select: float = 0.0
    evaluate: float = 0.0
    total: float = 0.0


@dataclass(frozen=True, eq=False)
class CalibrationCurve:
    """Bins of confidence, pooled over tasks and seeds: edges [B + 1], the rest [B]; NaN in an empty bin."""

    edges: tuple[float, ...]
    count: tuple[int, ...]
    confidence: Floats
    accuracy: Floats

    def __post_init__(self) -> None:
        _check_lengths("calibration", self.edges[1:], self.count, self.confidence, self.accuracy)

    @property
    def filled(self) -> Any:
        """Mask [B] of the bins that contain predictions."""
        return (np.array(self.count) > 0) & np.isfinite(self.confidence) & np.isfinite(self.accuracy)


@dataclass(frozen=True, eq=False)
class StepCurves:
    """The terms of the objective over the steps of the first seed, every `every`-th step, in nats per example."""

    every: int
    task: tuple[int, ...]
    step: tuple[int, ...]
    loss: Floats
    log_likelihood: Floats
    kl_now: Floats
    kl_past: Floats

    def __post_init__(self) -> None:
        _check_lengths("steps", self.step, self.task, self.loss, self.log_likelihood, self.kl_now, self.kl_past)

    @property
    def position(self) -> Floats:
        """Step numbers that only grow: where they start again with a task, the steps before are added."""
        step = np.array(self.step, dtype=np.float64)
        restart = np.where(np.diff(step, prepend=step[:1]) < 0, np.roll(step, 1), 0.0)
        return np.asarray(step + np.cumsum(restart))


@dataclass(frozen=True, eq=False)
class Boundaries:
    """Task switches of the first seed, and scores over seeds."""

    true: tuple[int, ...]  # minibatches
    found: tuple[int, ...]
    threshold: float
    statistic: Floats  # of the tests, made at the minibatches `statistic_step`
    statistic_step: tuple[int, ...]
    scores: tuple[BoundaryScore, ...]  # means over seeds at each of several thresholds
    acted_on: dict[str, Interval | None]  # precision, recall and f1 of the switches that the learner acted on

    def __post_init__(self) -> None:
        _check_lengths("boundaries", self.statistic, self.statistic_step)


@dataclass(frozen=True, eq=False)
class Result:
    """What a run found: the content of result.json. A metric is None where it is not available.

    Intervals do not leave the range of their metric: an accuracy never exceeds 100 %.
    """

    benchmark: str
    method: str
    seeds: tuple[int, ...]
    tasks: tuple[str, ...]
    accuracy: Floats  # R [S, T, T], axes (seed, after learning task, on task), NaN above the diagonal
    score: Score = "accuracy"  # the quantity in `accuracy`: share of right labels, or of variance explained (R²)
    config: dict[str, Any] = field(default_factory=dict)  # the options of the run, as in config.toml
    average_accuracy: Interval | None = None
    accuracy_after_learning: Interval | None = None
    backward_transfer: Interval | None = None
    forgetting: Interval | None = None
    forward_transfer: Interval | None = None
    nll: Interval | None = None
    brier: Interval | None = None
    ece: Interval | None = None
    auroc: Interval | None = None
    agnostic: Floats | None = None  # as `accuracy`, where no task is named
    agnostic_accuracy: Interval | None = None
    task_accuracy: Interval | None = None
    agnostic_nll: Interval | None = None
    agnostic_ece: Interval | None = None
    novelty_auroc: Interval | None = None
    calibration: CalibrationCurve | None = None
    memory_bytes: Memory | None = None
    boundaries: Boundaries | None = None
    steps: StepCurves | None = None
    seconds: Seconds | None = None
    peak_memory_bytes: int | None = None
    environment: dict[str, str] = field(default_factory=dict)
    command: str = ""
    started: str = ""

    def __post_init__(self) -> None:
        if not self.benchmark or not self.method or not self.seeds or not self.tasks:
            raise Damaged("it names no benchmark, no method, no seeds or no tasks")
        for R in (self.accuracy, self.agnostic):
            if R is not None:
                _check_matrix(R, len(self.seeds), len(self.tasks), 0.0 if self.score == "accuracy" else -np.inf)
        for name in METRICS:
            metric = self.metric(name)
            if metric is not None and len(metric.per_seed) != len(self.seeds):
                raise Damaged(f'"{name}.per_seed" has {len(metric.per_seed)} entries, expected {len(self.seeds)}')
            least, most = RANGES.get(name, (0.0, 1.0))
            if self.score == "r2" and "auroc" not in name:  # R² has no lower bound, nor has the NLL of a density
                least, most = -np.inf, 1.0 if "accuracy" in name else np.inf
            object.__setattr__(self, name, metric and metric.clipped(least, most))

    @property
    def names_no_task(self) -> bool:
        """Whether what is predicted without the task comes first."""
        return self.config.get("scenario") == "class" and self.agnostic is not None

    def metric(self, name: MetricName) -> Interval | None:
        metric: Interval | None = getattr(self, name)
        return metric

    def to_json(self) -> dict[str, Any]:
        """The content of result.json."""
        return {"format": FORMAT, "version": VERSION, **to_json(self)}


def _check_matrix(R: Floats, seeds: int, tasks: int, least: float) -> None:
    if R.shape != (seeds, tasks, tasks):
        raise Damaged(f'"accuracy" has the shape {list(R.shape)}, expected {[seeds, tasks, tasks]}')
    wrong = np.argwhere(np.where(np.tri(tasks, dtype=bool), ~((least <= R) & (R <= 1.0)), ~np.isnan(R)))
    if len(wrong):
        s, i, j = wrong[0].tolist()
        value = "null" if np.isnan(R[s, i, j]) else f"{R[s, i, j]:g}"
        expected = f"between {least:g} and 1" if j <= i else "null: the task was not learned yet"
        raise Damaged(f'"accuracy[{s}][{i}][{j}]" is {value}, not {expected}')


def write_result(path: Path, result: Result) -> None:
    write_atomically(path, (json.dumps(result.to_json(), indent=1, allow_nan=False) + "\n").encode())


def read_result(path: Path) -> Result:
    """The result that a run wrote; a foreign or damaged file is refused in one line."""
    if not path.exists():
        raise DataError(f"{path.parent} is not a run folder: it has no {path.name}")
    try:
        return from_json(Result, read_document(path, json.loads, form=FORMAT))
    except (Damaged, RecursionError) as error:
        raise DataError(f"{path} is damaged: {error}; run the benchmark again to replace it") from error
