"""Reports of finished runs: the HTML page, figures and tables."""

from collections.abc import Sequence
from pathlib import Path

from frcl.report.run import Run, comparison_rows, find_runs, read_run
from frcl.report.tables import write_tables

__all__ = ["Run", "comparison_rows", "find_runs", "read_run", "write_report", "write_tables"]


def write_report(runs: Sequence[Run], out: Path, figures: Path | None = None) -> Path:
    """Write the report of one run, or the comparison of several, as one file at `out`.

    With `figures`, the figures drawn for it are also written to that folder, as PNG and SVG files.
    """
    from frcl.report import page  # loads matplotlib, which the rest of the package does without

    return page.write_report(runs, Path(out), figures)
