"""What is believed about inputs: the current task through q, past ones through their summary (Section 2.5)."""

from __future__ import annotations

import functools
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from frcl.errors import NumericalError
from frcl.features import in_chunks, network_failures
from frcl.inference import Asked, Points
from frcl.learners.objective import Objective
from frcl.learners.state import LearnerState
from frcl.learners.task import Model
from frcl.learners.types import Beliefs, Prediction, Summary
from frcl.likelihoods import Predictive, best_temperature, tempered
from frcl.posterior import Moments
from frcl.summary import Head, head_moments, make_head, recentred


class Predictor:
    """Predicts under the network as it stands; the head of a past task is cached until θ moves."""

    def __init__(self, model: Model) -> None:
        self._model = model
        # by state and task: the version of θ that a head was made for, and the head
        self._heads: WeakKeyDictionary[LearnerState, dict[int, tuple[int, Head]]] = WeakKeyDictionary()

    def beliefs(self, state: LearnerState, x: Tensor) -> Beliefs:
        """What can be said about x; the features of x are computed once, when they are first needed."""

        @functools.cache
        def Phi() -> Tensor:
            with network_failures():
                return self._model.features(x)

        def within(number: int, rows: Tensor | None) -> Prediction:
            inputs, features = x, None if state.is_open(number) else Phi()  # the open task needs x itself
            if rows is not None:
                inputs, features = x[rows], None if features is None else features[rows]
            with network_failures():
                return self._predict(state, number, inputs, features)

        def at_mean(number: int) -> Prediction | None:
            return None if state.is_open(number) else self._at_mean(state, number, Phi())

        def points() -> list[Points]:
            each = state.summaries()
            return [Points(one.Z, self._model.features(one.Z)[:, :-1], self._classes_at_points(one)) for one in each]

        version = self._version(state), len(state.past), id(state)
        return Beliefs(Asked(x, lambda: Phi()[:, :-1], points, list, version), within, at_mean)

    def _at_mean(self, state: LearnerState, number: int, Phi: Tensor) -> Prediction | None:
        """The class probabilities of the mean functions of a past task; None for numeric targets."""
        past = state.past[number]
        if past.likelihood.classes is None:
            return None
        mean = Phi @ self._head(state, number).weights.to(Phi)
        if past.temperature is not None:
            mean = mean / past.temperature
        probs = self._without_variance(past, mean).probs
        return Prediction(mean, torch.zeros_like(mean), probs, None, past.likelihood.classes)

    def _without_variance(self, summary: Summary, mean: Tensor) -> Predictive:
        """The distribution of targets for functions that are known, [n, C]."""
        draws = self._model.predictive_draws(summary.likelihood)[:1]
        return summary.likelihood.predictive(mean, torch.zeros_like(mean), draws, summary.likelihood_params)

    def _classes_at_points(self, summary: Summary) -> Tensor:
        """The most probable class at each inducing point, by q(u); zeros for numeric targets."""
        if summary.likelihood.classes is not None:
            return self.targets_at_points(summary)
        return torch.zeros(len(summary.Z), dtype=torch.int64, device=summary.Z.device)

    def targets_at_points(self, summary: Summary) -> Tensor:
        """What q(u) says of the targets at the inducing points: classes, or numbers [M, C]."""
        found = self._without_variance(summary, summary.belief.mean.mT.to(self._model.dtype))
        if found.probs is not None:
            return found.probs.argmax(1)
        assert found.mean is not None
        return found.mean

    def weights(self, state: LearnerState, number: int) -> Tensor:
        """The mean of w of a past task under the network as it stands, [C, K]."""
        with torch.no_grad():
            return self._head(state, number).weights.mT.to(self._model.dtype)

    def _predict(self, state: LearnerState, number: int, x: Tensor, Phi: Tensor | None) -> Prediction:
        """In one task; Phi are the features of x, for a past task."""
        past = None if state.is_open(number) else state.past[number]
        if past is not None:
            likelihood, learned, temperature = past.likelihood, past.likelihood_params, past.temperature
        else:
            assert state.current is not None
            likelihood, learned, temperature = state.current.likelihood, state.current.params.likelihood, None
        pieces, (mean, variance) = self._believed(state, number, x, Phi)
        draws = self._model.predictive_draws(likelihood)
        if temperature is not None:
            pieces = [Moments(*tempered(piece, temperature)) for piece in pieces]
        each = [likelihood.predictive(*piece, draws, learned) for piece in pieces]
        found = Predictive(*(None if part[0] is None else torch.cat(part) for part in zip(*each, strict=True)))
        labels = None if found.probs is None else likelihood.decode(found.probs.argmax(1))

        def density(y: Any) -> Tensor:
            encoded = likelihood.encode(y, mean.device, mean.dtype).split([len(piece.mean) for piece in pieces])
            parts = zip(pieces, encoded, strict=True)
            return torch.cat([likelihood.log_predictive(*piece, some, draws, learned) for piece, some in parts])

        return Prediction(mean, variance, found.probs, labels, likelihood.classes, found.mean, found.variance, density)

    def temperature(self, state: LearnerState, number: int, x: Tensor, y: Tensor) -> Tensor:
        """The temperature with which a past task predicts these examples best; it has not learned from them."""
        summary = state.past[number]
        with torch.no_grad(), network_failures():
            _, (mean, variance) = self._believed(state, number, x, self._model.features(x))
            draws, learned = self._model.predictive_draws(summary.likelihood), summary.likelihood_params
            return best_temperature(summary.likelihood, mean, variance, y, draws, learned)

    def mean(self, state: LearnerState, number: int, x: Tensor) -> Tensor:
        """The mean of the functions alone, [n, C]: for a past task the network and one product with its head."""
        with torch.no_grad(), network_failures():
            if state.is_open(number):
                return torch.cat([self._moments(state, number, rows, None).mean for rows in x.split(self._model.chunk)])
            weights = self._head(state, number).weights.to(self._model.dtype)
            if self._model.map.bfloat16:
                return self._model.features(x) @ weights
            linear, bias = self._model.scale * weights[:-1], weights[-1]
            net = self._model.net
            return in_chunks(lambda rows: torch.addmm(bias, net(rows), linear), x, self._model.chunk)

    def _believed(
        self, state: LearnerState, number: int, x: Tensor, Phi: Tensor | None
    ) -> tuple[list[Moments], Moments]:
        """Mean and variance of all inputs in one task, chunk by chunk and together."""
        rows = x.split(self._model.chunk)
        features = [None] * len(rows) if Phi is None else Phi.split(self._model.chunk)
        pieces = [self._moments(state, number, *some) for some in zip(rows, features, strict=True)]
        mean, variance = (torch.cat(values) for values in zip(*pieces, strict=True))
        if not bool(mean.isfinite().all() & variance.isfinite().all()):
            raise NumericalError("the features of these inputs are too large to predict from; scale the inputs")
        return pieces, Moments(mean, variance)

    def _moments(self, state: LearnerState, number: int, x: Tensor, Phi: Tensor | None) -> Moments:
        model = self._model
        if state.is_open(number):
            current = state.current
            assert current is not None
            objective = Objective(model.map, current.likelihood, model.options, state.regularisers, model.prior)
            return objective.moments(current.params, current.Z, model.weights, x)
        summary = state.past[number]
        moments = head_moments(self._head(state, number), summary.belief, model.features(x) if Phi is None else Phi)
        mean, variance = (value.to(model.dtype) for value in moments)
        if model.options.prediction != "summary":
            variance = model.options.head_variance * variance
        return Moments(mean, variance if summary.spread is None else variance * summary.spread)

    def _version(self, state: LearnerState) -> int:
        """A number that changes whenever the network does, also from outside."""
        steps = 0 if state.current is None else state.current.step
        return steps + sum(p._version for p in self._model.net.parameters())

    def _head(self, state: LearnerState, number: int) -> Head:
        """The head of a past task, made again when θ has moved since."""
        version, heads = self._version(state), self._heads.setdefault(state, {})
        cached = heads.get(number)
        if cached is None or cached[0] != version:
            summary = state.summaries()[number]
            Phi_z = self._model.features(summary.Z)
            cached = (version, self._centred(make_head(Phi_z, summary.belief), Phi_z, summary))
            heads[number] = cached
        return cached[1]

    def _centred(self, head: Head, Phi_z: Tensor, summary: Summary) -> Head:
        """The head that the option `prediction` asks for; all have the variance of the summary, scaled later."""
        prediction = self._model.options.prediction
        if prediction == "summary" or summary.head is None:
            return head
        if prediction == "head":
            return head._replace(weights=summary.head.double().mT)
        return recentred(head, Phi_z, summary.belief, summary.head)
