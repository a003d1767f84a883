"""The numbers of runs as tables, written as Markdown, CSV and LaTeX."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from frcl.errors import DataError
from frcl.files import write_atomically
from frcl.report.comparison import Comparison, comparison_rows, run_labels
from frcl.report.derive import over_seeds
from frcl.report.numbers import MEANINGS, MISSING, Unit, duration, interval, mean_and_std, number, plural, size, symbol
from frcl.report.run import Metric, Run

Value = str | int | float | None
RESULT_UNITS: tuple[Unit, ...] = ("percent", "points", "plain", "percent")  # accuracy, forgetting, NLL, ECE


@dataclass(frozen=True)
class Table:
    """Cells as a person reads them, and `data` as a machine does: a header and rows, at full precision."""

    name: str
    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    data: tuple[tuple[Value, ...], ...] = ()


def write_tables(runs: Sequence[Run], folder: Path) -> list[Path]:
    """`results`, `metrics`, `accuracy…` for each run and `paired` where runs share seeds, as .md, .csv and .tex."""
    if not runs:
        raise DataError("no run to make tables of; name at least one run folder")
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for table in tables(runs):
        for suffix, content in (("md", markdown(table)), ("csv", comma_separated(table)), ("tex", latex(table))):
            path = folder / f"{table.name}.{suffix}"
            write_atomically(path, content.encode("utf-8", "replace"))
            paths.append(path)
    return paths


def tables(runs: Sequence[Run]) -> list[Table]:
    """Every table of the runs, each with a name of its own."""
    comparison = comparison_rows(runs)
    labels = run_labels(runs)
    names = ["accuracy"] if len(runs) == 1 else [f"accuracy-{n + 1}-{_slug(label)}" for n, label in enumerate(labels)]
    found = [results_table(comparison), metrics_table(runs)]
    found += [matrix_table(run, name) for run, name in zip(runs, names, strict=True)]
    return [*found, paired_table(comparison)] if comparison.pairs else found


def results_table(comparison: Comparison) -> Table:
    """One row for each run."""
    shown, data = [], []
    for row in comparison.rows:
        metrics = (row.average_accuracy, row.forgetting, row.nll, row.ece)
        cells = [mean_and_std(metric, unit) for metric, unit in zip(metrics, RESULT_UNITS, strict=True)]
        shown.append((row.label, row.benchmark, str(row.seeds), *cells, size(row.memory_bytes), duration(row.seconds)))
        values: list[Value] = [row.label, row.benchmark, row.method, row.seeds]
        values += [part for metric in metrics for part in _parts(metric)]
        data.append((*values, row.memory_bytes, row.seconds))
    parts = ("mean", "std", "low", "high")
    names = [f"{key}_{part}" for key in ("average_accuracy", "forgetting", "nll", "ece") for part in parts]
    head = ("run", "benchmark", "method", "seeds", *names, "memory_bytes", "seconds")
    columns = ("Run", "Benchmark", "Seeds", "Accuracy %", "Forgetting pp", "NLL nats", "ECE %", "Kept", "Time")
    return Table("results", "Results: mean ± standard deviation over seeds", columns, tuple(shown), (head, *data))


def metrics_table(runs: Sequence[Run]) -> Table:
    """Every metric of every run with its 95 % interval."""
    shown, data = [], []
    for run, label in zip(runs, run_labels(runs), strict=True):
        for meaning in MEANINGS:
            metric = run.metrics.get(meaning.key)
            title = f"{meaning.title} {symbol(meaning.unit)}".strip()
            name = (title,) if len(runs) == 1 else (label, run.benchmark, title)
            bounds = interval(metric.low, metric.high, meaning.unit) if metric is not None else MISSING
            shown.append((*name, mean_and_std(metric, meaning.unit), bounds, meaning.better))
            data.append((label, run.benchmark, run.method, meaning.key, *_parts(metric)))
    columns = ("Metric",) if len(runs) == 1 else ("Run", "Benchmark", "Metric")
    head = ("run", "benchmark", "method", "metric", "mean", "std", "low", "high")
    return Table(
        "metrics",
        "Metrics over seeds",
        (*columns, "Mean ± std", "95 % interval", "Better"),
        tuple(shown),
        (head, *data),
    )


def matrix_table(run: Run, name: str = "accuracy") -> Table:
    """The accuracy matrix, rows after learning a task, columns on a task; its data have every seed."""
    spread = over_seeds(run.accuracy)
    shown, data = [], []
    for i, after in enumerate(run.tasks):
        cells = [number(100 * spread.mean[i, j], 2) for j in range(i + 1)]
        shown.append((after, *cells, *[""] * (len(run.tasks) - i - 1)))
        for s, seed in enumerate(run.seeds):
            data += [(seed, after, on, float(run.accuracy[s, i, j])) for j, on in enumerate(run.tasks[: i + 1])]
    caption = (
        f"Accuracy of {run.method} on {run.benchmark} in %, mean over {plural(len(run.seeds), 'seed')}: "
        "rows after learning a task, columns on a task"
    )
    columns = ("After learning", *(f"on {task}" for task in run.tasks))
    return Table(name, caption, columns, tuple(shown), (("seed", "after_task", "on_task", "accuracy"), *data))


def paired_table(comparison: Comparison) -> Table:
    """Average accuracy of one run minus another's over the seeds both have."""
    shown, data = [], []
    for pair in comparison.pairs:
        mean, low, high = pair.difference
        kept = (size(pair.memory_first), size(pair.memory_second))
        bounds = interval(low, high, "points")
        shown.append(
            (
                f"{pair.first} − {pair.second}",
                pair.benchmark,
                str(len(pair.seeds)),
                number(100 * mean, 2),
                bounds,
                *kept,
            )
        )
        memory = (pair.memory_first, pair.memory_second)
        data.append((pair.benchmark, pair.first, pair.second, len(pair.seeds), mean, low, high, *memory))
    columns = ("Runs", "Benchmark", "Common seeds", "Difference pp", "95 % interval", "First keeps", "Second keeps")
    head = ("benchmark", "first", "second", "common_seeds", "difference", "low", "high")
    return Table(
        "paired",
        "Difference in average accuracy over paired seeds (Student t)",
        columns,
        tuple(shown),
        ((*head, "memory_bytes_first", "memory_bytes_second"), *data),
    )


def markdown(table: Table) -> str:
    """A pipe table; all text is escaped."""
    head, *rows = ["| " + " | ".join(map(_markdown_text, line)) + " |" for line in (table.columns, *table.rows)]
    rule = "|" + " --- |" * len(table.columns)
    return "\n".join([_markdown_text(table.caption), "", head, rule, *rows, ""])


def comma_separated(table: Table) -> str:
    """The data at full precision; empty where there is no number."""
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows(table.data or (table.columns, *table.rows))
    return buffer.getvalue()


def latex(table: Table) -> str:
    """A floating table in the style of the package booktabs; all text is escaped."""
    lines = [" & ".join(map(_latex_text, line)) + r" \\" for line in (table.columns, *table.rows)]
    return "\n".join(
        [
            r"% needs \usepackage{booktabs}",
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{_latex_text(table.caption)}}}",
            rf"\begin{{tabular}}{{l{'r' * (len(table.columns) - 1)}}}",
            r"\toprule",
            lines[0],
            r"\midrule",
            *lines[1:],
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def _parts(metric: Metric | None) -> tuple[Value, Value, Value, Value]:
    return (None,) * 4 if metric is None else (metric.mean, metric.std, metric.low, metric.high)


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
