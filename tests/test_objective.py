"""The objective as a whole: its scale, its parts, its purity."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from frcl import MLP, FRCLOptions
from frcl.engine.tensors import Params
from frcl.learners.objective import Memory, Noise, Objective
from frcl.likelihoods import Bernoulli, Softmax
from frcl.posterior import Posterior, kl_weight, triangular
from frcl.regularisers.functional import make_bank
from frcl.summary import belief_from_weights, prior_kl_terms
from oracles import direct_prior_kl, rand_posterior

D = torch.float64


@pytest.fixture
def setting(generator):
    """Two classes, two past tasks of different size, float64."""
    net = MLP(3, (6, 4), seed=5).double()
    options = FRCLOptions(prior_std=2.0**0.5, feature_scale=0.7, u_noise=1e-2)
    q = rand_posterior(1, 5, generator)
    params: Params = {f"theta/{n}": p for n, p in net.named_parameters()}
    params |= {"posterior/mean": q.mean.requires_grad_(), "posterior/factor": q.factor.requires_grad_()}
    inputs = [torch.randn(M, 3, generator=generator, dtype=D) for M in (3, 6)]

    def phi(x):
        return torch.cat([0.7 * net(x), torch.ones(len(x), 1, dtype=D)], 1)

    beliefs = [
        belief_from_weights(rand_posterior(C, 5, generator), phi(Z).detach(), 1e-2)
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
    objective = Objective(net, Bernoulli(), options)
    memory = Memory(50.0, make_bank(inputs, [prior_kl_terms(belief) for belief in beliefs]), None)
    terms = objective(params, memory, (x, y), Noise(torch.empty(0, dtype=D), None))
    q = Posterior(params["posterior/mean"], params["posterior/factor"])
    Phi = phi(x)
    mean, L = Phi @ q.mean[0], q.factor[0].tril()
    variance = (Phi @ L).square().sum(1)
    expected = Bernoulli().expected_log_prob(mean[:, None], variance[:, None], y, torch.empty(0), {}).mean()
    past = sum(direct_prior_kl(2**0.5 * phi(Z), b) for Z, b in zip(inputs, beliefs, strict=True))
    torch.testing.assert_close(terms.log_likelihood, expected)
    torch.testing.assert_close(terms.kl_now, kl_weight(triangular(q), 2.0) / 50)
    torch.testing.assert_close(terms.kl_past, past / 50)
    torch.testing.assert_close(terms.loss, -expected + kl_weight(triangular(q), 2.0) / 50 + past / 50)
    ours = torch.autograd.grad(terms.loss, list(params.values()))
    direct_loss = -expected + kl_weight(triangular(q), 2.0) / 50 + past / 50
    direct = torch.autograd.grad(direct_loss, list(params.values()))
    for a, b in zip(ours, direct, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("inference", ["weight", "function"])
def test_the_kl_of_the_current_task_may_be_weighed(setting, inference):
    net, options, params, inputs, _, batch, _ = setting
    Z = None if inference == "weight" else inputs[1][:5]
    terms = [
        Objective(net, Bernoulli(), replace(options, inference=inference, prior_weight=weight))(
            params, Memory(50.0, None, Z), batch, Noise(torch.empty(0, dtype=D), None)
        )
        for weight in (1.0, 3.0)
    ]
    torch.testing.assert_close(terms[1].kl_now, 3.0 * terms[0].kl_now)
    torch.testing.assert_close(terms[1].loss, terms[0].loss + 2.0 * terms[0].kl_now)


def test_one_sampled_task_counts_for_all(setting):
    net, options, params, inputs, beliefs, batch, _ = setting
    objective = Objective(net, Bernoulli(), options)
    memory = Memory(50.0, make_bank(inputs, [prior_kl_terms(belief) for belief in beliefs]), None)
    noise = [Noise(torch.empty(0, dtype=D), torch.tensor([i])) for i in range(2)]
    parts = [objective(params, memory, batch, n).kl_past for n in noise]
    whole = objective(params, memory, batch, Noise(torch.empty(0, dtype=D), None)).kl_past
    torch.testing.assert_close((parts[0] + parts[1]) / 2, whole)


def test_minibatches_estimate_the_full_objective(setting):
    """The mean over minibatches that cover the data is the loss on all of it."""
    net, options, params, *_, (x, y), _ = setting
    objective = Objective(net, Bernoulli(), options)
    memory, none = Memory(8.0, None, None), Noise(torch.empty(0, dtype=D), None)
    whole = objective(params, memory, (x, y), none).loss
    parts = [objective(params, memory, (x[i : i + 2], y[i : i + 2]), none).loss for i in range(0, 8, 2)]
    torch.testing.assert_close(torch.stack(parts).mean(), whole)


def test_calling_it_changes_nothing_and_repeats(setting, global_random_state_untouched):
    net, options, params, inputs, beliefs, batch, _ = setting
    objective = Objective(net, Softmax(samples=2), options)
    q = rand_posterior(2, 5, torch.Generator().manual_seed(0))
    params = params | {"posterior/mean": q.mean, "posterior/factor": q.factor}
    before = {name: value.detach().clone() for name, value in params.items()}
    memory = Memory(50.0, make_bank(inputs, [prior_kl_terms(belief) for belief in beliefs]), None)
    noise = Noise(torch.randn(2, 8, 2, generator=torch.Generator().manual_seed(0), dtype=D), None)
    first = objective(params, memory, batch, noise)
    second = objective(params, memory, batch, noise)
    assert torch.equal(first.loss, second.loss)
    assert all(torch.equal(before[name], params[name]) for name in before)


def test_it_can_be_mapped_over_seeds(setting):
    """A leading axis over parameters and noise gives what single calls give."""
    net, options, params, inputs, beliefs, batch, _ = setting
    objective = Objective(net, Bernoulli(), options)
    memory = Memory(50.0, make_bank(inputs, [prior_kl_terms(belief) for belief in beliefs]), None)
    none = Noise(torch.empty(0, dtype=D), None)
    shifted = {name: value.detach() + 0.01 for name, value in params.items()}
    stacked = {name: torch.stack([params[name].detach(), shifted[name]]) for name in params}
    gradient = torch.func.grad(lambda p: objective(p, memory, batch, none).loss)
    together = torch.func.vmap(gradient)(stacked)
    for i, single in enumerate((params, shifted)):
        alone = gradient({name: value.detach() for name, value in single.items()})
        for name in alone:
            torch.testing.assert_close(together[name][i], alone[name], rtol=1e-8, atol=1e-10)


def test_function_space_objective_has_the_same_shape(setting, generator):
    net, _, params, inputs, _, batch, phi = setting
    options = FRCLOptions(prior_std=2.0**0.5, feature_scale=0.7, u_noise=1e-2, inference="function", selection="random")
    q = rand_posterior(1, 3, generator)
    params = params | {"posterior/mean": q.mean, "posterior/factor": q.factor}
    objective = Objective(net, Bernoulli(), options)
    terms = objective(params, Memory(50.0, None, inputs[0]), batch, Noise(torch.empty(0, dtype=D), None))
    from frcl.summary import belief_from_function

    expected = direct_prior_kl(2**0.5 * phi(inputs[0]), belief_from_function(q, 1e-2)) / 50
    torch.testing.assert_close(terms.kl_now, expected)
    torch.testing.assert_close(terms.loss, -terms.log_likelihood + terms.kl_now)


def test_the_network_is_called_once_a_step(setting):
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

    wrapped = {name.replace("theta/", "theta/inner."): value for name, value in params.items()}
    memory = Memory(50.0, make_bank(inputs, [prior_kl_terms(belief) for belief in beliefs]), None)
    Objective(Counting(), Bernoulli(), options)(wrapped, memory, batch, Noise(torch.empty(0, dtype=D), None))
    assert calls == [8 + 2 * 6]
