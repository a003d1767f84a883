"""The paper's KL around the kept head: by definition, its gradient, its limits, and as a regulariser of a learner."""

import itertools
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.distributions import MultivariateNormal, kl_divergence

import frcl
from frcl.regularisers.protocol import stacked_points
from frcl.regularisers.recentred import RecentredKL
from frcl.summary import (
    FunctionBelief,
    belief_from_weights,
    padded,
    prior_kl,
    prior_kl_terms,
)
from frcl.trees import batch_axes, stack
from oracles import covariances, rand_posterior
from streams import blobs, same_tensors, small_learner

D = torch.float64
SIZES = [(3, 6), (6, 6), (9, 4)]  # M, K: fewer, as many and more points than features


def by_definition(Phi_z: Tensor, belief: FunctionBelief, head: Tensor) -> Tensor:
    """Σ_c KL(q(u_c) ‖ N(Φ v_c, σ_w² ΦΦᵀ + σ² I)) through torch.distributions, differentiable in Φ."""
    K = belief.prior_std**2 * Phi_z @ Phi_z.mT + belief.u_noise * torch.eye(len(Phi_z), dtype=D)
    total = Phi_z.new_zeros(())
    for mean, covariance, v in zip(belief.mean, covariances(belief), head, strict=True):
        q = MultivariateNormal(mean, covariance_matrix=covariance)
        total = total + kl_divergence(q, MultivariateNormal(Phi_z @ v, covariance_matrix=K))
    return total


def setting(M: int, K: int, g: torch.Generator, std: float = 1.3, C: int = 3):
    """A belief, the head it came from, and features that have moved since."""
    q, old = rand_posterior(C, K, g), torch.randn(M, K, generator=g, dtype=D)
    belief = belief_from_weights(q, old, 0.05, std)
    return belief, q.mean, old, old + 0.3 * torch.randn(M, K, generator=g, dtype=D)


def value_of(Phi: Tensor, belief: FunctionBelief, head: Tensor) -> Tensor:
    terms = prior_kl_terms([belief], with_mean=False)
    return prior_kl(Phi[None], terms, (belief.mean.mT[None], head[None]))[0]


@pytest.mark.parametrize(("M", "K"), SIZES)
def test_value_and_gradient_are_those_of_the_definition(generator, M, K):
    belief, head, _, moved = setting(M, K, generator)
    ours, direct = moved.clone().requires_grad_(), moved.clone().requires_grad_()
    found, expected = value_of(ours, belief, head), by_definition(direct, belief, head)
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-9)
    (a,), (b,) = torch.autograd.grad(3.0 * found, ours), torch.autograd.grad(3.0 * expected, direct)
    torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(("M", "K"), SIZES)
def test_the_mean_part_is_zero_where_nothing_has_moved(generator, M, K):
    """Value and gradient are then those of the same belief with mean zero around the head zero."""
    belief, head, old, _ = setting(M, K, generator)
    Phi, other = old.clone().requires_grad_(), old.clone().requires_grad_()
    found = value_of(Phi, belief, head)
    silent = replace(belief, mean=torch.zeros_like(belief.mean))
    without = prior_kl(other[None], prior_kl_terms([silent]))[0]
    torch.testing.assert_close(found, without, rtol=1e-9, atol=1e-9)
    (a,), (b,) = torch.autograd.grad(found, Phi), torch.autograd.grad(without, other)
    torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize(("M", "K"), SIZES)
def test_around_zero_it_is_the_kl_of_the_paper(generator, M, K):
    belief, head, _, moved = setting(M, K, generator)
    found = value_of(moved, belief, torch.zeros_like(head))
    torch.testing.assert_close(found, prior_kl(moved[None], prior_kl_terms([belief]))[0], rtol=1e-9, atol=1e-9)


def test_padding_changes_nothing(generator):
    """Tasks with different points and functions side by side; what stands at padded points gets no gradient."""
    each = [setting(M, 5, generator, std, C) for M, std, C in ((2, 1.0, 1), (4, 0.7, 3), (3, 2.0, 2))]
    terms = prior_kl_terms([belief for belief, *_ in each], with_mean=False)
    means = padded([belief.mean.mT for belief, *_ in each])
    heads = padded([head for _, head, *_ in each])
    Phi = stacked_points([moved for *_, moved in each]).requires_grad_()
    found = prior_kl(Phi, terms, (means, heads))
    (gradient,) = torch.autograd.grad(found.sum(), Phi)
    for i, (belief, head, _, moved) in enumerate(each):
        own = moved.clone().requires_grad_()
        expected = by_definition(own, belief, head)
        torch.testing.assert_close(found[i], expected, rtol=1e-8, atol=1e-9)
        M = len(moved)
        torch.testing.assert_close(gradient[i, :M], torch.autograd.grad(expected, own)[0], rtol=1e-6, atol=1e-8)
        assert not gradient[i, M:].any()


def test_it_can_be_mapped_over_seeds(generator):
    pairs = [setting(3, 5, generator) for _ in range(2)]
    terms = [prior_kl_terms([belief], with_mean=False) for belief, *_ in pairs]
    stacked = stack(terms)
    Phi = torch.stack([moved[None] for *_, moved in pairs])
    means = torch.stack([belief.mean.mT[None] for belief, *_ in pairs])
    heads = torch.stack([head[None] for _, head, *_ in pairs])
    mapped = torch.vmap(lambda p, t, m, h: prior_kl(p, t, (m, h)), (0, batch_axes(stacked), 0, 0))(
        Phi, stacked, means, heads
    )
    for i, (belief, head, _, moved) in enumerate(pairs):
        torch.testing.assert_close(mapped[i, 0], value_of(moved, belief, head))


# -- as a regulariser ------------------------------------------------------------------------------------------


def taught(regulariser: RecentredKL, **options) -> frcl.FRCL:
    learner = frcl.FRCL(
        frcl.MLP(4, (8, 5), seed=1).double(), regularisers=[regulariser],
        **{"points": 6, "steps": 25, "batch_size": 16, "lr": 5e-3, "search_steps": 20, "u_noise": 1e-2, **options},
    )  # fmt: skip
    for number, labels in enumerate(((0, 1), (3, 4, 5))):
        x, y = blobs(labels, 60 + 30 * number, number)
        learner.fit(x.double(), y)
    return learner


def penalty_of(learner: frcl.FRCL, tasks: Tensor | None = None) -> Tensor:
    from frcl.learners.objective import Draws, Objective
    from frcl.learners.task import constants_of

    x, y = blobs((7, 8, 9), 90, 4)
    model, state = learner._model, learner._state
    draws = Draws(torch.zeros(8, 16, 3, dtype=D), tasks, ((),))
    objective = Objective(model.map, state.current.likelihood, model.options, state.regularisers, model.prior)
    return objective(
        state.current.params, constants_of(model, state, state.current, model.map), x[:16].double(), y[:16] - 7, draws
    ).kl_past


@pytest.mark.parametrize("count_examples", [True, False])
@pytest.mark.parametrize("u_noise", [None, 0.3])
def test_the_penalty_is_the_weighted_sum_over_tasks(count_examples, u_noise):
    learner = taught(RecentredKL(0.7, count_examples=count_examples, u_noise=u_noise))
    learner.start_task(labels=(7, 8, 9), size=500)
    x, y = blobs((7, 8, 9), 90, 4)
    for _ in range(5):
        learner.observe(x[:16].double(), y[:16])
    expected = torch.zeros((), dtype=D)
    for summary in learner.tasks:
        Phi = torch.cat([learner.feature_scale * learner.net(summary.Z), torch.ones(6, 1, dtype=D)], 1)
        belief = summary.belief if u_noise is None else replace(summary.belief, u_noise=u_noise)
        count = (summary.size / 6) ** (1 - 6 / Phi.shape[1]) if count_examples else 1.0
        expected = expected + 0.7 * count * by_definition(Phi, belief, summary.head) / 500
    torch.testing.assert_close(penalty_of(learner), expected, rtol=1e-7, atol=1e-10)
    each = [penalty_of(learner, torch.tensor(chosen)) for chosen in itertools.combinations(range(2), 1)]
    torch.testing.assert_close(torch.stack(each).mean(), penalty_of(learner), rtol=1e-9, atol=1e-12)


def test_it_keeps_a_head_and_nothing_of_the_size_of_the_network(tmp_path):
    learner = small_learner(steps=20, regularisers=[RecentredKL(0.5)])
    for number in range(2):
        learner.fit(*blobs((0, 1, 2), 60, number))
    assert set(learner.memory_parts()) == {"points", "posterior", "heads"}
    learner.save(tmp_path / "one.frcl")
    loaded = frcl.load(tmp_path / "one.frcl", frcl.MLP(4, (16, 8)))
    for one in (learner, loaded):
        one.fit(*blobs((0, 1, 2), 60, 9))
    assert same_tensors(learner.state_dict()["tensors"], loaded.state_dict()["tensors"])


@pytest.mark.parametrize("settings", [{"weight": -1.0}, {"weight": True}, {"u_noise": 0.0}])
def test_settings_that_make_no_sense(settings):
    with pytest.raises(frcl.OptionError, match="recentred-kl"):
        RecentredKL(**settings)
