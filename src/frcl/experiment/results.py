"""result.json: what a run found, in a form that people and programs can repeat and compare."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from frcl.experiment.config import Config, to_dict
from frcl.experiment.metrics import (
    AccuracyMatrix,
    Calibration,
    declared_switches,
    over_seeds,
    score_boundaries,
)
from frcl.files import write_atomically

FORMAT, VERSION = "frcl-result", 1
MEASURED = ("seconds", "peak_memory_bytes", "environment", "command", "started")  # differ between equal runs
CURVE = 400  # rows of the step log that result.json keeps


def assemble(config: Config, title: str, names: Sequence[str], records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Everything about the run but what was measured on the clock; `records` has one entry a seed."""
    matrices = [_matrix(record, len(names)) for record in records]
    result: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "benchmark": title,
        "method": config.method,
        "config": to_dict(config),
        "seeds": list(config.seeds),
        "tasks": list(names),
        "score": records[0]["score"],
        "accuracy": [matrix.to_json() for matrix in matrices],
        "average_accuracy": over_seeds([m.average() for m in matrices]),
        "accuracy_after_learning": over_seeds([m.after_learning() for m in matrices]),
        "backward_transfer": over_seeds([m.backward_transfer() for m in matrices]),
        "forgetting": over_seeds([m.forgetting() for m in matrices]),
        "forward_transfer": over_seeds(
            [m.forward_transfer(r["alone"]) if r["alone"] else None for m, r in zip(matrices, records, strict=True)]
        ),
        "calibration": _pooled([record["final"]["calibration"] for record in records]),
        "memory_bytes": _memory(records[0]),
        "boundaries": _boundaries(config, records) if config.hidden_boundaries else None,
    }
    for name in ("nll", "brier", "ece", "auroc"):
        result[name] = over_seeds([record["final"][name] for record in records])
    return result


def _matrix(record: dict[str, Any], tasks: int) -> AccuracyMatrix:
    matrix = AccuracyMatrix(tasks)
    for row in record["rows"]:
        matrix.append(row)
    return matrix


def _memory(record: dict[str, Any]) -> dict[str, Any]:
    """Bytes kept by one seed; a record of an older run has no kinds."""
    totals = record["bytes"]
    return {"total": totals[-1], "per_task": _steps_of(totals), "parts": record.get("parts", {})}


def _steps_of(totals: Sequence[int]) -> list[int]:
    """Bytes that each task added."""
    return [now - before for before, now in zip([0, *totals[:-1]], totals, strict=True)]


def _pooled(parts: Sequence[list[list[float]] | None]) -> dict[str, Any] | None:
    if any(part is None for part in parts):
        return None
    bins = [Calibration(*(torch.tensor(column, dtype=torch.float64) for column in part)) for part in parts if part]
    return sum(bins[1:], bins[0]).to_json()


def _boundaries(config: Config, records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """True and found switches and the statistic of the first seed; scores as means over seeds.

    With a test beside, `found` and `statistic` are that one's; `acted_on` tells of what the learner did in any case.
    """
    options = config.detector
    scores = []
    for threshold in options.thresholds:
        each = [
            score_boundaries(
                record["true"],
                declared_switches(record["statistic"], threshold, options.pause),
                threshold,
                options.tolerance,
            )
            for record in records
        ]
        delays = [one.delay for one in each if one.delay is not None]
        mean = {name: sum(getattr(one, name) for one in each) / len(each) for name in ("precision", "recall", "f1")}
        scores.append({"threshold": threshold, **mean, "delay": sum(delays) / len(delays) if delays else None})
    own = [score_boundaries(r["true"], r["found"], options.threshold, options.tolerance) for r in records]
    first = records[0]
    beside = declared_switches(first["statistic"], options.threshold, options.pause) if options.beside else None
    return {
        "true": first["true"],
        "found": first["found"] if beside is None else beside,  # by the test whose statistic is shown
        "threshold": options.threshold,
        "statistic": [value for value in first["statistic"] if value is not None],
        "statistic_step": [step for step, value in enumerate(first["statistic"]) if value is not None],
        "scores": scores,
        "acted_on": {name: over_seeds([getattr(one, name) for one in own]) for name in ("precision", "recall", "f1")},
    }


def step_curves(log: Path, seed: int) -> dict[str, Any] | None:
    """The terms of the objective over the steps of one seed, thinned to about CURVE rows."""
    with log.open(encoding="utf-8") as file:
        names = next(file).rstrip().split(",")
        own = [line for line in file if line.startswith(f"{seed},")]
    if not own:
        return None
    every = max(1, len(own) // CURVE)
    columns = dict(zip(names, zip(*(line.rstrip().split(",") for line in own[::every]), strict=True), strict=True))
    numbers = ("loss", "log_likelihood", "kl_now", "kl_past")
    curves: dict[str, Any] = {"every": every}
    curves |= {name: [int(value) for value in columns[name]] for name in ("task", "step")}
    return curves | {name: [float(value) for value in columns[name]] for name in numbers}


def write_json(path: Path, value: dict[str, Any]) -> None:
    write_atomically(path, (json.dumps(value, indent=1, allow_nan=False) + "\n").encode())


def write_points(path: Path, inputs: Sequence[Tensor]) -> None:
    """The inducing inputs of each task, as arrays task_0, task_1, …"""
    import io

    buffer = io.BytesIO()
    arrays: dict[str, Any] = {f"task_{i}": Z.cpu().numpy() for i, Z in enumerate(inputs)}
    np.savez_compressed(buffer, **arrays)
    write_atomically(path, buffer.getvalue())
