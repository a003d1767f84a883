"""Figures that set several runs of one benchmark side by side."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from frcl.experiment.metrics import average_so_far, spread
from frcl.experiment.results import MetricName
from frcl.learners.types import plural
from frcl.report.drawing import LIGHT, SERIES, Drawing, blank, drawing, name_in_figure, series
from frcl.report.figures import MARKERS, accuracy_axis, line_with_band, name_rows, perfect_line
from frcl.report.numbers import BY_KEY, SCORE_NAMES, SPACE, SYMBOLS, in_unit, interval, number, percent, size
from frcl.report.run import Run

Labelled = Sequence[tuple[Run, str]]
LONGEST_LABEL = 26


def draw_together(runs: Labelled) -> list[Drawing]:
    """Every figure that the runs of one benchmark allow; call it inside `style()`."""
    average, forgetting = metric_figure(runs, "average_accuracy"), metric_figure(runs, "forgetting")
    found = (average, progress_figure(runs), forgetting, calibration_figure(runs), memory_figure(runs))
    return [one for one in found if one is not None]


def metric_figure(runs: Labelled, key: MetricName) -> Drawing | None:
    """One metric of each run: mean as a mark, its 95 % interval as a line, every seed as a dot."""
    meaning = BY_KEY[key]
    unit, title, scale = meaning.unit, meaning.title, 1.0 if meaning.unit == "plain" else 100.0
    known = [(place, label, m) for place, (run, label) in enumerate(runs) if (m := run.result.metric(key))]
    if not known:
        return None
    figure, axes = _run_rows([label for _, label, _ in known])
    for row, (place, _, metric) in enumerate(known):
        colour, marker = series(place), MARKERS[place % len(MARKERS)]
        low_to_high = [scale * end for end in (metric.low, metric.high) if end is not None]
        seeds = [scale * value for value in metric.per_seed]
        axes.plot(low_to_high, [row] * len(low_to_high), color=colour, linewidth=3, alpha=0.4, solid_capstyle="round")
        axes.plot(seeds, [row + 0.24] * len(seeds), "o", markersize=3, color=colour, alpha=0.75)
        axes.plot([scale * metric.mean], [row], marker=marker, markersize=7.5, color=colour)
    axes.set_xlabel(f"{title.lower()}, {SYMBOLS[unit]}")
    rows = [(label, in_unit(m.mean, unit), in_unit(m.std, unit), interval(m, unit)) for _, label, m in known]
    told = "; ".join(f"{label} {mean}{SPACE}{SYMBOLS[unit]}".strip() for label, mean, *_ in rows)
    texts: dict[str, Any] = {"says": meaning.says, "better": meaning.better.capitalize(), "unit": SYMBOLS[unit]}
    return drawing("metric", figure, rows, name=key.replace("_", "-"), title=title, told=told, **texts)


def progress_figure(runs: Labelled) -> Drawing:
    """Average accuracy over the tasks so far, after each task, for each run."""
    figure, (axes,) = blank(3.2 + 0.2 * ((len(runs) + 1) // 2))
    rows, curves = [], [average_so_far(run.result.accuracy) for run, _ in runs]
    tasks = max(curve.shape[1] for curve in curves)
    for place, ((run, label), curve) in enumerate(zip(runs, curves, strict=True)):
        mean, std = spread(curve)
        line_with_band(axes, np.arange(1, len(mean) + 1), mean, std, run.result.score, **_line(place, label))
        rows.append((label, *(number(100 * value, 2) for value in mean), *[""] * (tasks - len(mean))))
    lowest, score = min(float(np.nanmin(curve)) for curve in curves), SCORE_NAMES[runs[0][0].result.score]
    accuracy_axis(axes, lowest, f"mean {score} so far")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(xlabel="tasks learned")
    figure.legend(loc="outside lower center", ncols=2)
    columns = ("Run", *(f"after {n + 1}" for n in range(tasks)))
    told = "; ".join(f"{row[0]} from {row[1]} % to {[cell for cell in row if cell][-1]} %" for row in rows)
    return drawing("progress", figure, rows, columns, told=told)


def calibration_figure(runs: Labelled) -> Drawing | None:
    """The calibration curves of the runs that have one."""
    known = [(place, label, c) for place, (run, label) in enumerate(runs) if (c := run.result.calibration)]
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
    return drawing("calibrations", figure, rows, name="calibration", runs=plural(len(known), "run"))


def memory_figure(runs: Labelled) -> Drawing | None:
    """Bytes kept at the end, side by side."""
    known = [(place, label, m) for place, (run, label) in enumerate(runs) if (m := run.result.memory_bytes)]
    most = max((memory.total for _, _, memory in known), default=0)
    if not most:
        return None
    figure, axes = _run_rows([label for _, label, _ in known])
    rows = []
    for row, (place, label, memory) in enumerate(known):
        axes.barh([row], [memory.total], color=series(place), height=0.58)
        axes.text(memory.total + 0.015 * most, row, size(memory.total), va="center", color=LIGHT["ink"])
        parts = sorted(memory.parts.items(), key=lambda one: -one[1])
        of_that = ", ".join(f"{kind} {size(count)}" for kind, count in parts)
        rows.append((label, size(memory.total), f"{memory.total:,}", of_that))
    axes.set(xlim=(0, 1.22 * most), xticks=[])
    axes.spines["bottom"].set_visible(False)
    return drawing("memory", figure, rows, told="; ".join(f"{label} {shown}" for label, shown, *_ in rows))


def _line(place: int, label: str) -> dict[str, Any]:
    dash = "-" if place < SERIES else (0, (4, 1.4))  # once the colours are used up
    name, marker = name_in_figure(label, LONGEST_LABEL), MARKERS[place % len(MARKERS)]
    return {"color": series(place), "marker": marker, "label": name, "linestyle": dash}


def _run_rows(labels: list[str]) -> tuple[Figure, Axes]:
    """A new figure with a row for each run."""
    figure, (axes,) = blank(0.9 + 0.5 * max(len(labels), 3))
    name_rows(axes, [name_in_figure(label, LONGEST_LABEL) for label in labels])
    axes.tick_params(axis="y", labelcolor=LIGHT["ink"])
    axes.spines["left"].set_visible(False)
    return figure, axes
