"""From the records of all seeds to the result of a run."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from frcl.data.tasks import Benchmark
from frcl.experiment import environment, metrics, results
from frcl.experiment.config import Config, DetectorOptions, to_dict
from frcl.experiment.keeper import LOG, Progress
from frcl.experiment.metrics import BINS, BoundaryScore, Calibration, declared_switches, over_seeds, score_boundaries
from frcl.experiment.results import Boundaries, CalibrationCurve, Result, SeedRecord, StepCurves
from frcl.files import write_atomically

CURVE = 400  # rows of the step log that result.json keeps
RATES = ("precision", "recall", "f1")


def assemble(config: Config, first: Benchmark, progress: Progress, folder: Path) -> Result:
    """The result of the finished run in a folder; `first` is the benchmark of the first seed."""
    records = progress.records
    R = np.stack([metrics.accuracy_matrix(record.rows) for record in records])
    alone = np.array([record.alone or [np.nan] for record in records])
    scores: dict[str, Any] = {metric.__name__: over_seeds(metric(R)) for metric in metrics.OF_MATRIX}
    for name in ("nll", "brier", "ece", "auroc"):
        scores[name] = over_seeds([getattr(record.final, name) for record in records])
    kept = records[0].bytes
    return Result(
        benchmark=first.name,
        method=config.method,
        seeds=config.seeds,
        tasks=tuple(first.task_names),
        accuracy=R,
        score=records[0].score,
        config=to_dict(config),
        **scores,
        forward_transfer=over_seeds(metrics.forward_transfer(R, alone)),
        calibration=_curve([record.final.calibration for record in records]),
        memory_bytes=results.Memory(kept[-1], tuple(np.diff(kept, prepend=0).tolist()), records[0].parts),
        boundaries=_boundaries(config.detector, records) if config.hidden_boundaries else None,
        steps=_step_curves(folder / LOG, config.seeds[0]),
        seconds=results.Seconds(**{part: round(value, 3) for part, value in asdict(progress.seconds).items()}),
        peak_memory_bytes=environment.peak_memory(torch.device(config.device)),
        environment=environment.describe(config.device),
        command=f"frcl run --config {folder / 'config.toml'}",
        started=progress.started,
    )


def _curve(bins: Sequence[Calibration | None]) -> CalibrationCurve | None:
    known = [one for one in bins if one is not None]
    if len(known) < len(bins):
        return None
    pooled = sum(known[1:], known[0])
    with np.errstate(invalid="ignore"):
        confidence, accuracy = pooled.confidence / pooled.count, pooled.correct / pooled.count
    edges = tuple(i / BINS for i in range(BINS + 1))
    return CalibrationCurve(edges, tuple(map(int, pooled.count)), confidence, accuracy)


def _boundaries(options: DetectorOptions, records: Sequence[SeedRecord]) -> Boundaries:
    """`acted_on` scores the switches of the learner; with `beside`, `found` and `statistic` are of that second test."""
    first, true = records[0], [record.true for record in records]
    tested = [(step, value) for step, value in enumerate(first.statistic) if value is not None]

    def replayed(threshold: float) -> list[list[int]]:
        """The switches that a threshold would have declared, by seed."""
        return [declared_switches(record.statistic, threshold, options.pause) for record in records]

    def scores(threshold: float, found: list[list[int]]) -> list[BoundaryScore]:
        return [score_boundaries(*one, threshold, options.tolerance) for one in zip(true, found, strict=True)]

    acted_on = scores(options.threshold, [record.found for record in records])
    return Boundaries(
        true=tuple(first.true),
        found=tuple(replayed(options.threshold)[0] if options.beside else first.found),
        threshold=options.threshold,
        statistic=np.array([value for _, value in tested]),
        statistic_step=tuple(step for step, _ in tested),
        scores=tuple(_mean_score(scores(threshold, replayed(threshold))) for threshold in options.thresholds),
        acted_on=results.Detection(*(over_seeds([getattr(one, name) for one in acted_on]) for name in RATES)),
    )


def _mean_score(each: list[BoundaryScore]) -> BoundaryScore:
    """Means over seeds; that of the delay over those that found a switch."""
    precision, recall, f1 = (sum(getattr(one, name) for one in each) / len(each) for name in RATES)
    delays = [one.delay for one in each if one.delay is not None]
    return BoundaryScore(each[0].threshold, precision, recall, f1, sum(delays) / len(delays) if delays else None)


def _step_curves(log: Path, seed: int) -> StepCurves | None:
    """The terms of the objective over the steps of one seed, thinned to about CURVE rows."""
    with log.open(encoding="utf-8") as file:
        next(file)
        own = [line for line in file if line.startswith(f"{seed},")]
    if not own:
        return None
    every = max(1, len(own) // CURVE)
    _, task, step, *terms = zip(*(map(float, line.split(",")) for line in own[::every]), strict=True)
    return StepCurves(every, tuple(map(int, task)), tuple(map(int, step)), *map(np.array, terms))


def write_points(path: Path, inputs: Sequence[Tensor]) -> None:
    """The inducing inputs of each task, as arrays task_0, task_1, …"""
    buffer = io.BytesIO()
    arrays: dict[str, Any] = {f"task_{i}": Z.cpu().numpy() for i, Z in enumerate(inputs)}
    np.savez_compressed(buffer, **arrays)
    write_atomically(path, buffer.getvalue())
