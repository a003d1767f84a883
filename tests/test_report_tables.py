"""Tables in three formats with the numbers of the result, and text that cannot break out."""

import csv
import io

import numpy as np
import pytest

from frcl.errors import DataError
from frcl.report import comparison_rows, read_run, write_tables
from frcl.report.tables import Table, comma_separated, latex, markdown, tables
from report_samples import SCRIPT, bare_run, result, rich_run, write_run


@pytest.fixture
def runs(tmp_path):
    return [read_run(rich_run(tmp_path / "a")), read_run(bare_run(tmp_path / "b"))]


def test_the_files_of_one_run_and_of_several(runs, tmp_path):
    one = write_tables(runs[:1], tmp_path / "one")
    several = write_tables(runs, tmp_path / "deep" / "several")
    kinds = ("md", "csv", "tex")
    assert [path.name for path in one] == [
        f"{n}.{k}" for n in ("results", "metrics", "accuracy", "accuracy-no-task") for k in kinds
    ]
    names = ("results", "metrics", "accuracy-1-frcl", "accuracy-1-frcl-no-task", "accuracy-2-ewc", "paired")
    assert [path.name for path in several] == [f"{n}.{k}" for n in names for k in kinds]
    assert all(path.is_file() for path in (*one, *several))
    with pytest.raises(DataError, match="no run"):
        write_tables([], tmp_path)


def test_every_row_has_a_cell_for_each_heading(runs):
    for table in tables(runs):
        head, *data = table.data
        assert {len(row) for row in table.rows} == {len(table.columns)}, table.name
        assert {len(row) for row in data} == {len(head)}, table.name


def test_results_in_csv_have_full_precision(runs, tmp_path):
    write_tables(runs, tmp_path / "tables")
    rows = list(csv.DictReader(io.StringIO((tmp_path / "tables" / "results.csv").read_text())))
    for row, run in zip(rows, runs, strict=True):
        assert (row["method"], row["benchmark"], row["seeds"]) == (run.result.method, "split-digits", "3")
        for key in ("average_accuracy", "forgetting"):
            for part in ("mean", "std", "low", "high"):
                assert float(row[f"{key}_{part}"]) == getattr(run.result.metric(key), part)
        assert int(row["memory_bytes"]) == run.result.memory_bytes.total
    assert float(rows[0]["nll_mean"]) == runs[0].result.nll.mean
    assert rows[1]["nll_mean"] == rows[1]["ece_high"] == ""


def test_accuracy_in_csv_has_every_seed_the_right_way_round(runs, tmp_path):
    write_tables(runs[1:], tmp_path / "tables")
    rows = list(csv.DictReader(io.StringIO((tmp_path / "tables" / "accuracy.csv").read_text())))
    assert len(rows) == 3 * 15
    for row in rows:
        i, j = (runs[1].result.tasks.index(row[key]) for key in ("after_task", "on_task"))
        assert float(row["accuracy"]) == runs[1].result.accuracy[int(row["seed"]), i, j]


def test_markdown_and_latex_say_the_same_rounded(runs):
    results, metrics, accuracy, _, _, paired = tables(runs)
    mean, std = runs[0].result.average_accuracy.mean, runs[0].result.average_accuracy.std
    assert f"| frcl | split-digits | 3 | {100 * mean:.2f} ± {100 * std:.2f} |" in markdown(results)
    assert rf"frcl & split-digits & 3 & {100 * mean:.2f} $\pm$ {100 * std:.2f} &" in latex(results)
    assert "| ewc | split-digits | Brier score | not available | not available | lower |" in markdown(metrics)
    last = 100 * runs[0].result.accuracy.mean(0)[4]
    assert markdown(accuracy).splitlines()[-1].endswith(" | " + " | ".join(f"{v:.2f}" for v in last) + " |")
    (pair,) = comparison_rows(runs).pairs
    low, high = (f"{100 * value:.2f}" for value in (pair.difference.low, pair.difference.high))
    shown = f"| frcl − ewc | split-digits | 3 | {100 * pair.difference.mean:.2f} | {low} to {high} |"
    assert shown in markdown(paired).replace("\N{NO-BREAK SPACE}", " ")
    data = list(csv.reader(io.StringIO(comma_separated(paired))))
    np.testing.assert_array_equal(
        [float(cell) for cell in data[1][4:7]], [getattr(pair.difference, part) for part in ("mean", "low", "high")]
    )


NASTY = r"a|b_c*d`e` \x {y} [z](u) <b> & 5% #1 $2 ~ ^"


def test_text_cannot_break_out_of_a_table():
    table = Table("t", NASTY, ("x", NASTY), ((NASTY, "line\nbreak"), ('say "hi", ok', SCRIPT)))
    for line in markdown(table).splitlines()[2:]:
        bars = [at for at, letter in enumerate(line) if letter == "|" and line[at - 1 : at] != "\\"]
        assert len(bars) == 3
        assert "<" not in line
    body = latex(table)
    assert r"a\textbar{}b\_c*d`e` \textbackslash{}x \{y\}" in body
    assert r"\textless{}b\textgreater{} \& 5\% \#1 \$2 \textasciitilde{} \textasciicircum{}" in body
    assert body.count(r" \\") == 3
    assert "line break" in body
    assert list(csv.reader(io.StringIO(comma_separated(table)))) == [
        ["x", NASTY],
        [NASTY, "line\nbreak"],
        ['say "hi", ok', SCRIPT],
    ]


def test_names_of_files_are_safe_and_their_own(tmp_path):
    runs = [read_run(write_run(tmp_path / name, result("../../evil <x>", root=n))) for n, name in enumerate("ab")]
    paths = write_tables(runs, tmp_path / "tables")
    assert {path.parent for path in paths} == {tmp_path / "tables"}
    assert len({path.name for path in paths}) == len(paths) == 15
    assert "accuracy-1-evil-x-a.csv" in [path.name for path in paths]


@pytest.mark.parametrize("name", ["=1+1", "+cmd", "-2+3", "@SUM(A1)", "\t=1"])
def test_a_name_is_no_formula_in_a_spreadsheet(name):
    text = comma_separated(Table("t", "", (), (), (("task", "value"), (name, -1.5))))
    assert list(csv.reader(io.StringIO(text))) == [["task", "value"], [f"'{name}", "-1.5"]]
