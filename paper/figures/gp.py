"""Figures 1 and 2: the method and its boundary detection on functions of one input."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from frcl import FRCL, StepLog
from paper.figures.base import FigureSpec, canvas
from paper.figures.sheets import Sheet, sheet
from paper.library import (
    LIGHT,
    Drawing,
    Moments,
    features_of,
    fork,
    predict_from_summary,
    series,
    summary_points,
    threads,
    welch,
)
from paper.measure import Place

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Data = tuple[Tensor, Tensor]
Rows = list[tuple[object, ...]]
STEPS, QUICK_STEPS = 2000, 60
EDGE = 5.6  # the axis goes from -EDGE to EDGE
TARGET_STD = 0.15
DOTS: dict[str, Any] = {"linestyle": "none", "marker": "o", "color": LIGHT["ink"], "zorder": 4}


class Waves(nn.Module):
    """φ(x) = √(2/K) cos(ωx + b). Random ω and b give a nearly stationary kernel; both are then learned."""

    def __init__(self, count: int, frequency: float) -> None:
        super().__init__()
        generator = fork(0, "network")
        self.inner = nn.utils.skip_init(nn.Linear, 1, count)
        with torch.no_grad():
            self.inner.weight.normal_(0, frequency, generator=generator)
            self.inner.bias.uniform_(0, 2 * math.pi, generator=generator)
        self.scale = math.sqrt(2 / count)

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * torch.cos(self.inner(x))


def grid() -> Tensor:
    return torch.linspace(-EDGE, EDGE, 225)[:, None]


def sampled(function: Callable[[Tensor], Tensor], spans: Sequence[tuple[float, float]], count: int, name: str) -> Data:
    """`count` inputs from each span, and noisy values of the function."""
    generator = fork(0, name)
    x = torch.cat([low + (high - low) * torch.rand(count, 1, generator=generator) for low, high in spans])
    return x, function(x[:, 0]) + TARGET_STD * torch.randn(len(x), generator=generator)


def pairs(data: Data) -> Iterator[tuple[float, float]]:
    return zip(data[0][:, 0].tolist(), data[1].tolist(), strict=True)


def band(axes: Axes, curve: Sheet, colour: str, label: str, alpha: float = 0.17) -> None:
    """Mean ± 2 standard deviations."""
    x, mean = curve.floats("x"), curve.floats("mean")
    two = [2 * value for value in curve.floats("std")]
    low, high = [m - d for m, d in zip(mean, two, strict=True)], [m + d for m, d in zip(mean, two, strict=True)]
    axes.fill_between(x, low, high, color=colour, alpha=alpha, linewidth=0)
    axes.plot(x, mean, color=colour, label=label, zorder=3)


# -- Figure 1 -----------------------------------------------------------------------------------------------------

TITLE_1 = "Figure 1: the method, in one dimension"
LEARNED, SUMMARISED, REGULARISED, FREE = "A", "B", "C", "D"
PANELS = {
    LEARNED: "Task 1 is learned",
    SUMMARISED: "Task 1 is summarised",
    REGULARISED: "Task 2 is learned with the KL term",
    FREE: "Task 2 is learned without the KL term",
}
COLUMNS_1 = ("panel", "what", "task", "x", "mean", "std")
OPTIONS_1: dict[str, Any] = {
    "points": 8, "search": "greedy", "lr": 5e-3, "batch_size": 40, "initial_std": 0.3, "target_noise": 0.05,
}  # fmt: skip


def first_task() -> Data:
    return sampled(lambda x: torch.sin(1.6 * x) + 0.3 * x, [(-4.5, 2.0)], 40, "figure1/task1")


def second_task() -> Data:
    return sampled(lambda x: 1.2 * torch.cos(1.1 * x) - 0.25 * x, [(-1.5, 4.5)], 40, "figure1/task2")


@dataclass(frozen=True)
class Learned:
    """Predictions on the grid by panel and task, and the learners that made them."""

    predicted: dict[tuple[str, int], Moments]
    regularised: FRCL  # learned both tasks
    free: FRCL  # learned task 2 from the same θ, without the KL term of task 1


def learn_both(steps: int) -> Learned:
    """Task 1, its summary, then task 2 with the KL term and without."""
    learner = FRCL(Waves(48, 1.2), steps=steps, **OPTIONS_1)
    predicted = {}

    def predict_last(log: StepLog) -> None:
        if log.step == steps:  # by q(w), which is dropped at the end of the task
            predicted[LEARNED, 0] = _predicted(learner, 0)

    learner.fit(*first_task(), on_step=predict_last)
    predicted[SUMMARISED, 0] = _predicted(learner, 0)
    free = FRCL(learner.net, steps=steps, **OPTIONS_1)
    for one in (learner, free):
        one.fit(*second_task())
    predicted |= {(REGULARISED, task): _predicted(learner, task) for task in (0, 1)}
    predicted[FREE, 0] = predict_from_summary(free, learner.tasks[0], grid())
    predicted[FREE, 1] = _predicted(free, 0)
    return Learned(predicted, learner, free)


def _predicted(learner: FRCL, task: int) -> Moments:
    found = learner.predict(grid(), task=task)
    return Moments(found.mean, found.variance)


def measure_method(place: Place) -> Sheet:
    """Predictions on a grid, the data, and the inducing points of task 1 with q(u), by panel."""
    with threads(1):
        found = learn_both(QUICK_STEPS if place.quick else STEPS)
    Z, means, stds = summary_points(found.regularised.tasks[0])
    points = sorted(zip(Z[:, 0].tolist(), means[0].tolist(), stds[0].tolist(), strict=True))
    rows: Rows = []
    for (panel, task), moments in sorted(found.predicted.items(), key=lambda item: item[0]):
        columns = (grid()[:, 0], moments.mean[:, 0], moments.variance[:, 0].sqrt())
        values = zip(*(column.tolist() for column in columns), strict=True)
        rows += [(panel, "curve", task + 1, *one) for one in values]
    rows += [(LEARNED, "data", 1, *pair, "") for pair in pairs(first_task())]
    rows += [(panel, "data", 2, *pair, "") for panel in (REGULARISED, FREE) for pair in pairs(second_task())]
    rows += [(panel, "point", 1, *one) for panel in (SUMMARISED, REGULARISED, FREE) for one in points]
    return sheet(COLUMNS_1, rows)


def draw_method(numbers: Sheet) -> Drawing:
    figure, axes = canvas(7.4, 5.1, 2, 2, sharex=True, sharey=True)
    before = numbers.where(panel=SUMMARISED, what="curve")
    for (panel, title), one in zip(PANELS.items(), axes, strict=True):
        curves, data = numbers.where(panel=panel, what="curve"), numbers.where(panel=panel, what="data")
        for task in dict.fromkeys(curves.column("task")):
            band(one, curves.where(task=task), series(int(task) - 1), f"task {task}, mean ± 2 std")
        if panel in (REGULARISED, FREE):
            one.plot(before.floats("x"), before.floats("mean"), color=LIGHT["ink"], linewidth=1.1,
                     linestyle=(0, (3, 2)), label="task 1 before task 2", zorder=3)  # fmt: skip
        one.plot(data.floats("x"), data.floats("mean"), markersize=2.6, label="data of the task", **DOTS)
        _points(one, numbers.where(panel=panel, what="point"))
        one.set_title(f"{panel}  {title}", loc="left")
        one.set(xlim=(-EDGE, EDGE), ylim=(-3.4, 3.4))
    _name_points(axes[1], numbers.where(panel=SUMMARISED, what="point"), before)
    for one in axes[2:]:
        one.set_xlabel("x")
    for one in axes[::2]:
        one.set_ylabel("f(x)")
    handles, labels = axes[2].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3)
    return Drawing("figure1", TITLE_1, _method_caption(numbers), _method_in_words(numbers), figure)


def _points(axes: Axes, points: Sheet) -> None:
    """Inducing points with ± 2 standard deviations of q(u)."""
    if not points.rows:
        return
    two = [2 * value for value in points.floats("std")]
    axes.errorbar(
        points.floats("x"), points.floats("mean"), yerr=two, linestyle="none", marker="o", markersize=5.5,
        markerfacecolor=LIGHT["card"], markeredgecolor=series(0), markeredgewidth=1.5, ecolor=series(0),
        elinewidth=1.5, zorder=5, label="inducing points, q(u)",
    )  # fmt: skip


def _name_points(axes: Axes, points: Sheet, curve: Sheet) -> None:
    """Labels u₁, u₂, …: above the curve where it bends down, else below, on the side away from the curve."""
    x, mean = curve.floats("x"), curve.floats("mean")
    for number, at in enumerate(zip(points.floats("x"), points.floats("mean"), strict=True), 1):
        after = next(place for place, value in enumerate(x) if value > at[0])
        rises, above = mean[after] > mean[after - 1], mean[after + 1] - mean[after] < mean[after] - mean[after - 1]
        left = rises == above
        axes.annotate(f"u{chr(0x2080 + number)}", at, (-3 if left else 3, 6 if above else -6), zorder=6,
                      textcoords="offset points", ha="right" if left else "left",
                      va="bottom" if above else "top")  # fmt: skip


def _method_caption(numbers: Sheet) -> str:
    with_kl, without = (_moved(numbers, panel) for panel in (REGULARISED, FREE))
    count = len(numbers.where(panel=SUMMARISED, what="point").rows)
    return (
        "The method on two functions of one input. A: θ and q(w) are learned from the data of task 1. B: its summary, "
        f"{count} of its inputs with q(u); the data is dropped, and task 1 is predicted from the summary. C: task 2 is "
        "learned with its own weights on the same features; KL(q(u) ‖ p(u)) regularises task 1. D: task 2 is learned "
        "from the same θ without that term; task 1 is predicted from the same summary. Between its outer inducing "
        f"points the mean of task 1 moves by {with_kl:.2g} on average in C, by {without:.2g} in D."
    )


def _method_in_words(numbers: Sheet) -> str:
    points = numbers.where(panel=SUMMARISED, what="point").floats("x")
    return (
        f"Four panels of functions over x. Task 1 is kept at {len(points)} inducing points between {min(points):.2g} "
        f"and {max(points):.2g}. After task 2 its mean has moved by {_moved(numbers, REGULARISED):.2g} on average with "
        f"the KL term, by {_moved(numbers, FREE):.2g} without."
    )


def _moved(numbers: Sheet, panel: str) -> float:
    """The mean absolute change of task 1's mean by learning task 2, between the outer inducing points of task 1."""
    points = numbers.where(panel=SUMMARISED, what="point").floats("x")
    before, after = (numbers.where(panel=one, what="curve", task="1") for one in (SUMMARISED, panel))
    gaps = [
        abs(new - old)
        for x, old, new in zip(before.floats("x"), before.floats("mean"), after.floats("mean"), strict=True)
        if min(points) <= x <= max(points)
    ]
    return sum(gaps) / len(gaps)


# -- Figure 2 -----------------------------------------------------------------------------------------------------

TITLE_2 = "Figure 2: task boundaries from predictive uncertainty"
COLUMNS_2 = ("what", "x", "mean", "std", "prior_std", "score")
SAME, NEW = "same task", "new task"
QUERIES = {SAME: (-3.8, -0.6), NEW: (2.4, 4.8)}  # minibatches of queries, and their ranges
BATCH = 12
OPTIONS_2: dict[str, Any] = {
    "points": 8, "lr": 2e-3, "initial_std": 6.0, "target_noise": 0.05,
}  # fmt: skip


def watched_task() -> Data:
    return sampled(lambda x: 2 * torch.sin(1.7 * x) + 0.5, [(-4.2, -2.2), (-2.2, -0.2)], 9, "figure2/data")


def watcher(steps: int) -> FRCL:
    """A learner in the middle of a task, as when a boundary is tested."""
    learner = FRCL(Waves(160, 1.6), **OPTIONS_2)
    x, y = watched_task()
    learner.start_task(size=len(x))
    for _ in range(steps):
        learner.observe(x, y)
    return learner


def measure_detection(place: Place) -> Sheet:
    """Prior, posterior and ℓ on a grid and at the queries; Welch's t of log ℓ of the two minibatches."""
    scores, rows = {}, []
    with threads(1):
        learner = watcher(QUICK_STEPS if place.quick else STEPS)
        rows += [("curve", *one) for one in _judged(learner, grid())]
        for name, (low, high) in QUERIES.items():
            asked = low + (high - low) * torch.rand(BATCH, 1, generator=fork(0, f"figure2/{name}"))
            found = list(_judged(learner, asked.sort(0).values))
            rows += [(name, *one) for one in found]
            scores[name] = torch.tensor([one[-1] for one in found])[:, None]
    statistic = float(welch(scores[SAME].log(), scores[NEW].log()))
    data = [("data", *pair, "", "", "") for pair in pairs(watched_task())]
    return sheet(COLUMNS_2, [*rows, *data, ("welch", "", "", "", "", statistic)])


def _judged(learner: FRCL, x: Tensor) -> Iterator[tuple[float, ...]]:
    """x, μ, σ, √k(x, x) and ℓ (Section 3) of each input."""
    posterior, score = learner.predict(x, task=len(learner.tasks)), learner.familiarity(x)
    prior = features_of(learner, x).square().sum(1)
    columns = (x[:, 0], posterior.mean[:, 0], posterior.variance[:, 0].sqrt(), prior.sqrt(), score[:, 0])
    yield from zip(*(column.tolist() for column in columns), strict=True)


def draw_detection(numbers: Sheet) -> Drawing:
    figure, (left, right) = canvas(7.4, 3.4, 1, 2, width_ratios=[2.7, 1])
    curve, data = numbers.where(what="curve"), numbers.where(what="data")
    prior = [2 * value for value in curve.floats("prior_std")]
    left.fill_between(curve.floats("x"), [-value for value in prior], prior, color=series(0), alpha=0.14, linewidth=0,
                      label="prior, ± 2 std")  # fmt: skip
    band(left, curve, series(2), "posterior, mean ± 2 std", alpha=0.3)
    left.plot(data.floats("x"), data.floats("mean"), markersize=3.6, label="data of the task", **DOTS)
    for place, (name, marker) in enumerate(((SAME, "o"), (NEW, "D"))):
        asked = numbers.where(what=name)
        look: dict[str, Any] = {
            **DOTS, "marker": marker, "markersize": 5.2, "color": series(1), "markeredgecolor": LIGHT["card"],
            "markeredgewidth": 0.7, "zorder": 5,
        }  # fmt: skip
        left.plot(asked.floats("x"), asked.floats("mean"), label=f"queries, {name}", **look)
        spread = [place + 0.22 * math.sin(2.4 * number) for number in range(len(asked.rows))]
        right.plot(spread, asked.floats("score"), **look)
        middle = math.exp(sum(map(math.log, asked.floats("score"))) / len(asked.rows))
        right.plot([place - 0.36, place + 0.36], [middle, middle], color=LIGHT["ink"], linewidth=1.4)
    left.set(xlim=(-EDGE, EDGE), xlabel="x", ylabel="f(x)")
    right.set(yscale="log", xlim=(-0.6, 1.6), ylabel="score ℓ")
    right.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    right.set_xticks([0, 1], [name.replace(" ", "\n") for name in (SAME, NEW)])
    right.grid(visible=False, axis="x")
    right.set_title(f"Welch's t = {_statistic(numbers):.1f}", loc="right")
    figure.legend(loc="outside lower center", ncols=3)
    return Drawing("figure2", TITLE_2, _detection_caption(numbers), _detection_in_words(numbers), figure)


def _statistic(numbers: Sheet) -> float:
    return numbers.where(what="welch").floats("score")[0]


def _detection_caption(numbers: Sheet) -> str:
    return (
        "Detecting a task boundary. Left: far from the data of the task (black) the posterior (green) returns to the "
        "prior (blue). Right: the symmetrised KL ℓ of the two at each query, for one minibatch from the task and one "
        "from elsewhere; lines are the means of log ℓ. Welch's test of log ℓ asks whether the second minibatch scores "
        f"lower: t = {_statistic(numbers):.1f}."
    )


def _detection_in_words(numbers: Sheet) -> str:
    scores = {name: numbers.where(what=name).floats("score") for name in (SAME, NEW)}
    ranges = [f"for the {name} from {min(found):.2g} to {max(found):.2g}" for name, found in scores.items()]
    return f"Scores of queries are {', '.join(ranges)}; the statistic of Welch's test is {_statistic(numbers):.1f}."


FIGURES = (
    FigureSpec("figure1", TITLE_1, measure_method, draw_method),
    FigureSpec("figure2", TITLE_2, measure_detection, draw_detection),
)
