"""FRCL+ against the published numbers: its cells, the comparisons, and the tables on the page."""

import json
import statistics
from dataclasses import asdict

from hypothesis import given
from hypothesis import strategies as st

from frcl import MLP, FRCLPlus
from frcl.experiment.config import resolve
from frcl.methods import METHODS
from paper.cells import TABLES
from paper.frontier import FRONTIER, LINES, METHOD, equal_budget, frcl_tables, measured_lines, paper_frcl
from paper.numbers import Ours, attains
from paper.page import page
from paper.store import FORMAT, VERSION, learned_options, path_of, write_document

FURTHER = ("current_inputs", "memory_targets", "curvature")  # regularisers that the paper does not have
CELLS = {cell.name: (table.name, cell) for table in (*frcl_tables(), FRONTIER) for cell in table.cells}
EXPECTED = {  # the paper's FRCL, the best published, the target
    "Split-MNIST, 2 points": (82.0, 99.62, 99.78),
    "Split-MNIST, 40 points": (97.8, 99.54, 99.80),
    "Permuted-MNIST, 10 points": (61.7, 89.59, 94.0),
    "Permuted-MNIST, 200 points": (94.3, 95.76, 96.3),
    "Omniglot, 1 point per character": (72.0, 72.0, 88.5),
    "Omniglot, 2 points per character": (81.5, 83.3, 89.0),
    "Omniglot, 3 points per character": (81.4, 81.4, 89.0),
}


def put(results, name, accuracies, size, *, nll=0.5, ece=0.25, parts=None, quick=False, **options) -> None:
    """Write a result file of a cell; `options` of the learner differ from the current ones."""
    table, cell = CELLS[name]
    seeds = [{"seed": seed, "average_accuracy": value, "nll": nll, "ece": ece} for seed, value in enumerate(accuracies)]
    batch = {
        "seeds": [one["seed"] for one in seeds],
        "command": "python -m paper",
        "started": "2026-01-02T03:04:05",
        "seconds": {"total": 7.0},
        "memory_bytes": {"total": size, "per_task": []} | ({} if parts is None else {"parts": parts}),
        "environment": {"device": "cpu", "torch": "2", "commit": "abc"},
    }
    config = resolve(cell.benchmark, *cell.layers, {"learner": options})
    kind = {"format": FORMAT, "version": VERSION, "quick": quick}
    content = {**kind, "config": learned_options(config), "seeds": seeds, "batches": [batch]}
    write_document(path_of(results, table, name), content)


def shown(results) -> list[dict[str, list[str]]]:
    """The tables of the section, each by the first field of its rows; the heading is the row ""."""
    found = []
    for part in FRONTIER.view(FRONTIER, results, False):
        if part.startswith("|"):
            heading, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in part.splitlines())
            found.append({"": heading, **{row[0]: row[1:] for row in rows}})
    return found


# -- what is run --------------------------------------------------------------------------------------------------


def test_every_line_has_the_numbers_that_were_published():
    found = {}
    for line in LINES:
        paper, published = (
            float(text.split(" ± ")[0]) for text in (paper_frcl(line.benchmark, line.points), line.published)
        )
        digits = 2 if "S-FSVI" in line.who else 1
        found[line.title] = (round(paper, 1), round(published, digits), line.goal)
    assert found == EXPECTED
    assert [line.who for line in LINES if "S-FSVI" not in line.who] == ["FRCL", "FRCL"]


def test_cells_are_those_of_the_tables_with_other_holds():
    assert len(LINES) == 7
    for line, cell in zip(LINES, FRONTIER.cells[:7], strict=True):
        table, frcl = CELLS[line.frcl]
        assert table == ("table2" if line.benchmark == "omniglot" else "table1")
        plus, plain = resolve(cell.benchmark, *cell.layers), resolve(frcl.benchmark, *frcl.layers)
        assert (plus.method, plain.method) == ("frcl-plus", "frcl")
        assert cell.seeds == frcl.seeds == tuple(range(5 if line.benchmark == "omniglot" else 10))
        assert (plus.benchmark, plus.network, plus.stream) == (plain.benchmark, plain.network, plain.stream)
        same = {"points", "points_per_class", "steps", "batch_size", "search_steps", "start", "selection"}
        for name in same:
            assert getattr(plus.learner, name) == getattr(plain.learner, name), name
        assert any(getattr(plus.learner, one) > 0 for one in FURTHER)


def test_frcl_plus_has_one_configuration():
    """Nothing but what the paper's appendix and the budget set differs between the benchmarks, nor from Python."""
    appendix = {"points", "points_per_class", "start", "steps", "batch_size", "lr", "search_steps"}
    appendix |= {"past_tasks_per_step", "task_inference", "task_features", "task_kind", "seed"}
    for cell in FRONTIER.cells[:7]:
        options = asdict(cell.config().learner)
        own = {name for name, value in asdict(METHODS[METHOD].options).items() if options[name] != value}
        assert own <= appendix, own
    assert FRCLPlus(MLP(4, (3,))).options == METHODS[METHOD].options


def test_our_frcl_is_looked_for_where_it_is_measured():
    budgets = {name for table in frcl_tables() for name in (cell.name for cell in table.cells)}
    assert budgets == {
        *(f"split-mnist-frcl-trace-{points}" for points in (2, 10, 40, 200, 640)),
        *(f"permuted-mnist-frcl-trace-{points}" for points in (10, 50, 200, 215, 272)),
        *(f"omniglot-frcl-trace-{points}" for points in (1, 2, 3)),
    }
    assert {line.frcl for line in LINES} <= {cell.name for table in TABLES[:2] for cell in table.cells}


# -- numbers ------------------------------------------------------------------------------------------------------


def test_a_goal_is_reached_with_the_digits_that_are_shown():
    assert attains(Ours(99.6151, None), 99.62) == "yes"
    assert attains(Ours(99.6149, 3.0), 99.62) == "no: 0.01 below"
    assert attains(Ours(90.0, None), 91.0) == "no: 1.00 below"


@given(st.integers(0, 12), st.dictionaries(st.text(min_size=1), st.integers(0, 12), min_size=1))
def test_the_equal_budget_is_found(size, budgets):
    found = budgets[equal_budget(size, budgets)]
    enough = [budget for budget in budgets.values() if budget >= size]
    assert found == (min(enough) if enough else max(budgets.values()))


# -- the page -----------------------------------------------------------------------------------------------------


def test_the_page_has_the_numbers_of_the_files(tmp_path):
    plus, frcl = [0.9966, 0.9955, 0.9962], [0.83, 0.81, 0.85]
    put(tmp_path, "split-mnist-frcl-trace-2", frcl, 31_480, nll=1.2, ece=0.13)
    put(tmp_path, "split-mnist-frcl-trace-10", [0.95, 0.97], 160_000)
    put(tmp_path, "split-mnist-frcl-trace-40", [0.98, 0.99], 660_000, nll=0.0864, ece=0.012)
    put(
        tmp_path,
        "split-mnist-frcl-plus-2",
        plus,
        200_000,
        nll=0.02,
        ece=0.01,
        parts={"points": 150_000, "fisher": 50_000},
    )
    put(tmp_path, "split-mnist-frcl-recentred-2", [0.96, 0.98], 90_000)
    put(tmp_path, "split-mnist-frcl-plus-40", [0.999] * 10, 700_000, nll=0.0866, ece=0.012)
    accuracy, calibration, memory = shown(tmp_path)
    mean, std = (100 * f(plus) for f in (statistics.mean, statistics.stdev))
    there = 100 * statistics.mean(frcl)
    gains = [100 * (a - b) for a, b in zip(plus, frcl, strict=True)]
    error = statistics.stdev(gains) / 3**0.5
    assert accuracy["Split-MNIST, 2 points"] == [
        "82.0 ± 5.0", "99.62 (S-FSVI, Rudner et al. 2022, no stored points)", "99.78",
        f"{there:.2f} ± {100 * statistics.stdev(frcl):.2f}", "97.00 ± 1.41 (seeds: 2 of 10)",
        f"{mean:.2f} ± {std:.2f}", "3 of 10", "no: 0.17 below", f"{mean - there:+.2f} ± {error:.2f} (3 seeds)",
    ]  # fmt: skip
    assert accuracy["Split-MNIST, 40 points"][5:] == ["99.90 ± 0.00", "10", "yes", "+1.40 ± 0.50 (2 seeds)"]
    assert calibration["Split-MNIST, 2 points"] == ["1.200", "0.020", "0.130", "0.010", "yes"]
    assert calibration["Split-MNIST, 40 points"] == ["0.086", "0.087", "0.012", "0.012", "no: NLL"]
    gains = [100 * (a - b) for a, b in zip(plus, [0.98, 0.99], strict=False)]  # two seeds in common
    error = statistics.stdev(gains) / 2**0.5
    assert memory["Split-MNIST, 2 points"] == [
        "31,480", "200,000", "points 150,000, fisher 50,000", "40 points", "660,000", "98.50 ± 0.71",
        f"{statistics.mean(gains):+.2f} ± {error:.2f} (2 seeds)",
    ]  # fmt: skip
    less = "40 points (fewer bytes; no cell with as many is measured)"
    assert memory["Split-MNIST, 40 points"][2:5] == ["", less, "660,000"], "a file without kinds is valid"
    assert all(len(row) == len(table[""]) - (key != "") for table in shown(tmp_path) for key, row in table.items())


def test_the_smallest_that_keeps_as_much_is_compared_with(tmp_path):
    put(tmp_path, "omniglot-frcl-trace-2", [0.8], 900)
    put(tmp_path, "omniglot-frcl-trace-3", [0.9], 1_200)
    put(tmp_path, "split-mnist-frcl-trace-40", [0.9], 799)  # of another benchmark
    put(tmp_path, "omniglot-frcl-plus-1", [0.85], 800, nll=0.6, ece=0.3)
    accuracy, calibration, memory = shown(tmp_path)
    one = "Omniglot, 1 point per character"
    assert accuracy[one][3:] == ["not measured", "not measured", "85.00", "1 of 5", "no: 3.50 below", ""]
    assert calibration[one] == ["not measured", "0.600", "not measured", "0.300", ""]
    assert memory[one] == [
        "not measured", "800", "", "2 points per character", "900", "80.00", "+5.00 (1 seed)",
    ]  # fmt: skip
    assert memory["Omniglot, 2 points per character"] == ["900", "not measured", *[""] * 5]


def test_what_is_missing_is_said_to_be(tmp_path):
    for table in shown(tmp_path):
        heading = table.pop("")
        assert list(table) == list(EXPECTED)
        for row in table.values():
            marked = [name for name, cell in zip(heading[1:], row, strict=True) if cell == "not measured"]
            assert marked == [name for name in heading[1:] if name.startswith(("our", "NLL", "ECE", "bytes"))]
    put(tmp_path, "permuted-mnist-frcl-plus-10", [0.9], 500)
    assert shown(tmp_path)[2]["Permuted-MNIST, 10 points"][3] == "not measured", "no FRCL to compare with"


def test_calibration_names_what_is_worse(tmp_path):
    put(tmp_path, "omniglot-frcl-trace-3", [0.8], 900, nll=0.5, ece=0.1)
    for nll, ece, verdict in (
        (0.4, 0.11, "no: ECE"),
        (0.51, 0.11, "no: NLL and ECE"),
        (0.5004, 0.1004, "yes"),
        (0.4, None, ""),
    ):
        put(tmp_path, "omniglot-frcl-plus-3", [0.8], 900, nll=nll, ece=ece)
        assert measured_lines(FRONTIER, tmp_path)[-1].not_worse() == verdict


def test_calibration_is_compared_on_the_seeds_that_both_have(tmp_path):
    """FRCL has one more seed, which is much worse: it does not help FRCL+."""
    put(tmp_path, "omniglot-frcl-trace-3", [0.8, 0.8], 900, nll=0.5, ece=0.1)
    path = next(tmp_path.rglob("omniglot-frcl-trace-3.json"))
    stored = json.loads(path.read_text())
    stored["seeds"][1] |= {"nll": 9.0, "ece": 0.9}
    path.write_text(json.dumps(stored))
    put(tmp_path, "omniglot-frcl-plus-3", [0.8], 900, nll=0.6, ece=0.1)
    assert shown(tmp_path)[1]["Omniglot, 3 points per character"] == ["0.500", "0.600", "0.100", "0.100", "no: NLL"]


def test_without_a_common_seed_nothing_is_compared(tmp_path):
    put(tmp_path, "omniglot-frcl-trace-3", [0.8], 900, nll=0.5, ece=0.1)
    path = next(tmp_path.rglob("omniglot-frcl-trace-3.json"))
    stored = json.loads(path.read_text())
    stored["seeds"][0]["seed"] = 4
    path.write_text(json.dumps(stored))
    put(tmp_path, "omniglot-frcl-plus-3", [0.8], 900, nll=0.6, ece=0.2)
    accuracy, calibration, _ = shown(tmp_path)
    assert accuracy["Omniglot, 3 points per character"][-1] == ""
    assert calibration["Omniglot, 3 points per character"] == ["0.500", "0.600", "0.100", "0.200", ""]


def test_other_options_are_named(tmp_path):
    put(tmp_path, "permuted-mnist-frcl-trace-50", [0.9], 300, steps=7)
    put(tmp_path, "permuted-mnist-frcl-plus-10", [0.9], 500, steps=9)
    text = page([FRONTIER], tmp_path)
    assert "- measured with another option than the current one: `learner.steps: 9 there, 2000 here`" in text
    other = "`figure3/permuted-mnist-frcl-trace-50` was measured with another option than the current one"
    assert f"- {other}: `learner.steps: 7" in text
    assert "- `python -m paper`: seed 0, cpu, torch 2, 7 s, commit abc, 2026-01-02" in text
    put(tmp_path, "permuted-mnist-frcl-trace-10", [0.9], 400)
    assert "figure3/permuted-mnist-frcl-trace-50" not in page([FRONTIER], tmp_path), "it is not what is shown"
