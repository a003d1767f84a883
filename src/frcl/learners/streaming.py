"""What observe() does beside steps: know a task again and open it, add functions for new labels."""

from __future__ import annotations

import contextlib
import math
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from frcl.boundary import Decision, Profile
from frcl.boundary.detector import KNOWN_SHARE
from frcl.engine.train import AdamState, Optimiser
from frcl.errors import LabelError, NumericalError
from frcl.features import network_failures
from frcl.graphs import Captured
from frcl.learners.lockstep import finish
from frcl.learners.predict import Predictor
from frcl.learners.state import CurrentTask, LearnerState, Window, decide
from frcl.learners.task import Model, check_opening, open_task
from frcl.learners.types import Prediction
from frcl.likelihoods import Likelihood, as_values, with_labels
from frcl.posterior import Posterior
from frcl.trees import leaf, tree_map

if TYPE_CHECKING:
    from frcl.learners.frcl import FRCL

RETURN_LEVEL = 3.5  # inputs of a known task are at most this much farther than usual, in standard deviations
GUARD = 3.0  # a gradient is at most this many times the usual one


# -- boundaries ----------------------------------------------------------------------------------------------------


def watch(learner: FRCL, current: CurrentTask, x: Tensor, y: Any) -> tuple[Decision, bool]:
    """Ask the detector about a minibatch; at a boundary end the task and open the next one for it, or a known one.

    Where the open task predicts its labels as before, and no other task explains it, the task goes on. The minibatch of
    the boundary may be in part of the task before: a new task is compared once more, with its second minibatch. Returns
    the decision, and whether the task is a known one.
    """
    detector, model, options, state = learner.detector, learner._model, learner.options, learner._state
    assert detector is not None
    window, points = current.open_window(state.number), model.points(current.likelihood)
    current.optimiser.guard = GUARD
    if current.score is None:
        current.score = Captured(learner._score(current))
    draws, features = model.predictive_draws(current.likelihood), learner._fixed_features(x)
    decision = decide(detector, current, current.score, x, y, draws, features, allow=len(window) >= points)
    known = partial(known_task, learner, current.likelihood, x, y, features)
    if not decision.boundary:
        opened = bool(detector.change) and window.minibatches == 1 and current.returned is None and bool(state.past)
        if not opened or (number := known()) is None:
            return decision, False
        reopen(learner, number)
        return decision, True
    # in function space a task is learned for long, while the density of its labels says little
    if decision.continues and options.inference == "weight" and known() in (None, current.returned):
        detector.go_on()
        current.recent = ()
        return decision, True
    target = learner._likelihood(y, least=1)
    check_opening(model, target, x, options.window)
    finish([learner._close(current, *window.data_without(decision.age, points), profile=detector.ended)])
    if (number := known()) is None:
        learner._open_stream(target, x, target.encode(y, learner.device, learner.dtype))
    else:
        reopen(learner, number)
    return replace(decision, continues=False), number is not None


def with_new_labels(
    learner: FRCL, current: CurrentTask, x: Tensor, y: Any, error: LabelError
) -> tuple[CurrentTask, Tensor]:
    """The open task with functions for labels that it has not had, and the targets in it; `error` where that fails."""
    likelihood = current.likelihood
    try:
        labels = with_labels(likelihood, y)
    except LabelError:
        raise error from None
    if labels == likelihood.classes or current.window is None:
        raise error
    if likelihood.functions < len(likelihood.classes or ()):
        grown = learner._likelihood(labels, labels=labels)
    else:
        grown = replace(likelihood, labels=labels)  # type: ignore[type-var]
    with learner._changing() as state:
        current, places = grow(learner._model, state, current, grown, x)
        if learner.detector is not None:
            learner.detector.grow(grown.functions, places)
    return current, grown.encode(y, learner.device, learner.dtype)


# -- tasks that return ---------------------------------------------------------------------------------------------


def known_task(learner: FRCL, likelihood: Likelihood, x: Tensor, y: Any, features: Tensor) -> int | None:
    """The past task that explains a minibatch, or None: its inputs are as usual there, and so are its labels.

    Where several tasks do, it is the one with the largest Σ log p(k | x) + log p(y | x, k). In function space it must
    have kept as many points as a task with this likelihood has.
    """
    state, options = learner._state, learner.options
    points = learner._model.points(likelihood) if options.inference == "function" else None
    near = [
        number
        for number, one in enumerate(state.past)
        if one.profile is not None
        and one.profile.excess(features) <= RETURN_LEVEL
        and (points is None or points == one.belief.M)
    ]
    if not near:
        return None
    with torch.no_grad(), network_failures():
        beliefs = learner._predictor.beliefs(state, x)
        log_probs = options.inference_by_points().infer(state.task_sums, beliefs.asked).log_probs
        densities = {number: explained(beliefs.within(number, None), y, state.past[number].profile) for number in near}
    found = {number: float(log_probs[:, number].mean()) + d for number, d in densities.items() if d is not None}
    return max(found, key=found.__getitem__, default=None)


def explained(found: Prediction, y: Any, profile: Profile | None) -> float | None:
    """The mean log-density of labels in a task if that is as usual there, else None.

    As usual: no less than four standard deviations below the usual density; or, for classes, at least half as far above
    that of a uniform guess. Nearly all labels must be among those of the task.
    """
    assert profile is not None
    if found.probs is None or found.classes is None:
        density = float(found.log_predictive(y).mean())
    else:
        place = {label: column for column, label in enumerate(found.classes)}
        columns = [place.get(label, -1) for label in as_values(y).tolist()]
        rows = [row for row, column in enumerate(columns) if column >= 0]
        if len(rows) < KNOWN_SHARE * len(columns):
            return None
        density = float(found.probs[rows, [columns[row] for row in rows]].log().mean())
    if profile.density is None or profile.density_spread is None:
        return density
    least = profile.density - 4 * profile.density_spread
    if found.classes is not None:
        least = min(least, 0.5 * (profile.density - math.log(len(found.classes))))
    return density if density >= least else None


def reopen(learner: FRCL, number: int) -> None:
    """Open a past task again instead of the task that is open, if one is: its head continues.

    The mean of q(w), or q(u) in function space, and what was learned with the likelihood go on from the summary, which
    stays among the past until it is made again; its points are the first examples of the window.
    """
    with learner._changing() as state:
        state.past, state.current = state.summaries(), None
        _open_again(learner._model, learner._predictor, state, number)


def _open_again(model: Model, predictor: Predictor, state: LearnerState, number: int) -> None:
    size, summary = model.options.task_size, state.past[number]
    head, targets = predictor.weights(state, number), predictor.targets_at_points(summary)
    N = summary.size if size is None else size
    current = open_task(model, summary.likelihood, N, state, summary.Z, targets, model.options.window, stream=True)
    current.returned, current.estimated, current.before = number, size is None, summary.size
    q, learned = current.params.posterior, current.params.likelihood
    with torch.no_grad():
        if model.options.inference == "function":
            q.mean.copy_(summary.belief.mean)
            q.factor.copy_(summary.belief.factor)
            if current.params.Z is not None:
                current.params.Z.copy_(summary.Z)
            current.Z = None if current.Z is None else summary.Z
        else:
            q.mean.copy_(head)
        for name, value in summary.likelihood_params.items():
            learned[name].copy_(value)
    current.window = Window(model.options.window)
    current.window.add(summary.Z, targets, state.streams["window"])


def settle(state: LearnerState, number: int) -> None:
    """A task that returned has ended: what was kept of it last replaces what was kept of it before."""
    state.past[number] = state.past.pop()
    for regulariser in state.regularisers:
        regulariser.replace(number)


# -- labels that appear --------------------------------------------------------------------------------------------


def grow(
    model: Model, state: LearnerState, current: CurrentTask, new: Likelihood, x: Tensor
) -> tuple[CurrentTask, list[int] | None]:
    """The task with a likelihood that has more labels, and the places of its functions among those of `new`.

    The functions that it has continue, with the moments of their optimiser; the others begin as in a new task. Two
    classes with one function become f_1 − f_0 = f, with independent halves N(∓μ/2, Σ/2): then no function continues as
    it is, and the places are None.
    """
    old = current.likelihood
    check_opening(model, new, x, model.options.window)
    assert old.classes is not None
    assert new.classes is not None
    classes = [new.classes.index(label) for label in old.classes]
    halved = old.functions < len(classes)
    params, before = current.params, current.params.posterior
    fresh = model.start_of_q(new.functions, before.mean.shape[1], state.streams["posterior"])
    with torch.no_grad():
        q = _halved(before) if halved else before
        for part, own in zip(fresh, q, strict=True):
            if own is not None and part is not None and part.shape[1:] == own.shape[1:]:
                part[classes if len(part) > 1 else [0]] = own
    grown = replace(
        current, likelihood=new, params=params._replace(posterior=tree_map(leaf, fresh)), stream=None, score=None,
        shown={classes[c] for c in current.shown},
    )  # fmt: skip
    optimiser = current.optimiser
    grown.optimiser = Optimiser(grown.params, optimiser.lr, optimiser.natural, optimiser.rule)
    _continue(grown.optimiser, current.optimiser, None if halved else classes)
    if current.window is not None:
        grown.window = current.window.recoded(torch.tensor(classes, device=model.device))
    state.current = grown
    return grown, None if halved else classes


def _halved(q: Posterior) -> Posterior:
    """Two functions whose difference is that of q."""
    mean = torch.cat([-0.5 * q.mean, 0.5 * q.mean])
    factor = q.factor * math.sqrt(0.5)
    low = None if q.low_rank is None else (q.low_rank * math.sqrt(0.5)).repeat(2, 1, 1)
    return Posterior(mean, factor.repeat(2, *[1] * (factor.ndim - 1)), low)


def _continue(optimiser: Optimiser, before: Optimiser, rows: list[int] | None) -> None:
    """Take over steps and moments; those of the posterior at the rows of functions that continue."""
    old = before.state()
    for own, moments in ((optimiser.exp_avg, old.exp_avg), (optimiser.exp_avg_sq, old.exp_avg_sq)):
        for name, value in moments.items():
            if own[name].shape == value.shape:
                own[name].copy_(value)
            elif rows is not None:
                own[name][rows] = value
    optimiser.restore(AdamState(old.steps, optimiser.exp_avg, optimiser.exp_avg_sq))


# -- more steps ----------------------------------------------------------------------------------------------------


def rehearse(state: LearnerState, current: CurrentTask, window: Window, batch: int, steps: int) -> None:
    """Further steps on examples of the open task, drawn from its window; one whose loss is not finite is the last."""
    assert current.stream is not None
    x, y = window.data()
    with contextlib.suppress(NumericalError):  # what observe() was given has been learned
        for _ in range(steps):
            rows = torch.randint(len(x), (batch,), generator=state.streams["batches"], device=x.device)
            current.stream.step(x[rows], y[rows])
