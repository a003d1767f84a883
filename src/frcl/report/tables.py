"""Tables of runs, written as Markdown, CSV and LaTeX."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from frcl.errors import DataError
from frcl.experiment.metrics import Interval
from frcl.experiment.results import Result
from frcl.files import write_atomically
from frcl.report.comparison import COMPARED, Comparison, comparison_rows
from frcl.report.numbers import BY_KEY, MEANINGS, duration, interval, mean_and_std, number, plural, size
from frcl.report.run import Run

Value = str | int | float | None
PARTS = ("mean", "std", "low", "high")


@dataclass(frozen=True)
class Table:
    """`columns` and `rows` as shown to a reader, and `data` for programs: a header and rows, at full precision."""

    name: str
    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    data: tuple[tuple[Value, ...], ...] = ()


def write_tables(runs: Sequence[Run], folder: Path) -> list[Path]:
    """Write `results`, `metrics`, `accuracy…` for each run and `paired` for shared seeds, as .md, .csv and .tex."""
    if not runs:
        raise DataError("no run to make tables of; name at least one run folder")
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for table in tables(runs):
        for suffix, content in (("md", markdown(table)), ("csv", comma_separated(table)), ("tex", latex(table))):
            paths.append(folder / f"{table.name}.{suffix}")
            write_atomically(paths[-1], content.encode("utf-8", "replace"))
    return paths


def tables(runs: Sequence[Run]) -> list[Table]:
    """Every table of the runs, each with its own name."""
    comparison = comparison_rows(runs)
    labels = [row.label for row in comparison.rows]
    names = ["accuracy"] if len(runs) == 1 else [f"accuracy-{n + 1}-{_slug(label)}" for n, label in enumerate(labels)]
    found = [results_table(comparison), metrics_table(runs, labels)]
    found += [matrix_table(run.result, name) for run, name in zip(runs, names, strict=True)]
    return [*found, paired_table(comparison)] if comparison.pairs else found


def results_table(comparison: Comparison) -> Table:
    """One row for each run."""
    rows, data = [], []
    for row in comparison.rows:
        metrics = [(getattr(row, key), BY_KEY[key].unit) for key in COMPARED]
        cells = [mean_and_std(metric, unit) for metric, unit in metrics]
        rows.append((row.label, row.benchmark, str(row.seeds), *cells, size(row.memory_bytes), duration(row.seconds)))
        values = [part for metric, _ in metrics for part in _parts(metric)]
        data.append((row.label, row.benchmark, row.method, row.seeds, *values, row.memory_bytes, row.seconds))
    names = [f"{key}_{part}" for key in COMPARED for part in PARTS]
    head = ("run", "benchmark", "method", "seeds", *names, "memory_bytes", "seconds")
    columns = ("Run", "Benchmark", "Seeds", "Accuracy %", "Forgetting pp", "NLL nats", "ECE %", "Kept", "Time")
    return Table("results", "Results: mean ± standard deviation over seeds", columns, tuple(rows), (head, *data))


def metrics_table(runs: Sequence[Run], labels: Sequence[str]) -> Table:
    """Every metric of every run with its 95 % interval."""
    rows, data = [], []
    for run, label in zip(runs, labels, strict=True):
        for meaning in MEANINGS:
            metric, unit = meaning.of(run.result), meaning.unit
            names = (label, run.result.benchmark) if len(runs) > 1 else ()
            shown = (mean_and_std(metric, unit), interval(metric, unit), meaning.better)
            rows.append((*names, meaning.title_with_unit, *shown))
            data.append((label, run.result.benchmark, run.result.method, meaning.key, *_parts(metric)))
    head = ("run", "benchmark", "method", "metric", *PARTS)
    first = ("Run", "Benchmark") if len(runs) > 1 else ()
    columns = (*first, "Metric", "Mean ± std", "95 % interval", "Better")
    return Table("metrics", "Metrics over seeds", columns, tuple(rows), (head, *data))


def matrix_table(result: Result, name: str = "accuracy") -> Table:
    """The accuracy matrix: a row after learning each task, a column on each task; the data have every seed."""
    R, tasks = result.accuracy, result.tasks
    rows, data = [], []
    for i, after in enumerate(tasks):
        cells = [number(100 * value, 2) for value in R[:, i, : i + 1].mean(0)]
        rows.append((after, *cells, *[""] * (len(tasks) - i - 1)))
        for s, seed in enumerate(result.seeds):
            data += [(seed, after, on, float(R[s, i, j])) for j, on in enumerate(tasks[: i + 1])]
    caption = (
        f"Accuracy of {result.method} on {result.benchmark} in %, mean over {plural(len(result.seeds), 'seed')}: "
        "rows after learning a task, columns on a task"
    )
    columns = ("After learning", *(f"on {task}" for task in tasks))
    return Table(name, caption, columns, tuple(rows), (("seed", "after_task", "on_task", "accuracy"), *data))


def paired_table(comparison: Comparison) -> Table:
    """Average accuracy of one run minus another's over the seeds that both have."""
    rows, data = [], []
    for pair in comparison.pairs:
        gap, seeds, memory = pair.difference, len(pair.seeds), (pair.memory_first, pair.memory_second)
        shown = (number(100 * gap.mean, 2), interval(gap, "points"), *map(size, memory))
        rows.append((f"{pair.first} − {pair.second}", pair.benchmark, str(seeds), *shown))
        data.append((pair.benchmark, pair.first, pair.second, seeds, gap.mean, gap.low, gap.high, *memory))
    columns = ("Runs", "Benchmark", "Common seeds", "Difference pp", "95 % interval", "First keeps", "Second keeps")
    head = ("benchmark", "first", "second", "common_seeds", "difference", "low", "high", "memory_bytes_first",
            "memory_bytes_second")  # fmt: skip
    caption = "Difference in average accuracy over paired seeds (Student t)"
    return Table("paired", caption, columns, tuple(rows), (head, *data))


def markdown(table: Table) -> str:
    """A pipe table; all text is escaped."""
    head, *rows = ["| " + " | ".join(map(_markdown_text, line)) + " |" for line in (table.columns, *table.rows)]
    rule = "|" + " --- |" * len(table.columns)
    return "\n".join([_markdown_text(table.caption), "", head, rule, *rows, ""])


def comma_separated(table: Table) -> str:
    """The data at full precision; an empty cell where a number is not available."""
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows(table.data or (table.columns, *table.rows))
    return buffer.getvalue()


def latex(table: Table) -> str:
    """A floating table in the style of the package booktabs; all text is escaped."""
    lines = [" & ".join(map(_latex_text, line)) + r" \\" for line in (table.columns, *table.rows)]
    head = r"""% needs \usepackage{booktabs}
\begin{table}
\centering
"""
    form = f"l{'r' * (len(table.columns) - 1)}"
    opening = [rf"\caption{{{_latex_text(table.caption)}}}", rf"\begin{{tabular}}{{{form}}}", r"\toprule", lines[0]]
    closing = [r"\bottomrule", r"\end{tabular}", r"\end{table}", ""]
    return head + "\n".join([*opening, r"\midrule", *lines[1:], *closing])


def _parts(metric: Interval | None) -> list[Value]:
    return [None if metric is None else getattr(metric, part) for part in PARTS]


def _markdown_text(text: str) -> str:
    plain = re.sub(r"([\\`*_{}\[\]|~#$])", r"\\\1", " ".join(text.split()))
    return plain.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


_LATEX = str.maketrans(
    {character: f"\\{character}" for character in "&%$#_{}"}
    | {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "|": r"\textbar{}",
        "−": "$-$",
        "±": r"$\pm$",
        "–": "--",
        "…": r"\dots{}",
        "\N{NO-BREAK SPACE}": "~",
    }
)


def _latex_text(text: str) -> str:
    return re.sub(r"[^\S\N{NO-BREAK SPACE}]+", " ", text).translate(_LATEX)


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:40] or "run"
