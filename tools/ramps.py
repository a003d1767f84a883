"""Gradual changes between two tasks of MNIST: when the default detector notices them, and what it calls them.

    python tools/ramps.py                    # ramps of 10, 60 and 120 minibatches, splits and permutations
    python tools/ramps.py --stationary 100000   # alarms of the detector alone on a stationary stream, expected_run=10^6

Before the ramp are 100 minibatches of 64 images of the first task, after it 40 of the second. Within it the share of
the second task grows linearly.
"""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path

import torch

import frcl
from frcl.data.streams import read_mnist
from frcl.seeding import fork

BEFORE, AFTER = 100, 40


def stationary(count: int) -> None:
    """Scores, densities of labels and features that do not change."""
    detector, generator = frcl.BoundaryDetector(expected_run=1e6), torch.Generator().manual_seed(0)
    alarms = 0
    for _ in range(count):
        given = torch.randn(32, 67, generator=generator, dtype=torch.float64)
        given[:, 3:] = torch.relu(given[:, 3:] @ torch.eye(64).double())
        found = detector.update(given[:, :2].exp(), log_density=given[:, 2], features=given[:, 3:])
        alarms += found.boundary
    print(f"{alarms} alarms in {count:,} stationary minibatches at expected_run=1,000,000", flush=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--stationary", type=int, default=0)
    parser.add_argument("--families", nargs="+", default=["permuted", "split"])
    parser.add_argument("--lengths", nargs="+", type=int, default=[10, 60, 120])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--expected-run", type=float, default=frcl.BoundaryDetector().expected_run)
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.stationary:
        return stationary(given.stationary)
    spec = importlib.util.spec_from_file_location("returns", Path(__file__).with_name("returns.py"))
    assert spec is not None
    assert spec.loader is not None
    returns = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(returns)
    train, _ = read_mnist()
    for name in given.families:
        for length in given.lengths:
            for seed in range(given.first, given.first + given.seeds):
                batch, generator = returns.family(name, train.x, train.y, seed), fork(seed, f"ramps/{name}/{length}")
                detector = frcl.BoundaryDetector(expected_run=given.expected_run)
                learner = frcl.FRCL(frcl.MLP(784, (100, 100), seed=seed), seed=seed, detector=detector)
                assert learner.detector is not None
                found: list[tuple[int, str]] = []
                for t in range(BEFORE + length + AFTER):
                    share = min(max((t - BEFORE + 1) / (length + 1), 0.0), 1.0)
                    (x, y), (x2, y2) = (batch(task, generator) for task in (0, 1))
                    late = torch.rand(len(x), generator=generator) < share
                    log = learner.observe(torch.where(late[:, None], x2, x), torch.where(late, y2, y))
                    if log.boundary:
                        found.append((t - BEFORE, log.change))
                    elif found:  # what came since may show that a change goes on
                        found[-1] = (found[-1][0], learner.detector.change)
                print(name, f"ramp {length}, seed {seed}: (minibatch from its beginning, change)", found, flush=True)
    return None


if __name__ == "__main__":
    main()
