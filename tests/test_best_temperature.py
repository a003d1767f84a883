"""The temperature of a task, chosen on examples held out, against brute force."""

import pytest
import torch
from torch import Tensor
from torch.distributions import Normal

from frcl.likelihoods import Bernoulli, RobustMax, Softmax, best_temperature, tempered
from frcl.likelihoods.temperature import PRIOR

D = torch.float64
NONE = torch.empty(0, dtype=D)


def by_hand(nll, low: float = -2.0, high: float = 2.0) -> float:
    """The T with the least nll(T) − log N(log T | 0, PRIOR²), on a fine grid of log T."""
    grid = torch.linspace(low, high, 4001, dtype=D)
    values = torch.stack([nll(log_t.exp()) - Normal(0.0, PRIOR).log_prob(log_t) for log_t in grid])
    return float(grid[values.argmin()].exp())


def test_temperature_of_a_softmax_agrees_with_a_grid(generator):
    mean = 4 * torch.randn(300, 4, generator=generator, dtype=D)
    variance = 0.5 + torch.rand(300, 4, generator=generator, dtype=D)
    draws = torch.randn(16, 1, 4, generator=generator, dtype=D)
    y = torch.randint(4, (300,), generator=generator)
    y[:200] = mean[:200].argmax(1)

    def nll(t: Tensor) -> Tensor:
        f = (mean + variance.sqrt() * draws) / t
        return -f.softmax(-1).mean(0)[torch.arange(300), y].log().sum()

    found = best_temperature(Softmax(tuple(range(mean.shape[1]))), mean, variance, y, draws, {})
    assert float(found) == pytest.approx(by_hand(nll), rel=1e-3)
    assert float(found) > 1.5  # a third of the labels are chance: it was much too sure


def test_temperature_of_a_bernoulli_agrees_with_a_grid(generator):
    mean = torch.randn(80, 1, generator=generator, dtype=D)
    variance = 0.2 + torch.rand(80, 1, generator=generator, dtype=D)
    y = (mean[:, 0] > 0).long()  # surer than it knows
    f = torch.linspace(-15, 15, 2001, dtype=D)
    density = Normal(mean, variance.sqrt()).log_prob(f).exp() * (f[1] - f[0])

    def nll(t: Tensor) -> Tensor:
        sign = (2 * y - 1)[:, None]
        return -(density * torch.sigmoid(sign * f / t)).sum(1).log().sum()

    found = best_temperature(Bernoulli((0, 1)), mean, variance, y, NONE, {})
    assert float(found) == pytest.approx(by_hand(nll), rel=1e-3)
    assert float(found) < 0.8


@pytest.mark.parametrize("true", [0.5, 1.0, 3.0])
def test_the_temperature_that_labels_were_drawn_with_is_found(generator, true):
    mean = 3 * torch.randn(20_000, 3, generator=generator, dtype=D)
    y = torch.multinomial((mean / true).softmax(1), 1, generator=generator)[:, 0]
    draws = torch.zeros(1, 1, 3, dtype=D)
    found = best_temperature(Softmax(tuple(range(mean.shape[1]))), mean, torch.zeros_like(mean), y, draws, {})
    assert float(found) == pytest.approx(true, rel=0.05)


def test_a_few_examples_that_are_all_right_do_not_make_it_sure(generator):
    mean = 5 * torch.nn.functional.one_hot(torch.arange(20) % 4).double()
    draws = torch.zeros(1, 1, 4, dtype=D)
    found = best_temperature(
        Softmax(tuple(range(mean.shape[1]))), mean, torch.zeros_like(mean), torch.arange(20) % 4, draws, {}
    )
    assert 0.7 < float(found) < 1.0


def test_a_robustmax_has_no_temperature(generator):
    mean, variance = torch.randn(30, 3, generator=generator, dtype=D), torch.ones(30, 3, dtype=D)
    found = best_temperature(RobustMax((0, 1, 2)), mean, variance, torch.arange(30) % 3, NONE, {})
    assert float(found) == pytest.approx(1.0, abs=1e-3)


def test_tempered_functions_have_the_moments_of_f_over_t():
    mean, variance = tempered((torch.tensor([4.0]), torch.tensor([8.0])), torch.tensor(2.0))
    assert (float(mean), float(variance)) == (2.0, 2.0)
