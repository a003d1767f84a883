"""Structured covariances of q(w): each is compared with the full covariance that it stands for."""

import pytest
import torch
from torch.distributions import MultivariateNormal, kl_divergence

from frcl.posterior import (
    Posterior,
    initial_posterior,
    kl_weight,
    learned_prior_variance,
    triangular,
    weight_moments,
    weight_space,
)
from frcl.summary import belief_from_weights, head_moments, make_head, prior_kl, prior_kl_terms
from oracles import covariances, direct_prediction, direct_prior_kl, rand_posterior

D = torch.float64
STRUCTURES = ("full", "shared", "diagonal", "lowrank")
APPROXIMATE = ("diagonal", "lowrank")
C, K = 3, 6


def randn(generator, *shape):
    return torch.randn(*shape, generator=generator, dtype=D)


def random(structure, generator, C=C, K=K):
    """A random q of this structure, with what is above the diagonal of a square factor not zero."""
    q = rand_posterior(C, K, generator)
    if structure == "full":
        return q
    if structure == "shared":
        return q._replace(factor=q.factor[:1])
    factor = (0.3 + torch.rand(C, K, generator=generator, dtype=D)) * randn(generator, C, K).sign()
    return Posterior(q.mean, factor, randn(generator, C, K, 2) if structure == "lowrank" else None)


def sigma(q):
    """Σ_c [C, K, K] by the definitions."""
    if q.factor.ndim == 3:
        L = q.factor.tril()
        return (L @ L.mT).expand(len(q.mean), -1, -1)
    total = torch.diag_embed(q.factor.square())
    return total if q.low_rank is None else total + q.low_rank @ q.low_rank.mT


def full(q):
    """The same Gaussians with full factors."""
    return Posterior(q.mean, torch.linalg.cholesky(sigma(q)))


@pytest.mark.parametrize("structure", STRUCTURES)
def test_moments_are_those_of_the_full_covariance(structure, generator):
    q, Phi = random(structure, generator), randn(generator, 5, K)
    mean, variance = weight_moments(triangular(q), Phi)
    torch.testing.assert_close(mean, Phi @ q.mean.mT)
    torch.testing.assert_close(variance, torch.einsum("bi,cij,bj->bc", Phi, sigma(q), Phi))
    assert mean.shape == variance.shape == (5, C)


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("variance", [1.0, 0.3])
def test_the_kl_equals_torch_distributions(structure, variance, generator):
    q = random(structure, generator)
    prior = MultivariateNormal(torch.zeros(K, dtype=D), variance * torch.eye(K, dtype=D))
    expected = kl_divergence(MultivariateNormal(q.mean, covariance_matrix=sigma(q)), prior).sum()
    torch.testing.assert_close(kl_weight(triangular(q), variance), expected)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_the_learned_prior_variance_is_the_best_one(structure, generator):
    q = triangular(random(structure, generator))
    best = learned_prior_variance(q)
    torch.testing.assert_close(best, learned_prior_variance(full(q)))
    assert all(kl_weight(q, best) < kl_weight(q, best * factor) for factor in (0.9, 1.1))


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("prior_variance", [0.7, None])
def test_gradients_of_a_step_are_those_of_the_definition(structure, prior_variance, generator):
    """Through Σ_c itself: its quadratic forms, its trace and its determinant."""
    given = random(structure, generator)
    leaves = [part.requires_grad_() for part in (*given, randn(generator, 4, K)) if part is not None]
    q, Phi = Posterior(*leaves[:-1]), leaves[-1]
    weights = randn(generator, 4, C), randn(generator, 4, C)
    moments, kl = weight_space(q, Phi, prior_variance)
    S = sigma(q)
    second = q.mean.square().sum() + S.diagonal(dim1=1, dim2=2).sum()
    s = torch.as_tensor(second / q.mean.numel() if prior_variance is None else prior_variance, dtype=D)
    direct_kl = 0.5 * (second / s + q.mean.numel() * (s.log() - 1) - torch.logdet(S).sum())
    direct = Phi @ q.mean.mT, torch.einsum("bi,cij,bj->bc", Phi, S, Phi)
    torch.testing.assert_close(kl, direct_kl)
    ours = sum((w * m).sum() for w, m in zip(weights, moments, strict=True)) + 1.3 * kl
    theirs = sum((w * m).sum() for w, m in zip(weights, direct, strict=True)) + 1.3 * direct_kl
    for a, b in zip(torch.autograd.grad(ours, leaves), torch.autograd.grad(theirs, leaves), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("M", [4, 9])
def test_the_kl_of_a_summary_is_that_of_the_gaussians_it_holds(structure, M, generator):
    """Also where the features have moved since, and its derivative."""
    q, Phi = random(structure, generator), randn(generator, M, K)
    belief = belief_from_weights(q, Phi, 0.05)
    moved = (Phi + 0.3 * randn(generator, M, K)).requires_grad_()
    value, direct = prior_kl(moved[None], prior_kl_terms([belief])).sum(), direct_prior_kl(moved, belief)
    torch.testing.assert_close(value, direct)
    (ours,), (theirs,) = torch.autograd.grad(value, moved), torch.autograd.grad(direct, moved)
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("M", [4, 9])
def test_old_tasks_are_held_as_by_full_covariances(structure, M, generator):
    """The derivative of the KL is the same to rounding in every structure; the shared value is too."""
    q, Phi = random(structure, generator), randn(generator, M, K)
    beliefs = [belief_from_weights(one, Phi, 0.05) for one in (q, full(q))]
    moved = (Phi + 0.3 * randn(generator, M, K)).requires_grad_()
    values = [prior_kl(moved[None], prior_kl_terms([belief])).sum() for belief in beliefs]
    ours, theirs = (torch.autograd.grad(value, moved)[0] for value in values)
    torch.testing.assert_close(ours, theirs)
    if structure not in APPROXIMATE:
        torch.testing.assert_close(*values)
        torch.testing.assert_close(covariances(beliefs[0]), covariances(beliefs[1]))


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("M", [4, 9])
def test_prediction_through_a_summary_is_the_printed_formula(structure, M, generator):
    q, Phi, x = random(structure, generator), randn(generator, M, K), randn(generator, 7, K)
    belief = belief_from_weights(q, Phi, 0.05)
    moments = head_moments(make_head(Phi, belief), x)
    for ours, theirs in zip(moments, direct_prediction(x, Phi, belief), strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("structure", APPROXIMATE)
def test_one_shape_for_all_functions_keeps_their_traces_and_their_sum(structure, generator):
    q, Phi = random(structure, generator), randn(generator, 5, K)
    belief, exact = belief_from_weights(q, Phi, 0.05), Phi @ sigma(q) @ Phi.mT + 0.05 * torch.eye(5, dtype=D)
    found = covariances(belief)
    torch.testing.assert_close(found.sum(0), exact.sum(0))
    torch.testing.assert_close(found.diagonal(dim1=1, dim2=2).sum(1), exact.diagonal(dim1=1, dim2=2).sum(1))
    assert float(belief.scale.mean()) == pytest.approx(1.0)
    assert not torch.allclose(found, exact, rtol=0.01)


@pytest.mark.parametrize("structure", APPROXIMATE)
def test_one_shape_is_exact_where_covariances_are_proportional(structure, generator):
    q, Phi = random(structure, generator), randn(generator, 5, K)
    sizes = torch.tensor([1.0, 2.0, 0.5], dtype=D)
    V = None if q.low_rank is None else q.low_rank[:1] * sizes[:, None, None]
    q = Posterior(q.mean, q.factor[:1] * sizes[:, None], V)
    belief = belief_from_weights(q, Phi, 0.05)
    torch.testing.assert_close(covariances(belief), Phi @ sigma(q) @ Phi.mT + 0.05 * torch.eye(5, dtype=D))


def test_low_rank_of_zero_is_diagonal_and_a_shared_factor_of_one_function_is_full(generator):
    q, Phi = random("diagonal", generator), randn(generator, 4, K)
    zero = q._replace(low_rank=torch.zeros(C, K, 2, dtype=D))
    for a, b in zip(weight_space(q, Phi, 0.5), weight_space(zero, Phi, 0.5), strict=True):
        torch.testing.assert_close(a, b)
    one, alone = random("shared", generator, C=1), random("full", generator, C=1)
    assert one.factor.shape == alone.factor.shape


@pytest.mark.parametrize("structure", STRUCTURES)
def test_the_initial_posterior_is_the_prior_for_scale_one(structure, generator):
    q = initial_posterior(C, K, 1.0, D, torch.device("cpu"), structure)
    assert float(kl_weight(q, 1.0)) == pytest.approx(0.0, abs=1e-12)
    if structure == "lowrank":
        with_V = initial_posterior(50, 40, 0.2, D, torch.device("cpu"), structure, rank=3, generator=generator)
        ratio = with_V.low_rank.square().sum() / with_V.factor.square().sum()
        assert float(ratio) == pytest.approx(0.01, rel=0.1)


@pytest.mark.parametrize(
    ("C", "K", "chosen"),
    [(10, 101, "full"), (10, 513, "full"), (55, 257, "full"), (100, 1281, "diagonal"), (100, 769, "diagonal"),
     (1, 2049, "diagonal"), (200, 257, "shared")],
)  # fmt: skip
def test_the_automatic_choice(C, K, chosen):
    shapes = {"full": (C, K, K), "shared": (1, K, K), "diagonal": (C, K)}
    assert initial_posterior(C, K, 1.0, D, torch.device("meta"), "auto").factor.shape == shapes[chosen]
