"""Mean-field Gaussians by name against exact answers: their KL, draws, sequential inference; coresets."""

import itertools
import math

import pytest
import torch
from torch import Tensor
from torch.distributions import Normal, kl_divergence

from frcl import DataError
from frcl.regularisers.mean_field import (
    MeanField,
    coreset_rows,
    drawn,
    expected_loss,
    isotropic,
    k_centres,
    mean_field_kl,
    standard_draws,
)
from frcl.trees import copied, named_tensors
from streams import blobs

D = torch.float64


def leaves_of(q: MeanField) -> list[Tensor]:
    return [tensor for _, tensor in named_tensors(q)]


def field(generator: torch.Generator, requires_grad: bool = False) -> MeanField:
    def some(scale: float) -> dict[str, Tensor]:
        shapes = {"a": (3, 2), "b": (4,)}
        return {
            name: (scale * torch.randn(shape, generator=generator, dtype=D)).requires_grad_(requires_grad)
            for name, shape in shapes.items()
        }

    return MeanField(some(1.0), some(0.5))


def test_kl_equals_torch_distributions(generator):
    q, p = field(generator), field(generator)
    expected = sum(
        kl_divergence(Normal(q.mean[name], q.log_std[name].exp()), Normal(p.mean[name], p.log_std[name].exp())).sum()
        for name in q.mean
    )
    torch.testing.assert_close(mean_field_kl(q, p), expected, rtol=1e-12, atol=0)
    part = mean_field_kl(q, p, ["b"]) + mean_field_kl(q, p, ["a"])
    torch.testing.assert_close(part, expected, rtol=1e-12, atol=0)
    wide = sum(kl_divergence(Normal(v, q.log_std[n].exp()), Normal(0.0, 2.0)).sum() for n, v in q.mean.items())
    torch.testing.assert_close(mean_field_kl(q, isotropic(q.mean, 2.0)), wide, rtol=1e-12, atol=0)
    assert float(mean_field_kl(q, q)) == 0.0
    assert float(mean_field_kl(q, p, [])) == 0.0


def test_gradient_of_the_kl(generator):
    q, p = field(generator, requires_grad=True), field(generator, requires_grad=True)
    leaves = [*leaves_of(q), *leaves_of(p)]

    def kl(a1, b1, a2, b2, a3, b3, a4, b4):
        return mean_field_kl(
            MeanField({"a": a1, "b": b1}, {"a": a2, "b": b2}), MeanField({"a": a3, "b": b3}, {"a": a4, "b": b4})
        )

    assert torch.autograd.gradcheck(kl, leaves)
    at_the_prior = torch.autograd.grad(mean_field_kl(q, copied(q)), leaves_of(q))
    assert all(bool((g == 0).all()) for g in at_the_prior)


def test_draws_are_the_mean_plus_the_deviation_times_the_noise(generator):
    q = field(generator)
    zeros, ones = ({n: torch.full_like(v, f) for n, v in q.mean.items()} for f in (0.0, 1.0))
    for name in q.mean:
        assert torch.equal(drawn(q, zeros)[name], q.mean[name])
        torch.testing.assert_close(drawn(q, ones)[name], q.mean[name] + q.log_std[name].exp())
    draws = drawn(q, standard_draws(q.mean, 200_000, generator))
    for name, value in draws.items():
        sigma = q.log_std[name].exp()
        assert value.shape == (200_000, *q.mean[name].shape)
        assert ((value.mean(0) - q.mean[name]).abs() < 5 * sigma / math.sqrt(200_000)).all()
        torch.testing.assert_close(value.var(0), sigma.square(), rtol=0.02, atol=0)


def test_sequential_inference_is_exact_where_mean_field_is(generator):
    """Linear regression with an orthogonal design, where the posterior has independent weights, in two tasks.

    The negative log-likelihood is quadratic in w, so the eight sign vectors, with mean 0 and covariance I, give its
    expectation exactly, and the optimum of the objective must be the posterior to the last digits.
    """
    signs = {"w": torch.tensor(list(itertools.product((-1.0, 1.0), repeat=3)), dtype=D)}
    belief = isotropic({"w": torch.zeros(3, dtype=D)}, 1.5)
    precision, weighted = torch.full((3,), 1 / 1.5**2, dtype=D), torch.zeros(3, dtype=D)
    for n, variance in ((8, 0.5), (5, 0.2)):
        X = torch.linalg.qr(torch.randn(n, 3, generator=generator, dtype=D)).Q * torch.tensor([1.0, 2.0, 3.0], dtype=D)
        y = torch.randn(n, generator=generator, dtype=D)
        q = MeanField(
            *({name: v.clone().requires_grad_() for name, v in part.items()} for part in isotropic(belief.mean, 0.1))
        )
        fit_posterior(q, belief, X, y, variance, signs)
        belief = copied(q)
        precision = precision + X.square().sum(0) / variance
        weighted = weighted + X.mT @ y / variance
        torch.testing.assert_close(belief.mean["w"], weighted / precision, rtol=1e-6, atol=1e-8)
        torch.testing.assert_close(belief.log_std["w"].exp(), precision.rsqrt(), rtol=1e-6, atol=0)


def fit_posterior(q: MeanField, prior: MeanField, X: Tensor, y: Tensor, variance: float, draws: dict) -> None:
    solver = torch.optim.LBFGS(
        leaves_of(q), max_iter=500, tolerance_grad=1e-13, tolerance_change=0, line_search_fn="strong_wolfe"
    )

    def objective() -> Tensor:
        solver.zero_grad()
        nll = expected_loss(lambda w: -Normal(X @ w["w"], math.sqrt(variance)).log_prob(y).mean(), q, draws)
        value = nll + mean_field_kl(q, prior) / len(y)
        value.backward()
        return value

    solver.step(objective)


# -- coresets -----------------------------------------------------------------------------------------------


def test_k_centres_are_the_greedy_farthest_points(generator):
    x = torch.randn(40, 3, generator=generator, dtype=D)
    expected = [5]
    while len(expected) < 8:
        distances = [min(math.dist(a, x[c].tolist()) for c in expected) for a in x.tolist()]
        expected.append(max(range(40), key=distances.__getitem__))
    assert k_centres(x, 8, first=5).tolist() == expected
    assert k_centres(x.reshape(40, 3, 1), 8, first=5).tolist() == expected


def test_k_centres_cover_clusters_and_are_different_rows(generator):
    centres = 10.0 * torch.eye(6)
    which = torch.randint(6, (200,), generator=generator)
    x = centres[which] + 0.1 * torch.randn(200, 6, generator=generator)
    assert set(which[k_centres(x, 6)].tolist()) == set(range(6))
    same = torch.ones(7, 2, dtype=torch.int64)
    assert sorted(k_centres(same, 7).tolist()) == list(range(7))


@pytest.mark.parametrize("kind", ["random", "kcenter"])
def test_size_of_a_coreset(kind, generator):
    x, y = blobs((0, 1, 2), 90, 2)
    rows = coreset_rows(kind, x, y, 11, None, generator)
    assert len(set(rows.tolist())) == 11
    rows = coreset_rows(kind, x, y, 11, 5, generator)
    assert y[rows].bincount().tolist() == [5, 5, 5]
    assert len(set(rows.tolist())) == 15
    for points, per_class, word in ((90, None, "points=90"), (1, 30, "points_per_class=30")):
        with pytest.raises(DataError, match=word):
            coreset_rows(kind, x, y, points, per_class, generator)
    assert len(coreset_rows("none", x, y, 11, None, generator)) == 0
