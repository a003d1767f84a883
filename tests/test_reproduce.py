"""`frcl reproduce`: only what is missing is run, nothing measured gets lost, and the page says what the files say."""

import itertools
import json
import re
import shlex
import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frcl import DataError, OptionError, cli
from frcl.display import Silent
from frcl.experiment import runner
from frcl.experiment.config import resolve
from frcl.experiment.metrics import over_seeds
from frcl.files import alone_in
from frcl.learners.methods import METHODS
from frcl.reproduce import targets
from frcl.reproduce.cells import BOUNDARIES_3, TABLES, Cell, Paper, Table
from frcl.reproduce.figures import detection
from frcl.reproduce.measure import Place, Session, Wanted, attend, chosen_cells, in_words, measure, state_of
from frcl.reproduce.numbers import Ours, Paired, is_near, paired, printed, reaches, reaches_f1
from frcl.reproduce.page import choices, page
from frcl.reproduce.quick import lacking, reduced
from frcl.reproduce.store import differences, learned_options, merged, read_document, seed_entry, to_text

SMALL = {"stream": {"tasks": 2}, "network": {"widths": [6]}, "run": {"checkpoint_seconds": 0.0}}
FRCL = {"method": "frcl", "learner": {"steps": 6, "points": 3, "search_steps": 4, "batch_size": 10}}
PLAIN = {"method": "finetune", "learner": {"steps": 6, "batch_size": 10}}
STREAM = {"method": "frcl", "hidden_boundaries": True, "learner": {**FRCL["learner"], "steps": 30}}
TABLE = Table(
    "table1",
    "Table 1: digits",
    "For tests.",
    (
        Cell("split-digits-frcl-3", "split-digits", "FRCL", (FRCL, SMALL), (0, 1, 2), Paper("50.0 ± 40.0")),
        Cell("split-digits-finetune", "split-digits", "Fine", (PLAIN, SMALL), (0, 1), Paper("3", quoted=True)),
    ),
)
HIDDEN = Table(
    "table3",
    "Table 3: digits",
    "For tests.",
    (
        Cell(
            "split-digits-window-1", "split-digits", "window of 1", (STREAM, SMALL), (0, 1), None, {4.0: "0.5/1.0/0.67"}
        ),
    ),
)
FIRST = TABLE.cells[0]


class Watch(Silent):
    """Counts the runs and their seeds; may stop one at a step."""

    def __init__(self, stop_at: int | None = None) -> None:
        self.runs: list[list[int]] = []
        self._stop_at, self._steps = stop_at, 0

    def begin(self, config, names):
        self.runs.append(list(config.seeds))

    def step(self, seed, task, log):
        self._steps += 1
        if self._steps == self._stop_at:
            raise KeyboardInterrupt


@pytest.fixture
def place(tmp_path) -> Place:
    return Place(tmp_path / "results", tmp_path / "runs")


def session(place: Place, watch: Watch | None = None, *, again: bool = False, may_start=lambda: True) -> Session:
    one = watch or Watch()
    return Session(place, lambda: one, lambda line: None, may_start, again=again)


def measured(
    place: Place,
    cell: Cell = FIRST,
    count: int | None = None,
    table: str = "table1",
    only: tuple[int, ...] = (),
    **how,
) -> list[list[int]]:
    """Measure what is missing; the seeds of each run that this took."""
    watch = how.pop("watch", Watch())
    again = how.get("again", False)
    for _ in measure(state_of(table, cell, place, Wanted(count, only), again=again), session(place, watch, **how)):
        pass
    return watch.runs


def file_of(place: Place, cell: Cell = FIRST, table: str = "table1") -> dict:
    return json.loads((place.results / table / f"{cell.name}.json").read_text())


# -- what is typed ------------------------------------------------------------------------------------------------


def test_all_cells_are_there_and_can_be_run():
    assert {table.name: len(table.cells) for table in TABLES} == {
        "table1": 24, "table2": 16, "table3": 12, "table7": 10, "methods": 48,
    }  # fmt: skip
    for table in TABLES:
        assert len({cell.name for cell in table.cells}) == len(table.cells)
        for cell in table.cells:
            config = resolve(cell.benchmark, *cell.layers)
            assert config.method == cell.method
            points = re.search(r"(\d+) points?(?!.*character)", cell.row)
            per_character = re.search(r"(\d+) points? per character", cell.row)
            if per_character:
                assert config.learner.points_per_class == int(per_character[1])
            elif points:
                assert (config.learner.points, config.learner.points_per_class) == (int(points[1]), None)
            if "(" in cell.row:
                assert f"({config.learner.selection})" in cell.row
    assert {cell.method for cell in TABLES[-1].cells} == {name for name, _, _ in METHODS}


def test_what_matters_most_is_run_first():
    for table in TABLES[:2]:
        kinds = [{"frcl": 0, "replay": 1}.get(cell.method, 2) for cell in table.cells]
        assert kinds == sorted(kinds)


def test_values_of_the_paper_are_plausible():
    for table in TABLES:
        for cell in table.cells:
            if cell.paper is not None:
                value = printed(cell.paper.value)
                assert 25 < value.mean < 100
                assert value.std is None or 0 < value.std <= 8
                assert cell.paper.quoted == (cell.method not in ("frcl", "replay") and table.name != "table7")
    for rows in BOUNDARIES_3.values():
        assert list(rows) == [4.0, 5.0, 6.0, 7.0, 8.0]
        for text in rows.values():
            precision, recall, f1 = map(float, text.split("/"))
            assert f1 == pytest.approx(2 * precision * recall / (precision + recall), abs=0.0125)


def test_table_3_and_table_7_are_set_up_as_the_paper_says():
    by_name = {
        (table.name, cell.name): resolve(cell.benchmark, *cell.layers) for table in TABLES for cell in table.cells
    }
    hidden = [config for (table, _), config in by_name.items() if table == "table3"]
    assert all(config.hidden_boundaries for config in hidden)
    assert [config.learner.initial_scale for config in hidden] == [*[1.0] * 3, 0.1, 0.1, 1.0, *[1.0] * 3, *[0.1] * 3]
    assert [config.detector.window for config in hidden] == [1] * 5 + [10] * 7
    assert [config.detector.rescore for config in hidden] == ([False] * 3 + [True] * 3) * 2
    assert [config.detector.beside for config in hidden] == [0] * 5 + [1] + [0] * 6
    ours, theirs = by_name["table7", "omniglot-frcl-trace-1"], by_name["table7", "omniglot-vcl-kcenter-3"]
    assert ours.network.widths == theirs.network.widths == (256, 256, 256, 256)
    assert (ours.learner.steps, ours.learner.rate, ours.learner.search_steps) == (1500, 1e-4, 2000)
    assert (theirs.learner.rate, theirs.learner.batch_size, theirs.learner.adapt_steps) == (1e-3, 100, 50)
    assert theirs.learner.steps == round(100 * 1623 * 16 / 50 / 100, -1)


def test_the_figure_of_detection_has_the_learner_of_table_3():
    paper = {cell.benchmark: cell for table in TABLES if table.name == "table3" for cell in table.cells[:3]}
    assert paper["permuted-mnist"].layers[0]["learner"] == detection.STREAMS["permuted-mnist"]["learner"]


def test_a_cell_that_another_process_measures_is_left_to_it(place):
    said = []
    folder = place.runs / TABLE.name
    folder.mkdir(parents=True)
    with alone_in(folder, f".{FIRST.name}.lock"):
        attend(state_of(TABLE.name, FIRST, place, Wanted(1)), replace(session(place), say=said.append))
    assert said == [f"{TABLE.name}/{FIRST.name}: left to another process that is at work on it"]
    assert not list(place.results.rglob("*.json"))


def test_some_seeds_may_be_asked_for_by_their_number(place):
    assert measured(place, only=(2, 7)) == [[2]]  # the cell has no seed 7
    assert [one["seed"] for one in file_of(place)["seeds"]] == [2]
    assert file_of(place)["batches"][0]["command"] == "frcl reproduce table1 --rows split-digits-frcl-3 --seed 2"
    assert measured(place) == [[0, 1]]
    assert sorted(one["seed"] for one in file_of(place)["seeds"]) == [0, 1, 2]
    assert Wanted(2).of(FIRST) == (0, 1)
    with pytest.raises(OptionError, match="exclude each other"):
        Wanted(2, (1,))


def test_the_command_names_all_seeds_of_a_run_that_was_taken_up(place):
    with pytest.raises(KeyboardInterrupt):
        measured(place, watch=Watch(stop_at=20))
    assert measured(place, only=(2,)) == [[0, 1, 2]]
    assert file_of(place)["batches"][0]["command"].endswith("--rows split-digits-frcl-3 --seeds 3")


def test_seeds_that_no_cell_has_are_refused(tmp_path):
    base = ["reproduce", "table1", "--rows", "split-mnist-frcl-trace-2", "--results", str(tmp_path)]
    for more, words in ((["--seed", "99"], "has seed 99"), (["--seed", "1", "--again"], "leave --seed out")):
        with pytest.raises(OptionError, match=words):
            cli.app([*base, *more], standalone_mode=False)


def test_two_cells_are_compared_on_the_seeds_that_both_have():
    def seeds(**accuracies: float) -> list[dict]:
        return [{"seed": int(name[1:]), "average_accuracy": value} for name, value in accuracies.items()]

    one, other = seeds(s0=0.80, s1=0.90, s2=0.70, s5=0.1), seeds(s2=0.69, s1=0.92, s0=0.77, s7=0.9)
    found = paired(one, other)  # +3, −2, +1: mean 2/3, deviation √(19/3)
    assert found.seeds == 3
    assert found.mean == pytest.approx(2 / 3)
    assert found.error == pytest.approx((19 / 3) ** 0.5 / 3**0.5)
    assert found.show() == "+0.67 ± 1.45 (3 seeds)"
    assert paired(seeds(s0=0.5), seeds(s0=0.75)) == Paired(-25.0, None, 1)
    assert paired(seeds(s0=0.5), seeds(s1=0.5)) is None


def test_the_page_says_what_optimised_points_are_worth(place):
    rows = {"trace": "FRCL (trace), 3 points", "random": "FRCL (random), 3 points"}
    cells = tuple(
        Cell(
            f"split-digits-frcl-{kind}-3", "split-digits", row, (FRCL, SMALL, {"learner": {"selection": kind}}), (0, 1)
        )
        for kind, row in rows.items()
    )
    table = Table("table1", "Table 1: digits", "For tests.", cells)
    measured(place, cells[0])
    assert "FRCL (trace) minus" not in page((table,), place.results)
    measured(place, cells[1], count=1)
    gain = 100 * (
        file_of(place, cells[0])["seeds"][0]["average_accuracy"]
        - file_of(place, cells[1])["seeds"][0]["average_accuracy"]
    )
    assert f"3 points {gain:+.2f} (1 seed)." in page((table,), place.results)


def test_seeds_that_another_process_added_are_not_run_again(place):
    before = state_of(TABLE.name, FIRST, place, Wanted(1))
    measured(place, count=1)
    assert list(measure(before, session(place))) == []


# -- numbers ------------------------------------------------------------------------------------------------------


def test_what_is_printed_is_read():
    one, other = printed("86.50 ± 0.9"), printed("82")
    assert (one.mean, one.std, one.half) == (86.5, 0.9, pytest.approx(0.005))
    assert (other.mean, other.std, other.half) == (82.0, None, 0.5)
    with pytest.raises(ValueError, match="is not a mean"):
        printed("about 82")


@pytest.mark.parametrize(
    ("mean", "std", "value", "verdict"),
    [
        (94.1, None, "94.3 ± 0.2", "yes"),
        (94.09, 5.0, "94.3 ± 0.2", "no: 0.21 below"),
        (99.9, None, "94.3 ± 0.2", "yes"),
        (88.3, None, "88.34", "no: 0.04 below"),
    ],
)
def test_frcl_must_reach_the_mean_minus_a_deviation(mean, std, value, verdict):
    assert reaches(Ours(mean, std), Paper(value)) == verdict


@pytest.mark.parametrize(
    ("mean", "std", "value", "verdict"),
    [
        (71.0, None, "67.0 ± 2.0", "yes"),
        (71.1, 9.0, "67.0 ± 2.0", "differs: +4.10"),
        (62.9, None, "67.0 ± 2.0", "differs: -4.10"),
        (86.0, 2.0, "82", "yes"),
        (86.1, 2.0, "82", "differs: +4.10"),
        (82.5, None, "82", "yes"),
        (82.6, None, "82", "differs: +0.60"),
    ],
)
def test_others_must_be_near(mean, std, value, verdict):
    assert is_near(Ours(mean, std), Paper(value, quoted=True)) == verdict


def test_f1_is_compared_as_it_is_printed():
    assert reaches_f1({"f1": Ours(0.716, None)}, "0.71/0.75/0.72") == "yes"
    assert reaches_f1({"f1": Ours(0.7149, None)}, "0.71/0.75/0.73") == "no: 0.02 below"


# -- files --------------------------------------------------------------------------------------------------------


def test_what_is_kept_of_a_seed():
    record = {
        "rows": [[1.0], [0.75, 1.0], [0.5, 0.75, 0.75]],
        "final": {"nll": float("inf"), "brier": 0.5, "ece": 0.25, "auroc": None},
        "true": [10, 30, 50],
        "statistic": [None] * 10 + [6.0, 9.0, *[0.0] * 12, 4.5, *[0.0] * 6, 9.0],
    }
    entry = seed_entry(7, record, resolve("split-digits", STREAM))
    assert (entry["seed"], entry["average_accuracy"], entry["forgetting"]) == (7, pytest.approx(2 / 3), 0.375)
    assert (entry["accuracy_after_learning"], entry["backward_transfer"]) == (pytest.approx(11 / 12), -0.375)
    assert (entry["last_row"], entry["diagonal"]) == ([0.5, 0.75, 0.75], [1.0, 1.0, 0.75])
    assert entry["accuracy"] == record["rows"]
    assert (entry["nll"], entry["brier"], entry["ece"], entry["auroc"]) == (None, 0.5, 0.25, None)
    counts = {row["threshold"]: (row["switches"], row["declared"], row["hits"]) for row in entry["boundaries"]}
    # 4 declares at 10 and at 24, which is no switch, and that is too near to 31; 5 at 10 and 31; 6 to 8 at 11 and 31
    assert counts == {4.0: (3, 2, 1), 5.0: (3, 2, 2), 6.0: (3, 2, 2), 7.0: (3, 2, 2), 8.0: (3, 2, 2)}
    assert [row["precision"] for row in entry["boundaries"]] == [0.5, 1.0, 1.0, 1.0, 1.0]
    assert [row["recall"] for row in entry["boundaries"]] == [pytest.approx(hits / 3) for hits in (1, 2, 2, 2, 2)]
    assert [row["delay"] for row in entry["boundaries"]] == [0.0, 0.5, 1.0, 1.0, 1.0]


def test_the_whole_matrix_is_kept_where_it_is_small():
    final = dict.fromkeys(("nll", "brier", "ece", "auroc"))
    for tasks in (10, 11):
        record = {"rows": [[0.5] * (i + 1) for i in range(tasks)], "final": final}
        entry = seed_entry(0, record, resolve("split-digits", PLAIN))
        assert ("accuracy" in entry) == (tasks == 10)
        assert len(entry["last_row"]) == len(entry["diagonal"]) == tasks
        assert "boundaries" not in entry


def batch_document(seeds: list[int]) -> dict:
    entries = [{"seed": seed, "average_accuracy": seed / 7} for seed in seeds]
    return {"cell": "one", "config": {"learner": {"points": 3}}, "seeds": entries, "batches": [{"seeds": seeds}]}


@given(st.permutations(range(6)), st.lists(st.integers(1, 5), max_size=4), st.randoms())
def test_seeds_may_come_in_any_order(seeds, cuts, random):
    edges = sorted({0, 6, *cuts})
    parts = [sorted(seeds[a:b]) for a, b in itertools.pairwise(edges)]
    files = []
    for _ in range(2):
        random.shuffle(parts)
        together = None
        for part in parts:
            together = merged(together, batch_document(part))
        files.append(to_text(together))
    assert files[0] == files[1]
    assert [one["seed"] for one in json.loads(files[0])["seeds"]] == list(range(6))


def test_a_seed_is_never_taken_twice():
    with pytest.raises(DataError, match=r"seeds \[2\] are in the results already"):
        merged(batch_document([1, 2]), batch_document([2, 3]))


def test_other_options_are_named_and_newer_ones_count_as_their_default():
    config = resolve("split-digits", FRCL)
    stored = {"config": learned_options(config)}
    assert differences(stored, config) == []
    del stored["config"]["learner"]["noise"]
    assert differences(stored, config) == []
    other = resolve("split-digits", FRCL, {"learner": {"points": 4, "noise": 0.5}, "stream": {"tasks": 2}})
    assert set(differences(stored, other)) == {
        "stream.tasks: null there, 2 here", "learner.points: 3 there, 4 here", "learner.noise: 0.001 there, 0.5 here",
    }  # fmt: skip
    stored["config"]["learner"]["gone"] = 1
    assert differences(stored, config) == ["learner.gone: 1 there, null here"]
    plus = resolve("split-digits", {"method": "frcl-plus"})
    stored = {"config": learned_options(plus)}
    del stored["config"]["learner"]["rate_decay"]
    assert differences(stored, plus) == ["learner.rate_decay: 0.0 there, 0.5 here"], (
        "it was off, as it is without FRCL+"
    )
    elsewhere = resolve("split-digits", FRCL, {"device": "cuda", "seeds": [5], "run": {"threads": 2}})
    assert learned_options(elsewhere) == learned_options(config)


def test_a_foreign_file_is_refused(tmp_path):
    assert read_document(tmp_path / "none.json", quick=False) is None
    for text in ("{", "[]", '{"format": "frcl-result", "version": 1}'):
        (tmp_path / "one.json").write_text(text)
        with pytest.raises(DataError, match=r"is not a result of `frcl reproduce`"):
            read_document(tmp_path / "one.json", quick=False)
    (tmp_path / "one.json").write_text('{"format": "frcl-cell", "version": 1, "quick": true}')
    with pytest.raises(DataError, match="with --quick"):
        read_document(tmp_path / "one.json", quick=False)


# -- measuring ----------------------------------------------------------------------------------------------------


def test_a_file_holds_what_the_run_found(place, tmp_path):
    assert measured(place) == [[0, 1, 2]]
    found = file_of(place)
    result = runner.run(place.config(FIRST, (0, 1, 2)), tmp_path / "alone", Silent())
    for name in ("average_accuracy", "accuracy_after_learning", "backward_transfer", "forgetting", "nll", "ece"):
        assert over_seeds([one[name] for one in found["seeds"]]) == result[name]
    assert [one["last_row"] for one in found["seeds"]] == [matrix[-1] for matrix in result["accuracy"]]
    (batch,) = found["batches"]
    assert batch["memory_bytes"] == result["memory_bytes"]
    parts = batch["memory_bytes"]["parts"]
    assert set(parts) == {"points", "posterior"}
    assert sum(parts.values()) == batch["memory_bytes"]["total"]
    assert batch["command"] == "frcl reproduce table1 --rows split-digits-frcl-3 --seeds 3"
    assert set(batch) >= {"started", "seconds", "environment", "peak_memory_bytes"}
    assert not [path for path in place.runs.glob("*/*") if path.is_dir()], "a run that was taken in is not kept"


def test_no_path_is_kept(place, tmp_path):
    measured(replace(place, data=tmp_path), count=1)
    assert str(tmp_path) not in json.dumps(file_of(place))
    assert not re.findall(r'"/[^"]*"', json.dumps(file_of(place)))


def test_only_missing_seeds_are_run(place):
    assert measured(place, count=1) == [[0]]
    first = file_of(place)["seeds"]
    assert measured(place) == [[1, 2]]
    found = file_of(place)
    assert [one["seed"] for one in found["seeds"]] == [0, 1, 2]
    assert found["seeds"][:1] == first
    assert [batch["seeds"] for batch in found["batches"]] == [[0], [1, 2]]
    assert measured(place) == []


def test_as_many_seeds_at_a_time_as_are_trained_together(place):
    two = replace(FIRST, layers=(*FIRST.layers, {"run": {"seeds_together": 2}}))
    assert measured(place, two) == [[0, 1], [2]]
    (stream,) = HIDDEN.cells
    assert measured(place, stream, table="table3") == [[0], [1]]
    assert all(len(one["boundaries"]) == 5 for one in file_of(place, stream, "table3")["seeds"])


@pytest.mark.parametrize("count", [None, 1])
def test_an_interrupted_run_is_taken_up(place, tmp_path, monkeypatch, count):
    whole = replace(place, results=tmp_path / "other", runs=tmp_path / "other-runs")
    measured(whole)
    with pytest.raises(KeyboardInterrupt):
        measured(place, watch=Watch(stop_at=25))
    assert not place.results.exists()
    assert (place.runs / "table1" / FIRST.name / "checkpoint.frcl").is_file()
    monkeypatch.setattr(runner, "run", None)  # nothing is begun anew
    assert measured(place, count=count) == [[0, 1, 2]]
    assert file_of(place)["seeds"] == file_of(whole)["seeds"]


@pytest.mark.parametrize("change", ["options", "damage", "seeds"])
def test_an_interrupted_run_that_does_not_fit_is_begun_anew(place, change):
    folder, cell, expected = place.runs / "table1" / FIRST.name, FIRST, [[0, 1, 2]]
    with pytest.raises(KeyboardInterrupt):
        measured(place, watch=Watch(stop_at=25))
    if change == "options":
        cell = replace(FIRST, layers=(*FIRST.layers, {"learner": {"points": 4}}))
    elif change == "damage":
        (folder / "checkpoint.frcl").write_bytes(b"nothing")
    else:  # one of its seeds was measured in the meantime
        measured(replace(place, runs=place.runs / "other"), count=1)
        expected = [[1, 2]]
    assert measured(place, cell) == expected
    found = file_of(place)
    assert [one["seed"] for one in found["seeds"]] == [0, 1, 2]
    assert found["config"] == learned_options(place.config(cell, (0,)))


def test_other_options_are_refused_unless_again(place):
    measured(place)
    other = replace(FIRST, layers=(*FIRST.layers, {"learner": {"points": 4}}))
    state = state_of("table1", other, place)
    assert state.differs == ("learner.points: 3 there, 4 here",)
    said: list[str] = []
    attend(state, replace(session(place), say=said.append))
    assert said == ["table1/split-digits-frcl-3: left as it is, since it was measured with other options"]
    before = file_of(place)
    assert measured(place, other, 1, again=True) == [[0]]
    after = file_of(place)
    assert (len(after["seeds"]), after["config"]["learner"]["points"]) == (1, 4)
    assert before["config"]["learner"]["points"] == 3
    assert measured(place, other) == [[1, 2]]


def test_again_replaces_what_is_there_once(place):
    measured(place)
    two = replace(FIRST, layers=(*FIRST.layers, {"run": {"seeds_together": 2}}))
    assert measured(place, two, again=True) == [[0, 1], [2]]
    assert [batch["seeds"] for batch in file_of(place)["batches"]] == [[0, 1], [2]]


def test_nothing_is_started_when_the_time_is_up(place):
    left = iter([True, False])
    two = replace(FIRST, layers=(*FIRST.layers, {"run": {"seeds_together": 2}}))
    assert measured(place, two, may_start=lambda: next(left)) == [[0, 1]]
    assert len(file_of(place)["seeds"]) == 2


def test_rows_are_chosen_by_pattern():
    assert [cell.name for cell in chosen_cells(TABLE, ["*frcl*"])] == ["split-digits-frcl-3"]
    assert [cell.name for cell in chosen_cells(TABLE, ["*-3", "*fine*"])] == [cell.name for cell in TABLE.cells]
    assert chosen_cells(TABLE, []) == list(TABLE.cells)
    assert (in_words([0, 1, 2, 3]), in_words([0, 1]), in_words([0, 2, 5])) == ("0–3", "0, 1", "0, 2, 5")


# -- quick --------------------------------------------------------------------------------------------------------


def test_every_table_has_a_small_version():
    for table in (*targets.TABLES, *(figure.table for figure in targets.FIGURES if figure.table is not None)):
        small = reduced(table)
        assert [cell.name for cell in small.cells] == [cell.name for cell in table.cells]
        for cell in small.cells:
            config = resolve(cell.benchmark, *cell.layers)
            assert config.stream.tasks == 2
            assert config.learner.steps <= 40
            assert len(cell.seeds) <= 2
            assert min(config.network.widths) >= 8
            assert (
                cell.method not in ("frcl", "frcl-plus", "replay")
                or config.learner.points_per_class
                or config.learner.points <= 12
            )


def test_data_that_is_not_at_hand_is_named(tmp_path, monkeypatch):
    monkeypatch.delenv("FRCL_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert lacking("split-digits", None) == ""
    assert "train-images-idx3-ubyte.gz is missing" in lacking("permuted-mnist", None)
    assert "images_background.zip is missing" in lacking("omniglot", None)


# -- the page -----------------------------------------------------------------------------------------------------


def rows_of(text: str) -> dict[str, list[str]]:
    found = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    return {row[0]: row[1:] for row in found}


def test_the_page_says_what_the_files_say(place):
    empty = page([TABLE, HIDDEN], place.results)
    assert empty.count("not measured") == 3
    assert "yes" not in rows_of(empty)["FRCL"]
    measured(place, count=1)
    measured(place)
    fine = TABLE.cells[1]
    measured(place, fine, count=1)
    measured(place, HIDDEN.cells[0], table="table3")
    text = page([TABLE, HIDDEN], place.results)
    rows = rows_of(text)
    summary = over_seeds([one["average_accuracy"] for one in file_of(place)["seeds"]])
    assert rows["FRCL"][:3] == ["50.0 ± 40.0", f"{100 * summary['mean']:.2f} ± {100 * summary['std']:.2f}", "3"]
    assert rows["FRCL"][3] == "yes"
    gap = 100 * file_of(place, fine)["seeds"][0]["average_accuracy"] - 3
    assert rows["Fine"][0] == "3 (quoted)"
    assert rows["Fine"][2:4] == ["1 of 2", f"differs: {gap:+.2f}"]
    assert re.fullmatch(r"\d\.\d\d/\d\.\d\d/\d\.\d\d", rows["4"][1])
    assert rows["[Table 1](#table-1-digits)"] == ["2 of 2", "1", "2", "1"]
    commands = [line for line in text.splitlines() if line.startswith("- `frcl reproduce")]
    assert [command.split("`")[1][-1] for command in commands] == ["1", "3", "1", "2"]
    assert "seeds 0, 1, cpu" in commands[-1], "two batches that differ in their seeds alone are one line"
    assert "not measured" not in text


def test_the_page_says_where_options_were_others(place):
    measured(place, count=1)
    other = replace(FIRST, layers=(*FIRST.layers, {"learner": {"points": 4}}))
    text = page([replace(TABLE, cells=(other,))], place.results)
    assert "measured with another option than the cell has: `learner.points: 3 there, 4 here`" in text


def test_choices_are_about_options_that_exist(monkeypatch, capsys):
    for one in choices():
        assert set(one) == {"about", "paper", "here", "why", "otherwise"}
        assert one["otherwise"].startswith("frcl run ")
        changed = dry_run(shlex.split(one["otherwise"])[1:], monkeypatch, capsys)
        benchmark, *flags = shlex.split(one["otherwise"])[2:]
        method = flags[1] if flags[0] == "--method" else "frcl"
        assert changed != dry_run(["run", benchmark, "--method", method], monkeypatch, capsys), one["about"]


def dry_run(arguments: list[str], monkeypatch, capsys) -> str:
    assert command([*arguments, "--dry-run"], monkeypatch) == 0
    return capsys.readouterr().out


# -- the command --------------------------------------------------------------------------------------------------


def command(arguments: list[str], monkeypatch) -> int:
    monkeypatch.setattr(sys, "argv", ["frcl", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return int(ended.value.code or 0)


@pytest.fixture
def frcl(monkeypatch, capsys, tmp_path):
    """`frcl reproduce` with the tables of the tests, in a folder of its own; gives exit code, lines said, complaint."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(targets, "TABLES", (TABLE, HIDDEN))
    monkeypatch.setattr(targets, "FIGURES", ())

    def run(*arguments: str) -> tuple[int, list[str], str]:
        capsys.readouterr()
        code = command(["reproduce", *arguments], monkeypatch)
        said = capsys.readouterr()
        return code, said.out.splitlines(), said.err

    return run


def test_the_command_measures_lists_and_writes(frcl, tmp_path):
    assert frcl("table1", "--list")[1] == [
        "table1/split-digits-frcl-3: 0 of 3 seeds, missing 0–2",
        "table1/split-digits-finetune: 0 of 2 seeds, missing 0, 1",
    ]
    code, said, _ = frcl("table1", "page", "--seeds", "1")
    assert code == 0
    assert re.search(r"table1/split-digits-frcl-3: [\d.]+ % with 1 of 3 seeds, the paper 50.0 ± 40.0", "\n".join(said))
    assert said[-1] == "written: REPRODUCTION.md"
    assert (tmp_path / "REPRODUCTION.md").read_text() == page([TABLE, HIDDEN], tmp_path / "results")
    assert frcl("--list", "--rows", "*frcl*")[1] == ["table1/split-digits-frcl-3: 1 of 3 seeds, missing 1, 2"]
    assert frcl("table1", "--seeds", "1", "--quiet") == (0, [], "")


def test_the_command_stops_starting_when_the_budget_is_spent(frcl, tmp_path):
    code, said, _ = frcl("table1", "--budget", "0")
    assert code == 0
    assert said[0] == "table1/split-digits-frcl-3: seeds 0–2 not started, the time is up"
    assert not (tmp_path / "results").exists()


def test_the_command_says_what_is_wrong(frcl):
    for arguments, complaint in (
        (["tabel1"], "did you mean 'table1'"),
        ([], "say what to reproduce: table1, table3, page or all"),
        (["table1", "--rows", "*vcl*"], "no cell is called *vcl*"),
    ):
        code, _, error = frcl(*arguments)
        assert code == 2
        assert complaint in " ".join(error.split())


def test_the_command_refuses_other_options_but_does_the_rest(frcl, monkeypatch):
    frcl("table1", "--rows", "*frcl*", "--seeds", "1")
    other = replace(FIRST, layers=(*FIRST.layers, {"learner": {"points": 4}}))
    monkeypatch.setattr(targets, "TABLES", (replace(TABLE, cells=(other, TABLE.cells[1])),))
    code, said, error = frcl("table1")
    assert code == 2
    assert "table1/split-digits-frcl-3 (learner.points: 3 there, 4 here)" in error
    assert "--again" in error
    assert any("split-digits-finetune" in line and "2 of 2 seeds" in line for line in said)
    assert frcl("table1", "--again")[0] == 0
    assert frcl("table1") == (0, [], "")


def test_a_cell_that_diverges_does_not_keep_the_others_back(frcl, monkeypatch):
    wild = replace(FIRST, layers=(*FIRST.layers, {"learner": {"rate": 1e30}}))
    monkeypatch.setattr(targets, "TABLES", (replace(TABLE, cells=(wild, TABLE.cells[1])),))
    code, said, error = frcl("table1")
    assert code == 1
    assert "table1/split-digits-frcl-3: " in error
    assert any("split-digits-finetune" in line and "2 of 2 seeds" in line for line in said)


def test_quick_says_so_everywhere_and_keeps_apart(frcl, tmp_path):
    code, said, _ = frcl("all", "--quick")
    assert code == 0
    assert len(said) == 4
    assert all(line.startswith("QUICK ") for line in said)
    assert not (tmp_path / "results").exists()
    folder = tmp_path / "runs" / "quick"
    files = [json.loads(path.read_text()) for path in folder.rglob("*.json")]
    assert [one["quick"] for one in files] == [True] * 3
    assert all(batch["command"].endswith("--quick") for one in files for batch in one["batches"])
    text = (folder / "REPRODUCTION.md").read_text()
    assert text.startswith("# Reproduction (QUICK)")
    assert all(line.endswith("(QUICK)") for line in re.findall(r"^## Table.*$", text, re.M))
    code, _, error = frcl("page", "--results", "runs/quick/results")
    assert code == 1
    assert "--quick" in error


def test_quick_leaves_out_what_has_no_data(frcl, monkeypatch, tmp_path):
    monkeypatch.delenv("FRCL_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    real = replace(FIRST, benchmark="split-mnist", name="split-mnist-frcl")
    monkeypatch.setattr(targets, "TABLES", (replace(TABLE, cells=(real, TABLE.cells[1])),))
    code, said, _ = frcl("table1", "--quick")
    assert code == 0
    assert said[0].startswith("QUICK table1/split-mnist-frcl: skipped, since train-images-idx3-ubyte.gz is missing")
    assert "split-digits-finetune" in said[1]


def test_ctrl_c_can_be_taken_up(frcl, monkeypatch):
    monkeypatch.setattr("frcl.cli_reproduce._observer", lambda **_: lambda: Watch(stop_at=25))
    code, _, error = frcl("table1", "--rows", "*frcl*")
    assert code == 130
    assert "the same command goes on" in error


def test_a_target_that_does_not_exist_is_refused():
    with pytest.raises(OptionError, match="there is no target 'figure99'"):
        targets.chosen_targets(["figure99"])
    names = [*(table.name for table in TABLES), "frontier"]
    names += [*(f"figure{number}" for number in range(1, 8)), "ablation", "page"]
    assert [one.name for one in targets.chosen_targets(["all"])] == names
    assert [one.name for one in targets.chosen_targets(["page", "table1", "page"])] == ["page", "table1"]
