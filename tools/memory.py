"""Accuracy against total memory: without a bound, and with bounds where points are dropped by the trace or at random.

    python tools/memory.py permuted-mnist --tasks 20 --steps 500 --seeds 0 1 --out runs/memory-permuted

A bound is given in tasks: 10 are the bytes that ten tasks take without one. The folder has one file per run, so that
the command can be repeated after an interruption. The table is printed in Markdown, with means over the seeds; the last
column is the difference to random points in accuracy on all tasks, its mean over the seeds and the least of them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

import torch

from frcl.data import open_benchmark
from frcl.data.options import BenchmarkOptions
from frcl.experiment import runner
from frcl.experiment.config import resolve
from frcl.files import write_atomically
from frcl.learners.frcl import FRCL
from frcl.learners.options import FRCLOptions
from frcl.options import changed


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("benchmark")
    parser.add_argument("--method", default="frcl")
    parser.add_argument("--tasks", type=int, default=20)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--bounds", type=float, nargs="+", default=[10.0, 3.0, 1.0, 0.3])
    parser.add_argument("--drop", nargs="+", default=["trace", "random"])
    parser.add_argument("--growth", type=float, default=0.0)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


def learned(given: argparse.Namespace, seed: int, **options: Any) -> dict[str, Any]:
    """Accuracy on every task when half of the tasks are learned and when all are, with bytes and points kept."""
    layer = {"method": given.method, "learner": {"steps": given.steps, "past_tasks_per_step": 1}}
    config = resolve(given.benchmark, layer)
    permuted = {"permutations": given.tasks} if given.benchmark.startswith("permuted") else {"tasks": given.tasks}
    benchmark = open_benchmark(given.benchmark, BenchmarkOptions(**permuted), seed=seed)
    assert isinstance(config.learner, FRCLOptions)
    chosen = changed(config.learner, {"seed": seed, **options})
    learner = FRCL(runner.build_network(config.network, benchmark.input_shape, seed), options=chosen)
    found: dict[str, Any] = {"bytes": [], "points": [], "half": [], "all": []}
    for number in range(len(benchmark)):
        task = benchmark.task(number)
        learner.fit(task.train.x, task.train.y, size=task.size)
        found["bytes"].append(learner.memory_bytes())
        found["points"].append([len(one.Z) for one in learner.tasks])
        for name, last in (("half", given.tasks // 2), ("all", given.tasks)):
            if number + 1 == last:
                tests = [benchmark.test_split(k) for k in range(last)]
                right = [learner.predict(test.x, k).labels == test.y for k, test in enumerate(tests)]
                found[name] = [float(one.double().mean()) for one in right]
        print(f"seed {seed} {options} task {number}: {found['bytes'][-1]:,} bytes", file=sys.stderr, flush=True)
    return found


def kept(given: argparse.Namespace, name: str, seed: int, **options: Any) -> dict[str, Any]:
    """The result of a run, from its file if there is one."""
    path = given.out / f"{name}-seed{seed}.json"
    if not path.exists():
        write_atomically(path, (json.dumps(learned(given, seed, **options)) + "\n").encode())
    result: dict[str, Any] = json.loads(path.read_text())
    return result


def accuracies(found: dict[str, Any]) -> list[float]:
    """In %: on the first half of the tasks after them and after all, and on all."""
    half = len(found["half"])
    return [100 * statistics.mean(part) for part in (found["half"], found["all"][:half], found["all"])]


def row(name: str, drop: str, runs: list[dict[str, Any]], beside: list[dict[str, Any]]) -> str:
    means = [statistics.mean(part) for part in zip(*map(accuracies, runs), strict=True)]
    points = [count for one in runs for count in one["points"][-1]]
    size = statistics.mean(one["bytes"][-1] for one in runs)
    cells = [name, drop, f"{size / 1e6:.2f} MB", f"{min(points)}–{max(points)}", *(f"{mean:.1f}" for mean in means)]
    gains = [accuracies(one)[2] - accuracies(other)[2] for one, other in zip(runs, beside, strict=False)]
    least = f" (≥ {min(gains):+.1f})" if len(gains) > 1 else ""
    cells.append(f"{statistics.mean(gains):+.1f}{least}" if gains else "–")
    return f"| {' | '.join(cells)} |"


def main() -> None:
    given = arguments()
    torch.set_num_threads(1)
    given.out.mkdir(parents=True, exist_ok=True)
    free = [kept(given, "unbounded", seed) for seed in given.seeds]
    half, rows = given.tasks // 2, [row("none", "–", free, [])]
    for bound in given.bounds:
        runs: dict[str, list[dict[str, Any]]] = {}
        for drop in given.drop:
            options = {"memory_drop": drop, "memory_growth": given.growth}
            memory = [int(bound * one["bytes"][-1] / given.tasks) for one in free]
            each = zip(given.seeds, memory, strict=True)
            name = f"{bound:g}-{given.growth:g}-{drop}"
            runs[drop] = [kept(given, name, seed, memory=size, **options) for seed, size in each]
        for drop, found in runs.items():
            beside = runs.get("random", []) if drop != "random" else []
            rows.append(row(f"{bound:g} tasks", drop, found, beside))
    heads = ("bound", "dropped by", "kept", "points per task", f"{half} tasks, after {half}")
    print(f"| {' | '.join([*heads, f'the same, after {given.tasks}', f'all {given.tasks}', 'above random'])} |")
    print("|" + " --- |" * 8, *rows, sep="\n")


if __name__ == "__main__":
    main()
