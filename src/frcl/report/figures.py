"""Figures of one run, each with its texts and its data; a figure that a run does not allow gives the reason as text."""

import base64
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib import cm, colors, patches, ticker
from matplotlib.axes import Axes
from numpy.typing import NDArray
from PIL import Image

from frcl.experiment.metrics import Floats, average_so_far, forgetting_by_task, spread
from frcl.experiment.results import Score
from frcl.learners.types import plural
from frcl.report.drawing import LIGHT, SERIES, WIDTH, Drawing, blank, drawing, heat, name_in_figure, series
from frcl.report.numbers import SCORE_NAMES, duration, number, percent
from frcl.report.run import Run
from frcl.report.tables import matrix_rows, matrix_table

COLUMNS = 10
MOST_IMAGES = 40  # of one task
TINT = 0.05
SMALLEST_SIDE = 5  # fewer than 25 features are not taken for an image


@dataclass(frozen=True, eq=False)
class Contact:
    """The images of one task on one sheet: RGBA pixels [height, width, 4], clear between the images."""

    task: str
    caption: str
    text: str
    pixels: NDArray[np.uint8]
    ink: bool  # whether the images are grey, so that they can be inverted on a dark page

    @property
    def address(self) -> str:
        """The sheet as a PNG in a data URL."""
        buffer = io.BytesIO()
        Image.fromarray(self.pixels).save(buffer, format="PNG", optimize=True)
        return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def contact_sheets(run: Run) -> list[Contact]:
    """A sheet for each of the learner's tasks whose inducing inputs are images."""
    pairs = [(run.task(number), as_images(points)) for number, points in run.points.items()]
    found = [(task, images) for task, images in pairs if images is not None and len(images)]
    low = min([0.0, *(float(images.min()) for _, images in found)])
    high = max([low + 1e-12 if low < 0.0 else 1.0, *(float(images.max()) for _, images in found)])
    sheets = []
    for task, images in found:
        shown, side = images[:MOST_IMAGES], images.shape[1]
        part = "" if len(shown) == len(images) else f", the first {len(shown)} shown"
        caption = f"{plural(len(images), 'image')} of {side}×{side}{part}"
        text, pixels = f"Inducing inputs, {task}: {caption}", to_rgba(sheet((shown - low) / (high - low)))
        sheets.append(Contact(task, caption, text, pixels, ink=images.ndim == 3))
    return sheets


def as_images(points: NDArray[Any]) -> Floats | None:
    """[M, H, W] or [M, H, W, 3]: the last two axes if they are square, else the flat length if it is a square."""
    values: Floats = points.astype(np.float64)
    if values.ndim >= 3 and values.shape[-1] == values.shape[-2] >= SMALLEST_SIDE:
        if values.ndim == 4 and values.shape[1] == 3:
            return values.transpose(0, 2, 3, 1)
        return np.asarray(values.reshape(len(values), -1, *values.shape[-2:]).mean(1))
    length = math.prod(values.shape[1:])
    side = math.isqrt(length)
    return values.reshape(len(values), side, side) if side >= SMALLEST_SIDE and side * side == length else None


def sheet(images: Floats) -> Floats:
    """Images in rows of `COLUMNS`, a gap of one pixel (two for large ones) between them."""
    count, side, _, *colours = images.shape
    columns, gap = min(count, COLUMNS), 1 if side < 20 else 2
    rows, step = math.ceil(count / columns), side + gap
    tiles = np.full((rows * columns, step, step, *colours), np.nan)
    tiles[:count, :side, :side] = images
    grid = tiles.reshape(rows, columns, step, step, *colours).swapaxes(1, 2)
    return grid.reshape(rows * step, columns * step, *colours)[:-gap, :-gap]


def to_rgba(sheet: Floats) -> NDArray[np.uint8]:
    """Grey images become black on a transparent, faintly tinted ground; colour images stay; NaN is transparent."""
    if sheet.ndim == 2:
        shown = np.stack([*np.zeros((3, *sheet.shape)), TINT + (1 - TINT) * sheet], axis=-1)
    else:
        shown = np.concatenate([sheet, 1.0 - np.isnan(sheet[..., :1])], axis=-1)
    return np.asarray(np.rint(255 * np.where(np.isnan(shown), 0.0, shown)), dtype=np.uint8)


def points_figure(run: Run) -> Drawing | str:
    """All sheets in one figure, for the files; the page shows the same sheets in a grid."""
    sheets = contact_sheets(run)
    if not sheets:
        parts = run.result.memory_bytes.parts if run.result.memory_bytes else {}
        none = "points.npz is missing" if parts.get("points") else "the run kept no inducing points"
        kept = "the inputs kept are not images" if run.points else none
        return f"Inducing images: {kept}."
    ratios = [max(one.pixels.shape[0] / one.pixels.shape[1], 0.1) for one in sheets]
    figure, places = blank(sum(0.72 * WIDTH * ratio + 0.3 for ratio in ratios), rows=len(sheets), height_ratios=ratios)
    for axes, one in zip(places, sheets, strict=True):
        axes.imshow(one.pixels, interpolation="none")
        axes.set_title(name_in_figure(one.task), loc="left")
        axes.axis("off")
    return drawing("inducing-images", figure, told="; ".join(one.text for one in sheets))


MARKERS = ("o", "s", "D", "^", "v", "P", "X", "p")
NAMED_TICKS = NUMBERS_IN_CELLS = 10  # with more tasks than this the axes count them, and cells have no numbers
MOST_NAMED = 12  # in a description
MOST_POINTS = 1200  # of a line over steps
ORDERED = 9  # colours for tasks in order
TERMS = {"loss": "loss", "log_likelihood": "−log-likelihood", "kl_now": "KL now", "kl_past": "KL past"}


def matrix_figure(run: Run) -> Drawing:
    """Accuracy after learning task i (rows) on task j (columns), mean over seeds, as a heat map."""
    return _heat_map(run, run.result.accuracy, "accuracy-matrix")


def no_task_figure(run: Run) -> Drawing | str:
    """The same where no task is named."""
    if run.result.agnostic is None:
        return "Accuracy without the task: not measured in this run."
    return _heat_map(run, run.result.agnostic, "no-task-matrix")


def _heat_map(run: Run, R: Floats, key: str) -> Drawing:
    mean, names, tasks = R.mean(0), run.result.tasks, len(run.result.tasks)
    least = float(np.nanmin(mean))
    lowest = min(math.floor(10 * least + 1e-9) / 10, 0.9)
    figure, (axes,) = blank(4.1)
    for i, j in np.argwhere(np.tri(tasks)).tolist():
        colour, on_it = heat((mean[i, j] - lowest) / (1 - lowest))
        axes.add_patch(patches.Rectangle((j - 0.47, i - 0.47), 0.94, 0.94, facecolor=colour, linewidth=0))
        if tasks <= NUMBERS_IN_CELLS:
            text, size = number(100 * mean[i, j], 1), 9.5 if tasks <= 6 else 7.8
            axes.text(j, i, text, ha="center", va="center", color=on_it, fontsize=size)
    axes.set(xlim=(-0.5, tasks - 0.5), ylim=(tasks - 0.5, -0.5), aspect="equal")
    axes.set(xlabel="on task", ylabel="after learning task")
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    axes.set_xticks(*_task_ticks(names))
    axes.set_yticks(*_task_ticks(names))
    colours = colors.ListedColormap([colour for role, colour in LIGHT.items() if role.startswith("heat-")])
    scale = cm.ScalarMappable(colors.Normalize(100 * lowest, 100), colours)
    bar = figure.colorbar(scale, ax=axes, shrink=0.75, aspect=22, pad=0.03)
    bar.outline.set_visible(False)
    bar.set_label(f"{SCORE_NAMES[run.result.score]}, %")
    bar.ax.tick_params(length=0)
    last = ", ".join(f"{task} {percent(mean[-1, j], 1)}" for j, task in enumerate(names[:MOST_NAMED]))
    last += ", and so on" if tasks > MOST_NAMED else ""
    found = drawing(key, figure, tasks=tasks, last=last, lowest=percent(least, 1))
    return replace(found, table=matrix_table(run, R))


def _task_ticks(names: Sequence[str]) -> tuple[range, list[str]]:
    tasks = len(names)
    if tasks <= NAMED_TICKS and all(len(name) <= 40 / tasks for name in names):
        return range(tasks), [name_in_figure(name) for name in names]
    shown = range(0, tasks, math.ceil(tasks / NAMED_TICKS))
    return shown, [str(task + 1) for task in shown]


def curves_figure(run: Run) -> Drawing:
    """Accuracy on every task from its learning on, with a band of one standard deviation over seeds."""
    R, names, score, tasks = run.result.accuracy, run.result.tasks, run.result.score, len(run.result.tasks)
    few = tasks <= SERIES
    figure, (axes,) = blank(3.7 if few else 3.3)
    for task, name in enumerate(names):
        mean, std = spread(R[:, task:, task])  # a column of R
        look: dict[str, Any] = {"color": series(task), "label": name_in_figure(name), "marker": MARKERS[task % SERIES]}
        if not few:
            label, marker = {0: ("first task", None), tasks - 1: ("last task", ".")}.get(task, ("", None))
            role = f"order-{round(task * (ORDERED - 1) / (tasks - 1))}"
            look = {"color": LIGHT[role], "label": label, "marker": marker, "linewidth": 1}
        line_with_band(axes, np.arange(task, tasks), mean, std if few else None, score, **look)
    average, std = spread(average_so_far(R))
    look = {"color": LIGHT["ink"], "label": "average so far", "linewidth": 2.4, "linestyle": (0, (3, 1.4))}
    line_with_band(axes, np.arange(tasks), average, None if few else std, score, **look)
    accuracy_axis(axes, float(np.nanmin(R)), SCORE_NAMES[score])
    axes.set(xlabel="after learning task", xlim=(-0.2, tasks - 0.8))
    axes.set_xticks(*_task_ticks(names))
    figure.legend(loc="outside lower center", ncols=3)
    mean = R.mean(0)
    told = [f"{name} from {percent(mean[j, j], 1)} to {percent(mean[-1, j], 1)}" for j, name in enumerate(names)]
    told[MOST_NAMED:] = [f"and {tasks - MOST_NAMED} more tasks"] if tasks > MOST_NAMED else []
    bands = f" Band{'s' if few else ' of the average'}: ± one standard deviation over seeds."
    rows = [(*row, number(100 * a, 2)) for row, a in zip(matrix_rows(R, names, with_std=True), average, strict=True)]
    return drawing(
        "accuracy-curves", figure, rows, ("After learning", *(f"on {name}" for name in names), "average so far"),
        colours="" if few else ", colours in the order of the tasks", bands="" if std is None else bands,
        told=", ".join(told), first=percent(average[0], 1), last=percent(average[-1], 1),
        spread="" if std is None else ", mean ± standard deviation over seeds",
    )  # fmt: skip


def line_with_band(axes: Axes, x: Any, mean: Floats, std: Floats | None, score: Score, **line: Any) -> None:
    """A line, and a band of one standard deviation that does not leave the range of the score."""
    axes.plot(x, mean, **line)
    if std is not None:
        low, high = np.clip((mean - std, mean + std), 0.0 if score == "accuracy" else -np.inf, 1.0)
        axes.fill_between(x, low, high, color=line["color"], alpha=0.15, linewidth=0)


def accuracy_axis(axes: Axes, lowest: float, label: str) -> None:
    """Percent on the y axis, from a round number under the lowest value to 100."""
    bottom = max(math.floor(20 * (lowest - 0.01)) / 20, 0.0 if lowest >= 0 else -math.inf)
    axes.set(ylim=(bottom, 1 + 0.02 * (1 - bottom)), ylabel=label)
    axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{100 * value:g}%"))


def forgetting_figure(run: Run) -> Drawing | str:
    """Forgetting of each task but the last: mean as a bar, every seed as a dot."""
    names, lost = run.result.tasks[:-1], 100 * forgetting_by_task(run.result.accuracy)
    mean, count = lost.mean(0), len(names)
    if not names:
        return "Forgetting by task: there is one task only."
    figure, (axes,) = blank(max(1.9, 0.8 + min(0.34 * count, 1.6 + 0.15 * count)))
    axes.barh(range(count), mean, color=LIGHT["series-0"], height=0.62, alpha=0.85)
    axes.plot(lost.T, range(count), linestyle="none", marker="o", markersize=3.2, markerfacecolor=LIGHT["card"],
              markeredgecolor=LIGHT["ink"], markeredgewidth=0.9)  # fmt: skip
    axes.axvline(0, color=LIGHT["axis"], linewidth=1)
    axes.set_xlabel(f"{SCORE_NAMES[run.result.score]} lost, percentage points")
    name_rows(axes, [name_in_figure(name) for name in names], fontsize=9.5 if count <= 20 else 6.5)
    rows = [(name, *(number(value, 2) for value in (mean[j], *lost[:, j]))) for j, name in enumerate(names)]
    columns = ("Task", "Mean", *(f"seed {seed}" for seed in run.result.seeds))
    told = {"worst": names[int(mean.argmax())], "most": number(mean.max(), 2), "mean": number(mean.mean(), 2)}
    return drawing("forgetting", figure, rows, columns, tasks=plural(count, "task"), **told)


def name_rows(axes: Axes, labels: Sequence[str], **text: Any) -> None:
    """A label for each of the rows 0, 1, …, the first row on top."""
    axes.set_yticks(range(len(labels)), labels, **text)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)


def time_figure(run: Run) -> Drawing | str:
    """Where the time went, as one bar: its named parts, and the remainder of the total."""
    seconds = run.result.seconds
    if seconds is None or not seconds.total:
        return "Time: the run recorded none."
    parts = {"training": seconds.train, "choosing points": seconds.select, "evaluation": seconds.evaluate}
    rest = seconds.total - sum(parts.values())
    parts |= {"the rest": rest} if rest > 0.005 * seconds.total else {}
    total, left, rows = sum(parts.values()), 0.0, [(name, duration(value)) for name, value in parts.items()]
    figure, (axes,) = blank(1.35)
    for place, (name, shown) in enumerate(rows):
        share, colour = parts[name] / total, LIGHT["axis"] if name == "the rest" else series(place)
        label = f"{name} {shown} ({100 * share:.0f} %)"
        axes.barh([0], [share], left=[left], color=colour, height=0.6, label=label)
        left += share
    axes.set(xlim=(0, 1), ylim=(-0.4, 0.4))
    axes.axis("off")
    figure.legend(loc="outside lower center", ncols=2, handlelength=0.9, handleheight=0.9)
    return drawing("time", figure, rows, told=", ".join(map(" ".join, rows)), total=duration(total))


def calibration_figure(run: Run) -> Drawing | str:
    """Accuracy against confidence in bins, and the share of predictions in each."""
    curve = run.result.calibration
    if curve is None or not curve.filled.any():
        return "Calibration: the run recorded no class probabilities."
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
    told = ", ".join(f"{percent(b, 0)} right at {percent(a, 0)} confidence" for a, b in zip(x, y, strict=True))
    return drawing("calibration", figure, rows, told=told)


def perfect_line(axes: Axes) -> None:
    """The axes of a calibration curve, with the diagonal of perfect calibration."""
    axes.plot([0, 1], [0, 1], color=LIGHT["axis"], linewidth=1.2, linestyle=(0, (4, 2)))
    axes.set(xlim=(0, 1), ylim=(0, 1.03), ylabel="accuracy")


def boundary_figure(run: Run) -> Drawing | str:
    """The statistic over steps with its threshold, the true switches and those that were found."""
    boundaries = run.result.boundaries
    if boundaries is None:
        return "Task switches: the learner was told where tasks begin."
    found, threshold, acted = boundaries.found, boundaries.threshold, boundaries.acted_on
    step, value = thin_by_peaks(np.array(boundaries.statistic_step, np.float64), boundaries.statistic, MOST_POINTS)
    figure, (axes,) = blank(3.1)
    for place, switch in enumerate(boundaries.true):
        label = "" if place else "true switch"
        axes.axvline(switch, color=LIGHT["series-2"], linewidth=6, alpha=0.3, label=label)
    axes.plot(step, value, color=LIGHT["series-0"], linewidth=1.1, label="statistic")
    axes.axhline(threshold, color=LIGHT["muted"], linewidth=1.1, label=f"threshold {threshold:g}")
    top = float(np.nanmax(np.append(value, [threshold, 1e-9])))
    bottom = float(np.nanmin(np.append(value, 0.0)))
    if found:
        axes.plot(found, np.full(len(found), 1.06 * top), linestyle="none", marker="v", markersize=7,
                  color=LIGHT["series-1"], label="found switch", clip_on=False)  # fmt: skip
    axes.set(ylim=(1.05 * bottom, 1.14 * top), xlabel="step", ylabel="test statistic")
    figure.legend(loc="outside lower center", ncols=4, columnspacing=1.0, handletextpad=0.5)
    scored = ((f"{s.threshold:g}", s.precision, s.recall, s.f1, number(s.delay, 1)) for s in boundaries.scores)
    rows = [(at, number(p, 3), number(r, 3), number(f1, 3), delay) for at, p, r, f1, delay in scored]
    scores = ", ".join(f"{name} {number(metric.mean, 3)}" for name, metric in acted.items() if metric)
    told = f"{len(found)} switch{'es' * (len(found) != 1)}{f' at steps {_listed(found)}' if found else ''}"
    return drawing("boundaries", figure, rows, scores=scores, true=_listed(boundaries.true), found=told)


def _listed(steps: Sequence[int]) -> str:
    shown = ", ".join(f"{step:,}" for step in steps[:MOST_NAMED])
    return (shown or "none") + (" and more" if len(steps) > MOST_NAMED else "")


def thin_by_peaks(position: Floats, values: Floats, limit: int) -> tuple[Floats, Floats]:
    """At most `limit` points: the largest value of each stretch at its own position, so that no peak is lost."""
    if len(values) <= limit:
        return position, values
    ranked = np.where(np.isnan(values), -np.inf, values)
    kept = [part[int(ranked[part].argmax())] for part in np.array_split(np.arange(len(values)), limit)]
    return position[kept], values[kept]


def terms_figure(run: Run) -> Drawing | str:
    """Loss and −log-likelihood above, the KL terms below, over the steps of all tasks."""
    steps = run.result.steps
    if steps is None or not steps.step:
        return "Training terms: the run has no step log."
    terms = {name: (-1 if name == "log_likelihood" else 1) * getattr(steps, name) for name in TERMS}
    terms = {name: values for name, values in terms.items() if np.isfinite(values).any() and np.nanmax(abs(values)) > 0}
    panels = [panel for kl in (False, True) if (panel := [name for name in terms if name.startswith("kl") == kl])]
    position, task = steps.position, np.array(steps.task)
    edges = [*np.flatnonzero(np.diff(task, prepend=task[0] - 1)), len(task) - 1]
    figure, axes = blank(2.5 if len(panels) == 1 else 4.0, rows=len(panels), sharex=True)
    for panel, place in zip(panels, axes, strict=True):
        for name in panel:
            colour, dash = series(list(TERMS).index(name)), "-" if name in ("loss", "kl_now") else (0, (4, 1.2))
            place.plot(position, terms[name], color=colour, linewidth=1.2, label=TERMS[name], linestyle=dash)
        _nats_axis(place, np.concatenate([terms[name] for name in panel]))
        for start, end in list(pairwise(edges))[1::2]:  # a faint band behind every second task
            place.axvspan(position[start], position[end], color=LIGHT["line"], alpha=0.45, linewidth=0)
        place.set_xlim(position[0], max(position[-1], position[0] + 1))
        place.grid(visible=False, axis="x")
        place.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, borderaxespad=0.2)
    axes[-1].set_xlabel("step, all tasks in a row")
    last = {task: place for place, task in enumerate(steps.task)}  # the last logged step of each task
    rows = [(run.task(one), *(number(values[at], 4) for values in terms.values())) for one, at in last.items()]
    names = [TERMS[name] for name in terms]
    ends = ", ".join(f"{name} {value}" for name, value in zip(names, rows[-1][1:], strict=True))
    every, logged = f", every {steps.every} steps" if steps.every > 1 else "", plural(len(steps.step), "logged step")
    return drawing("training-terms", figure, rows, ("Task", *names), logged=logged, ends=ends, every=every)


def _nats_axis(axes: Axes, values: Floats) -> None:
    """Logarithmic if every value is positive."""
    finite = values[np.isfinite(values)]
    if len(finite) and (finite > 0).all():
        locator = ticker.LogLocator(subs=(1.0, 2.0, 5.0) if np.log10(finite.max() / finite.min()) < 2.5 else (1.0,))
        axes.set_yscale("log")
        axes.yaxis.set(major_locator=locator, minor_locator=ticker.NullLocator())
        axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_ylabel("nats")
