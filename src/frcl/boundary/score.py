"""The boundary score of an input, and Welch's test of two samples of scores (Section 3, Appendix E)."""

import torch
from torch import Tensor

from frcl.posterior import Moments


def symmetrised_kl(moments: Moments, prior_variance: Tensor) -> Tensor:
    """ℓ = ½ [ KL(q‖p) + KL(p‖q) ] of q = N(μ, σ²) and p = N(0, k), [B, C]; prior_variance [B]:

        ℓ = ¼ [ (σ² + μ²)/k + (k + μ²)/σ² − 2 ] = ¼ [ (σ² − k)²/(σ² k) + μ² (1/k + 1/σ²) ]

    in the second form, which rounding cannot make negative. Small for inputs unlike what was learned: q is back at p.
    """
    k = prior_variance[:, None]
    square, variance = moments.mean.square(), moments.variance
    return 0.25 * ((variance - k).square() / (variance * k) + square * (1 / k + 1 / variance))


def welch(old: Tensor, new: Tensor) -> Tensor:
    """Welch's t [C] for "the mean of `new` is smaller than that of `old`"; [n_old, C], [n_new, C], unequal variances.

    t = (m_old − m_new) / √(s²_old/n_old + s²_new/n_new)
    """
    difference = old.mean(0) - new.mean(0)
    error = old.var(0, correction=1) / len(old) + new.var(0, correction=1) / len(new)
    return torch.where(difference == 0, 0.0, difference / error.sqrt())
