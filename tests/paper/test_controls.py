"""The controls: which options they share with FRCL+, that they keep as many bytes, and what stands in which column."""

from paper.controls import COLUMNS, CONTROLS, CONTROLS_TABLE, REPLAYED, SCHEDULE
from paper.frontier import EQUAL, FRONTIER
from paper.store import learned_options, path_of, read_document, write_document
from test_results import RESULTS

CELLS = {cell.name: cell for cell in (*CONTROLS_TABLE.cells, *FRONTIER.cells)}
INPUTS = {"split-mnist": (784, 256, 5, 2), "permuted-mnist": (784, 100, 10, 10)}  # and features, tasks, functions


def test_the_schedule_is_all_that_frcl_plus_trains_with_of_its_own():
    training = ("steps", "batch_size", "lr", "lr_decay", "optimiser", "warm_up", "clip_norm", "weight_decay")
    for name in ("split-mnist-frcl-schedule-2", "permuted-mnist-frcl-schedule-200"):
        control, plus = CELLS[name].config(), CELLS[name.replace("schedule", "plus")].config()
        assert {one: getattr(control.learner, one) for one in training} == {
            one: getattr(plus.learner, one) for one in training
        }
        plain = CELLS[name.replace("schedule", "temperature")].config().learner
        assert {one for one in training if getattr(plain, one) != getattr(plus.learner, one)} == set(SCHEDULE)


def kept_by_frcl_plus(benchmark, points):
    document = read_document(path_of(RESULTS, "frontier", f"{benchmark}-frcl-plus-{points}"), quick=False)
    batch = document["batches"][0]["memory_bytes"]
    return batch["total"] - batch["parts"].get("sums", 0)


def test_images_that_are_replayed_take_as_many_bytes_as_frcl_plus_keeps():
    """A byte for each pixel, and a label."""
    for (benchmark, points), replayed in REPLAYED.items():
        pixels, _, tasks, _ = INPUTS[benchmark]
        size, wanted = (pixels + 8) * tasks * replayed, kept_by_frcl_plus(benchmark, points)
        assert wanted <= size <= 1.05 * wanted


def test_the_largest_frcl_keeps_as_many_bytes_as_the_largest_frcl_plus():
    for benchmark, (*_, points) in EQUAL.items():
        pixels, width, tasks, functions = INPUTS[benchmark]
        functions = 1 if functions == 2 else functions
        size = tasks * (pixels * points + 4 * functions * points * min(points, width + 1))
        wanted = kept_by_frcl_plus(benchmark, {"split-mnist": 40, "permuted-mnist": 200}[benchmark])
        assert wanted <= size <= 1.05 * wanted


def test_differences_are_to_frcl_plus_over_common_seeds(tmp_path):
    control = next(one for one in CONTROLS if one.name == "replay-445")
    for table, cell, values in (
        ("controls", control.cell, (0.9, 0.92)),
        ("frontier", CELLS["permuted-mnist-frcl-plus-10"], (0.95, 0.96, 0.5)),
    ):
        seeds = [{"seed": s, "average_accuracy": value, "nll": 0.5, "ece": 0.25} for s, value in enumerate(values)]
        batch = {
            "seeds": [one["seed"] for one in seeds], "command": "x", "started": "2026-01-02T03:04:05",
            "seconds": {"total": 7.0}, "memory_bytes": {"total": 1234, "per_task": [], "parts": {"sums": 34}},
            "environment": {"device": "cpu", "torch": "2", "commit": "abc"},
        }  # fmt: skip
        kind = {"format": "frcl-cell", "version": 1, "quick": False, "config": learned_options(cell.config())}
        write_document(path_of(tmp_path, table, cell.name), {**kind, "seeds": seeds, "batches": [batch]})
    grid = next(iter(CONTROLS_TABLE.view(CONTROLS_TABLE, tmp_path, False)))
    heading, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in grid.splitlines())
    assert tuple(heading) == COLUMNS
    assert len(rows) == len(CONTROLS_TABLE.cells)
    shown = next(row for row in rows if row[1] == control.title)
    assert shown[2:] == ["91.00 ± 1.41", "+4.50 ± 0.50 (2 seeds) with 10 points", "0.500", "0.250", "1,200", "2 of 10"]
