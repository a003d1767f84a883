"""The page of a stream: its prequential accuracy, the statistic, found and true changes, the task of each stretch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from frcl.experiment.metrics import Floats
from frcl.experiment.prequential import StreamResult
from frcl.files import write_atomically
from frcl.report.drawing import LIGHT, Drawing, blank, drawing, series, style
from frcl.report.figures import MOST_POINTS, thin_by_peaks
from frcl.report.numbers import number
from frcl.report.page import render_template
from frcl.report.tables import Table

SMOOTH = 50  # minibatches over which the curve of the accuracy is averaged, at most


def write_stream_report(result: StreamResult, out: Path, title: str, command: str) -> Path:
    """Write the page as one file at `out`."""
    with style():
        html = render_template(
            "stream.html.j2", title=title, kind="Stream report", result=result, command=command,
            drawings=[_accuracy_figure(result), _statistic_figure(result)], stretches=stretch_table(result),
            others=other_table(result) if result.others else None,
        )  # fmt: skip
    write_atomically(out, html.encode("utf-8", "replace"))
    return out


def stretch_table(result: StreamResult) -> Table:
    """One row for each stretch."""
    rows = [
        (f"{one.first:,}–{one.last:,}", str(one.task), "known" if one.returned else "new", one.change or "–",
         f"{100 * one.accuracy:.1f}")
        for one in result.stretches
    ]  # fmt: skip
    columns = ("Minibatches", "Task", "Was", "Change before it", "Accuracy, %")
    return Table("stretches", "The task of each stretch", columns, rows)


def other_table(result: StreamResult) -> Table:
    """One row for the learner's detector and for each of another library, on the same scores."""

    def row(name: str, found: Sequence[int], misses: int | None, false_alarms: int | None) -> tuple[str, ...]:
        return name, str(len(found)), *("–" if one is None else str(one) for one in (misses, false_alarms))

    rows = [row("own", result.found, result.misses, result.false_alarms)]
    rows += [row(one.name, one.found, one.misses, one.false_alarms) for one in result.others]
    return Table("others", "Detectors of River on the same scores", ("Detector", "Changes", "Missed", "False"), rows)


def _bands(axes: object, result: StreamResult) -> None:
    """Each stretch in the colour of its task, at the bottom; true changes as wide lines."""
    for one in result.stretches:
        axes.axvspan(one.first, one.last + 1, ymax=0.05, color=series(one.task), linewidth=0)  # type: ignore[attr-defined]
    for place, at in enumerate(result.true or ()):
        label = "" if place else "true change"
        axes.axvline(at, color=LIGHT["series-2"], linewidth=5, alpha=0.3, label=label)  # type: ignore[attr-defined]


def _accuracy_figure(result: StreamResult) -> Drawing:
    figure, (axes,) = blank(2.9)
    width = max(1, min(SMOOTH, len(result.right) // 10))
    right, examples = np.array(result.right), np.array(result.examples, np.float64)
    total, count = (np.cumsum(np.append(0.0, part)) for part in (right * examples, examples))
    at = np.arange(width, len(total))
    value: Floats = 100 * (total[at] - total[at - width]) / (count[at] - count[at - width])
    _bands(axes, result)
    axes.plot(*thin_by_peaks(at.astype(np.float64) - 1.0, value, MOST_POINTS), color=LIGHT["series-0"], linewidth=1.2)
    axes.set(xlabel="minibatch", ylabel="accuracy, %", ylim=(0, 102), xlim=(0, len(result.right)))
    return drawing("stream-accuracy", figure, width=width, accuracy=f"{100 * result.accuracy:.2f}")


def _statistic_figure(result: StreamResult) -> Drawing:
    figure, (axes,) = blank(2.9)
    tested = [(float(t), value) for t, value in enumerate(result.statistic) if value is not None]
    _bands(axes, result)
    if tested:
        at, value = (np.array(part, np.float64) for part in zip(*tested, strict=True))
        step, value = thin_by_peaks(at, value, MOST_POINTS)
        axes.plot(step, value, color=LIGHT["series-0"], linewidth=1.1, label="statistic")
    axes.axhline(result.level, color=LIGHT["muted"], linewidth=1.1, label=f"level {result.level:g}")
    for kind, marker in (("sharp", "v"), ("gradual", "D")):
        found = [one.first for one in result.stretches[1:] if one.change == kind]
        if found:
            axes.plot(found, np.full(len(found), result.level), linestyle="none", marker=marker, markersize=7,
                      color=LIGHT["series-1"], label=f"found, {kind}")  # fmt: skip
    axes.set(xlabel="minibatch", ylabel="test statistic", xlim=(0, len(result.right)))
    figure.legend(loc="outside lower center", ncols=4, columnspacing=1.0, handletextpad=0.5)
    known = "" if result.true is None else (
        f" Of {len(result.true)} true changes {len(result.true) - (result.misses or 0)} were found, "
        f"{number(result.delay, 1)} minibatches late on average; {result.false_alarms} false alarms."
    )  # fmt: skip
    places = ", ".join(f"{at:,}" for at in result.found[:12]) or "none"
    return drawing("stream-statistic", figure, found=places, known=known)
