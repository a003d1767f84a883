"""What is believed about inputs: the current task through q, past ones through their summary (Section 2.5)."""

from __future__ import annotations

import torch
from torch import Tensor

from frcl.engine.tensors import in_chunks
from frcl.errors import NumericalError
from frcl.features import network_failures, times
from frcl.learners.lifecycle import Model
from frcl.learners.objective import LIKELIHOOD
from frcl.learners.state import LearnerState
from frcl.learners.types import Prediction, Summary
from frcl.likelihoods import best_temperature, tempered
from frcl.posterior import Moments
from frcl.regularisers.protocol import under
from frcl.summary import Head, head_moments, make_head, recentred


class Predictor:
    """Predicts under the network as it stands; the head of a past task is kept until θ moves."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._heads: dict[int, tuple[int, Head]] = {}  # by task: the version of θ it was made for, the head

    def forget(self) -> None:
        """The learner was set to another state."""
        self._heads = {}

    def predict(self, state: LearnerState, number: int, x: Tensor) -> Prediction:
        """Mean, variance and probabilities of all inputs in one task."""
        owner = state.past[number] if number < len(state.past) else state.current
        assert owner is not None
        target = owner.target
        with torch.no_grad(), network_failures():
            pieces, (mean, variance) = self._believed(state, number, x)
            if target.labels is None:
                params = owner.likelihood_params if isinstance(owner, Summary) else under(owner.params, LIKELIHOOD)
                return Prediction(mean, variance, None, None, None, params["log_noise"].exp())
            noise = self._model.predictive_noise(target)
            temperature = owner.temperature if isinstance(owner, Summary) else None
            if temperature is not None:
                pieces = [Moments(*tempered(piece, temperature)) for piece in pieces]
            probs = torch.cat([target.likelihood.probabilities(*piece, noise) for piece in pieces])
        return Prediction(mean, variance, probs, target.decode(probs.argmax(1)), target.labels, None)

    def temperature(self, state: LearnerState, number: int, x: Tensor, y: Tensor) -> Tensor:
        """The temperature with which a past task predicts these examples best; it has not learned from them."""
        summary = state.past[number]
        with torch.no_grad(), network_failures():
            _, (mean, variance) = self._believed(state, number, x)
            noise, learned = self._model.predictive_noise(summary.target), summary.likelihood_params
            return best_temperature(summary.target.likelihood, mean, variance, y, noise, learned)

    def _believed(self, state: LearnerState, number: int, x: Tensor) -> tuple[list[Moments], Moments]:
        """Mean and variance of all inputs in one task, chunk by chunk and together."""
        pieces = [self._moments(state, number, rows) for rows in x.split(self._model.chunk)]
        mean, variance = (torch.cat(values) for values in zip(*pieces, strict=True))
        if not bool(mean.isfinite().all() & variance.isfinite().all()):
            raise NumericalError("the features of these inputs are too large to predict from; scale the inputs")
        return pieces, Moments(mean, variance)

    def mean(self, state: LearnerState, number: int, x: Tensor) -> Tensor:
        """The mean of the functions alone, [n, C]: for a past task the network and one product with its head."""
        with torch.no_grad(), network_failures():
            if number == len(state.past):
                return torch.cat([self._moments(state, number, rows).mean for rows in x.split(self._model.chunk)])
            options, net = self._model.options, self._model.net
            weights = (options.prior_std * self._head(state, number).weights).to(self._model.dtype)
            slope, bias = times(options.feature_scale, weights[:-1]), weights[-1]
            return in_chunks(lambda rows: torch.addmm(bias, net(rows), slope), x, self._model.chunk)

    def _moments(self, state: LearnerState, number: int, x: Tensor) -> Moments:
        if number == len(state.past):
            current = state.current
            assert current is not None
            return current.objective.moments(current.params, current.memory, x)
        Phi = self._model.options.prior_std * self._model.features(x)
        summary = state.past[number]
        mean, variance = (v.to(self._model.dtype) for v in head_moments(self._head(state, number), summary.belief, Phi))
        if self._model.options.prediction != "summary":
            variance = times(self._model.options.head_variance, variance)
        return Moments(mean, variance if summary.spread is None else variance * summary.spread)

    def _head(self, state: LearnerState, number: int) -> Head:
        """The head of a past task, made anew when θ has moved since."""
        version = state.version + sum(p._version for p in self._model.net.parameters())  # also if moved from outside
        cached = self._heads.get(number)
        if cached is None or cached[0] != version:
            summary = state.past[number]
            Phi_z = self._model.options.prior_std * self._model.features(summary.Z)
            head = make_head(Phi_z, summary.belief)
            cached = (version, self._centred(head, Phi_z, summary, state.head(number)))
            self._heads[number] = cached
        return cached[1]

    def _centred(self, head: Head, Phi_z: Tensor, summary: Summary, kept: Tensor | None) -> Head:
        """The head that the option `prediction` asks for; all have the variance of the summary, scaled later."""
        options = self._model.options
        if options.prediction == "summary" or kept is None:
            return head
        centre = kept.double() / options.prior_std  # features are times σ_w here
        if options.prediction == "head":
            return head._replace(weights=centre.mT)
        return recentred(head, Phi_z, summary.belief, centre)
