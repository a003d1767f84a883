"""Reports of finished runs: the HTML page, figures and tables."""

from frcl.report.page import write_report
from frcl.report.run import Run, comparison_rows, find_runs, read_run
from frcl.report.tables import write_tables

__all__ = ["Run", "comparison_rows", "find_runs", "read_run", "write_report", "write_tables"]
