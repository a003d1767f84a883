import math

import pytest
import scipy.stats
import torch
from torch.distributions import Normal, kl_divergence

from frcl import BoundaryDetector, DataError, OptionError
from frcl.boundary import symmetrised_kl, welch
from frcl.posterior import Moments

D = torch.float64


def test_score_equals_both_kl_divergences(generator):
    mean = torch.randn(6, 3, generator=generator, dtype=D)
    variance = 0.1 + torch.rand(6, 3, generator=generator, dtype=D)
    k = 0.5 + torch.rand(6, generator=generator, dtype=D)
    q, p = Normal(mean, variance.sqrt()), Normal(torch.zeros_like(mean), k.sqrt()[:, None].expand(6, 3))
    expected = 0.5 * (kl_divergence(q, p) + kl_divergence(p, q))
    torch.testing.assert_close(symmetrised_kl(Moments(mean, variance), k), expected)


def test_score_is_zero_at_the_prior():
    k = torch.tensor([0.7, 2.0], dtype=D)
    at_prior = Moments(torch.zeros(2, 1, dtype=D), k[:, None])
    torch.testing.assert_close(symmetrised_kl(at_prior, k), torch.zeros(2, 1, dtype=D))


def test_welch_equals_scipy(generator):
    old = 2 + 3 * torch.randn(30, 4, generator=generator, dtype=D)
    new = torch.randn(17, 4, generator=generator, dtype=D)
    expected = scipy.stats.ttest_ind(old.numpy(), new.numpy(), equal_var=False)
    statistic = welch(old, new)
    torch.testing.assert_close(statistic, torch.tensor(expected.statistic))
    assert (statistic > 0).all(), "positive when the new mean is smaller"


def test_welch_without_any_spread():
    same = torch.ones(4, 2, dtype=D)
    assert welch(same, same).tolist() == [0.0, 0.0]
    assert welch(same, 0 * same).tolist() == [math.inf, math.inf]


@pytest.mark.parametrize("window", [1, 5])
def test_nominal_false_alarm_rate_on_stationary_data(generator, window):
    """One function, Gaussian scores: the statistic exceeds the 95 % quantile of Student's t in 5 % of the tests."""
    B = 32
    dof = (
        2 * (B - 1) if window == 1 else 1 / ((1 / window) ** 2 / (window * B - 1) + 1 / (B - 1)) * (1 + 1 / window) ** 2
    )
    level = float(scipy.stats.t.ppf(0.95, dof))
    detector = BoundaryDetector(
        math.nextafter(math.inf, 0), window=window, log_space=False, warm_up=0, minimum_time=window
    )
    statistics = torch.tensor(
        [detector.update(torch.randn(B, generator=generator, dtype=D)).statistic for _ in range(12_000)]
    )[window:]
    lr = float((statistics > level).double().mean())
    assert lr == pytest.approx(0.05, abs=0.008)


@pytest.mark.parametrize("aggregate", ["max", "median", "mean"])
@pytest.mark.parametrize("log_space", [True, False])
@pytest.mark.parametrize("window", [1, 10])
def test_it_misses_no_plain_shift(generator, aggregate, log_space, window):
    detector = BoundaryDetector(5.0, aggregate=aggregate, log_space=log_space, window=window)
    found = []
    for t in range(200):
        level = 1.0 if (t // 50) % 2 else 4.0  # scores fall at t = 50 and 150, rise at 100
        scores = level * torch.exp(0.2 * torch.randn(64, 3, generator=generator, dtype=D))
        if detector.update(scores).boundary:
            found.append(t)
    assert found == [50, 150]


def test_waiting_times(generator):
    """No test in the first warm_up + minimum_time minibatches, nor in the `pause` after a switch."""
    detector = BoundaryDetector(5.0, warm_up=4, minimum_time=3, pause=6)

    def feed(level: float) -> float:
        return detector.update(level * torch.exp(0.1 * torch.randn(50, generator=generator, dtype=D))).statistic

    tested = [not math.isnan(feed(8.0)) for _ in range(9)]
    assert tested == [False] * 7 + [True] * 2
    assert feed(1.0) > 5.0
    tested = [not math.isnan(feed(1.0)) for _ in range(8)]
    assert tested == [False] * 6 + [True] * 2


def test_the_minibatch_that_switched_is_not_the_new_reference(generator):
    """Scores under the old posterior say nothing about the new task."""
    detector = BoundaryDetector(5.0, warm_up=0, minimum_time=1, pause=1)
    noise = torch.randn(3, 40, generator=generator, dtype=D)
    detector.update(torch.exp(2 + 0.1 * noise[0]))
    assert detector.update(torch.exp(0.1 * noise[1])).boundary
    assert detector.state_dict()["reference"] == []
    assert math.isnan(detector.update(torch.exp(-3 + 0.1 * noise[2])).statistic)


def test_window_pools_the_last_minibatches(generator):
    detector = BoundaryDetector(50.0, window=3, log_space=False, warm_up=0, minimum_time=0)
    batches = torch.randn(6, 20, 2, generator=generator, dtype=D)
    for batch in batches[:5]:
        detector.update(batch)
    expected = welch(batches[2:5].flatten(0, 1), batches[5]).max()
    assert detector.update(batches[5]).statistic == pytest.approx(float(expected))


@pytest.mark.parametrize("functions", [2, 5])
def test_aggregates(generator, functions):
    old, new = torch.randn(2, 30, functions, generator=generator, dtype=D)
    expected = welch(old, new)
    median = sum(sorted(expected.tolist())[(functions - 1) // 2 : functions // 2 + 1]) / (2 - functions % 2)
    for name, value in (("max", expected.max()), ("median", median), ("mean", expected.mean())):
        detector = BoundaryDetector(99.0, aggregate=name, log_space=False, warm_up=0, minimum_time=0)
        detector.update(old)
        assert detector.update(new).statistic == pytest.approx(float(value))


def test_state_continues_bit_for_bit(generator):
    scores = torch.rand(60, 16, 2, generator=generator, dtype=D)
    whole = BoundaryDetector(1.5, window=4)
    expected = [whole.update(batch) for batch in scores]
    first = BoundaryDetector(1.5, window=4)
    for batch in scores[:33]:
        first.update(batch)
    second = BoundaryDetector(**first.options())
    second.load_state_dict(first.state_dict())
    rest = [second.update(batch) for batch in scores[33:]]
    assert [repr(d) for d in rest] == [repr(d) for d in expected[33:]]


def test_bad_scores_and_options_are_refused():
    detector = BoundaryDetector()
    with pytest.raises(DataError, match="finite"):
        detector.update(torch.tensor([1.0, math.nan]))
    with pytest.raises(DataError, match="negative"):
        detector.update(torch.tensor([1.0, -2.0]))
    with pytest.raises(DataError, match=r"\[batch\] or \[batch, functions\]"):
        detector.update(torch.ones(2, 2, 2))
    for options, message in [
        ({"aggregate": "sum"}, "choose one of max, median, mean"),
        ({"window": 0}, "window must be a whole number of at least 1, not 0"),
        ({"pause": -1}, "pause must be a whole number, not negative"),
        ({"threshold": math.nan}, "finite number"),
    ]:
        with pytest.raises(OptionError, match=message):
            BoundaryDetector(**options)


def test_a_change_in_the_number_of_functions_starts_a_new_reference(generator):
    detector = BoundaryDetector(3.0, warm_up=0, minimum_time=0)
    detector.update(torch.rand(8, 2, generator=generator))
    assert math.isnan(detector.update(torch.rand(8, 5, generator=generator)).statistic)
    assert not math.isnan(detector.update(torch.rand(8, 5, generator=generator)).statistic)


def test_score_is_never_negative_in_float32(generator):
    """At the prior the first form of the score loses its sign to rounding; the second cannot."""
    k = 1e3 * torch.rand(20_000, generator=generator)
    near = Moments(torch.zeros(20_000, 1), k[:, None] * (1 + 1e-7 * torch.randn(20_000, 1, generator=generator)))
    assert (symmetrised_kl(near, k) >= 0).all()


def test_a_reference_that_is_scored_again_is_the_one_compared_with(generator):
    detector = BoundaryDetector(1e3, rescore=True, log_space=False, aggregate="max", warm_up=0, minimum_time=0)
    assert math.isnan(detector.update(torch.rand(20, 3, generator=generator)).statistic), "nothing to compare with"
    for _ in range(3):
        old, new = torch.rand(50, 3, generator=generator).double(), torch.rand(20, 3, generator=generator).double()
        expected = scipy.stats.ttest_ind(old.numpy(), new.numpy(), equal_var=False).statistic.max()
        assert detector.update(new, reference=old).statistic == pytest.approx(expected, abs=1e-12)
    assert detector.state_dict()["reference"] == [], "it keeps no scores of its own"
    assert detector.update(new - 10, reference=old, allow=False).boundary is False
    assert BoundaryDetector(**detector.options()).rescore


def test_only_the_functions_asked_for_are_tested(generator):
    def drawn(low: float) -> torch.Tensor:
        scores = torch.rand(40, 3, generator=generator) + 1
        scores[:, 2] *= low
        return scores

    everything, some, none = (BoundaryDetector(1e9, warm_up=0, minimum_time=0) for _ in range(3))
    before, after = drawn(1.0), drawn(0.01)
    for detector in (everything, some, none):
        detector.update(before)
    expected = welch(before[:, :2].double().log(), after[:, :2].double().log()).max()
    assert everything.update(after).statistic > 50
    assert some.update(after, functions=[0, 1]).statistic == pytest.approx(float(expected))
    assert math.isnan(none.update(after, functions=[]).statistic)


@pytest.mark.parametrize(("rescore", "beside"), [(False, 1), (False, 4), (True, 1), (True, 2)])
def test_the_test_beside_decides_nothing_and_is_what_another_detector_sees(generator, rescore, beside):
    waits = {"warm_up": 1, "minimum_time": 2, "pause": 2}
    acting = BoundaryDetector(4.0, window=3, rescore=rescore, beside=beside, **waits)
    alone = BoundaryDetector(4.0, window=3, rescore=rescore, **waits)
    other = BoundaryDetector(1e9, window=beside, rescore=rescore, **waits)
    switches, seen, recent = [], [], []
    for t in range(40):
        scores = (0.1 if t in (15, 30) else 1.0) * torch.rand(20, 2, generator=generator) + 0.01
        whole, part = ({"reference": torch.cat(recent[-n:])} if recent and rescore else {} for n in (3, beside))
        restored = BoundaryDetector(**acting.options())
        restored.load_state_dict(acting.state_dict())
        found, decision = restored.update(scores, **whole), alone.update(scores, **whole)
        assert found.boundary == decision.boundary
        assert found.statistic == pytest.approx(decision.statistic, nan_ok=True)
        assert found.beside == pytest.approx(other.update(scores, **part).statistic, nan_ok=True)
        assert math.isnan(decision.beside)
        seen.append((found.statistic, found.beside))
        acting, recent = restored, [] if found.boundary else [*recent, scores]
        if found.boundary:
            switches.append(t)
            other.reset()
    assert 15 in switches
    assert any(abs(first - second) > 0.1 for first, second in seen)
    with pytest.raises(OptionError, match="at most window"):
        BoundaryDetector(window=2, rescore=True, beside=3)
