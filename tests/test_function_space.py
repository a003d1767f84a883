"""S-FSVI: linearised functions against whole Jacobians, their KL against torch.distributions, the loss by hand."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.distributions import Normal, kl_divergence
from torch.func import functional_call, jacrev

from frcl import MLP, DataError
from frcl.baselines.options import SFSVIOptions
from frcl.baselines.sfsvi import SFSVI
from frcl.features import FeatureMap
from frcl.regularisers.fisher import HEAD
from frcl.regularisers.function_space import Functions, Linearised, function_kl, mean_kl
from frcl.regularisers.mean_field import MeanField
from frcl.trees import tree_map
from streams import blobs

D = torch.float64
NET = MLP(3, (4, 2), seed=1).double()
ROWS = torch.tensor([[0, 2], [3, 0]])


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=D)


def belief(seed: int, R: int = 4) -> MeanField:
    shapes = {**{name: value.shape for name, value in NET.named_parameters()}, HEAD: (R, 3)}
    mean = {name: randn(*shape, seed=seed + i) for i, (name, shape) in enumerate(shapes.items())}
    return MeanField(mean, {name: 0.3 * randn(*value.shape, seed=seed + 50) - 1 for name, value in mean.items()})


def whole(q: MeanField, x: Tensor, row: int) -> tuple[Tensor, Tensor]:
    """f [n] of one row of the head, and the diagonal of J diag(s) Jᵀ from the Jacobian by everything."""

    def function(weights: dict[str, Tensor]) -> Tensor:
        theta = {name: value for name, value in weights.items() if name != HEAD}
        return functional_call(NET, theta, (x,)) @ weights[HEAD][row, :-1] + weights[HEAD][row, -1]

    found = jacrev(function)(q.mean)
    J = torch.cat([found[name].flatten(1) for name in q.mean], 1)
    s = torch.cat([(2 * q.log_std[name]).exp().flatten() for name in q.mean])
    return function(q.mean), (J @ torch.diag(s) @ J.mT).diagonal()


def linearised(q: MeanField, x: Tensor) -> Linearised:
    return Linearised(FeatureMap(NET), {n: v for n, v in q.mean.items() if n != HEAD}, {}, x)


def test_linearised_functions_are_those_of_the_whole_jacobian():
    q, x = belief(1), randn(2, 5, 3, seed=9)
    found = linearised(q, x[0])(q, {}, x, ROWS)
    for task, rows in enumerate(ROWS.tolist()):
        for c, row in enumerate(rows):
            mean, variance = whole(q, x[task], row)
            torch.testing.assert_close(found.mean[task, :, c], mean)
            torch.testing.assert_close(found.variance[task, :, c], variance)


def test_a_linear_network_is_its_own_linearisation():
    """With fixed features f is linear in the head: the variance is that of draws from q."""
    q, x, fixed = belief(1), randn(1, 6, 3, seed=9), {n: v.detach() for n, v in NET.named_parameters()}
    only = MeanField({HEAD: q.mean[HEAD]}, {HEAD: q.log_std[HEAD]})
    one = Linearised(FeatureMap(NET), {}, fixed, x[0])
    found = one(only, fixed, x, ROWS[:1])
    draws = only.mean[HEAD] + only.log_std[HEAD].exp() * randn(200_000, 4, 3, seed=3)
    f = torch.einsum("nk,srk->snr", FeatureMap(NET)(fixed, x[0]), draws)[..., ROWS[0]]
    torch.testing.assert_close(found.mean[0], f.mean(0), rtol=0.02, atol=0.01)
    torch.testing.assert_close(found.variance[0], f.var(0), rtol=0.02, atol=0)


def test_gradients_go_through_mean_and_jacobian():
    q, x, rows = belief(1), randn(1, 4, 3, seed=9), ROWS[:1]
    leaves = tree_map(lambda value: value.clone().requires_grad_(), q)
    one = linearised(q, x[0])

    def total(q: MeanField) -> Tensor:
        f = one(q, {}, x, rows)
        return f.mean.square().sum() + f.variance.sum()

    gradient = torch.autograd.grad(total(leaves), [*leaves.mean.values(), *leaves.log_std.values()])
    expected = torch.autograd.grad(
        sum(sum((m.square().sum(), v.sum())) for m, v in (whole(leaves, x[0], row) for row in (0, 2))),
        [*leaves.mean.values(), *leaves.log_std.values()],
    )
    for found, by_hand in zip(gradient, expected, strict=True):
        torch.testing.assert_close(found, by_hand)


def test_kl_is_that_of_torch_distributions_and_padding_counts_for_nothing():
    q, p = (Functions(randn(2, 5, 3, seed=i), randn(2, 5, 3, seed=i + 1).square() + 0.1) for i in (1, 7))
    expected = kl_divergence(Normal(q.mean, q.variance.sqrt()), Normal(p.mean, p.variance.sqrt()))
    torch.testing.assert_close(function_kl(q, p), expected)
    assert not function_kl(q, q).any()
    there = torch.tensor([[1.0, 1.0, 1.0], [1.0, 1.0, 0.0]], dtype=D)
    torch.testing.assert_close(mean_kl(q, p, there), (expected[0].sum() + expected[1, :, :2].sum()) / 10)


# -- the method --------------------------------------------------------------------------------------------------

TASKS = [blobs((0, 1), 60, 1), blobs((0, 1, 2), 60, 2), blobs((0, 1), 60, 3)]


def learner(**changes) -> SFSVI:
    options = replace(SFSVIOptions(steps=3, batch_size=8, points=6, context=4, samples=2), **changes)
    return SFSVI(MLP(4, (5, 3), seed=1).double(), options)


def opened(count: int, **changes) -> tuple[SFSVI, object]:
    """A learner with its next task just opened, and the program of that task."""
    one = learner(**changes)
    for x, y in TASKS[:count]:
        one.fit(x.double(), y)
    x, y = TASKS[count]
    return one, next(one.learn(x.double(), y))


@pytest.mark.parametrize("shared", [False, True])
def test_the_loss_is_the_expected_loss_and_the_kl_to_the_posterior_before(shared):
    """Third task, with q moved: the prior is the posterior when the second task ended, at points of both."""
    one, program = opened(2, shared_head=shared, kl_weight=0.7)
    before, heads = tree_map(lambda value: value.detach().clone(), one._trained()), one._rows()
    moved = tree_map(lambda value: value.detach() + 0.1, program.optimiser.tree)
    drawn = program.draw(1)
    x, y, (noise, points) = program.x[drawn.rows[0]], program.y[drawn.rows[0]], tree_map(lambda v: v[0], drawn.draws)
    terms = program.loss(moved, program.constants, x, y, (noise, points))

    def f(weights: dict[str, Tensor], x: Tensor, rows: list[int]) -> Tensor:
        theta = {name: value for name, value in weights.items() if name != HEAD}
        head = weights[HEAD][rows]
        return functional_call(one.net, theta, (x,)) @ head[:, :-1].mT + head[:, -1]

    nll = torch.zeros((), dtype=D)
    for s in range(2):
        w = {name: moved.mean[name] + moved.log_std[name].exp() * noise[name][s] for name in moved.mean}
        nll = nll + torch.nn.functional.cross_entropy(f(w, x, heads[2]), y) / 2
    assert heads == ([[0, 1], [0, 1, 2], [0, 1]] if shared else [[0, 1], [2, 3, 4], [5, 6]])
    kl = torch.zeros((), dtype=D)
    for task in range(2):
        z = one.kept_inputs()[task][points[task]]
        for row in heads[task]:
            now, then = (moments(one.net, q, z, row) for q in (moved, before))
            kl = kl + kl_divergence(Normal(now[0], now[1].sqrt()), Normal(then[0], then[1].sqrt())).sum()
    torch.testing.assert_close(-terms.log_likelihood, nll)
    torch.testing.assert_close(terms.kl_past, 0.7 * kl / 8)
    torch.testing.assert_close(terms.loss, nll + 0.7 * kl / 8)
    still = program.loss(before, program.constants, x, y, (noise, points))
    assert float(still.kl_past) < 1e-12
    assert all(len(set(own)) == 4 for own in points.tolist()), "context points of a step are different"


def moments(net: MLP, q: MeanField, x: Tensor, row: int) -> tuple[Tensor, Tensor]:
    def function(weights: dict[str, Tensor]) -> Tensor:
        theta = {name: value for name, value in weights.items() if name != HEAD}
        return functional_call(net, theta, (x,)) @ weights[HEAD][row, :-1] + weights[HEAD][row, -1]

    found = jacrev(function)(q.mean)
    variance = sum((found[n].square() * (2 * q.log_std[n]).exp()).flatten(1).sum(1) for n in q.mean)
    return function(q.mean), variance


def test_the_first_task_has_random_context_points_and_a_fixed_prior():
    one, program = opened(0, prior_variance=0.3)
    q = tree_map(Tensor.detach, program.optimiser.tree)
    drawn = program.draw(1)
    x, y, (noise, points) = program.x[drawn.rows[0]], program.y[drawn.rows[0]], tree_map(lambda v: v[0], drawn.draws)
    terms = program.loss(q, program.constants, x, y, (noise, points))
    low, high = program.x.min(), program.x.max()
    z, prior, total = low + (high - low) * points, Normal(0.0, 0.3**0.5), 0.0
    assert points.shape == (4, 4)
    assert bool(((points >= 0) & (points <= 1)).all())
    for row in range(2):
        mean, variance = moments(one.net, q, z, row)
        total = total + kl_divergence(Normal(mean, variance.sqrt()), prior).sum()
    torch.testing.assert_close(terms.kl_now, total / 4)


def test_too_few_examples_are_refused():
    with pytest.raises(DataError, match="60 examples are fewer than the 61 to keep"):
        learner(points=61).fit(*TASKS[0])
