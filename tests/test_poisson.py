"""The Poisson likelihood against scipy.stats.poisson, numerical integration and Monte Carlo."""

import math

import numpy as np
import pytest
import torch
from scipy import integrate, special, stats

from frcl.errors import DataError
from frcl.likelihoods import Poisson
from frcl.likelihoods.poisson import HIGHEST, bounded_exp, wright_omega

D = torch.float64
NONE = torch.empty(0, dtype=D)
CPU = torch.device("cpu")


def integral(mean: float, variance: float, y: int) -> float:
    """log ∫ Poisson(y | exp f) N(f | mean, variance) df, by scipy around the maximum of the integrand."""

    def log_integrand(f):
        return stats.poisson.logpmf(y, np.exp(f)) + stats.norm.logpdf(f, mean, math.sqrt(variance))

    grid = np.linspace(mean - 12 * math.sqrt(variance), mean + 12 * math.sqrt(variance), 20_001)
    top = grid[np.argmax(log_integrand(grid))]
    highest = log_integrand(top)
    total, _ = integrate.quad(
        lambda f: math.exp(log_integrand(f) - highest),
        grid[0],
        grid[-1],
        points=[top - 0.1 * math.sqrt(variance), top, top + 0.1 * math.sqrt(variance)],
        limit=2000,
    )
    return highest + math.log(total)


def test_log_prob_is_that_of_scipy(generator):
    f = torch.randn(30, 2, generator=generator, dtype=D)
    y = torch.randint(12, (30, 2), generator=generator).to(D)
    expected = stats.poisson.logpmf(y.numpy(), f.exp().numpy()).sum(1)
    torch.testing.assert_close(Poisson(2).log_prob(f, y, {}), torch.from_numpy(expected))


def test_the_expected_log_prob_agrees_with_monte_carlo(generator):
    mean, variance = torch.randn(4, 2, generator=generator, dtype=D), torch.rand(4, 2, generator=generator, dtype=D)
    y = torch.randint(6, (4, 2), generator=generator).to(D)
    f = mean + variance.sqrt() * torch.randn(400_000, 4, 2, generator=generator, dtype=D)
    sampled = Poisson(2).log_prob(f, y, {}).mean(0)
    torch.testing.assert_close(Poisson(2).expected_log_prob(mean, variance, y, NONE, {}), sampled, atol=0.04, rtol=0)
    by_quadrature = integrate.quad(
        lambda z: stats.norm.pdf(z) * stats.poisson.logpmf(3, math.exp(0.4 + 0.9 * z)), -12, 12
    )[0]
    one = [torch.tensor([[value]], dtype=D) for value in (0.4, 0.81, 3.0)]
    assert float(Poisson().expected_log_prob(*one, NONE, {})) == pytest.approx(by_quadrature, abs=1e-8)


def test_the_predictive_moments_are_those_of_samples(generator):
    mean = torch.tensor([[-1.0, 0.5], [1.5, 2.0]], dtype=D)
    variance = torch.tensor([[0.3, 0.2], [0.1, 0.05]], dtype=D)
    f = mean + variance.sqrt() * torch.randn(1_000_000, 2, 2, generator=generator, dtype=D)
    y = Poisson(2).sample(f, {}, generator)
    found = Poisson(2).predictive(mean, variance, NONE, {})
    assert found.probs is None
    torch.testing.assert_close(y.mean(0), found.mean, rtol=5e-3, atol=0)
    torch.testing.assert_close(y.var(0), found.variance, rtol=2e-2, atol=0)


@pytest.mark.parametrize(("mean", "variance", "y"), [
    (0.3, 0.5, 0), (0.3, 0.5, 2), (-2.0, 0.1, 4), (3.0, 1e-4, 20), (0.0, 1.0, 50), (1.0, 4.0, 1000), (6.0, 2.0, 3),
    (0.0, 25.0, 0), (0.0, 25.0, 7), (-5.0, 9.0, 1),
])  # fmt: skip
def test_log_predictive_agrees_with_scipy_quadrature(mean, variance, y):
    given = [torch.tensor([[value]], dtype=D) for value in (mean, variance, float(y))]
    found = Poisson().log_predictive(*given, NONE, {})
    assert found.shape == (1,)
    assert float(found) == pytest.approx(integral(mean, variance, y), abs=1e-5)
    single = Poisson().log_predictive(*(value.float() for value in given), NONE, {})
    assert float(single) == pytest.approx(float(found), abs=3e-3)


def test_outputs_are_independent_and_probabilities_sum_to_one():
    mean, variance = torch.tensor([[0.5, -1.0]], dtype=D), torch.tensor([[0.4, 0.8]], dtype=D)
    each = [
        Poisson().log_predictive(mean[:, [c]], variance[:, [c]], torch.tensor([[2.0]], dtype=D), NONE, {})
        for c in (0, 1)
    ]
    both = Poisson(2).log_predictive(mean, variance, torch.full((1, 2), 2.0, dtype=D), NONE, {})
    torch.testing.assert_close(both, sum(each))
    y = torch.arange(400.0, dtype=D)[:, None]
    p = Poisson().log_predictive(mean[:, :1].expand(400, 1), variance[:, :1].expand(400, 1), y, NONE, {}).exp()
    assert float(p.sum()) == pytest.approx(1.0, abs=1e-7)
    moments = Poisson().predictive(mean[:, :1], variance[:, :1], NONE, {})
    assert float((p * y[:, 0]).sum()) == pytest.approx(float(moments.mean), rel=1e-6)
    spread = (p * (y[:, 0] - moments.mean[0]).square()).sum()
    assert float(spread) == pytest.approx(float(moments.variance), rel=1e-5)


def test_jensen_the_expected_log_is_below_the_log_of_the_expectation(generator):
    mean, variance = torch.randn(50, 1, generator=generator, dtype=D), torch.rand(50, 1, generator=generator, dtype=D)
    y = torch.randint(9, (50, 1), generator=generator).to(D)
    model = Poisson()
    assert (
        model.expected_log_prob(mean, variance, y, NONE, {}) < model.log_predictive(mean, variance, y, NONE, {})
    ).all()


def test_fisher_information_is_the_variance_of_the_score(generator):
    """E[(∂ log p(y | f)/∂f)²] = exp f, over y drawn from p."""
    f = torch.randn(5, 1, generator=generator, dtype=D)
    y = Poisson().sample(f.expand(400_000, 5, 1), {}, generator)
    score = y - f.exp()
    values, weights = Poisson().fisher_terms(f, {})
    torch.testing.assert_close(values, f)
    torch.testing.assert_close(weights, score.square().mean(0), rtol=0.02, atol=0)


def test_wright_omega_is_that_of_scipy():
    x = torch.cat([torch.linspace(-59, 40, 400, dtype=D), torch.tensor([1e3, 1e6, 1e9], dtype=D)])
    torch.testing.assert_close(wright_omega(x), torch.from_numpy(special.wrightomega(x.numpy())), rtol=1e-12, atol=0)


def test_the_rate_is_exact_up_to_a_bound_and_then_its_tangent():
    f = torch.tensor([-5.0, 0.0, 12.0, HIGHEST], dtype=D)
    assert torch.equal(bounded_exp(f), f.exp())
    assert float(bounded_exp(torch.tensor(HIGHEST + 3, dtype=D))) == pytest.approx(4 * math.exp(HIGHEST))
    beyond = torch.tensor(HIGHEST + 3, dtype=D, requires_grad=True)
    bounded_exp(beyond).backward()
    assert float(beyond.grad) == pytest.approx(math.exp(HIGHEST))


@pytest.mark.parametrize("height", [-200.0, 50.0, 100.0, 500.0])
def test_nothing_overflows_in_float32(height):
    mean = torch.full((1, 1), height, requires_grad=True)
    variance = torch.full((1, 1), 200.0, requires_grad=True)
    model, y, own = Poisson(), torch.tensor([[3.0]]), torch.ones(1, 1)
    parts = [
        model.expected_log_prob(mean, variance, y, NONE, {}),
        model.log_predictive(mean, variance, y, NONE, {}),
        model.divergence(torch.zeros(1, 1), mean, own, {}),
        model.divergence(mean, torch.zeros(1, 1), own, {}),
        model.predictive(mean, variance, NONE, {}).mean[0],
    ]
    for part in parts:
        assert part.isfinite().all()
        for gradient in torch.autograd.grad(part.sum(), (mean, variance), allow_unused=True):
            assert gradient is None or gradient.isfinite().all()
    assert (parts[2] >= 0).all()
    assert (parts[3] >= 0).all()
    assert not model.predictive(mean, variance, NONE, {}).variance.isnan().any()


def test_a_zero_variance_has_a_finite_gradient():
    mean, variance = (torch.zeros(2, 1, dtype=D, requires_grad=True) for _ in range(2))
    y = torch.tensor([[0.0], [4.0]], dtype=D)
    for function in (Poisson().expected_log_prob, Poisson().log_predictive):
        function(mean, variance, y, NONE, {}).sum().backward()
        assert mean.grad.isfinite().all()
        assert variance.grad.isfinite().all()


def test_targets_are_counts():
    model = Poisson(2)
    assert torch.equal(model.encode([[0, 3], [2, 1]], CPU, D), torch.tensor([[0, 3], [2, 1]], dtype=D))
    assert Poisson().encode(torch.tensor([0.0, 7.0]), CPU, D).tolist() == [[0.0], [7.0]]
    assert (model.classes, model.functions, model.initial_parameters()) == (None, 2, {})
    for wrong, shown in (([1, -2], "-2"), ([0.5, 1.0], "0.5")):
        with pytest.raises(DataError, match=f"counts, whole numbers of at least 0; got {shown}"):
            Poisson().encode(wrong, CPU, D)
    with pytest.raises(DataError, match="NaN"):
        Poisson().encode([math.nan, 1.0], CPU, D)
