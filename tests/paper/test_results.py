"""REPRODUCTION.md matches the result files, and the result files are complete."""

import json
import shutil
import statistics
from pathlib import Path

import pytest

from frcl.errors import DataError
from frcl.experiment.metrics import accuracy_matrix, forgetting
from frcl.report.drawing import style
from paper.figures.base import FOLDER, read_record
from paper.figures.sheets import read_sheet
from paper.page import page
from paper.readme import BEGIN, END, NAMED, UNNAMED, headlines, write_readme
from paper.reasons import read_reasons
from paper.scenarios import ROWS
from paper.store import differences, read_document, to_text
from paper.targets import FIGURES, TABLES

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "paper" / "results"
FILES = sorted(path for path in RESULTS.glob("*/*.json") if path.parent.name != FOLDER)
MEASURED = (*TABLES, *(figure.table for figure in FIGURES if figure.table is not None))
MADE = [figure for figure in FIGURES if (RESULTS / FOLDER / f"{figure.name}.csv").is_file()]


@pytest.mark.slow
def test_the_page_is_generated_from_the_results():
    assert (ROOT / "REPRODUCTION.md").read_text() == page(TABLES, RESULTS, FIGURES, ROOT)


def test_the_numbers_of_the_readme_are_generated_from_the_results(tmp_path):
    text = (ROOT / "README.md").read_text()
    assert f"{BEGIN}\n\n{headlines(RESULTS)}\n\n{END}" in text
    (tmp_path / "README.md").write_text(text.replace(" ± ", " + "))
    shutil.copytree(RESULTS, tmp_path / "results")
    assert write_readme(tmp_path / "results", tmp_path) == tmp_path / "README.md"
    within = (tmp_path / "README.md").read_text().split(BEGIN)[1].split(END)[0]
    assert within == text.split(BEGIN)[1].split(END)[0]
    (tmp_path / "README.md").write_text(f"before {BEGIN} after")
    with pytest.raises(DataError, match="add it where the tables end"):
        write_readme(tmp_path / "results", tmp_path)


@pytest.mark.parametrize(
    ("table", "cell", "metric", "title"),
    [
        ("scenarios", UNNAMED[0], "agnostic_accuracy", "Split-MNIST, exact GP, 540 features"),
        ("frontier", UNNAMED[1], "agnostic_accuracy", "Permuted-MNIST, FRCL+, 200 points"),
        ("frontier", NAMED[0], "average_accuracy", "Split-MNIST, FRCL+, 40 points"),
        ("frontier", NAMED[1], "average_accuracy", "Omniglot, FRCL+, 2 points per character"),
    ],
)
def test_a_headline_has_the_numbers_of_its_cell(table, cell, metric, title):
    found = read_document(RESULTS / table / f"{cell}.json", quick=False)
    accuracies = [100 * one[metric] for one in found["seeds"]]
    current = next(one for one in TABLES if one.name == table)
    earlier = differences(found, next(one for one in current.cells if one.name == cell).config())
    kept = found["batches"][0]["memory_bytes"]
    sums = kept["parts"].get("sums", 0) * (metric == "average_accuracy")  # they infer the task, which is named
    (line,) = [line for line in headlines(RESULTS).splitlines() if line.startswith(f"| {title} | ")]
    _, _, named, ours, seeds, size, _ = line.split("|", 6)
    assert named.strip() == ("no" if cell in UNNAMED else "yes")
    mean, std = statistics.mean(accuracies), statistics.stdev(accuracies)
    assert ours.strip() == f"{mean:.2f} ± {std:.2f}{' †' * bool(earlier)}"
    assert seeds.split()[0] == str(len(accuracies))
    assert size.strip() == f"{kept['total'] - sums:,}"
    assert headlines(RESULTS / "nothing").count("not measured") == 8


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_result_is_whole(path):
    found = read_document(path, quick=False)
    assert (found["table"], found["cell"]) == (path.parent.name, path.stem)
    cells = {cell.name: cell for table in MEASURED if table.name == found["table"] for cell in table.cells}
    assert path.stem in cells
    seeds = [one["seed"] for one in found["seeds"]]
    assert seeds == sorted(set(seeds))
    assert set(seeds) <= set(cells[path.stem].seeds)
    assert sorted(seed for batch in found["batches"] for seed in batch["seeds"]) == seeds
    assert path.read_text() == to_text(found)
    assert str(ROOT) not in json.dumps(found)
    for batch in found["batches"]:
        assert batch["command"].startswith(("frcl run", "python -m paper"))
        assert batch["environment"]["torch"]
    for one in found["seeds"]:
        assert one["average_accuracy"] == pytest.approx(sum(one["last_row"]) / len(one["last_row"]), abs=1e-12)
        assert one["accuracy_after_learning"] == pytest.approx(sum(one["diagonal"]) / len(one["diagonal"]), abs=1e-12)
        if "accuracy" in one:
            assert one["forgetting"] == pytest.approx(float(forgetting(accuracy_matrix(one["accuracy"]))), abs=1e-12)


@pytest.mark.parametrize("figure", MADE, ids=lambda figure: figure.name)
def test_a_figure_is_whole(figure):
    folder = RESULTS / FOLDER
    assert {path.suffix for path in folder.glob(f"{figure.name}.*")} == {".csv", ".json", ".png", ".svg"}
    record = read_record(RESULTS, figure.name)
    with style():
        drawing = figure.draw(read_sheet(folder / f"{figure.name}.csv"))
    assert (record.title, record.caption, record.text) == (drawing.title, drawing.caption, drawing.text)
    assert (record.measured is None) == (figure.table is not None)
    assert str(ROOT) not in (folder / f"{figure.name}.json").read_text()


def test_reasons_are_for_cells_that_there_are():
    names = {table.name: {cell.name for cell in table.cells} for table in MEASURED}
    for table, known in read_reasons().items():
        assert set(known) <= names[table]


def test_every_row_that_differs_has_a_reason():
    """Of the paper's tables: a row of FRCL has to agree, any other may differ with a reason."""
    tables = [table for table in TABLES if table.name != "methods"]
    assert "not known" not in page(tables, RESULTS)


def test_nothing_else_is_among_the_figures():
    assert {path.stem for path in (RESULTS / FOLDER).iterdir()} <= {figure.name for figure in FIGURES}


def test_a_result_that_is_missing_is_said_to_be(tmp_path):
    thresholds = (5 + 1) * sum(len(table.cells) for table in TABLES if table.name == "table3")  # and the accuracy
    accuracies = sum(len(table.cells) for table in TABLES if table.name not in ("table3", "frontier", "scenarios"))
    frontier = 7 * (3 + 4 + 2)  # accuracy of FRCL, also recentred, and of FRCL+; NLL and ECE, bytes of two of them
    text = page(TABLES, tmp_path, FIGURES)
    assert text.count("not measured |") == accuracies + thresholds + frontier + len(ROWS)
    assert text.count("not made yet: ") == len(FIGURES)
