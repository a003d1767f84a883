"""What the inputs of a task look like, by fixed features of them: to notice other inputs, and to know them again.

A minibatch of B examples has the mean m of its features [R]. Its distance to the n examples before it, with mean μ and
covariance Σ, is that of Hotelling's test,

    l = log( (m − μ)ᵀ (Σ + ε tr(Σ)/R I)⁻¹ (m − μ) / (R (1/B + 1/n)) ),

about zero on average for independent examples. What is usual is learned from the stream: its minibatches may depend on
each other, and then distances are larger. No network has a part in it, so that learning does not move it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from frcl.boundary.sequential import ChangePoint, Floats, SequentialTest

FEATURES = 64  # R
SHRINK = 0.2  # ε
FIRST = 3  # minibatches before there are distances, and distances before there is a test
PRIOR_STD, PRIOR_DOF = 0.35, 4  # of distances in a first task, where few were seen: about that of the logarithm of χ²/R
CARRIED, CARRIED_DOF = 8, 20  # distances that their mean, and their variance, in the task before count for
LEAST_DOF = 2.0
MEMORY = 100  # minibatches over which mean and variance of the distances are averaged
LIMIT = 2.0  # a distance farther from the mean, in standard deviations, does not move them further
LIMITED = 0.92  # the variance of a normal variable that is limited so
LEAST_STD = 0.1  # of distances
EXPECTED = 2.0  # standard deviations that the density of labels may fall without being a change
DENSITY_MEMORY = 20  # minibatches over which the labels' density is averaged
SLACK = 1.1  # a distance from the mean counts as one smaller by this factor
MOST_SKEWED = 0.25  # standard deviation of log-distances beyond which they are not taken for more skewed
TINY = 1e-12


@dataclass(frozen=True)
class Profile:
    """What is kept of the inputs of a task: mean [R] and a root W [R, R] of (Σ + …)⁻¹ = WᵀW of the features.

    `usual` and `spread` are mean and standard deviation of the distance l of its minibatches; `density` and
    `density_spread` those of the labels' log-density in its last minibatches, None where there was none.
    """

    mean: Tensor
    root: Tensor
    rows: int
    usual: float
    spread: float
    density: float | None = None
    density_spread: float | None = None

    def excess(self, features: Tensor) -> float:
        """How much farther than usual a minibatch with these features [B, R] is, in standard deviations."""
        given, mean, root = (part.detach().cpu().double().numpy() for part in (features, self.mean, self.root))
        return (log_distance(given, mean, root, self.rows) - self.usual) / self.spread

    def tensors(self) -> list[Tensor]:
        """What takes memory."""
        return [self.mean, self.root]


def log_distance(features: Floats, mean: Floats, root: Floats, rows: int) -> float:
    """l of a minibatch [B, R] to `rows` examples with this mean and root of the inverse covariance."""
    B, R = features.shape
    square = float(np.square(root @ (features.mean(0) - mean)).sum())
    return math.log(max(square, TINY) / (R * (1 / B + 1 / rows)))


def inverse_root(covariance: Floats) -> Floats:
    """W with WᵀW = (Σ + ε tr(Σ)/R I)⁻¹."""
    R = len(covariance)
    whole = covariance + (SHRINK * np.trace(covariance) / R + TINY) * np.eye(R)
    found: Floats = np.linalg.inv(np.linalg.cholesky(whole))
    return found


def normal_score(t: float, dof: float) -> float:
    """The normal score of a value of Student's t (Wallace, 1959): ± (8ν + 1)/(8ν + 3) √(ν log(1 + t²/ν))."""
    return math.copysign((8 * dof + 1) / (8 * dof + 3) * math.sqrt(dof * math.log1p(t * t / dof)), t)


def without_skew(score: float, std: float) -> float:
    """The normal score of the logarithm of a χ² variable, from its `score` by mean and standard deviation `std`.

    Its cube root is nearly normal (Wilson and Hilferty, 1931). With v = 2/k, log(χ²/k) has mean −v/2 − v²/12, variance
    s² = v + v²/2, about, and (χ²/k)^(1/3) mean 1 − v/9 and variance v/9.
    """
    s = min(std, MOST_SKEWED)
    v = math.sqrt(1 + 2 * s * s) - 1
    return (math.expm1((s * score - v / 2 - v * v / 12) / 3) + v / 9) / (math.sqrt(v) / 3)


class InputTest:
    """The distances of minibatches to those before them, tested by the same sums over windows as scores are."""

    def __init__(self, features: int, usual: float = 0.0, std: float = PRIOR_STD, carried: int = 0) -> None:
        self.carried, self.prior_std = carried, std  # how many distances `usual` counts for
        self.rows = self.minibatches = self.distances = 0
        self.sum, self.products = np.zeros(features), np.zeros((features, features))
        self.usual, self.variance = usual, 0.0  # of the distances
        self.density, self.density_variance, self.densities = 0.0, 0.0, 0
        self.windows = SequentialTest()

    def test(self, features: Floats) -> float:
        """The statistic of a minibatch [B, R]; −∞ while there is too little to compare it with."""
        if self.minibatches < FIRST:
            return -math.inf
        found, std = log_distance(features, *self._moments(), self.rows), self._std()
        apart, statistic = (found - self.usual) / std, -math.inf
        if self.distances + self.carried >= FIRST:
            n = min(self.distances, MEMORY)
            alone, size = self.windows.without_dependence(apart)
            share = self.windows.independent_share()  # of distances that count, where they follow each other
            count, dof = share * (n + self.carried), share * (self._dof(n) + self._prior_dof)
            t = alone / (SLACK * size * math.sqrt(1 + 1 / max(count, 1.0)))
            statistic = self.windows.add_score(without_skew(normal_score(t, max(dof, LEAST_DOF)), std))
            apart = max(-LIMIT, min(apart, LIMIT))
            self.windows.follow_dependence(apart)
        self.distances += 1
        self._follow(self.usual + apart * std)
        return statistic

    def learn(self, features: Floats, density: float | None = None) -> None:
        """The minibatch belongs to the task; `density` is the mean log-density of its labels."""
        self.minibatches += 1
        self.rows += len(features)
        self.sum = self.sum + features.sum(0)
        self.products = self.products + features.T @ features
        if density is not None:
            self.densities += 1
            share, apart = 1 / min(self.densities, DENSITY_MEMORY), density - self.density
            self.density_variance = (1 - share) * (self.density_variance + share * apart**2)
            self.density += share * apart

    def expects(self, density: float) -> bool:
        """Whether the mean log-density of a minibatch's labels is at most EXPECTED standard deviations below usual."""
        least = self.density - EXPECTED * math.sqrt(self.density_variance)
        return self.densities >= FIRST and density >= least

    def with_new_inputs(self) -> InputTest:
        """A test that knows nothing of the inputs, and of the labels what this one does."""
        test = self.successor()
        for name in ("density", "density_variance", "densities"):
            setattr(test, name, getattr(self, name))
        return test

    def _follow(self, found: float) -> None:
        """Mean and variance of the distances, unbiased while all of them count; the mean starts where it was before."""
        n, apart = min(self.distances, MEMORY), found - self.usual
        count, dof = n + self.carried, self._dof(n)
        self.usual += apart / count
        square = (count - 1) / count * apart**2 / LIMITED
        self.variance = 0.0 if dof == 0 else (dof - 1) / dof * self.variance + square / dof

    def _dof(self, n: int) -> int:
        """Degrees of freedom of the variance of n distances."""
        return n if self.carried else max(n - 1, 0)

    @property
    def _prior_dof(self) -> int:
        return CARRIED_DOF if self.carried else PRIOR_DOF

    def _std(self) -> float:
        """Of the distances, with the prior."""
        dof = self._dof(min(self.distances, MEMORY))
        total = self._prior_dof * self.prior_std**2 + dof * self.variance
        return max(math.sqrt(total / (self._prior_dof + dof)), LEAST_STD)

    def successor(self) -> InputTest:
        """The test of the next task: the distances of a stream are about as usual as they were before."""
        if self.distances < FIRST:
            return InputTest(len(self.sum))
        return InputTest(len(self.sum), self.usual, self._std(), CARRIED)

    def change_point(self) -> ChangePoint:
        """When and how the distances rose."""
        return self.windows.change_point()

    def _moments(self) -> tuple[Floats, Floats]:
        mean = self.sum / self.rows
        return mean, inverse_root(self.products / self.rows - np.outer(mean, mean))

    def profile(self) -> Profile | None:
        """What is kept when the task ends; None where it was too short."""
        if self.distances < FIRST:
            return None
        mean, root = (torch.from_numpy(part).float() for part in self._moments())
        density = (self.density, math.sqrt(self.density_variance)) if self.densities else (None, None)
        return Profile(mean, root, self.rows, self.usual, self._std(), *density)
