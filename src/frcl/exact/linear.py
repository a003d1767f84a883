"""The posterior of a Bayesian linear model from its sums, and the distribution of classes that follows from it.

y = wᵀφ + ε,  w ~ N(0, (σ²/λ) I),  ε ~ N(0, σ²):  a Gaussian process with kernel (σ²/λ) φ(x)ᵀφ(x').
σ² has a closed form given λ, and λ is where the marginal likelihood is largest. Everything in float64.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from frcl.errors import NumericalError
from frcl.few import log1p, log_softmax, product
from frcl.linalg import cholesky, inverse_lower, logdet_from_cholesky, lower_factor, solve_lower

LARGEST_INT32 = 2**31 - 1
LARGEST_EXACT = 2**53


class Sums(NamedTuple):
    """Of examples with features φ [K] and targets y [C]; everything in float64. They add up, and can be subtracted.

    With features that are whole numbers (`frcl.exact.fixed`) and targets that are indicators of classes every sum is a
    whole number, exact in float64 up to 2⁵³. So the order of examples does not matter, not even by rounding, and 32
    bits for each number keep all of it.
    """

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


# λ is looked for between these multiples of the mean of the gram matrix's diagonal
LEAST, MOST, ROUNDS = 1e-8, 1e2, 14
FREEDOM = 3.0  # ν of the Student t of the functions, given the class
TEMPER = 0.75  # its power: with 1 the class probabilities were too sure on validation data of MNIST
POWERS = tuple(2.0 ** (step / 4) for step in range(-24, 5))  # among which one is chosen on examples held out
TINY = 1e-12  # least share of the targets' squares that counts as noise


class Linear(NamedTuple):
    """p(w | data) = N(weights, noise · (L Lᵀ)⁻¹) for each target, L Lᵀ = ΦᵀΦ + λ I."""

    weights: Tensor  # [K, C]
    chol: Tensor  # L [K, K]
    noise: Tensor  # σ², []
    ridge: Tensor  # λ, []
    log_evidence: Tensor  # log p(Y | Φ), []


def solve(sums: Sums, ridge: Tensor) -> Linear:
    """The posterior given λ, with the σ² that maximises the marginal likelihood:

    W = (ΦᵀΦ + λI)⁻¹ ΦᵀY,   σ² = (tr YᵀY − tr YᵀΦ W) / (NC)
    log p(Y | Φ) = −½ [ NC log(2πσ²) + NC + C log|ΦᵀΦ + λI| − CK log λ ]
    """
    chol = cholesky(sums.gram, ridge)
    half = solve_lower(chol, sums.cross)  # L⁻¹ ΦᵀY
    noise, log_evidence = _evidence(sums, ridge, half.square().sum(), logdet_from_cholesky(chol))
    weights: Tensor = torch.linalg.solve_triangular(chol.mT, half, upper=True)
    return Linear(weights, chol, noise, ridge, log_evidence)


def _evidence(sums: Sums, ridge: Tensor, fitted: Tensor, logdet: Tensor) -> tuple[Tensor, Tensor]:
    """σ² and the logarithm of the marginal likelihood, from ‖L⁻¹ΦᵀY‖² and log|L Lᵀ|."""
    K, C = len(sums.cross), len(sums.squares)
    total, NC = sums.squares.sum(), sums.examples * C
    noise = (total - fitted).clamp_min(TINY * total + math.ulp(0.0)) / NC
    return noise, -0.5 * (NC * (2 * math.pi * noise).log() + NC + C * logdet - C * K * ridge.log())


def solve_by_evidence(sums: Sums) -> Linear:
    """The posterior with the λ that maximises the marginal likelihood, by golden sections of log λ.

    With the eigenvalues v_k and eigenvectors q_k of ΦᵀΦ:  log|L Lᵀ| = Σ log(v_k + λ),
    ‖L⁻¹ΦᵀY‖² = Σ ‖q_kᵀΦᵀY‖² / (v_k + λ)
    """
    scale = float(sums.gram.diagonal().mean())
    if scale <= 0:
        raise NumericalError("all fixed features are zero; choose others")
    values, vectors = torch.linalg.eigh(sums.gram)
    squares = (vectors.mT @ sums.cross).square().sum(1)

    def at(log_ridge: float) -> float:
        ridge = sums.gram.new_tensor(math.exp(log_ridge))
        shifted = values.clamp_min(0.0) + ridge
        return float(_evidence(sums, ridge, (squares / shifted).sum(), shifted.log().sum())[1])

    ratio = (math.sqrt(5) - 1) / 2
    low, high = math.log(LEAST * scale), math.log(MOST * scale)
    left, right = high - ratio * (high - low), low + ratio * (high - low)
    at_left, at_right = at(left), at(right)
    for _ in range(ROUNDS):
        if at_left < at_right:
            low, left, at_left = left, right, at_right
            right = low + ratio * (high - low)
            at_right = at(right)
        else:
            high, right, at_right = right, left, at_left
            left = high - ratio * (high - low)
            at_left = at(left)
    best = solve(sums, sums.gram.new_tensor(math.exp(right if at_left < at_right else left)))
    if not bool(best.weights.isfinite().all()):
        raise NumericalError("the posterior on the fixed features cannot be solved; the inputs may be too large")
    return best


def _narrow(A: Tensor) -> Tensor:
    """A [K, C], or for C > K a square matrix R with R Rᵀ = A Aᵀ."""
    return A if A.shape[1] <= A.shape[0] else lower_factor(A)


def leverage(linear: Linear, Phi: Tensor) -> Tensor:
    """φᵀ(ΦᵀΦ + λI)⁻¹φ of each row, [n]: the variance of f there is σ² times it."""
    return solve_lower(linear.chol, Phi.mT).square().sum(0)


def degrees_of_freedom(sums: Sums, linear: Linear) -> Tensor:
    """tr ΦᵀΦ(ΦᵀΦ + λI)⁻¹ = K − λ tr (ΦᵀΦ + λI)⁻¹, []: the sum of the leverages of the examples."""
    return len(sums.gram) - linear.ridge * inverse_lower(linear.chol).square().sum()


class Classes(NamedTuple):
    """The functions f = Wᵀφ given the class c: Student t around E[f | c], with a scale matrix S = L Lᵀ for all classes.

    For C > K the functions lie in K dimensions: f is given in an orthonormal basis of those, r = min(C, K) numbers.
    """

    weights: Tensor  # W L⁻ᵀ [K, r]
    centres: Tensor  # L⁻¹ E[f | c] over the examples of each class, [r, C], one column per class
    chol: Tensor  # L [r, r]
    log_prior: Tensor  # log of the share of each class, [C]
    power: float = TEMPER  # t, of the Student t


def class_model(sums: Sums, linear: Linear, power: float = TEMPER) -> Classes:
    """From the sums with indicators of classes as targets:

    E[f | c] = WᵀΦᵀY_c / n_c,   S = WᵀΦᵀΦW / N − Σ_c (n_c/N) E[f | c] E[f | c]ᵀ + σ² (df/N) I

    The last term is the mean variance of f, by which new examples differ more from their class than old ones.
    """
    W, share = _narrow(linear.weights), sums.squares / sums.examples
    means = W.mT @ sums.cross / sums.squares
    within = W.mT @ sums.gram @ W / sums.examples - (means * share) @ means.mT
    variance = linear.noise * degrees_of_freedom(sums, linear) / sums.examples
    chol = cholesky(within, variance)
    return Classes(solve_lower(chol, W.mT).mT, solve_lower(chol, means), chol, share.log(), power)


def class_log_probs(classes: Classes, Phi: Any) -> Any:
    """log p(c | x) [n, C] for features [n, K]: Bayes' rule with p(f | c) ∝ (1 + d_c²/ν)^{−t(ν + r)/2}.

    d_c² = (f − E[f | c])ᵀ S⁻¹ (f − E[f | c]), r the dimensions of f, t the power. All of them tensors, or arrays.
    """
    return log_probs_at(class_distances(classes, Phi), classes)


def log_probs_at(distance: Any, classes: Classes) -> Any:
    """The same from d_c² [n, C]."""
    density = -0.5 * classes.power * (FREEDOM + len(classes.chol)) * log1p(distance / FREEDOM)
    return log_softmax(density + classes.log_prior)


def losses_of_powers(classes: Classes, Phi: Tensor, labels: Tensor) -> Tensor:
    """−Σ log p(c | x) of examples with features [n, K] and classes [n], for each power of POWERS."""
    distance = class_distances(classes, Phi)
    each = [log_probs_at(distance, classes._replace(power=power)) for power in POWERS]
    return torch.stack([-found.gather(1, labels[:, None]).sum() for found in each])


def class_distances(classes: Classes, Phi: Any) -> Any:
    """d_c² = ‖a‖² − 2 aᵀm_c + ‖m_c‖² [n, C], a and m_c as f and E[f | c] in units of S."""
    at, centres = product(Phi, classes.weights), classes.centres
    squares = (at * at).sum(1)[:, None] + (centres * centres).sum(0)
    return (squares - 2 * product(at, centres)).clip(0.0)  # below zero by rounding only
