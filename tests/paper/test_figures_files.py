"""Figures as files and as targets: measured once, drawn from the CSV, refused if files do not match."""

import json
import re
from dataclasses import replace

import pytest

from frcl import DataError, NumericalError
from frcl.report.drawing import Drawing
from paper import targets
from paper.cells import Cell, Table
from paper.figures.base import FigureSpec, canvas, figure_in_words, make_figure, path_of_figure, read_record
from paper.figures.sheets import Sheet, read_sheet, sheet, write_sheet
from paper.measure import Place
from paper.page import page
from paper_helpers import command

SMALL = {
    "method": "finetune",
    "stream": {"tasks": 2},
    "network": {"widths": [6]},
    "learner": {"steps": 6, "batch_size": 10},
}
TABLE = Table("figure3", "Figure 3: cells", "For tests.", (Cell("fine", "split-digits", "Fine", (SMALL,), (0, 1)),))


class Work:
    """A figure whose measurements are counted; each returns other numbers."""

    def __init__(self) -> None:
        self.times = 0

    def measure(self, place: Place) -> Sheet:
        self.times += 1
        return sheet(("x", "y"), [(0, 0.5), (1, self.times + 1 / 3)])

    def draw(self, numbers: Sheet) -> Drawing:
        figure, (axes,) = canvas(2.0, 1.5, 1, 1)
        axes.plot(numbers.floats("x"), numbers.floats("y"))
        return Drawing("some", "Figure 1: a line", f"Up to {numbers.column('y')[-1]}.", "A line.", figure)

    def figure(self, **fields) -> FigureSpec:
        return FigureSpec("figure1", "Figure 1: a line", self.measure, self.draw, **fields)


@pytest.fixture
def work() -> Work:
    return Work()


# -- sheets -------------------------------------------------------------------------------------------------------


def test_a_sheet_is_read_as_it_was_written(tmp_path):
    values = [("a,b", 1, 1 / 3), ('say "so"', -2, 1e-12), ("two\nlines", 3, 123456789.0), ("", 0, float("inf"))]
    numbers = sheet(("name", "count", "value"), values)
    path = tmp_path / "deep" / "one.csv"
    write_sheet(numbers, path)
    assert read_sheet(path) == numbers
    assert numbers.column("value") == ["0.333333", "1e-12", "1.23457e+08", "inf"]
    assert numbers.floats("count") == [1, -2, 3, 0]
    assert numbers.where(name="a,b", count="1").rows == (("a,b", "1", "0.333333"),)
    assert numbers.where(name="a,b", count="2").rows == ()


@pytest.mark.parametrize("content", [b"", b"a,b\n1\n", b'a,b\n1,"2\n', b"\xff\xfe\n", b"a\n1,2\n"])
def test_a_broken_sheet_is_refused(tmp_path, content):
    path = tmp_path / "figure1.csv"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"figure1.csv is not a table.*measure it again with --again"):
        read_sheet(path)


# -- making -------------------------------------------------------------------------------------------------------


def test_numbers_are_measured_once_and_drawn_each_time(place, work):
    figure = work.figure()
    assert figure_in_words(figure, place.results) == "figure1: not made yet"
    files = make_figure(figure, place)
    assert [path.name for path in files] == ["figure1.csv", "figure1.png", "figure1.svg"]
    assert figure_in_words(figure, place.results) == "figure1: made"
    before = {path: path.read_bytes() for path in place.results.rglob("*.*")}
    assert len(before) == 4
    files[1].unlink()
    assert figure_in_words(figure, place.results) == "figure1: measured, not drawn"
    assert make_figure(figure, place) == files
    assert {path: path.read_bytes() for path in place.results.rglob("*.*")} == before
    assert work.times == 1
    make_figure(figure, place, again=True)
    assert work.times == 2
    assert read_sheet(files[0]).column("y") == ["0.5", "2.33333"]


def test_the_record_says_how_it_was_measured(place, work):
    make_figure(work.figure(), replace(place, device="cpu"))
    record = read_record(place.results, "figure1")
    assert (record.title, record.caption, record.text) == ("Figure 1: a line", "Up to 1.33333.", "A line.")
    assert record.measured["command"] == "python -m paper figure1"
    assert record.measured["environment"]["torch"]
    assert not re.findall(r'"/[^"]*"', path_of_figure(place.results, "figure1", "json").read_text())
    assert read_record(place.results, "figure2") is None


def test_a_sheet_that_was_changed_is_refused(place, work):
    path, *_ = make_figure(work.figure(), place)
    path.write_text("x,y\n0,1\n1,2\n")
    with pytest.raises(DataError, match=r"figure1.csv was changed after it was measured; .*--again"):
        make_figure(work.figure(), place)
    make_figure(work.figure(), place, again=True)
    assert read_record(place.results, "figure1").caption == "Up to 2.33333."
    path.unlink()
    with pytest.raises(DataError, match=r"figure1.json or its CSV is missing or damaged"):
        read_record(place.results, "figure1")


@pytest.mark.parametrize("content", ["{", "[]", '{"format": "frcl-figure", "version": 1}', '{"a": 1}'])
def test_a_broken_record_is_refused(place, work, content):
    make_figure(work.figure(), place)
    path_of_figure(place.results, "figure1", "json").write_text(content)
    with pytest.raises(DataError, match=r"figure1.json or its CSV is missing or damaged.*--again"):
        make_figure(work.figure(), place)


def test_a_record_of_another_version_is_refused(place, work):
    make_figure(work.figure(), place)
    path = path_of_figure(place.results, "figure1", "json")
    path.write_text(json.dumps({**json.loads(path.read_text()), "version": 99}))
    with pytest.raises(DataError, match="is not the record of a figure that this version reads"):
        make_figure(work.figure(), place)


def test_numbers_without_a_record_are_drawn(place, work):
    write_sheet(sheet(("x", "y"), [(0, 1), (1, 5)]), path_of_figure(place.results, "figure1", "csv"))
    make_figure(work.figure(), place)
    assert work.times == 0
    record = read_record(place.results, "figure1")
    assert (record.caption, record.measured) == ("Up to 5.", None)


def test_what_was_measured_is_kept_where_drawing_fails(place, work):
    figure = replace(work.figure(), draw=lambda numbers: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        make_figure(figure, place)
    make_figure(work.figure(), place)
    assert work.times == 1
    assert read_record(place.results, "figure1").measured["command"] == "python -m paper figure1"


def test_quick_is_said_in_words_and_in_the_picture_and_kept_apart(place, work):
    plain = make_figure(work.figure(), place)
    quick = replace(place, results=place.results / "quick", quick=True)
    write_sheet(read_sheet(plain[0]), path_of_figure(quick.results, "figure1", "csv"))
    marked = make_figure(work.figure(), quick)
    record = read_record(quick.results, "figure1", quick=True)
    assert record.title == "Figure 1: a line (QUICK)"
    assert record.caption.startswith("QUICK: ")
    assert plain[0].read_bytes() == marked[0].read_bytes()
    assert plain[1].read_bytes() != marked[1].read_bytes()
    for other in (replace(place, quick=True), replace(quick, quick=False)):
        with pytest.raises(DataError, match="--quick; use separate folders"):
            make_figure(work.figure(), other)


# -- the command ------------------------------------------------------------------------------------------------


@pytest.fixture
def paper(monkeypatch, capsys, tmp_path):
    """`python -m paper` with no table, and the given figures; returns exit code, lines, errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(targets, "TABLES", ())

    def run(figures: tuple[FigureSpec, ...], *arguments: str) -> tuple[int, list[str], str]:
        monkeypatch.setattr(targets, "FIGURES", figures)
        return command(arguments, monkeypatch, capsys)

    return run


WRITTEN = "written: paper/results/figures/figure1.csv, .png, .svg"


def test_the_command_makes_and_reuses_a_figure(paper, work):
    figures = (work.figure(),)
    assert paper(figures, "figure1", "--list")[1] == ["figure1: not made yet"]
    assert paper(figures, "figure1") == (0, [WRITTEN], "")
    assert paper(figures, "figure1") == (0, [WRITTEN], "")
    assert work.times == 1
    assert paper(figures, "--list")[1] == ["figure1: made"]
    assert paper(figures, "figure1", "--again", "--quiet") == (0, [], "")
    assert work.times == 2
    assert paper(figures, "all") == (0, [WRITTEN, "written: REPRODUCTION.md"], "")


def test_the_page_shows_what_is_there(paper, work, tmp_path):
    figures = (work.figure(), replace(work.figure(), name="figure2", title="Figure 2: another"))
    paper(figures, "figure1", "page")
    text = (tmp_path / "REPRODUCTION.md").read_text()
    assert text == page([], tmp_path / "paper/results", figures, tmp_path)
    first, second = re.search(r"### Figure 1: a line(.*?)### Figure 2: another(.*?)\n## ", text, re.S).groups()
    assert "![Figure 1: a line](paper/results/figures/figure1.png)\n\nUp to 1.33333.\n" in first
    assert "[numbers](paper/results/figures/figure1.csv), [SVG](paper/results/figures/figure1.svg)" in first
    assert "`python -m paper figure1`: cpu (" in first
    assert second.strip() == "not made yet: `python -m paper figure2`"
    for link in re.findall(r"\((paper/results/[^)]*)\)", text):
        assert (tmp_path / link).is_file()
    assert "## Figures" not in page([], tmp_path / "paper/results")


def test_cells_of_a_figure_are_measured_first_and_shown(paper, work, tmp_path):
    def accuracies(place: Place) -> Sheet:
        there = list((place.results / "figure3").glob("*.json"))
        return sheet(("x", "y"), [(0, len(json.loads(path.read_text())["seeds"])) for path in there])

    figure = FigureSpec("figure3", TABLE.title, accuracies, work.draw, table=TABLE)
    code, said, _ = paper((figure,), "figure3", "--budget", "0")
    assert (code, said[-1]) == (0, "figure3: not drawn, since none of its cells is measured")
    assert paper((figure,), "figure3", "--list")[1] == [
        "figure3/fine: 0 of 2 seeds, missing 0, 1",
        "figure3: not made yet",
    ]
    assert paper((figure,), "figure3", "--seeds", "1")[0] == 0
    assert read_record(tmp_path / "paper/results", "figure3").caption == "Up to 1."
    code, said, _ = paper((figure,), "figure3", "page")
    assert code == 0
    assert "figure3/fine: " in said[-3]
    assert said[-2:] == ["written: paper/results/figures/figure3.csv, .png, .svg", "written: REPRODUCTION.md"]
    assert read_record(tmp_path / "paper/results", "figure3").caption == "Up to 2."
    text = (tmp_path / "REPRODUCTION.md").read_text()
    assert "#### split-digits" in text
    assert "- `python -m paper figure3 --rows fine --seeds 1`: seed 0, cpu" in text
    assert paper((figure,), "--list", "--rows", "fi*")[1] == ["figure3/fine: 2 of 2 seeds"]


def test_nothing_is_measured_when_the_time_is_up_but_what_is_there_is_drawn(paper, work):
    figures = (work.figure(),)
    assert paper(figures, "figure1", "--budget", "0")[1] == ["figure1: not started, the time is up"]
    paper(figures, "figure1")
    assert paper(figures, "figure1", "--budget", "0")[1] == [WRITTEN]
    assert paper(figures, "figure1", "--budget", "0", "--again")[1] == ["figure1: not started, the time is up"]
    assert work.times == 1


def test_quick_leaves_out_a_figure_without_data(paper, work, monkeypatch, tmp_path):
    monkeypatch.delenv("FRCL_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    figures = (work.figure(needs=("omniglot", "split-digits")),)
    code, said, _ = paper(figures, "all", "--quick")
    assert code == 0
    assert said[0].startswith("QUICK figure1: skipped, since images_background.zip is missing")
    assert said[1] == "QUICK written: runs/quick/REPRODUCTION.md"
    assert work.times == 0
    assert "not made yet: `python -m paper figure1 --quick`" in (tmp_path / "runs/quick/REPRODUCTION.md").read_text()
    assert paper((work.figure(needs=("split-digits",)),), "all", "--quick")[0] == 0
    text = (tmp_path / "runs/quick/REPRODUCTION.md").read_text()
    assert "### Figure 1: a line (QUICK)" in text
    assert not (tmp_path / "paper/results").exists()


def test_the_command_refuses_a_broken_file_plainly(paper, work, tmp_path):
    figures = (work.figure(),)
    paper(figures, "figure1")
    (tmp_path / "paper/results/figures/figure1.csv").write_text("x,y\n1\n")
    code, _, error = paper(figures, "figure1")
    assert code == 1
    assert "figure1.csv was changed after it was measured" in error
    (tmp_path / "paper/results/figures/figure1.json").unlink()
    code, _, error = paper(figures, "figure1")
    assert code == 1
    assert "is not a table: its lines differ in length; measure it again with --again" in error


def test_a_figure_that_diverges_does_not_keep_the_others_back(paper, work, tmp_path):
    def diverge(place: Place) -> Sheet:
        raise NumericalError("the loss is not finite")

    wild = replace(work.figure(), name="figure0", measure=diverge)
    code, said, error = paper((wild, work.figure()), "all")
    assert code == 1
    assert said == [WRITTEN, "written: REPRODUCTION.md"]
    assert "figure0: the loss is not finite" in error


def test_figures_are_in_order_and_have_names_of_their_own():
    assert [figure.name for figure in targets.FIGURES] == [*(f"figure{number}" for number in range(1, 8)), "ablation"]
    for figure in targets.FIGURES[:7]:
        assert figure.title.startswith(f"Figure {figure.name[-1]}: ")
