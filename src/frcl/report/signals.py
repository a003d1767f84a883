"""Figures of one run over its steps and over its confidence: training terms, boundaries, calibration."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from frcl.report.derive import thin_by_peaks
from frcl.report.drawing import Drawing, blank
from frcl.report.numbers import number, percent, plural
from frcl.report.palette import LIGHT, series
from frcl.report.run import Boundaries, Calibration, Floats, Run, Steps
from frcl.report.tables import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_POINTS = 1200  # of a line over steps
TERM_NAMES = {"loss": "loss", "log_likelihood": "−log-likelihood", "kl_now": "KL now", "kl_past": "KL past"}


def terms_figure(run: Run, steps: Steps) -> Drawing:
    """Loss and −log-likelihood above, the KL terms below, over the steps of all tasks."""
    terms = {name: -values if name == "log_likelihood" else values for name, values in steps.terms.items()}
    fit = [name for name in ("loss", "log_likelihood") if name in terms]
    held = [name for name in ("kl_now", "kl_past") if name in terms and np.nanmax(np.abs(terms[name])) > 0]
    panels = [panel for panel in (fit, held) if panel]
    figure, axes = blank(2.5 if len(panels) == 1 else 4.0, rows=len(panels), sharex=True)
    for panel, place in zip(panels, axes, strict=True):
        for name in panel:
            number_of = list(TERM_NAMES).index(name)
            place.plot(steps.position, terms[name], color=series(number_of), linewidth=1.2, label=TERM_NAMES[name],
                       linestyle="-" if name in ("loss", "kl_now") else (0, (4, 1.2)))  # fmt: skip
        _nats_axis(place, [terms[name] for name in panel])
        _task_stretches(place, steps)
        place.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, borderaxespad=0.2)
    axes[-1].set_xlabel("step, all tasks in a row")
    ends = [_last_of_task(steps, terms, name) for name in (*fit, *held)]
    text = (
        f"Lines of the training terms over {plural(len(steps.position), 'logged step')}. At the end of the last task: "
    )
    text += ", ".join(
        f"{TERM_NAMES[name]} {number(values[-1], 4)}" for name, values in zip((*fit, *held), ends, strict=True)
    )
    names = [TERM_NAMES[name] for name in (*fit, *held)]
    order = list(dict.fromkeys(steps.task.tolist()))
    rows = [(run.learners_task(task), *(number(v[k], 4) for v in ends)) for k, task in enumerate(order)]
    table = Table("terms", "Training terms at the end of each task, nats per example", ("Task", *names), tuple(rows))
    caption = (
        f"First seed, in nats per example, every {steps.every} steps: loss = −log-likelihood + KL now + KL past. "
        "Shading marks the tasks."
        if steps.every > 1
        else "First seed, in nats per example: loss = −log-likelihood + KL now + KL past. Shading marks the tasks."
    )
    return Drawing("training-terms", "Training terms", caption, text + ".", figure, table)


def boundary_figure(boundaries: Boundaries) -> Drawing:
    """The statistic over steps with its threshold, where the data really changed and where a switch was found."""
    step, value = thin_by_peaks(boundaries.statistic_step, boundaries.statistic, MOST_POINTS)
    figure, (axes,) = blank(3.1)
    for place, at in enumerate(boundaries.true):
        label = "" if place else "true switch"
        axes.axvline(at, color=LIGHT["series-2"], linewidth=6, alpha=0.3, label=label)
    axes.plot(step, value, color=LIGHT["series-0"], linewidth=1.1, label="statistic")
    if boundaries.threshold is not None:
        axes.axhline(boundaries.threshold, color=LIGHT["muted"], linewidth=1.1,
                     label=f"threshold {boundaries.threshold:g}")  # fmt: skip
    top = float(np.nanmax(np.append(value, [boundaries.threshold or 0.0, 1e-9])))
    bottom = min(0.0, float(np.nanmin(np.append(value, 0.0))))
    if len(boundaries.found):
        axes.plot(boundaries.found, np.full(len(boundaries.found), 1.06 * top), linestyle="none", marker="v",
                  markersize=7, color=LIGHT["series-1"], label="found switch", clip_on=False)  # fmt: skip
    axes.set(ylim=(1.05 * bottom, 1.14 * top), xlabel="step", ylabel="test statistic")
    figure.legend(loc="outside lower center", ncols=4, columnspacing=1.0, handletextpad=0.5)
    hits = f"{plural(len(boundaries.found), 'switch')}".replace("switchs", "switches")
    text = f"Line of the boundary statistic over steps. True switches at steps {_listed(boundaries.true)}; found {hits}"
    text += f" at steps {_listed(boundaries.found)}." if len(boundaries.found) else "."
    caption = (
        "First seed: Welch's statistic of each minibatch against those before it; above the threshold is a switch."
    )
    if boundaries.acted_on:
        said = [f"{name} {number(metric.mean, 3)}" for name, metric in boundaries.acted_on.items()]
        caption += f" What the learner acted on, over seeds: {', '.join(said)}."
    return Drawing("boundaries", "Boundary statistic", caption, text, figure, _score_table(boundaries))


def calibration_figure(calibration: Calibration) -> Drawing:
    """Accuracy against confidence in bins, and how many predictions fall in each."""
    filled = (calibration.count > 0) & np.isfinite(calibration.confidence) & np.isfinite(calibration.accuracy)
    x, y = calibration.confidence[filled], calibration.accuracy[filled]
    figure, (axes, counts) = blank(4.0, rows=2, sharex=True, height_ratios=(3.2, 1))
    axes.plot([0, 1], [0, 1], color=LIGHT["axis"], linewidth=1.2, linestyle=(0, (4, 2)))
    axes.vlines(x, np.minimum(x, y), np.maximum(x, y), color=LIGHT["series-1"], linewidth=3, alpha=0.45)
    axes.plot(x, y, color=LIGHT["series-0"], marker="o")
    axes.set(xlim=(0, 1), ylim=(0, 1.03), ylabel="accuracy")
    axes.annotate("perfect", (0.2, 0.13), color=LIGHT["muted"])
    widths = np.diff(calibration.edges)
    share = calibration.count / max(float(calibration.count.sum()), 1.0)
    counts.bar(calibration.edges[:-1], 100 * share, width=0.92 * widths, align="edge", color=LIGHT["axis"])
    counts.set(xlabel="confidence", ylabel="% of inputs")
    rows = []
    for b in range(len(widths)):
        span = f"{calibration.edges[b]:.1f} to {calibration.edges[b + 1]:.1f}"
        values = (percent(_or_none(calibration.confidence, b), 1), percent(_or_none(calibration.accuracy, b), 1))
        rows.append((span, f"{calibration.count[b]:,.0f}", *values))
    table = Table("calibration", "Confidence and accuracy in bins, seeds pooled",
                  ("Confidence bin", "Inputs", "Confidence", "Accuracy"), tuple(rows))  # fmt: skip
    told = ", ".join(f"{percent(b, 0)} right at {percent(a, 0)} confidence" for a, b in zip(x, y, strict=True))
    caption = "How often the predictions are right against how sure they are. Strokes show the gap; seeds pooled."
    return Drawing("calibration", "Calibration", caption, f"Calibration curve: {told}.", figure, table)


def _nats_axis(axes: Axes, values: list[Floats]) -> None:
    """Logarithmic where every value is positive."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    finite = np.concatenate([each[np.isfinite(each)] for each in values])
    if len(finite) and (finite > 0).all():
        decades = np.log10(finite.max() / finite.min())
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if decades < 2.5 else (1.0,)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_locator(NullLocator())
    axes.set_ylabel("nats")


def _task_stretches(axes: Axes, steps: Steps) -> None:
    """A faint band behind every second task."""
    starts = np.flatnonzero(np.diff(steps.task, prepend=steps.task[0] - 1))
    ends = [*starts[1:], len(steps.task) - 1]
    for place, (start, end) in enumerate(zip(starts, ends, strict=True)):
        if place % 2:
            axes.axvspan(steps.position[start], steps.position[end], color=LIGHT["line"], alpha=0.45, linewidth=0)
    axes.set_xlim(steps.position[0], max(steps.position[-1], steps.position[0] + 1))
    axes.grid(visible=False, axis="x")


def _last_of_task(steps: Steps, terms: dict[str, Floats], name: str) -> list[float]:
    order = dict.fromkeys(steps.task.tolist())
    return [float(terms[name][np.flatnonzero(steps.task == task)[-1]]) for task in order]


def _score_table(boundaries: Boundaries) -> Table | None:
    if not boundaries.scores:
        return None
    rows = [
        (f"{s.threshold:g}", number(s.precision, 3), number(s.recall, 3), number(s.f1, 3), number(s.delay, 1))
        for s in boundaries.scores
    ]
    columns = ("Threshold", "Precision", "Recall", "F1", "Delay, steps")
    return Table("boundary-scores", "Switches found at each threshold, means over seeds", columns, tuple(rows))


def _or_none(values: Floats, place: int) -> float | None:
    return float(values[place]) if np.isfinite(values[place]) else None


def _listed(steps: Floats) -> str:
    shown = ", ".join(f"{step:,.0f}" for step in steps[:12])
    return (shown or "none") + (" and more" if len(steps) > 12 else "")
