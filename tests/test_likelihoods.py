"""Every likelihood against brute force: integrals on grids, Monte Carlo, torch.distributions and Hessians."""

import json
import math
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Bernoulli as TorchBernoulli
from torch.distributions import Categorical, Independent, Normal, kl_divergence
from torch.distributions import Poisson as TorchPoisson

import frcl.likelihoods
from frcl.errors import OptionError
from frcl.likelihoods import (
    LIKELIHOODS,
    Bernoulli,
    Gaussian,
    Poisson,
    RobustMax,
    Softmax,
    likelihood_from_json,
)
from frcl.registry import import_modules

D = torch.float64
NONE = torch.empty(0, dtype=D)
LOG_NOISE = torch.tensor([-1.0, 0.5, 0.2], dtype=D)
BINARY, THREE = Bernoulli((0, 1)), (0, 1, 2)
ALL = [BINARY, Softmax(THREE), RobustMax(THREE), Gaussian(3), Poisson(3)]
by_name = pytest.mark.parametrize("model", ALL, ids=lambda model: model.name)


def params_of(model) -> dict[str, Tensor]:
    return {"log_noise": LOG_NOISE} if model.name == "gaussian" else {}


def moments(B: int, C: int, g: torch.Generator) -> tuple[Tensor, Tensor]:
    return torch.randn(B, C, generator=g, dtype=D), 0.1 + torch.rand(B, C, generator=g, dtype=D)


def distribution(model, f: Tensor):
    """p(y | f) as torch.distributions has it; for a RobustMax the softmax that stands in."""
    match model.name:
        case "bernoulli":
            return TorchBernoulli(logits=f[..., 0])
        case "softmax" | "robustmax":
            return Categorical(logits=f)
        case "gaussian":
            return Independent(Normal(f, LOG_NOISE.exp().sqrt()), 1)
        case "poisson":
            return Independent(TorchPoisson(f.exp()), 1)


def on_grid(mean: Tensor, variance: Tensor, function) -> Tensor:
    """∫ N(f | mean, variance) function(f) df by a fine sum, for scalars."""
    f = torch.linspace(-12, 12, 40_001, dtype=D)
    density = Normal(mean, variance.sqrt()).log_prob(f).exp()
    return (density * function(f)).sum() * (f[1] - f[0])


# -- each by itself ---------------------------------------------------------------------------------------------------


def test_bernoulli_agrees_with_brute_force(generator):
    mean, variance = moments(6, 1, generator)
    y = torch.tensor([0, 1, 0, 1, 1, 0])
    expected = torch.stack(
        [
            on_grid(m[0], v[0], lambda f, s=2 * int(c) - 1: F.logsigmoid(s * f))
            for m, v, c in zip(mean, variance, y, strict=True)
        ]
    )
    torch.testing.assert_close(BINARY.expected_log_prob(mean, variance, y, NONE, {}), expected, atol=1e-6, rtol=0)
    p_one = torch.stack([on_grid(m[0], v[0], torch.sigmoid) for m, v in zip(mean, variance, strict=True)])
    probs = BINARY.predictive(mean, variance, NONE, {}).probs
    torch.testing.assert_close(probs[:, 1], p_one, atol=1e-6, rtol=0)
    torch.testing.assert_close(probs.sum(1), torch.ones(6, dtype=D))
    torch.testing.assert_close(
        BINARY.log_predictive(mean, variance, y, NONE, {}).exp(),
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
    assert float(BINARY.probabilities(mean, variance, NONE)[0, 1]) == pytest.approx(exact, abs=3e-3)


def test_robustmax_has_a_finite_gradient_far_out_in_float32():
    mean = torch.tensor([[0.0, 1e6, -1e6]], requires_grad=True)
    variance = torch.full((1, 3), 1e-2, requires_grad=True)
    RobustMax(THREE).expected_log_prob(mean, variance, torch.tensor([0]), NONE, {}).sum().backward()
    assert mean.grad.isfinite().all()
    assert variance.grad.isfinite().all()


def test_softmax_without_variance_is_plain_cross_entropy(generator):
    mean, _ = moments(5, 4, generator)
    y = torch.tensor([0, 3, 2, 1, 1])
    draws = torch.randn(3, 5, 4, generator=generator, dtype=D)
    value = Softmax((0, 1, 2, 3)).expected_log_prob(mean, torch.zeros_like(mean), y, draws, {})
    torch.testing.assert_close(value, -F.cross_entropy(mean, y, reduction="none"), atol=1e-5, rtol=0)


def test_softmax_two_classes_equals_a_logistic_integral(generator):
    """log softmax(f)_1 = log σ(f_1 − f_0), and f_1 − f_0 is one Gaussian."""
    mean, variance = moments(1, 2, generator)
    draws = torch.randn(400_000, 1, 2, generator=generator, dtype=D)
    y = torch.tensor([1])
    gap, spread = mean[0, 1] - mean[0, 0], variance.sum()
    value = Softmax((0, 1)).expected_log_prob(mean, variance, y, draws, {})[0]
    assert float(value) == pytest.approx(float(on_grid(gap, spread, F.logsigmoid)), abs=4e-3)
    p = Softmax((0, 1)).predictive(mean, variance, draws, {}).probs[0]
    assert float(p[1]) == pytest.approx(float(on_grid(gap, spread, torch.sigmoid)), abs=2e-3)
    assert float(p.sum()) == pytest.approx(1.0)


def test_softmax_gradient_flows_through_the_draws(generator):
    mean, variance = (m.requires_grad_() for m in moments(2, 3, generator))
    draws = torch.randn(4, 2, 3, generator=generator, dtype=D)
    y = torch.tensor([0, 2])

    def value(m, v):
        return Softmax(THREE).expected_log_prob(m, v, y, draws, {}).sum()

    assert torch.autograd.gradcheck(value, (mean, variance))


def test_draws_are_as_many_as_a_softmax_needs():
    model = Softmax(THREE, samples=5, predict_samples=9)
    assert model.draws_shape(7, training=True) == (5, 7, 3)
    assert model.draws_shape(7, training=False) == (9, 7, 3)
    for other in (BINARY, RobustMax(THREE), Gaussian(3), Poisson(3)):
        assert other.draws_shape(7, training=True) == other.draws_shape(7, training=False) == (0,)


@pytest.mark.parametrize("C", [2, 3, 7])
def test_robustmax_agrees_with_monte_carlo(generator, C):
    mean, variance = moments(3, C, generator)
    f = mean + variance.sqrt() * torch.randn(200_000, 3, C, generator=generator, dtype=D)
    frequency = F.one_hot(f.argmax(-1), C).double().mean(0)
    model = RobustMax(tuple(range(C)))
    torch.testing.assert_close(model.probability_of_largest(mean, variance), frequency, atol=6e-3, rtol=0)
    y = torch.tensor([0, 1, C - 1])
    p = frequency.gather(1, y[:, None])[:, 0]
    expected = p * math.log(1 - 1e-3) + (1 - p) * math.log(1e-3 / (C - 1))
    torch.testing.assert_close(model.expected_log_prob(mean, variance, y, NONE, {}), expected, atol=0.06, rtol=0)
    torch.testing.assert_close(model.log_prob(f, y, {}).mean(0), expected)
    probs = model.predictive(mean, variance, NONE, {}).probs
    torch.testing.assert_close(probs.sum(1), torch.ones(3, dtype=D))
    torch.testing.assert_close(probs, (1 - 1e-3) * frequency + 1e-3 * (1 - frequency) / (C - 1), atol=7e-3, rtol=0)


def test_robustmax_two_classes_is_a_probit(generator):
    mean, variance = moments(4, 2, generator)
    gap = (mean[:, 1] - mean[:, 0]) / variance.sum(1).sqrt()
    torch.testing.assert_close(
        RobustMax((0, 1)).probability_of_largest(mean, variance)[:, 1], torch.special.ndtr(gap), atol=1e-4, rtol=0
    )


def test_gaussian_agrees_with_monte_carlo_and_with_the_predictive_density(generator):
    mean, variance = moments(3, 2, generator)
    y = torch.randn(3, 2, generator=generator, dtype=D)
    params = {"log_noise": torch.tensor([-1.0, 0.5], dtype=D)}
    f = mean + variance.sqrt() * torch.randn(200_000, 3, 2, generator=generator, dtype=D)
    scale = params["log_noise"].exp().sqrt()
    sampled = Normal(f, scale).log_prob(y).sum(-1).mean(0)
    model = Gaussian(2)
    torch.testing.assert_close(model.expected_log_prob(mean, variance, y, NONE, params), sampled, atol=0.05, rtol=0)
    total = (variance + scale.square()).sqrt()
    density = Normal(mean, total).log_prob(y).sum(1)
    torch.testing.assert_close(model.log_predictive(mean, variance, y, NONE, params), density)
    predictive = model.predictive(mean, variance, NONE, params)
    assert predictive.probs is None  # a regression task has no class probabilities
    torch.testing.assert_close(predictive.mean, mean)
    torch.testing.assert_close(predictive.variance, total.square())
    drawn = model.sample(f, params, generator)
    torch.testing.assert_close(drawn.mean(0), predictive.mean, atol=0.02, rtol=0)
    torch.testing.assert_close(drawn.var(0), predictive.variance, atol=0.03, rtol=0)
    torch.testing.assert_close(Gaussian(2, 0.3).initial_parameters()["log_noise"].exp(), torch.full((2,), 0.3))


def test_jensen_the_expected_log_is_below_the_log_of_the_expectation(generator):
    mean, variance = moments(20, 5, generator)
    y = torch.randint(5, (20,), generator=generator)
    draws = torch.randn(200, 20, 5, generator=generator, dtype=D)
    for model in (Softmax(tuple(range(5))), RobustMax(tuple(range(5)))):
        expected = model.expected_log_prob(mean, variance, y, draws, {})
        assert (expected <= model.log_predictive(mean, variance, y, draws, {}) + 1e-6).all()


def test_a_zero_variance_has_a_finite_gradient():
    mean = torch.zeros(2, 3, dtype=D, requires_grad=True)
    variance = torch.zeros(2, 3, dtype=D, requires_grad=True)
    y = torch.tensor([0, 1])
    for model in (Softmax(THREE), RobustMax(THREE)):
        model.expected_log_prob(mean, variance, y, torch.ones(1, 2, 3, dtype=D), {}).sum().backward()
        assert mean.grad.isfinite().all()
        assert variance.grad.isfinite().all()


# -- all of them alike ------------------------------------------------------------------------------------------------


@by_name
def test_log_prob_is_that_of_the_distribution_and_the_limit_of_the_integrals(generator, model):
    f = torch.randn(40, model.functions, generator=generator, dtype=D)
    params, none = params_of(model), torch.zeros_like(f)
    y = model.sample(f, params, generator)
    at_point = model.log_prob(f, y, params)
    assert at_point.shape == (40,)
    if model.name != "robustmax":
        torch.testing.assert_close(at_point, distribution(model, f).log_prob(y.to(D)))
    draws = torch.zeros(1, *f.shape, dtype=D)
    torch.testing.assert_close(model.expected_log_prob(f, none, y, draws, params), at_point, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(model.log_predictive(f, none, y, draws, params), at_point, atol=1e-4, rtol=1e-4)


@by_name
def test_the_mean_of_samples_is_that_of_the_distribution(generator, model):
    f = torch.randn(4, model.functions, generator=generator, dtype=D)
    y = model.sample(f.expand(100_000, -1, -1), params_of(model), generator)
    if model.name in ("softmax", "robustmax"):
        expected = f.softmax(-1)
        if model.name == "robustmax":
            expected = F.one_hot(f.argmax(-1), 3).double() * (1 - 1.5e-3) + 5e-4
            assert (y != f.argmax(-1)).double().mean() == pytest.approx(1e-3, rel=0.2)
        torch.testing.assert_close(F.one_hot(y, 3).double().mean(0), expected, atol=8e-3, rtol=0)
    else:
        torch.testing.assert_close(y.to(D).mean(0), distribution(model, f).mean, atol=0.03, rtol=0)
    again = (model.sample(f, params_of(model), torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(next(again), next(again))


@by_name
@pytest.mark.parametrize("padding", [0, 2])
def test_divergence_is_the_kl_of_the_distributions_and_padding_counts_for_nothing(generator, model, padding):
    C = model.functions
    old, new = (torch.randn(2, 7, C + padding, generator=generator, dtype=D).requires_grad_() for _ in range(2))
    own = (torch.arange(C + padding) < C).to(D)[None, None].expand(2, 1, -1)
    params = {name: F.pad(value, (0, padding))[None, None] for name, value in params_of(model).items()}
    expected = kl_divergence(distribution(model, old[..., :C]), distribution(model, new[..., :C]))
    found = model.divergence(old, new, own, params)
    torch.testing.assert_close(found, expected)
    for tensor in (old, new):
        (gradient,) = torch.autograd.grad(found.sum(), tensor, retain_graph=True)
        (wanted,) = torch.autograd.grad(expected.sum(), tensor, retain_graph=True)
        torch.testing.assert_close(gradient, wanted)
        assert not gradient[..., C:].any()
    per_input = model.divergence(old, new, own.expand(2, 7, -1), params)
    torch.testing.assert_close(per_input, found)


@by_name
def test_a_task_that_is_padding_alone_has_no_divergence(generator, model):
    old, new = (torch.randn(3, 4, generator=generator, dtype=D).requires_grad_() for _ in range(2))
    params = {name: torch.zeros(1, 4, dtype=D) for name in params_of(model)}
    found = model.divergence(old, new, torch.zeros(1, 4, dtype=D), params)
    assert torch.equal(found, torch.zeros(3, dtype=D))
    for gradient in torch.autograd.grad(found.sum(), (old, new)):
        assert torch.equal(gradient, torch.zeros(3, 4, dtype=D))


@by_name
def test_fisher_terms_are_the_hessian_of_the_divergence(generator, model):
    """With f = Wx and θ one direction of W: Fisher = ∂² KL( p(θ₀) ‖ p(θ) )/∂θ² at θ₀."""
    f = torch.randn(6, model.functions, generator=generator, dtype=D)
    direction = torch.randn(6, model.functions, generator=generator, dtype=D)
    params, own = params_of(model), torch.ones(1, model.functions, dtype=D)
    values, tangent = torch.func.jvp(lambda f: model.fisher_terms(f, params)[0], (f,), (direction,))
    weights = model.fisher_terms(f.requires_grad_(), params)[1]
    assert values.shape == weights.shape
    assert not weights.requires_grad
    for b in range(6):

        def divergence(theta: Tensor, b: int = b) -> Tensor:
            old = f[b : b + 1].detach()
            return model.divergence(old, old + theta * direction[b], own, params)[0]

        hessian = torch.autograd.functional.hessian(divergence, torch.zeros((), dtype=D))
        torch.testing.assert_close((weights * tangent.square()).sum(1)[b], hessian)


@by_name
def test_gradients_of_the_integrals(generator, model):
    mean, variance = (m.requires_grad_() for m in moments(3, model.functions, generator))
    params = {name: value.clone().requires_grad_() for name, value in params_of(model).items()}
    draws = torch.randn(5, 3, model.functions, generator=generator, dtype=D)
    y = model.sample(mean.detach(), params_of(model), generator)

    for function in (model.expected_log_prob, model.log_predictive):

        def value(m, v, *rest, function=function):
            return function(m, v, y, draws, dict(zip(params, rest, strict=True)))

        assert torch.autograd.gradcheck(value, (mean, variance, *params.values()))


@by_name
@pytest.mark.filterwarnings("ignore:There is a performance drop")  # log_ndtr of the RobustMax
def test_over_many_programs_at_once_it_is_the_same(generator, model):
    """torch.vmap, as the engine computes several seeds in one step."""
    C = model.functions
    mean, variance = (m.unflatten(0, (2, 4)) for m in moments(8, C, generator))
    y = model.sample(mean, params_of(model), generator)
    draws, params, own = torch.randn(2, 3, 4, C, generator=generator, dtype=D), params_of(model), torch.ones(1, C)
    for function in (model.expected_log_prob, model.log_predictive):
        together = torch.vmap(lambda m, v, t, e, function=function: function(m, v, t, e, params))(
            mean, variance, y, draws
        )
        apart = torch.stack([function(mean[i], variance[i], y[i], draws[i], params) for i in range(2)])
        torch.testing.assert_close(together, apart)
    together = torch.vmap(lambda a, b: model.divergence(a, b, own, params))(mean, variance)
    torch.testing.assert_close(together, model.divergence(mean, variance, own, params))


# -- the registry -----------------------------------------------------------------------------------------------------


@by_name
def test_a_likelihood_comes_back_from_json(model):
    assert LIKELIHOODS[model.name] is type(model)
    data = json.loads(json.dumps(model.to_json()))
    assert data["name"] == model.name
    assert likelihood_from_json(data) == model


def test_settings_come_back_from_json():
    for model in (Softmax(("a", "b"), 3, 4), RobustMax((5, 7), 0.1, 3), Gaussian(2, 0.4), Bernoulli((1, 9), 8)):
        assert likelihood_from_json(json.loads(json.dumps(model.to_json()))) == model
    with pytest.raises(OptionError, match="unknown likelihood 'logistic'"):
        likelihood_from_json({"name": "logistic"})
    with pytest.raises(OptionError, match="for 2 classes; this task has 3"):
        Bernoulli(THREE)


def test_a_new_likelihood_is_one_file(tmp_path, monkeypatch):
    (tmp_path / "halves.py").write_text(
        "from dataclasses import dataclass\n"
        "from typing import ClassVar\n"
        "from frcl.likelihoods.base import register\n"
        "from frcl.likelihoods.base import NumericLikelihood\n\n\n"
        "@register\n"
        "@dataclass(frozen=True)\n"
        "class Halves(NumericLikelihood):\n"
        '    name: ClassVar[str] = "halves"\n'
    )
    monkeypatch.setattr(LIKELIHOODS, "data", dict(LIKELIHOODS.data))
    monkeypatch.setattr(frcl.likelihoods, "__path__", [*frcl.likelihoods.__path__, str(tmp_path)])
    try:
        import_modules("frcl.likelihoods", frcl.likelihoods.__path__)
        assert frcl.likelihoods.likelihood_for(torch.zeros(5, 2), "halves") == LIKELIHOODS["halves"](2)
    finally:
        sys.modules.pop("frcl.likelihoods.halves", None)
        vars(frcl.likelihoods).pop("halves", None)
    with pytest.raises(OptionError, match="already a likelihood 'poisson'"):
        LIKELIHOODS.add("poisson", Poisson)
