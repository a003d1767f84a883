"""The report in a real browser: at two widths, in light and dark, by keyboard and as a screen reader has it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from frcl.report import find_runs, read_run, write_report
from frcl.report.drawing import DARK, LIGHT
from report_browser import Page, find_browser
from report_samples import SCRIPT, bare_run, result, rich_run, write_run

pytestmark = pytest.mark.skipif(
    find_browser() is None, reason="no Chromium was found (Debian: apt-get install chromium)"
)

# Boxes that stick out of the screen, but for those that scroll in a box of their own.
STICKING_OUT = """
[...document.body.querySelectorAll("*")].filter(node => {
  const box = node.getBoundingClientRect();
  return box.width > 1 && (box.right > innerWidth + 0.5 || box.left < -0.5) && !node.closest(".scroll, .skip, svg");
}).map(node => node.tagName + "." + node.className)
"""
OPEN_ALL = "document.querySelectorAll('details').forEach(node => { node.open = true; })"


@pytest.fixture(scope="module")
def reports(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("reports")
    rich_run(folder / "runs" / "rich")
    bare_run(folder / "runs" / "bare")
    write_run(folder / "runs" / "small", result(points=10, root=2))
    names = [f"Alphabet_of_a_very_long_name_{number}" for number in range(50)]
    write_run(folder / "long", result(benchmark="omniglot" * 9, tasks=names, loss=0.001))
    return {
        "run": write_report([read_run(folder / "runs" / "rich")], folder / "run.html"),
        "comparison": write_report(find_runs([folder / "runs"]), folder / "comparison.html"),
        "long": write_report([read_run(folder / "long")], folder / "long.html"),
    }


@pytest.fixture(scope="module")
def browser(tmp_path_factory) -> Iterator[Page]:
    name = find_browser()
    assert name is not None
    with Page(name, tmp_path_factory.mktemp("profile")) as page:
        yield page


VIEWS = [(kind, width, dark) for kind in ("run", "comparison") for width in (1280, 360) for dark in (False, True)]


@pytest.mark.parametrize(("kind", "width", "dark"), [*VIEWS, ("long", 360, False), ("long", 1280, True)])
def test_a_report_opens_clean(browser, reports, kind, width, dark):
    browser.open(reports[kind].as_uri(), width=width, dark=dark)
    assert browser.evaluate("innerWidth") == width
    assert browser.complaints() == []
    outside = [url for url in browser.requests() if not url.startswith("data:")]
    assert outside == [reports[kind].as_uri()]
    assert browser.evaluate("document.scripts.length") == 0
    for _ in range(2):
        assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert browser.evaluate(STICKING_OUT) == []
        browser.evaluate(OPEN_ALL)
    ground = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == rgb((DARK if dark else LIGHT)["page"])


@pytest.mark.parametrize("width", [1280, 360])
def test_the_content_is_on_the_screen(browser, reports, width):
    browser.open(reports["run"].as_uri(), width=width)
    run = read_run(reports["run"].parent / "runs" / "rich").result
    text = browser.evaluate("document.body.innerText").replace("\N{NO-BREAK SPACE}", " ")
    assert f"{100 * run.average_accuracy.mean:.2f}" in text
    assert run.command in text
    assert SCRIPT in text
    for title in ("Accuracy matrix", "Every task over time", "Calibration", "Task switches", "Training terms"):
        assert title in text
    boxes = browser.evaluate(
        "[...document.querySelectorAll('.drawing svg, .sheets img')].map(n => [n.clientWidth, n.clientHeight])"
    )
    assert len(boxes) == 13
    assert all(across > min(250, width / 2) and high > 60 for across, high in boxes)
    assert browser.evaluate("[...document.images].every(image => image.complete && image.naturalWidth > 0)")
    columns = browser.evaluate("getComputedStyle(document.querySelector('.grid')).gridTemplateColumns")
    assert len(columns.split()) == (2 if width == 1280 else 1)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_figures_follow_the_theme_and_can_be_read_on_a_phone(browser, reports, dark):
    browser.open(reports["run"].as_uri(), width=360, dark=dark)
    theme = DARK if dark else LIGHT
    labels = browser.evaluate(
        "[...document.querySelectorAll('.drawing text')].map(n => [n.textContent, getComputedStyle(n).fill,"
        " parseFloat(getComputedStyle(n).fontSize) * Math.hypot(n.getScreenCTM().a, n.getScreenCTM().b),"
        " getComputedStyle(n).fontFamily])"
    )
    fills = {text: fill for text, fill, _, _ in labels}
    assert fills["after learning task"] == rgb(theme["muted"])
    assert {fill for _, fill, _, _ in labels} <= {rgb(colour) for colour in theme.values()}
    assert min(size for _, _, size, _ in labels) > 8.5
    assert all("DejaVu" not in family for _, _, _, family in labels)
    cells = browser.evaluate(
        "[...document.querySelectorAll('#accuracy-matrix path')].map(node => getComputedStyle(node).fill)"
    )
    assert len({rgb(theme[f"heat-{level}"]) for level in range(9)} & set(cells)) == 9


def test_a_keyboard_reaches_everything(browser, reports):
    browser.open(reports["run"].as_uri(), width=1280)
    browser.press("Tab", 9)
    assert browser.evaluate("document.activeElement.className") == "skip"
    assert browser.evaluate("document.activeElement.getBoundingClientRect().top >= 0")
    browser.call("Input.dispatchKeyEvent", type="keyDown", key="Enter", windowsVirtualKeyCode=13, text="\r")
    assert browser.evaluate("location.hash") == "#main"
    browser.evaluate("document.querySelector('#accuracy-matrix summary').focus()")
    assert not browser.evaluate("document.querySelector('#accuracy-matrix details').open")
    browser.call("Input.dispatchKeyEvent", type="keyDown", key="Enter", windowsVirtualKeyCode=13, text="\r")
    browser.call("Input.dispatchKeyEvent", type="keyUp", key="Enter", windowsVirtualKeyCode=13)
    assert browser.evaluate("document.querySelector('#accuracy-matrix details').open")
    browser.press("Tab", 9)
    assert browser.evaluate("document.activeElement.className") == "scroll"
    assert browser.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_a_screen_reader_gets_words_for_every_picture(browser, reports):
    browser.open(reports["run"].as_uri(), width=1280)
    nodes = [node for node in browser.call("Accessibility.getFullAXTree")["nodes"] if not node.get("ignored")]
    named = [(node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes]
    pictures = [name for role, name in named if role in ("image", "img")]
    assert len(pictures) == 13
    assert all(len(name) > 30 for name in pictures)
    roles = [role for role, _ in named]
    for landmark in ("banner", "navigation", "main", "contentinfo"):
        assert roles.count(landmark) == 1
    assert ("RootWebArea", "frcl on split-digits – frcl") in named
    assert [name for role, name in named if role == "heading"][:3] == ["frcl on split-digits", "Numbers", "Accuracy"]


def test_the_watch_on_requests_and_errors_does_watch(browser, tmp_path):
    bad = tmp_path / "bad.html"
    bad.write_text('<script>console.error("oh")</script><img src="http://127.0.0.1:9/x.png"><p style="width:999px">')
    browser.open(bad.as_uri(), width=360)
    assert any("oh" in complaint for complaint in browser.complaints())
    assert "http://127.0.0.1:9/x.png" in browser.requests()
    assert browser.evaluate("document.documentElement.scrollWidth") > 360


def test_the_policy_stops_what_would_be_injected(browser, reports, tmp_path):
    page = reports["run"].read_text()
    bad = tmp_path / "bad.html"
    bad.write_text(page.replace("</main>", '<script>window.x = 1</script><img src="http://127.0.0.1:9/x.png"></main>'))
    browser.open(bad.as_uri(), width=1280)
    assert browser.evaluate("window.x === undefined")
    assert sum("Content Security Policy" in complaint for complaint in browser.complaints()) == 2


def rgb(colour: str) -> str:
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgb({red}, {green}, {blue})"
