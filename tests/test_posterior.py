"""Variational inference against exact GP regression, by closed form and by GPyTorch."""

import gpytorch
import pytest
import torch

from frcl.likelihoods import Gaussian
from frcl.posterior import (
    Posterior,
    function_moments,
    initial_posterior,
    kl_weight,
    triangular,
    weight_moments,
    weight_space,
)
from oracles import exact_log_marginal, rand_posterior

D = torch.float64
NONE = torch.empty(0, dtype=D)
NOISE = 0.3
PARAMS = {"log_noise": torch.tensor([NOISE], dtype=D).log()}


@pytest.fixture
def problem(generator):
    """Twelve inputs with five features each and targets drawn from the model, σ_w² = 2."""
    Phi = torch.randn(12, 5, generator=generator, dtype=D)
    w = 2**0.5 * torch.randn(5, generator=generator, dtype=D)
    y = Phi @ w + NOISE**0.5 * torch.randn(12, generator=generator, dtype=D)
    return Phi, y


def exact_weight_posterior(Phi: torch.Tensor, y: torch.Tensor, prior_variance: float) -> Posterior:
    precision = Phi.T @ Phi / NOISE + torch.eye(5, dtype=D) / prior_variance
    covariance = torch.linalg.inv(precision)
    return Posterior((covariance @ Phi.T @ y / NOISE)[None], torch.linalg.cholesky(covariance)[None])


def weight_elbo(q: Posterior, Phi: torch.Tensor, y: torch.Tensor, prior_variance: float) -> float:
    mean, variance = weight_moments(q, Phi)
    expected = Gaussian().expected_log_prob(mean, variance, y[:, None], NONE, PARAMS)
    return float(expected.sum() - kl_weight(q, prior_variance))


def function_elbo(q: Posterior, Phi_x, Phi_z, y: torch.Tensor, noise: float) -> torch.Tensor:
    (mean, variance), kl = function_moments(q, Phi_x, Phi_z, noise)
    return Gaussian().expected_log_prob(mean, variance, y[:, None], NONE, PARAMS).sum() - kl


def test_weight_space_elbo_is_the_evidence_at_the_exact_posterior(problem):
    Phi, y = problem
    evidence = exact_log_marginal(2**0.5 * Phi, y, NOISE)
    assert weight_elbo(exact_weight_posterior(Phi, y, 2.0), Phi, y, 2.0) == pytest.approx(evidence, abs=1e-8)


def test_weight_space_elbo_never_exceeds_the_evidence(problem, generator):
    Phi, y = problem
    evidence = exact_log_marginal(2**0.5 * Phi, y, NOISE)
    for _ in range(50):
        assert weight_elbo(rand_posterior(1, 5, generator), Phi, y, 2.0) < evidence


def test_function_space_elbo_is_the_evidence_at_the_optimum_with_every_input_a_point(problem):
    Phi, y = problem
    Phi = 2**0.5 * Phi
    tiny = 1e-8
    K = Phi @ Phi.T
    gain = K @ torch.linalg.inv(K + NOISE * torch.eye(12, dtype=D))
    covariance = K - gain @ K + tiny * torch.eye(12, dtype=D)
    q = Posterior((gain @ y)[None], torch.linalg.cholesky(covariance)[None])
    evidence = exact_log_marginal(Phi, y, NOISE)
    assert float(function_elbo(q, Phi, Phi, y, tiny)) == pytest.approx(evidence, abs=1e-3)


def test_function_space_elbo_never_exceeds_the_evidence(problem, generator):
    Phi, y = problem
    evidence = exact_log_marginal(Phi, y, NOISE)
    for M in (1, 4, 12):
        for noise in (1e-6, 1e-2):
            for _ in range(10):
                q = rand_posterior(1, M, generator)
                assert float(function_elbo(q, Phi, Phi[:M], y, noise)) < evidence


def test_gpytorch_agrees_on_the_evidence(problem):
    Phi, y = problem

    class Exact(gpytorch.models.ExactGP):
        def __init__(self, likelihood):
            super().__init__(Phi, y, likelihood)
            self.mean_module = gpytorch.means.ZeroMean()
            self.covar_module = gpytorch.kernels.LinearKernel()
            self.covar_module.variance = 2.0

        def forward(self, x):
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
    likelihood.noise = NOISE
    model = Exact(likelihood).double()
    model.covar_module.variance = 2.0
    model.train()
    evidence = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)(model(Phi), y) * len(y)
    assert exact_log_marginal(2**0.5 * Phi, y, NOISE) == pytest.approx(float(evidence.detach()), abs=1e-4)


def test_gpytorch_agrees_on_sparse_prediction_and_kl(problem, generator):
    """The same q(u) at the same points, in an independent implementation of the sparse GP."""
    Phi, _ = problem
    Z, q = Phi[:3], rand_posterior(1, 3, generator)
    distribution = gpytorch.variational.CholeskyVariationalDistribution(3).double()

    class Sparse(gpytorch.models.ApproximateGP):
        def __init__(self):
            strategy = gpytorch.variational.UnwhitenedVariationalStrategy(
                self, Z, distribution, learn_inducing_locations=False
            )
            super().__init__(strategy)
            self.covar_module = gpytorch.kernels.LinearKernel()
            self.covar_module.variance = 1.0

        def forward(self, x):
            mean = torch.zeros(x.shape[0], dtype=D)
            return gpytorch.distributions.MultivariateNormal(mean, self.covar_module(x))

    model = Sparse().double()
    model.covar_module.variance = 1.0
    model.variational_strategy.variational_params_initialized.fill_(1)
    with torch.no_grad():
        distribution.variational_mean.copy_(q.mean[0])
        distribution.chol_variational_covar.copy_(q.factor[0].tril())
    model.eval()
    with torch.no_grad():
        theirs = model(Phi)
        kl = model.variational_strategy.kl_divergence()
    mean, variance = function_moments(q, Phi, Z, 1e-6)[0]
    ours = function_moments(q, Phi, Z, 1e-3)[1]  # GPyTorch's prior over u has this much jitter
    torch.testing.assert_close(mean[:, 0], theirs.mean, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(variance[:, 0], theirs.variance, rtol=1e-2, atol=1e-2)
    assert float(ours) == pytest.approx(float(kl), rel=1e-6)


def test_function_space_gradients(generator):
    """The gradient that training uses, with respect to q, the features at x and at Z."""
    q = rand_posterior(2, 3, generator)
    Phi_x = torch.randn(4, 5, generator=generator, dtype=D)
    Phi_z = torch.randn(3, 5, generator=generator, dtype=D)

    def value(mean, factor, X, Z):
        (m, v), kl = function_moments(Posterior(mean, factor), X, Z, 1e-2)
        return m.sum() + v.square().sum() + kl

    inputs = [t.clone().requires_grad_() for t in (q.mean, q.factor, Phi_x, Phi_z)]
    assert torch.autograd.gradcheck(value, inputs)


def test_initial_posterior_is_the_prior_for_scale_one():
    q = initial_posterior(3, 4, 1.0, D, torch.device("cpu"))
    assert float(kl_weight(q, 1.0)) == pytest.approx(0.0, abs=1e-12)
    Phi = torch.randn(6, 4, generator=torch.Generator().manual_seed(0), dtype=D)
    torch.testing.assert_close(weight_moments(q, Phi).variance, Phi.square().sum(1, keepdim=True).expand(6, 3))
    small = initial_posterior(3, 4, 0.1, D, torch.device("cpu"))
    torch.testing.assert_close(
        weight_moments(small, Phi).variance, 0.01 * Phi.square().sum(1, keepdim=True).expand(6, 3)
    )


def by_autograd(q: Posterior, Phi: torch.Tensor, prior_variance: float) -> tuple[torch.Tensor, ...]:
    """Moments and KL of q by sums over the covariances, with nothing but elementary operations."""
    L = q.factor * torch.ones_like(q.factor).tril()
    covariance = torch.einsum("cij,ckj->cik", L, L)
    variance = torch.einsum("bi,cik,bk->bc", Phi, covariance, Phi)
    trace, C, K = covariance.diagonal(dim1=1, dim2=2).sum(), *q.mean.shape
    kl = 0.5 * (
        (trace + q.mean.square().sum()) / prior_variance
        - C * K
        + C * K * torch.tensor(prior_variance, dtype=D).log()
        - covariance.logdet().sum()
    )
    return torch.einsum("bi,ci->bc", Phi, q.mean), variance, kl


@pytest.mark.parametrize(("prior_variance", "K"), [(1.0, 5), (2.5, 5), (2.5, 37), (2.5, 53)])  # 1, 2 and 3 strips
def test_weight_space_and_its_gradient_are_those_of_the_definition(generator, prior_variance, K):
    q, Phi = rand_posterior(3, K, generator), torch.randn(7, K, generator=generator, dtype=D)
    q = Posterior(q.mean, torch.where(torch.eye(K, dtype=torch.bool), -q.factor, q.factor))  # any sign will do
    inputs = [part.clone().requires_grad_() for part in (q.mean, q.factor, Phi)]
    moments, kl = weight_space(Posterior(*inputs[:2]), inputs[2], prior_variance)
    expected = by_autograd(Posterior(*inputs[:2]), inputs[2], prior_variance)
    ours = (*moments, kl)
    weights = [torch.randn(part.shape, generator=generator, dtype=D) for part in ours]
    for parts in ([0, 1, 2], [0], [1], [2]):  # all together, and what is used by itself
        total = [sum((weights[i] * values[i]).sum() for i in parts) for values in (ours, expected)]
        torch.testing.assert_close(total[0], total[1])
        wanted = torch.autograd.grad(total[1], inputs, retain_graph=True, allow_unused=True, materialize_grads=True)
        found = torch.autograd.grad(total[0], inputs, retain_graph=True)
        torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(weight_moments(triangular(q), Phi), moments)
    torch.testing.assert_close(kl_weight(triangular(q), prior_variance), kl)


@pytest.mark.parametrize("K", [5, 37])
def test_weight_space_of_several_seeds_is_that_of_each(generator, K):
    each = [(*rand_posterior(3, K, generator)[:2], torch.randn(7, K, generator=generator, dtype=D)) for _ in range(4)]
    together = [torch.stack(parts).requires_grad_() for parts in zip(*each, strict=True)]

    def value(mean, factor, Phi):
        moments, kl = weight_space(Posterior(mean, factor), Phi, 1.5)
        return (moments.mean.sin() + moments.variance.log()).sum() + kl

    slopes = torch.autograd.grad(torch.vmap(value)(*together).sum(), together)
    for i, one in enumerate(each):
        alone = [part.clone().requires_grad_() for part in one]
        torch.testing.assert_close([slope[i] for slope in slopes], list(torch.autograd.grad(value(*alone), alone)))
