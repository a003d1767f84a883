"""Figures of the accuracy and the time of one run. Each comes with a caption, a description and its data."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from frcl.experiment.metrics import Floats, average_so_far, forgetting_by_task, spread
from frcl.experiment.results import Result, Score
from frcl.report.drawing import Drawing, blank, name_in_figure
from frcl.report.numbers import duration, number, percent, plural, score_word
from frcl.report.palette import HEAT_LEVELS, LIGHT, SERIES, heat, in_order, series
from frcl.report.tables import Table, matrix_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARKERS = ("o", "s", "D", "^", "v", "P", "X", "p")
NAMED_TICKS = 10  # with more tasks than this the axes count them
NUMBERS_IN_CELLS = 10


def matrix_figure(result: Result) -> Drawing:
    """Accuracy after learning task i (rows) on task j (columns), mean over seeds, as a heat map."""
    from matplotlib.patches import Rectangle

    mean, tasks = result.accuracy.mean(0), len(result.tasks)
    lowest = min(math.floor(10 * float(np.nanmin(mean)) + 1e-9) / 10, 0.9)
    figure, (axes,) = blank(4.1)
    for i in range(tasks):
        for j in range(i + 1):
            colour, on_it = heat((mean[i, j] - lowest) / (1 - lowest))
            axes.add_patch(Rectangle((j - 0.47, i - 0.47), 0.94, 0.94, facecolor=colour, linewidth=0))
            if tasks <= NUMBERS_IN_CELLS:
                axes.text(
                    j, i, number(100 * mean[i, j], 1), ha="center", va="center", color=on_it,
                    fontsize=9.5 if tasks <= 6 else 7.8,
                )  # fmt: skip
    axes.set(xlim=(-0.5, tasks - 0.5), ylim=(tasks - 0.5, -0.5), aspect="equal")
    axes.set(xlabel="on task", ylabel="after learning task")
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    axes.set_xticks(*_task_ticks(result))
    axes.set_yticks(*_task_ticks(result))
    _heat_scale(figure, axes, lowest, score_word(result.score))
    last = ", ".join(f"{task} {percent(mean[-1, j], 1)}" for j, task in enumerate(result.tasks[:12]))
    text = (
        f"Heat map of accuracy, rows after learning a task, columns on a task. After the last of {tasks} tasks: {last}"
        f"{', and so on' if tasks > 12 else ''}. Lowest cell {percent(float(np.nanmin(mean)), 1)}."
    )
    caption = (
        "Each row is the state after learning one task, each column the accuracy on one task. In %, mean over seeds."
    )
    return Drawing("accuracy-matrix", "Accuracy matrix", caption, text, figure, matrix_table(result))


def curves_figure(result: Result) -> Drawing:
    """Accuracy on every task from its learning on, with a band of one standard deviation over seeds."""
    R, tasks, few = result.accuracy, len(result.tasks), len(result.tasks) <= SERIES
    figure, (axes,) = blank(3.7 if few else 3.3)
    for task, name in enumerate(result.tasks):
        mean, std = spread(R[:, task:, task])  # a column of R
        x = np.arange(task, tasks)
        if few:
            label = name_in_figure(name)
            line_with_band(axes, x, mean, std, result.score, color=series(task), label=label, marker=MARKERS[task])
        else:
            label, mark = {0: "first task", tasks - 1: "last task"}.get(task, ""), "." if task == tasks - 1 else None
            axes.plot(x, mean, color=in_order(task, tasks), linewidth=1, label=label, marker=mark)
    average, std = spread(average_so_far(R))
    line_with_band(axes, np.arange(tasks), average, None if few else std, result.score, color=LIGHT["ink"],
                   label="average so far", linewidth=2.4, linestyle=(0, (3, 1.4)))  # fmt: skip
    accuracy_axis(axes, float(np.nanmin(R)), score_word(result.score))
    axes.set(xlabel="after learning task", xlim=(-0.2, tasks - 0.8))
    axes.set_xticks(*_task_ticks(result))
    figure.legend(loc="outside lower center", ncols=3)
    caption = "Accuracy on each task from the moment it is learned"
    caption += "." if few else ", colours in the order of the tasks."
    if std is not None:
        caption += f" Band{'s' if few else ' of the average'}: ± one standard deviation over seeds."
    return Drawing("accuracy-curves", "Every task over time", caption, _curves_text(result, average), figure,
                   _curves_table(result, average))  # fmt: skip


def line_with_band(axes: Axes, x: Any, mean: Floats, std: Floats | None, score: Score, **line: Any) -> None:
    """A line, and a band of one standard deviation that does not leave the range of the score."""
    axes.plot(x, mean, **line)
    if std is not None:
        low, high = np.clip((mean - std, mean + std), 0.0 if score == "accuracy" else -np.inf, 1.0)
        axes.fill_between(x, low, high, color=line["color"], alpha=0.15, linewidth=0)


def forgetting_figure(result: Result) -> Drawing:
    """Forgetting of each task but the last: mean as a bar, every seed as a dot."""
    lost = forgetting_by_task(result.accuracy)
    mean, count = lost.mean(0), lost.shape[1]
    rows = np.arange(count)
    figure, (axes,) = blank(max(1.9, 0.8 + min(0.34 * count, 1.6 + 0.15 * count)))
    axes.barh(rows, 100 * mean, color=LIGHT["series-0"], height=0.62, alpha=0.85)
    for each in lost:
        axes.plot(100 * each, rows, linestyle="none", marker="o", markersize=3.2, markerfacecolor=LIGHT["card"],
                  markeredgecolor=LIGHT["ink"], markeredgewidth=0.9)  # fmt: skip
    axes.axvline(0, color=LIGHT["axis"], linewidth=1)
    axes.set(ylim=(count - 0.4, -0.6), xlabel=f"{score_word(result.score)} lost, percentage points")
    axes.set_yticks(rows, [name_in_figure(name) for name in result.tasks[:-1]], fontsize=9.5 if count <= 20 else 6.5)
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
    worst = int(mean.argmax())
    text = (
        f"Bar chart of forgetting by task. Most: {result.tasks[worst]} with {number(100 * mean[worst], 2)} points. "
        + (f"Mean over {plural(count, 'task')}: {number(100 * float(mean.mean()), 2)} points.")
    )
    table = Table(
        "forgetting",
        "Accuracy lost from the best before the last task to the end, in percentage points",
        ("Task", "Mean", *(f"seed {seed}" for seed in result.seeds)),
        tuple(
            (result.tasks[j], number(100 * mean[j], 2), *(number(100 * value, 2) for value in lost[:, j]))
            for j in range(count)
        ),
    )
    caption = (
        "From the best accuracy a task ever had to its accuracy at the end. Dots are seeds; left of zero is a gain."
    )
    return Drawing("forgetting", "Forgetting by task", caption, text, figure, table)


def time_figure(result: Result) -> Drawing:
    """Where the time went, as one bar."""
    parts = time_parts(result)
    total = sum(value for _, value in parts)
    figure, (axes,) = blank(1.35)
    left = 0.0
    for place, (name, value) in enumerate(parts):
        share = value / total
        colour = series(place) if name != "the rest" else LIGHT["axis"]
        label = f"{name} {duration(value)} ({100 * share:.0f} %)"
        axes.barh([0], [share], left=[left], color=colour, height=0.6, label=label)
        left += share
    axes.set(xlim=(0, 1), ylim=(-0.4, 0.4))
    axes.axis("off")
    figure.legend(loc="outside lower center", ncols=2, handlelength=0.9, handleheight=0.9)
    text = "Bar of the time spent: " + ", ".join(f"{name} {duration(value)}" for name, value in parts) + "."
    table = Table("time", "Time spent, all seeds together", ("Part", "Time"),
                  tuple((name, duration(value)) for name, value in parts))  # fmt: skip
    caption = f"{duration(total)} in all, all seeds together."
    return Drawing("time", "Where the time went", caption, text, figure, table)


def time_parts(result: Result) -> list[tuple[str, float]]:
    """The named parts of the time and the remainder of the total; empty if no time was recorded."""
    seconds = result.seconds
    if seconds is None or not seconds.total:
        return []
    parts = [("training", seconds.train), ("choosing points", seconds.select), ("evaluation", seconds.evaluate)]
    rest = seconds.total - sum(value for _, value in parts)
    return [*parts, ("the rest", rest)] if rest > 0.005 * seconds.total else parts


def _heat_scale(figure: Figure, axes: Axes, lowest: float, word: str) -> None:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import ListedColormap, Normalize

    colours = ListedColormap([LIGHT[f"heat-{level}"] for level in range(HEAT_LEVELS)])

    bar = figure.colorbar(
        ScalarMappable(Normalize(100 * lowest, 100), colours), ax=axes, shrink=0.75, aspect=22, pad=0.03
    )
    bar.outline.set_visible(False)
    bar.set_label(f"{word}, %")
    bar.ax.tick_params(length=0)


def _task_ticks(result: Result) -> tuple[list[int], list[str]]:
    tasks = len(result.tasks)
    if tasks <= NAMED_TICKS and all(len(name) <= 40 / tasks for name in result.tasks):
        return list(range(tasks)), [name_in_figure(name) for name in result.tasks]
    every = max(1, math.ceil(tasks / NAMED_TICKS))
    return list(range(0, tasks, every)), [str(number + 1) for number in range(0, tasks, every)]


def accuracy_axis(axes: Axes, lowest: float, label: str) -> None:
    """Percent on the y axis, from a round number under the lowest value to 100."""
    from matplotlib.ticker import FuncFormatter

    bottom = math.floor(20 * (lowest - 0.01)) / 20
    bottom = max(bottom, 0.0) if lowest >= 0 else bottom
    axes.set(ylim=(bottom, 1 + 0.02 * (1 - bottom)), ylabel=label)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g}%"))


def _curves_text(result: Result, average: Floats) -> str:
    mean = result.accuracy.mean(0)
    told = [
        f"{name} from {percent(mean[j, j], 1)} to {percent(mean[-1, j], 1)}" for j, name in enumerate(result.tasks[:12])
    ]
    more = f", and {len(result.tasks) - 12} more tasks" if len(result.tasks) > 12 else ""
    return (
        f"Lines of accuracy over time, from just after learning to the end: {', '.join(told)}{more}. "
        f"The average over the tasks so far goes from {percent(average[0], 1)} to {percent(average[-1], 1)}."
    )


def _curves_table(result: Result, average: Floats) -> Table:
    mean, std = spread(result.accuracy)

    def cell(i: int, j: int) -> str:
        if j > i:
            return ""
        return number(100 * mean[i, j], 2) + ("" if std is None else f" ± {number(100 * std[i, j], 2)}")

    tasks = range(len(result.tasks))
    rows = [(result.tasks[i], *(cell(i, j) for j in tasks), number(100 * average[i], 2)) for i in tasks]
    columns = ("After learning", *(f"on {name}" for name in result.tasks), "average so far")
    caption = "Accuracy over time in %" + ("" if std is None else ", mean ± standard deviation over seeds")
    return Table("curves", caption, columns, tuple(rows))
