"""Natural-gradient steps of q(w) against the conjugate update, the closed-form posterior, and themselves stacked."""

import pytest
import torch

from frcl.engine.natural import natural_step
from frcl.engine.program import gradient
from frcl.engine.train import Optimiser
from frcl.likelihoods import Gaussian
from frcl.posterior import Posterior, kl_weight, learned_prior_variance, triangular, weight_moments, weight_space
from frcl.trees import leaf, tree_map
from oracles import rand_posterior

D = torch.float64
NOISE, PRIOR = 0.3, 2.0
PARAMS = {"log_noise": torch.tensor(NOISE, dtype=D).log()}
ROWS, C, K = 40, 3, 5


@pytest.fixture
def data(generator):
    """Features of forty examples, and C targets each."""
    return torch.randn(ROWS, K, generator=generator, dtype=D), torch.randn(ROWS, C, generator=generator, dtype=D)


def loss(q: Posterior, Phi, Y, prior=PRIOR) -> torch.Tensor:
    """−ELBO per example of C regressions on fixed features."""
    moments, kl = weight_space(q, Phi, prior)
    params = {"log_noise": PARAMS["log_noise"].expand(C)}
    return -Gaussian().expected_log_prob(*moments, Y, torch.empty(0, dtype=D), params).mean() + kl / len(Phi)


def step(q: Posterior, Phi, Y, step_size: float, prior=PRIOR) -> None:
    found = gradient(loss(q, Phi, Y, prior), {"mean": q.mean, "factor": q.factor})
    N = torch.tensor(float(len(Phi)), dtype=D)
    with torch.no_grad():
        natural_step(q.mean, q.factor, found["mean"], found["factor"], N, step_size)


def exact(Phi, Y, prior=PRIOR) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean [C, K] and precision of the weights given all data."""
    precision = Phi.mT @ Phi / NOISE + torch.eye(K, dtype=D) / prior
    return torch.linalg.solve(precision, Phi.mT @ Y / NOISE).mT, precision


def covariance(q: Posterior) -> torch.Tensor:
    """[C, K, K], or [1, K, K] where it is shared."""
    L = q.factor.detach().tril() if q.factor.ndim == 3 else torch.diag_embed(q.factor.detach())
    return L @ L.mT


def start(structure: str, generator) -> Posterior:
    q = triangular(rand_posterior(C, K, generator))
    factor = {"full": q.factor, "shared": q.factor[:1], "diagonal": q.factor.diagonal(dim1=-2, dim2=-1)}[structure]
    return tree_map(leaf, Posterior(q.mean, factor.clone()))


@pytest.mark.parametrize("structure", ["full", "shared", "diagonal"])
def test_a_small_step_is_the_conjugate_update(structure, data, generator):
    """Λ ← (1 − ρ) Λ + ρ Λ̂ and Λμ ← (1 − ρ) Λμ + ρ Λ̂μ̂, a diagonal Λ by its diagonal alone, to first order in ρ."""
    q, step_size = start(structure, generator), 1e-8
    mean, target = exact(*data)
    before, own = q.mean.detach().clone(), torch.linalg.inv(covariance(q))
    step(q, *data, step_size)
    change = (torch.linalg.inv(covariance(q)) - own) / step_size
    wanted = torch.diag_embed(target.diagonal()) if structure == "diagonal" else target
    torch.testing.assert_close(change, wanted - own, atol=1e-3, rtol=1e-4)
    moved = (target @ (mean - before)[..., None]).squeeze(-1)  # −∂F/∂μ
    expected = torch.linalg.solve(own, moved[..., None]).squeeze(-1)
    torch.testing.assert_close((q.mean.detach() - before) / step_size, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("structure", ["full", "shared", "diagonal"])
@pytest.mark.parametrize("scale", [0.01, 1.0, 100.0])
def test_it_converges_to_the_posterior_wherever_it_begins(structure, scale, data, generator):
    """A diagonal q has the exact mean, and variances 1/Λ̂_kk."""
    q = start(structure, generator)
    with torch.no_grad():
        q.factor.mul_(scale)
        q.mean.mul_(scale)
    for _ in range(400):
        step(q, *data, 0.1)
    mean, precision = exact(*data)
    if structure == "diagonal":
        precision = torch.diag_embed(precision.diagonal())
    torch.testing.assert_close(q.mean.detach(), mean, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(
        covariance(q), torch.linalg.inv(precision).expand_as(covariance(q)), atol=1e-8, rtol=1e-5
    )


def test_with_a_learned_prior_it_ends_where_its_closed_form_is_consistent(data, generator):
    """The posterior under N(0, s I), with s = Σ (‖μ‖² + tr Σ)/(C K) of that posterior."""
    q = start("full", generator)
    for _ in range(600):
        step(q, *data, 0.1, None)
    s = float(learned_prior_variance(triangular(q)).detach())
    mean, precision = exact(*data, s)
    torch.testing.assert_close(q.mean.detach(), mean, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(covariance(q), torch.linalg.inv(precision).expand(C, -1, -1), atol=1e-8, rtol=1e-5)
    assert s != pytest.approx(PRIOR, rel=0.1)


def test_equal_full_factors_move_as_one_shared_factor_does(data, generator):
    shared = start("shared", generator)
    full = tree_map(leaf, Posterior(shared.mean.detach().clone(), shared.factor.detach().repeat(C, 1, 1)))
    for q in (shared, full):
        step(q, *data, 0.05)
    torch.testing.assert_close(full.mean, shared.mean)
    torch.testing.assert_close(full.factor.detach(), shared.factor.detach().expand(C, -1, -1))


@pytest.mark.parametrize("structure", ["full", "shared", "diagonal"])
@pytest.mark.parametrize("scale", [1e-3, 1e3])
def test_no_step_changes_a_variance_too_much(structure, scale, data, generator):
    """However far off q is: along every direction by less than a factor of three, and the factor stays regular."""
    q = start(structure, generator)
    with torch.no_grad():
        q.factor.mul_(scale)
    before = covariance(q)
    step(q, *data, 1.0)
    ratio = torch.linalg.eigvals(torch.linalg.solve(before, covariance(q))).real
    assert 1 / 3 < ratio.min() < ratio.max() < 3
    assert not torch.allclose(ratio, torch.ones_like(ratio), atol=0.05)


@pytest.mark.parametrize("structure", ["full", "shared", "diagonal"])
def test_stacked_optimisers_with_other_sizes_take_the_steps_of_each(structure, data, generator):
    """Two programs with their own N as one block, with a step size that decays."""
    Phi, Y = data

    def made(N: float) -> Optimiser:
        g = torch.Generator().manual_seed(int(N))
        tree = {"posterior": start(structure, g)._asdict(), "w": leaf(torch.ones(2, dtype=D))}
        tree["posterior"].pop("low_rank")
        optimiser = Optimiser(tree, 0.01, torch.tensor(N, dtype=D))
        optimiser.decay = 4.0, 2.0
        return optimiser

    def total(params) -> torch.Tensor:
        q = Posterior(params["posterior/mean"], params["posterior/factor"])
        return loss(q, Phi, Y) + params["w"].square().sum()

    alone, each = [made(30.0), made(70.0)], [made(30.0), made(70.0)]
    block = Optimiser.joined(each)
    for _ in range(4):
        for one in alone:
            one.apply(gradient(total(one.params), one.params))
        found = [gradient(total({n: v[i] for n, v in block.params.items()}), block.params) for i in range(2)]
        block.apply({name: found[0][name] + found[1][name] for name in block.params})
    for one, other in zip(alone, each, strict=True):
        assert set(one.exp_avg) == {"w"}
        for name, value in one.params.items():
            torch.testing.assert_close(value.detach(), other.params[name].detach())
    assert not torch.allclose(alone[0].params["posterior/factor"], alone[1].params["posterior/factor"])


def test_numbers_of_few_digits_take_the_step_too(data, generator):
    q, (Phi, Y) = start("full", generator), data
    short = tree_map(lambda value: leaf(value.detach().bfloat16()), q)
    found = gradient(loss(q, Phi, Y), {"mean": q.mean, "factor": q.factor})
    with torch.no_grad():
        for p, dtype in ((q, D), (short, torch.float32)):
            size = torch.tensor(float(ROWS), dtype=dtype)
            natural_step(p.mean, p.factor, *(v.to(p.mean.dtype) for v in found.values()), size, 0.1)
    torch.testing.assert_close(short.mean.double(), q.mean, atol=0.05, rtol=0.05)


def test_it_agrees_with_a_descent_of_the_loss(data, generator):
    q = start("full", generator)
    values = []
    for _ in range(30):
        values.append(float(loss(q, *data).detach()))
        step(q, *data, 0.1)
    assert values == sorted(values, reverse=True)
    own = triangular(tree_map(torch.Tensor.detach, q))
    expected = Gaussian().expected_log_prob(
        *weight_moments(own, data[0]), data[1], torch.empty(0, dtype=D), {"log_noise": PARAMS["log_noise"].expand(C)}
    )
    assert float(loss(q, *data).detach()) == pytest.approx(float(-expected.mean() + kl_weight(own, PRIOR) / ROWS))
