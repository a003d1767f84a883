"""Figures of one run over its steps and over its confidence: training terms, boundaries, calibration."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from frcl.experiment.metrics import Floats
from frcl.experiment.results import Boundaries, CalibrationCurve, Result, StepCurves
from frcl.report.drawing import Drawing, blank
from frcl.report.numbers import number, percent, plural
from frcl.report.palette import LIGHT, series
from frcl.report.run import learners_task
from frcl.report.tables import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_POINTS = 1200  # of a line over steps
TERM_NAMES = {"loss": "loss", "log_likelihood": "−log-likelihood", "kl_now": "KL now", "kl_past": "KL past"}


def terms_figure(result: Result, steps: StepCurves) -> Drawing:
    """Loss and −log-likelihood above, the KL terms below, over the steps of all tasks."""
    terms = {name: (-1 if name == "log_likelihood" else 1) * getattr(steps, name) for name in TERM_NAMES}
    drawn = [name for name, values in terms.items() if np.isfinite(values).any() and np.nanmax(np.abs(values)) > 0]
    panels = [[name for name in drawn if name.startswith("kl") == kl] for kl in (False, True)]
    panels = [panel for panel in panels if panel]
    figure, axes = blank(2.5 if len(panels) == 1 else 4.0, rows=len(panels), sharex=True)
    for panel, place in zip(panels, axes, strict=True):
        for name in panel:
            number_of, stroke = list(TERM_NAMES).index(name), "-" if name in ("loss", "kl_now") else (0, (4, 1.2))
            place.plot(steps.position, terms[name], color=series(number_of), linewidth=1.2, label=TERM_NAMES[name],
                       linestyle=stroke)  # fmt: skip
        _nats_axis(place, np.concatenate([terms[name] for name in panel]))
        _shade_tasks(place, steps)
        place.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, borderaxespad=0.2)
    axes[-1].set_xlabel("step, all tasks in a row")
    last = {task: place for place, task in enumerate(steps.task)}  # the last logged step of each task
    rows = [
        (learners_task(result, task), *(number(terms[name][place], 4) for name in drawn))
        for task, place in last.items()
    ]
    names = [TERM_NAMES[name] for name in drawn]
    ends = ", ".join(f"{name} {value}" for name, value in zip(names, rows[-1][1:], strict=True))
    logged = plural(len(steps.step), "logged step")
    text = f"Lines of the training terms over {logged}. At the end of the last task: {ends}."
    table = Table("terms", "Training terms at the end of each task, nats per example", ("Task", *names), tuple(rows))
    every = f", every {steps.every} steps" if steps.every > 1 else ""
    caption = (
        f"First seed, in nats per example{every}: loss = −log-likelihood + KL now + KL past. Shading marks the tasks."
    )
    return Drawing("training-terms", "Training terms", caption, text, figure, table)


def boundary_figure(boundaries: Boundaries) -> Drawing:
    """The statistic over steps with its threshold, the true switches and those that were found."""
    at = np.array(boundaries.statistic_step, dtype=np.float64)
    step, value = thin_by_peaks(at, boundaries.statistic, MOST_POINTS)
    threshold, found = boundaries.threshold, boundaries.found
    figure, (axes,) = blank(3.1)
    for place, switch in enumerate(boundaries.true):
        label = "" if place else "true switch"
        axes.axvline(switch, color=LIGHT["series-2"], linewidth=6, alpha=0.3, label=label)
    axes.plot(step, value, color=LIGHT["series-0"], linewidth=1.1, label="statistic")
    axes.axhline(threshold, color=LIGHT["muted"], linewidth=1.1, label=f"threshold {threshold:g}")
    top = float(np.nanmax(np.append(value, [threshold, 1e-9])))
    bottom = min(0.0, float(np.nanmin(np.append(value, 0.0))))
    if found:
        axes.plot(found, np.full(len(found), 1.06 * top), linestyle="none", marker="v", markersize=7,
                  color=LIGHT["series-1"], label="found switch", clip_on=False)  # fmt: skip
    axes.set(ylim=(1.05 * bottom, 1.14 * top), xlabel="step", ylabel="test statistic")
    figure.legend(loc="outside lower center", ncols=4, columnspacing=1.0, handletextpad=0.5)
    text = (
        f"Line of the boundary statistic over steps. True switches at steps {_listed(boundaries.true)}; found "
        f"{len(found)} switch{'es' * (len(found) != 1)}{f' at steps {_listed(found)}' if found else ''}."
    )
    acted = {"precision": boundaries.acted_on.precision, "recall": boundaries.acted_on.recall,
             "f1": boundaries.acted_on.f1}  # fmt: skip
    said = ", ".join(f"{name} {number(metric.mean, 3)}" for name, metric in acted.items() if metric is not None)
    caption = (
        "First seed: Welch's statistic of each minibatch against those before it; a value above the threshold is a "
        f"switch. Of the switches that the learner acted on, over seeds: {said}."
    )
    rows = [
        (f"{s.threshold:g}", number(s.precision, 3), number(s.recall, 3), number(s.f1, 3), number(s.delay, 1))
        for s in boundaries.scores
    ]
    table = Table("boundary-scores", "Switches found at each threshold, means over seeds",
                  ("Threshold", "Precision", "Recall", "F1", "Delay, steps"), tuple(rows))  # fmt: skip
    return Drawing("boundaries", "Boundary statistic", caption, text, figure, table)


def thin_by_peaks(position: Floats, values: Floats, limit: int) -> tuple[Floats, Floats]:
    """At most `limit` points: the largest value of each stretch at its own position, so that no peak is lost."""
    if len(values) <= limit:
        return position, values
    ranked = np.where(np.isnan(values), -np.inf, values)
    kept = [part[int(ranked[part].argmax())] for part in np.array_split(np.arange(len(values)), limit)]
    return position[kept], values[kept]


def calibration_figure(curve: CalibrationCurve) -> Drawing:
    """Accuracy against confidence in bins, and the share of predictions in each."""
    x, y = curve.confidence[curve.filled], curve.accuracy[curve.filled]
    figure, (axes, counts) = blank(4.0, rows=2, sharex=True, height_ratios=(3.2, 1))
    perfect_line(axes)
    axes.vlines(x, np.minimum(x, y), np.maximum(x, y), color=LIGHT["series-1"], linewidth=3, alpha=0.45)
    axes.plot(x, y, color=LIGHT["series-0"], marker="o")
    axes.annotate("perfect", (0.2, 0.13), color=LIGHT["muted"])
    share = np.array(curve.count) / max(sum(curve.count), 1)
    counts.bar(curve.edges[:-1], 100 * share, width=0.92 * np.diff(curve.edges), align="edge", color=LIGHT["axis"])
    counts.set(xlabel="confidence", ylabel="% of inputs")
    bins = zip(pairwise(curve.edges), curve.count, curve.confidence, curve.accuracy, strict=True)
    rows = [(f"{a:.1f} to {b:.1f}", f"{n:,}", percent(c, 1), percent(right, 1)) for (a, b), n, c, right in bins]
    table = Table("calibration", "Confidence and accuracy in bins, seeds pooled",
                  ("Confidence bin", "Inputs", "Confidence", "Accuracy"), tuple(rows))  # fmt: skip
    told = ", ".join(f"{percent(b, 0)} right at {percent(a, 0)} confidence" for a, b in zip(x, y, strict=True))
    caption = "Accuracy of the predictions against their confidence. Strokes show the gap; seeds pooled."
    return Drawing("calibration", "Calibration", caption, f"Calibration curve: {told}.", figure, table)


def perfect_line(axes: Axes) -> None:
    """The axes of a calibration curve, with the diagonal of perfect calibration."""
    axes.plot([0, 1], [0, 1], color=LIGHT["axis"], linewidth=1.2, linestyle=(0, (4, 2)))
    axes.set(xlim=(0, 1), ylim=(0, 1.03), ylabel="accuracy")


def _nats_axis(axes: Axes, values: Floats) -> None:
    """Logarithmic if every value is positive."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    finite = values[np.isfinite(values)]
    if len(finite) and (finite > 0).all():
        decades = np.log10(finite.max() / finite.min())
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if decades < 2.5 else (1.0,)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_locator(NullLocator())
    axes.set_ylabel("nats")


def _shade_tasks(axes: Axes, steps: StepCurves) -> None:
    """A faint band behind every second task."""
    position, task = steps.position, np.array(steps.task)
    starts = np.flatnonzero(np.diff(task, prepend=task[0] - 1))
    ends = [*starts[1:], len(task) - 1]
    for start, end in list(zip(starts, ends, strict=True))[1::2]:
        axes.axvspan(position[start], position[end], color=LIGHT["line"], alpha=0.45, linewidth=0)
    axes.set_xlim(position[0], max(position[-1], position[0] + 1))
    axes.grid(visible=False, axis="x")


def _listed(steps: Sequence[int]) -> str:
    shown = ", ".join(f"{step:,}" for step in steps[:12])
    return (shown or "none") + (" and more" if len(steps) > 12 else "")
