"""A stream in the plane as a figure: what the learner knows after each stretch, without being told a task, and how it
found the boundaries. Writes stream_2d.png, or the path given as an argument."""

import math
import sys
from collections.abc import Callable

import matplotlib
import numpy as np
import torch
from matplotlib.colors import to_rgb
from torch import Tensor

import frcl

matplotlib.use("Agg")
import matplotlib.pyplot as plt

STREAM, LENGTH, BATCH, EDGE = "ABACB", 120, 64, 3.2  # A, B, A again, C, B again; minibatches of each
COLOURS = ("#1f77b4", "#e8741e", "#1f9d74", "#c92f7e", "#6f47b3", "#cf9a0a")  # one for each label
INK, MUTED = "#17202c", "#566171"
Pair = tuple[Tensor, Tensor]


def moons(n: int, generator: torch.Generator) -> Pair:
    label, angle = torch.randint(2, (n,), generator=generator), math.pi * torch.rand(n, generator=generator)
    side = 1.0 - 2.0 * label
    x = torch.stack([side * angle.cos() - 0.5 + label, side * angle.sin() + 0.35 * label - 0.15], 1)
    return 0.95 * x + torch.tensor([-1.55, 1.45]), label


def ring(n: int, generator: torch.Generator) -> Pair:
    label, angle = torch.randint(2, (n,), generator=generator), 2 * math.pi * torch.rand(n, generator=generator)
    radius = torch.where(label == 0, 0.3 * torch.rand(n, generator=generator).sqrt(), 1.0)
    return radius[:, None] * torch.stack([angle.cos(), angle.sin()], 1) + torch.tensor([1.75, 1.2]), label + 2


def spiral(n: int, generator: torch.Generator) -> Pair:
    label, turn = torch.randint(2, (n,), generator=generator), torch.rand(n, generator=generator).sqrt()
    angle = 1.25 * math.pi * turn + math.pi * label
    return turn[:, None] * torch.stack([1.9 * angle.cos(), 1.45 * angle.sin()], 1) + torch.tensor(
        [0.1, -1.55]
    ), label + 4


TASKS: dict[str, Callable[[int, torch.Generator], Pair]] = {"A": moons, "B": ring, "C": spiral}


def draw(name: str, n: int, generator: torch.Generator) -> Pair:
    x, y = TASKS[name](n, generator)
    return x + 0.07 * torch.randn(n, 2, generator=generator), y


def plane(learner: frcl.FRCL, side: int = 260) -> np.ndarray:
    """The plane in the colours of the labels; white where the learner is unsure, or has seen nothing like it."""
    ticks = torch.linspace(-EDGE, EDGE, side)
    p = learner.predict(torch.cartesian_prod(ticks, ticks).flip(1))  # no task is named
    ink = torch.tensor([to_rgb(COLOURS[label]) for label in p.labels.tolist()])
    known = 1 - (p.novelty.clamp_min(1).log() / math.log(10)).clamp_max(1)
    sure = (2 * p.probs.amax(1) - 1).clamp_min(0) * known
    return (1 - 0.72 * sure[:, None] * (1 - ink)).reshape(side, side, 3).numpy()


def panel(axis: plt.Axes, learner: frcl.FRCL, data: Pair, title: str) -> None:
    axis.imshow(plane(learner), origin="lower", extent=(-EDGE, EDGE, -EDGE, EDGE), interpolation="bilinear")
    axis.scatter(*data[0].T, s=2.5, c=[COLOURS[label] for label in data[1].tolist()], lw=0)
    for task in learner.tasks:
        axis.scatter(*task.Z.T, s=11, c="white", edgecolors=INK, linewidths=0.7, zorder=3)
    axis.set(xticks=[], yticks=[], xlim=(-EDGE, EDGE), ylim=(-EDGE, EDGE))
    axis.set_title(title, fontsize=11, color=INK)
    axis.spines[:].set_color("#dfe3e9")


def strip(axis: plt.Axes, logs: list[frcl.StepLog], level: float) -> None:
    """The statistic of the detector, and what it made of the stream."""
    axis.plot([log.statistic for log in logs], color=INK, lw=0.9)
    axis.axhline(level, color=MUTED, lw=0.8, ls="--")
    axis.text(2, level + 0.8, "level", fontsize=8, color=MUTED)
    for step, log in enumerate(logs):
        if log.boundary:
            word = f"{'ABC'[log.task]} is back" if log.returned else f"{'ABC'[log.task]} is new"
            axis.plot(step, log.statistic, "o", ms=5, color="#c92f7e")
            axis.annotate(word, (step, log.statistic), (6, -3), textcoords="offset points", fontsize=9, color="#c92f7e")
    axis.set(xlim=(0, len(logs)), ylim=(0, 46))
    axis.set_ylabel("change", fontsize=9, color=MUTED)
    axis.set_xlabel("minibatch; where a task ends and which one it is, the learner finds out", fontsize=9, color=MUTED)
    axis.spines[["top", "right"]].set_visible(False)
    axis.tick_params(labelsize=8, colors=MUTED)


def main(path: str) -> None:
    generator = torch.Generator().manual_seed(2)
    learner = frcl.FRCL(
        frcl.MLP(2, (64, 64)), points=40, lr=3e-3, stream_steps=3, detector=frcl.BoundaryDetector(),
        task_inference="exact", task_features=200,
    )  # fmt: skip
    figure = plt.figure(figsize=(12.5, 4.1), layout="constrained")
    grid = figure.add_gridspec(2, len(STREAM), height_ratios=(2.5, 1))
    logs = []
    for stretch, name in enumerate(STREAM):
        logs += [learner.observe(*draw(name, BATCH, generator)) for _ in range(LENGTH)]
        title = f"after {name}" + " again" * (name in STREAM[:stretch])
        panel(figure.add_subplot(grid[0, stretch]), learner, draw(name, 300, generator), title)
    strip(figure.add_subplot(grid[1, :]), logs, learner.detector.level)
    figure.savefig(path, dpi=150)
    found = [step for step, log in enumerate(logs) if log.boundary]
    print(f"{path}: boundaries found at {found}; {len(learner.tasks)} tasks, {learner.memory_bytes():,} bytes kept")
    for name in TASKS:
        x, y = draw(name, 1000, generator)
        share = float((torch.as_tensor(learner.predict(x).labels) == y).float().mean())
        print(f"{name}: {share:.1%} correct; no task is named")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "stream_2d.png")
