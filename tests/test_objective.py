"""The objective as a whole: its scale, its parts, its purity."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from frcl import MLP, FRCLOptions
from frcl.features import FEATURE_SCALE
from frcl.learners.objective import Constants, Draws, Objective, Parameters
from frcl.likelihoods import Bernoulli as BernoulliOf
from frcl.likelihoods import Softmax
from frcl.posterior import kl_weight, triangular
from frcl.regularisers import FunctionalKL
from frcl.regularisers.protocol import FeatureMap, stacked_points
from frcl.summary import belief_from_function, belief_from_weights, prior_kl_terms
from frcl.trees import named_tensors, stack, tree_map, with_tensors
from oracles import direct_prior_kl, rand_posterior

D = torch.float64
NOTHING = torch.empty(0, dtype=D)
SCALE = 0.7  # of the features


def Bernoulli() -> BernoulliOf:
    return BernoulliOf((0, 1))


def objective_of(net, likelihood, options, *, past=True) -> Objective:
    """FRCL of the paper: its KL is the only regulariser."""
    regularisers = [FunctionalKL(options.functional)] if past else []
    return Objective(FeatureMap(net), likelihood, options, regularisers, options.prior)


def constants_of(N, inputs=(), beliefs=(), Z=None, *, past=True) -> Constants:
    points = stacked_points(inputs) if len(inputs) else None
    own = (prior_kl_terms(beliefs) if len(beliefs) else (),) if past else ()
    fixed = {FEATURE_SCALE: torch.tensor(SCALE, dtype=D)}
    return Constants(torch.tensor(N, dtype=D), len(inputs), fixed, points, Z, own)


def draws_of(likelihood=NOTHING, tasks=None, *, past=True) -> Draws:
    return Draws(likelihood, tasks, ((),) if past else ())


@pytest.fixture
def setting(generator):
    """Two classes, two past tasks of different size, float64."""
    net = MLP(3, (6, 4), seed=5).double()
    options = FRCLOptions(prior_std=2.0**0.5, u_noise=1e-2)
    q = rand_posterior(1, 5, generator)
    params = Parameters(dict(net.named_parameters()), tree_map(lambda v: v.requires_grad_(), q), {})
    inputs = [torch.randn(M, 3, generator=generator, dtype=D) for M in (3, 6)]

    def phi(x):
        return torch.cat([SCALE * net(x), torch.ones(len(x), 1, dtype=D)], 1)

    beliefs = [
        belief_from_weights(rand_posterior(C, 5, generator), phi(Z).detach(), 1e-2, 2.0**0.5)
        for C, Z in zip((1, 4), inputs, strict=True)
    ]
    batch = torch.randn(8, 3, generator=generator, dtype=D), torch.arange(8) % 2
    return net, options, params, inputs, beliefs, batch, phi


def test_scale_and_parts(setting):
    """loss = mean negative log-likelihood + (KL now + Σ KL past)/N, each part by an independent way."""
    net, options, params, inputs, beliefs, (x, y), phi = setting
    with torch.no_grad():
        for Z in inputs:
            Z.add_(0.3)  # the network has moved relative to the stored beliefs
    objective = objective_of(net, Bernoulli(), options)
    terms = objective(params, constants_of(50.0, inputs, beliefs), x, y, draws_of())
    q = params.posterior
    Phi = phi(x)
    mean, L = Phi @ q.mean[0], q.factor[0].tril()
    variance = (Phi @ L).square().sum(1)
    expected = Bernoulli().expected_log_prob(mean[:, None], variance[:, None], y, torch.empty(0), {}).mean()
    past = sum(direct_prior_kl(2**0.5 * phi(Z), b) for Z, b in zip(inputs, beliefs, strict=True))
    torch.testing.assert_close(terms.log_likelihood, expected)
    torch.testing.assert_close(terms.kl_now, kl_weight(triangular(q), 2.0) / 50)
    torch.testing.assert_close(terms.kl_past, past / 50)
    torch.testing.assert_close(terms.loss, -expected + kl_weight(triangular(q), 2.0) / 50 + past / 50)
    ours = torch.autograd.grad(terms.loss, [value for _, value in named_tensors(params)])
    direct_loss = -expected + kl_weight(triangular(q), 2.0) / 50 + past / 50
    direct = torch.autograd.grad(direct_loss, [value for _, value in named_tensors(params)])
    for a, b in zip(ours, direct, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("inference", ["weight", "function"])
def test_the_kl_of_the_current_task_may_be_weighed(setting, inference):
    net, options, params, inputs, _, batch, _ = setting
    Z = None if inference == "weight" else inputs[1][:5]
    terms = [
        objective_of(net, Bernoulli(), replace(options, inference=inference, prior_weight=weight))(
            params, constants_of(50.0, Z=Z), *batch, draws_of()
        )
        for weight in (1.0, 3.0)
    ]
    torch.testing.assert_close(terms[1].kl_now, 3.0 * terms[0].kl_now)
    torch.testing.assert_close(terms[1].loss, terms[0].loss + 2.0 * terms[0].kl_now)


def test_one_sampled_task_counts_for_all(setting):
    net, options, params, inputs, beliefs, batch, _ = setting
    objective, constants = objective_of(net, Bernoulli(), options), constants_of(50.0, inputs, beliefs)
    draws = [draws_of(tasks=torch.tensor([i])) for i in range(2)]
    parts = [objective(params, constants, *batch, d).kl_past for d in draws]
    whole = objective(params, constants, *batch, draws_of()).kl_past
    torch.testing.assert_close((parts[0] + parts[1]) / 2, whole)


def test_minibatches_estimate_the_full_objective(setting):
    """The mean over minibatches that cover the data is the loss on all of it."""
    net, options, params, *_, (x, y), _ = setting
    objective, constants, none = objective_of(net, Bernoulli(), options), constants_of(8.0), draws_of()
    whole = objective(params, constants, x, y, none).loss
    parts = [objective(params, constants, x[i : i + 2], y[i : i + 2], none).loss for i in range(0, 8, 2)]
    torch.testing.assert_close(torch.stack(parts).mean(), whole)


def test_calling_it_changes_nothing_and_repeats(setting, global_random_state_untouched):
    net, options, params, inputs, beliefs, batch, _ = setting
    objective = objective_of(net, Softmax((0, 1), samples=2), options)
    params = params._replace(posterior=rand_posterior(2, 5, torch.Generator().manual_seed(0)))
    before = {name: value.detach().clone() for name, value in named_tensors(params)}
    constants = constants_of(50.0, inputs, beliefs)
    draws = draws_of(torch.randn(2, 8, 2, generator=torch.Generator().manual_seed(0), dtype=D))
    first = objective(params, constants, *batch, draws)
    second = objective(params, constants, *batch, draws)
    assert torch.equal(first.loss, second.loss)
    assert all(torch.equal(before[name], value) for name, value in named_tensors(params))


def test_it_can_be_mapped_over_seeds(setting):
    """A leading axis over parameters and noise gives what single calls give."""
    net, options, params, inputs, beliefs, batch, _ = setting
    objective, constants = objective_of(net, Bernoulli(), options), constants_of(50.0, inputs, beliefs)
    single = [{name: value.detach() + shift for name, value in named_tensors(params)} for shift in (0.0, 0.01)]

    def loss(flat):
        return objective(with_tensors(params, flat), constants, *batch, draws_of()).loss

    together = torch.func.vmap(torch.func.grad(loss))(stack(single))
    for i, one in enumerate(single):
        for name, value in torch.func.grad(loss)(one).items():
            torch.testing.assert_close(together[name][i], value, rtol=1e-8, atol=1e-10)


def test_function_space_objective_has_the_same_shape(setting, generator):
    net, _, params, inputs, _, batch, phi = setting
    options = FRCLOptions(prior_std=2.0**0.5, u_noise=1e-2, inference="function", selection="random")
    q = rand_posterior(1, 3, generator)
    params = params._replace(posterior=q)
    terms = objective_of(net, Bernoulli(), options)(params, constants_of(50.0, Z=inputs[0]), *batch, draws_of())
    expected = direct_prior_kl(2**0.5 * phi(inputs[0]), belief_from_function(q, 1e-2)) / 50
    torch.testing.assert_close(terms.kl_now, expected)
    torch.testing.assert_close(terms.loss, -terms.log_likelihood + terms.kl_now)


def test_the_network_is_called_once_per_step(setting):
    """Current batch and past points share one pass through the network."""
    net, options, params, inputs, beliefs, batch, _ = setting
    calls = []

    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = net

        def forward(self, x):
            calls.append(len(x))
            return self.inner(x)

    wrapped = params._replace(theta={f"inner.{name}": value for name, value in params.theta.items()})
    constants = constants_of(50.0, inputs, beliefs)
    objective_of(Counting(), Bernoulli(), options)(wrapped, constants, *batch, draws_of())
    assert calls == [8 + 2 * 6]
