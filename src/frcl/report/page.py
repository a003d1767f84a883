"""One self-contained HTML file for a run or for several: no script, no outside request, all text escaped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from frcl.errors import DataError
from frcl.files import write_atomically
from frcl.learners.accounting import KINDS
from frcl.report.comparison import Comparison, comparison_rows, differing_options, flat, run_labels, show
from frcl.report.drawing import Drawing, inline_svg, style
from frcl.report.figures import matrix_figure
from frcl.report.gallery import draw, left_out
from frcl.report.numbers import (
    BY_KEY,
    MEANINGS,
    MISSING,
    SPACE,
    bare,
    duration,
    interval,
    mean_and_std,
    plural,
    size,
    symbol,
)
from frcl.report.palette import DARK, LIGHT
from frcl.report.pictures import contact_sheets, data_address
from frcl.report.run import Run
from frcl.report.side_by_side import draw_together
from frcl.report.tables import Table, paired_table, results_table

REGRESSION = (
    "These tasks have real numbers as targets: where accuracy is said, the share of variance explained (R²) is meant."
)
SECTIONS = (
    ("accuracy", "Accuracy", ("accuracy-matrix", "accuracy-curves", "forgetting")),
    ("uncertainty", "Uncertainty", ("calibration",)),
    ("switches", "Task switches", ("boundaries",)),
    ("training", "Training", ("training-terms", "time")),
)


@dataclass(frozen=True)
class Picture:
    """A figure in the page; `label` is what a screen reader says."""

    name: str
    title: str
    caption: str
    label: str
    svg: str
    table: Table | None
    wide: bool = False  # alone in its row, with its words beside it


@dataclass(frozen=True)
class Headline:
    """A number to be seen first."""

    title: str
    value: str
    unit: str
    note: str
    says: str
    spread: str = ""


def write_report(runs: Sequence[Run], out: Path) -> Path:
    """The report of one run, or the comparison of several, as one file at `out`."""
    out = Path(out)
    if not runs:
        raise DataError("no run to report on; name at least one run folder")
    if not out.parent.is_dir():
        raise DataError(f"cannot write {out}: the folder {out.parent} does not exist; create it first")
    html = run_page(runs[0]) if len(runs) == 1 else comparison_page(runs)
    write_atomically(out, html.encode("utf-8", "replace"))
    return out


def run_page(run: Run) -> str:
    """The whole HTML of one run's report."""
    with style():
        pictures = {drawing.name: picture(drawing) for drawing in draw(run)}
        images = [(data_address(sheet), sheet) for sheet in contact_sheets(run)]
    sections = {
        key: (title, in_rows([pictures[name] for name in names if name in pictures])) for key, title, names in SECTIONS
    }
    return _render(
        "run.html.j2",
        title=f"{run.method} on {run.benchmark}",
        kind="Run report",
        facts=facts(run),
        run=run,
        hero=headline(run, "average_accuracy"),
        headlines=[headline(run, meaning.key) for meaning in MEANINGS[1:]],
        costs=costs(run),
        sections={key: section for key, section in sections.items() if section[1]},
        images=images,
        memory=memory_table(run),
        kinds=kinds_table(run),
        options=options_table(run),
        environment=environment_table(run),
        left_out=left_out(run),
        notice=REGRESSION if run.score == "r2" else "",
    )


def comparison_page(runs: Sequence[Run]) -> str:
    """The whole HTML of a comparison; runs of different benchmarks stand in sections of their own."""
    labels = run_labels(runs)
    groups: dict[str, list[tuple[Run, str]]] = {}
    for run, label in zip(runs, labels, strict=True):
        groups.setdefault(run.benchmark, []).append((run, label))
    comparison = comparison_rows(runs)
    with style():
        parts = [_group(number, name, group, comparison) for number, (name, group) in enumerate(groups.items())]
        details = [_detail(number, run, label) for number, (run, label) in enumerate(zip(runs, labels, strict=True))]
    where = ", ".join(groups) if len(groups) <= 3 else plural(len(groups), "benchmark")
    return _render(
        "comparison.html.j2",
        title=f"{plural(len(runs), 'run')} on {where}",
        kind="Comparison",
        facts=[plural(len(runs), "run"), plural(len(groups), "benchmark")],
        groups=parts,
        details=details,
    )


def picture(drawing: Drawing) -> Picture:
    return Picture(drawing.name, drawing.title, drawing.caption, drawing.text, inline_svg(drawing), drawing.table)


def in_rows(pictures: list[Picture]) -> list[Picture]:
    """Two in a row; an odd one at the end has the row for itself."""
    return [*pictures[:-1], replace(pictures[-1], wide=True)] if len(pictures) % 2 else pictures


def headline(run: Run, key: str) -> Headline:
    """One metric as a card; a metric that is not there says so."""
    meaning, metric = BY_KEY[key], run.metrics.get(key)
    if metric is None:
        return Headline(meaning.title, MISSING, "", "", meaning.says)
    spread = "" if metric.std is None else f"± {bare(metric.std, meaning.unit)}"
    note = ""
    if metric.low is not None and metric.high is not None:
        bounds = interval(metric.low, metric.high, meaning.unit).replace(" ", SPACE)
        note = f"95{SPACE}% interval {bounds}"
    return Headline(meaning.title, bare(metric.mean, meaning.unit), symbol(meaning.unit), note, meaning.says, spread)


def costs(run: Run) -> list[Headline]:
    """What the run kept and took."""
    per_task = f"{size(max(run.memory))} for the largest task" if run.memory else ""
    found = [
        Headline("Memory kept", size(run.memory_total), "", per_task, "Of past tasks, after the last one."),
        Headline("Time", duration(run.seconds.get("total")), "", plural(len(run.seeds), "seed"), "All seeds together."),
    ]
    if run.peak_memory is not None:
        found.append(Headline("Peak memory", size(run.peak_memory), "", "", "The most the run held at once."))
    return found


def facts(run: Run) -> list[str]:
    """The line under the title."""
    found = [plural(len(run.tasks), "task"), plural(len(run.seeds), "seed")]
    if "device" in run.environment:
        found.append(run.environment["device"])
    return [*found, when(run.started)] if run.started else found


def when(started: str) -> str:
    """A time without seconds, in the zone it was recorded in; anything else as it stands."""
    try:
        moment = datetime.fromisoformat(started)
    except ValueError:
        return started
    zone = " UTC" if moment.utcoffset() == timedelta(0) else ""
    return f"{moment:%Y-%m-%d %H:%M}{zone}"


def options_table(run: Run) -> Table:
    rows = tuple((name, show(value)) for name, value in flat(run.config).items())
    return Table("options", "Resolved options", ("Option", "Value"), rows)


def environment_table(run: Run) -> Table:
    return Table("environment", "Where it ran", ("Part", "Version"), tuple(run.environment.items()))


def memory_table(run: Run) -> Table | None:
    if not run.memory:
        return None
    rows = [(task, size(count), f"{count:,}") for task, count in zip(run.tasks, run.memory, strict=False)]
    return Table("memory", "Memory kept for each task", ("Task", "Kept", "Bytes"), tuple(rows))


def kinds_table(run: Run) -> Table | None:
    if not run.kinds:
        return None
    rows = [(kind, KINDS.get(kind, ""), size(count), f"{count:,}") for kind, count in run.kinds.items()]
    return Table("kinds", "Memory kept by kind, after the last task", ("Kind", "What", "Kept", "Bytes"), tuple(rows))


def without_benchmark(table: Table) -> Table:
    """The table less the column that its section's heading already says."""
    place = table.columns.index("Benchmark")
    rows = tuple(row[:place] + row[place + 1 :] for row in table.rows)
    return replace(table, columns=table.columns[:place] + table.columns[place + 1 :], rows=rows)


def _group(number: int, name: str, group: list[tuple[Run, str]], comparison: Comparison) -> dict[str, Any]:
    inside = Comparison(
        tuple(row for row in comparison.rows if row.benchmark == name),
        tuple(pair for pair in comparison.pairs if pair.benchmark == name),
    )
    together = draw_together(group) if len(group) > 1 else []
    drawings = [replace(drawing, name=f"{drawing.name}-{number}") for drawing in together]
    differing = differing_options([run for run, _ in group])
    rows = [(option, *(show(flat(run.config).get(option)) for run, _ in group)) for option in differing]
    columns = ("Option", *(label for _, label in group))
    return {
        "id": f"benchmark-{number}",
        "name": name,
        "notice": REGRESSION if any(run.score == "r2" for run, _ in group) else "",
        "results": without_benchmark(results_table(inside)),
        "pictures": in_rows([picture(drawing) for drawing in drawings]),
        "paired": without_benchmark(paired_table(inside)) if inside.pairs else None,
        "differing": Table("differing", "Options that differ", columns, tuple(rows)) if rows else None,
    }


def _detail(number: int, run: Run, label: str) -> dict[str, Any]:
    drawing = matrix_figure(run)
    metrics = [(f"{m.title} {symbol(m.unit)}".strip(), mean_and_std(run.metrics.get(m.key), m.unit)) for m in MEANINGS]
    return {
        "label": f"{label} on {run.benchmark}",
        "run": run,
        "facts": facts(run),
        "picture": picture(replace(drawing, name=f"{drawing.name}-run-{number}")),
        "metrics": Table(
            "metrics", "Metrics, mean ± standard deviation over seeds", ("Metric", "Value"), tuple(metrics)
        ),
        "options": options_table(run),
        "environment": environment_table(run),
    }


def _render(template: str, **context: Any) -> str:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("frcl.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(light=LIGHT, dark=DARK, **context)
