"""Figure 3 is made of cells: its own and those of Table 1."""

import json

import pytest

from frcl.experiment.config import resolve
from frcl.report.drawing import style
from paper.cells import CRITERIA_3, FIGURE_3, POINTS_3, TABLES
from paper.figures import criteria
from paper.figures.base import make_figure, path_of_figure
from paper.measure import Place
from paper.quick import reduced, reduced_figure
from paper.store import FORMAT, VERSION, learned_options, path_of, write_document

(FIGURE,) = criteria.FIGURES
TABLE_1 = TABLES[0]
CELLS = {cell.name: (table.name, cell) for table in (FIGURE_3, TABLE_1) for cell in table.cells}


def put(place: Place, name: str, accuracies: list[float], table: str | None = None, **options) -> None:
    """Write a result file of a cell; `options` of the learner differ from the current ones."""
    own, cell = CELLS[name]
    config = resolve(cell.benchmark, *cell.layers, {"learner": options})
    content = {
        "format": FORMAT,
        "version": VERSION,
        "quick": place.quick,
        "config": learned_options(config),
        "seeds": [{"seed": seed, "average_accuracy": value} for seed, value in enumerate(accuracies)],
    }
    write_document(path_of(place.results, table or own, name), content)


def test_every_criterion_is_there_with_every_number_of_points_once():
    names = {cell.name for cell in FIGURE_3.cells}
    shared = {cell.name for cell in TABLE_1.cells if cell.method == "frcl"}
    assert len(shared) == 8
    assert not names & {cell.name for cell in TABLE_1.cells}
    every = {f"{one}-{row}-{points}" for one, numbers in POINTS_3.items() for row in CRITERIA_3 for points in numbers}
    assert names | shared == every
    assert len(FIGURE_3.cells) == len(names) == 22
    for cell in FIGURE_3.cells:
        config = resolve(cell.benchmark, *cell.layers)
        benchmark, _, criterion = cell.name.rpartition("-")[0].partition("-frcl-")
        assert (config.benchmark, config.method, config.learner.selection) == (benchmark, "frcl", criterion)
        assert config.learner.points == int(cell.name.rpartition("-")[2])
        assert cell.seeds == (0, 1, 2)
        paper = resolve(benchmark, {"method": "frcl"})
        assert (config.learner.steps, config.learner.search_steps) == (paper.learner.steps, paper.learner.search_steps)


def test_cells_with_the_same_number_of_points_differ_in_the_criterion_alone():
    for benchmark, numbers in POINTS_3.items():
        for points in numbers:
            found = []
            for row in CRITERIA_3:
                _, cell = CELLS[f"{benchmark}-{row}-{points}"]
                options = learned_options(resolve(cell.benchmark, *cell.layers))
                assert options["learner"].pop("selection") == row.removeprefix("frcl-")
                found.append(options)
            assert all(one == found[0] for one in found)
            assert found[0]["learner"]["points"] == points


def test_the_numbers_are_those_of_the_result_files(place):
    put(place, "split-mnist-frcl-elbo-10", [0.5, 0.75, 0.25])
    put(place, "split-mnist-frcl-trace-40", [0.5, 0.75])
    put(place, "permuted-mnist-frcl-random-50", [0.125])
    put(place, "split-mnist-frcl-random-40", [1.0], table="figure3")  # Table 1 has this cell: not looked for here
    found = criteria.measure_criteria(place)
    assert found.rows == (
        ("split-mnist", "trace", "40", "62.5", "17.6777", "2", "table1"),
        ("split-mnist", "ELBO", "10", "50", "25", "3", "figure3"),
        ("permuted-mnist", "random", "50", "12.5", "", "1", "figure3"),
    )


def test_cells_with_other_options_are_left_out(place):
    put(place, "split-mnist-frcl-elbo-10", [0.5])
    put(place, "split-mnist-frcl-error-10", [0.5], lr=0.5)
    put(place, "split-mnist-frcl-trace-2", [0.5], steps=7)
    assert criteria.measure_criteria(place).column("criterion") == ["ELBO"]


def test_what_is_not_measured_is_named(place):
    for name in CELLS:
        if "-frcl-" in name and name not in ("split-mnist-frcl-elbo-10", "permuted-mnist-frcl-trace-200"):
            put(place, name, [0.5, 0.75, 0.25])
    numbers = criteria.measure_criteria(place)
    assert len(numbers.rows) == 28
    with style():
        drawing = criteria.draw_criteria(numbers)
    assert drawing.caption.endswith("Not measured: Split-MNIST: ELBO (10); Permuted-MNIST: trace (200).")
    split, permuted = drawing.figure.axes
    bars = {one.get_label(): one.lines[0].get_ydata() for one in split.containers}
    assert list(bars) == list(criteria.NAMES.values())
    assert bars["ELBO"].tolist() == [50.0, pytest.approx(float("nan"), nan_ok=True), 50.0]
    assert len(permuted.containers) == 5
    put(place, "split-mnist-frcl-elbo-10", [0.5])
    put(place, "permuted-mnist-frcl-trace-200", [0.5])
    with style():
        whole = criteria.draw_criteria(criteria.measure_criteria(place))
    assert "Not measured" not in whole.caption
    assert "over 1 to 3 seeds" in whole.caption


def test_the_sheet_follows_the_result_files(place):
    assert make_figure(FIGURE, place) == []
    assert not place.results.exists()
    put(place, "split-mnist-frcl-elbo-10", [0.5])
    csv, *_ = make_figure(FIGURE, place)
    first = csv.read_text()
    assert json.loads(path_of_figure(place.results, "figure3", "json").read_text())["measured"] is None
    put(place, "split-mnist-frcl-elbo-10", [0.5, 1.0])
    make_figure(FIGURE, place)
    assert csv.read_text() == first.replace("50,,1", "75,35.3553,2")


def test_a_quick_run_takes_the_fewest_points():
    small = reduced_figure(FIGURE).table
    assert [cell.name for cell in small.cells] == [
        f"{benchmark}-frcl-{row}"
        for benchmark, points in (("split-mnist", 2), ("permuted-mnist", 10))
        for row in (f"elbo-{points}", f"error-{points}", f"predictive-{points}")
    ]
    assert all(resolve(cell.benchmark, *cell.layers).stream.tasks == 2 for cell in small.cells)
    assert small.cells == tuple(cell for cell in reduced(FIGURE_3).cells if cell in small.cells)
