"""Figures that set several runs of one benchmark side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from frcl.report.derive import average_curve, over_seeds
from frcl.report.drawing import Drawing, blank, name_in_figure
from frcl.report.figures import MARKERS, accuracy_axis
from frcl.report.numbers import BY_KEY, bare, interval, number, percent, plural, size, symbol, with_unit
from frcl.report.palette import LIGHT, SERIES, series
from frcl.report.run import Run
from frcl.report.tables import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Labelled = Sequence[tuple[Run, str]]
LONGEST_LABEL = 26


def draw_together(runs: Labelled) -> list[Drawing]:
    """Every figure the runs of one benchmark allow; call it inside `style()`."""
    drawings = [metric_figure(runs, key) for key in ("average_accuracy", "forgetting")]
    drawings.insert(1, progress_figure(runs))
    return [drawing for drawing in (*drawings, calibration_figure(runs), memory_figure(runs)) if drawing is not None]


def metric_figure(runs: Labelled, key: str) -> Drawing | None:
    """One metric of each run: mean as a mark, its 95 % interval as a line, every seed as a dot."""
    meaning, scale = BY_KEY[key], 1.0 if BY_KEY[key].unit == "plain" else 100.0
    known = [(place, run.metrics[key]) for place, (run, _) in enumerate(runs) if key in run.metrics]
    if not known:
        return None
    figure, (axes,) = blank(_height(len(known)))
    for row, (place, metric) in enumerate(known):
        colour = series(place)
        if metric.low is not None and metric.high is not None:
            axes.plot([scale * metric.low, scale * metric.high], [row, row], color=colour, linewidth=3, alpha=0.4,
                      solid_capstyle="round")  # fmt: skip
        seeds = scale * np.array(metric.per_seed)
        axes.plot(seeds, np.full(len(seeds), row + 0.24), linestyle="none", marker="o", markersize=3, color=colour,
                  alpha=0.75)  # fmt: skip
        axes.plot([scale * metric.mean], [row], marker=MARKERS[place % len(MARKERS)], markersize=7.5, color=colour)
    _run_axis(axes, [runs[place][1] for place, _ in known])
    axes.set_xlabel(f"{meaning.title.lower()}, {symbol(meaning.unit)}")
    rows = [
        (runs[place][1], bare(m.mean, meaning.unit), bare(m.std, meaning.unit), interval(m.low, m.high, meaning.unit))
        for place, m in known
    ]
    said = "; ".join(f"{runs[place][1]} {with_unit(metric.mean, meaning.unit)}" for place, metric in known)
    table = Table(key, f"{meaning.title}, {symbol(meaning.unit)}", ("Run", "Mean", "Std", "95 % interval"), tuple(rows))
    caption = (
        f"{meaning.says} Mean with its 95 % interval; small dots are seeds. {meaning.better.capitalize()} is better."
    )
    return Drawing(key.replace("_", "-"), meaning.title, caption, f"{meaning.title}: {said}.", figure, table)


def progress_figure(runs: Labelled) -> Drawing:
    """Average accuracy over the tasks so far, after each task, for each run."""
    from matplotlib.ticker import MaxNLocator

    figure, (axes,) = blank(3.2 + 0.2 * ((len(runs) + 1) // 2))
    rows = []
    for place, (run, label) in enumerate(runs):
        mean, std = over_seeds(average_curve(run.accuracy))
        x = np.arange(1, len(mean) + 1)
        axes.plot(
            x, mean, color=series(place), marker=MARKERS[place % len(MARKERS)],
            label=name_in_figure(label, LONGEST_LABEL), linestyle=_stroke(place),
        )  # fmt: skip
        if std is not None:
            axes.fill_between(x, mean - std, np.minimum(mean + std, 1), color=series(place), alpha=0.15,
                              linewidth=0)  # fmt: skip
        rows.append((label, *(number(100 * value, 2) for value in mean)))
    lowest = min(float(np.nanmin(average_curve(run.accuracy))) for run, _ in runs)
    accuracy_axis(axes, lowest, f"mean {runs[0][0].score_word} so far")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(xlabel="tasks learned")
    figure.legend(loc="outside lower center", ncols=2)
    tasks = max(len(row) for row in rows) - 1
    filled = tuple((*row, *[""] * (tasks + 1 - len(row))) for row in rows)
    columns = ("Run", *(f"after {n + 1}" for n in range(tasks)))
    table = Table("progress", "Mean accuracy over the tasks so far, %", columns, filled)
    said = "; ".join(f"{row[0]} from {row[1]} % to {row[-1]} %" for row in rows)
    caption = "Mean accuracy over all tasks learned so far. Bands: ± one standard deviation over seeds."
    return Drawing("progress", "Accuracy as tasks arrive", caption, f"Lines of mean accuracy: {said}.", figure, table)


def calibration_figure(runs: Labelled) -> Drawing | None:
    """The calibration curves of the runs that have one."""
    known = [(place, run.calibration) for place, (run, _) in enumerate(runs) if run.calibration is not None]
    if not known:
        return None
    figure, (axes,) = blank(3.4 + 0.2 * ((len(known) + 1) // 2))
    axes.plot([0, 1], [0, 1], color=LIGHT["axis"], linewidth=1.2, linestyle=(0, (4, 2)))
    rows = []
    for place, curve in known:
        filled = (curve.count > 0) & np.isfinite(curve.confidence) & np.isfinite(curve.accuracy)
        label = runs[place][1]
        axes.plot(curve.confidence[filled], curve.accuracy[filled], color=series(place),
                  marker=MARKERS[place % len(MARKERS)], label=name_in_figure(label, LONGEST_LABEL),
                  linestyle=_stroke(place))  # fmt: skip
        rows += [
            (label, percent(confidence, 1), percent(accuracy, 1), f"{count:,.0f}")
            for confidence, accuracy, count in zip(
                curve.confidence[filled], curve.accuracy[filled], curve.count[filled], strict=True
            )
        ]
    axes.set(xlim=(0, 1), ylim=(0, 1.03), xlabel="confidence", ylabel="accuracy")
    figure.legend(loc="outside lower center", ncols=2)
    table = Table("calibration", "Confidence and accuracy in bins, seeds pooled",
                  ("Run", "Confidence", "Accuracy", "Inputs"), tuple(rows))  # fmt: skip
    text = f"Calibration curves of {plural(len(known), 'run')}; the numbers are in the table below."
    caption = "How often the predictions are right against how sure they are. The dashed line is perfect."
    return Drawing("calibration", "Calibration", caption, text, figure, table)


def memory_figure(runs: Labelled) -> Drawing | None:
    """Bytes kept at the end, side by side."""
    known = [(place, run.memory_total) for place, (run, _) in enumerate(runs) if run.memory_total is not None]
    if not any(count for _, count in known):
        return None
    figure, (axes,) = blank(_height(len(known)))
    most = max(count for _, count in known)
    for row, (place, count) in enumerate(known):
        axes.barh([row], [count], color=series(place), height=0.58)
        axes.text(count + 0.015 * most, row, size(count), va="center", color=LIGHT["ink"])
    _run_axis(axes, [runs[place][1] for place, _ in known])
    axes.set_xlim(0, 1.22 * most)
    axes.set_xticks([])
    axes.spines["bottom"].set_visible(False)
    rows = [(runs[place][1], size(count), f"{count:,}", _kinds(runs[place][0])) for place, count in known]
    said = "; ".join(f"{label} {shown}" for label, shown, *_ in rows)
    table = Table("memory", "Memory kept after the last task", ("Run", "Kept", "Bytes", "Of that"), tuple(rows))
    caption = "What each method keeps of past tasks after the last one."
    return Drawing("memory", "Memory kept", caption, f"Bars of memory kept: {said}.", figure, table)


def _kinds(run: Run) -> str:
    """What is kept by kind, the largest first."""
    return ", ".join(f"{kind} {size(count)}" for kind, count in sorted(run.kinds.items(), key=lambda one: -one[1]))


def _stroke(place: int) -> Any:
    """Dashed once the colours have been used up."""
    return "-" if place < SERIES else (0, (4, 1.4))


def _height(rows: int) -> float:
    return 0.9 + 0.5 * max(rows, 3)


def _run_axis(axes: Axes, labels: list[str]) -> None:
    axes.set_yticks(range(len(labels)), [name_in_figure(label, LONGEST_LABEL) for label in labels])
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0, labelcolor=LIGHT["ink"])
    axes.grid(visible=False, axis="y")
    axes.spines["left"].set_visible(False)
