"""One running quadratic anchor on the shared weights: what a handful of points cannot say of a task.

    N · H_θ = ½ Σ_p Ω_p (θ_p − θ*_p)²,      Ω ← γ Ω + N_i F_i when task i ends,      θ* ← θ      nats

F_i is the exact diagonal Fisher information of the task's likelihood at its mean head, per example (`fisher.py`), so
that N_i F_i is the curvature of its log-likelihood: a Laplace approximation of the task around the θ where it ended.
H_θ and its gradient are zero when a task begins.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from frcl.regularisers.protocol import Params
from frcl.regularisers.quadratic import quadratic, running_sum


class Anchor(NamedTuple):
    """θ* and Ω by name, of the shared weights alone."""

    theta: Params
    precision: Params


def next_anchor(before: Anchor | None, theta: Params, information: Params, decay: float) -> Anchor:
    """The anchor after a task that ended at θ with N_i F_i = `information`; γ is `decay`."""
    old = before or Anchor({}, {})
    anchored = {name: theta[name].detach().clone() for name in information}
    return Anchor(old.theta | anchored, running_sum(old.precision, information, decay))


def curvature(theta: Params, anchor: Anchor) -> Tensor:
    """N · H_θ = ½ Σ_p Ω_p (θ_p − θ*_p)²."""
    return quadratic(theta, anchor.theta, anchor.precision)
