"""Figures show the numbers of the run, the right way round, and the same bytes each time."""

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest

from frcl.experiment.metrics import average_so_far, forgetting_by_task, spread
from frcl.experiment.results import Result
from frcl.report import figures, read_run, write_report
from frcl.report.drawing import LIGHT, Drawing, blank, inline_svg, name_in_figure, style
from frcl.report.figures import (
    as_images,
    boundary_figure,
    calibration_figure,
    contact_sheets,
    curves_figure,
    forgetting_figure,
    matrix_figure,
    sheet,
    terms_figure,
    time_figure,
    to_rgba,
)
from frcl.report.page import draw
from frcl.report.run import Run
from frcl.report.side_by_side import draw_together, metric_figure, progress_figure
from report_samples import SCRIPT, bare_run, digits_points, result, rich_run, write_run

NAN = float("nan")


@pytest.fixture
def run(tmp_path) -> Run:
    return read_run(rich_run(tmp_path / "run"))


def drawn(run: Run) -> list[Drawing]:
    return [drawing for section in draw(run)[0].values() for drawing in section]


def test_the_matrix_has_after_in_rows_and_on_in_columns():
    accuracy = np.array([[[0.91, NAN, NAN], [0.72, 0.93, NAN], [0.64, 0.85, 0.96]]])
    run = Run(Path(), Result("b", "m", (0,), ("a", "b", "c"), accuracy))
    with style():
        drawing = matrix_figure(run)
        axes, scale = drawing.figure.axes
        cells = {text.get_position(): text.get_text() for text in axes.texts}
        colours = {tuple(np.add(p.get_xy(), 0.47).round(6)): p.get_facecolor() for p in axes.patches}
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("on task", "after learning task")
    assert cells == {(0, 0): "91.0", (0, 1): "72.0", (1, 1): "93.0", (0, 2): "64.0", (1, 2): "85.0", (2, 2): "96.0"}
    assert axes.yaxis_inverted()
    assert not axes.xaxis_inverted()
    assert colours.keys() == cells.keys()
    assert colours[0, 2] != colours[1, 2]
    assert scale.get_ylim() == pytest.approx((60, 100))
    assert drawing.table is not None
    assert drawing.table.rows == (("a", "91.00", "", ""), ("b", "72.00", "93.00", ""), ("c", "64.00", "85.00", "96.00"))
    assert "a 64.0" in drawing.text


def test_curves_follow_columns_and_bands_are_one_standard_deviation(run):
    R = run.result.accuracy
    with style():
        drawing = curves_figure(run)
        (axes,) = drawing.figure.axes
        lines, bands = list(axes.lines), list(axes.collections)
    for task in range(5):
        np.testing.assert_allclose(lines[task].get_ydata(), R[:, task:, task].mean(0))
        assert lines[task].get_xdata().tolist() == list(range(task, 5))
    np.testing.assert_allclose(lines[5].get_ydata(), average_so_far(R).mean(0))
    vertices = bands[0].get_paths()[0].vertices
    at_end = vertices[vertices[:, 0] == 4][:, 1]
    mean, std = R[:, 4, 0].mean(), R[:, 4, 0].std(ddof=1)
    assert (at_end.min(), at_end.max()) == pytest.approx((mean - std, min(mean + std, 1)))
    assert drawing.table is not None
    assert drawing.table.rows[4][1] == f"{100 * mean:.2f} ± {100 * std:.2f}"


def test_one_seed_has_no_bands_and_one_task_no_forgetting(tmp_path):
    run = read_run(write_run(tmp_path / "run", result(seeds=1, tasks=["only"])))
    with style():
        (axes,) = curves_figure(run).figure.axes
        left_out = draw(run)[1]
        names = [drawing.name for drawing in drawn(run)]
    assert len(axes.collections) == 0
    assert "forgetting" not in names
    assert "Forgetting by task: there is one task only." in left_out


def test_accuracy_ticks_say_their_true_value(tmp_path):
    run = read_run(bare_run(tmp_path / "run"))
    with style():
        (axes,) = curves_figure(run).figure.axes
        ticks = axes.get_yticks()
        shown = [axes.yaxis.get_major_formatter()(tick) for tick in ticks]
    assert len(ticks) > 3
    assert [float(text.rstrip("%")) for text in shown] == pytest.approx(100 * ticks)


def test_regression_shows_variance_explained_below_zero(tmp_path):
    content = result(loss=0.4) | {"score": "r2"}
    content["accuracy"][0][4][0] = -0.6
    run = read_run(write_run(tmp_path / "run", content))
    with style():
        (axes,) = curves_figure(run).figure.axes
        matrix = matrix_figure(run).figure.axes
    assert axes.get_ylabel() == "R²"
    assert axes.get_ylim()[0] < -0.6
    assert matrix[1].get_ylabel() == "R², %"


def test_forgetting_bars_and_dots(run):
    lost = forgetting_by_task(run.result.accuracy)
    with style():
        (axes,) = forgetting_figure(run).figure.axes
        widths = [patch.get_width() for patch in axes.patches]
        dots = [line.get_xdata() for line in axes.lines[:3]]
    np.testing.assert_allclose(widths, 100 * lost.mean(0))
    np.testing.assert_allclose(dots, 100 * lost)


def test_time_adds_up(run):
    with style():
        drawing = time_figure(run)
        (axes,) = drawing.figure.axes
        widths = [patch.get_width() for patch in axes.patches]
    np.testing.assert_allclose(widths, np.array([31.42, 6.1, 1.25, 40.5 - 38.77]) / 40.5)
    assert drawing.table is not None
    assert [row[0] for row in drawing.table.rows] == ["training", "choosing points", "evaluation", "the rest"]


def test_boundaries_show_true_found_and_threshold(run):
    with style():
        drawing = boundary_figure(run)
        (axes,) = drawing.figure.axes
        lines = {line.get_label(): line for line in axes.lines}
        true = [line.get_xdata()[0] for line in axes.lines if line.get_linewidth() == 6]
    assert true == [400, 800, 1200, 1600]
    assert lines["found switch"].get_xdata().tolist() == [400, 800, 1200]
    assert list(lines["threshold 5"].get_ydata()) == [5.0, 5.0]
    np.testing.assert_array_equal(lines["statistic"].get_ydata(), run.result.boundaries.statistic)
    assert "400, 800, 1,200, 1,600; found 3 switches at steps 400, 800, 1,200" in drawing.text
    assert "over seeds: precision 0.750, recall 0.750, f1 0.750." in drawing.caption
    assert drawing.table is not None
    assert drawing.table.rows[1] == ("5", "1.000", "0.750", "0.857", "0.0")
    assert drawing.table.rows[2] == ("25", "0.000", "0.000", "0.000", "–")


def test_calibration_shows_filled_bins_only(run):
    with style():
        axes, counts = calibration_figure(run).figure.axes
        curve = axes.lines[1]
        heights = [patch.get_height() for patch in counts.patches]
    np.testing.assert_array_equal(curve.get_xdata(), run.result.calibration.confidence[5:])
    np.testing.assert_array_equal(curve.get_ydata(), run.result.calibration.accuracy[5:])
    np.testing.assert_allclose(heights, 100 * np.array(run.result.calibration.count) / 2690)


def test_training_terms_are_drawn_with_the_sign_of_the_loss(run):
    with style():
        drawing = terms_figure(run)
        lines = {line.get_label(): line.get_ydata() for axes in drawing.figure.axes for line in axes.lines}
    np.testing.assert_allclose(lines["loss"], lines["−log-likelihood"] + lines["KL now"] + lines["KL past"])
    assert lines["−log-likelihood"].min() > 0
    assert drawing.table is not None
    assert drawing.table.rows[0][1] == f"{run.result.steps.loss[39]:.4f}"  # the last logged step of the first task


def test_a_method_without_kl_has_one_panel_and_a_negative_loss_no_logarithm(tmp_path):
    content = result()
    log = content["steps"]
    log |= {
        "kl_now": [0.0] * len(log["step"]),
        "kl_past": [None] * len(log["step"]),
        "loss": [value - 1 for value in log["loss"]],
    }
    run = read_run(write_run(tmp_path / "run", content))
    with style():
        (axes,) = terms_figure(run).figure.axes
    assert axes.get_yscale() == "linear"
    assert [line.get_label() for line in axes.lines] == ["loss", "−log-likelihood"]


def test_a_logarithmic_axis_has_plain_numbers(run):
    with style():
        svg = inline_svg(terms_figure(run))
    assert ">0.1<" in svg
    assert "mathdefault" not in svg


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((7, 64), (7, 8, 8)), ((7, 28, 28), (7, 28, 28)), ((7, 1, 28, 28), (7, 28, 28)), ((7, 3, 9, 9), (7, 9, 9, 3)),
     ((7, 2, 9, 9), (7, 9, 9)), ((7, 4), None), ((7, 63), None), ((7, 5, 6), None)],
)  # fmt: skip
def test_what_is_an_image(shape, expected):
    images = as_images(np.zeros(shape))
    assert (None if images is None else images.shape) == expected


def test_flat_images_keep_their_order():
    image = np.arange(64.0).reshape(1, 64)
    found = as_images(image)
    assert found is not None
    assert found[0, 3, 5] == 3 * 8 + 5


def test_a_sheet_holds_every_image_in_rows_of_ten():
    images = np.arange(1.0, 13.0)[:, None, None] * np.ones((12, 8, 8))
    found = sheet(images)
    assert found.shape == (2 * 9 - 1, 10 * 9 - 1)
    assert (found[:8, 9:17] == 2).all()  # the second image
    assert (found[9:, 9:17] == 12).all()  # the twelfth, second in the second row
    assert np.isnan(found[8]).all()
    assert np.isnan(found[9:, 18:]).all()


def test_ink_is_dark_and_what_is_between_is_clear():
    pixels = to_rgba(np.array([[0.0, 1.0, NAN]]))
    assert pixels[0, :, :3].max() == 0
    assert pixels[0, 0, 3] < 20
    assert pixels[0, 1, 3] == 255
    assert pixels[0, 2, 3] == 0


def test_at_most_forty_images_of_a_task_are_shown(tmp_path):
    run = read_run(write_run(tmp_path / "run", result(), digits_points(5, 60)))
    found = contact_sheets(run)
    assert [each.task for each in found] == list(run.result.tasks)
    assert [each.caption for each in found] == ["60 images of 8×8, the first 40 shown"] * 5
    assert [each.pixels.shape for each in found] == [(4 * 9 - 1, 10 * 9 - 1, 4)] * 5


def test_points_that_are_no_images_are_left_out_and_said(tmp_path):
    run = read_run(write_run(tmp_path / "run", result(), {"task_0": np.zeros((3, 7))}))
    assert contact_sheets(run) == []
    with style():
        assert "Inducing images: the inputs kept are not images." in draw(run)[1]


def test_what_a_poor_run_lacks_is_said(tmp_path):
    run = read_run(bare_run(tmp_path / "run"))
    with style():
        left_out = draw(run)[1]
        names = [drawing.name for drawing in drawn(run)]
    assert names == ["accuracy-matrix", "accuracy-curves", "forgetting", "time"]
    assert [reason.partition(":")[0] for reason in left_out] == [
        "Accuracy without the task",
        "Calibration",
        "Inducing images",
        "Task switches",
        "Training terms",
    ]


@pytest.mark.slow
def test_figure_files_are_png_and_svg_and_the_same_each_time(run, tmp_path):
    for name in ("one", "two"):
        write_report([run], tmp_path / "report.html", figures=tmp_path / name)
    first, second = (sorted((tmp_path / name).iterdir()) for name in ("one", "two"))
    names = ["accuracy-matrix", "no-task-matrix", "accuracy-curves", "forgetting", "calibration", "boundaries"]
    names += ["training-terms", "time", "inducing-images"]
    assert [path.name for path in first] == sorted(f"{name}.{kind}" for name in names for kind in ("png", "svg"))
    for one, two in zip(first, second, strict=True):
        content = one.read_bytes()
        assert content == two.read_bytes()
        if one.suffix == ".png":
            assert content.startswith(b"\x89PNG\r\n\x1a\n")
        else:
            assert ElementTree.fromstring(content).tag == "{http://www.w3.org/2000/svg}svg"
            assert b"date" not in content.lower()
            assert b"alert(1)" not in re.sub(rb"<!--.*?-->", b"", content)  # text is drawn as shapes


def test_inline_svg_is_themed_and_has_ids_of_its_own(run):
    with style():
        drawings = [one for one in drawn(run) if one.name != "inducing-images"]  # the page shows the sheets
        figures = {drawing.name: inline_svg(drawing) for drawing in drawings}
    colours = set(LIGHT.values())
    seen: set[str] = set()
    for name, svg in figures.items():
        root = ElementTree.fromstring(svg.replace("<svg ", '<svg xmlns:xlink="http://www.w3.org/1999/xlink" ', 1))
        ids = [node.get("id") for node in root.iter() if node.get("id")]
        assert all(each is not None and each.startswith(f"{name}-") for each in ids)
        assert len(ids) == len(set(ids))
        assert not seen & set(ids)
        seen |= set(ids)
        for reference in re.findall(r'(?:url\(#|href="#)([^)"]+)', svg):
            assert reference in ids
        left = set(re.findall(r"#[0-9a-f]{6}\b", "".join(re.findall(r"<[^>]+>", svg))))
        assert not left & colours
        assert left <= {"#000000"}
        assert "<style" not in svg
        assert "DejaVu" not in svg


HOSTILE = ["</svg><script>x", "$\\frac{1", "_hidden", "", 'id="a" #0b6fb8', "日本語\n\t\x00\ud800"]


def test_hostile_names_are_drawn_as_text(tmp_path):
    run = read_run(write_run(tmp_path / "run", result(tasks=HOSTILE)))
    with style():
        alone = len(drawn(run))
        drawings = [*drawn(run), *draw_together([(run, HOSTILE[0]), (run, HOSTILE[1])])]
        for drawing in drawings:
            svg = inline_svg(drawing)
            assert "<script" not in svg
            assert svg.count("</svg>") == 1
        legend = inline_svg(drawings[1])
    for shown in ("&lt;/svg&gt;&lt;script", "$\\frac{1", "_hidden", 'id="a" #0b6fb8'):
        assert shown in legend
    write_report([run], tmp_path / "r.html", figures=tmp_path / "figures")
    assert len(list((tmp_path / "figures").iterdir())) == 2 * alone


def test_names_fit_to_be_drawn():
    assert name_in_figure(SCRIPT) == "<script>alert(1)<…"
    assert name_in_figure("_x") == " _x"
    assert name_in_figure("a\nb") == "a b"
    assert name_in_figure("") == "?"


def test_fifty_tasks_are_drawn_without_names_in_the_way(tmp_path):
    tasks = [f"Alphabet of {number}" for number in range(50)]
    run = read_run(write_run(tmp_path / "run", result(tasks=tasks, loss=0.001)))
    with style():
        matrix, curves = matrix_figure(run), curves_figure(run)
        assert len(matrix.figure.axes[0].patches) == 50 * 51 // 2
        assert len(matrix.figure.axes[0].texts) == 0
        assert [tick.get_text() for tick in matrix.figure.axes[0].get_xticklabels()][:3] == ["1", "6", "11"]
        assert len(curves.figure.axes[0].collections) == 1  # one band, of the average
    assert len(matrix.text) < 700


def test_side_by_side_figures_show_each_run(tmp_path):
    one, two = read_run(rich_run(tmp_path / "a")), read_run(bare_run(tmp_path / "b"))
    with style():
        progress = progress_figure([(one, "one"), (two, "two")])
        lines = {line.get_label(): line.get_ydata() for line in progress.figure.axes[0].lines}
        names = [drawing.name for drawing in draw_together([(one, "one"), (two, "two")])]
        without = metric_figure([(two, "two")], "nll")
        accuracy = metric_figure([(one, "one"), (two, "two")], "average_accuracy")
    np.testing.assert_allclose(lines["two"], average_so_far(two.result.accuracy).mean(0))
    assert names == ["average-accuracy", "progress", "forgetting", "calibration", "memory"]
    assert without is None
    assert accuracy is not None
    assert accuracy.table is not None
    metric = two.result.average_accuracy
    assert accuracy.table.rows[1][:2] == ("two", f"{100 * metric.mean:.2f}")


def test_drawing_leaves_the_plotting_library_as_it_was(run, global_random_state_untouched):
    import matplotlib

    before = dict(matplotlib.rcParams)
    with style():
        for drawing in drawn(run):
            inline_svg(drawing)
    assert dict(matplotlib.rcParams) == before


def test_every_figure_is_drawn_once_for_the_page_and_for_the_files(run, tmp_path, monkeypatch):
    drawn = []

    def counted(*given, **options):
        drawn.append(given)
        return blank(*given, **options)

    monkeypatch.setattr(figures, "blank", counted)
    write_report([run], tmp_path / "report.html", figures=tmp_path / "figures")
    assert len(drawn) == len(list((tmp_path / "figures").glob("*.png"))) == 9


def test_a_band_stays_between_0_and_100_percent():
    accuracy = np.array([[[1.0]], [[0.96]], [[1.0]]])
    low = np.array([[[0.0]], [[0.03]], [[0.0]]])
    for values, bound, at in ((accuracy, 1.0, max), (low, 0.0, min)):
        axes = SimpleNamespace(plot=lambda *_, **__: None, fill_between=Mock())
        mean, std = spread(values[:, :, 0])
        figures.line_with_band(axes, [0], mean, std, "accuracy", color="#000000")
        _, *edges = axes.fill_between.call_args.args
        assert at(float(edge[0]) for edge in edges) == bound
