"""How costs grow with the number of tasks: a step, beginning and ending a task, and predictions without a task.

    python tools/growth.py --tasks 1000 --figure docs/growth.png

Every task has classes of its own: with 10 per task, 1,000 tasks have 10,000 classes. Times are CPU times in
milliseconds, medians of three up to 100 tasks. The exponent p of a time that grows as (number of tasks)^p is measured
over the last factor of ten.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor

from frcl.engine.program import Program
from frcl.engine.train import train
from frcl.features import MLP
from frcl.learners.frcl import FRCL
from frcl.learners.options import PLUS, FRCLOptions
from frcl.options import changed
from frcl.seeding import fork

MEASURES = ("step", "begin a task", "end a task", "predict, first", "predict, again", "predict in a task", "state_dict")
STEPS = 20


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--tasks", type=int, default=1000)
    parser.add_argument("--classes", type=int, default=10, help="of each task")
    parser.add_argument("--points", type=int, default=20)
    parser.add_argument("--inputs", type=int, default=100, help="that are predicted")
    parser.add_argument("--memory", help="a bound on the memory of all tasks together")
    parser.add_argument("--plus", action="store_true", help="FRCL+ instead of FRCL")
    parser.add_argument("--figure", type=Path, help="file of a figure")
    return parser.parse_args()


def seconds(work: Callable[[], object]) -> float:
    begin = time.thread_time()
    work()
    return time.thread_time() - begin


def task_data(number: int, classes: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    y = torch.arange(200) % classes
    x = 2.0 * torch.randn(classes, 64, generator=generator)[y] + torch.randn(200, 64, generator=generator)
    return x, y + number * classes


def measure(learner: FRCL, x: Tensor, y: Tensor, inputs: Tensor) -> list[float]:
    """Milliseconds of everything in MEASURES with the tasks that the learner has."""
    times: dict[str, list[float]] = {name: [] for name in MEASURES}
    repeats = 3 if len(learner.tasks) <= 100 else 1
    for _ in range(repeats):
        work = learner.learn(x, y)
        programs: list[Program] = []
        times["begin a task"].append(seconds(lambda: programs.append(next(work))))  # type: ignore[arg-type]  # noqa: B023
        programs[0].stop = sys.maxsize
        steps = train(programs)
        deque(islice(steps, STEPS), maxlen=0)
        times["step"].append(seconds(lambda: deque(islice(steps, STEPS), maxlen=0)) / STEPS)  # noqa: B023
        work.close()
        learner.abandon_task()
        with torch.no_grad():
            next(learner.net.parameters()).add_(0.0)  # so that nothing that was computed before is used again
        times["predict, first"].append(seconds(lambda: learner.predict(inputs)))
        times["predict, again"].append(seconds(lambda: learner.predict(inputs)))
        times["predict in a task"].append(seconds(lambda: learner.predict(inputs, task=0)))
        times["state_dict"].append(seconds(learner.state_dict))
    before = learner._state
    times["end a task"] = []
    for _ in range(repeats):
        work = learner.learn(x, y)
        program = next(work)
        assert isinstance(program, Program)
        program.stop = 1
        deque(train([program]), maxlen=0)
        times["end a task"].append(seconds(lambda: deque(work, maxlen=0)))  # noqa: B023
        learner._state = before
    return [1000 * statistics.median(times[name]) for name in MEASURES]


def learned(given: argparse.Namespace) -> dict[int, list[float]]:
    """The times by number of tasks: 1, 3, 10, 30, ..."""
    base = changed(PLUS if given.plus else FRCLOptions(), {
        "points": given.points, "steps": 1, "batch_size": 64, "past_tasks_per_step": 1, "selection": "random",
        "fisher_examples": 10, "memory": given.memory,
    })  # fmt: skip
    learner, generator = FRCL(MLP(64, (64, 64)), options=base), fork(0, "growth")
    marks = [n for k in range(4) for n in (10**k, 3 * 10**k) if n < given.tasks] + [given.tasks]
    found = {}
    for number in range(given.tasks):
        x, y = task_data(number, given.classes, generator)
        learner.fit(x, y)
        if number + 1 in marks:
            found[number + 1] = measure(learner, *task_data(number + 1, given.classes, generator), x[: given.inputs])
            print(f"{number + 1} tasks", *map("{:.2f}".format, found[number + 1]), file=sys.stderr)
    return found


def exponent(found: dict[int, list[float]], measure: int) -> float:
    last = max(found)
    first = max((n for n in found if 10 * n <= last), default=min(found))
    return math.log(found[last][measure] / found[first][measure]) / math.log(last / first) if first < last else math.nan


def draw(found: dict[int, list[float]], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.subplots()
    for i, name in enumerate(MEASURES):
        axes.loglog(list(found), [times[i] for times in found.values()], marker="o", markersize=3, label=name)
    ends = [min(found), max(found)]
    axes.loglog(ends, [0.5 * n / ends[0] for n in ends], color="grey", linestyle=":", label="proportional to tasks")
    axes.set_xlabel("tasks")
    axes.set_ylabel("milliseconds")
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=110)


def main() -> None:
    given = arguments()
    torch.set_num_threads(1)
    found = learned(given)
    print(f"| tasks | classes | {' | '.join(MEASURES)} |\n|{' --- |' * (len(MEASURES) + 2)}")
    for tasks, times in found.items():
        cells = [f"{value:.3g}" if value < 100 else f"{value:,.0f}" for value in times]
        print(f"| {tasks:,} | {tasks * given.classes:,} | {' | '.join(cells)} |")
    print(f"| exponent | | {' | '.join(f'{exponent(found, i):.2f}' for i in range(len(MEASURES)))} |")
    if given.figure is not None:
        draw(found, given.figure)


if __name__ == "__main__":
    main()
