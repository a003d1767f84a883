"""FRCL's objective as a pure function of parameters, memory, minibatch and noise (equation 4, Section 2.3).

    loss = −(1/B) Σ_j E_q[log p(y_j | f_j)] + ( KL_now + Σ_past KL_i ) / N        in nats per example

KL_now is KL(q(w) ‖ p(w)) in weight space and KL(q(u) ‖ p_θ(u)) in function space; `prior_weight` and `functional` weigh
the two KLs. What else may hold the past is in `holds.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from frcl.boundary import symmetrised_kl
from frcl.engine.program import Terms
from frcl.engine.tensors import Params
from frcl.features import features, times
from frcl.graphs import both
from frcl.learners.holds import Holds, Step, held_by
from frcl.learners.options import FRCLOptions
from frcl.likelihoods import Likelihood
from frcl.posterior import Moments, Posterior, function_moments, weight_space
from frcl.regularisers.functional import Bank, chosen, functional_kl
from frcl.regularisers.protocol import under

THETA, LIKELIHOOD, POSTERIOR, INPUTS = "theta/", "likelihood/", "posterior/", "inputs"


class Memory(NamedTuple):
    """What the objective knows besides parameters: N, past summaries, fixed inducing inputs (function space), holds."""

    N: float | Tensor
    past: Bank | None
    Z: Tensor | None
    holds: Holds | None = None


class Noise(NamedTuple):
    """All randomness of a step: Monte Carlo noise of the likelihood, past tasks to look at (None: all)."""

    likelihood: Tensor
    tasks: Tensor | None


def detached(params: Params) -> Params:
    """The same values, outside of any gradient."""
    return {name: value.detach() for name, value in params.items()}


def _aliases(params: Params) -> Params:
    """The same tensors, whose gradients reach them from here: what uses the aliases may run on another CUDA stream."""
    return {name: value.view_as(value) for name, value in params.items()}


def posterior_of(params: Params) -> Posterior:
    return Posterior(params[POSTERIOR + "mean"], params[POSTERIOR + "factor"])


@dataclass(frozen=True)
class Objective:
    """The objective of one task; calling it changes nothing."""

    net: nn.Module
    likelihood: Likelihood
    options: FRCLOptions

    def __call__(self, params: Params, memory: Memory, batch: tuple[Tensor, Tensor], noise: Noise) -> Terms:
        x, y = batch
        past = None
        if memory.past is not None and (self.options.functional or self.options.memory_targets):
            past = chosen(memory.past, noise.tasks)
        inputs = [x]
        if past is not None:
            inputs.append(past.Z.flatten(0, 1))
        Phi_x, *Phi_past = self.features(params, inputs).split([len(part) for part in inputs])
        Phi_z = None if past is None else Phi_past[0].unflatten(0, past.Z.shape[:2])
        theta = _aliases(under(params, THETA)) if memory.holds is not None else {}
        (log_likelihood, kl_now), parts = both(
            lambda: self._fit(params, memory, Phi_x, y, noise.likelihood),
            lambda: [*self._held(memory, past, Phi_z), *self._holds(params, theta, memory, x, Phi_x, Phi_z, noise)],
            Phi_x.device,
        )
        now = times(self.options.prior_weight, kl_now / memory.N)
        held = sum(parts[1:], parts[0]) if parts else now.new_zeros(())
        return Terms(-log_likelihood + now + held, log_likelihood, now, held)

    def _fit(self, params: Params, memory: Memory, Phi_x: Tensor, y: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Mean expected log-likelihood of the minibatch, and the KL of the current task."""
        moments, kl_now = self._current(params, memory, Phi_x)
        log_p = self.likelihood.expected_log_prob(*moments, y, noise, under(params, LIKELIHOOD))
        return log_p.mean(), kl_now

    def _held(self, memory: Memory, past: Bank | None, Phi_z: Tensor | None) -> list[Tensor]:
        """Σ KL of past tasks over N, or its estimate from those looked at; empty if there are none."""
        if past is None or memory.past is None or Phi_z is None or not self.options.functional:
            return []
        kl_past = functional_kl(times(self.options.prior_std, Phi_z), past, memory.past.tasks)
        return [times(self.options.functional, kl_past / memory.N)]

    def _holds(
        self, params: Params, theta: Params, memory: Memory, x: Tensor, Phi: Tensor, Phi_z: Tensor | None, noise: Noise
    ) -> list[Tensor]:
        """What else holds the past, in nats per example; `theta` are the shared weights."""
        if memory.holds is None or memory.past is None:
            return []
        Phi_old = None
        if memory.holds.begin:
            with torch.no_grad():
                Phi_old = features(self.net, theta | memory.holds.begin, x, self.options.feature_scale)
        step = Step(params, theta, Phi, Phi_old, Phi_z, noise.tasks, memory.past.tasks, memory.N)
        return held_by(self.options, memory.holds, step)

    def features(self, params: Params, inputs: list[Tensor]) -> Tensor:
        """Φ of all inputs together, from one pass through the network: [Σ rows, K]."""
        x = inputs[0] if len(inputs) == 1 else torch.cat(inputs)
        return features(self.net, under(params, THETA), x, self.options.feature_scale)

    def moments(self, params: Params, memory: Memory, x: Tensor) -> Moments:
        """Mean and variance of f at x under the posterior of the current task."""
        return self._current(params, memory, self.features(params, [x]))[0]

    def familiarity(self, params: Params, memory: Memory, x: Tensor) -> Tensor:
        """The boundary score of each input and function, [B, C]: how far q(f(x)) is from the prior (Section 3)."""
        Phi = self.features(params, [x])
        moments = self._current(params, memory, Phi)[0]
        score = symmetrised_kl(moments, self.options.prior_variance * Phi.square().sum(1))
        return score.contiguous()  # sums over it are then the same to the last bit, recorded or not

    def inducing_inputs(self, params: Params, memory: Memory) -> Tensor:
        """Z of the current task in function space: learned pseudo-inputs, or data points held fixed."""
        if INPUTS in params:
            return params[INPUTS]
        assert memory.Z is not None
        return memory.Z

    def _current(self, params: Params, memory: Memory, Phi_x: Tensor) -> tuple[Moments, Tensor]:
        q = posterior_of(params)
        if self.options.inference == "weight":
            return weight_space(q, Phi_x, self.options.prior_variance)
        Phi_z = self.features(params, [self.inducing_inputs(params, memory)])
        scale = self.options.prior_std
        return function_moments(q, times(scale, Phi_x), times(scale, Phi_z), self.options.u_noise)
