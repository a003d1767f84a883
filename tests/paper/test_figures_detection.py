"""Figures 5 and 7: scores and statistics against formulas, SciPy and a run of the library."""

import math
import os

import numpy as np
import pytest
import torch
from torch.distributions import Normal, kl_divergence

from frcl import FRCL, MLP, BoundaryDetector, TaskError
from frcl.data.files import MNIST, OMNIGLOT
from frcl.experiment import runner
from frcl.experiment.keeper import Observer
from frcl.report.drawing import style
from paper.cells import Cell
from paper.figures import detection
from paper.figures.base import make_figure
from paper.figures.detection import FIGURES, THRESHOLDS, VARIANTS, Variant, add_scores, told_stream
from paper.figures.draw_detection import draw_figure_5, draw_figure_7, good_thresholds, mean_scores
from paper.figures.sheets import Rows, read_sheet
from paper.measure import Place

FIGURE_5, FIGURE_7 = FIGURES
SMALL = {"stream": {"tasks": 3}, "learner": {"steps": 30, "points": 10, "search_steps": 20}}


def at_hand(*files) -> bool:
    return bool(os.environ.get("FRCL_DATA")) and all(file.find(None).verified for file in files)


@pytest.fixture
def on_digits(monkeypatch, tmp_path) -> Place:
    """Both figures at a small size, on data that needs no download."""
    for name, value in {
        "PERMUTED": "permuted-digits",
        "OMNIGLOT": "permuted-digits",
        "QUICK_PERMUTATIONS": SMALL,
        "QUICK_ALPHABETS": SMALL,
    }.items():
        monkeypatch.setattr(detection, name, value)
    monkeypatch.setitem(detection.STREAMS, "permuted-digits", detection.STREAMS["permuted-mnist"])
    return Place(tmp_path / "results", tmp_path / "runs", quick=True)


def digits_config(place: Place, **layer):
    layers = (detection.STREAMS["permuted-mnist"], SMALL, layer)
    return place.config(Cell("figure", "permuted-digits", "", layers, (0,)), [0])


# -- the score that the learner gives -----------------------------------------------------------------------------


def test_familiarity_is_the_symmetrised_divergence_from_the_prior(generator):
    x, y = torch.randn(64, 5, generator=generator), torch.arange(64) % 3
    learner = FRCL(MLP(5, (8, 6), seed=2), 4, prior_std=2.0**0.5, initial_std=0.7)
    with pytest.raises(TaskError, match="no task is open"):
        learner.familiarity(x)
    for _ in range(5):
        learner.observe(x, y)
    before = learner.state_dict()
    found = learner.familiarity(x)
    after = learner.state_dict()
    assert before["meta"] == after["meta"]
    assert all(torch.equal(before["tensors"][name], after["tensors"][name]) for name in before["tensors"])
    believed = learner.predict(x, task=0)
    outputs = learner.feature_scale * learner.net(x).detach().double()
    Phi = torch.cat([outputs, outputs.new_ones(64, 1)], 1)
    prior = Normal(0.0, (2.0 * Phi.square().sum(1)).sqrt()[:, None])
    q = Normal(believed.mean.double(), believed.variance.double().sqrt())
    expected = 0.5 * (kl_divergence(q, prior) + kl_divergence(prior, q))
    assert found.shape == (64, 3)
    assert torch.allclose(found.double(), expected, rtol=1e-4, atol=1e-7)


# -- Figure 5 -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_figure_5_is_the_stream_of_a_run(on_digits, tmp_path, monkeypatch):
    """The statistic and the switches are those of `frcl run --hidden-boundaries`, the score that of its learner."""
    numbers = detection.measure_figure_5(on_digits)
    config = digits_config(on_digits, hidden_boundaries=True, detector={"threshold": 5.0})
    result = runner.run(config, tmp_path / "run", Observer()).boundaries
    stream = numbers.where(kind="minibatch")
    tested = {step: value for step, value in enumerate(stream.floats("statistic")) if not math.isnan(value)}
    assert list(tested) == list(result.statistic_step)
    assert list(tested.values()) == pytest.approx(result.statistic.tolist(), rel=1e-4, abs=1e-5)
    assert [int(step) for step in stream.where(found="1").column("step")] == list(result.found)
    assert len(result.found) > 0
    assert [int(step) for step in numbers.where(kind="task").column("step")] == [0, *result.true]
    score = stream.floats("score")
    assert math.isnan(score[0])
    assert np.isfinite(score[1:]).all()
    assert detection.measure_figure_5(on_digits) == numbers


def test_figure_5_scores_before_the_step(on_digits, monkeypatch):
    """The score is the mean over inputs and functions, under the task that is open before the minibatch."""
    calls = []
    familiarity, observe = FRCL.familiarity, FRCL.observe

    def scored(self, x):
        found = familiarity(self, x)
        calls.append(("score", len(self.tasks), self.step, float(found.double().sum()) / found.numel()))
        return found

    def observed(self, x, y):
        calls.append(("step", len(self.tasks), self.step, math.nan))
        return observe(self, x, y)

    monkeypatch.setattr(FRCL, "familiarity", scored)
    monkeypatch.setattr(FRCL, "observe", observed)
    numbers = detection.measure_figure_5(on_digits)
    assert [kind for kind, *_ in calls] == ["step", *["score", "step"] * 89]
    scores, steps = calls[1::2], calls[2::2]
    assert [call[1:3] for call in scores] == [call[1:3] for call in steps]
    assert numbers.where(kind="minibatch").floats("score")[1:] == pytest.approx([call[3] for call in scores], rel=1e-4)


def test_the_words_of_figure_5(on_digits):
    rows = Rows({"threshold": 5.0, "steps": 3, "batch": 4}, "step", "score", "statistic", "found")
    for name, step in (("Greek", 0), ("Old Church Slavonic (Cyrillic)", 3)):
        rows.add("task", name=name, step=step)
    for step, statistic in enumerate((math.nan, 1.0, 2.0, 7.25, math.nan, 0.5)):
        rows.add("minibatch", step=step, score=1.0, statistic=statistic, found=int(statistic > 5))
    with style():
        drawing = draw_figure_5(rows.sheet())
    assert drawing.text.endswith("True switches at 3; found at 3.")


# -- Figure 7 -----------------------------------------------------------------------------------------------------


def test_statistics_of_all_variants_are_those_of_scipy(on_digits, monkeypatch):
    from scipy.stats import ttest_ind

    kept, familiarity = [np.empty(0)], FRCL.familiarity

    def scored(self, x):
        found = familiarity(self, x)
        kept.append(found.double().numpy())
        return found

    monkeypatch.setattr(FRCL, "familiarity", scored)
    config = digits_config(on_digits)
    found = told_stream(runner.benchmark_of(config, 0), config, 0)
    combine = {"max": np.max, "median": np.median, "mean": np.mean}
    tested = [*range(21, 31), *range(41, 61), *range(71, 90)]  # not while it waits, after the begin or a switch
    assert set(found) == set(VARIANTS)
    for variant, statistic in found.items():
        assert [t for t, value in enumerate(statistic) if not math.isnan(value)] == tested
        for t in tested:
            old, new = (np.log(kept[at]) if variant.log_space else kept[at] for at in (t - 1, t))
            expected = combine[variant.aggregate](ttest_ind(old, new, axis=0, equal_var=False).statistic)
            assert statistic[t] == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_a_told_switch_is_scored_by_the_task_before_it(on_digits, monkeypatch):
    seen, familiarity = [], FRCL.familiarity

    def scored(self, x):
        seen.append((len(self.tasks), self.step))
        return familiarity(self, x)

    monkeypatch.setattr(FRCL, "familiarity", scored)
    config = digits_config(on_digits)
    told_stream(runner.benchmark_of(config, 0), config, 0)
    assert seen == [*((0, s) for s in range(1, 31)), *((1, s) for s in range(1, 31)), *((2, s) for s in range(1, 30))]


def test_scores_at_a_threshold_by_hand(on_digits):
    statistic = [math.nan] * 20 + [3.0] + [0.0] * 19 + [9.0] + [0.0] * 19 + [6.0] + [0.0] * 10
    rows = Rows({}, "aggregate", "space", "seed", "threshold", "precision", "recall", "f1")
    add_scores(rows, {"aggregate": "max", "space": "log", "seed": 0}, statistic, [40, 60], digits_config(on_digits))
    found = rows.sheet()

    def at(threshold: float) -> tuple[float, ...]:
        (row,) = found.where(threshold=f"{threshold:g}").rows
        return tuple(float(value) for value in row[-3:])

    assert at(2.0) == pytest.approx((2 / 3, 1.0, 0.8), abs=1e-6)
    assert at(5.0) == (1.0, 1.0, 1.0)
    assert at(7.0) == pytest.approx((1.0, 0.5, 2 / 3), abs=1e-6)
    assert at(9.0) == (0.0, 0.0, 0.0)


def test_means_over_seeds_and_the_longest_good_stretch():
    rows = Rows({}, "aggregate", "space", "seed", "threshold", "precision", "recall", "f1")
    for seed, f1 in ((0, 0.25), (1, 0.75)):
        rows.add("score", aggregate="max", space="log", seed=seed, threshold=5.0, precision=1.0, recall=f1, f1=f1)
        rows.add("score", aggregate="max", space="plain", seed=seed, threshold=5.0, precision=0.0, recall=0.0, f1=0.0)
    means = mean_scores(rows.sheet(), "log", "max")
    assert means == {"threshold": [5.0], "precision": [1.0], "recall": [0.5], "f1": [0.5]}
    assert good_thresholds([1, 2, 3, 4, 5, 6], [0.95, 0.9, 1.0, 0.96, 1.0, 0.94]) == (3, 5)
    assert good_thresholds([1, 2], [0.5, 0.94]) is None


def test_figure_7_has_all_that_is_drawn(on_digits):
    numbers = detection.measure_figure_7(on_digits)
    config = digits_config(on_digits)
    told = told_stream(runner.benchmark_of(config, 0), config, 0)
    for variant in VARIANTS:
        own = {"aggregate": variant.aggregate, "space": variant.space}
        switches = numbers.where(kind="switch", **own).floats("value")
        assert switches == pytest.approx([told[variant][30], told[variant][60]], rel=1e-5)
        rest = sorted(v for t, v in enumerate(told[variant]) if t not in (30, 60) and not math.isnan(v))
        spread = numbers.where(kind="elsewhere", **own)
        expected = [rest[math.floor(q * (len(rest) - 1))] for q in (0.05, 0.95, 1.0)]
        assert spread.floats("value") == pytest.approx(expected, rel=1e-5)
        assert numbers.where(kind="score", **own).floats("threshold") == list(THRESHOLDS)
    assert detection.measure_figure_7(on_digits) == numbers
    with style():
        drawing = draw_figure_7(numbers)
    assert "3 permutations, 30 minibatches" in drawing.caption


def test_a_variant_is_a_detector_that_is_only_told(on_digits):
    detector = Variant("mean", False).detector(digits_config(on_digits))
    own = BoundaryDetector(detection.NEVER).options()
    assert detector.options() == own | {"aggregate": "mean", "log_space": False}


# -- on real data ------------------------------------------------------------------------------------------------


@pytest.mark.real_data
@pytest.mark.skipif(not at_hand(*OMNIGLOT.compact), reason="FRCL_DATA names no folder with omniglot28.npz")
def test_quick_figure_5_on_omniglot(tmp_path):
    kept, *pictures = make_figure(FIGURE_5, Place(tmp_path / "results", tmp_path / "runs", quick=True))
    numbers = read_sheet(kept)
    assert len(numbers.where(kind="minibatch").rows) == 120
    assert len(numbers.where(kind="task").rows) == 3
    assert all(path.is_file() for path in pictures)


@pytest.mark.slow
@pytest.mark.real_data
@pytest.mark.skipif(not at_hand(*MNIST.files), reason="FRCL_DATA names no folder with the four MNIST files")
def test_quick_figure_7_on_mnist(tmp_path):
    kept, *pictures = make_figure(FIGURE_7, Place(tmp_path / "results", tmp_path / "runs", quick=True))
    assert len(read_sheet(kept).where(kind="switch").rows) == 2 * len(VARIANTS)
    assert all(path.is_file() for path in pictures)
