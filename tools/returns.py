"""Tasks that return in a stream without marked boundaries: are they known again?

    python tools/returns.py                          # splits, permutations and rotations of MNIST
    python tools/returns.py --orders 10 --length 150

Each stream has five stretches of `length` minibatches of 64 images, in the order A, B, A, C, B of three tasks. A seed
chooses the tasks: three pairs of digits, relabelled 0 and 1; three permutations of the pixels; or three rotations by
multiples of 30 degrees. Printed are, for each family: the share of the 2 returns that were recognised as the task that
they are, the number of different tasks kept (3 is right), the boundaries that were found of 4, those of them that are
called "sharp", and false ones.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

import frcl
from frcl.data.streams import read_mnist
from frcl.seeding import fork

ORDER = "ABACB"
Batch = Callable[[int, torch.Generator], tuple[Tensor, Tensor]]


def rotated(x: Tensor, degrees: float) -> Tensor:
    """Images [n, 784] turned by an angle."""
    a = math.radians(degrees)
    matrix = torch.tensor([[math.cos(a), -math.sin(a), 0.0], [math.sin(a), math.cos(a), 0.0]])
    grid = F.affine_grid(matrix.expand(len(x), 2, 3), [len(x), 1, 28, 28], align_corners=False)
    return F.grid_sample(x.view(-1, 1, 28, 28), grid, align_corners=False).flatten(1)


def family(name: str, x: Tensor, y: Tensor, seed: int) -> Batch:
    """Minibatches of the task with a number."""
    generator = fork(seed, f"returns/{name}")
    digits = torch.randperm(10, generator=generator)[:6].view(3, 2)
    pixels = torch.stack([torch.randperm(784, generator=generator) for _ in range(3)])
    angles = 30.0 * torch.randperm(6, generator=generator)[:3]

    def batch(task: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        if name == "split":
            own = torch.isin(y, digits[task]).nonzero()[:, 0]
            rows = own[torch.randint(len(own), (64,), generator=generator)]
            return x[rows], (y[rows] == digits[task, 1]).long()
        rows = torch.randint(len(x), (64,), generator=generator)
        return (x[rows][:, pixels[task]] if name == "permuted" else rotated(x[rows], float(angles[task]))), y[rows]

    return batch


def run(name: str, batch: Batch, seed: int, length: int, points: int) -> dict[str, int]:
    """One stream."""
    learner = frcl.FRCLPlus(frcl.MLP(784, (100, 100), seed=seed), points, seed=seed, detector=frcl.BoundaryDetector())
    number: dict[str, int] = {}  # of each task: the number that the learner gave it
    counts = {"returns": 0, "recognised": 0, "found": 0, "sharp": 0, "false": 0}
    generator = fork(seed, f"returns/{name}/rows")
    for stretch, task in enumerate(ORDER):
        found, last, change = False, -1, ""
        for t in range(length):
            log = learner.observe(*batch("ABC".index(task), generator))
            if log.boundary:
                near = stretch > 0 and t <= 10 and not found
                counts["found" if near else "false"] += 1
                found, change = found or near, log.change
            elif change and learner.detector is not None:
                change = learner.detector.change
            last = log.task
        counts["sharp"] += found and change == "sharp"
        if task in number:
            counts["returns"] += 1
            counts["recognised"] += last == number[task]
        number.setdefault(task, last)
    return counts | {"kept": learner._count}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--families", nargs="+", default=["split", "permuted", "rotated"])
    parser.add_argument("--orders", type=int, default=5)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--length", type=int, default=150)
    parser.add_argument("--points", type=int, default=40)
    given = parser.parse_args()
    torch.set_num_threads(1)
    train, _ = read_mnist()
    for name in given.families:
        each = []
        for seed in range(given.first, given.first + given.orders):
            each.append(run(name, family(name, train.x, train.y, seed), seed, given.length, given.points))
            print(name, seed, each[-1], flush=True)
        total = {key: sum(one[key] for one in each) for key in each[0]}
        right = sum(one["kept"] == len(set(ORDER)) for one in each)
        print(
            f"{name}: {total['recognised']}/{total['returns']} returns recognised, "
            f"{right}/{len(each)} streams with 3 tasks, "
            f"{total['found']}/{4 * len(each)} boundaries found, {total['sharp']} sharp, {total['false']} false",
            flush=True,
        )


if __name__ == "__main__":
    main()
