"""Omniglot as one stream, with every second switch hidden from the detector: what is known afterwards?

    python tools/hidden_switches.py --tasks 6 --steps 200      # shortened
    python tools/hidden_switches.py --tasks 50 --steps 2500    # as in the other tables

During an alphabet whose switch is hidden the detector declares nothing, so that its drawings are learned as more of the
alphabet before, under the same labels. Printed is, for each alphabet, the average accuracy of the alphabets whose tasks
had ended before it, when it begins and when it is over; and of these together with the one whose task was open.
"""

from __future__ import annotations

import argparse
import math

import torch

from frcl import FRCL
from frcl.data.tasks import Benchmark
from frcl.experiment.config import Config, resolve
from frcl.experiment.metrics import score
from frcl.experiment.runner import benchmark_of, new_learner
from frcl.seeding import fork

NEVER = 10**9  # minibatches before the next test


def average(learner: FRCL, benchmark: Benchmark, known: dict[int, int]) -> float:
    """The average test accuracy, in %, of the alphabets in `known`, each in the task of the learner that it maps to."""
    found = []
    for alphabet, task in known.items():
        split = benchmark.test_split(alphabet)
        found.append(score(learner.predict(split.x, task=task), split.y))
    return 100 * sum(found) / len(found) if found else math.nan


def learn(learner: FRCL, config: Config, benchmark: Benchmark, alphabet: int, *, hidden: bool) -> list[int]:
    """Learn an alphabet; returns the minibatches at which a switch was declared."""
    train, detector, found = benchmark.task(alphabet).train, learner.detector, []
    assert detector is not None
    if detector._now.wait == NEVER:
        detector._now.wait = detector.waits.pause
    for t in range(config.learner.steps):
        if hidden:
            detector._now.wait = NEVER
        generator = fork(learner.options.seed, f"stream/{alphabet}/{t}")
        rows = torch.randint(len(train.x), (config.learner.batch_size,), generator=generator)
        found += [t] if learner.observe(train.x[rows], train.y[rows]).boundary else []
    return found


def main() -> None:
    """Print the accuracies."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tasks", type=int, default=6)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--shown", action="store_true", help="hide no switch, to compare")
    given = parser.parse_args()
    torch.set_num_threads(1)
    layer = {"hidden_boundaries": True, "stream": {"tasks": given.tasks}, "learner": {"steps": given.steps}}
    config = resolve("omniglot", {"method": "frcl", **layer})
    benchmark = benchmark_of(config, given.seed)
    learner = new_learner(config, benchmark, given.seed)
    assert isinstance(learner, FRCL)
    known: dict[int, int] = {}  # the task of the learner of each alphabet whose task has ended
    falls = []
    for alphabet in range(given.tasks):
        opened, hidden = learner._state.number, alphabet > 0 and alphabet % 2 == 0
        ended = dict(known)
        whole = ended | ({alphabet - 1: opened} if alphabet else {})
        before = [average(learner, benchmark, one) for one in (ended, whole)]
        found = learn(learner, config, benchmark, alphabet, hidden=hidden and not given.shown)
        after = [average(learner, benchmark, one) for one in (ended, whole)]
        if found and found[0] <= config.detector.tolerance:
            known[alphabet - 1] = opened
        falls += [before[0] - after[0]] if hidden and ended else []
        text = ", ".join(f"{a:.1f} -> {b:.1f} %" for a, b in zip(before, after, strict=True))
        print(f"alphabet {alphabet}{' *' * hidden}: declared at {found}; ended, with the open one: {text}", flush=True)
    if falls:
        mean = sum(falls) / len(falls)
        print(f"in the alphabets * ended tasks fall by {mean:.1f} points on average, at most by {max(falls):.1f}")


if __name__ == "__main__":
    main()
