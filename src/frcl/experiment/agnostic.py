"""Evaluation where no task is named: accuracy over all labels, the inferred task, and novelty. See docs/metrics.md."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from frcl.data.tasks import Benchmark
from frcl.errors import TaskError
from frcl.experiment.metrics import Scores, auroc, judge, means, score
from frcl.learners.types import Learner, Prediction


@dataclass(frozen=True)
class AgnosticRow:
    """After one task: accuracy on each task so far, and means over them; None where not available."""

    accuracy: list[float]
    scores: Scores
    task_accuracy: float | None  # share of inputs whose most probable task is the right one
    novelty_auroc: float | None  # novelty of inputs of the next task against those of the tasks so far


def agnostic_row(learner: Learner, benchmark: Benchmark, tasks: list[int], *, whole: bool) -> AgnosticRow | None:
    """Scores without a task on the test data so far; None where the tasks have no common targets.

    `tasks` has the number of the learner's task for each task of the benchmark. Only with `whole` are likelihood and
    calibration computed.
    """
    rows, found, right, seen = [], [], [], []
    for on, task in enumerate(tasks):
        split = benchmark.test_split(on)
        try:
            p = learner.predict(split.x)
        except TaskError:
            return None
        rows.append(score(p, split.y))
        found.append(judge(p, split.y) if whole else Scores(rows[-1]))
        if p.task_probs is not None:
            right.append(float((p.task_probs.argmax(1) == task).double().mean()))
        seen.append(p.novelty)
    area = None
    if len(tasks) < len(benchmark) and all(one is not None for one in seen):
        unseen: Prediction = learner.predict(benchmark.test_split(len(tasks)).x)
        if unseen.novelty is not None:
            area = auroc(torch.cat([one for one in seen if one is not None]), unseen.novelty)
    scores = replace(means(found), calibration=None)
    return AgnosticRow(rows, scores, sum(right) / len(right) if len(right) == len(tasks) else None, area)
