"""Figures 5 and 7, drawn from their sheets."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from statistics import mean
from typing import TYPE_CHECKING, Any

import numpy as np

from paper.figures.base import canvas
from paper.figures.sheets import Sheet
from paper.library import LIGHT, WIDTH, Drawing, name_in_figure, plural, series

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TITLE_5 = "Figure 5: scores and test statistic on Omniglot"
TITLE_7 = "Figure 7: which statistic detects a switch"


# -- Figure 5 ------------------------------------------------------------------------------------------------


def draw_figure_5(numbers: Sheet) -> Drawing:
    """Top: the mean score. Bottom: Welch's statistic. Both over the minibatches of all tasks."""
    facts, tasks, stream = numbers.settings(), numbers.where(kind="task"), numbers.where(kind="minibatch")
    names, starts, step = tasks.column("name"), tasks.floats("step"), stream.floats("step")
    true, found, threshold = starts[1:], stream.where(found="1").floats("step"), float(facts["threshold"])
    edges = [*starts, step[-1] + 1]
    figure, (above, below) = canvas(WIDTH, 3.9, 2, 1, sharex=True)
    above.plot(step, stream.floats("score"), color=LIGHT["series-0"], linewidth=0.8)
    above.set(ylabel="mean score ℓ", xlim=(edges[0], edges[-1]))
    for name, (start, end) in zip(names, itertools.pairwise(edges), strict=True):
        above.text((start + end) / 2, 1.02, name_in_figure(name, 14), ha="center", va="bottom", fontsize=7.5,
                   color=LIGHT["muted"], transform=above.get_xaxis_transform())  # fmt: skip
    statistic = np.array(stream.floats("statistic"))
    below.plot(step, statistic, color=LIGHT["series-0"], linewidth=0.8)
    below.axhline(threshold, color=LIGHT["ink"], linewidth=1.1, linestyle=(0, (4, 2)), label=f"threshold {threshold:g}")
    finite = statistic[np.isfinite(statistic)]
    top = max([threshold, *finite])
    peaks = [min(float(statistic[step.index(at)]), top) for at in found]
    below.plot(found, [peak + 0.09 * top for peak in peaks], linestyle="none", marker="v", markersize=6.5,
               color=LIGHT["series-1"], label="switch found")  # fmt: skip
    low = min([0.0, *np.quantile(finite, [0.001])]) if len(finite) else 0.0
    below.set(xlabel="minibatch, all alphabets in a row", ylabel="Welch's t", ylim=(low, 1.22 * top))
    for axes in (above, below):
        axes.grid(visible=False, axis="x")
        for place, at in enumerate(true):
            axes.axvline(at, color=LIGHT["series-2"], linewidth=4, alpha=0.28, zorder=1,
                         label="true switch" if axes is below and not place else "")  # fmt: skip
    figure.legend(loc="outside lower center", ncols=3)
    caption = (
        f"{len(names)} alphabets as one stream of {int(facts['steps']):,} minibatches of {facts['batch']} each; the "
        "switches are hidden from the learner. Top: mean over inputs and functions of the score ℓ, before the step. "
        "Bottom: Welch's statistic of each minibatch against the previous one, in log space, the largest over the "
        "functions. A switch is declared above the threshold; then there is no test for some minibatches."
    )
    text = f"Alphabets: {', '.join(names)}. True switches at {_listed(true)}; found at {_listed(found)}."
    return Drawing("figure5", TITLE_5, caption, text, figure)


def _listed(steps: Sequence[float]) -> str:
    return ", ".join(f"{step:,.0f}" for step in steps) or "none"


# -- Figure 7 ------------------------------------------------------------------------------------------------

AGGREGATES = {"max": 0, "median": 2, "mean": 1}  # and their colours
SPACES: dict[str, Any] = {"log": "-", "plain": (0, (3, 1.2))}  # and their line styles
GOOD = 0.95
LOWEST = -5.0  # lower values are not drawn


def draw_figure_7(numbers: Sheet) -> Drawing:
    """Top: F1 over the threshold. Bottom: the statistics at switches and elsewhere, on the same axis."""
    facts, variants = numbers.settings(), [(space, aggregate) for space in SPACES for aggregate in AGGREGATES]
    figure, (above, below) = canvas(WIDTH, 4.9, 2, 1, sharex=True, height_ratios=(1.15, 1))
    good = {}
    for aggregate, space in itertools.product(AGGREGATES, SPACES):
        scores = mean_scores(numbers, space, aggregate)
        threshold, f1 = scores["threshold"], scores["f1"]
        above.plot(threshold, f1, color=series(AGGREGATES[aggregate]), linestyle=SPACES[space], linewidth=1.5,
                   label=f"{aggregate}, {space}")  # fmt: skip
        good[space, aggregate] = good_thresholds(threshold, f1)
    above.set(ylabel="F1, mean over seeds", ylim=(-0.03, 1.03))
    right = _right(numbers)
    for place, (space, aggregate) in enumerate(variants):
        _strip(below, numbers, space, aggregate, place, right)
    below.text(0.1, -0.42, "elsewhere", fontsize=8, color=LIGHT["muted"])
    below.text(0.5 * right, -0.42, "at the switches", fontsize=8, color=LIGHT["muted"], ha="center")
    below.set(xlabel="threshold, and statistic", xlim=(0, right), ylim=(len(variants) - 0.5, -1.0))
    below.set_yticks(range(len(variants)), [f"{aggregate}, {space}" for space, aggregate in variants], fontsize=8.5)
    below.grid(visible=False, axis="y")
    below.tick_params(axis="y", length=0)
    figure.legend(loc="outside lower center", ncols=3, fontsize=8.5, columnspacing=1.0)
    caption = (
        f"Permuted-MNIST, {facts['tasks']} permutations, {int(facts['steps']):,} minibatches of {facts['batch']} each, "
        f"{plural(int(facts['seeds']), 'seed')}. The statistics of the ten functions are aggregated by their maximum, "
        "median or mean; the test is on the scores (plain) or on their logarithms (log). The learner is told the "
        "switches, so that all six variants see the same scores. Top: F1 (a switch counts as found up to "
        f"{facts['tolerance']} minibatches late). Bottom: the statistic at each switch (dots) and elsewhere (bar: 5 % "
        "to 95 % quantile; line: up to the maximum)."
    )
    return Drawing("figure7", TITLE_7, caption, _text_7(good), figure)


def mean_scores(numbers: Sheet, space: str, aggregate: str) -> dict[str, list[float]]:
    """Thresholds, with the means over seeds of precision, recall and F1 at each."""
    own = numbers.where(kind="score", space=space, aggregate=aggregate)
    thresholds = list(dict.fromkeys(own.column("threshold")))
    at = [own.where(threshold=threshold) for threshold in thresholds]
    means = {name: [mean(one.floats(name)) for one in at] for name in ("precision", "recall", "f1")}
    return {"threshold": [float(threshold) for threshold in thresholds], **means}


def good_thresholds(threshold: Sequence[float], f1: Sequence[float]) -> tuple[float, float] | None:
    """The longest interval of thresholds on which F1 is at least `GOOD`."""
    stretches: list[list[float]] = []
    for is_good, pairs in itertools.groupby(zip(threshold, f1, strict=True), key=lambda pair: pair[1] >= GOOD):
        if is_good:
            stretches.append([at for at, _ in pairs])
    longest = max(stretches, key=lambda each: each[-1] - each[0], default=None)
    return None if longest is None else (longest[0], longest[-1])


def _strip(axes: Axes, numbers: Sheet, space: str, aggregate: str, place: int, right: float) -> None:
    own = {"space": space, "aggregate": aggregate}
    switches = numbers.where(kind="switch", **own).floats("value")
    spread = numbers.where(kind="elsewhere", **own)
    quantiles = dict(zip(spread.column("name"), spread.floats("value"), strict=True))
    low, high, top = (min(max(quantiles[name], LOWEST), right) for name in ("0.05", "0.95", "1"))
    axes.hlines(place, high, top, color=LIGHT["axis"], linewidth=1.6)
    axes.barh(place, high - low, left=low, height=0.4, color=LIGHT["axis"])
    jitter = 0.16 * (np.arange(len(switches)) % 3 - 1)
    axes.plot(switches, place + jitter, linestyle="none", marker="o", markersize=3.2, alpha=0.8, markeredgewidth=0,
              color=series(AGGREGATES[aggregate]))  # fmt: skip


def _right(numbers: Sheet) -> float:
    """The end of the axis: beyond all switches, unless that is beyond all thresholds."""
    switches = numbers.where(kind="switch").floats("value")
    return min(max(numbers.where(kind="score").floats("threshold")), max(switches) + 1)


def _text_7(good: dict[tuple[str, str], tuple[float, float] | None]) -> str:
    said = [
        f"{aggregate}, {space}, " + ("at none" if span is None else f"from {span[0]:g} to {span[1]:g}")
        for (space, aggregate), span in good.items()
    ]
    return f"Thresholds at which F1 is at least {GOOD:g}: {'; '.join(said)}."
