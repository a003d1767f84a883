"""Predictions without the task: the cells, and what of a measured cell stands in which column."""

from frcl.exact.fixed import STEPS
from frcl.experiment.config import resolve
from paper.cells import OMNIGLOT, Cell
from paper.measure import Place
from paper.scenarios import AGNOSTIC, COLUMNS, ROWS, SCENARIOS, SHARED, TWO_IMAGES, bytes_for
from paper.store import learned_options, path_of, write_document
from paper_helpers import PLAIN, SMALL, file_of, measured


def shown(results) -> dict[str, dict[str, str]]:
    grid = next(iter(SCENARIOS.view(SCENARIOS, results, False)))
    heading, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in grid.splitlines())
    return {row[0]: dict(zip(heading, row, strict=True)) for row in rows}


def test_cells_are_named_once_and_their_sums_keep_within_the_limit():
    cells = {cell.name: cell for cell in SCENARIOS.cells} | SHARED
    assert [cell.name for cell in SCENARIOS.cells] == list(dict.fromkeys(r.cell for r in ROWS if r.cell not in SHARED))
    limits = {"≤ 0.63 MB": 0.63e6, "≤ 3.2 MB": 3.2e6, "≤ 40 MB": 40e6, TWO_IMAGES: 2 * 1623 * 28**2 * 4}
    for row in ROWS:
        cell = cells[row.cell]
        config = resolve(cell.benchmark, *cell.layers)
        assert (config.method, config.scenario) == (row.method, "class")
        if row.method == "exact-gp" and row.limit:
            C, T, width = (1623, 50, 8) if row.benchmark == OMNIGLOT else (10, 5, 4)
            assert limits[row.limit] >= triangle_bytes(config.learner.count, C, T, width)


def triangle_bytes(count: int, C: int, T: int, width: int) -> int:
    """Of the sums of T tasks with C classes in all: 4 bytes each, the triangle in `width`, 8 where they exceed 2³¹."""
    K = count + 1
    return width * (K * (K + 1) // 2) + 4 * (K * C + C + T)


def test_omniglot_has_as_many_features_as_fit_into_two_images_of_each_character():
    """Chosen by their bytes alone; the sum of the squares of a feature of usual size nearly exceeds 2³¹ already."""
    drawings = 1623 * 16 * resolve(OMNIGLOT).stream.augment
    assert drawings * STEPS**2 > 0.99 * 2**31
    count = next(row.size for row in ROWS if row.limit == TWO_IMAGES)
    limit = 2 * 1623 * 28**2 * 4
    assert triangle_bytes(count, 1623, 50, 8) <= limit < triangle_bytes(count + 1, 1623, 50, 8)


def test_how_the_task_is_inferred_counts_where_it_matters():
    cell = next(cell for cell in SCENARIOS.cells if cell.method == "frcl-plus")
    assert "task_features" in learned_options(cell.config())["learner"]
    assert "task_features" not in learned_options(cell.config({"scenario": "task"}))["learner"]


def test_a_measured_cell_has_the_scores_of_its_run(tmp_path):
    """As the runner computes them from the same records."""
    place = Place(tmp_path / "results", tmp_path / "runs")
    cell = Cell("split-digits-finetune", "split-digits", "Fine", (PLAIN, SMALL), (0,))
    measured(place, cell, table="scenarios")
    entry = file_of(place, cell, "scenarios")["seeds"][0]
    assert 0 < entry[AGNOSTIC] <= entry["average_accuracy"] <= 1, "with the task it is easier"
    assert entry[AGNOSTIC] <= 1
    assert {"task_accuracy", "agnostic_nll", "agnostic_ece", "novelty_auroc"} <= set(entry)
    assert entry["novelty_auroc"] is None, "heads have no novelty"


def test_bytes_of_data_and_of_network_size_stand_apart(tmp_path):
    row = next(row for row in ROWS if row.cell in SHARED and row.goal)
    cell = SHARED[row.cell]
    seeds = [
        {"seed": s, "average_accuracy": 0.99, AGNOSTIC: value, "task_accuracy": 0.95, "agnostic_nll": 0.2,
         "agnostic_ece": 0.012, "novelty_auroc": None}
        for s, value in enumerate((0.93, 0.95))
    ]  # fmt: skip
    parts = {"points": 1000, "posterior": 200, "heads": 30, "fisher": 7000, "anchor": 400}
    batch = {
        "seeds": [0, 1], "command": "python -m paper", "started": "2026-01-02T03:04:05", "seconds": {"total": 7.0},
        "memory_bytes": {"total": 8630, "per_task": [], "parts": parts},
        "environment": {"device": "cpu", "torch": "2", "commit": "abc"},
    }  # fmt: skip
    kind = {"format": "frcl-cell", "version": 1, "quick": False, "config": learned_options(cell.config())}
    document = {**kind, "seeds": seeds, "batches": [batch]}
    assert bytes_for(document) == (1230, 7400)
    write_document(path_of(tmp_path, "frontier", cell.name), document)
    found = shown(tmp_path)[row.title]
    assert set(found) == set(COLUMNS)
    assert found["accuracy %"] == "94.00 ± 1.41"
    assert found["reached"] == ("yes" if row.goal <= 94.0 else f"no: {row.goal - 94:.2f} below")
    assert (found["bytes for data"], found["bytes of network size"]) == ("1,230", "7,400")
    assert (found["ECE"], found["novelty AUROC"], found["with the task %"]) == ("0.012", "n/a", "99.00 ± 0.00")
    assert found["seeds"] == "2 of 10"
