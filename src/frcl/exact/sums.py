"""Sums over examples from which the posterior of a linear model follows: they add up, and can be subtracted.

With features that are whole numbers (`frcl.exact.fixed`) and targets that are indicators of classes every sum is a
whole number, exact in float64 up to 2⁵³. So the order of examples does not matter, not even by rounding, and 32 bits
for each number keep all of it.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

LARGEST_INT32 = 2**31 - 1
LARGEST_EXACT = 2**53


class Sums(NamedTuple):
    """Of examples with features φ [K] and targets y [C]; everything in float64."""

    gram: Tensor  # Σ φ φᵀ [K, K]
    cross: Tensor  # Σ φ yᵀ [K, C]
    squares: Tensor  # Σ y² [C]; for indicators the number of examples of each class
    examples: Tensor  # N, []


def sums_of(Phi: Tensor, Y: Tensor) -> Sums:
    """The sums of examples Phi [N, K], Y [N, C]."""
    return Sums(Phi.mT @ Phi, Phi.mT @ Y, Y.square().sum(0), torch.tensor(float(len(Y)), dtype=Y.dtype).to(Y.device))


def plus(a: Sums, b: Sums) -> Sums:
    """Of the examples of both."""
    return Sums(*(one + other for one, other in zip(a, b, strict=True)))


def minus(a: Sums, b: Sums) -> Sums:
    """Of the examples of a without those of b."""
    return Sums(*(one - other for one, other in zip(a, b, strict=True)))


def narrowed(x: Tensor) -> Tensor:
    """The same numbers as they are kept: whole ones in 32 bits where they fit, else in 64; others as float64."""
    if not bool((x == x.round()).all()):
        return x
    return x.to(torch.int32 if not x.numel() or float(x.abs().max()) <= LARGEST_INT32 else torch.int64)


def features_within(size: int) -> int:
    """The number of features, a bias not counted, whose triangle takes this number of bytes with 32 bits per sum."""
    return (math.isqrt(1 + 8 * (size // 4)) - 1) // 2 - 1


def triangle(gram: Tensor) -> Tensor:
    """The lower triangle of a symmetric matrix [K, K] row by row, [K (K + 1)/2]."""
    rows, columns = torch.tril_indices(*gram.shape, device=gram.device)
    return gram[rows, columns]


def symmetric(kept: Tensor, K: int) -> Tensor:
    """The inverse of `triangle`, in float64."""
    rows, columns = torch.tril_indices(K, K, device=kept.device)
    gram = torch.zeros(K, K, dtype=torch.float64, device=kept.device)
    gram[rows, columns] = kept.double()
    gram[columns, rows] = kept.double()
    return gram
