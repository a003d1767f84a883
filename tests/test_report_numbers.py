"""Derived numbers against other ways to get them, labels, units and colours."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from frcl.experiment.metrics import Interval, average_so_far, forgetting_by_task, over_seeds, spread
from frcl.learners.types import plural
from frcl.report import comparison_rows, read_run
from frcl.report.drawing import DARK, HEAT_LEVELS, LIGHT, SERIES, heat
from frcl.report.figures import thin_by_peaks
from frcl.report.numbers import duration, interval, mean_and_std, number, percent, size
from frcl.report.run import differing_options, flat, run_labels
from report_samples import bare_run, result, rich_run, write_run

NAN = float("nan")


def changed(run, **parts):
    return replace(run, result=replace(run.result, **parts))


MATRIX = np.array([[[0.9, NAN, NAN], [0.7, 0.95, NAN], [0.8, 0.6, 0.99]]])  # one seed, not symmetric


def test_the_average_so_far_is_the_mean_of_a_row():
    np.testing.assert_allclose(average_so_far(MATRIX), [[0.9, (0.7 + 0.95) / 2, (0.8 + 0.6 + 0.99) / 3]])


def test_forgetting_is_from_the_best_before_the_end():
    np.testing.assert_allclose(forgetting_by_task(MATRIX), [[0.9 - 0.8, 0.95 - 0.6]])
    assert forgetting_by_task(np.array([[[0.9]], [[0.8]]])).shape == (2, 0)


def test_forgetting_can_be_a_gain():
    matrix = np.array([[[0.5, NAN], [0.8, 0.9]]])
    np.testing.assert_allclose(forgetting_by_task(matrix), [[-0.3]])


def test_spread_is_the_sample_standard_deviation():
    values = np.array([[1.0, 4.0], [2.0, 4.0], [4.0, 4.0]])
    mean, std = spread(values)
    np.testing.assert_allclose(mean, [7 / 3, 4.0])
    np.testing.assert_allclose(std, [np.sqrt(((1 - 7 / 3) ** 2 + (2 - 7 / 3) ** 2 + (4 - 7 / 3) ** 2) / 2), 0])
    assert spread(values[:1])[1] is None


@pytest.mark.parametrize("n", [2, 3, 10])
def test_the_paired_interval_is_that_of_a_paired_t_test(n):
    rng = np.random.default_rng(n)
    first, second = rng.uniform(0.8, 1, n), rng.uniform(0.7, 0.9, n)
    expected = stats.ttest_rel(first, second).confidence_interval(0.95)
    found = over_seeds(first - second)
    assert found.mean == pytest.approx((first - second).mean(), rel=1e-12)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), rel=1e-10)


def test_one_pair_gives_no_interval():
    assert over_seeds([0.2]) == Interval(0.2, None, None, None, (0.2,))


def test_thinning_keeps_every_peak_where_it_is():
    values = np.zeros(10_000)
    values[[17, 4_321, 9_999]] = 5.0, 9.0, 7.0
    values[100:200] = NAN
    position, kept = thin_by_peaks(np.arange(10_000.0), values, 100)
    assert len(kept) == 100
    assert [(p, v) for p, v in zip(position, kept, strict=True) if v > 0] == [(17, 5.0), (4_321, 9.0), (9_999, 7.0)]
    assert thin_by_peaks(position, kept, 100)[1] is kept


def test_comparison_pairs_only_common_seeds_of_one_benchmark(tmp_path):
    first, second = read_run(rich_run(tmp_path / "a")), read_run(bare_run(tmp_path / "b"))
    other = read_run(write_run(tmp_path / "c", result("replay", "permuted-digits")))
    shifted = changed(second, seeds=(2, 7, 0))  # in another order, and one of its own
    comparison = comparison_rows([first, shifted, other])
    (pair,) = comparison.pairs
    ours, theirs = (run.result.average_accuracy.per_seed for run in (first, shifted))
    expected = stats.ttest_rel([ours[0], ours[2]], [theirs[2], theirs[0]]).confidence_interval(0.95)
    assert (pair.first, pair.second, pair.seeds) == ("frcl", "ewc", (0, 2))
    assert (pair.difference.low, pair.difference.high) == pytest.approx((expected.low, expected.high), rel=1e-10)
    assert (pair.memory_first, pair.memory_second) == (261_700, 91_200)
    assert [row.seeds for row in comparison.rows] == [3, 3, 3]
    assert [row.seconds for row in comparison.rows] == [40.5] * 3
    assert comparison.rows[1].metrics["nll"] is None


def test_without_recorded_averages_the_matrix_gives_them(tmp_path):
    runs = [read_run(rich_run(tmp_path / "a")), read_run(bare_run(tmp_path / "b"))]
    bare = [changed(run, average_accuracy=None) for run in runs]
    recorded, computed = comparison_rows(runs).pairs[0], comparison_rows(bare).pairs[0]
    assert computed.difference == recorded.difference
    ours, theirs = (run.result.average_accuracy.per_seed for run in runs)
    expected = [a - b for a, b in zip(ours, theirs, strict=True)]
    assert recorded.difference.per_seed == pytest.approx(expected, rel=1e-10)


def test_with_the_headline_without_the_task_pairs_are_without_it(tmp_path):
    runs = [read_run(rich_run(tmp_path / "a")), read_run(bare_run(tmp_path / "b"))]
    runs = [
        changed(run, agnostic=run.result.accuracy - shift, config={**run.result.config, "scenario": "class"})
        for run, shift in zip(runs, (0.1, 0.3), strict=True)
    ]
    (pair,) = comparison_rows(runs).pairs
    ours, theirs = (np.array(run.result.average_accuracy.per_seed) for run in runs)
    assert pair.second == "ewc, no task"
    assert pair.difference.per_seed == pytest.approx((ours - theirs + 0.2).tolist(), rel=1e-10)
    mixed = comparison_rows([runs[0], changed(runs[1], config={})]).pairs[0]
    assert mixed.second == "ewc"


def test_no_common_seed_no_pair(tmp_path):
    first, second = read_run(rich_run(tmp_path / "a")), read_run(bare_run(tmp_path / "b"))
    assert comparison_rows([first, changed(second, seeds=(5, 6, 7))]).pairs == ()


def test_labels_tell_runs_apart_by_what_differs(tmp_path):
    few = read_run(write_run(tmp_path / "few", result(points=10)))
    many = read_run(write_run(tmp_path / "many", result(points=40)))
    other = read_run(bare_run(tmp_path / "other"))
    assert run_labels([few, other]) == ["frcl", "ewc"]
    assert run_labels([few, many, other]) == ["frcl points=10", "frcl points=40", "ewc"]
    assert differing_options([few, many]) == ["method.points"]
    other_options = changed(many, config={**many.result.config, "steps": 1, "seeds": 2})
    assert run_labels([few, other_options, other]) == ["frcl (few)", "frcl (many)", "ewc"]
    assert run_labels([few, replace(few, folder=Path("x/second"))]) == ["frcl (few)", "frcl (second)"]
    assert run_labels([few, few]) == ["frcl (few) (1)", "frcl (few) (2)"]


def test_the_interval_of_an_accuracy_stays_between_0_and_100_percent(tmp_path):
    run = read_run(rich_run(tmp_path / "run"))
    near_one, near_zero = over_seeds([0.999, 1.0, 0.97]), over_seeds([0.0, 0.001, 0.03])
    assert near_one.high > 1
    assert near_zero.low < 0
    for key in ("average_accuracy", "accuracy_after_learning", "ece"):
        high, low = (changed(run, **{key: metric}).result.metric(key) for metric in (near_one, near_zero))
        assert interval(high, "percent").endswith(" to 100.00")
        assert interval(low, "percent").startswith("0.00 to ")
        assert (high.mean, high.std, high.low) == (near_one.mean, near_one.std, near_one.low)
    written = changed(run, average_accuracy=near_one).result.to_json()
    assert written["average_accuracy"]["high"] == 1.0
    negative = over_seeds([-0.5, -0.1, 0.9])
    explained = changed(run, score="r2", average_accuracy=negative).result
    assert explained.average_accuracy == replace(negative, high=1.0)  # R² has no lower bound


def test_options_are_flattened_by_dotted_name():
    assert flat({"a": {"b": 1, "c": {"d": [2]}}, "e": {}}) == {"a.b": 1, "a.c.d": [2], "e": {}}


def test_numbers_as_people_read_them():
    assert number(-0.004, 2) == "0.00"
    assert number(-1.005, 1) == "−1.0"
    assert number(NAN, 2) == number(None, 2) == "–"
    assert percent(0.97126) == "97.13\N{NO-BREAK SPACE}%"
    assert [size(n) for n in (0, 999, 1_000, 52_340, 999_700, 412_300_100)] == [
        text.replace(" ", "\N{NO-BREAK SPACE}") for text in ("0 B", "999 B", "1.0 kB", "52.3 kB", "1.0 MB", "412 MB")
    ]
    shown = [duration(s).replace("\N{NO-BREAK SPACE}", " ") for s in (0.034, 1.25, 40.5, 99.96, 245, 3599.7, 7380)]
    assert shown == ["0.03 s", "1.2 s", "40.5 s", "1 min 40 s", "4 min 05 s", "1 h 00 min", "2 h 03 min"]
    assert (plural(1, "seed"), plural(1200, "step")) == ("1 seed", "1,200 steps")
    metric = Interval(0.97124, 0.0031, 0.96, 0.982)
    assert mean_and_std(metric, "percent") == "97.12 ± 0.31"
    assert interval(metric, "percent") == "96.00 to 98.20"
    assert mean_and_std(Interval(0.97124), "plain") == "0.9712"
    assert mean_and_std(None, "plain") == interval(None, "plain") == "not available"


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_colours_have_contrast(theme):
    for ground in ("card", "page"):
        for text in ("ink", "muted", "accent"):
            assert contrast(theme[text], theme[ground]) >= 4.5
    for number_of in range(SERIES):
        assert contrast(theme[f"series-{number_of}"], theme["card"]) >= 3
    for level in range(HEAT_LEVELS):
        assert contrast(theme[f"order-{level}"], theme["card"]) >= 3
        assert contrast(theme[f"on-heat-{level}"], theme[f"heat-{level}"]) >= 4.5


def test_contrast_is_that_of_the_standard():
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.005)  # a well-known near miss


def test_every_role_has_one_colour_of_its_own_in_the_light_and_one_in_the_dark():
    assert LIGHT.keys() == DARK.keys()
    assert len(set(LIGHT.values())) == len(LIGHT)


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_the_colours_differ_for_colour_blind_eyes(theme):
    """Machado, Oliveira and Fernandes (2009), severity 1; distance in CIELAB, where 2.3 is just noticeable."""
    eyes = {
        "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
        "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    }
    for matrix in eyes.values():
        seen = [_lab(np.clip(np.array(matrix) @ _linear(theme[f"series-{n}"]), 0, 1)) for n in range(SERIES)]
        closest = min(np.linalg.norm(a - b) for i, a in enumerate(seen) for b in seen[:i])
        assert closest > 12


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_the_heat_scale_goes_one_way_in_lightness(theme):
    lightness = [_lab(_linear(theme[f"heat-{level}"]))[0] for level in range(HEAT_LEVELS)]
    steps = np.diff(lightness)
    assert (steps > 3).all() or (steps < -3).all()
    assert heat(0.0)[0] == LIGHT["heat-0"]
    assert heat(1.0)[0] == LIGHT[f"heat-{HEAT_LEVELS - 1}"]


def contrast(first: str, second: str) -> float:
    """Contrast ratio of two colours as WCAG 2 defines it, 1 to 21."""
    dim, bright = sorted(float(np.array([0.2126, 0.7152, 0.0722]) @ _linear(colour)) for colour in (first, second))
    return (bright + 0.05) / (dim + 0.05)


def _linear(colour: str) -> np.ndarray:
    parts = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def _lab(linear: np.ndarray) -> np.ndarray:
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    ratio = to_xyz @ linear / np.array([0.9505, 1.0, 1.089])
    f = np.where(ratio > 0.008856, np.cbrt(ratio), 7.787 * ratio + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])
