import math

import pytest
import torch
from torch.distributions import MultivariateNormal, kl_divergence

from frcl import linalg
from frcl.posterior import Posterior, kl_weight


def spd(n: int, g: torch.Generator) -> torch.Tensor:
    A = torch.randn(n, n + 2, generator=g, dtype=torch.float64)
    return A @ A.T


def test_cholesky_factorises_and_poisons_what_is_not_positive_definite(generator):
    good = spd(4, generator)
    bad = good - 2 * torch.linalg.eigvalsh(good)[-1] * torch.eye(4, dtype=torch.float64)
    L = linalg.cholesky(torch.stack([good, bad]))
    torch.testing.assert_close(L[0] @ L[0].T, good)
    assert L[1].isnan().all()


def test_triangular_helpers(generator):
    A = spd(5, generator)
    L = linalg.cholesky(A)
    B = torch.randn(5, 3, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(linalg.solve_lower(L, B), torch.linalg.inv(L) @ B)
    torch.testing.assert_close(linalg.inverse_lower(L) @ L, torch.eye(5, dtype=torch.float64))
    torch.testing.assert_close(linalg.logdet_from_cholesky(L), torch.logdet(A))
    torch.testing.assert_close(linalg.logdet_from_cholesky(-L), torch.logdet(A))
    torch.testing.assert_close(
        linalg.add_diagonal(A, torch.arange(5.0).double()), A + torch.diag(torch.arange(5.0).double())
    )


def test_factors_of_a_product(generator):
    H = torch.randn(3, 4, 9, generator=generator, dtype=torch.float64)
    R = linalg.lower_factor(H)
    assert R.shape == (3, 4, 4)
    torch.testing.assert_close(R, R.tril())
    torch.testing.assert_close(R @ R.mT, H @ H.mT)
    low = torch.randn(6, 2, generator=generator, dtype=torch.float64)
    F = linalg.low_rank_factor(low @ low.T, 2)
    assert F.shape == (6, 2)
    torch.testing.assert_close(F @ F.T, low @ low.T)


@pytest.mark.parametrize("variance", [1.0, 0.3, 7.0])
def test_kl_weight_equals_torch_distributions(generator, variance):
    L = spd(5, generator).tril()
    mean = torch.randn(5, generator=generator, dtype=torch.float64)
    q = MultivariateNormal(mean, scale_tril=L)
    p = MultivariateNormal(torch.zeros(5).double(), math.sqrt(variance) ** 2 * torch.eye(5).double())
    torch.testing.assert_close(kl_weight(Posterior(mean[None], L[None]), variance), kl_divergence(q, p).sum())
    same = Posterior(torch.zeros(1, 5).double(), math.sqrt(variance) * torch.eye(5).double()[None])
    assert kl_weight(same, variance) == pytest.approx(0.0, abs=1e-12)


def test_kl_to_zero_mean_equals_torch_distributions(generator):
    P, L = spd(5, generator), spd(5, generator).tril()
    mean = torch.randn(5, generator=generator, dtype=torch.float64)
    expected = kl_divergence(MultivariateNormal(mean, scale_tril=L), MultivariateNormal(torch.zeros(5).double(), P))
    torch.testing.assert_close(linalg.kl_to_zero_mean(mean, L, linalg.cholesky(P)), expected)
