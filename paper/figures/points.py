"""Figures 4 and 6: the examples of a task that the trace criterion selects (Section 4.2, Appendix D)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from frcl import FRCLOptions
from paper.cells import OMNIGLOT, Cell, Layer
from paper.figures.base import FigureSpec
from paper.figures.draw_points import TITLE_4, TITLE_6, draw_figure_4, draw_figure_6
from paper.figures.sheets import Rows, Sheet
from paper.library import (
    Benchmark,
    Config,
    PermutedTasks,
    Selected,
    Split,
    benchmark_of,
    features_of,
    fork,
    new_frcl,
    random_start,
    run_environment,
    run_searches,
    trace_search,
)
from paper.measure import Place

SEED = 0
PERMUTED, GREEK = "permuted-mnist", "Greek"


@dataclass(frozen=True)
class Sizes:
    """The size of Figure 4."""

    shown: int  # starts whose points are drawn
    counted: int  # starts over which the classes are counted
    cloud: int  # examples in the projection
    learner: Layer


SIZES = Sizes(shown=5, counted=100, cloud=2500, learner={"points": 10})
QUICK_SIZES = Sizes(shown=2, counted=4, cloud=150, learner={"points": 10, "steps": 30, "search_steps": 100})

GREEK_LAYER: Layer = {
    "method": "frcl",
    "stream": {"alphabet_order": "alphabetical"},
    "learner": {"points_per_class": 3, "start": "balanced"},
}
QUICK_GREEK: Layer = {
    "stream": {"augment": 2},
    "network": {"widths": [8, 8, 8, 8]},
    "learner": {"steps": 12, "search_steps": 100},
}


# -- learning a task and searching points -----------------------------------------------------------------------


@dataclass(frozen=True)
class Learned:
    """A learned task: its examples, and their features σ_w Φ, [N, K]."""

    train: Split
    Phi: Tensor
    options: FRCLOptions


def learned(config: Config, benchmark: Benchmark, number: int) -> Learned:
    """Learn one task of a benchmark with FRCL."""
    task = benchmark.task(number)
    learner = new_frcl(config, benchmark, SEED)
    with run_environment(config):
        learner.fit(task.train.x, task.train.y, size=task.size)
        return Learned(task.train, features_of(learner, task.train.x), learner.options)


@dataclass(frozen=True)
class Search:
    """A search by the trace criterion: the indices of the examples at its start, and its result."""

    start: Tensor
    found: Selected

    @property
    def ends(self) -> tuple[tuple[str, Tensor, float], ...]:
        """Start and end: the name, the indices of the examples, the trace term."""
        return ("random", self.start, self.found.before), ("trace", self.found.index, self.found.after)


def searched(task: Learned, M: int, count: int, classes: Tensor | None = None) -> list[Search]:
    """`count` searches from different random starts, balanced over `classes` [N] if given."""
    plans = []
    for number in range(count):
        generator = fork(SEED, f"figure/start/{number}")
        start = random_start(len(task.Phi), M, generator, classes)
        plans.append(trace_search(task.Phi, start, task.options.u_noise, task.options.search_steps, generator))
    return [Search(plan.start, found) for plan, found in zip(plans, run_searches(plans), strict=True)]


def classes_covered(y: Tensor, index: Tensor) -> int:
    """The number of classes among the examples at `index`."""
    return len(y[index].unique())


def to_hex(image: Tensor) -> str:
    """Pixels in 0..1 as two hexadecimal digits each, row by row."""
    return bytes((255 * image.cpu().flatten()).round().clamp(0, 255).to(torch.uint8).tolist()).hex()


# -- Figure 4 ------------------------------------------------------------------------------------------------


def measure_figure_4(place: Place) -> Sheet:
    """The first task of Permuted-MNIST: points before and after searches from several starts, t-SNE of the first."""
    sizes = QUICK_SIZES if place.quick else SIZES
    layer = {"method": "frcl", "stream": {"tasks": 1}, "learner": sizes.learner}
    config = place.config(Cell("figure4", PERMUTED, "", (layer,), (SEED,)), [SEED])
    benchmark = benchmark_of(config, SEED)
    task = learned(config, benchmark, 0)
    y, M = task.train.y.cpu(), task.options.points
    done = searched(task, M, sizes.counted)
    cloud = random_start(len(y), sizes.cloud, fork(SEED, "figure/cloud"))
    ends = [index for _, index, _ in done[0].ends]
    at = projected(task.Phi, torch.cat([*ends, cloud])).tolist()
    rows = Rows(
        {"points": M, "steps": task.options.steps, "search_steps": task.options.search_steps},
        *("start", "which", "label", "x", "y", "image"),
    )
    for row, (across, up) in zip(cloud.tolist(), at[2 * M :], strict=True):
        rows.add("example", label=int(y[row]), value=row, x=across, y=up)
    for number, search in enumerate(done):
        for which, index, value in search.ends:
            rows.add("criterion", start=number, which=which, value=value)
            rows.add("classes", start=number, which=which, value=classes_covered(y, index))
    for number, search in enumerate(done[: sizes.shown]):
        for which, index, _ in search.ends:
            images = unpermuted(benchmark, 0, task.train.x[index.to(task.train.x.device)])
            for image, row in zip(images, index.tolist(), strict=True):
                where = dict(zip("xy", at.pop(0), strict=True)) if number == 0 else {}
                rows.add("point", start=number, which=which, label=int(y[row]), value=row, image=to_hex(image), **where)
    return rows.sheet()


def projected(Phi: Tensor, index: Tensor) -> NDArray[Any]:
    """t-SNE of the features of these examples, [n, 2]."""
    from sklearn.manifold import TSNE

    values = Phi[index.to(Phi.device)].cpu().double().numpy()
    few = min(30.0, (len(values) - 1) / 3)
    return np.asarray(TSNE(perplexity=few, init="pca", random_state=SEED, n_jobs=1).fit_transform(values), float)


def unpermuted(benchmark: Benchmark, number: int, x: Tensor) -> Tensor:
    """Undo the permutation of a task's pixels."""
    assert isinstance(benchmark, PermutedTasks)
    return x[:, benchmark.orders[number].argsort()]


# -- Figure 6 ------------------------------------------------------------------------------------------------


def measure_figure_6(place: Place) -> Sheet:
    """The Greek alphabet: random points, the same number of each character, and the points after the search."""
    layers = (GREEK_LAYER, QUICK_GREEK) if place.quick else (GREEK_LAYER,)
    config = place.config(Cell("figure6", OMNIGLOT, "", layers, (SEED,)), [SEED])
    benchmark = benchmark_of(config, SEED)
    task = learned(config, benchmark, benchmark.task_names.index(GREEK))
    y, options = task.train.y.cpu(), task.options
    y = y - y.min()  # characters are numbered over all alphabets
    each = options.points_per_class or 1
    characters = len(y.unique())
    (search,) = searched(task, each * characters, 1, y)
    rows = Rows(
        {"each": each, "characters": characters, "steps": options.steps,
         "search_steps": options.search_steps},
        *("which", "label", "image"),
    )  # fmt: skip
    for which, index, value in search.ends:
        rows.add("criterion", which=which, value=value)
        for image, row in zip(task.train.x[index.to(task.train.x.device)], index.tolist(), strict=True):
            rows.add("point", which=which, label=int(y[row]), value=row, image=to_hex(image))
    return rows.sheet()


FIGURES = (
    FigureSpec("figure4", TITLE_4, measure_figure_4, draw_figure_4, (PERMUTED,)),
    FigureSpec("figure6", TITLE_6, measure_figure_6, draw_figure_6, (OMNIGLOT,)),
)
