"""Figures that set several runs of one benchmark side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from frcl.experiment.metrics import average_so_far, spread
from frcl.experiment.results import MetricName, Result
from frcl.report.drawing import Drawing, blank, name_in_figure
from frcl.report.figures import MARKERS, accuracy_axis, line_with_band
from frcl.report.numbers import BY_KEY, SPACE, bare, interval, number, percent, plural, score_word, size, symbol
from frcl.report.palette import LIGHT, SERIES, series
from frcl.report.signals import perfect_line
from frcl.report.tables import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Labelled = Sequence[tuple[Result, str]]
LONGEST_LABEL = 26


def draw_together(runs: Labelled) -> list[Drawing]:
    """Every figure that the runs of one benchmark allow; call it inside `style()`."""
    drawings = (
        metric_figure(runs, "average_accuracy"),
        progress_figure(runs),
        metric_figure(runs, "forgetting"),
        calibration_figure(runs),
        memory_figure(runs),
    )
    return [drawing for drawing in drawings if drawing is not None]


def metric_figure(runs: Labelled, key: MetricName) -> Drawing | None:
    """One metric of each run: mean as a mark, its 95 % interval as a line, every seed as a dot."""
    meaning = BY_KEY[key]
    unit, title, scale = meaning.unit, meaning.title, 1.0 if meaning.unit == "plain" else 100.0
    metrics = [(place, label, meaning.of(result)) for place, (result, label) in enumerate(runs)]
    known = [(place, label, metric) for place, label, metric in metrics if metric is not None]
    if not known:
        return None
    figure, (axes,) = blank(_height(len(known)))
    for row, (place, _, metric) in enumerate(known):
        colour = series(place)
        if metric.low is not None and metric.high is not None:
            axes.plot([scale * metric.low, scale * metric.high], [row, row], color=colour, linewidth=3, alpha=0.4,
                      solid_capstyle="round")  # fmt: skip
        axes.plot([scale * value for value in metric.per_seed], [row + 0.24] * len(metric.per_seed), linestyle="none",
                  marker="o", markersize=3, color=colour, alpha=0.75)  # fmt: skip
        axes.plot([scale * metric.mean], [row], marker=MARKERS[place % len(MARKERS)], markersize=7.5, color=colour)
    _run_axis(axes, [label for _, label, _ in known])
    axes.set_xlabel(f"{title.lower()}, {symbol(unit)}")
    rows = [(label, bare(m.mean, unit), bare(m.std, unit), interval(m, unit)) for _, label, m in known]
    table = Table(key, f"{title}, {symbol(unit)}", ("Run", "Mean", "Std", "95 % interval"), tuple(rows))
    said = "; ".join(f"{label} {mean}{SPACE}{symbol(unit)}".strip() for label, mean, *_ in rows)
    caption = (
        f"{meaning.says} Mean with its 95 % interval; small dots are seeds. {meaning.better.capitalize()} is better."
    )
    return Drawing(key.replace("_", "-"), title, caption, f"{title}: {said}.", figure, table)


def progress_figure(runs: Labelled) -> Drawing:
    """Average accuracy over the tasks so far, after each task, for each run."""
    from matplotlib.ticker import MaxNLocator

    figure, (axes,) = blank(3.2 + 0.2 * ((len(runs) + 1) // 2))
    rows, curves = [], [average_so_far(result.accuracy) for result, _ in runs]
    tasks = max(curve.shape[1] for curve in curves)
    for place, ((result, label), curve) in enumerate(zip(runs, curves, strict=True)):
        mean, std = spread(curve)
        line_with_band(axes, np.arange(1, len(mean) + 1), mean, std, result.score, **_line(place, label))
        rows.append((label, *(number(100 * value, 2) for value in mean), *[""] * (tasks - len(mean))))
    accuracy_axis(axes, min(float(np.nanmin(curve)) for curve in curves), f"mean {score_word(runs[0][0].score)} so far")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(xlabel="tasks learned")
    figure.legend(loc="outside lower center", ncols=2)
    columns = ("Run", *(f"after {n + 1}" for n in range(tasks)))
    table = Table("progress", "Mean accuracy over the tasks so far, %", columns, tuple(rows))
    said = "; ".join(f"{row[0]} from {row[1]} % to {[cell for cell in row if cell][-1]} %" for row in rows)
    caption = "Mean accuracy over all tasks learned so far. Bands: ± one standard deviation over seeds."
    return Drawing("progress", "Accuracy as tasks arrive", caption, f"Lines of mean accuracy: {said}.", figure, table)


def calibration_figure(runs: Labelled) -> Drawing | None:
    """The calibration curves of the runs that have one."""
    curves = [(place, label, result.calibration) for place, (result, label) in enumerate(runs)]
    known = [(place, label, curve) for place, label, curve in curves if curve is not None]
    if not known:
        return None
    figure, (axes,) = blank(3.4 + 0.2 * ((len(known) + 1) // 2))
    perfect_line(axes)
    rows = []
    for place, label, curve in known:
        filled = curve.filled
        x, y, counts = curve.confidence[filled], curve.accuracy[filled], np.array(curve.count)[filled]
        axes.plot(x, y, **_line(place, label))
        rows += [(label, percent(a, 1), percent(b, 1), f"{n:,}") for a, b, n in zip(x, y, counts, strict=True)]
    axes.set(xlabel="confidence")
    figure.legend(loc="outside lower center", ncols=2)
    table = Table("calibration", "Confidence and accuracy in bins, seeds pooled",
                  ("Run", "Confidence", "Accuracy", "Inputs"), tuple(rows))  # fmt: skip
    text = f"Calibration curves of {plural(len(known), 'run')}; the numbers are in the table below."
    caption = "Accuracy of the predictions against their confidence. The dashed line is perfect calibration."
    return Drawing("calibration", "Calibration", caption, text, figure, table)


def memory_figure(runs: Labelled) -> Drawing | None:
    """Bytes kept at the end, side by side."""
    kept = [(place, label, result.memory_bytes) for place, (result, label) in enumerate(runs)]
    known = [(place, label, memory) for place, label, memory in kept if memory is not None]
    most = max((memory.total for _, _, memory in known), default=0)
    if not most:
        return None
    figure, (axes,) = blank(_height(len(known)))
    rows = []
    for row, (place, label, memory) in enumerate(known):
        axes.barh([row], [memory.total], color=series(place), height=0.58)
        axes.text(memory.total + 0.015 * most, row, size(memory.total), va="center", color=LIGHT["ink"])
        parts = sorted(memory.parts.items(), key=lambda one: -one[1])
        of_that = ", ".join(f"{kind} {size(count)}" for kind, count in parts)
        rows.append((label, size(memory.total), f"{memory.total:,}", of_that))
    _run_axis(axes, [label for _, label, _ in known])
    axes.set_xlim(0, 1.22 * most)
    axes.set_xticks([])
    axes.spines["bottom"].set_visible(False)
    said = "; ".join(f"{label} {shown}" for label, shown, *_ in rows)
    table = Table("memory", "Memory kept after the last task", ("Run", "Kept", "Bytes", "Of that"), tuple(rows))
    caption = "Bytes that each method keeps of past tasks after the last one."
    return Drawing("memory", "Memory kept", caption, f"Bars of memory kept: {said}.", figure, table)


def _line(place: int, label: str) -> dict[str, Any]:
    """The style of a run's line; dashed once the colours are used up."""
    return {
        "color": series(place),
        "marker": MARKERS[place % len(MARKERS)],
        "label": name_in_figure(label, LONGEST_LABEL),
        "linestyle": "-" if place < SERIES else (0, (4, 1.4)),
    }


def _height(rows: int) -> float:
    return 0.9 + 0.5 * max(rows, 3)


def _run_axis(axes: Axes, labels: list[str]) -> None:
    axes.set_yticks(range(len(labels)), [name_in_figure(label, LONGEST_LABEL) for label in labels])
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0, labelcolor=LIGHT["ink"])
    axes.grid(visible=False, axis="y")
    axes.spines["left"].set_visible(False)
