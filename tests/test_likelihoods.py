import math

import pytest
import torch
import torch.nn.functional as F
from torch.distributions import Normal

from frcl.errors import OptionError
from frcl.likelihoods import Bernoulli, Gaussian, RobustMax, Softmax, likelihood_from, log_predictive

D = torch.float64
NONE = torch.empty(0, dtype=D)


def moments(B: int, C: int, g: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(B, C, generator=g, dtype=D), 0.1 + torch.rand(B, C, generator=g, dtype=D)


def on_grid(mean: torch.Tensor, variance: torch.Tensor, function) -> torch.Tensor:
    """∫ N(f | mean, variance) function(f) df by a fine sum, for scalars."""
    f = torch.linspace(-12, 12, 40_001, dtype=D)
    density = Normal(mean, variance.sqrt()).log_prob(f).exp()
    return (density * function(f)).sum() * (f[1] - f[0])


def test_bernoulli_agrees_with_brute_force(generator):
    mean, variance = moments(6, 1, generator)
    y = torch.tensor([0, 1, 0, 1, 1, 0])
    model = Bernoulli()
    expected = torch.stack(
        [
            on_grid(m[0], v[0], lambda f, s=2 * int(c) - 1: F.logsigmoid(s * f))
            for m, v, c in zip(mean, variance, y, strict=True)
        ]
    )
    torch.testing.assert_close(model.expected_log_prob(mean, variance, y, NONE, {}), expected, atol=1e-6, rtol=0)
    p_one = torch.stack([on_grid(m[0], v[0], torch.sigmoid) for m, v in zip(mean, variance, strict=True)])
    probabilities = model.probabilities(mean, variance, NONE)
    torch.testing.assert_close(probabilities[:, 1], p_one, atol=1e-6, rtol=0)
    torch.testing.assert_close(probabilities.sum(1), torch.ones(6, dtype=D))
    torch.testing.assert_close(
        log_predictive(model, mean, variance, y, NONE, {}).exp(),
        torch.where(y == 1, p_one, 1 - p_one),
        atol=1e-6,
        rtol=0,
    )


@pytest.mark.parametrize("spread", [30.0, 100.0])
def test_bernoulli_with_a_wide_function(spread):
    mean, variance = torch.tensor([[2.0]], dtype=D), torch.tensor([[spread]], dtype=D)
    f = torch.linspace(-120, 120, 400_001, dtype=D)
    density = Normal(2.0, spread**0.5).log_prob(f).exp() * (f[1] - f[0])
    exact = float((density * torch.sigmoid(f)).sum())
    assert float(Bernoulli().probabilities(mean, variance, NONE)[0, 1]) == pytest.approx(exact, abs=3e-3)


def test_robustmax_has_a_finite_gradient_far_out_in_float32():
    mean = torch.tensor([[0.0, 1e6, -1e6]], requires_grad=True)
    variance = torch.full((1, 3), 1e-2, requires_grad=True)
    RobustMax().expected_log_prob(mean, variance, torch.tensor([0]), NONE, {}).sum().backward()
    assert mean.grad.isfinite().all()
    assert variance.grad.isfinite().all()


def test_softmax_without_variance_is_plain_cross_entropy(generator):
    mean, _ = moments(5, 4, generator)
    y = torch.tensor([0, 3, 2, 1, 1])
    noise = torch.randn(3, 5, 4, generator=generator, dtype=D)
    value = Softmax().expected_log_prob(mean, torch.zeros_like(mean), y, noise, {})
    torch.testing.assert_close(value, -F.cross_entropy(mean, y, reduction="none"), atol=1e-5, rtol=0)


def test_softmax_two_classes_equals_a_logistic_integral(generator):
    """log softmax(f)_1 = log σ(f_1 − f_0), and f_1 − f_0 is one Gaussian."""
    mean, variance = moments(1, 2, generator)
    noise = torch.randn(400_000, 1, 2, generator=generator, dtype=D)
    y = torch.tensor([1])
    gap, spread = mean[0, 1] - mean[0, 0], variance.sum()
    value = Softmax().expected_log_prob(mean, variance, y, noise, {})[0]
    assert float(value) == pytest.approx(float(on_grid(gap, spread, F.logsigmoid)), abs=4e-3)
    p = Softmax().probabilities(mean, variance, noise)[0]
    assert float(p[1]) == pytest.approx(float(on_grid(gap, spread, torch.sigmoid)), abs=2e-3)
    assert float(p.sum()) == pytest.approx(1.0)


def test_softmax_gradient_flows_through_the_noise(generator):
    mean, variance = (m.requires_grad_() for m in moments(2, 3, generator))
    noise = torch.randn(4, 2, 3, generator=generator, dtype=D)
    y = torch.tensor([0, 2])

    def value(m, v):
        return Softmax().expected_log_prob(m, v, y, noise, {}).sum()

    assert torch.autograd.gradcheck(value, (mean, variance))


@pytest.mark.parametrize("C", [2, 3, 7])
def test_robustmax_agrees_with_monte_carlo(generator, C):
    mean, variance = moments(3, C, generator)
    f = mean + variance.sqrt() * torch.randn(200_000, 3, C, generator=generator, dtype=D)
    frequency = F.one_hot(f.argmax(-1), C).double().mean(0)
    model = RobustMax()
    torch.testing.assert_close(model.probability_of_largest(mean, variance), frequency, atol=6e-3, rtol=0)
    y = torch.tensor([0, 1, C - 1])
    p = frequency.gather(1, y[:, None])[:, 0]
    expected = p * math.log(1 - 1e-3) + (1 - p) * math.log(1e-3 / (C - 1))
    torch.testing.assert_close(model.expected_log_prob(mean, variance, y, NONE, {}), expected, atol=0.06, rtol=0)
    probabilities = model.probabilities(mean, variance, NONE)
    torch.testing.assert_close(probabilities.sum(1), torch.ones(3, dtype=D))
    torch.testing.assert_close(
        probabilities, (1 - 1e-3) * frequency + 1e-3 * (1 - frequency) / (C - 1), atol=7e-3, rtol=0
    )


def test_robustmax_two_classes_is_a_probit(generator):
    mean, variance = moments(4, 2, generator)
    gap = (mean[:, 1] - mean[:, 0]) / variance.sum(1).sqrt()
    torch.testing.assert_close(
        RobustMax().probability_of_largest(mean, variance)[:, 1], torch.special.ndtr(gap), atol=1e-4, rtol=0
    )


def test_gaussian_agrees_with_monte_carlo_and_with_the_predictive_density(generator):
    mean, variance = moments(3, 2, generator)
    y = torch.randn(3, 2, generator=generator, dtype=D)
    params = {"log_noise": torch.tensor([-1.0, 0.5], dtype=D)}
    f = mean + variance.sqrt() * torch.randn(200_000, 3, 2, generator=generator, dtype=D)
    scale = params["log_noise"].exp().sqrt()
    sampled = Normal(f, scale).log_prob(y).sum(-1).mean(0)
    model = Gaussian()
    torch.testing.assert_close(model.expected_log_prob(mean, variance, y, NONE, params), sampled, atol=0.05, rtol=0)
    density = Normal(mean, (variance + scale.square()).sqrt()).log_prob(y).sum(1)
    torch.testing.assert_close(log_predictive(model, mean, variance, y, NONE, params), density)
    with pytest.raises(OptionError, match="no class probabilities"):
        model.probabilities(mean, variance, NONE)


def test_jensen_the_expected_log_is_below_the_log_of_the_expectation(generator):
    mean, variance = moments(20, 5, generator)
    y = torch.randint(5, (20,), generator=generator)
    noise = torch.randn(200, 20, 5, generator=generator, dtype=D)
    for model in (Softmax(), RobustMax()):
        expected = model.expected_log_prob(mean, variance, y, noise, {})
        assert (expected <= log_predictive(model, mean, variance, y, noise, {}) + 1e-6).all()


def test_a_zero_variance_has_a_finite_gradient():
    mean = torch.zeros(2, 3, dtype=D, requires_grad=True)
    variance = torch.zeros(2, 3, dtype=D, requires_grad=True)
    y = torch.tensor([0, 1])
    for model in (Softmax(), RobustMax()):
        model.expected_log_prob(mean, variance, y, torch.ones(1, 2, 3, dtype=D), {}).sum().backward()
        assert mean.grad.isfinite().all()
        assert variance.grad.isfinite().all()


def test_likelihoods_by_name():
    assert likelihood_from("softmax", {"samples": 3, "kind": "softmax"}) == Softmax(samples=3)
    assert likelihood_from("robustmax") == RobustMax()
    assert likelihood_from("bernoulli").functions(2) == 1
    assert likelihood_from("gaussian").functions(4) == 4
    with pytest.raises(OptionError, match="unknown likelihood 'logistic'"):
        likelihood_from("logistic")
    with pytest.raises(OptionError, match="for 2 classes; this task has 3"):
        Bernoulli().functions(3)
