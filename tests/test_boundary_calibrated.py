"""The calibrated test: its parts against their definitions, its run length, and the changes that it finds."""

import importlib.util
import math
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
import torch

from frcl import BoundaryDetector, CheckpointError, OptionError
from frcl.boundary import sequential
from frcl.boundary.sequential import SequentialTest, log_run_length, p_value, upper_tail

D = torch.float64
TOOL = Path(__file__).parent.parent / "tools" / "run_length.py"


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("run_length", TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def minibatches(count: int, generator: torch.Generator, B: int = 64, level=lambda t: 0.0) -> list[torch.Tensor]:
    """Log-scores of standard deviation 1 around a level, as scores [B]."""
    return [torch.exp(level(t) + torch.randn(B, generator=generator, dtype=D)) for t in range(count)]


# -- parts -----------------------------------------------------------------------------------------------------


def test_the_trend_is_the_weighted_least_squares_line(generator):
    values = np.random.default_rng(0).standard_normal((40, 2, 3)).cumsum(0)
    test = SequentialTest(2, 3)
    weights = np.zeros(0)
    for t, mean in enumerate(values):
        memory = min(max(t / sequential.TREND_SHARE, sequential.TREND_LEAST), sequential.TREND_MOST)
        weights = np.append(weights * (1 - 1 / memory), 1.0)
        test._follow(mean, np.ones(2))
    time = np.arange(40) - 39.0
    X = np.stack([np.ones(40), time], 1)
    coefficients = np.linalg.solve(X.T @ (weights[:, None] * X), X.T @ (weights[:, None] * values.reshape(40, 6)))
    np.testing.assert_allclose(test._line().value, coefficients.sum(0).reshape(2, 3), rtol=1e-9)
    np.testing.assert_allclose(test._line().gradient, coefficients[1].reshape(2, 3), rtol=1e-7)


def test_the_dependence_solves_the_yule_walker_equations():
    test = SequentialTest(1)
    test.products, test.falls = np.array([[2.0], [1.0], [0.8]]), 10**9
    expected = np.linalg.solve(np.array([[2.0, 1.0], [1.0, 2.0]]), np.array([1.0, 0.8]))
    np.testing.assert_allclose(test._dependence()[:, 0], expected, rtol=1e-6)


def test_a_rank_is_uniform_and_the_tail_beyond_it_heavy():
    rng = np.random.default_rng(1)
    history, x = rng.standard_t(4, (4000, 200)), rng.standard_t(4, 4000)
    assert scipy.stats.kstest(upper_tail(history, x), "uniform").pvalue > 0.01
    one = history[:1]
    k = 5
    top = np.sort(one[0])[-k:]
    scale = (top - top[0]).sum() / (k - 1)
    expected = k / 201 * (1 + 0.5 * (50.0 - top[0]) / scale) ** -2
    assert upper_tail(one, np.array([50.0]))[0] == pytest.approx(expected)
    far = upper_tail(np.repeat(one, 2, 0), np.array([1e3, 2e3]))
    assert far[1] / far[0] == pytest.approx(0.25, rel=0.05), "p falls as the square of the distance"


def test_a_p_value_is_not_made_small_by_a_drifting_history():
    rng = np.random.default_rng(2)
    x = np.array([0.1])
    rising, falling = (rng.standard_normal((1, 100)) + shift for shift in (-8.0, 8.0))
    assert upper_tail(rising, x)[0] < 0.01
    assert p_value(rising, x)[0] > 0.4, "scores that rose before, and do so no longer, have not fallen"
    assert p_value(falling, np.array([8.0]))[0] > 0.3, "scores fall as they always did"
    assert p_value(1e-3 * rng.standard_normal((1, 100)), np.array([0.5]))[0] > 0.2, (
        "less than chance within minibatches"
    )


def test_the_statistic_is_the_largest_normalised_sum():
    rng = np.random.default_rng(3)
    test = SequentialTest(1)
    g = rng.standard_normal(150)
    test.scores, test.tested = g[None, -128:].copy(), 150
    test.sum_variance[0] = np.array(sequential.NULL_VARIANCE) * (1.0, 2.0, 0.5, 1.0, 3.0, 1.0, 1.0)
    inflation = dict(zip(sequential.WINDOWS, (1.0, 2.0, 1.0, 1.0, 3.0, 1.0, 1.0), strict=True))
    expected = max(g[-w:].sum() / math.sqrt(w * inflation[w]) for w in sequential.WINDOWS)
    before = test.sum_variance.copy()
    assert test._largest_sum()[0] == pytest.approx(expected)
    moved = (g[-8:-4].sum() ** 2 / 4 - before[0, 2]) / min(500 + 150, sequential.SUM_MEMORY)
    assert test.sum_variance[0, 2] - before[0, 2] == pytest.approx(moved), "the variance learns from the window before"


@pytest.mark.parametrize("far", [1, 4, 50])
def test_examples_that_are_far_off_are_judged_by_a_t_test_of_their_minibatch(far):
    """One of a hundred has t = 1, however far off it is; half of them have t = 10."""
    B, test = 100, SequentialTest()
    for _ in range(60):
        test.update(np.zeros((1, 1)), np.zeros(1), B)
    density = np.where(np.arange(B) < far, -700.0, 0.0)
    test.update(density.mean()[None, None], density.var(ddof=1)[None], B)
    t = -scipy.stats.ttest_1samp(density, 0).statistic
    least = scipy.stats.norm.sf(sequential.SLACK * t)
    assert scipy.stats.norm.sf(test.scores[0, -1]) == pytest.approx(max(least, 1e-12), rel=1e-6)


@pytest.mark.parametrize("rate", [1e-4, 1e-3])
def test_a_rare_mistake_of_a_sure_classifier_is_no_change(rate):
    """One in 156 minibatches, or in 16: tested by the means alone, run lengths are 180 and 730."""
    rng, B, streams = np.random.default_rng(0), 64, 40
    test, over, total = SequentialTest(streams), np.zeros(streams, bool), 0
    for _ in range(1_500):
        density = -1e-3 * rng.exponential(size=(streams, B))
        density -= (rng.random((streams, B)) < rate) * (2 + 3 * rng.exponential(size=(streams, B)))
        statistic = test.update(density.mean(1)[:, None], density.var(1, ddof=1), B)
        total += int((~over).sum())
        over |= statistic > level_of(1_000)
    assert total / max(over.sum(), 1) > 1_000


@pytest.mark.parametrize(("shape", "change", "age"), [
    ([9.0], "sharp", 0), ([5.0, 5.0, 5.0], "sharp", 2), ([5.0, 5.0, 5.0, 5.0], "gradual", 3),
    ([2.0, 4.0, 6.0, 8.0], "gradual", 3),
    ([1.0] * 40, "gradual", 39), ([0.2 * i for i in range(1, 31)], "gradual", 29),
])  # fmt: skip
def test_the_change_point_of_a_step_and_of_a_ramp(shape, change, age):
    test = SequentialTest(1)
    rng = np.random.default_rng(4)
    x = np.concatenate([0.1 * rng.standard_normal(120), shape])
    test.history[0, -len(x) :], test.falls = x, len(x)
    point = test.change_point()
    assert point.change == change
    assert abs(point.age - age) <= (0 if len(shape) < 10 else 2)


def test_many_streams_are_tested_as_each_alone():
    rng = np.random.default_rng(5)
    data = rng.standard_normal((150, 3, 2)).cumsum(0) * 0.1 + rng.standard_normal((150, 3, 2))
    variance = rng.uniform(0.5, 2.0, (150, 3))
    together, alone = SequentialTest(3, 2), [SequentialTest(1, 2) for _ in range(3)]
    for mean, spread in zip(data, variance, strict=True):
        found = together.update(mean, spread, 20, [1])
        each = [one.update(mean[i : i + 1], spread[i : i + 1], 20, [1])[0] for i, one in enumerate(alone)]
        np.testing.assert_allclose(found, each, rtol=1e-9)
    assert np.isfinite(found).all()


def test_the_detector_tests_means_and_the_variance_within_a_minibatch(generator):
    detector, test = BoundaryDetector(expected_run=1e9, warm_up=0, minimum_time=0), SequentialTest(1, 3)
    for _ in range(80):
        scores = torch.rand(20, 3, generator=generator, dtype=D) + 0.1
        values = scores.log()
        spread = values[:, [0, 2]].mean(1).var().numpy()[None]
        expected = float(log_run_length(test.update(values.mean(0).numpy()[None], spread, 20, [0, 2])[0]))
        found = detector.update(scores, functions=[2, 0]).statistic
        assert math.isnan(found) if not math.isfinite(expected) else found == pytest.approx(expected)
    assert math.isfinite(expected)


def test_what_moves_a_reference_as_well_moves_no_test(generator):
    """Scores and reference times e^c with c a random walk, as learning does: the statistics stay."""
    still, moved = (BoundaryDetector(expected_run=1e9, warm_up=0, minimum_time=0) for _ in range(2))
    reference, c = torch.rand(20, 2, generator=generator, dtype=D) + 0.1, torch.zeros(2, dtype=D)
    for _ in range(80):
        scores = torch.rand(20, 2, generator=generator, dtype=D) + 0.1
        c = c + torch.randn(2, generator=generator, dtype=D)
        found = [
            still.update(scores, reference=reference).statistic,
            moved.update(scores * c.exp(), reference=reference * c.exp()).statistic,
        ]
        assert found[1] == pytest.approx(found[0], nan_ok=True)
    assert math.isfinite(found[0])


# -- run length --------------------------------------------------------------------------------------------------


def level_of(run: float) -> float:
    grid = np.linspace(1, 8, 70_001)
    return float(grid[np.searchsorted(log_run_length(grid), math.log10(run))])


def test_the_table_of_run_lengths_increases():
    grid = np.linspace(-5, 10, 200)
    assert (np.diff(log_run_length(grid)) > 0).all()
    for at, run in sequential.RUN_LENGTH:
        assert float(log_run_length(at)) == pytest.approx(run)


@pytest.mark.parametrize("kind", ["normal", "heavy-tailed", "dependent", "drifting"])
@pytest.mark.parametrize("run", [1_000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_false_alarms_come_at_the_promised_rate(tool, kind, run):
    """200 stationary streams, each until its alarm or twice the promise: time of all / number of alarms."""
    (mean,), (alarms,) = tool.run_lengths(kind, np.array([level_of(run)]), streams=200, steps=2 * run, seed=100)
    assert alarms > 100
    assert mean == pytest.approx(run, rel=0.2)


def test_the_rate_is_shared_by_the_scores_and_the_labels(generator):
    """Two tests at once: each has half of the false alarms."""
    one, two = (BoundaryDetector(expected_run=1e9, warm_up=0, minimum_time=0) for _ in range(2))
    for scores in minibatches(60, generator):
        found = one.update(scores), two.update(scores, log_density=scores.log())
    assert found[1].statistic == pytest.approx(found[0].statistic - math.log10(2))


def first_boundary(detector: BoundaryDetector, stream: list, density: list | None = None):
    """The first minibatch at which a switch is declared, and the decision; None if there is none."""
    for t, scores in enumerate(stream):
        decision = detector.update(scores, log_density=None if density is None else density[t])
        if decision.boundary:
            return t, decision
    return None


# -- changes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("level", "latest", "change"), [
    (lambda t: -3.0 * (t >= 200), 201, "sharp"),  # 24 standard errors
    (lambda t: -0.25 * (t >= 200), 230, None),  # 2 standard errors
    (lambda t: -3.0 * min(max(t - 199, 0) / 60, 1), 225, "gradual"),  # a ramp
    (lambda t: -3.0 * min(max(t - 199, 0) / 120, 1), 240, "gradual"),
])  # fmt: skip
def test_sharp_small_and_gradual_changes_are_found(level, latest, change):
    said = []
    for seed in range(5):
        generator = torch.Generator().manual_seed(seed)
        detector = BoundaryDetector(expected_run=10_000)
        t, decision = first_boundary(detector, minibatches(260, generator, level=level))
        assert 200 <= t <= latest
        assert 200 - 8 <= t - decision.age <= t
        said.append(decision.change)
    assert change is None or said.count(change) >= 4  # a slow ramp is sometimes taken for a recent step


@pytest.mark.parametrize(("run", "latest"), [(10_000, 102), (1_000_000, 103)])
def test_labels_that_change_alone_are_found(run, latest, generator):
    scores = minibatches(latest + 1, generator)
    density = [one.log() for one in minibatches(latest + 1, generator, level=lambda t: -2.0 * (t >= 100))]
    assert first_boundary(BoundaryDetector(labels=False), scores, density) is None
    t, decision = first_boundary(BoundaryDetector(expected_run=run), scores, density)
    assert 100 <= t <= latest
    assert decision.change == "sharp"


def test_rising_scores_are_no_change(generator):
    detector = BoundaryDetector(expected_run=1_000)
    found = [detector.update(s).boundary for s in minibatches(200, generator, level=lambda t: 3.0 * (t >= 100))]
    assert not any(found)


def test_constant_scores_are_no_change():
    detector = BoundaryDetector(warm_up=0, minimum_time=0)
    assert not any(detector.update(torch.full((8, 2), 1.7)).boundary for _ in range(200))
    assert detector.update(torch.full((8, 2), 1e-3)).statistic > 3


# -- state -------------------------------------------------------------------------------------------------------


def fed(count: int, generator: torch.Generator) -> BoundaryDetector:
    detector = BoundaryDetector(expected_run=200)
    for scores in minibatches(count, generator):
        detector.update(scores, log_density=scores.log())
    return detector


def test_the_state_continues_bit_for_bit(generator):
    first = fed(70, generator)
    second = BoundaryDetector(**first.options())
    second.load_state_dict(first.state_dict())
    for scores in minibatches(300, generator):
        density = scores.flip(0).log() * 0.5
        assert repr(first.update(scores, log_density=density)) == repr(second.update(scores, log_density=density))


@pytest.mark.parametrize(("change", "message"), [
    (lambda s: s.update(in_task=-1), "counts minibatches"),
    (lambda s: s.update(reference=[torch.tensor([[math.nan]], dtype=D)]), "finite scores"),
    (lambda s: s["tests"].update(other={}), "does not know"),
    (lambda s: s["tests"]["scores"].pop("last"), "incomplete"),
    (lambda s: s["tests"]["scores"].pop("sums"), "incomplete"),
    (lambda s: s["tests"]["scores"].update(history=torch.zeros(1, 3, dtype=D)), "another shape"),
    (lambda s: s["tests"]["labels"].update(variance=torch.full((1,), math.inf, dtype=D)), "not finite"),
    (lambda s: s["tests"]["labels"].update(seen=1.5), "is a count"),
])  # fmt: skip
def test_a_damaged_state_is_refused_as_a_whole(change, message, generator):
    detector = fed(40, generator)
    state, before = detector.state_dict(), repr(detector.state_dict())
    change(state)
    with pytest.raises(CheckpointError, match=message):
        detector.load_state_dict(state)
    assert repr(detector.state_dict()) == before


def test_options_that_do_not_fit_are_refused():
    for options, message in [
        ({"expected_run": 10}, "at least 100"),
        ({"expected_run": math.inf}, "at least 100"),
        ({"window": 3}, "belong to Welch's test"),
        ({"rescore": True}, "belong to Welch's test"),
    ]:
        with pytest.raises(OptionError, match=message):
            BoundaryDetector(**options)
    assert BoundaryDetector(expected_run=1_000).level == 3.0
    assert BoundaryDetector(5).level == 5
