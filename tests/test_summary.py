import dataclasses

import pytest
import torch

from frcl.linalg import kl_to_zero_mean, low_rank_factor
from frcl.posterior import Posterior, function_moments, initial_posterior, kl_weight, triangular, weight_moments
from frcl.regularisers.protocol import FunctionalKL, Step, draw_penalties, of_tasks, stacked_points
from frcl.summary import (
    belief_from_function,
    belief_from_weights,
    head_moments,
    make_head,
    prior_kl,
    prior_kl_terms,
)
from oracles import covariances, direct_prediction, direct_prior_kl, rand_posterior

D = torch.float64
SHAPES = [(3, 8), (8, 8), (15, 8), (1, 5), (12, 4)]  # (M, K): M < K, M = K, M > K


def features(M: int, K: int, g: torch.Generator) -> torch.Tensor:
    return torch.randn(M, K, generator=g, dtype=D)


@pytest.mark.parametrize(("M", "K"), SHAPES)
def test_equation_5_and_its_compressed_factor(generator, M, K):
    q, Phi = rand_posterior(3, K, generator), features(M, K, generator)
    belief = belief_from_weights(q, Phi, 1e-3)
    torch.testing.assert_close(belief.mean, q.mean @ Phi.T)
    L = q.factor.tril()
    expected = Phi @ L @ L.mT @ Phi.T + 1e-3 * torch.eye(M, dtype=D)
    torch.testing.assert_close(covariances(belief), expected)
    assert belief.factor.shape == (3, M, min(M, K))


@pytest.mark.parametrize(("M", "K"), SHAPES)
@pytest.mark.parametrize("noise", [1e-3, 0.1])
def test_kl_equals_torch_distributions(generator, M, K, noise):
    belief = belief_from_weights(rand_posterior(3, K, generator), features(M, K, generator), noise)
    moved = features(M, K, generator)
    value = prior_kl(moved[None], prior_kl_terms([belief]))
    torch.testing.assert_close(value[0], direct_prior_kl(moved, belief), rtol=1e-9, atol=1e-9)


def test_the_constants_of_a_task_are_found_once(generator, monkeypatch):
    """Otherwise the beginning of a task would factorise the matrices of all tasks before it."""
    calls = []
    factor = low_rank_factor
    monkeypatch.setattr("frcl.summary.low_rank_factor", lambda A, rank: calls.append(rank) or factor(A, rank))
    Phi = features(5, 8, generator)
    beliefs = [belief_from_weights(rand_posterior(2, 8, generator), Phi, 1e-3) for _ in range(3)]
    first, again = prior_kl_terms(beliefs[:2]), prior_kl_terms(beliefs)
    assert len(calls) == 3
    torch.testing.assert_close(again.F[:2], first.F)
    torch.testing.assert_close(prior_kl_terms(beliefs, with_mean=False).F[0], without_mean(beliefs[0]))
    assert len(calls) == 6
    wider = dataclasses.replace(beliefs[0], factor=2 * beliefs[0].factor)
    assert not torch.allclose(prior_kl_terms([wider]).F, first.F[:1])


def without_mean(belief):
    L = belief.factor
    return low_rank_factor((L @ L.mT).sum(0), L.shape[2])


@pytest.mark.parametrize(("M", "K"), SHAPES)
def test_closed_form_gradient_equals_autograd_through_the_cholesky(generator, M, K):
    belief = belief_from_weights(rand_posterior(3, K, generator), features(M, K, generator), 1e-2)
    moved = features(M, K, generator)
    ours, direct = moved.clone().requires_grad_(), moved.clone().requires_grad_()
    prior_kl(ours[None], prior_kl_terms([belief])).sum().backward()
    direct_prior_kl(direct, belief).backward()
    scale = direct.grad.abs().max()
    torch.testing.assert_close(ours.grad / scale, direct.grad / scale, rtol=0, atol=1e-8)


@pytest.mark.parametrize(("M", "K"), SHAPES)
def test_kl_of_a_function_space_belief(generator, M, K):
    """q(u) without the noise of equation 5: its covariance is L Lᵀ alone."""
    belief = belief_from_function(rand_posterior(2, M, generator), 1e-2)
    assert belief.posterior_noise == 0.0
    moved = features(M, K, generator)
    torch.testing.assert_close(prior_kl(moved[None], prior_kl_terms([belief]))[0], direct_prior_kl(moved, belief))


@pytest.mark.parametrize(("M", "K"), SHAPES)
def test_kl_in_function_space_is_between_zero_and_the_kl_in_weight_space(generator, M, K):
    """u is a noisy function of w, so KL(q(u)‖p(u)) ≤ KL(q(w)‖p(w))."""
    q, Phi = rand_posterior(3, K, generator), features(M, K, generator)
    for noise in (1e-6, 1e-3, 1.0):
        value = float(prior_kl(Phi[None], prior_kl_terms([belief_from_weights(q, Phi, noise)])))
        assert 0.0 <= value <= float(kl_weight(triangular(q), 1.0)) + 1e-9


@pytest.mark.parametrize("M", [8, 15])
def test_the_two_kl_are_equal_without_noise_when_points_determine_the_weights(generator, M):
    q, Phi = rand_posterior(3, 8, generator), features(M, 8, generator)
    terms = prior_kl_terms([belief_from_weights(q, Phi, 1e-9)])
    assert float(prior_kl(Phi[None], terms)) == pytest.approx(float(kl_weight(triangular(q), 1.0)), rel=1e-5)


def test_prior_variance_scales_the_features(generator):
    """With σ_w² = 4 the same limit holds when features are times σ_w."""
    q, Phi = rand_posterior(2, 6, generator), features(9, 6, generator)
    terms = prior_kl_terms([belief_from_weights(q, Phi, 1e-9)])
    assert float(prior_kl(2.0 * Phi[None], terms)) == pytest.approx(float(kl_weight(triangular(q), 4.0)), rel=1e-5)


def test_no_cancellation_when_points_outnumber_features():
    """q(w) = prior: the KL is zero; a form that cancels loses it when features are large and noise small."""
    g = torch.Generator().manual_seed(0)
    Phi = 30 * features(200, 101, g)
    q = initial_posterior(10, 101, 1.0, D, torch.device("cpu"))
    belief = belief_from_weights(q, Phi, 1e-3)
    value = float(prior_kl(Phi[None], prior_kl_terms([belief])))
    assert value == pytest.approx(0.0, abs=1e-4)


def test_padding_is_exact(generator):
    """Tasks with different points and classes in one block give the sum of the unpadded ones, with gradient."""
    for K in (20, 6, 2):  # all M ≤ K; some; none
        shapes = [(3, 2), (9, 5), (6, 1)]
        beliefs = [
            belief_from_weights(rand_posterior(C, K, generator), features(M, K, generator), 1e-2) for M, C in shapes
        ]
        terms = prior_kl_terms(beliefs)
        blocks = [features(M, K, generator) for M, _ in shapes]
        padded = torch.randn(3, 9, K, generator=generator, dtype=D)  # what stands in the padding must not count
        for i, block in enumerate(blocks):
            padded[i, : len(block)] = block
        padded.requires_grad_()
        together = prior_kl(padded, terms)
        alone = torch.stack([direct_prior_kl(b, q) for b, q in zip(blocks, beliefs, strict=True)])
        torch.testing.assert_close(together.detach(), alone, rtol=1e-8, atol=1e-8)
        together.sum().backward()
        for i, (block, belief) in enumerate(zip(blocks, beliefs, strict=True)):
            live = block.clone().requires_grad_()
            direct_prior_kl(live, belief).backward()
            torch.testing.assert_close(padded.grad[i, : len(block)], live.grad, rtol=1e-6, atol=1e-8)
            assert (padded.grad[i, len(block) :] == 0).all()


@pytest.mark.parametrize("scale", [1.0, 10.0, 30.0])
def test_a_small_task_beside_a_large_one_has_an_exact_gradient(generator, scale):
    """M < K and M > K in one block, with large features and little noise: no form may lose the gradient."""
    K, noise = 41, 1e-3
    sizes = (12, 60)
    beliefs = [
        belief_from_weights(rand_posterior(3, K, generator), scale * features(M, K, generator), noise) for M in sizes
    ]
    blocks = [scale * features(M, K, generator) for M in sizes]
    padded = torch.zeros(2, 60, K, dtype=D)
    for i, block in enumerate(blocks):
        padded[i, : len(block)] = block
    padded.requires_grad_()
    prior_kl(padded, prior_kl_terms(beliefs)).sum().backward()
    for i, (block, belief) in enumerate(zip(blocks, beliefs, strict=True)):
        live = block.clone().requires_grad_()
        prior_kl(live[None], prior_kl_terms([belief])).sum().backward()
        error = (padded.grad[i, : len(block)] - live.grad).abs().max() / live.grad.abs().max()
        assert float(error) < 1e-7


def test_padding_is_made_of_inputs_that_the_network_knows(generator):
    """A network need not take zeros: padding repeats a real input, and a NaN there would not count."""
    beliefs = [belief_from_weights(rand_posterior(2, 5, generator), features(M, 5, generator), 1e-2) for M in (2, 4)]
    Z = [torch.full((2, 3), 7.0), torch.full((4, 3), 9.0)]
    points = stacked_points(Z)
    assert torch.equal(points[0], torch.full((4, 3), 7.0))
    assert torch.equal(points[1], Z[1])
    Phi = torch.randn(2, 4, 5, generator=generator, dtype=D)
    Phi[0, 2:] = torch.nan
    value = prior_kl(Phi, prior_kl_terms(beliefs)).sum()
    expected = direct_prior_kl(Phi[0, :2], beliefs[0]) + direct_prior_kl(Phi[1], beliefs[1])
    torch.testing.assert_close(value, expected)


def test_one_factorisation_for_all_tasks_and_classes(generator, monkeypatch):
    calls = []
    original = torch.linalg.cholesky_ex
    monkeypatch.setattr(torch.linalg, "cholesky_ex", lambda A: calls.append(tuple(A.shape)) or original(A))
    for M, K, expected in [(5, 8, (4, 5, 5)), (12, 8, (4, 8, 8))]:
        beliefs = [
            belief_from_weights(rand_posterior(10, K, generator), features(M, K, generator), 1e-2) for _ in range(4)
        ]
        terms = prior_kl_terms(beliefs)
        calls.clear()
        prior_kl(torch.randn(4, M, K, generator=generator, dtype=D), terms)
        assert calls == [expected]


@pytest.mark.parametrize(("M", "K"), SHAPES)
def test_prediction_equals_the_printed_formula(generator, M, K):
    belief = belief_from_weights(rand_posterior(3, K, generator), features(M, K, generator), 1e-2)
    moved, Phi_x = features(M, K, generator), features(7, K, generator)
    head = make_head(moved, belief)
    mean, variance = head_moments(head, Phi_x)
    direct_mean, direct_variance = direct_prediction(Phi_x, moved, belief)
    torch.testing.assert_close(mean, direct_mean, rtol=1e-7, atol=1e-8)
    torch.testing.assert_close(variance, direct_variance, rtol=1e-7, atol=1e-8)
    assert (variance > 0).all()


@pytest.mark.parametrize("M", [8, 20])
def test_prediction_equals_weight_space_without_noise(generator, M):
    q, Phi, Phi_x = rand_posterior(3, 8, generator), features(M, 8, generator), features(7, 8, generator)
    belief = belief_from_weights(q, Phi, 1e-10)
    mean, variance = head_moments(make_head(Phi, belief), Phi_x)
    expected = weight_moments(triangular(q), Phi_x)
    torch.testing.assert_close(mean, expected.mean, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(variance, expected.variance, rtol=1e-4, atol=1e-4)


def test_predictions_at_the_points_stay_when_features_move(generator):
    belief = belief_from_weights(rand_posterior(3, 12, generator), features(6, 12, generator), 1e-9)
    for _ in range(3):
        moved = features(6, 12, generator)
        mean, variance = head_moments(make_head(moved, belief), moved)
        torch.testing.assert_close(mean, belief.mean.T, rtol=0, atol=1e-6)
        torch.testing.assert_close(variance, covariances(belief).diagonal(dim1=1, dim2=2).T, rtol=1e-5, atol=1e-6)


def test_far_from_the_points_the_prediction_falls_back_to_the_prior(generator):
    """Features orthogonal to all those at Z: mean zero, prior variance."""
    Phi = torch.zeros(3, 6, dtype=D)
    Phi[:, :3] = features(3, 3, generator)
    belief = belief_from_weights(rand_posterior(2, 6, generator), Phi, 1e-3)
    far = torch.zeros(1, 6, dtype=D)
    far[0, 5] = 2.0
    mean, variance = head_moments(make_head(Phi, belief), far)
    torch.testing.assert_close(mean, torch.zeros(1, 2, dtype=D))
    torch.testing.assert_close(variance, torch.full((1, 2), 4.0, dtype=D))


@pytest.mark.parametrize(("M", "K"), [(3, 8), (8, 8), (12, 8)])
def test_function_space_moments_and_kl_equal_the_summary_of_the_same_q(generator, M, K):
    """Two implementations of the sparse GP: the one trained through and the one kept."""
    q, Phi_z, Phi_x = rand_posterior(3, M, generator), features(M, K, generator), features(5, K, generator)
    moments, kl = function_moments(q, Phi_x, Phi_z, 1e-2)
    belief = belief_from_function(q, 1e-2)
    expected = head_moments(make_head(Phi_z, belief), Phi_x)
    torch.testing.assert_close(moments.mean, expected.mean)
    torch.testing.assert_close(moments.variance, expected.variance)
    torch.testing.assert_close(kl, prior_kl(Phi_z[None], prior_kl_terms([belief]))[0])
    chol = torch.linalg.cholesky(Phi_z @ Phi_z.T + 1e-2 * torch.eye(M, dtype=D))
    direct = sum(kl_to_zero_mean(m, f.tril(), chol) for m, f in zip(q.mean, q.factor, strict=True))
    torch.testing.assert_close(kl, direct)


def test_weight_moments_by_sampling(generator):
    q = rand_posterior(2, 4, generator)
    Phi = features(3, 4, generator)
    w = q.mean + torch.einsum("ckj,scj->sck", q.factor.tril(), torch.randn(200_000, 2, 4, generator=generator, dtype=D))
    f = torch.einsum("bk,sck->sbc", Phi, w)
    moments = weight_moments(triangular(q), Phi)
    torch.testing.assert_close(moments.mean, f.mean(0), rtol=0, atol=0.05)
    torch.testing.assert_close(moments.variance, f.var(0), rtol=0.03, atol=0.03)


def test_subsampled_kl_is_unbiased(generator):
    """The mean over every subset of tasks is the whole sum, and the sampler gives each task equally often."""
    K = 6
    beliefs = [belief_from_weights(rand_posterior(2, K, generator), features(4, K, generator), 1e-2) for _ in range(5)]
    terms = prior_kl_terms(beliefs)
    Phi = torch.randn(5, 4, K, generator=generator, dtype=D)
    whole = prior_kl(Phi, terms).sum()
    pairs = torch.combinations(torch.arange(5), 2)
    parts = torch.stack([5 / 2 * prior_kl(Phi[pair], of_tasks(terms, pair)).sum() for pair in pairs])
    torch.testing.assert_close(parts.mean(), whole)
    steps = [Step(*[None] * 7, Phi_z=Phi[pair], tasks=pair, past_tasks=5, N=torch.tensor(3.0)) for pair in pairs]
    penalties = torch.stack([FunctionalKL(2.0).penalty(step, terms, ()) for step in steps])
    torch.testing.assert_close(penalties, 2 * parts / 3)
    drawn = draw_penalties([], 4000, 5, 2, generator).tasks
    assert (drawn[:, 0] != drawn[:, 1]).all()
    share = torch.bincount(drawn.flatten(), minlength=5) / 8000
    torch.testing.assert_close(share, torch.full((5,), 0.2), rtol=0, atol=0.02)
    assert draw_penalties([], 1, 5, 5, generator).tasks is None
    assert draw_penalties([], 1, 5, None, generator).tasks is None


def test_beliefs_hold_copies(generator):
    q = Posterior(*(value.clone() for value in rand_posterior(2, 4, generator)[:2]))
    belief = belief_from_function(q, 1e-3)
    kept = belief.mean.clone(), belief.factor.clone()
    q.mean.zero_()
    q.factor.zero_()
    assert torch.equal(belief.mean, kept[0])
    assert torch.equal(belief.factor, kept[1])
