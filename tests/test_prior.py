"""The prior of the last-layer weights: a given σ_w, and one that is learned by empirical Bayes."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from scipy.optimize import minimize_scalar
from torch.distributions import MultivariateNormal, kl_divergence

import frcl
from frcl import FRCL, MLP, OptionError
from frcl.engine.program import gradient
from frcl.learners.objective import Parameters
from frcl.learners.task import program_of
from frcl.posterior import (
    Posterior,
    Prior,
    aligned_mean,
    function_moments,
    initial_posterior,
    kernel_features,
    kl_weight,
    learned_prior_variance,
    triangular,
    weight_space,
)
from frcl.summary import (
    belief_from_function,
    belief_from_weights,
    head_moments,
    make_head,
    prior_kl,
    prior_kl_terms,
    recentred,
)
from frcl.trees import detached, leaf, named_tensors, tree_map
from oracles import direct_prediction, direct_prior_kl, direct_trace, rand_posterior
from streams import blobs, same_tensors

D = torch.float64
SHAPES = [(3, 8), (8, 8), (15, 8), (1, 5), (12, 4)]  # (M, K): M < K, M = K, M > K
X, Y = blobs((0, 1, 2), 90, 1)


def features(M: int, K: int, g: torch.Generator) -> torch.Tensor:
    return torch.randn(M, K, generator=g, dtype=D)


def direct_kl(q: Posterior, variance: torch.Tensor | float) -> torch.Tensor:
    """Σ_c KL(q(w_c) ‖ N(0, s I)) through torch.distributions."""
    K = q.mean.shape[1]
    L = q.factor.tril()
    prior = MultivariateNormal(torch.zeros(K, dtype=D), covariance_matrix=variance * torch.eye(K, dtype=D))
    each = [
        kl_divergence(MultivariateNormal(m, covariance_matrix=F @ F.mT), prior) for m, F in zip(q.mean, L, strict=True)
    ]
    return torch.stack(each).sum()


# -- the learned variance ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("C", "K"), [(1, 1), (1, 6), (3, 6), (10, 4)])
def test_the_learned_variance_is_where_the_kl_is_least(generator, C, K):
    q = rand_posterior(C, K, generator)
    found = float(learned_prior_variance(triangular(q)))
    assert found == pytest.approx(float((q.mean.square().sum() + q.factor.tril().square().sum()) / (C * K)))
    least = minimize_scalar(
        lambda log_s: float(direct_kl(q, math.exp(log_s))), bracket=(-3.0, 3.0), options={"xtol": 1e-10}
    )
    assert found == pytest.approx(math.exp(least.x), rel=1e-5)
    assert float(kl_weight(triangular(q), learned_prior_variance(triangular(q)))) == pytest.approx(least.fun, rel=1e-9)


def direct_weight_space(q: Posterior, Phi: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Moments, and the KL at its least as ½ C K log s − Σ log|L_ii|, by plain differentiable operations."""
    L = q.factor.tril()
    s = (q.mean.square().sum() + L.square().sum()) / q.mean.numel()
    kl = 0.5 * q.mean.numel() * s.log() - L.diagonal(dim1=1, dim2=2).abs().log().sum()
    return Phi @ q.mean.mT, torch.einsum("bk,ckj->bcj", Phi, L).square().sum(-1), kl


@pytest.mark.parametrize(("C", "K"), [(1, 6), (3, 6)])
def test_weight_space_with_a_learned_prior_and_its_gradient(generator, C, K):
    q, Phi = rand_posterior(C, K, generator), features(5, K, generator)
    weights = [torch.randn(5, C, generator=generator, dtype=D) for _ in range(2)]
    results = []
    for compute in (lambda q, Phi: weight_space(q, Phi, None), direct_weight_space):
        own = [leaf(value) for value in (*q[:2], Phi)]
        answer = compute(Posterior(*own[:2]), own[2])
        (mean, variance), kl = answer if len(answer) == 2 else (answer[:2], answer[2])
        loss = (weights[0] * mean).sum() + (weights[1] * variance).sum() + 0.7 * kl
        results.append((mean, variance, kl, *torch.autograd.grad(loss, own)))
        only_kl = torch.autograd.grad(compute(Posterior(*own[:2]), own[2])[-1], own[:2])
        results[-1] += tuple(only_kl)
    for ours, direct in zip(*results, strict=True):
        torch.testing.assert_close(ours, direct, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(results[0][2], direct_kl(q, learned_prior_variance(triangular(q))))


def test_a_learned_prior_of_several_posteriors_at_once(generator):
    """Under vmap every posterior has its own σ_w."""
    each = [rand_posterior(2, 5, generator, scale) for scale in (0.1, 3.0)]
    Phi = torch.stack([features(4, 5, generator) for _ in each])
    block = tree_map(lambda *values: leaf(torch.stack(values)), *each)
    kl = torch.vmap(lambda mean, factor, Phi: weight_space(Posterior(mean, factor), Phi, None)[1])(*block[:2], Phi)
    slopes = torch.autograd.grad(kl.sum(), list(block[:2]))
    for i, q in enumerate(each):
        own = Posterior(*(leaf(value) for value in q[:2]))
        alone = direct_weight_space(own, Phi[i])[2]
        torch.testing.assert_close(kl[i], alone)
        for together, single in zip(slopes, torch.autograd.grad(alone, list(own[:2])), strict=True):
            torch.testing.assert_close(together[i], single)


def test_the_setting_is_a_number_or_learned(generator):
    q = triangular(rand_posterior(3, 4, generator))
    assert (Prior().fixed_variance, Prior(2.0).fixed_variance, Prior("learned").fixed_variance) == (1.0, 4.0, None)
    assert (Prior(2.0).variance(q), Prior(2.0).std(q)) == (4.0, 2.0)
    assert torch.equal(Prior("learned").variance(q), learned_prior_variance(q))
    assert Prior("learned").std(q) == pytest.approx(float(learned_prior_variance(q)) ** 0.5)
    Phi = features(3, 4, generator)
    assert kernel_features(Phi, 1.0) is Phi
    assert torch.equal(kernel_features(Phi, 2.0), 2.0 * Phi)
    for given, message in [
        ({"prior_std": "lerned"}, "prior_std must be a number or 'learned', not 'lerned'"),
        ({"prior_std": 0.0}, "prior_std must be a positive number"),
        ({"prior_std": math.inf}, "prior_std must be a positive number"),
        ({"prior_std": True}, "prior_std"),
        ({"prior_std": None}, "prior_std"),
    ]:
        with pytest.raises(OptionError, match=message):
            FRCL(MLP(4, (3,)), **given)


# -- a given σ_w -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("M", "K"), SHAPES)
@pytest.mark.parametrize("std", [0.3, 2.5])
def test_kl_and_its_gradient_with_a_prior_std(generator, M, K, std):
    """Against a dense KL through torch.distributions, differentiated by the features."""
    belief = belief_from_weights(rand_posterior(3, K, generator), features(M, K, generator), 1e-2, std)
    assert belief.prior_std == std
    moved = features(M, K, generator)
    ours, direct = leaf(moved), leaf(moved)
    value, expected = prior_kl(ours[None], prior_kl_terms([belief]))[0], direct_prior_kl(std * direct, belief)
    torch.testing.assert_close(value, expected, rtol=1e-9, atol=1e-9)
    (0.3 * value).backward()
    (0.3 * expected).backward()
    scale = direct.grad.abs().max()
    torch.testing.assert_close(ours.grad / scale, direct.grad / scale, rtol=0, atol=1e-8)


def test_tasks_with_different_stds_in_one_block(generator):
    K, sizes, stds = 6, (3, 9, 6), (0.5, 1.0, 4.0)
    beliefs = [
        belief_from_weights(rand_posterior(2, K, generator), features(M, K, generator), 1e-2, std)
        for M, std in zip(sizes, stds, strict=True)
    ]
    padded = leaf(torch.randn(3, 9, K, generator=generator, dtype=D))
    total = prior_kl(padded, prior_kl_terms(beliefs)).sum()
    total.backward()
    alone = []
    for i, (M, std, belief) in enumerate(zip(sizes, stds, beliefs, strict=True)):
        live = leaf(padded[i, :M])
        alone.append(direct_prior_kl(std * live, belief))
        alone[-1].backward()
        torch.testing.assert_close(padded.grad[i, :M], live.grad, rtol=1e-6, atol=1e-8)
        assert (padded.grad[i, M:] == 0).all()
    torch.testing.assert_close(total.detach(), torch.stack(alone).sum().detach())


@pytest.mark.parametrize(("M", "K"), SHAPES)
def test_a_given_std_is_the_features_scaled_by_hand(generator, M, K):
    std, q = 1.7, rand_posterior(3, K, generator)
    at_end, Phi, Phi_x = features(M, K, generator), features(M, K, generator), features(7, K, generator)
    belief = belief_from_weights(q, at_end, 1e-2, std)
    plain = replace(belief, prior_std=1.0)
    torch.testing.assert_close(
        prior_kl(Phi[None], prior_kl_terms([belief])), prior_kl(std * Phi[None], prior_kl_terms([plain]))
    )
    found = head_moments(make_head(Phi, belief), Phi_x)
    for expected in (
        head_moments(make_head(std * Phi, plain), std * Phi_x),
        direct_prediction(std * Phi_x, std * Phi, belief),
    ):
        for ours, other in zip(found, expected, strict=True):
            torch.testing.assert_close(ours, other, rtol=1e-7, atol=1e-8)
    torch.testing.assert_close(Phi_x @ make_head(Phi, belief).weights, found.mean)
    v = torch.randn(3, K, generator=generator, dtype=D)  # f ~ GP(φᵀv, k): what is left of u is predicted
    rest = replace(belief, mean=belief.mean - v @ Phi.mT)
    expected = Phi_x @ v.mT + direct_prediction(std * Phi_x, std * Phi, rest)[0]
    torch.testing.assert_close(Phi_x @ recentred(make_head(Phi, belief), Phi, belief, v).weights, expected)


def test_a_given_std_in_function_space(generator):
    std, q = 1.7, rand_posterior(3, 5, generator)
    Phi_x, Phi_z = features(7, 8, generator), features(5, 8, generator)
    moments, kl = function_moments(q, Phi_x, Phi_z, 1e-2, std)
    expected, expected_kl = function_moments(q, std * Phi_x, std * Phi_z, 1e-2)
    for ours, other in (*zip(moments, expected, strict=True), (kl, expected_kl)):
        torch.testing.assert_close(ours, other)
    belief = belief_from_function(q, 1e-2, std)
    torch.testing.assert_close(kl, direct_prior_kl(std * Phi_z, belief))
    torch.testing.assert_close(moments.mean, direct_prediction(std * Phi_x, std * Phi_z, belief)[0])


@pytest.mark.parametrize("inference", ["weight", "function"])
def test_a_given_std_in_a_learner(inference):
    one = learner(prior_std=2.0, inference=inference)
    belief = one.fit(X, Y).belief
    assert belief.prior_std == 2.0
    p, expected = one.predict(X), direct_prediction(2.0 * phi(one, X), 2.0 * phi(one, one.tasks[0].Z), belief)
    torch.testing.assert_close(p.mean, expected[0], rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(p.variance, expected[1], rtol=1e-6, atol=1e-8)


# -- a learner with a learned σ_w ------------------------------------------------------------------------------


def learner(**options) -> FRCL:
    given = {"points": 6, "steps": 40, "lr": 1e-2, "search_steps": 20, "u_noise": 1e-2, "prior_std": "learned"}
    return FRCL(MLP(4, (16, 8), seed=1).double(), **{**given, **options})


def phi(one: FRCL, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return torch.cat([one.feature_scale * one.net(x.double()), torch.ones(len(x), 1, dtype=D)], 1)


def test_the_learned_std_is_kept_with_the_summary_and_used(tmp_path):
    one, ends = learner(), []

    def keep(log) -> None:
        if log.step == 40:
            ends.append(tree_map(lambda value: value.detach().clone(), one._state.current.params.posterior))

    summary = one.fit(X, Y, on_step=keep)
    mean, L = ends[0].mean, ends[0].factor.tril()
    std = float((mean.square().sum() + L.square().sum()) / mean.numel()) ** 0.5
    assert summary.belief.prior_std == pytest.approx(std, rel=1e-12)
    assert abs(std - 1.0) > 0.2
    rows = torch.tensor([int((X.double() == row).all(1).nonzero()[0]) for row in summary.Z])
    assert summary.after == pytest.approx(direct_trace(std * phi(one, X), rows, 1e-2), rel=1e-6)
    one.start_task(labels=(0, 1, 2), size=90)
    one.observe(X[:30], Y[:30])
    one.save(tmp_path / "one.frcl")
    for learned in (one, frcl.load(tmp_path / "one.frcl", MLP(4, (16, 8)).double())):
        assert learned.tasks[0].belief.prior_std == summary.belief.prior_std
        Phi_x, Phi_z = std * phi(one, X), std * phi(one, summary.Z)
        p = learned.predict(X, task=0)
        for ours, expected in zip((p.mean, p.variance), direct_prediction(Phi_x, Phi_z, summary.belief), strict=True):
            torch.testing.assert_close(ours, expected, rtol=1e-6, atol=1e-8)
        torch.testing.assert_close(learned.mean(X, task=0), p.mean)
        assert learned.past_divergences() == [pytest.approx(float(direct_prior_kl(Phi_z, summary.belief)))]


def test_the_score_has_the_variance_of_the_learned_prior():
    one = learner()
    one.start_task(labels=(0, 1, 2), size=90)
    for _ in range(3):
        one.observe(X[:30], Y[:30])
    q = one._state.current.params.posterior
    now, s = one.predict(X, task=0), float(learned_prior_variance(triangular(q)).detach())
    k = s * phi(one, X).square().sum(1, keepdim=True)
    expected = 0.25 * ((now.variance + now.mean**2) / k + (k + now.mean**2) / now.variance - 2)
    torch.testing.assert_close(one.familiarity(X), expected, rtol=1e-6, atol=1e-9)


def test_the_current_kl_is_the_least_over_the_prior():
    one, seen = learner(steps=5), []

    def look(log) -> None:
        seen.append((log.kl_now, tree_map(lambda value: value.detach().clone(), one._state.current.params.posterior)))

    one.fit(X, Y, on_step=look)
    for (_, before), (kl_now, _) in pairwise(seen):  # a log is of the posterior before its step
        least = float(direct_kl(before, learned_prior_variance(triangular(before))))
        assert kl_now == pytest.approx(least / 90, rel=1e-9)


@pytest.mark.parametrize("c", [0.1, 7.0])
def test_the_scale_of_the_features_does_not_matter_where_the_prior_is_learned(c):
    """Φ → cΦ, bias column included, and w → w/c: loss, all its parts and the gradient of the network are the same.

    The weight of the bias has the same prior as the others, so its feature must be scaled along.
    """
    one = learner(steps=10)
    for seed in (1, 2):
        one.fit(*blobs((0, 1, 2), 90, seed))
    one.start_task(labels=(0, 1, 2), size=90)
    one.observe(X[:30], Y[:30])
    current = one._state.current
    program = program_of(one._model, one._state, current, X.double(), Y, stream=True)
    objective, constants = program.loss, program.constants
    draws = tree_map(lambda value: value[0], program.draw(1)).draws
    terms = constants.regularisers[0]
    assert len(terms.prior_std.unique()) == 2  # each past task has its own
    scaled_terms = terms._replace(prior_std=terms.prior_std / c)
    scaled_constants = constants._replace(regularisers=(scaled_terms,))

    def scaled_features(theta, x):
        return c * objective.features(theta, x)

    def at(loss, given, params: Parameters) -> tuple:
        own = tree_map(leaf, params)
        found = loss(own, given, X.double(), Y, draws)
        return detached(found), gradient(found.loss, dict(named_tensors(own)))

    plain = current.params
    divided = plain._replace(posterior=Posterior(*(value / c for value in plain.posterior[:2])))
    scaled = replace(objective, features=scaled_features)
    terms_a, slopes_a = at(objective, constants, plain)
    terms_b, slopes_b = at(scaled, scaled_constants, divided)
    for a, b in zip(terms_a, terms_b, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)
    assert float(terms_a.kl_past) > 0
    for name, slope in slopes_a.items():
        expected = c * slope if name.startswith("posterior/") else slope
        torch.testing.assert_close(slopes_b[name], expected, rtol=1e-7, atol=1e-9)
    before, after = (replace(one, prior=Prior(1.0)) for one in (objective, scaled))  # a given σ_w: another model
    moved = at(after, scaled_constants, divided)[0].kl_now - at(before, constants, plain)[0].kl_now
    assert abs(float(moved)) > 0.1


def test_learners_with_a_learned_prior_learn_together_as_they_do_alone():
    tasks = [blobs((0, 1, 2), 60, seed) for seed in (1, 2)]
    options = {"points": 6, "steps": 20, "search_steps": 20, "prior_std": "learned"}
    ensemble = frcl.Ensemble(MLP(4, (8,), seed=1).double(), 2, **options)
    lone = [FRCL(MLP(4, (8,), seed=1).double(), seed=i, **options) for i in range(2)]
    for x, y in tasks:
        ensemble.fit(x, y)
        for one in lone:
            one.fit(x, y)
    for member, one in zip(ensemble.members, lone, strict=True):
        for summary, expected in zip(member.tasks, one.tasks, strict=True):
            assert summary.belief.prior_std == pytest.approx(expected.belief.prior_std, rel=1e-10)
        torch.testing.assert_close(member.predict(X, 0).mean, one.predict(X, 0).mean)
    stds = [summary.belief.prior_std for member in ensemble.members for summary in member.tasks]
    assert len(set(stds)) == 4


def test_an_interrupted_task_with_a_learned_prior_goes_on_exactly():
    whole, part, states = learner(), learner(), []
    whole.fit(X, Y, on_step=lambda log: states.append(whole.state_dict()) if log.step == 11 else None)
    part.load_state_dict(states[0])
    part.fit(X, Y)
    assert same_tensors(part.state_dict()["tensors"], whole.state_dict()["tensors"])
    assert part.state_dict()["meta"] == whole.state_dict()["meta"]


# -- the initial mean of q(w) ----------------------------------------------------------------------------------


def test_a_random_initial_mean_has_the_variance_that_is_asked_for(generator):
    zero = initial_posterior(400, 26, 0.2, D, torch.device("cpu"))
    drawn = initial_posterior(400, 26, 0.2, D, torch.device("cpu"), generator=generator, random_mean=True)
    assert not zero.mean.any()
    assert torch.equal(drawn.factor, zero.factor)
    assert not drawn.mean[:, -1].any(), "the bias starts at zero"
    weights = drawn.mean[:, :-1]
    assert abs(float(weights.mean())) < 4 * 0.2 / weights.numel() ** 0.5
    assert float(weights.var()) == pytest.approx(0.04, rel=0.06)


def test_the_initial_mean_comes_from_the_learners_own_stream(global_random_state_untouched):
    """The same for the same seed, another for another; features get a gradient in the very first step."""

    def opened(seed: int, **options):
        learner = frcl.FRCL(frcl.MLP(4, (16, 8), seed=1), points=5, seed=seed, lr=1e-9, **options)
        learner.start_task(labels=(0, 1, 2))
        learner.observe(*blobs((0, 1, 2), 60, 1))
        return learner._state.current

    one, same, other = (opened(seed) for seed in (3, 3, 4))
    assert torch.equal(one.params.posterior.mean, same.params.posterior.mean)
    assert not torch.allclose(one.params.posterior.mean, other.params.posterior.mean, atol=1e-3)
    zero = opened(3, initial_mean="zero")
    moved = [float(current.optimiser.exp_avg["theta/layers.1.weight"].abs().sum()) for current in (one, zero)]
    assert moved[0] > 5 * moved[1]  # with a mean of zero only the variance has a gradient


def test_every_task_begins_with_a_mean_of_its_own():
    """Drawn again for each task, zero for the bias, with L = initial_std · I/√K."""
    one, starts = FRCL(MLP(4, (16, 8), seed=1), points=5, steps=1, lr=1e-12, initial_std=0.3, initial_mean="random"), []
    for seed in (1, 2):
        one.fit(*blobs((0, 1, 2), 60, seed), on_step=lambda log: starts.append(one._state.current.params.posterior))
    first, second = (q.mean.detach() for q in starts)
    assert first.abs().min(0).values[:-1].max() > 0
    assert not first[:, -1].abs().max() > 1e-6
    assert not torch.allclose(first, second, atol=1e-3)
    for q in starts:
        torch.testing.assert_close(q.factor.detach(), 0.3 / 3 * torch.eye(9).expand(3, -1, -1))


def randn(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=D)


def test_an_aligned_mean_is_the_posterior_mean_of_a_gaussian_model_made_small():
    """Against ridge regression solved by least squares, and the size that is asked for."""
    Phi, y = randn(40, 6, seed=1), randn(40, 3, seed=2)
    ridge = 0.01 * float(Phi.square().sum()) / 6
    rows, targets = torch.cat([Phi, ridge**0.5 * torch.eye(6, dtype=D)]), torch.cat([y, torch.zeros(6, 3, dtype=D)])
    expected = torch.linalg.lstsq(rows, targets).solution.mT
    found = aligned_mean(Phi, y / 0.7, 0.3, torch.zeros(3, 6, dtype=D))
    torch.testing.assert_close(found / found.norm(), expected / expected.norm())
    torch.testing.assert_close((Phi @ found.mT).square().mean().sqrt(), torch.tensor(0.3, dtype=D))
    torch.testing.assert_close(aligned_mean(Phi, y / 0.7, 0.3, found), aligned_mean(Phi, 5.0 * y, 0.3, found))
    otherwise = randn(3, 6, seed=4)
    assert torch.equal(aligned_mean(Phi, 0.0 * y, 0.3, otherwise), otherwise)


def test_the_first_mean_is_aligned_with_the_data_and_later_ones_are_drawn():
    """The gradient at f = 0 is one-hot less 1/C for softmax and y − ½ for bernoulli: a regression on the classes."""
    data = {"softmax": blobs((0, 1, 2), 60, 1), "bernoulli": blobs((0, 1), 60, 1)}
    for name, (x, y) in data.items():
        means = {}
        for start in ("auto", "aligned", "random"):
            one = FRCL(MLP(4, (16, 8), seed=1), points=5, steps=1, lr=1e-12, initial_mean=start)
            each = means.setdefault(start, [])
            for _ in range(2):
                one.fit(x, y, on_step=lambda log, one=one, each=each: each.append(
                    one._state.current.params.posterior.mean.detach().clone()))  # fmt: skip
        Phi = torch.cat([one.feature_scale * MLP(4, (16, 8), seed=1)(x), torch.ones(len(x), 1)], 1).detach()
        classes = torch.nn.functional.one_hot(y).float() - 1 / 3 if name == "softmax" else y[:, None] - 0.5
        expected = aligned_mean(Phi, classes, 0.3, means["random"][0])
        torch.testing.assert_close(means["auto"][0], expected, rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(means["aligned"][1], expected, rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(means["auto"][1], means["random"][1])
        assert not torch.allclose(means["random"][0], expected, atol=0.01)


def test_a_stream_begins_with_a_drawn_mean():
    """Its first minibatch need not show every class."""
    (x, y), starts = blobs((0, 1, 2), 60, 1), []
    for start in ("aligned", "random"):
        one = FRCL(MLP(4, (16, 8), seed=1), points=5, lr=1e-12, initial_mean=start)
        one.start_task(labels=(0, 1, 2))
        one.observe(x[:20], y[:20])
        starts.append(one._state.current.params.posterior.mean.detach())
    torch.testing.assert_close(*starts)


def test_in_function_space_the_mean_is_zero_and_the_prior_is_given():
    """The defaults of weight space stand for these: a mean of zero, L = initial_std · I, σ_w = 1."""
    one, starts = learner(inference="function", lr=1e-12, initial_std=0.3, steps=1), []
    summary = one.fit(X, Y, on_step=lambda log: starts.append(one._state.current.params.posterior))
    assert starts[0].mean.detach().abs().max() < 1e-6
    torch.testing.assert_close(starts[0].factor.detach(), 0.3 * torch.eye(6, dtype=D).expand(3, -1, -1))
    assert summary.belief.prior_std == 1.0
