"""Reports of finished runs: the HTML page, figures and tables."""

from collections.abc import Sequence
from pathlib import Path

from frcl.errors import DataError
from frcl.files import write_atomically
from frcl.report.run import Run, comparison_rows, find_runs, read_points, read_run
from frcl.report.tables import write_tables

__all__ = ["Run", "comparison_rows", "find_runs", "read_points", "read_run", "write_report", "write_tables"]


def write_report(runs: Sequence[Run], out: Path, figures: Path | None = None) -> Path:
    """Write the report of one run, or the comparison of several, to `out`; its figures also to the folder `figures`."""
    if not runs:
        raise DataError("no run to report on; name at least one run folder")
    if not Path(out).parent.is_dir():
        raise DataError(f"cannot write {out}: the folder {Path(out).parent} does not exist; create it first")
    from frcl.report import drawing, page  # here, since they load matplotlib

    with drawing.style():
        html, drawings = page.run_page(runs[0]) if len(runs) == 1 else page.comparison_page(runs)
        write_atomically(Path(out), html.encode("utf-8", "replace"))
        if figures is not None:
            figures.mkdir(parents=True, exist_ok=True)
            for one in drawings:
                drawing.save(one, figures)
    return Path(out)
