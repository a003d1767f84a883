"""The HTML says what the result says, escapes what it did not write, and can be read by everybody."""

import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from frcl.cli.console import say_result
from frcl.errors import DataError
from frcl.report import comparison_rows, find_runs, read_run, write_report
from report_html import Node, parse
from report_samples import SCRIPT, bare_run, result, rich_run, without_the_task, write_run


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("runs")
    rich_run(place / "rich")
    bare_run(place / "bare")
    write_run(place / "small", result(points=10, root=2))
    write_run(place / "other", result("replay", "permuted <b>digits</b>", root=3, seeds=1))
    return place


@pytest.fixture(scope="module")
def rich(folder) -> Node:
    return parse(write_report([read_run(folder / "rich")], folder / "rich.html").read_text())


@pytest.fixture(scope="module")
def comparison(folder) -> Node:
    return parse(write_report(find_runs([folder]), folder / "all.html").read_text())


@pytest.fixture(params=["rich", "comparison"])
def page(request) -> Node:
    return request.getfixturevalue(request.param)


def test_headline_numbers_are_those_of_the_result(folder, rich):
    run = read_run(folder / "rich")
    cards = {node.all("dt")[0].text(): node for node in rich.all("div") if node.attributes.get("class") == "number"}
    average, result = run.result.average_accuracy, run.result
    text = cards["Average accuracy"].text().replace("\N{NO-BREAK SPACE}", " ")
    assert f"{100 * average.mean:.2f} %" in text
    assert f"± {100 * average.std:.2f}" in text
    assert f"95 % interval {100 * average.low:.2f} to {min(100 * average.high, 100):.2f}" in text
    assert f"{result.nll.mean:.4f}" in cards["Negative log-likelihood"].text()
    assert "not available" in cards["Forward transfer"].text()
    assert f"−{100 * abs(result.backward_transfer.mean):.2f} pp" in cards["Backward transfer"].text()
    assert "262\N{NO-BREAK SPACE}kB" in cards["Memory kept"].text()
    assert "40.5\N{NO-BREAK SPACE}s" in cards["Time"].text()
    assert len(cards) == 17


def test_the_matrix_in_the_page_is_the_right_way_round(folder, rich):
    run = read_run(folder / "rich").result
    rows = rich.by_id("accuracy-matrix").rows()
    assert rows[0] == ["After learning", *(f"on {task}" for task in run.tasks)]
    mean = run.accuracy.mean(0)
    for i, row in enumerate(rows[1:]):
        assert row[0] == run.tasks[i]
        assert row[1:] == [f"{100 * mean[i, j]:.2f}" if j <= i else "" for j in range(5)]


def test_everything_to_repeat_the_run_is_there(rich):
    repeat = rich.by_id("repeat")
    assert repeat.all("pre")[0].text() == "frcl run split-digits --method frcl --seeds 3 --out 'runs/<b>x</b>'"
    options, environment = repeat.all("table")
    assert ["method.note", SCRIPT] in options.rows()
    assert ["data.folder", 'a "quoted" & <odd> folder'] in options.rows()
    assert ["network.hidden", "[64, 64]"] in options.rows()
    assert ["torch", "2.13.0"] in environment.rows()


def test_the_sections_of_a_full_run(rich):
    titles = [node.text() for node in rich.all("h2")]
    assert titles == ["Numbers", "Accuracy", "Uncertainty", "Task switches", "Training", "What is kept", "Repeat it"]
    figures = [node.attributes["id"] for node in rich.all("figure") if "id" in node.attributes]
    assert figures == [
        "accuracy-matrix",
        "no-task-matrix",
        "accuracy-curves",
        "forgetting",
        "calibration",
        "boundaries",
        "training-terms",
        "time",
    ]
    images = rich.all("img")
    assert images[0].attributes["alt"] == "Inducing inputs, found task 1: 40 images of 8×8"
    assert len(images) == 5
    assert all(image.attributes["src"].startswith("data:image/png;base64,") for image in images)


@pytest.mark.parametrize("scenario", ["task", "class"])
def test_the_first_number_is_that_of_the_scenario(tmp_path, scenario):
    content = without_the_task(result())
    run = read_run(write_run(tmp_path / "run", content | {"config": {"scenario": scenario}}))
    numbers = parse(write_report([run], tmp_path / "page.html").read_text()).by_id("numbers").all("dt")
    first = "Average accuracy" if scenario == "task" else "Accuracy without the task"
    assert first in numbers[0].text()
    assert sum(first in node.text() for node in numbers) == 1


@pytest.mark.parametrize("scenario", ["task", "class"])
def test_what_is_printed_begins_with_the_scenario(tmp_path, capsys, scenario):
    content = without_the_task(result()) | {"config": {"scenario": scenario}}
    found = read_run(write_run(tmp_path / "run", content)).result
    say_result(found, tmp_path / "page.html")
    said = [line for line in capsys.readouterr().out.splitlines() if "average accuracy" in line or "NLL" in line]
    own, without = f"{100 * found.average_accuracy.mean:.2f}", f"{100 * found.agnostic_accuracy.mean:.2f}"
    expected = [f"average accuracy {own}", f"average accuracy without the task {without}"]
    scores = [f"NLL {found.nll.mean:.3f}", "without the task NLL 0.300 ± 0.000, ECE 0.050 ± 0.000"]
    turn = -1 if scenario == "class" else 1
    assert [line[: len(one)] for line, one in zip(said, expected[::turn] + scores[::turn], strict=True)] == (
        expected[::turn] + scores[::turn]
    )


def test_memory_is_told_by_kind(rich, comparison):
    rows = rich.by_id("kept").all("table")[-1].rows()
    assert rows[0] == ["Kind", "What", "Kept", "Bytes"]
    assert [(row[0], row[3]) for row in rows[1:]] == [("points", "51,200"), ("posterior", "210,500")]
    assert all(row[1] for row in rows[1:])
    assert any("posterior" in row[-1] for table in comparison.all("table") for row in table.rows() if len(row) == 4)


def test_what_is_left_out_is_said(folder):
    page = parse(write_report([read_run(folder / "bare")], folder / "bare.html").read_text())
    assert [node.text() for node in page.by_id("left-out").all("li")] == [
        "Accuracy without the task: not measured in this run.",
        "Calibration: the run recorded no class probabilities.",
        "Inducing images: the run kept no inducing points.",
        "Task switches: the learner was told where tasks begin.",
        "Training terms: the run has no step log.",
    ]
    assert "Uncertainty" not in [node.text() for node in page.all("h2")]


def test_a_comparison_has_every_run_and_the_paired_differences(folder, comparison):
    runs = find_runs([folder])
    assert comparison.all("h1")[0].text() == "4 runs on split-digits, permuted <b>digits</b>"
    groups = [node for node in comparison.all("section") if node.attributes["id"].startswith("benchmark-")]
    split = next(group for group in groups if group.all("h2")[0].text() == "split-digits")
    results = split.rows()
    assert {row[0] for row in results[1:]} == {"ewc", "frcl points=40", "frcl points=10"}
    bare = next(row for row in results if row[0] == "ewc")
    metric = next(run for run in runs if run.result.method == "ewc").result.average_accuracy
    assert bare[2] == f"{100 * metric.mean:.2f} ± {100 * metric.std:.2f}"
    assert "not available" in bare
    paired = next(table for table in split.all("table") if "paired" in table.all("caption")[0].text())
    pairs = comparison_rows(runs).pairs
    assert len(pairs) == 3
    for row, pair in zip(paired.rows()[1:], pairs, strict=True):
        assert row[0] == f"{pair.first} − {pair.second}"
        assert row[2] == f"{100 * pair.difference.mean:.2f}".replace("-", "−")
        low, high = (f"{100 * value:.2f}".replace("-", "−") for value in (pair.difference.low, pair.difference.high))
        assert row[3] == f"{low} to {high}"
    differing = next(table for table in split.all("table") if table.all("caption")[0].text() == "Options that differ")
    assert differing.rows()[1][0] == "method.points"
    commands = [node.text() for node in comparison.by_id("runs").all("pre")]
    assert commands == [run.result.command for run in runs]


def test_nothing_of_the_text_becomes_markup(page):
    assert page.all("script", "b", "odd", "iframe", "object", "embed", "form") == []
    assert not [name for node in page.all() for name in node.attributes if name.startswith("on")]
    assert any(SCRIPT in node.text() for node in page.all("th", "td"))
    assert any(SCRIPT in node.attributes.get("aria-label", "") for node in page.all("div"))


def test_the_page_asks_for_nothing_outside(page):
    (policy,) = [
        node.attributes["content"]
        for node in page.all("meta")
        if node.attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'; img-src data:;")
    for node in page.all():
        for name in ("src", "href", "xlink:href", "action", "srcset", "data", "poster"):
            value = node.attributes.get(name)
            assert value is None or value.startswith(("#", "data:")), (node.tag, value)
        assert "url(" not in node.attributes.get("style", "").replace("url(#", "")
    (sheet,) = page.all("style")
    assert not re.search(r"url\(|@import|https?:", sheet.text())


def test_ids_are_unique_and_every_link_has_its_place(page):
    ids = [node.attributes["id"] for node in page.all() if "id" in node.attributes]
    assert len(ids) == len(set(ids))
    links = [node.attributes["href"] for node in page.all("a")]
    assert links[0] == "#main"
    assert len(links) > 3
    assert {link[1:] for link in links} <= set(ids)
    labels = [node.attributes["aria-labelledby"] for node in page.all("section")]
    assert set(labels) <= set(ids)


def test_headings_go_down_one_at_a_time(page):
    levels = [int(node.tag[1]) for node in page.all("h1", "h2", "h3", "h4", "h5", "h6")]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))


def test_every_picture_has_words(page):
    for svg in page.all("svg"):
        assert svg.attributes["aria-hidden"] == "true"
        assert svg.parent is not None
        assert svg.parent.attributes["role"] == "img"
        assert len(svg.parent.attributes["aria-label"]) > 30
        assert re.search(r"\d", svg.parent.attributes["aria-label"])
    assert len(page.all("svg")) >= 7
    assert all(image.attributes["alt"] for image in page.all("img"))


def test_every_table_has_a_caption_headers_and_a_place_to_scroll(page):
    assert len(page.all("table")) > 5
    for table in page.all("table"):
        assert table.all("caption")[0].text()
        assert all(cell.attributes["scope"] in ("col", "row") for cell in table.all("th"))
        widths = {len(row) for row in table.rows()}
        assert len(widths) == 1
        around = next(table.above())
        assert around.attributes["tabindex"] == "0"
        assert around.attributes["aria-label"]


def test_the_frame_of_the_page(page):
    (html,) = page.all("html")
    assert html.attributes["lang"] == "en"
    metas = {node.attributes.get("name"): node.attributes.get("content") for node in page.all("meta")}
    assert metas["viewport"] == "width=device-width, initial-scale=1"
    assert metas["color-scheme"] == "light dark"
    for landmark in ("header", "nav", "main", "footer"):
        assert len(page.all(landmark)) == 1
    assert page.all("title")[0].text().endswith("– frcl")
    assert "prefers-color-scheme: dark" in page.all("style")[0].text()


def test_a_regression_says_what_its_accuracy_is(tmp_path):
    content = result(uncertain=False) | {"score": "r2"}
    page = parse(write_report([read_run(write_run(tmp_path / "run", content))], tmp_path / "r.html").read_text())
    (notice,) = [node.text() for node in page.all("p") if node.attributes.get("class") == "notice"]
    assert "share of variance explained (R²)" in notice


HOSTILE = ["</svg><script>x</script>", "{{ 7 * 7 }}", "$\\frac{1", "", '" onload="x', "日本語\n\x00\ud800", "&lt;"]


def test_hostile_names_come_out_as_they_went_in(tmp_path):
    content = result(method='"><img src=x>', benchmark="</title><script>x</script>", tasks=HOSTILE)
    content["environment"]["</td><script>"] = "--><script>"
    content["started"] = "<i>yesterday</i>"
    written = write_report([read_run(write_run(tmp_path / "run", content))], tmp_path / "r.html")
    page = parse(written.read_bytes().decode())
    assert page.all("script", "i") == []
    assert page.all("h1")[0].text() == '"><img src=x> on </title><script>x</script>'
    rows = page.by_id("accuracy-matrix").rows()
    assert [row[0] for row in rows[1:]] == [name.replace("\ud800", "?") for name in HOSTILE]
    assert page.all("img") == []


@pytest.mark.slow
def test_the_same_run_gives_the_same_bytes_in_another_process(folder):
    code = "import sys; from pathlib import Path; from frcl.report import find_runs, write_report\n"
    code += "write_report(find_runs([Path(sys.argv[1])]), Path(sys.argv[2]))"
    rich = [write_report(find_runs([folder / "rich"]), folder / "once.html").read_bytes() for _ in range(2)]
    assert rich[0] == rich[1]
    here = write_report(find_runs([folder]), folder / "here.html").read_bytes()
    source = os.pathsep.join([str(Path(__file__).parents[1] / "src"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": source, "PYTHONHASHSEED": "7", "TZ": "Asia/Tokyo"}
    command = [sys.executable, "-c", code, str(folder), str(folder / "there.html")]
    subprocess.run(command, check=True, env=environment)
    assert (folder / "there.html").read_bytes() == here


def test_writing_leaves_no_other_file_and_says_where_it_cannot(folder, tmp_path):
    run = read_run(folder / "bare")
    assert write_report([run], tmp_path / "report.html") == tmp_path / "report.html"
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    with pytest.raises(DataError, match="does not exist; create it first"):
        write_report([run], tmp_path / "nowhere" / "report.html")
    with pytest.raises(DataError, match="no run to report on"):
        write_report([], tmp_path / "report.html")
