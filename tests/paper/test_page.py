"""Our numbers against the paper's, the page, and the command line."""

import json
import re
import shlex
from dataclasses import replace

import pytest

from frcl import OptionError
from frcl.cli import main as frcl_main
from frcl.experiment import runner
from frcl.experiment.config import resolve
from frcl.experiment.metrics import over_seeds
from paper import targets
from paper.cells import TABLES, Cell, Paper, Table, make_cell
from paper.cli import app
from paper.numbers import Ours, Paired, agreement, agrees_f1, is_near, paired, printed
from paper.page import page, read_choices
from paper.quick import lacking, reduced
from paper.store import path_of
from paper_helpers import FIRST, FRCL, HIDDEN, SMALL, TABLE, Watch, command, file_of, measured

# -- numbers ------------------------------------------------------------------------------------------------------


def test_what_is_printed_is_read():
    one, other = printed("86.50 ± 0.9"), printed("82")
    assert (one.mean, one.std, one.half) == (86.5, 0.9, pytest.approx(0.005))
    assert (other.mean, other.std, other.half) == (82.0, None, 0.5)
    with pytest.raises(ValueError, match="is neither a mean"):
        printed("about 82")


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
@pytest.mark.parametrize("row", ["frcl-trace", "ewc"])
def test_a_row_of_any_method_agrees_within_two_standard_deviations_above_or_below(row, mean, std, value, verdict):
    cell = make_cell("split-mnist", row, (0,), Paper(value), {}, "")
    assert agreement(cell, Ours(mean, std)) == is_near(Ours(mean, std), printed(value)) == verdict


def test_f1_is_compared_as_it_is_printed():
    assert agrees_f1({"f1": Ours(0.724, None)}, "0.71/0.75/0.72", 1) == "yes"
    assert agrees_f1({"f1": Ours(0.726, None)}, "0.71/0.75/0.72", 1) == "differs: +0.01"
    assert agrees_f1({"f1": Ours(0.70, 0.05)}, "0.71/0.75/0.73", 10) == "yes"
    assert agrees_f1({"f1": Ours(0.69, 0.05)}, "0.71/0.75/0.73", 10) == "differs: -0.04"


def test_two_cells_are_compared_on_the_seeds_that_both_have():
    def seeds(**accuracies: float) -> list[dict]:
        return [{"seed": int(name[1:]), "average_accuracy": value} for name, value in accuracies.items()]

    one, other = seeds(s0=0.80, s1=0.90, s2=0.70, s5=0.1), seeds(s2=0.69, s1=0.92, s0=0.77, s7=0.9)
    found = paired(one, other)  # +3, −2, +1: mean 2/3, standard deviation √(19/3)
    assert found.seeds == 3
    assert found.mean == pytest.approx(2 / 3)
    assert found.error == pytest.approx((19 / 3) ** 0.5 / 3**0.5)
    assert found.show() == "+0.67 ± 1.45 (3 seeds)"
    assert paired(seeds(s0=0.5), seeds(s0=0.75)) == Paired(-25.0, None, 1)
    assert paired(seeds(s0=0.5), seeds(s1=0.5)) is None


# -- quick --------------------------------------------------------------------------------------------------------


def test_every_table_has_a_small_version():
    for table in (*targets.TABLES, *(figure.table for figure in targets.FIGURES if figure.table is not None)):
        small = reduced(table)
        names = [cell.name for cell in table.cells]
        assert [cell.name for cell in small.cells] == [name for name in names if not table.quick or name in table.quick]
        assert small.cells
        assert set(table.quick) <= set(names)
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
    assert empty.count("not measured") == 4  # two methods, a threshold, and the accuracy of its learner
    assert "yes" not in rows_of(empty)["FRCL"]
    measured(place, count=1)
    measured(place)
    fine = TABLE.cells[1]
    measured(place, fine, count=1)
    measured(place, HIDDEN.cells[0], table="table3")
    text = page([TABLE, HIDDEN], place.results)
    rows = rows_of(text)
    summary = over_seeds([one["average_accuracy"] for one in file_of(place)["seeds"]])
    assert rows["FRCL"][:3] == ["50.0 ± 40.0", f"{100 * summary.mean:.2f} ± {100 * summary.std:.2f}", "3"]
    assert rows["FRCL"][3] == "yes"
    gap = 100 * file_of(place, fine)["seeds"][0]["average_accuracy"] - 3
    assert rows["Fine"][0] == "3 (quoted)"
    assert rows["Fine"][2:4] == ["1 of 2", f"differs: {gap:+.2f}"]
    assert re.fullmatch(r"\d\.\d\d/\d\.\d\d/\d\.\d\d", rows["4"][1])
    learned = over_seeds([one["average_accuracy"] for one in file_of(place, HIDDEN.cells[0], table="table3")["seeds"]])
    assert rows["accuracy of the learner %"][1].startswith(f"{100 * learned.mean:.2f}")
    assert rows["[Table 1](#table-1-digits)"] == ["2 of 2", "1", "2", "1"]
    commands = [line for line in text.splitlines() if line.startswith("- `python -m paper")]
    assert [command.split("`")[1][-1] for command in commands] == ["1", "3", "1", "2"]
    assert "seeds 0, 1, cpu" in commands[-1], "two batches that differ in their seeds alone are one line"
    assert "not measured" not in text


def test_every_threshold_counts_where_the_paper_prints_one_value_for_several(place):
    (cell,) = HIDDEN.cells
    measured(place, cell, count=1, table="table3")
    (one,) = json.loads(path_of(place.results, "table3", cell.name).read_text())["seeds"]
    f1 = {row["threshold"]: row["f1"] for row in one["boundaries"]}
    twice = replace(cell, thresholds={4.0: f"0.0/0.0/{f1[4.0]}", 5.0: f"0.0/0.0/{f1[5.0]}", 6.0: "1.0/1.0/2.0"})
    text = page([replace(HIDDEN, cells=(twice,))], place.results)
    assert "| [Table 3](#table-3-digits) | 1 of 1 | 0 | 3 | 2 |" in text


def test_the_page_says_where_options_were_others(place):
    measured(place, count=1)
    other = replace(FIRST, layers=(*FIRST.layers, {"learner": {"points": 4}}))
    text = page([replace(TABLE, cells=(other,))], place.results)
    assert "measured with another option than the current one: `learner.points: 3 there, 4 here`" in text


def test_choices_are_about_options_that_exist(monkeypatch, capsys):
    monkeypatch.setattr(runner, "check", lambda config: None)  # the files of a benchmark may be missing
    for one in read_choices():
        assert set(one) - {"explicit"} == {"about", "paper", "here", "why", "otherwise"}
        assert one["otherwise"].startswith("frcl run ")
        changed = dry_run(shlex.split(one["otherwise"])[1:], monkeypatch, capsys)
        benchmark, *flags = shlex.split(one["otherwise"])[2:]
        method = flags[1] if flags[0] == "--method" else "frcl"
        assert changed != dry_run(["run", benchmark, "--method", method], monkeypatch, capsys), one["about"]


def dry_run(arguments: list[str], monkeypatch, capsys) -> str:
    code, lines, _ = command([*arguments, "--dry-run"], monkeypatch, capsys, main=frcl_main)
    assert code == 0
    return "\n".join(lines)


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


# -- the command --------------------------------------------------------------------------------------------------


@pytest.fixture
def paper(monkeypatch, capsys, tmp_path):
    """`python -m paper` with the tables of the tests, in an empty folder; returns code, lines, errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(targets, "TABLES", (TABLE, HIDDEN))
    monkeypatch.setattr(targets, "FIGURES", ())

    def run(*arguments: str) -> tuple[int, list[str], str]:
        return command(arguments, monkeypatch, capsys)

    return run


def test_the_command_measures_lists_and_writes(paper, tmp_path):
    assert paper("table1", "--list")[1] == [
        "table1/split-digits-frcl-3: 0 of 3 seeds, missing 0–2",
        "table1/split-digits-finetune: 0 of 2 seeds, missing 0, 1",
    ]
    code, said, _ = paper("table1", "page", "--seeds", "1")
    assert code == 0
    assert re.search(r"table1/split-digits-frcl-3: [\d.]+ % with 1 of 3 seeds, the paper 50.0 ± 40.0", "\n".join(said))
    assert said[-1] == "written: REPRODUCTION.md"
    assert (tmp_path / "REPRODUCTION.md").read_text() == page([TABLE, HIDDEN], tmp_path / "paper/results")
    assert paper("--list", "--rows", "*frcl*")[1] == ["table1/split-digits-frcl-3: 1 of 3 seeds, missing 1, 2"]
    assert paper("table1", "--seeds", "1", "--quiet") == (0, [], "")


def test_the_command_stops_starting_when_the_budget_is_spent(paper, tmp_path):
    code, said, _ = paper("table1", "--budget", "0")
    assert code == 0
    assert said[0] == "table1/split-digits-frcl-3: seeds 0–2 not started, the time is up"
    assert not (tmp_path / "paper").exists()


def test_the_command_says_what_is_wrong(paper):
    for arguments, message in (
        (["tabel1"], "did you mean 'table1'"),
        ([], "name what to reproduce: table1, table3, page or all"),
        (["table1", "--rows", "*vcl*"], "no cell is called *vcl*"),
    ):
        code, _, error = paper(*arguments)
        assert code == 2
        assert message in error


def test_the_command_refuses_other_options_but_does_the_rest(paper, monkeypatch):
    paper("table1", "--rows", "*frcl*", "--seeds", "1")
    other = replace(FIRST, layers=(*FIRST.layers, {"learner": {"points": 4}}))
    monkeypatch.setattr(targets, "TABLES", (replace(TABLE, cells=(other, TABLE.cells[1])),))
    code, said, error = paper("table1")
    assert code == 2
    assert "table1/split-digits-frcl-3 (learner.points: 3 there, 4 here)" in error
    assert "--again" in error
    assert any("split-digits-finetune" in line and "2 of 2 seeds" in line for line in said)
    assert paper("table1", "--again")[0] == 0
    assert paper("table1") == (0, [], "")


def test_a_cell_that_diverges_does_not_keep_the_others_back(paper, monkeypatch):
    wild = replace(FIRST, layers=(*FIRST.layers, {"learner": {"lr": 1e30}}))
    monkeypatch.setattr(targets, "TABLES", (replace(TABLE, cells=(wild, TABLE.cells[1])),))
    code, said, error = paper("table1")
    assert code == 1
    assert "table1/split-digits-frcl-3: " in error
    assert any("split-digits-finetune" in line and "2 of 2 seeds" in line for line in said)


def test_quick_says_so_everywhere_and_keeps_apart(paper, tmp_path):
    code, said, _ = paper("all", "--quick")
    assert code == 0
    assert len(said) == 4
    assert all(line.startswith("QUICK ") for line in said)
    assert not (tmp_path / "paper").exists()
    folder = tmp_path / "runs" / "quick"
    files = [json.loads(path.read_text()) for path in folder.rglob("*.json")]
    assert [one["quick"] for one in files] == [True] * 3
    assert all(batch["command"].endswith("--quick") for one in files for batch in one["batches"])
    text = (folder / "REPRODUCTION.md").read_text()
    assert text.startswith("# Reproduction (QUICK)")
    assert all(line.endswith("(QUICK)") for line in re.findall(r"^## Table.*$", text, re.M))
    code, _, error = paper("page", "--results", "runs/quick/results")
    assert code == 1
    assert "--quick" in error


def test_quick_leaves_out_what_has_no_data(paper, monkeypatch, tmp_path):
    monkeypatch.delenv("FRCL_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    real = replace(FIRST, benchmark="split-mnist", name="split-mnist-frcl")
    monkeypatch.setattr(targets, "TABLES", (replace(TABLE, cells=(real, TABLE.cells[1])),))
    code, said, _ = paper("table1", "--quick")
    assert code == 0
    assert said[0].startswith("QUICK table1/split-mnist-frcl: skipped, since train-images-idx3-ubyte.gz is missing")
    assert "split-digits-finetune" in said[1]


def test_ctrl_c_can_be_taken_up(paper, monkeypatch):
    monkeypatch.setattr("paper.cli._observer", lambda **_: lambda: Watch(stop_at=25))
    code, _, error = paper("table1", "--rows", "*frcl*")
    assert code == 130
    assert "the same command continues" in error


def test_a_target_that_does_not_exist_is_refused():
    with pytest.raises(OptionError, match="there is no target 'figure99'"):
        targets.chosen_targets(["figure99"])
    names = [*(table.name for table in TABLES), "streams", "frontier", "controls", "scenarios", "peers", "cifar"]
    names += ["pretrained"]
    names += [*(f"figure{number}" for number in range(1, 8)), "ablation", "page"]
    assert [one.name for one in targets.chosen_targets(["all"])] == names
    assert [one.name for one in targets.chosen_targets(["page", "table1", "page"])] == ["page", "table1"]


def test_seeds_that_no_cell_has_are_refused(tmp_path):
    base = ["table1", "--rows", "split-mnist-frcl-trace-2", "--results", str(tmp_path)]
    for more, words in ((["--seed", "99"], "has seed 99"), (["--seed", "1", "--again"], "leave --seed out")):
        with pytest.raises(OptionError, match=words):
            app([*base, *more], standalone_mode=False)
