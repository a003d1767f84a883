"""Two real streams, predicted first and learned afterwards, beside scikit-learn's SGDClassifier.

    python tools/real_streams.py gas DATA --seeds 5      # eight batches of months, rows shuffled within a batch
    python tools/real_streams.py electricity DATA        # no marked tasks

DATA is the folder with gas_sensor_drift.npz (features, gas, batch) and elec2.csv.gz (the class last).
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import SGDClassifier
from sklearn.preprocessing import StandardScaler

import frcl
from frcl.experiment.prequential import RunningScaler, evaluate
from frcl.experiment.tracking import Tracker

BATCH = 32


def gas(folder: Path, seed: int) -> tuple[Any, Any, list[int] | None]:
    """Inputs, labels, and the minibatches at which a batch of months begins."""
    data = np.load(folder / "gas_sensor_drift.npz")
    rng = np.random.default_rng(seed)
    order = np.concatenate([rng.permutation(np.nonzero(data["batch"] == b)[0]) for b in np.unique(data["batch"])])
    starts = np.nonzero(np.diff(data["batch"][order].astype(int)))[0] + 1
    return data["features"][order], data["gas"][order].astype(int), [int(row) // BATCH for row in starts]


def electricity(folder: Path, seed: int) -> tuple[Any, Any, list[int] | None]:
    """Inputs and labels."""
    with gzip.open(folder / "elec2.csv.gz") as file:
        rows = np.array(list(csv.reader(io.TextIOWrapper(file)))[1:], dtype=float)
    return rows[:, :-1], rows[:, -1].astype(int), None


def sgd(x: Any, y: Any, seed: int) -> float:
    """The prequential accuracy of logistic regression by SGD, one pass, inputs standardised beforehand."""
    model, right, x = SGDClassifier(loss="log_loss", random_state=seed), 0, StandardScaler().fit_transform(x)
    for at in range(0, len(x) - 1, BATCH):
        rows = slice(at, at + BATCH)
        right += int((model.predict(x[rows]) == y[rows]).sum()) if at else 0
        model.partial_fit(x[rows], y[rows], classes=np.unique(y))
    return right / len(x)


def main() -> None:
    """Print one line for each seed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("name", choices=["gas", "electricity"])
    parser.add_argument("data", type=Path)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--alone", action="store_true", help="without the heads that follow a drift")
    parser.add_argument("--expected-run", type=float, default=frcl.BoundaryDetector().expected_run)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--window", type=int, default=2000)
    given = parser.parse_args()
    torch.set_num_threads(1)
    for seed in range(given.first, given.first + given.seeds):
        x, y, true = (gas if given.name == "gas" else electricity)(given.data, seed)
        learner = frcl.FRCL(
            frcl.MLP(x.shape[1], (100, 100), seed=seed), seed=seed,
            detector=frcl.BoundaryDetector(expected_run=given.expected_run),
            stream_steps=given.steps, lr=given.lr, window=given.window,
        )  # fmt: skip
        stream = [
            (torch.tensor(x[at : at + BATCH], dtype=torch.float32), y[at : at + BATCH])
            for at in range(0, len(x) - 1, BATCH)
        ]
        tracker = None if given.alone else Tracker(seed)
        found = evaluate(learner, stream, scaler=RunningScaler(), tracker=tracker, true=true, tolerance=5)
        print(
            f"seed {seed}: accuracy {found.accuracy:.4f}, SGD {sgd(x, y, seed):.4f}; found {found.found}, true {true}, "
            f"missed {found.misses}, false {found.false_alarms}, tasks {found.tasks}",
            flush=True,
        )


if __name__ == "__main__":
    main()
