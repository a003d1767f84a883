"""Jacobians by the factors of linear layers, against those that `torch.func.jacrev` makes whole."""

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev

from frcl import MLP, ConvNet
from frcl.regularisers.jacobians import (
    covariances,
    jacobian,
    split_of,
    squares_over_examples,
    squares_times,
)

D = torch.float64


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=D)


class Twice(nn.Module):
    """One layer used twice, one layer over the positions of a sequence, and a weight that is also used as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.same, self.each, self.tied = nn.Linear(4, 4), nn.Linear(2, 3), nn.Linear(4, 4, bias=False)
        self.last = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.same(torch.tanh(self.same(x))))
        h = self.tied(h) + h @ self.tied.weight
        return self.last(torch.tanh(self.each(h.unflatten(1, (2, 2)))).flatten(1))


NETS = {
    "mlp": (lambda: MLP(4, (5, 3), seed=1), (4,), set()),
    "layers of torch": (lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3, bias=False)), (4,), set()),
    "convolutions": (lambda: ConvNet(4, filters=(2, 3), seed=1), (4, 4), None),
    "layers used otherwise": (Twice, (4,), {"same.weight", "same.bias", "each.weight", "each.bias", "tied.weight"}),
}


@pytest.fixture(params=NETS)
def case(request):
    """A function with three values, its weights, inputs, variances of the weights, and J [B, R, P] as a whole."""
    make, shape, others = NETS[request.param]
    torch.manual_seed(3)
    net, x = make().double(), randn(6, *shape, seed=2)
    params = {name: value.detach() for name, value in net.named_parameters()}

    def values(weights: dict[str, Tensor], rows: Tensor) -> Tensor:
        return functional_call(net, weights, (rows,))[:, :3].softmax(1)

    whole = jacrev(lambda weights: values(weights, x))(params)
    s = {name: randn(*value.shape, seed=4).square() for name, value in params.items()}
    split = split_of(values, params, x)
    if others is not None:
        assert set(split.others) == others
    else:
        assert set(split.others) == set(params)
    flat = torch.cat([whole[name].flatten(2) for name in params], 2)
    return values, params, x, s, split, flat, torch.cat([s[name].flatten() for name in params])


def test_diagonal_and_covariances_are_those_of_the_whole_jacobian(case):
    values, params, x, s, split, J, flat = case
    found = jacobian(values, params, x, split)
    torch.testing.assert_close(found.values, values(params, x))
    torch.testing.assert_close(squares_times(found, s), torch.einsum("brp,p->br", J.square(), flat))
    expected = torch.einsum("brp,p,crp->rbc", J, flat, J)
    torch.testing.assert_close(covariances(found, s), expected)


def test_squares_over_examples_are_weighted_and_summed(case, monkeypatch):
    values, params, x, _, split, J, _ = case
    monkeypatch.setattr("frcl.regularisers.jacobians.CHUNK", 4)
    found = squares_over_examples(values, lambda v: 2 * v + 1, params, x, split)
    expected = torch.einsum("br,brp->p", 2 * values(params, x) + 1, J.square())
    torch.testing.assert_close(torch.cat([found[name].flatten() for name in params]), expected)


def test_the_diagonal_is_differentiable_and_can_be_batched(case):
    """Its gradient by the weights, through the Jacobian, against finite differences; and over stacked weights."""
    values, params, x, s, split, _, _ = case

    def total(weights: dict[str, Tensor]) -> Tensor:
        return squares_times(jacobian(values, weights, x, split), s).square().sum()

    leaves = {name: value.clone().requires_grad_() for name, value in params.items()}
    gradient = torch.autograd.grad(total(leaves), list(leaves.values()))
    way = {name: randn(*value.shape, seed=5) for name, value in params.items()}
    ahead, behind = ({n: v + step * way[n] for n, v in params.items()} for step in (1e-6, -1e-6))
    slope = (total(ahead) - total(behind)) / 2e-6
    along = sum((g * way[name]).sum() for g, name in zip(gradient, params, strict=True))
    torch.testing.assert_close(along, slope, rtol=1e-6, atol=1e-8)
    both = {name: torch.stack([value, value + 0.1 * way[name]]).requires_grad_() for name, value in params.items()}
    each = torch.vmap(total)(both)
    torch.testing.assert_close(each[0], total(params))
    stacked = torch.autograd.grad(each.sum(), list(both.values()))
    for one, alone in zip(stacked, gradient, strict=True):
        torch.testing.assert_close(one[0], alone)
