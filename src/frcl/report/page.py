"""One self-contained HTML file for a run or for several: no script, no outside request, all text escaped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from frcl.errors import DataError
from frcl.experiment.results import Result
from frcl.files import write_atomically
from frcl.learners.accounting import KINDS
from frcl.report.comparison import (
    Comparison,
    comparison_rows,
    differing_options,
    flat,
    memory_total,
    show,
)
from frcl.report.drawing import Drawing, inline_svg, save, style
from frcl.report.figures import matrix_figure
from frcl.report.gallery import draw
from frcl.report.numbers import (
    MEANINGS,
    MISSING,
    SPACE,
    Meaning,
    bare,
    duration,
    interval,
    mean_and_std,
    plural,
    size,
    symbol,
)
from frcl.report.palette import DARK, LIGHT
from frcl.report.run import Run
from frcl.report.side_by_side import draw_together
from frcl.report.tables import Table, paired_table, results_table

REGRESSION = "These tasks have real targets: every accuracy on this page is the share of variance explained (R²)."
SECTIONS = (
    ("accuracy", "Accuracy", ("accuracy-matrix", "accuracy-curves", "forgetting")),
    ("uncertainty", "Uncertainty", ("calibration",)),
    ("switches", "Task switches", ("boundaries",)),
    ("training", "Training", ("training-terms", "time")),
)


@dataclass(frozen=True)
class Picture:
    """A figure in the page; a wide one fills a row."""

    drawing: Drawing
    svg: str
    wide: bool = False


@dataclass(frozen=True)
class Headline:
    """A number at the top of the page."""

    title: str
    value: str
    says: str
    unit: str = ""
    note: str = ""
    spread: str = ""


def write_report(runs: Sequence[Run], out: Path, figures: Path | None = None) -> Path:
    """Write the report of one run, or the comparison of several, as one file at `out`.

    With `figures`, the figures drawn for it are also written to that folder, as PNG and SVG files.
    """
    out = Path(out)
    if not runs:
        raise DataError("no run to report on; name at least one run folder")
    if not out.parent.is_dir():
        raise DataError(f"cannot write {out}: the folder {out.parent} does not exist; create it first")
    with style():
        html, drawings = _run_page(runs[0]) if len(runs) == 1 else _comparison_page(runs)
        write_atomically(out, html.encode("utf-8", "replace"))
        if figures is not None:
            figures.mkdir(parents=True, exist_ok=True)
            for drawing in drawings:
                save(drawing, figures)
    return out


def _run_page(run: Run) -> tuple[str, list[Drawing]]:
    """The HTML of one run's report, and every figure drawn."""
    result, gallery = run.result, draw(run)
    drawn = {drawing.name: drawing for drawing in gallery.drawings}
    sections = {
        key: (title, _pictures([drawn[name] for name in names if name in drawn])) for key, title, names in SECTIONS
    }
    hero, *headlines = [_headline(result, meaning) for meaning in MEANINGS]
    html = _render(
        "run.html.j2",
        title=f"{result.method} on {result.benchmark}",
        kind="Run report",
        facts=_facts(result),
        run=result,
        hero=hero,
        headlines=headlines,
        costs=_costs(result),
        sections={key: section for key, section in sections.items() if section[1]},
        sheets=gallery.sheets,
        memory=_memory_tables(result),
        options=_options_table(result),
        environment=_environment_table(result),
        left_out=gallery.left_out,
        notice=REGRESSION if result.score == "r2" else "",
    )
    return html, gallery.drawings


def _comparison_page(runs: Sequence[Run]) -> tuple[str, list[Drawing]]:
    """The HTML of a comparison, a section per benchmark, and every figure drawn."""
    comparison = comparison_rows(runs)
    groups: dict[str, list[tuple[Run, str]]] = {}
    for run, row in zip(runs, comparison.rows, strict=True):
        groups.setdefault(run.result.benchmark, []).append((run, row.label))
    parts = [_group(number, name, group, comparison) for number, (name, group) in enumerate(groups.items())]
    details = [_detail(number, run.result, comparison.rows[number].label) for number, run in enumerate(runs)]
    where = ", ".join(groups) if len(groups) <= 3 else plural(len(groups), "benchmark")
    html = _render(
        "comparison.html.j2",
        title=f"{plural(len(runs), 'run')} on {where}",
        kind="Comparison",
        facts=[plural(len(runs), "run"), plural(len(groups), "benchmark")],
        groups=parts,
        details=details,
    )
    pictures = [picture for part in parts for picture in part["pictures"]] + [one["picture"] for one in details]
    return html, [picture.drawing for picture in pictures]


def _pictures(drawings: Sequence[Drawing]) -> list[Picture]:
    """Two in a row; an odd one at the end is wide."""
    odd = len(drawings) % 2
    return [Picture(one, inline_svg(one), bool(odd) and one is drawings[-1]) for one in drawings]


def _headline(result: Result, meaning: Meaning) -> Headline:
    """One metric as a card."""
    metric, unit = meaning.of(result), meaning.unit
    if metric is None:
        return Headline(meaning.title, MISSING, meaning.says)
    bounds = interval(metric, unit).replace(" ", SPACE)
    note = "" if metric.low is None else f"95{SPACE}% interval {bounds}"
    spread = "" if metric.std is None else f"± {bare(metric.std, unit)}"
    return Headline(meaning.title, bare(metric.mean, unit), meaning.says, symbol(unit), note, spread)


def _costs(result: Result) -> list[Headline]:
    """Memory and time of the run."""
    memory, seconds, peak = result.memory_bytes, result.seconds, result.peak_memory_bytes
    largest = f"{size(max(memory.per_task))} for the largest task" if memory and memory.per_task else ""
    time = duration(None if seconds is None else seconds.total)
    found = [
        Headline("Memory kept", size(memory_total(result)), "Of past tasks, after the last one.", note=largest),
        Headline("Time", time, "All seeds together.", note=plural(len(result.seeds), "seed")),
    ]
    return found if peak is None else [*found, Headline("Peak memory", size(peak), "The most memory in use at once.")]


def _facts(result: Result) -> list[str]:
    """The line under the title."""
    found = [plural(len(result.tasks), "task"), plural(len(result.seeds), "seed")]
    return [*found, *(fact for fact in (result.environment.get("device"), _when(result.started)) if fact)]


def _when(started: str) -> str:
    """A time without seconds, in its recorded zone; any other text unchanged."""
    try:
        moment = datetime.fromisoformat(started)
    except ValueError:
        return started
    return f"{moment:%Y-%m-%d %H:%M}{' UTC' if moment.utcoffset() == timedelta(0) else ''}"


def _options_table(result: Result) -> Table:
    rows = tuple((name, show(value)) for name, value in flat(result.config).items())
    return Table("options", "Resolved options", ("Option", "Value"), rows)


def _environment_table(result: Result) -> Table:
    return Table("environment", "Software and hardware", ("Part", "Version"), tuple(result.environment.items()))


def _memory_tables(result: Result) -> list[Table]:
    """Memory kept, by task and by kind."""
    memory = result.memory_bytes
    if memory is None:
        return []
    tasks = tuple((task, size(count), f"{count:,}") for task, count in zip(result.tasks, memory.per_task, strict=False))
    kinds = tuple((kind, KINDS.get(kind, ""), size(count), f"{count:,}") for kind, count in memory.parts.items())
    tables = (
        Table("memory", "Memory kept for each task", ("Task", "Kept", "Bytes"), tasks),
        Table("kinds", "Memory kept by kind, after the last task", ("Kind", "What", "Kept", "Bytes"), kinds),
    )
    return [table for table in tables if table.rows]


def _without_benchmark(table: Table) -> Table:
    """The table without the column that repeats the heading of its section."""
    place = table.columns.index("Benchmark")
    columns, *rows = (row[:place] + row[place + 1 :] for row in (table.columns, *table.rows))
    return replace(table, columns=columns, rows=tuple(rows))


def _group(number: int, name: str, group: list[tuple[Run, str]], comparison: Comparison) -> dict[str, Any]:
    """The section of one benchmark."""
    inside = Comparison(
        tuple(row for row in comparison.rows if row.benchmark == name),
        tuple(pair for pair in comparison.pairs if pair.benchmark == name),
    )
    results = [(run.result, label) for run, label in group]
    drawings = draw_together(results) if len(group) > 1 else []
    options = [flat(result.config) for result, _ in results]
    rows = [(key, *(show(each.get(key)) for each in options)) for key in differing_options([run for run, _ in group])]
    columns = ("Option", *(label for _, label in group))
    return {
        "id": f"benchmark-{number}",
        "name": name,
        "notice": REGRESSION if any(result.score == "r2" for result, _ in results) else "",
        "results": _without_benchmark(results_table(inside)),
        "pictures": _pictures([replace(drawing, name=f"{drawing.name}-{number}") for drawing in drawings]),
        "paired": _without_benchmark(paired_table(inside)) if inside.pairs else None,
        "differing": Table("differing", "Options that differ", columns, tuple(rows)) if rows else None,
    }


def _detail(number: int, result: Result, label: str) -> dict[str, Any]:
    """One run of a comparison."""
    drawing = matrix_figure(result)
    rows = tuple((meaning.title_with_unit, mean_and_std(meaning.of(result), meaning.unit)) for meaning in MEANINGS)
    drawing = replace(drawing, name=f"{drawing.name}-run-{number}")
    return {
        "label": f"{label} on {result.benchmark}",
        "run": result,
        "facts": _facts(result),
        "picture": Picture(drawing, inline_svg(drawing)),
        "metrics": Table("metrics", "Metrics, mean ± standard deviation over seeds", ("Metric", "Value"), rows),
        "options": _options_table(result),
        "environment": _environment_table(result),
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
