"""Reports of finished runs: the HTML page, figures and tables."""

from frcl.report.comparison import Comparison, ComparisonRow, PairedDifference, comparison_rows
from frcl.report.page import write_report
from frcl.report.run import Run, find_runs, read_run
from frcl.report.tables import write_tables

__all__ = [
    "Comparison",
    "ComparisonRow",
    "PairedDifference",
    "Run",
    "comparison_rows",
    "find_runs",
    "read_run",
    "write_report",
    "write_tables",
]
