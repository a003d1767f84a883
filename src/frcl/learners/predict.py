"""What is believed about inputs: the current task through q, past ones through their summary (Section 2.5)."""

from __future__ import annotations

import functools
import math
import operator
import weakref
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from frcl.errors import NumericalError
from frcl.features import in_chunks, network_failures
from frcl.few import array_of, is_few, is_finite, quiet
from frcl.inference import Asked, Points
from frcl.learners.few import Mixture, few_features, few_moments, mixture_of, predictive, weighted_columns
from frcl.learners.objective import Objective
from frcl.learners.state import LearnerState, Window
from frcl.learners.task import Model
from frcl.learners.types import Beliefs, Prediction, Summary
from frcl.likelihoods import Label, Predictive, best_temperature, tempered
from frcl.linalg import all_finite
from frcl.posterior import Moments
from frcl.summary import Head, head_moments, make_head, recentred
from frcl.trees import total_bytes
from frcl.weights import Watched

CACHED = 256 << 20  # bytes of heads that are kept ready
MIXTURES = 64  # sets of tasks whose mixtures are kept ready: there are as many as subsets of tasks


class Heads(NamedTuple):
    """The heads of past tasks that were made for one version of θ, with the summary that each was made from."""

    version: tuple[int, int]
    made: dict[int, tuple[Summary, Head]]
    mixtures: dict[tuple[int, ...], tuple[list[Summary], Mixture | None]]  # of some tasks, with their summaries


class Predictor:
    """Predicts under the network as it stands; the head of a past task is cached until θ moves."""

    def __init__(self, model: Model, watched: Watched) -> None:
        self._model, self._watched = model, watched
        self._heads: WeakKeyDictionary[LearnerState, Heads] = WeakKeyDictionary()

    def beliefs(self, state: LearnerState, x: Tensor, window: Window | None = None) -> Beliefs:
        """What can be said about x; the features of x are computed once, when they are first needed.

        With its `window` the open task of a stream is among those that an input may belong to.
        """

        @functools.cache
        def Phi() -> Tensor:
            with network_failures():
                return self._features(x)

        def within(number: int, rows: Tensor | None) -> Prediction:
            inputs, features = x, None if state.opened(number) else Phi()  # the open task needs x itself
            if rows is not None:
                inputs, features = x[rows], None if features is None else features[rows]
            with network_failures():
                return self._prediction(state, number, *self._believed(state, number, inputs, features, heads))

        def at_mean(number: int) -> Prediction | None:
            return None if state.opened(number) else self._at_mean(state, number, Phi(), heads)

        def points() -> list[Points]:
            each = state.summaries()
            found = [Points(one.Z, self._model.features(one.Z)[:, :-1], self._classes_at_points(one)) for one in each]
            if window is not None:  # a task that returned takes the place of its summary
                found[state.number : state.number + 1] = [self._points_in(window, state)]
            return found

        def weighted(tasks: Sequence[int], weights: Tensor) -> tuple[Tensor, tuple[Label, ...]] | None:
            few = is_few(weights) and not any(map(state.opened, tasks))
            return self._weighted(state, tuple(tasks), Phi(), weights, heads) if few else None

        heads = self._current(state)
        version = heads.version, len(state.past), weakref.ref(state)
        return Beliefs(Asked(x, lambda: Phi()[:, :-1], points, list, version), within, at_mean, weighted)

    def in_task(self, state: LearnerState, x: Tensor, number: int) -> Prediction:
        """What is believed about x in one task."""
        with network_failures():
            features = None if state.opened(number) else self._features(x)
            return self._prediction(state, number, *self._believed(state, number, x, features, self._current(state)))

    def _features(self, x: Tensor) -> Tensor:
        """Φ [n, K] under the current θ."""
        if not is_few(x) or self._model.dtype == torch.bfloat16:
            return self._model.features(x)
        return torch.from_numpy(few_features(array_of(self._model.map.outputs(x)), self._model.scale.item()))

    def _weighted(
        self, state: LearnerState, tasks: tuple[int, ...], Phi: Tensor, weights: Tensor, heads: Heads
    ) -> tuple[Tensor, tuple[Label, ...]] | None:
        """The weighted probabilities of the labels of past tasks at few inputs; None where there is no such mixture."""
        summaries = [state.past[number] for number in tasks]
        before, mixture = heads.mixtures.get(tasks, ((), None))
        if len(before) != len(summaries) or not all(map(operator.is_, before, summaries)):
            mixture = mixture_of(summaries)
            while len(heads.mixtures) >= MIXTURES:
                del heads.mixtures[next(iter(heads.mixtures))]  # the oldest
            heads.mixtures[tasks] = summaries, mixture
        if mixture is None:
            return None
        head = lambda place: self._head(state, tasks[place], heads)  # noqa: E731
        draws = self._model.predictive_draws
        columns = weighted_columns(mixture, head, array_of(Phi), array_of(weights), draws)
        return None if columns is None else (torch.from_numpy(columns), mixture.labels)

    def _at_mean(self, state: LearnerState, number: int, Phi: Tensor, heads: Heads) -> Prediction | None:
        """The class probabilities of the mean functions of a past task; None for numeric targets."""
        past = state.past[number]
        if past.likelihood.classes is None:
            return None
        mean = Phi @ self._head(state, number, heads).weights.to(Phi)
        if past.temperature is not None:
            mean = mean / past.temperature
        probs = self._without_variance(past, mean).probs
        return Prediction(mean, torch.zeros_like(mean), probs, past.likelihood.classes)

    def _without_variance(self, summary: Summary, mean: Tensor) -> Predictive:
        """The distribution of targets for functions that are known, [n, C]."""
        draws = self._model.predictive_draws(summary.likelihood)[:1]
        return summary.likelihood.predictive(mean, torch.zeros_like(mean), draws, summary.likelihood_params)

    def _classes_at_points(self, summary: Summary) -> Tensor:
        """The most probable class at each inducing point, by q(u); zeros for numeric targets."""
        if summary.likelihood.classes is not None:
            return self.targets_at_points(summary)
        return torch.zeros(len(summary.Z), dtype=torch.int64, device=summary.Z.device)

    def _points_in(self, window: Window, state: LearnerState) -> Points:
        """As many examples of the open task as it will have points, or all if they are fewer."""
        assert state.current is not None
        likelihood, (x, y) = state.current.likelihood, window.data()
        M = min(len(x), self._model.points(likelihood))
        rows = torch.arange(M, device=x.device) * len(x) // M
        classes = y[rows] if likelihood.classes is not None else torch.zeros_like(rows)
        return Points(x[rows], self._model.features(x[rows])[:, :-1], classes)

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

    def _prediction(self, state: LearnerState, number: int, pieces: Sequence[Moments], whole: Moments) -> Prediction:
        """In one task, from the moments of its functions, chunk by chunk and together."""
        if current := state.opened(number):
            likelihood, learned, temperature = current.likelihood, current.params.likelihood, None
        else:
            past = state.past[number]
            likelihood, learned, temperature = past.likelihood, past.likelihood_params, past.temperature
        mean, variance = whole
        draws = self._model.predictive_draws(likelihood)
        if temperature is not None:
            pieces = [Moments(*tempered(piece, temperature)) for piece in pieces]
        found = Predictive(*joined([predictive(likelihood, piece, draws, learned) for piece in pieces]))

        def density(y: Any) -> Tensor:
            encoded = likelihood.encode(y, mean.device, mean.dtype).split([len(piece.mean) for piece in pieces])
            parts = zip(pieces, encoded, strict=True)
            return torch.cat([likelihood.log_predictive(*piece, some, draws, learned) for piece, some in parts])

        return Prediction(mean, variance, found.probs, likelihood.classes, found.mean, found.variance, density)

    def temperature(self, state: LearnerState, number: int, x: Tensor, y: Tensor) -> Tensor:
        """The temperature with which a past task predicts these examples best; it has not learned from them."""
        summary = state.past[number]
        with torch.no_grad(), network_failures():
            _, (mean, variance) = self._believed(state, number, x, self._model.features(x), self._current(state))
            draws, learned = self._model.predictive_draws(summary.likelihood), summary.likelihood_params
            return best_temperature(summary.likelihood, mean, variance, y, draws, learned)

    def mean(self, state: LearnerState, number: int, x: Tensor) -> Tensor:
        """The mean of the functions alone, [n, C]: for a past task the network and one product with its head."""
        with torch.no_grad(), network_failures():
            if state.opened(number):
                heads = self._current(state)
                each = [self._moments(state, number, rows, None, heads) for rows in x.split(self._model.chunk)]
                return torch.cat([one.mean for one in each])
            weights = self._head(state, number).weights.to(self._model.dtype)
            if self._model.map.bfloat16:
                return self._model.features(x) @ weights
            linear, bias = self._model.scale * weights[:-1], weights[-1]
            net = self._model.net
            return in_chunks(lambda rows: torch.addmm(bias, net(rows), linear), x, self._model.chunk)

    @quiet
    def _believed(
        self, state: LearnerState, number: int, x: Tensor, Phi: Tensor | None, heads: Heads
    ) -> tuple[list[Moments], Moments]:
        """Mean and variance in one task, chunk by chunk and together; Phi are the features of x, for a past task."""
        if Phi is not None and is_few(Phi):
            arrays = few_moments(self._head(state, number, heads), array_of(Phi))
            if is_finite(*arrays):
                few = Moments(*map(torch.from_numpy, arrays))
                return [few], few
        chunk = self._model.chunk
        if x.shape[0] <= chunk:
            pieces = [self._moments(state, number, x, Phi, heads)]
        else:
            features = [None] * math.ceil(x.shape[0] / chunk) if Phi is None else Phi.split(chunk)
            each = zip(x.split(chunk), features, strict=True)
            pieces = [self._moments(state, number, *some, heads) for some in each]
        whole = Moments(*joined(pieces))
        if not all(map(all_finite, whole)):
            raise NumericalError("the features of these inputs are too large to predict from; scale the inputs")
        return pieces, whole

    def _moments(self, state: LearnerState, number: int, x: Tensor, Phi: Tensor | None, heads: Heads) -> Moments:
        model = self._model
        if current := state.opened(number):
            objective = Objective(model.map, current.likelihood, model.options, state.regularisers, model.prior)
            return objective.moments(current.params, current.Z, model.weights, x)
        moments = head_moments(self._head(state, number, heads), model.features(x) if Phi is None else Phi)
        return Moments(*(value.to(model.dtype) for value in moments))

    def _current(self, state: LearnerState) -> Heads:
        """The heads made for the network as it stands, even if changed from outside; those before are gone."""
        # torch does not notice steps that are replayed; their number tells
        version = 0 if state.current is None else state.current.optimiser.steps, self._watched.version()
        heads = self._heads.get(state)
        if heads is None or heads.version != version:
            self._heads[state] = heads = Heads(version, {}, {})
        return heads

    def _head(self, state: LearnerState, number: int, heads: Heads | None = None) -> Head:
        """The head of a past task, made where it was not yet."""
        made = (self._current(state) if heads is None else heads).made
        summary, head = made.get(number, (None, None))
        if head is None or summary is not state.past[number]:
            own = state.summaries()[number]
            Phi_z = self._model.features(own.Z)
            head = self._centred(make_head(Phi_z, own.belief), Phi_z, own)
            most = max(1, CACHED // total_bytes([head.weights, head.P, head.blocks]))
            while len(made) >= most:
                del made[next(iter(made))]  # the oldest
            made[number] = state.past[number], head
        return head

    def _centred(self, head: Head, Phi_z: Tensor, summary: Summary) -> Head:
        """The head that the option `prediction` asks for; all have the variance of the summary, or a share of it."""
        options, share = self._model.options, summary.spread
        if share is not None:
            head = replace(head, share=share.double())
        if options.prediction == "summary":
            return head
        ones = head.weights.new_ones(head.weights.shape[1])
        head = replace(head, share=options.head_variance * (ones if head.share is None else head.share))
        if summary.head is None:
            return head
        if options.prediction == "head":
            return replace(head, weights=summary.head.double().mT)
        return recentred(head, Phi_z, summary.belief, summary.head)


def joined(each: Sequence[Sequence[Any]]) -> Sequence[Any]:
    """The parts of several predictions, one after the other."""
    if len(each) == 1:
        return each[0]
    return [None if part[0] is None else torch.cat(part) for part in zip(*each, strict=True)]
