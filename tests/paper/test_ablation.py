"""The regularisers of FRCL+ on and off: the cells, the tables on the page, and the figure."""

import itertools
import json
import statistics

import pytest

from frcl.experiment import config as configs
from frcl.experiment.config import resolve
from frcl.report.drawing import style
from paper.ablation import ABLATION, POINTS, ROWS, name_of, weights_in_words
from paper.figures import regularisers
from paper.figures.base import make_figure, path_of_figure
from paper.library import REGULARISERS
from paper.measure import Place
from paper.quick import reduced_figure
from paper.store import FORMAT, VERSION, learned_options, path_of, write_document

(FIGURE,) = regularisers.FIGURES
CELLS = {cell.name: cell for cell in ABLATION.cells}
BENCHMARKS = tuple(POINTS)


def put(place: Place, name: str, accuracies: list[float], forgetting: float = 0.5, **options) -> None:
    """Write a result file of a cell; `options` of the learner differ from the current ones."""
    cell = CELLS[name]
    seeds = [
        {"seed": seed, "average_accuracy": value, "forgetting": forgetting} for seed, value in enumerate(accuracies)
    ]
    config = resolve(cell.benchmark, *cell.layers, {"learner": options})
    kind = {"format": FORMAT, "version": VERSION, "quick": place.quick}
    write_document(
        path_of(place.results, "ablation", name),
        {**kind, "config": learned_options(config), "seeds": seeds, "batches": []},
    )


def options_of(benchmark: str, row: str):
    cell = CELLS[name_of(benchmark, row)]
    return resolve(cell.benchmark, *cell.layers).learner


# -- what is run --------------------------------------------------------------------------------------------------


def test_the_rows_are_none_each_alone_all_but_one_and_all():
    sizes = (0, 1, 3, 4)
    subsets = {frozenset(one) for size in sizes for one in itertools.combinations(REGULARISERS, size)}
    assert {frozenset(on) for on in ROWS.values()} == subsets
    assert len(ROWS) == len(subsets) == 10
    assert len(ABLATION.cells) == len(CELLS) == 30
    assert ROWS["only memory targets"] == ("memory_targets",)
    assert set(ROWS["all but curvature"]) == set(REGULARISERS) - {"curvature"}


def test_a_regulariser_that_is_on_has_the_weight_of_the_preset(monkeypatch):
    plain = configs._benchmark_defaults
    weights = dict(zip(REGULARISERS, (0.5, 2.0, 3.0, 7.0), strict=True))

    def tuned(benchmark, method, options):
        found = plain(benchmark, method, options)
        return {**found, "learner": {**found["learner"], **weights}} if method == "frcl-plus" else found

    monkeypatch.setattr(configs, "_benchmark_defaults", tuned)
    for benchmark in BENCHMARKS:
        for row, on in ROWS.items():
            options = options_of(benchmark, row)
            found = {one: getattr(options, one) for one in REGULARISERS}
            shown = weights | {"functional": 1.0}  # which FRCL+ does not have
            assert found == {one: shown[one] if one in on else 0.0 for one in REGULARISERS}
    told = weights_in_words(ABLATION)
    assert "Split-MNIST `functional` 1, `current_inputs` 2, `memory_targets` 3, `curvature` 7; Permuted-MNIST" in told


def test_old_tasks_are_predicted_by_their_heads_but_with_the_papers_term_alone():
    for benchmark in BENCHMARKS:
        for row in ROWS:
            options = options_of(benchmark, row)
            assert options.prediction == ("summary" if row == "only functional" else "head")
        nothing = options_of(benchmark, "none")
        assert not nothing.regularisers()
        assert sum(getattr(nothing, one) for one in REGULARISERS) == 0


def test_benchmarks_points_and_seeds():
    for name, cell in CELLS.items():
        config = resolve(cell.benchmark, *cell.layers)
        assert (config.method, name.startswith(cell.benchmark)) == ("frcl-plus", True)
        paper = resolve(cell.benchmark, {"method": "frcl"})
        assert config.network == paper.network
        if cell.benchmark == "omniglot":
            assert (config.learner.points_per_class, config.learner.steps, config.stream.tasks) == (1, 1000, 10)
            assert cell.seeds == (0,)
        else:
            points = {"split-mnist": 2, "permuted-mnist": 10}[cell.benchmark]
            assert (config.learner.points, config.learner.points_per_class) == (points, None)
            assert (config.learner.steps, config.stream) == (paper.learner.steps, paper.stream)
            assert cell.seeds == (0, 1, 2)
    for benchmark in BENCHMARKS:
        for row in ROWS:
            options = learned_options(resolve(benchmark, *CELLS[name_of(benchmark, row)].layers))
            rest = {
                name: value for name, value in options["learner"].items() if name not in (*REGULARISERS, "prediction")
            }
            whole = learned_options(resolve(benchmark, *CELLS[name_of(benchmark, "all")].layers))["learner"]
            assert rest == {name: whole[name] for name in rest}, "rows differ only in the regularisers"


# -- the page -----------------------------------------------------------------------------------------------------


def test_the_page_has_the_numbers_of_the_files(place):
    accuracies = {row: [0.5 + 0.01 * at, 0.6, 0.7 - 0.02 * at] for at, row in enumerate(ROWS)}
    for row, values in accuracies.items():
        put(place, name_of("split-mnist", row), values, forgetting=0.125)
    put(place, name_of("permuted-mnist", "none"), [0.25, 0.5])
    put(place, name_of("omniglot", "all"), [0.75])
    _, accuracy, forgetting = ABLATION.view(ABLATION, place.results, False)
    heading, _, *lines = ([cell.strip() for cell in line.strip("|").split("|")] for line in accuracy.splitlines())
    assert heading == [
        "average accuracy %", "`functional`", "`current_inputs`", "`memory_targets`", "`curvature`",
        "Split-MNIST", "Permuted-MNIST", "Omniglot",
    ]  # fmt: skip
    assert [line[0] for line in lines] == list(ROWS)
    for row, *marks, split, permuted, omniglot in lines:
        assert {one for one, mark in zip(REGULARISERS, marks, strict=True) if mark == "on"} == set(ROWS[row])
        values = [100 * value for value in accuracies[row]]
        assert split == f"{statistics.mean(values):.2f} ± {statistics.stdev(values):.2f}"
        assert permuted == ("37.50 ± 17.68 (seeds: 2 of 3)" if row == "none" else "not measured")
        assert omniglot == ("75.00" if row == "all" else "not measured")
    assert forgetting.count("12.50 ± 0.00 |") == 10


# -- the figure ---------------------------------------------------------------------------------------------------


def test_the_sheet_has_the_cells_that_are_measured_as_they_are_now(place):
    assert make_figure(FIGURE, place) == []
    put(place, "split-mnist-none", [0.5, 0.75, 0.25])
    put(place, "split-mnist-all", [0.5], lr=0.5)
    put(place, "omniglot-all-but-memory-targets", [0.875])
    found = regularisers.measure_regularisers(place)
    assert found.rows == (
        ("split-mnist", "none", "off", "off", "off", "off", "50", "25", "3"),
        ("omniglot", "all but memory targets", "on", "on", "off", "on", "87.5", "", "1"),
    )
    files = make_figure(FIGURE, place)
    assert [path.name for path in files] == ["ablation.csv", "ablation.png", "ablation.svg"]
    record = json.loads(path_of_figure(place.results, "ablation", "json").read_text())
    assert record["measured"] is None
    missing = record["caption"].partition("Not measured: ")[2]
    assert missing.startswith("Split-MNIST: only functional, ")
    assert "; Permuted-MNIST: all rows; Omniglot: none, " in missing
    assert "over 1 to 3 seeds" in record["caption"]


def test_a_dot_stands_where_its_number_is(place):
    accuracies = {}
    for at, (benchmark, row) in enumerate(itertools.product(BENCHMARKS[:2], ROWS)):
        accuracies[benchmark, row] = [0.3 + 0.03 * at, 0.34 + 0.03 * at]
        put(place, name_of(benchmark, row), accuracies[benchmark, row])
    with style():
        drawing = regularisers.draw_regularisers(regularisers.measure_regularisers(place))
    assert drawing.caption.endswith("Not measured: Omniglot: all rows.")
    *full, empty = drawing.figure.axes
    labels = [text.get_text() for text in full[0].get_yticklabels()]
    assert labels == list(ROWS)
    for axes, benchmark in zip(full, BENCHMARKS, strict=False):
        ticks = dict(zip(full[0].get_yticks(), labels, strict=True))
        dots = {ticks[one.lines[0].get_ydata()[0]]: one.lines[0].get_xdata()[0] for one in axes.containers}
        expected = {row: 100 * statistics.mean(accuracies[benchmark, row]) for row in ROWS}
        assert dots == pytest.approx(expected)
        written = {ticks[text.get_position()[1]]: text.get_text() for text in axes.texts}
        assert written == {row: f"{mean:.2f}" for row, mean in expected.items()}
        (reference,) = (line for line in axes.lines if line.get_linestyle() == ":")
        assert reference.get_xdata()[0] == pytest.approx(expected["all"])
    assert [text.get_text() for text in empty.texts] == ["not measured"]
    assert "Split-MNIST: none 32.0, only functional 35.0" in drawing.text


def test_a_quick_run_is_tiny():
    small = reduced_figure(FIGURE).table
    assert [cell.name for cell in small.cells] == [*(name_of("split-mnist", row) for row in ROWS), "omniglot-all"]
    assert all(len(cell.seeds) == 1 for cell in small.cells)
    assert all(resolve(cell.benchmark, *cell.layers).learner.steps == 12 for cell in small.cells)
