"""Regression in one dimension as a figure: the posterior, the inducing points, and a second task, after which the
first is retained. Writes regression_1d.png, or the path given as an argument."""

import math
import sys

import matplotlib
import torch
from torch import Tensor, nn

import frcl

matplotlib.use("Agg")
import matplotlib.pyplot as plt


class Waves(nn.Module):
    """Fixed random waves and a learned linear layer: far from the training data the features are small."""

    def __init__(self, count: int = 100) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.register_buffer("frequency", 1.3 * torch.randn(1, count, generator=generator))
        self.register_buffer("phase", 2 * math.pi * torch.rand(count, generator=generator))
        self.mix = nn.Linear(count, count)
        nn.init.eye_(self.mix.weight)
        nn.init.zeros_(self.mix.bias)

    def forward(self, x: Tensor) -> Tensor:
        waves = torch.cos(x @ self.frequency + self.phase)
        return self.mix(waves) * math.sqrt(2 / len(self.phase))


def draw(axis: plt.Axes, learner: frcl.FRCL, task: int, colour: str, data: tuple[Tensor, Tensor] | None) -> None:
    grid = torch.linspace(-6, 6, 400)[:, None]
    p = learner.predict(grid, task=task)
    mean, band = p.mean[:, 0], 2 * p.variance[:, 0].sqrt()
    axis.fill_between(grid[:, 0], mean - band, mean + band, color=colour, alpha=0.18, lw=0)
    axis.plot(grid[:, 0], mean, color=colour, lw=2, label=f"task {task + 1}: mean ± 2 std")
    if data is not None:
        axis.plot(data[0][:, 0], data[1], ".", color="black", ms=3, alpha=0.5, label="data of the current task")
    if task < len(learner.tasks):
        kept = learner.tasks[task]
        axis.plot(kept.Z[:, 0], kept.belief.mean[0], "o", mfc="white", mec=colour, mew=2, ms=8, label="inducing points")


def main(path: str) -> float:
    generator = torch.Generator().manual_seed(3)
    spans, functions = ((-5.0, -0.5), (0.5, 5.0)), (lambda x: torch.sin(2 * x), lambda x: 0.5 * x - torch.cos(3 * x))
    tasks = []
    for (low, high), function in zip(spans, functions, strict=True):
        x = low + (high - low) * torch.rand(150, 1, generator=generator)
        tasks.append((x, function(x[:, 0]) + 0.1 * torch.randn(150, generator=generator)))
    learner = frcl.FRCL(Waves(), points=12, steps=1500, lr=3e-3, initial_std=0.5)
    figure, axes = plt.subplots(1, 2, figsize=(11, 4), sharey=True, layout="constrained")
    learner.fit(*tasks[0])
    draw(axes[0], learner, 0, "tab:blue", tasks[0])
    axes[0].set_title("After the first task")
    before = learner.predict(tasks[0][0], task=0).mean
    learner.fit(*tasks[1])
    draw(axes[1], learner, 0, "tab:blue", None)
    draw(axes[1], learner, 1, "tab:orange", tasks[1])
    axes[1].set_title("After the second task: the first is retained")
    moved = float((learner.predict(tasks[0][0], task=0).mean - before).abs().mean())
    for axis in axes:
        axis.set(xlabel="x", ylim=(-5, 5), xlim=(-6, 6))
        axis.legend(loc="lower left", fontsize=8, frameon=False)
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)
    print(f"{path}: learning the second task changed the first by {moved:.3f} on average")
    return moved


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "regression_1d.png")
