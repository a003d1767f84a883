"""The cells, the result files, and that only missing seeds are run and no result is lost."""

import itertools
import json
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frcl import DataError, OptionError
from frcl.codec import to_json
from frcl.experiment import runner
from frcl.experiment.config import resolve
from frcl.experiment.keeper import Observer
from frcl.experiment.metrics import over_seeds
from frcl.experiment.results import RANGES
from frcl.methods import METHODS
from paper.cells import BOUNDARIES_3, TABLES
from paper.figures import detection
from paper.measure import Wanted, attend, chosen_cells, in_words, state_of
from paper.numbers import printed
from paper.peers import PEERS_TABLE
from paper.store import differences, learned_options, merged, read_document, seed_entry, to_text
from paper_helpers import FIRST, FRCL, HIDDEN, PLAIN, STREAM, TABLE, Watch, file_of, measured, session

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
    assert {cell.method for cell in TABLES[-1].cells} == set(METHODS) - {"exact-gp"} - {
        cell.method for cell in PEERS_TABLE.cells
    } - {"agem"}


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
    assert [config.learner.initial_std for config in hidden] == [*[4.0] * 3, 0.3, 0.3, 4.0, *[4.0] * 3, *[0.3] * 3]
    assert [config.detector.window for config in hidden] == [1] * 5 + [10] * 7
    assert [config.detector.rescore for config in hidden] == ([False] * 3 + [True] * 3) * 2
    assert [config.detector.beside for config in hidden] == [0] * 5 + [1] + [0] * 6
    ours, theirs = by_name["table7", "omniglot-frcl-trace-1"], by_name["table7", "omniglot-vcl-kcenter-3"]
    assert ours.network.widths == theirs.network.widths == (256, 256, 256, 256)
    assert (ours.learner.steps, ours.learner.lr, ours.learner.search_steps) == (1500, 1e-4, 2000)
    assert (theirs.learner.lr, theirs.learner.batch_size, theirs.learner.adapt_steps) == (1e-3, 100, 50)
    assert theirs.learner.steps == round(100 * 1623 * 16 / 50 / 100, -1)


def test_the_figure_of_detection_has_the_learner_of_table_3():
    paper = {cell.benchmark: cell for table in TABLES if table.name == "table3" for cell in table.cells[:3]}
    assert paper["permuted-mnist"].layers[0]["learner"] == detection.STREAMS["permuted-mnist"]["learner"]


# -- files --------------------------------------------------------------------------------------------------------


def test_what_is_kept_of_a_seed():
    record = {
        "rows": [[1.0], [0.75, 1.0], [0.5, 0.75, 0.75]],
        "final": {"nll": float("inf"), "brier": 0.5, "ece": 0.25, "auroc": None},
        "true": [10, 30, 50],
        "found": [11, 31],
        "statistic": [None] * 10 + [6.0, 9.0, *[0.0] * 12, 4.5, *[0.0] * 6, 9.0],
        "agnostic": [[1.0], [0.5, 1.0], [0.25, 0.5, 0.75]],
        "agnostic_final": {"nll": 0.5, "ece": float("nan")},
        "task_accuracy": [1.0, 0.75, 0.625],
        "novelty_auroc": [0.5, 0.75, None],
    }
    entry = seed_entry(7, record, resolve("split-digits", STREAM, {"detector": {"pause": 10}}))
    assert (entry["seed"], entry["average_accuracy"], entry["forgetting"]) == (7, pytest.approx(2 / 3), 0.375)
    assert (entry["accuracy_after_learning"], entry["backward_transfer"]) == (pytest.approx(11 / 12), -0.375)
    assert (entry["last_row"], entry["diagonal"]) == ([0.5, 0.75, 0.75], [1.0, 1.0, 0.75])
    assert entry["accuracy"] == record["rows"]
    assert (entry["nll"], entry["brier"], entry["ece"], entry["auroc"]) == (None, 0.5, 0.25, None)
    assert (entry["agnostic_accuracy"], entry["task_accuracy"], entry["novelty_auroc"]) == (0.5, 0.625, 0.625)
    assert (entry["agnostic_nll"], entry["agnostic_ece"]) == (0.5, None)
    counts = {row["threshold"]: (row["switches"], row["declared"], row["hits"]) for row in entry["boundaries"]}
    # 4 declares at 10 and at 24, which is no switch, and that is too near to 31; 5 at 10 and 31; 6 to 8 at 11 and 31
    assert counts == {4.0: (3, 2, 1), 5.0: (3, 2, 2), 6.0: (3, 2, 2), 7.0: (3, 2, 2), 8.0: (3, 2, 2)}
    assert entry["switches"] == {"true": [10, 30, 50], "found": [11, 31]}, "what the learner acted on"
    assert [row["precision"] for row in entry["boundaries"]] == [0.5, 1.0, 1.0, 1.0, 1.0]
    assert [row["recall"] for row in entry["boundaries"]] == [pytest.approx(hits / 3) for hits in (1, 2, 2, 2, 2)]
    assert [row["delay"] for row in entry["boundaries"]] == [0.0, 0.5, 1.0, 1.0, 1.0]


def test_the_whole_matrix_is_kept_where_it_is_small():
    final = dict.fromkeys(("nll", "brier", "ece", "auroc"))
    for tasks in (10, 11):
        record = {"rows": [[0.5] * (i + 1) for i in range(tasks)], "final": final, "agnostic": [], "agnostic_final": {}}
        entry = seed_entry(0, record, resolve("split-digits", PLAIN))
        assert ("accuracy" in entry) == (tasks == 10)
        assert len(entry["last_row"]) == len(entry["diagonal"]) == tasks
        assert "boundaries" not in entry
        assert "agnostic_accuracy" not in entry  # its tasks have no targets in common


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
    with pytest.raises(DataError, match=r"seeds \[2\] are already in the results"):
        merged(batch_document([1, 2]), batch_document([2, 3]))


def test_other_options_are_named_and_newer_ones_count_as_their_default():
    config = resolve("split-digits", FRCL)
    stored = {"config": learned_options(config)}
    assert differences(stored, config) == []
    del stored["config"]["learner"]["u_noise"]
    assert differences(stored, config) == []
    other = resolve("split-digits", FRCL, {"learner": {"points": 4, "u_noise": 0.5}, "stream": {"tasks": 2}})
    assert set(differences(stored, other)) == {
        "stream.tasks: null there, 2 here", "learner.points: 3 there, 4 here",
        "learner.u_noise: no such option there, 0.5 here",
    }  # fmt: skip
    stored["config"]["learner"]["gone"] = 1
    assert differences(stored, config) == ["learner.gone: 1 there, no such option here"]
    plus = resolve("split-digits", {"method": "frcl-plus"})
    stored = {"config": learned_options(plus)}
    del stored["config"]["learner"]["lr_decay"]
    assert differences(stored, plus) == ["learner.lr_decay: no such option there, 0.5 here"], (
        "its default is that of FRCL, which is off"
    )
    elsewhere = resolve("split-digits", FRCL, {"device": "cuda", "seeds": [5], "run": {"threads": 2}})
    assert learned_options(elsewhere) == learned_options(config)


def test_a_foreign_file_is_refused(tmp_path):
    assert read_document(tmp_path / "none.json", quick=False) is None
    for text in ("{", "[]", '{"format": "frcl-result", "version": 1}'):
        (tmp_path / "one.json").write_text(text)
        with pytest.raises(DataError, match=r"is not a result file"):
            read_document(tmp_path / "one.json", quick=False)
    (tmp_path / "one.json").write_text('{"format": "frcl-cell", "version": 1, "quick": true}')
    with pytest.raises(DataError, match="with --quick"):
        read_document(tmp_path / "one.json", quick=False)


# -- measuring ----------------------------------------------------------------------------------------------------


def test_a_file_holds_what_the_run_found(place, tmp_path):
    assert measured(place) == [[0, 1, 2]]
    found = file_of(place)
    result = runner.run(place.config(FIRST, (0, 1, 2)), tmp_path / "alone", Observer()).to_json()
    for name in ("average_accuracy", "accuracy_after_learning", "backward_transfer", "forgetting", "nll", "ece"):
        expected = over_seeds([one[name] for one in found["seeds"]]).clipped(*RANGES.get(name, (0.0, 1.0)))
        assert to_json(expected) == result[name]
    assert [one["last_row"] for one in found["seeds"]] == [matrix[-1] for matrix in result["accuracy"]]
    (batch,) = found["batches"]
    assert batch["memory_bytes"] == result["memory_bytes"]
    parts = batch["memory_bytes"]["parts"]
    assert set(parts) == {"points", "posterior", "sums"}
    assert sum(parts.values()) == batch["memory_bytes"]["total"]
    assert batch["command"] == "python -m paper table1 --rows split-digits-frcl-3 --seeds 3"
    assert set(batch) >= {"started", "seconds", "environment", "peak_memory_bytes"}
    assert not [path for path in place.runs.glob("*/*/*") if path.is_dir()], "a run that was taken in is not kept"


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
    assert (place.runs / "table1" / FIRST.name / "seeds-0-1-2" / "checkpoint.frcl").is_file()
    monkeypatch.setattr(runner, "run", None)  # no run is started
    assert measured(place, count=count) == [[0, 1, 2]]
    assert file_of(place)["seeds"] == file_of(whole)["seeds"]


@pytest.mark.parametrize("change", ["options", "damage", "seeds"])
def test_an_interrupted_run_that_does_not_fit_is_started_again(place, change):
    folder, cell, expected = place.runs / "table1" / FIRST.name / "seeds-0-1-2", FIRST, [[0, 1, 2]]
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
    assert said == ["table1/split-digits-frcl-3: not changed, since it was measured with other options"]
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


def test_some_seeds_may_be_asked_for_by_their_number(place):
    assert measured(place, only=(2, 7)) == [[2]]  # the cell has no seed 7
    assert [one["seed"] for one in file_of(place)["seeds"]] == [2]
    assert file_of(place)["batches"][0]["command"] == "python -m paper table1 --rows split-digits-frcl-3 --seed 2"
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
