"""From the records of all seeds to the result of a run."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from frcl.experiment import metrics
from frcl.experiment.config import Config, DetectorOptions, to_dict
from frcl.experiment.metrics import BINS, BoundaryScore, Calibration, declared_switches, over_seeds, score_boundaries
from frcl.experiment.results import Boundaries, CalibrationCurve, Detection, Memory, Result, SeedRecord, StepCurves
from frcl.files import write_atomically

CURVE = 400  # rows of the step log that result.json keeps


def assemble(config: Config, title: str, names: Sequence[str], records: Sequence[SeedRecord], log: Path) -> Result:
    """The result of a run but for time, memory and machine; one record per seed, and the step log."""
    R = np.stack([metrics.accuracy_matrix(record.rows) for record in records])
    alone = np.array([record.alone or [np.nan] for record in records])
    bytes_kept = records[0].bytes
    return Result(
        benchmark=title,
        method=config.method,
        seeds=config.seeds,
        tasks=tuple(names),
        accuracy=R,
        score=records[0].score,
        config=to_dict(config),
        average_accuracy=over_seeds(metrics.average_accuracy(R)),
        accuracy_after_learning=over_seeds(metrics.accuracy_after_learning(R)),
        backward_transfer=over_seeds(metrics.backward_transfer(R)),
        forgetting=over_seeds(metrics.forgetting(R)),
        forward_transfer=over_seeds(metrics.forward_transfer(R, alone)),
        nll=over_seeds([record.final.nll for record in records]),
        brier=over_seeds([record.final.brier for record in records]),
        ece=over_seeds([record.final.ece for record in records]),
        auroc=over_seeds([record.final.auroc for record in records]),
        calibration=_curve([record.final.calibration for record in records]),
        memory_bytes=Memory(bytes_kept[-1], tuple(np.diff(bytes_kept, prepend=0).tolist()), records[0].parts),
        boundaries=_boundaries(config.detector, records) if config.hidden_boundaries else None,
        steps=step_curves(log, config.seeds[0]),
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
    own = [score_boundaries(one.true, one.found, options.threshold, options.tolerance) for one in records]
    first = records[0]
    tested = [(step, value) for step, value in enumerate(first.statistic) if value is not None]
    beside = declared_switches(first.statistic, options.threshold, options.pause)
    return Boundaries(
        true=tuple(first.true),
        found=tuple(beside if options.beside else first.found),
        threshold=options.threshold,
        statistic=np.array([value for _, value in tested]),
        statistic_step=tuple(step for step, _ in tested),
        scores=tuple(_mean_score(threshold, options, records) for threshold in options.thresholds),
        acted_on=Detection(*(over_seeds([getattr(s, name) for s in own]) for name in ("precision", "recall", "f1"))),
    )


def _mean_score(threshold: float, options: DetectorOptions, records: Sequence[SeedRecord]) -> BoundaryScore:
    """The scores that a threshold would have had, replayed on the recorded statistic; means over seeds."""
    found = [declared_switches(one.statistic, threshold, options.pause) for one in records]
    each = [
        score_boundaries(one.true, steps, threshold, options.tolerance)
        for one, steps in zip(records, found, strict=True)
    ]
    delays = [one.delay for one in each if one.delay is not None]
    precision, recall, f1 = (sum(getattr(s, name) for s in each) / len(each) for name in ("precision", "recall", "f1"))
    return BoundaryScore(threshold, precision, recall, f1, sum(delays) / len(delays) if delays else None)


def step_curves(log: Path, seed: int) -> StepCurves | None:
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
