"""Tables of runs, written as Markdown, CSV and LaTeX."""

import csv
import html
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from frcl.errors import DataError
from frcl.experiment.metrics import Floats, Interval, spread
from frcl.files import write_atomically
from frcl.learners.types import plural
from frcl.report.numbers import BY_KEY, MEANINGS, duration, interval, mean_and_std, number, size
from frcl.report.run import COMPARED, ComparisonRow, PairedDifference, Run, comparison_rows

Rows = Sequence[tuple[str, ...]]
COLUMNS = ("Accuracy %", "Forgetting pp", "NLL nats", "ECE %", "No task %", "Task inferred %", "No task NLL",
           "No task ECE %", "Kept", "Time")  # fmt: skip
PARTS = ("mean", "std", "low", "high")
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # how a formula begins in a spreadsheet


@dataclass(frozen=True)
class Table:
    """`columns` and `rows` as shown to a reader, and `data` for programs: a header and rows, at full precision."""

    name: str
    caption: str
    columns: tuple[str, ...]
    rows: Rows
    data: Sequence[tuple[Any, ...]] = ()

    def without(self, *columns: str) -> Self:
        kept = [place for place, column in enumerate(self.columns) if column not in columns]
        head, *rows = (tuple(row[place] for place in kept) for row in (self.columns, *self.rows))
        return replace(self, columns=head, rows=rows)


def write_tables(runs: Sequence[Run], folder: Path) -> list[Path]:
    """Write `results`, `metrics`, `accuracy…` for each run and `paired` for shared seeds, as .md, .csv and .tex."""
    if not runs:
        raise DataError("no run to make tables of; name at least one run folder")
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for table in tables(runs):
        for suffix, form in (("md", markdown), ("csv", comma_separated), ("tex", latex)):
            paths.append(folder / f"{table.name}.{suffix}")
            write_atomically(paths[-1], form(table).encode("utf-8", "replace"))
    return paths


def tables(runs: Sequence[Run]) -> list[Table]:
    """Every table of the runs, each with its own name."""
    comparison = comparison_rows(runs)
    labels = [row.label for row in comparison.rows]
    slugs = [re.sub(r"[^a-z0-9]+", "-", label.lower()).strip("-")[:40] or "run" for label in labels]
    names = ["accuracy"] if len(runs) == 1 else [f"accuracy-{n}-{slug}" for n, slug in enumerate(slugs, 1)]
    found = [results_table(comparison.rows), metrics_table(runs, labels)]
    for run, name in zip(runs, names, strict=True):
        found.append(matrix_table(run, run.result.accuracy, name))
        if run.result.agnostic is not None:
            found.append(matrix_table(run, run.result.agnostic, f"{name}-no-task"))
    return [*found, paired_table(comparison.pairs)] if comparison.pairs else found


def results_table(comparison: Sequence[ComparisonRow]) -> Table:
    """One row for each run."""
    rows, data = [], []
    for row in comparison:
        cells = [mean_and_std(metric, BY_KEY[key].unit) for key, metric in row.metrics.items()]
        rows.append((row.label, row.benchmark, str(row.seeds), *cells, size(row.memory_bytes), duration(row.seconds)))
        values = [part for metric in row.metrics.values() for part in _parts(metric)]
        data.append((row.label, row.benchmark, row.method, row.seeds, *values, row.memory_bytes, row.seconds))
    parts = [f"{key}_{part}" for key in COMPARED for part in PARTS]
    head = ("run", "benchmark", "method", "seeds", *parts, "memory_bytes", "seconds")
    columns = ("Run", "Benchmark", "Seeds", *COLUMNS)
    return Table("results", "Results: mean ± standard deviation over seeds", columns, rows, (head, *data))


def metrics_table(runs: Sequence[Run], labels: Sequence[str]) -> Table:
    """Every metric of every run with its 95 % interval; the run is named if there are several."""
    rows, data = [], []
    for run, label in zip(runs, labels, strict=True):
        for meaning in MEANINGS:
            metric, names = run.result.metric(meaning.key), (label, run.result.benchmark)
            shown = (mean_and_std(metric, meaning.unit), interval(metric, meaning.unit), meaning.better)
            rows.append((*names, meaning.title_with_unit, *shown))
            data.append((*names, run.result.method, meaning.key, *_parts(metric)))
    columns = ("Run", "Benchmark", "Metric", "Mean ± std", "95 % interval", "Better")
    head = ("run", "benchmark", "method", "metric", *PARTS)
    table = Table("metrics", "Metrics over seeds", columns, rows, (head, *data))
    return table if len(runs) > 1 else table.without("Run", "Benchmark")


def matrix_table(run: Run, R: Floats, name: str = "accuracy") -> Table:
    """An accuracy matrix of a run: a row after learning each task, a column on each task; the data have every seed."""
    result, tasks = run.result, run.result.tasks
    without = " without the task" if R is result.agnostic else ""
    where = f"{result.method} on {result.benchmark}{without} in %, mean over {plural(len(result.seeds), 'seed')}"
    caption = f"Accuracy of {where}: rows after learning a task, columns on a task"
    cells = [(i, s, j) for i in range(len(tasks)) for s in range(len(result.seeds)) for j in range(i + 1)]
    data = [(result.seeds[s], tasks[i], tasks[j], float(R[s, i, j])) for i, s, j in cells]
    columns, head = ("After learning", *(f"on {task}" for task in tasks)), ("seed", "after_task", "on_task", "accuracy")
    return Table(name, caption, columns, matrix_rows(R, tasks), (head, *data))


def matrix_rows(R: Floats, tasks: Sequence[str], *, with_std: bool = False) -> Rows:
    """An accuracy matrix in %, empty where a task was not learned yet."""
    mean, std = spread(R)

    def cell(i: int, j: int) -> str:
        return mean_and_std(Interval(mean[i, j], std[i, j] if with_std and std is not None else None), "percent")

    return tuple((task, *("" if j > i else cell(i, j) for j in range(len(tasks)))) for i, task in enumerate(tasks))


def paired_table(pairs: Sequence[PairedDifference]) -> Table:
    """Average accuracy of one run minus another's over the seeds that both have."""
    rows, data = [], []
    for pair in pairs:
        gap, seeds, memory = pair.difference, len(pair.seeds), (pair.memory_first, pair.memory_second)
        shown = (number(100 * gap.mean, 2), interval(gap, "points"), *map(size, memory))
        rows.append((f"{pair.first} − {pair.second}", pair.benchmark, str(seeds), *shown))
        data.append((pair.benchmark, pair.first, pair.second, seeds, gap.mean, gap.low, gap.high, *memory))
    columns = ("Runs", "Benchmark", "Common seeds", "Difference pp", "95 % interval", "First keeps", "Second keeps")
    names = "benchmark first second common_seeds difference low high memory_bytes_first memory_bytes_second"
    caption = "Difference in average accuracy over paired seeds (Student t)"
    return Table("paired", caption, columns, rows, (tuple(names.split()), *data))


def _parts(metric: Interval | None) -> list[float | None]:
    return [getattr(metric, part, None) for part in PARTS]


def markdown(table: Table) -> str:
    """A pipe table; all text is escaped."""
    head, *rows = ["| " + " | ".join(map(_markdown_text, line)) + " |" for line in (table.columns, *table.rows)]
    rule = "|" + " --- |" * len(table.columns)
    return "\n".join([_markdown_text(table.caption), "", head, rule, *rows, ""])


def comma_separated(table: Table) -> str:
    """The data at full precision; an empty cell where a number is not available.

    An apostrophe keeps a spreadsheet from taking a name, which may come from anyone, for a formula.
    """
    buffer, rows = io.StringIO(), table.data or (table.columns, *table.rows)
    plain = [
        [f"'{cell}" if isinstance(cell, str) and cell.startswith(FORMULA) else cell for cell in row] for row in rows
    ]
    csv.writer(buffer, lineterminator="\n").writerows(plain)
    return buffer.getvalue()


def latex(table: Table) -> str:
    """A floating table in the style of the package booktabs; all text is escaped."""
    head, *rows = [" & ".join(map(_latex_text, line)) + r" \\" for line in (table.columns, *table.rows)]
    before = ["% needs \\usepackage{booktabs}", r"\begin{table}", r"\centering"]
    before += [rf"\caption{{{_latex_text(table.caption)}}}", rf"\begin{{tabular}}{{l{'r' * (len(table.columns) - 1)}}}"]
    after = [r"\bottomrule", r"\end{tabular}", r"\end{table}", ""]
    return "\n".join([*before, r"\toprule", head, r"\midrule", *rows, *after])


def _markdown_text(text: str) -> str:
    return html.escape(re.sub(r"([\\`*_{}\[\]|~#$])", r"\\\1", " ".join(text.split())), quote=False)


_LATEX = {character: f"\\{character}" for character in "&%$#_{}"}
_LATEX |= {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "|": r"\textbar{}"}
_LATEX |= {"<": r"\textless{}", ">": r"\textgreater{}", "−": "$-$", "±": r"$\pm$", "–": "--", "…": r"\dots{}"}
_LATEX |= {"\N{NO-BREAK SPACE}": "~"}


def _latex_text(text: str) -> str:
    plain = re.sub(r"[^\S\N{NO-BREAK SPACE}]+", " ", text)
    return "".join(_LATEX.get(character, character) for character in plain)
