"""What comes after a change of the inputs: a change that is noticed early in a ramp looks sharp, until it goes on.

With mean μ and root W of the task before (`Profile`), a minibatch t after the change has moved by W (m_t − μ). Let u be
the direction of what moved in the later half of the minibatches, from every other one of them; p_t = uᵀ W (m_t − μ) of
the others, and of the first ones, is then without bias. After a sharp change the p_t of the first ones are as large as
the later ones; in a ramp they are smaller.
"""

from __future__ import annotations

import math

import numpy as np

from frcl.boundary.profile import Profile
from frcl.boundary.sequential import Floats

LOOK, LEAST = 20, 5  # minibatches that are looked at, at most, and before anything is said
BEGINNING = 3  # of them
MOVED = 0.75  # after a sharp change the inputs have moved by more than this share of what they move by later
CERTAIN = 3.0  # standard errors


class Aftermath:
    """The mean features of the minibatches after a change, as seen from the task before."""

    def __init__(self, mean: Floats, root: Floats) -> None:
        self.mean, self.root = mean, root
        self.moved, self.rows = np.zeros((LOOK, len(mean))), np.ones(LOOK)
        self.count = 0

    @classmethod
    def of(cls, features: int) -> Aftermath:
        """With as many features, to load a state."""
        return cls(np.zeros(features), np.eye(features))

    @classmethod
    def after(cls, before: Profile) -> Aftermath:
        """After the task with this profile."""
        return cls(before.mean.double().numpy(), before.root.double().numpy())

    def learn(self, features: Floats) -> None:
        """A minibatch [B, R] after the change."""
        if self.count < LOOK:
            self.moved[self.count], self.rows[self.count] = self.root @ (features.mean(0) - self.mean), len(features)
            self.count += 1

    def goes_on(self) -> bool:
        """Whether the inputs move away further than they were just after the change was noticed."""
        n = min(self.count, LOOK)
        if n < LEAST:
            return False
        half = max(n // 2, BEGINNING)
        u = self.moved[half:n:2].mean(0)
        u = u / max(float(np.linalg.norm(u)), 1e-300)
        (first, error), (later, late_error) = (
            _level(self.moved[part] @ u, self.rows[part]) for part in (slice(0, BEGINNING), slice(half + 1, n, 2))
        )
        return first < MOVED * later and later - first > CERTAIN * math.hypot(error, late_error)


def _level(values: Floats, rows: Floats) -> tuple[float, float]:
    """Mean of the values of minibatches with these rows, each of variance 1/rows, and its standard error."""
    return float(np.average(values, weights=rows)), float(rows.sum() ** -0.5)
