"""Relations that hold for every shape: class counts from 2 to 60, M from 1 to 3K."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from frcl import FRCL, MLP
from frcl.likelihoods import RobustMax, Softmax
from frcl.posterior import kl_weight, triangular, weight_moments
from frcl.selection.trace import random_start, trace_greedy
from frcl.summary import belief_from_weights, head_moments, make_head, prior_kl, prior_kl_terms
from oracles import direct_prediction, direct_prior_kl, direct_trace, rand_posterior
from streams import trace_swaps

D = torch.float64
settings.register_profile("frcl", deadline=None, max_examples=40, derandomize=True)
settings.load_profile("frcl")


@st.composite
def shapes(draw: st.DrawFn) -> tuple[int, int, int, int]:
    """(C, M, K, seed) with M up to 3K."""
    K = draw(st.integers(1, 12))
    return draw(st.integers(1, 60)), draw(st.integers(1, 3 * K)), K, draw(st.integers(0, 2**30))


@given(shapes())
def test_kl_value_gradient_and_bounds(shape):
    C, M, K, seed = shape
    g = torch.Generator().manual_seed(seed)
    q = rand_posterior(C, K, g)
    Phi = torch.randn(M, K, generator=g, dtype=D)
    belief = belief_from_weights(q, Phi, 1e-2)
    terms = prior_kl_terms([belief])
    at_home = float(prior_kl(Phi[None], terms))
    assert -1e-6 <= at_home <= float(kl_weight(triangular(q), 1.0)) + 1e-6
    ours = torch.randn(M, K, generator=g, dtype=D).requires_grad_()
    direct = ours.detach().clone().requires_grad_()
    value, expected = prior_kl(ours[None], terms)[0], direct_prior_kl(direct, belief)
    torch.testing.assert_close(value, expected, rtol=1e-7, atol=1e-7)
    value.backward()
    expected.backward()
    scale = 1 + float(direct.grad.abs().max())
    torch.testing.assert_close(ours.grad / scale, direct.grad / scale, rtol=0, atol=1e-8)


@given(shapes(), st.integers(1, 9))
def test_prediction_for_every_shape(shape, B):
    C, M, K, seed = shape
    g = torch.Generator().manual_seed(seed)
    belief = belief_from_weights(rand_posterior(C, K, g), torch.randn(M, K, generator=g, dtype=D), 1e-2)
    moved, Phi_x = torch.randn(M, K, generator=g, dtype=D), torch.randn(B, K, generator=g, dtype=D)
    mean, variance = head_moments(make_head(moved, belief), Phi_x)
    direct_mean, direct_variance = direct_prediction(Phi_x, moved, belief)
    torch.testing.assert_close(mean, direct_mean, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(variance, direct_variance, rtol=1e-6, atol=1e-7)


@given(st.integers(2, 60), st.integers(1, 6), st.integers(0, 2**30))
def test_probabilities_of_any_number_of_classes(C, B, seed):
    g = torch.Generator().manual_seed(seed)
    mean, variance = 3 * torch.randn(B, C, generator=g, dtype=D), torch.rand(B, C, generator=g, dtype=D)
    for model in (Softmax(tuple(range(C))), RobustMax(tuple(range(C)))):
        probabilities = model.probabilities(mean, variance, torch.randn(20, 1, C, generator=g, dtype=D))
        assert probabilities.shape == (B, C)
        assert (probabilities > 0).all()
        torch.testing.assert_close(probabilities.sum(1), torch.ones(B, dtype=D))


@given(shapes())
def test_searches_return_distinct_points_that_are_no_worse(shape):
    _, M, K, seed = shape
    g = torch.Generator().manual_seed(seed)
    N = M + int(torch.randint(0, 20, (), generator=g))
    Phi = torch.randn(N, K, generator=g, dtype=D)
    start = random_start(N, M, g)
    for found in (trace_swaps(Phi, start, 1e-2, 30, g), trace_greedy(Phi, M, 1e-2)):
        assert len(set(found.index.tolist())) == M
        assert found.after <= found.before + 1e-9
        assert abs(found.after - direct_trace(Phi, found.index, 1e-2)) < 1e-6 * (1 + found.before)


@given(st.integers(2, 60), st.integers(1, 3), st.integers(1, 25), st.integers(0, 2**20))
@settings(max_examples=12)
def test_a_task_of_any_shape_can_be_learned_kept_and_asked(C, width, M, seed):
    g = torch.Generator().manual_seed(seed)
    learner = FRCL(MLP(3, (8 * width,)), points=M, steps=2, search_steps=5, batch_size=8)
    x, y = torch.randn(2 * C + M, 3, generator=g), torch.arange(2 * C + M) % C
    learner.fit(x, y)
    learner.fit(x.flip(0), y)
    p = learner.predict(x, task=0)
    assert p.probs.shape == (len(x), C)
    torch.testing.assert_close(p.probs.sum(1), torch.ones(len(x)), rtol=0, atol=1e-5)
    assert (p.variance >= 0).all()
    q = weight_moments(triangular(rand_posterior(C, 4, g)), torch.randn(5, 4, generator=g, dtype=D))
    assert q.mean.shape == q.variance.shape == (5, C)
