"""The mean run length of the sequential test on stationary streams: the tables of `frcl.boundary.sequential`.

    python tools/run_length.py             # the tables
    python tools/run_length.py --check     # the mean run length at the levels for 1,000 and 10,000
    python tools/run_length.py --inputs 1000 --streams 200   # of the test of the inputs, and of a detector

The table is the mean over the kinds of streams of log₁₀ of the run length. A run that is not over after
`steps` minibatches is counted with that time: run length = time of all runs / number of alarms.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator

import numpy as np
import torch

from frcl import BoundaryDetector
from frcl.boundary import sequential
from frcl.boundary.profile import InputTest
from frcl.boundary.sequential import Floats, SequentialTest, log_run_length

BATCH = 64
Stream = Callable[
    [int], tuple[Floats, Floats]
]  # minibatch number -> mean scores [S, 1], variance within the minibatch [S]


def _stream(kind: str, streams: int, seed: int) -> Stream:
    """Stationary streams: means of a minibatch of BATCH scores of variance 1."""
    rng = np.random.default_rng(seed)
    level = rng.standard_normal(streams) / math.sqrt(BATCH)

    def noise() -> Floats:
        heavy = rng.standard_t(3, streams) / math.sqrt(3) if kind == "heavy-tailed" else None
        return (rng.standard_normal(streams) if heavy is None else heavy) / math.sqrt(BATCH)

    def minibatch(t: int) -> tuple[Floats, Floats]:
        nonlocal level
        mean = noise()
        if kind == "dependent":  # an AR(1) process beside the noise of sampling
            level = 0.6 * level + 0.8 * rng.standard_normal(streams) / math.sqrt(BATCH)
            mean = mean + level
        elif kind == "drifting":
            mean = mean - 0.05 * t / math.sqrt(BATCH)
        elif kind == "learning":
            mean = mean + (60 * (1 - math.exp(-t / 30)) - 40 * (1 - math.exp(-t / 400))) / math.sqrt(BATCH)
        return mean[:, None], rng.chisquare(BATCH - 1, streams) / (BATCH - 1)

    return minibatch


KINDS = ("normal", "heavy-tailed", "dependent", "drifting")


def run_lengths(kind: str, levels: Floats, *, streams: int, steps: int, seed: int = 0) -> tuple[Floats, Floats]:
    """Mean run length until the statistic exceeds each level, and the number of alarms that it comes from."""
    test, stream = SequentialTest(streams), _stream(kind, streams, seed)
    first = np.full((len(levels), streams), steps)  # minibatches until the first alarm
    over = np.zeros((len(levels), streams), bool)
    for t in range(steps):
        statistic = test.update(*stream(t), BATCH)
        alarm = (statistic > levels[:, None]) & ~over
        first[alarm] = t + 1
        over |= alarm
    alarms = over.sum(1).astype(np.float64)
    return first.sum(1) / np.maximum(alarms, 1), alarms


# -- the test of the inputs, and a whole detector -----------------------------------------------------------------

RHO = 0.6  # of the level of dependent inputs, whose variance is that of the mean of a minibatch
INPUT_KINDS = ("independent", "dependent")


def input_minibatches(kind: str, seed: int, numbers: int = 12, batch: int = 32) -> Iterator[Floats]:
    """Stationary inputs [batch, numbers], without an end; "dependent": an AR(1) level that they have in common."""
    rng, level = np.random.default_rng(seed), np.zeros(numbers)
    while True:
        if kind == "dependent":
            level = RHO * level + math.sqrt((1 - RHO**2) / batch) * rng.standard_normal(numbers)
        yield np.tanh(rng.standard_normal((batch, numbers)) + level)


def input_run_length(kind: str, level: float, *, streams: int, steps: int, seed: int = 0) -> tuple[float, int]:
    """Mean run length of the test of the inputs at a level, and the number of alarms."""
    total = alarms = 0
    for stream in range(streams):
        test, inputs = InputTest(12), input_minibatches(kind, seed + stream)
        for t in range(steps):
            features = next(inputs)
            total += 1
            if t and test.test(features) > level:
                alarms += 1
                break
            test.learn(features)
    return total / max(alarms, 1), alarms


def detector_run_length(kind: str, promised: float, *, streams: int, steps: int, seed: int = 0) -> tuple[float, int]:
    """The same of a detector that tests scores, labels and inputs of stationary streams."""
    total = alarms = 0
    for stream in range(streams):
        detector, inputs = BoundaryDetector(expected_run=promised), input_minibatches(kind, seed + stream)
        rng = np.random.default_rng(10**6 + seed + stream)
        for _ in range(steps):
            given = torch.from_numpy(rng.standard_normal((32, 3)))
            total += 1
            found = detector.update(
                given[:, :2].exp(), log_density=given[:, 2], features=torch.from_numpy(next(inputs))
            )
            if found.boundary:
                alarms += 1
                break
    return total / max(alarms, 1), alarms


def null_variance(streams: int, steps: int) -> Floats:
    """Variance of the sums over √w for independent normal scores."""
    test, stream = SequentialTest(streams), _stream("normal", streams, 1)
    total, count = np.zeros(len(sequential.WINDOWS)), 0
    for t in range(steps):
        test.update(*stream(t), BATCH)
        if t > steps // 4:
            sums = np.cumsum(test.scores[:, ::-1], 1)
            total += [(sums[:, w - 1] ** 2).mean() / w for w in sequential.WINDOWS]
            count += 1
    return total / count


def level_of(promised: float) -> float:
    """The statistic whose run length is promised."""
    grid = np.linspace(1, 8, 70_001)
    return float(grid[np.searchsorted(log_run_length(grid), math.log10(promised))])


def of_inputs(promised: float, streams: int) -> None:
    """Print the run lengths of the test of the inputs, and of a detector with all three tests."""
    torch.set_num_threads(1)
    for kind in INPUT_KINDS:
        for name, found in (
            ("inputs alone", input_run_length(kind, level_of(promised), streams=streams, steps=int(2 * promised))),
            ("detector", detector_run_length(kind, promised, streams=streams, steps=int(2 * promised))),
        ):
            print(f"{kind}, {name}: {found[0]:.0f} for a promise of {promised:.0f} ({found[1]} alarms)", flush=True)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--streams", type=int, default=400)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--kinds", nargs="+", default=[*KINDS])
    parser.add_argument("--inputs", type=float, default=0.0, metavar="PROMISE")
    given = parser.parse_args()
    if given.inputs:
        of_inputs(given.inputs, given.streams)
        return
    if given.check:
        levels = np.array([level_of(promised) for promised in (1e3, 1e4)])
    else:
        print("NULL_VARIANCE", np.round(null_variance(given.streams, 3000), 2).tolist())
        levels = np.arange(2.0, 4.6, 0.25)
    each = []
    for kind in given.kinds:
        mean, alarms = run_lengths(kind, levels, streams=given.streams, steps=given.steps)
        print(
            kind,
            [f"{level:.2f}: {run:.0f} ({count:.0f})" for level, run, count in zip(levels, mean, alarms, strict=True)],
            flush=True,
        )
        each.append(np.where(alarms > 30, np.log10(mean), np.nan))
    print("RUN_LENGTH", [(float(a), round(float(b), 2)) for a, b in zip(levels, np.mean(each, 0), strict=True)])


if __name__ == "__main__":
    main()
