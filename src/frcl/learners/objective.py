"""FRCL's objective as a pure function of parameters, constants, minibatch and draws (equation 4, Section 2.3).

    loss = −(1/B) Σ_j E_q[log p(y_j | f_j)] + prior_weight · KL_now / N + Σ_r penalty_r        in nats per example

KL_now is KL(q(w) ‖ p(w)) in weight space and KL(q(u) ‖ p_θ(u)) in function space. The penalties are those of the
learner's regularisers, the paper's Σ_past KL_i / N among them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from frcl.boundary import symmetrised_kl
from frcl.engine.program import Terms
from frcl.features import FeatureMap
from frcl.graphs import both
from frcl.learners.options import FRCLOptions
from frcl.likelihoods import Likelihood
from frcl.posterior import Moments, Posterior, Prior, function_moments, triangular, weight_space
from frcl.regularisers import Regulariser
from frcl.regularisers.protocol import Step, of_tasks
from frcl.trees import Params, Tree


class Parameters(NamedTuple):
    """What is trained: shared weights, q, what the likelihood learns, heads of past tasks [T, C, K], pseudo-inputs."""

    theta: Params
    posterior: Posterior
    likelihood: Params
    heads: Tensor | None = None
    Z: Tensor | None = None


class Constants(NamedTuple):
    """What the objective reads besides parameters."""

    N: Tensor  # number of examples
    past_tasks: int  # how many there are before this one
    fixed: Params  # weights and buffers of the network that are not trained
    points: Tensor | None  # [T, M, ...] inducing inputs of past tasks, where a regulariser uses them
    Z: Tensor | None  # fixed inducing inputs of this task (function space)
    regularisers: tuple[Tree, ...]


class Draws(NamedTuple):
    """All randomness of a step: Monte Carlo draws of the likelihood, past tasks in use (None: all), regularisers'."""

    likelihood: Tensor
    tasks: Tensor | None
    regularisers: tuple[Tree, ...]


def draws_of_rows(likelihood: Likelihood, draws: Draws, rows: slice) -> Draws:
    """The draws of some examples of a minibatch: Monte Carlo draws may have an axis of examples."""
    two, three = (likelihood.draws_shape(batch, training=True) for batch in (2, 3))
    axis = next((i for i, (a, b) in enumerate(zip(two, three, strict=True)) if a != b), None)
    if axis is None:
        return draws
    return draws._replace(likelihood=draws.likelihood[(slice(None),) * axis + (rows,)])


@dataclass(frozen=True)
class Objective:
    """The objective of one task; calling it changes nothing."""

    features: FeatureMap
    likelihood: Likelihood
    options: FRCLOptions
    regularisers: Sequence[Regulariser]
    prior: Prior

    def __call__(self, params: Parameters, constants: Constants, x: Tensor, y: Tensor, draws: Draws) -> Terms:
        theta = {**constants.fixed, **params.theta}
        points = None if constants.points is None else of_tasks(constants.points, draws.tasks)
        inputs = [x] if points is None else [x, points.flatten(0, 1)]
        Phi = self.features(theta, inputs[0] if points is None else torch.cat(inputs))
        Phi_x, *Phi_points = Phi.split([len(part) for part in inputs])
        Phi_z = None if points is None else Phi_points[0].unflatten(0, points.shape[:2])

        def fit() -> tuple[Tensor, Tensor]:
            moments, kl_now = self._current(params, constants.Z, theta, Phi_x)
            log_p = self.likelihood.expected_log_prob(*moments, y, draws.likelihood, params.likelihood)
            return log_p.mean(), kl_now

        def held() -> list[Tensor]:
            # what uses aliases, to which gradients flow back from here, may run on another CUDA stream
            shared = {name: value.view_as(value) for name, value in theta.items()} if x.is_cuda else theta
            step = Step(
                self.features, shared, params.posterior.mean, params.heads, x, y, Phi_x, Phi_z, draws.tasks,
                constants.past_tasks, constants.N,
            )  # fmt: skip
            each = zip(self.regularisers, constants.regularisers, draws.regularisers, strict=True)
            return [penalty for one, *own in each if (penalty := one.penalty(step, *own)) is not None]

        (log_likelihood, kl_now), parts = both(fit, held, x.device) if x.is_cuda else (fit(), held())
        now = self.options.prior_weight * (kl_now / constants.N)
        penalty = sum(parts[1:], parts[0]) if parts else now.new_zeros(())
        return Terms(-log_likelihood + now + penalty, log_likelihood, now, penalty)

    def moments(self, params: Parameters, Z: Tensor | None, theta: Params, x: Tensor) -> Moments:
        """Mean and variance of f at x under the posterior of the current task; theta, all weights of the network."""
        return self._current(params, Z, theta, self.features(theta, x))[0]

    def familiarity(self, params: Parameters, Z: Tensor | None, theta: Params, x: Tensor) -> Tensor:
        """The boundary score of each input and function: how far q(f(x)) is from the prior (Section 3).

        Then the mean and the variance of q(f(x)), for the density of labels: [3, B, C].
        """
        Phi = self.features(theta, x)
        moments = self._current(params, Z, theta, Phi)[0]
        variance = self.prior.variance(triangular(params.posterior))
        score = symmetrised_kl(moments, variance * Phi.square().sum(1))
        return torch.stack([score, *moments])  # contiguous: sums are then the same to the last bit, recorded or not

    def _current(self, params: Parameters, Z: Tensor | None, theta: Params, Phi_x: Tensor) -> tuple[Moments, Tensor]:
        """Moments of f at x under q, and the KL of the current task."""
        if self.options.inference == "weight":
            return weight_space(params.posterior, Phi_x, self.prior.fixed_variance)
        Phi_z = self.features(theta, inducing_inputs(params, Z))
        std = self.prior.std(params.posterior)
        return function_moments(params.posterior, Phi_x, Phi_z, self.options.u_noise, std)


def inducing_inputs(params: Parameters, Z: Tensor | None) -> Tensor:
    """Z of the current task in function space: learned pseudo-inputs, or data points held fixed."""
    found = params.Z if Z is None else Z
    assert found is not None
    return found
