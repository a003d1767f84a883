"""Mean-field Gaussians by name, and VCL built on them, against exact answers."""

import pytest
import torch
from torch.distributions import Independent, Normal, kl_divergence

from frcl import MLP
from frcl.learners.plain_options import VCLOptions
from frcl.learners.vcl import VCL
from frcl.regularisers.mean_field import (
    MeanField,
    drawn,
    expected_loss,
    isotropic,
    k_centres,
    mean_field_kl,
    standard_noise,
)
from streams import accuracy, blobs

D = torch.float64


def random_field(generator: torch.Generator) -> MeanField:
    shapes = {"a": (3, 2), "b": (4,)}
    mean = {name: torch.randn(shape, generator=generator, dtype=D) for name, shape in shapes.items()}
    log_deviation = {name: 0.3 * torch.randn(shape, generator=generator, dtype=D) for name, shape in shapes.items()}
    return MeanField(mean, log_deviation)


def as_distribution(q: MeanField) -> Independent:
    mean = torch.cat([value.flatten() for value in q[0].values()])
    log_deviation = torch.cat([value.flatten() for value in q[1].values()])
    return Independent(Normal(mean, log_deviation.exp()), 1)


def test_kl_equals_torch_distributions(generator):
    q, p = random_field(generator), random_field(generator)
    torch.testing.assert_close(mean_field_kl(q, p), kl_divergence(as_distribution(q), as_distribution(p)))
    assert float(mean_field_kl(q, q)) == pytest.approx(0.0, abs=1e-12)
    wide = isotropic(q[0], 2.0)
    expected = kl_divergence(as_distribution(q), Independent(Normal(torch.zeros(10, dtype=D), 2.0), 1))
    torch.testing.assert_close(mean_field_kl(q, wide), expected)


def test_draws_have_the_right_moments(generator):
    q = random_field(generator)
    draws = drawn(q, standard_noise(q[0], 100_000, generator))
    for name, value in draws.items():
        torch.testing.assert_close(value.mean(0), q[0][name], rtol=0, atol=0.03)
        torch.testing.assert_close(value.std(0), q[1][name].exp(), rtol=0.03, atol=0.01)


def test_expected_loss_of_a_quadratic_is_exact_in_the_mean(generator):
    """E[Σ w²] = Σ μ² + σ²."""
    q = random_field(generator)
    noise = standard_noise(q[0], 20_000, generator)
    value = expected_loss(lambda w: torch.stack([v.square().sum() for v in w.values()]).sum(), q, noise)
    exact = sum((q[0][n].square() + (2 * q[1][n]).exp()).sum() for n in q[0])
    assert float(value) == pytest.approx(float(exact), rel=0.02)


def test_sequential_inference_is_exact_where_mean_field_is(generator):
    """Conjugate regression y = w x + noise with orthogonal design: two tasks in a row end at the exact posterior."""
    n = 8
    X = torch.linalg.qr(torch.randn(n, 3, generator=generator, dtype=D)).Q * torch.tensor([1.0, 2.0, 3.0], dtype=D)
    noise_variance = 0.5
    prior = isotropic({"w": torch.zeros(3, dtype=D)}, 1.5)
    precision, weighted = torch.full((3,), 1 / 1.5**2, dtype=D), torch.zeros(3, dtype=D)
    for _ in range(2):
        y = X @ torch.randn(3, generator=generator, dtype=D)
        q = MeanField(
            {"w": torch.zeros(3, dtype=D).requires_grad_()}, {"w": torch.full((3,), -1.0, dtype=D).requires_grad_()}
        )
        adam = torch.optim.Adam([q[0]["w"], q[1]["w"]], lr=0.02)
        for step in range(3000):
            for group in adam.param_groups:
                group["lr"] = 0.02 * (1 - step / 3000)
            half = standard_noise(q[0], 2, generator)
            noise = {"w": torch.cat([half["w"], -half["w"]])}  # antithetic: exact for the mean, less noise for the rest

            def loss(w, y=y):
                return (y - X @ w["w"]).square().sum() / (2 * noise_variance)

            value = expected_loss(loss, q, noise) + mean_field_kl(q, prior)
            adam.zero_grad()
            value.backward()
            adam.step()
        prior = MeanField(*({name: v.detach() for name, v in part.items()} for part in q))
        precision = precision + X.square().sum(0) / noise_variance
        weighted = weighted + X.T @ y / noise_variance
    torch.testing.assert_close(prior[0]["w"], weighted / precision, rtol=0.02, atol=0.02)
    torch.testing.assert_close(prior[1]["w"].exp(), precision.rsqrt(), rtol=0.05, atol=0.01)


def test_k_centres_are_the_greedy_farthest_points(generator):
    x = torch.randn(40, 3, generator=generator, dtype=D)
    chosen = k_centres(x, 6, first=5).tolist()
    expected = [5]
    while len(expected) < 6:
        distances = torch.cdist(x, x[expected]).min(1).values
        expected.append(int(distances.argmax()))
    assert chosen == expected


@pytest.mark.parametrize("coreset", ["none", "random", "kcenter"])
def test_tasks_are_learned_and_kept(coreset):
    options = VCLOptions(
        steps=250, batch_size=32, rate=5e-3, coreset=coreset, points=10, adapt_steps=30, predict_samples=10
    )
    learner = VCL(MLP(4, (16, 8), last="relu", seed=1), options)
    tasks = [blobs((0, 1), 120, seed) for seed in (1, 2, 3)]
    for x, y in tasks:
        learner.fit(x, y)
    assert sum(accuracy(learner, x, y, i) for i, (x, y) in enumerate(tasks)) / 3 > 0.9
    kept = learner.kept_inputs()
    assert [len(Z) for Z in kept] == ([] if coreset == "none" else [10, 10, 10])


@pytest.mark.parametrize("coreset", ["random", "kcenter"])
def test_the_coreset_is_left_out_of_training(coreset, monkeypatch):
    import frcl.learners.vcl as module

    seen = []
    original = module.minibatches

    def spy(*args):
        for step, rows, labels in original(*args):
            seen.append(rows)
            yield step, rows, labels

    monkeypatch.setattr(module, "minibatches", spy)
    options = VCLOptions(steps=60, batch_size=64, coreset=coreset, points=10, adapt_steps=2, predict_samples=2)
    learner = VCL(MLP(4, (8,), seed=1), options)
    learner.fit(*blobs((0, 1), 60, 1))
    trained = {tuple(row) for rows in seen for row in rows.tolist()}
    assert not trained & {tuple(row) for row in learner.kept_inputs()[0].tolist()}
    assert len(trained) == 50
