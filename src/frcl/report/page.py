"""One self-contained HTML file for a run or for several: no script, no outside request, all text escaped."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from frcl.experiment.results import Memory
from frcl.learners.types import KINDS, plural
from frcl.report import figures as one_run
from frcl.report.drawing import DARK, LIGHT, Drawing, inline_svg
from frcl.report.numbers import MEANINGS, MISSING, SYMBOLS, duration, in_unit, interval, mean_and_std, size
from frcl.report.run import Comparison, Run, comparison_rows, differing_options
from frcl.report.side_by_side import Labelled, draw_together
from frcl.report.tables import Table, paired_table, results_table

KEPT = "What is kept"
SECTIONS: dict[str, tuple[Callable[[Run], Drawing | str], ...]] = {
    "Accuracy": (one_run.matrix_figure, one_run.no_task_figure, one_run.curves_figure, one_run.forgetting_figure),
    "Uncertainty": (one_run.calibration_figure,),
    KEPT: (one_run.points_figure,),
    "Task switches": (one_run.boundary_figure,),
    "Training": (one_run.terms_figure, one_run.time_figure),
}


def draw(run: Run) -> tuple[dict[str, list[Drawing]], list[str]]:
    """The figures of each section, and the reason for each missing part; call it inside `style()`."""
    drawn = {title: [figure(run) for figure in figures] for title, figures in SECTIONS.items()}
    left_out = [one for part in drawn.values() for one in part if isinstance(one, str)]
    rest = {"Options": run.result.config, "Environment": run.result.environment, "Command": run.result.command}
    left_out += [f"{name}: the run recorded none." for name, value in rest.items() if not value]
    return {title: [one for one in part if isinstance(one, Drawing)] for title, part in drawn.items()}, left_out


def run_page(run: Run) -> tuple[str, list[Drawing]]:
    """The report of a run as HTML, and every figure drawn; call it inside `style()`."""
    drawn, left_out = draw(run)
    page = {"title": f"{run.result.method} on {run.result.benchmark}", "kind": "Run report", "left_out": left_out}
    headline = "agnostic_accuracy" if run.result.names_no_task else "average_accuracy"
    first = next(one for one in MEANINGS if one.key == headline)
    sections = {title: part for title, part in drawn.items() if part and title != KEPT}
    memory = run.result.memory_bytes or Memory(0)
    tasks = [(one, size(count), f"{count:,}") for one, count in zip(run.result.tasks, memory.per_task, strict=False)]
    kinds = [(kind, KINDS.get(kind, ""), size(count), f"{count:,}") for kind, count in memory.parts.items()]
    by_task = Table("memory", "Memory kept for each task", ("Task", "Kept", "Bytes"), tasks)
    by_kind = Table("kinds", "Memory kept by kind, after the last task", ("Kind", "What", "Kept", "Bytes"), kinds)
    kept = {"sheets": one_run.contact_sheets(run), "memory_tables": [one for one in (by_task, by_kind) if one.rows]}
    html = render_template("run.html.j2", run=run, sections=sections, first=first, **page, **kept)
    return html, [drawing for part in drawn.values() for drawing in part]


def comparison_page(runs: Sequence[Run]) -> tuple[str, list[Drawing]]:
    """The comparison of runs as HTML, and every figure drawn; call it inside `style()`."""
    comparison = comparison_rows(runs)
    labelled = [(run, row.label) for run, row in zip(runs, comparison.rows, strict=True)]
    benchmarks = list(dict.fromkeys(run.result.benchmark for run in runs))
    groups = [_group(place, name, labelled, comparison) for place, name in enumerate(benchmarks)]
    details = [_detail(place, *one) for place, one in enumerate(labelled)]
    where = ", ".join(benchmarks) if len(groups) <= 3 else plural(len(groups), "benchmark")
    title = f"{plural(len(runs), 'run')} on {where}"
    html = render_template("comparison.html.j2", title=title, kind="Comparison", groups=groups, details=details)
    return html, [drawing for part in groups for drawing in part["drawings"]] + [one["drawing"] for one in details]


def _group(place: int, name: str, labelled: Labelled, comparison: Comparison) -> dict[str, Any]:
    group = [(run, label) for run, label in labelled if run.result.benchmark == name]
    runs, labels = zip(*group, strict=True)
    pairs = [pair for pair in comparison.pairs if pair.benchmark == name]
    drawings = draw_together(group) if len(group) > 1 else []
    rows = [(key, *(run.options.get(key, "null") for run in runs)) for key in differing_options(runs)]
    return {
        "id": f"benchmark-{place}",
        "name": name,
        "runs": runs,
        "results": results_table([row for row in comparison.rows if row.benchmark == name]).without("Benchmark"),
        "drawings": [replace(drawing, name=f"{drawing.name}-{place}") for drawing in drawings],
        "paired": paired_table(pairs).without("Benchmark") if pairs else None,
        "differing": Table("differing", "Options that differ", ("Option", *labels), rows),
    }


def _detail(place: int, run: Run, label: str) -> dict[str, Any]:
    rows = [(one.title_with_unit, mean_and_std(run.result.metric(one.key), one.unit)) for one in MEANINGS]
    return {
        "label": f"{label} on {run.result.benchmark}",
        "run": run,
        "drawing": replace(one_run.matrix_figure(run), name=f"accuracy-matrix-run-{place}"),
        "metrics": Table("metrics", "Metrics, mean ± standard deviation over seeds", ("Metric", "Value"), rows),
    }


def _when(started: str) -> str:
    """A time without seconds, in its recorded zone; any other text unchanged."""
    try:
        moment = datetime.fromisoformat(started)
    except ValueError:
        return started
    return f"{moment:%Y-%m-%d %H:%M}{' UTC' if moment.utcoffset() == timedelta(0) else ''}"


def render_template(template: str, **context: Any) -> str:
    environment = Environment(
        loader=PackageLoader("frcl.report", "templates"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= {"svg": inline_svg, "when": _when}
    environment.filters |= {form.__name__: form for form in (duration, in_unit, interval, plural, size)}
    environment.globals |= {"light": LIGHT, "dark": DARK, "meanings": MEANINGS, "symbols": SYMBOLS, "missing": MISSING}
    return environment.get_template(template).render(context)
