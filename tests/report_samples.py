"""Run folders made up from a seed, in the format of a real run, to test reports on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

SCRIPT = "<script>alert(1)</script>"
TASKS = ["0/1", "2/3", "4/5", "6/7", "8/9"]


def over_seeds(values: list[float]) -> dict[str, Any]:
    """As the runner writes a metric: mean, sample std and Student's 95 % interval."""
    from scipy.stats import t

    data, n = np.array(values), len(values)
    if n == 1:
        return {"mean": values[0], "std": None, "low": None, "high": None, "per_seed": values}
    mean, std = float(data.mean()), float(data.std(ddof=1))
    half = float(t.ppf(0.975, n - 1) * std / np.sqrt(n))
    return {"mean": mean, "std": std, "low": mean - half, "high": mean + half, "per_seed": values}


def accuracy(rng: np.random.Generator, seeds: int, tasks: int, loss: float) -> list[list[list[float | None]]]:
    """Lower triangles; each task loses about `loss` with each later one. Never symmetric."""
    found = []
    for _ in range(seeds):
        start = rng.uniform(0.962, 0.999, tasks)
        drop = loss * rng.uniform(0.3, 1.7, (tasks, tasks)).cumsum(0)
        rows: list[list[float | None]] = []
        for i in range(tasks):
            done = [float(np.clip(start[j] - (drop[i, j] - drop[j, j]), 0, 1)) for j in range(i + 1)]
            rows.append([*done, *[None] * (tasks - i - 1)])
        found.append(rows)
    return found


def steps(rng: np.random.Generator, tasks: int, every: int = 10, length: int = 400) -> dict[str, Any]:
    """A step log whose terms add up to the loss."""
    log: dict[str, Any] = {"every": every, "task": [], "step": []}
    log |= {"loss": [], "log_likelihood": [], "kl_now": [], "kl_past": []}
    for task in range(tasks):
        for step in range(0, length, every):
            likelihood = -(0.02 + 0.67 * np.exp(-step / 60)) * rng.uniform(0.8, 1.25)
            now = 0.012 * (1 - np.exp(-step / 90)) + 1e-5
            past = 0.004 * task * rng.uniform(0.7, 1.3)
            row = {"task": task, "step": task * length + step, "log_likelihood": likelihood, "kl_now": now}
            row |= {"kl_past": past, "loss": -likelihood + now + past}
            for key, value in row.items():
                log[key].append(float(value) if isinstance(value, np.floating) else value)
    return log


def boundaries(rng: np.random.Generator, tasks: int, length: int = 400) -> dict[str, Any]:
    """One peak at each switch, of which the last is missed."""
    true = [length * task for task in range(1, tasks)]
    at = list(range(20, tasks * length, 4))
    statistic: list[float | None] = [float(abs(value)) for value in rng.normal(0, 1.1, len(at))]
    for place, switch in enumerate(true):
        statistic[at.index(switch)] = 3.2 if place == tasks - 2 else float(rng.uniform(8, 19))
        statistic[at.index(switch) + 1] = None
    scores = [
        {"threshold": 2.0, "precision": 0.41, "recall": 1.0, "f1": 0.58, "delay": 0.0},
        {"threshold": 5.0, "precision": 1.0, "recall": 0.75, "f1": 0.857, "delay": 0.0},
        {"threshold": 25.0, "precision": 0.0, "recall": 0.0, "f1": 0.0, "delay": None},
    ]
    return {
        "true": true,
        "found": true[:-1],
        "threshold": 5.0,
        "statistic": statistic,
        "statistic_step": at,
        "scores": scores,
        "acted_on": {name: over_seeds([1.0, 0.75, 0.5]) for name in ("precision", "recall", "f1")},
    }


def calibration(rng: np.random.Generator) -> dict[str, Any]:
    """Ten bins, the first four empty, as for binary tasks with a floor of a half."""
    edges = [place / 10 for place in range(11)]
    count = [0, 0, 0, 0, 0, 38, 51, 77, 143, 2381]
    confidence = [None if n == 0 else edges[b] + 0.05 for b, n in enumerate(count)]
    right = [None if c is None else float(np.clip(c + rng.normal(0, 0.03), 0, 1)) for c in confidence]
    return {"edges": edges, "count": count, "confidence": confidence, "accuracy": right}


def result(
    method: str = "frcl",
    benchmark: str = "split-digits",
    *,
    seeds: int = 3,
    tasks: list[str] | None = None,
    loss: float = 0.004,
    uncertain: bool = True,
    hidden: bool = False,
    root: int = 0,
    points: int = 40,
) -> dict[str, Any]:
    """The content of a `result.json`. `uncertain`: the method has variances; `hidden`: boundaries are detected."""
    rng = np.random.default_rng(root)
    tasks = tasks or TASKS
    matrix = accuracy(rng, seeds, len(tasks), loss)
    last = [[value for value in square[-1] if value is not None] for square in matrix]
    learned = [[square[j][j] or 0.0 for j in range(len(tasks))] for square in matrix]
    change = [[a - b for a, b in zip(x, y, strict=True)][:-1] for x, y in zip(last, learned, strict=True)]
    some = len(tasks) > 1
    sure = {key: over_seeds(rng.uniform(*span, seeds).tolist()) for key, span in SPANS.items()}
    return {
        "format": "frcl-result",
        "version": 1,
        "benchmark": benchmark,
        "method": method,
        "config": {
            "method": {"points": points, "search": "swap", "note": SCRIPT},
            "network": {"hidden": [64, 64]},
            "data": {"folder": 'a "quoted" & <odd> folder'},
            "steps": 400,
            "seeds": seeds,
        },
        "seeds": list(range(seeds)),
        "tasks": tasks,
        "score": "accuracy",
        "accuracy": matrix,
        "average_accuracy": over_seeds([float(np.mean(each)) for each in last]),
        "accuracy_after_learning": over_seeds([float(np.mean(each)) for each in learned]),
        "backward_transfer": over_seeds([float(np.mean(each)) for each in change]) if some else None,
        "forward_transfer": None,
        "forgetting": over_seeds([-float(np.mean(each)) for each in change]) if some else None,
        **(sure if uncertain else dict.fromkeys(SPANS)),
        "calibration": calibration(rng) if uncertain else None,
        "memory_bytes": {
            "total": 52_340 * len(tasks),
            "per_task": [52_340] * len(tasks),
            "parts": {"points": 10_240 * len(tasks), "posterior": 42_100 * len(tasks)},
        },
        "seconds": {"train": 31.42, "select": 6.1, "evaluate": 1.25, "total": 40.5},
        "peak_memory_bytes": 412_300_100,
        "steps": steps(rng, len(tasks)),
        "boundaries": boundaries(rng, len(tasks)) if hidden else None,
        "environment": {
            "python": "3.11.7",
            "torch": "2.13.0",
            "numpy": "2.4.6",
            "platform": "Linux x86_64",
            "device": "cpu",
            "threads": "2",
            "frcl": "0.1.0",
            "commit": "0123abc",
        },
        "command": f"frcl run {benchmark} --method {method} --seeds {seeds} --out 'runs/<b>x</b>'",
        "started": "2025-03-04T10:20:30+00:00",
    }


SPANS = {"nll": (0.05, 0.07), "brier": (0.02, 0.03), "ece": (0.008, 0.013), "auroc": (0.93, 0.97)}


def digits_points(tasks: int, points: int) -> dict[str, np.ndarray]:
    """Real 8×8 digits as inducing inputs, flat."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    return {
        f"task_{task}": (images[np.isin(labels, (2 * task % 10, 2 * task % 10 + 1))][:points] / 16).astype(np.float32)
        for task in range(tasks)
    }


def without_the_task(content: dict[str, Any]) -> dict[str, Any]:
    """The same result, with what is predicted where no task is named: ten points worse."""
    matrix = [[[a and a - 0.1 for a in row] for row in square] for square in content["accuracy"]]
    last = over_seeds([float(np.mean(square[-1])) for square in matrix])
    scores = {"agnostic_nll": over_seeds([0.3] * len(matrix)), "agnostic_ece": over_seeds([0.05] * len(matrix))}
    return content | {"agnostic": matrix, "agnostic_accuracy": last, "task_accuracy": last} | scores


def write_run(folder: Path, content: dict[str, Any], arrays: dict[str, np.ndarray] | None = None) -> Path:
    """A run folder on disk."""
    folder.mkdir(parents=True)
    (folder / "result.json").write_text(json.dumps(content), encoding="utf-8")
    (folder / "config.toml").write_text("steps = 400\n", encoding="utf-8")
    if arrays is not None:
        np.savez(folder / "points.npz", **arrays)
    return folder


def rich_run(folder: Path) -> Path:
    """A run with everything: boundaries, uncertainty, images, and names that need escaping."""
    tasks = ["0/1", "2/3", SCRIPT, "6 & 7", '8 "nine"']
    return write_run(folder, without_the_task(result(tasks=tasks, hidden=True)), digits_points(5, 40))


def bare_run(folder: Path) -> Path:
    """Another method on the same benchmark: no variances, no step log, no points."""
    content = result("ewc", loss=0.03, uncertain=False, root=1)
    return write_run(folder, content | {"steps": None, "memory_bytes": {"total": 91_200, "per_task": []}})
