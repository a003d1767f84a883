"""What a run writes: logs, times, checkpoints and its result; and the base of its observers."""

from __future__ import annotations

import io
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from frcl import files
from frcl.codec import from_json, to_json
from frcl.data.tasks import Benchmark
from frcl.engine.program import Values
from frcl.errors import CheckpointError, FrclError
from frcl.experiment import environment, metrics, results
from frcl.experiment.config import Config, DetectorOptions, to_dict
from frcl.experiment.metrics import BINS, BoundaryScore, Scores, declared_switches, over_seeds, score_boundaries
from frcl.experiment.results import RESULT, Boundaries, CalibrationCurve, Part, Result, Seconds, SeedRecord, StepCurves
from frcl.learners.types import Learner, StepLog

CHECKPOINT, POINTS = "checkpoint.frcl", "points.npz"
CURVE = 400  # rows of the step log that result.json keeps
RATES = ("precision", "recall", "f1")
PATIENCE = 20.0  # a checkpoint waits at least this many times as long as writing the last one took
LOG, PAST_LOG = "log.csv", "kl_past.csv"
WITHOUT_LOG = "without it the run cannot be resumed: put the file back, or run again with --overwrite"
CHUNK = 1 << 20  # bytes
PLACE = {"seed": "%d", "task": "%d", "step": "%d"}
COLUMNS = {
    LOG: PLACE | dict.fromkeys(("loss", "log_likelihood", "kl_now", "kl_past"), "%.7g"),
    PAST_LOG: PLACE | {"past_task": "%d", "kl": "%.7g"},
}


class Interrupted(FrclError):
    """The run was asked to stop; it can be resumed."""


class Observer:
    """Receives the events of a run, and ignores them: the base of progress displays and event writers."""

    def begin(self, config: Config, names: list[str]) -> None: ...
    def step(self, seed: int, task: int, log: StepLog) -> None: ...
    def evaluated(self, seed: int, task: int, row: list[float]) -> None: ...
    def close(self) -> None: ...


@dataclass(frozen=True)
class Written:
    """The part of a log that a checkpoint refers to."""

    length: int = 0  # bytes
    crc32: int = 0

    def and_then(self, content: bytes) -> Written:
        return Written(self.length + len(content), zlib.crc32(content, self.crc32))

    def check(self, path: Path) -> None:
        """Refuse a log that does not begin with this part."""
        found = Written()
        try:
            with files.open_regular(path, sys.maxsize) as file:
                while found.length < self.length and (part := file.read(min(CHUNK, self.length - found.length))):
                    found = found.and_then(part)
        except OSError as error:
            raise CheckpointError(f"cannot read {path}: {error.strerror}; {WITHOUT_LOG}") from error
        if found != self:
            what = "shorter than when it was written" if found.length < self.length else "damaged"
            raise CheckpointError(f"{path} is {what}; {WITHOUT_LOG}")


@dataclass
class Progress:
    """How far a run is: everything in a checkpoint besides the learners."""

    position: int = 0  # finished seeds
    task: int = 0  # finished tasks of the current seeds
    step: int = 0  # steps taken in the current task
    records: list[SeedRecord] = field(default_factory=list)  # one per seed; those of the current seeds are unfinished
    logs: dict[str, Written] = field(default_factory=dict)
    seconds: Seconds = field(default_factory=Seconds)
    started: str = ""
    options: dict[str, Any] = field(default_factory=dict)  # those that decide what is learned

    def check_options(self, config: Config) -> None:
        """Refuse a configuration that would learn something else than the one the run began with."""
        now = {name: value for name, value in to_dict(config).items() if name not in ("device", "data", "run")}
        for name, then in (self.options or now).items():
            if now.get(name) != then:
                here, there = (one if isinstance(one, dict) else {} for one in (now.get(name), then))
                names = [f"{name}.{key}" for key in {**there, **here} if there.get(key) != here.get(key)] or [name]
                raise CheckpointError(f"config.toml has other options than the run: {', '.join(names)}; put them back")
        self.options = now

    def spent(self, part: Part, seconds: float) -> None:
        now = self.seconds
        self.seconds = replace(now, **{part: getattr(now, part) + seconds}, total=now.total + seconds)


class Keeper:
    """Writes the logs and checkpoints of a run to its folder; a resumed run continues them.

    Without a folder nothing is written. With several processes only the first one has a folder.
    """

    def __init__(
        self, config: Config, folder: Path | None, progress: Progress, observer: Observer, stop: Callable[[], bool]
    ) -> None:
        self.config, self.folder, self.progress, self.observer, self._stop = config, folder, progress, observer, stop
        self._saved_at = time.monotonic()
        self._cost = 0.0  # seconds that the last checkpoint took
        progress.check_options(config)
        self._rows: dict[str, list[str]] = {}  # of each log, not written yet
        if folder is None:
            return
        for name in (LOG, PAST_LOG) if config.run.log_past_every else (LOG,):
            written = progress.logs.setdefault(name, Written())
            self._rows[name] = [] if written.length else [",".join(COLUMNS[name])]
            if written.length:
                written.check(folder / name)
            files.write_at(folder / name, b"", written.length)
        files.sync_folder(folder)

    def _log(self, name: str, *row: object) -> None:
        self._rows[name].append(",".join(COLUMNS[name].values()) % row)

    def stepped(self, learners: Mapping[int, Learner], task: int, last: int, taken: Sequence[Sequence[Values]]) -> None:
        """Log the terms of the steps up to number `last`; after it, observe, log past tasks and save where due."""
        if self.folder is None:
            return self.checkpoint_if_due([])
        first = last - len(taken) + 1
        for step, each in enumerate(taken, first):
            for seed, values in zip(learners, each, strict=True):
                self._log(LOG, seed, task, step, *values)
        for seed, values in zip(learners, taken[-1], strict=True):
            self.observer.step(seed, task, StepLog(task, last, *values))
        every = self.config.run.log_past_every
        if every and last // every > (first - 1) // every:
            for seed, learner in learners.items():
                for past, value in enumerate(learner.past_divergences()):
                    self._log(PAST_LOG, seed, task, last, past, value)
        return self.checkpoint_if_due(list(learners.values()))

    def checkpoint_if_due(self, learners: Sequence[Learner]) -> None:
        """Save a checkpoint if the last one is old, also relative to its cost, or if the run was asked to stop."""
        wait = max(self.config.run.checkpoint_seconds, PATIENCE * self._cost)
        if self._stop() or time.monotonic() - self._saved_at > wait:
            self.checkpoint(learners)

    def checkpoint(self, learners: Sequence[Learner]) -> None:
        """Write everything to disk; if the run was asked to stop, stop."""
        if self.folder is not None:
            self._write(self.folder, learners)
        if self._stop():
            raise Interrupted(f"stopped; go on with: frcl resume {self.folder}")

    def _write(self, folder: Path, learners: Sequence[Learner]) -> None:
        begin = time.monotonic()
        for name, rows in self._rows.items():
            content, before = "".join(f"{row}\n" for row in rows).encode(), self.progress.logs[name]
            files.write_at(folder / name, content, before.length)
            self.progress.logs[name] = before.and_then(content)
            rows.clear()
        states = [learner.state_dict() for learner in learners]
        meta = {"progress": to_json(self.progress), "learners": [state["meta"] for state in states]}
        files.save_state(folder / CHECKPOINT, meta, files.side_by_side(states))
        self._saved_at = time.monotonic()
        self._cost = self._saved_at - begin

    @contextmanager
    def timed(self, part: Part) -> Iterator[None]:
        """Add the time spent inside to one of the parts."""
        begin = time.monotonic()
        try:
            yield
        finally:
            self.progress.spent(part, time.monotonic() - begin)

    def result(self, first: Benchmark) -> Result:
        """Write the result of the finished run; `first` is the benchmark of the first seed."""
        config, records = self.config, self.progress.records
        assert self.folder is not None
        R = np.stack([metrics.accuracy_matrix(record.rows) for record in records])
        alone = np.array([record.alone or [np.nan] for record in records])
        scores: dict[str, Any] = {metric.__name__: over_seeds(metric(R)) for metric in metrics.OF_MATRIX}
        for name in ("nll", "brier", "ece", "auroc"):
            scores[name] = over_seeds([getattr(record.final, name) for record in records])
        scores |= _agnostic(records)
        kept = records[0].bytes
        result = Result(
            benchmark=first.name,
            method=config.method,
            seeds=config.seeds,
            tasks=tuple(first.task_names),
            accuracy=R,
            score=records[0].score,
            config=to_dict(config),
            **scores,
            forward_transfer=over_seeds(metrics.forward_transfer(R, alone)),
            calibration=_curve([record.final for record in records]),
            memory_bytes=results.Memory(kept[-1], tuple(np.diff(kept, prepend=0).tolist()), records[0].parts),
            boundaries=_boundaries(config.detector, records) if config.hidden_boundaries else None,
            steps=_step_curves(self.folder / LOG, config.seeds[0]),
            seconds=Seconds(**{part: round(value, 3) for part, value in asdict(self.progress.seconds).items()}),
            peak_memory_bytes=environment.peak_memory(torch.device(config.device)),
            environment=environment.describe(config.device),
            command=f"frcl run --config {self.folder / 'config.toml'}",
            started=self.progress.started,
        )
        results.write_result(self.folder / RESULT, result)
        return result

    def write_points(self, inputs: Sequence[Tensor]) -> None:
        """The inducing inputs of each task, as arrays task_0, task_1, …"""
        if self.folder is None:
            return
        buffer = io.BytesIO()
        arrays: dict[str, Any] = {f"task_{i}": Z.cpu().numpy() for i, Z in enumerate(inputs)}
        np.savez_compressed(buffer, **arrays)
        files.write_atomically(self.folder / POINTS, buffer.getvalue())


def _agnostic(records: Sequence[SeedRecord]) -> dict[str, Any]:
    """The metrics where no task is named; nothing where the tasks have no common targets."""
    if any(len(record.agnostic) < len(record.rows) for record in records):
        return {}
    R = np.stack([metrics.accuracy_matrix(record.agnostic) for record in records])
    novelty = [[value for value in record.novelty_auroc if value is not None] for record in records]
    return {
        "agnostic": R,
        "agnostic_accuracy": over_seeds(metrics.average_accuracy(R)),
        "task_accuracy": over_seeds([record.task_accuracy[-1] for record in records]),
        "agnostic_nll": over_seeds([record.agnostic_final.nll for record in records]),
        "agnostic_ece": over_seeds([record.agnostic_final.ece for record in records]),
        "novelty_auroc": over_seeds([sum(one) / len(one) if one else None for one in novelty]),
    }


def read_checkpoint(folder: Path) -> tuple[Progress, list[dict[str, Any]] | None]:
    """The progress of the run in a folder and the states of its learners; a new progress if there is no checkpoint."""
    path = folder / CHECKPOINT
    if not path.is_file():
        return Progress(), None
    meta, tensors = files.load_state(path)
    try:
        return from_json(Progress, meta["progress"], "progress"), files.apart(meta["learners"], tensors) or None
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise CheckpointError(f"{path} is not the checkpoint of a run: {error!r}") from error


def _curve(scores: Sequence[Scores]) -> CalibrationCurve | None:
    pooled = metrics.means(scores).calibration
    if pooled is None:
        return None
    with np.errstate(invalid="ignore"):
        confidence, accuracy = pooled.confidence / pooled.count, pooled.correct / pooled.count
    edges = tuple(i / BINS for i in range(BINS + 1))
    return CalibrationCurve(edges, tuple(map(int, pooled.count)), confidence, accuracy)


def _boundaries(options: DetectorOptions, records: Sequence[SeedRecord]) -> Boundaries:
    """`acted_on` scores the switches of the learner; with `beside`, `found` and `statistic` are of that second test."""
    first, level, pause = records[0], options.detector().level, options.waits.pause
    tested = [(step, value) for step, value in enumerate(first.statistic) if value is not None]
    acted_on = [score_boundaries(record.true, record.found, level, options.tolerance) for record in records]
    scores = []  # means over seeds; that of the delay over those that found a switch
    for threshold in options.thresholds:
        found = [(one.true, declared_switches(one.statistic, threshold, pause)) for one in records]
        each = [score_boundaries(*pair, threshold, options.tolerance) for pair in found]
        precision, recall, f1 = (sum(getattr(one, name) for one in each) / len(each) for name in RATES)
        delays = [one.delay for one in each if one.delay is not None]
        delay = sum(delays) / len(delays) if delays else None
        scores.append(BoundaryScore(threshold, precision, recall, f1, delay))
    return Boundaries(
        true=tuple(first.true),
        found=tuple(declared_switches(first.statistic, level, pause) if options.beside else first.found),
        threshold=level,
        statistic=np.array([value for _, value in tested]),
        statistic_step=tuple(step for step, _ in tested),
        scores=tuple(scores),
        acted_on={name: over_seeds([getattr(one, name) for one in acted_on]) for name in RATES},
    )


def _step_curves(log: Path, seed: int) -> StepCurves | None:
    """The terms of the objective over the steps of one seed, thinned to about CURVE rows."""
    own = [line for line in log.read_text(encoding="utf-8").splitlines() if line.startswith(f"{seed},")]
    if not own:
        return None
    every = max(1, len(own) // CURVE)
    _, task, step, *terms = zip(*(map(float, line.split(",")) for line in own[::every]), strict=True)
    return StepCurves(every, tuple(map(int, task)), tuple(map(int, step)), *map(np.array, terms))
