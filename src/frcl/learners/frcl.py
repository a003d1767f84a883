"""FRCL, the learner: one object that learns tasks, keeps their summaries, predicts, and notices changes; FRCL+."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from frcl.augment import Augment
from frcl.boundary import BoundaryDetector, Decision, Profile
from frcl.boundary.profile import FEATURES
from frcl.engine.program import Streams, indivisible
from frcl.engine.train import StreamSteps
from frcl.errors import LabelError, OptionError, TaskError
from frcl.features import network_failures, trained_parts
from frcl.files import save_state
from frcl.graphs import put_back
from frcl.inference import InputFeatures
from frcl.inputs import gathered
from frcl.learners import checkpoint
from frcl.learners.base import SequentialLearner, checked_size, checked_steps
from frcl.learners.budget import check_memory, within_memory
from frcl.learners.deploy import Deployed, example_of, frcl_module
from frcl.learners.lockstep import Work, finish
from frcl.learners.networks import describe
from frcl.learners.objective import Objective
from frcl.learners.options import PLUS, FRCLKeywords, FRCLOptions, is_plus
from frcl.learners.predict import Predictor
from frcl.learners.state import CurrentTask, Declared, LearnerState, Score, Window, estimated_size, remember
from frcl.learners.streaming import rehearse, settle, watch, with_new_labels
from frcl.learners.task import Examples, Model, close_task, open_task, program_of, split
from frcl.learners.types import Beliefs, OnStep, Prediction, StepLog, Summary, learner_html, progress_bar
from frcl.likelihoods import Label, Likelihood, check_name, likelihood_for, plain_labels
from frcl.options import changed, shows_options
from frcl.regularisers import Regulariser
from frcl.regularisers.protocol import Kept, copied_regularisers
from frcl.summary import prior_kl, prior_kl_terms
from frcl.trees import Params, copied, data_mark


@shows_options(FRCLOptions())
class FRCL(SequentialLearner[FRCLOptions, LearnerState]):
    """Functional regularisation for continual learning (Titsias et al., ICLR 2020).

    A network learns tasks one after another. Of each task a summary is kept, a few inducing inputs and the posterior
    over the function there; regularisers keep old functions in place through the summaries. While one thread learns,
    others may predict and save.

    Parameters
    ----------
    net : nn.Module
        Feature network from inputs to [batch, K]; copied, the original is not changed.
    points : int
        Inducing points kept per task; 40 by default.
    regularisers : sequence of Regulariser, optional
        What keeps past tasks in place, copied. Then the weights of regularisers among the options are not used, which
        choose them by default.
    detector : BoundaryDetector, optional
        For streams whose task boundaries are not known. Copied.
    labels : sequence of int or str, optional
        The labels that every task has, where a single minibatch may not show all of them.
    device : str or torch.device, optional
        Where to compute; the network's own device by default.
    options : FRCLOptions, optional
        All options at once; keywords change it.
    """

    _opens, _way_out = "fit() or observe()", ", or drop the task with abandon_task()"
    _shown, _saved_type, _saved = ("points",), checkpoint.Saved, checkpoint.saved
    _check_saved, _restored = checkpoint.check_settings, checkpoint.restored

    def __init__(
        self, net: nn.Module, points: int | None = None, *, regularisers: Sequence[Regulariser] | None = None,
        detector: BoundaryDetector | None = None, labels: Sequence[Label] | None = None,
        device: str | torch.device | None = None, options: FRCLOptions | None = None,
        **keywords: Unpack[FRCLKeywords],
    ) -> None:  # fmt: skip
        given: dict[str, Any] = dict(keywords) if points is None else {"points": points, **keywords}
        for name, value, kind in (("options", options, FRCLOptions), ("detector", detector, BoundaryDetector)):
            if not isinstance(value, kind | None):
                raise OptionError(f"{name} must be of type {kind.__name__}, not {value!r}")
        super().__init__(net, changed(FRCLOptions() if options is None else options, given), device)
        self.detector = copy.deepcopy(detector)
        self.labels = plain_labels(labels)
        self.custom_regularisers = regularisers is not None
        chosen = self.options.regularisers() if regularisers is None else copied_regularisers(regularisers)
        self._model = Model(self.net, self.options, self.dtype, self.device, self._lock)
        self._state = LearnerState(Streams(self.options.seed, self.device), chosen)
        self._predictor = Predictor(self._model, self._watched)
        self._infer_tasks()
        self._fixed_features = InputFeatures(FEATURES, "dense", self.options.seed).raw

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return learner_html(repr(self), self.memory_parts(), self.tasks)

    @property
    def _method(self) -> str:
        return "FRCLPlus" if is_plus(self.options) and not self.custom_regularisers else "FRCL"

    # -- learning ---------------------------------------------------------------------------------------

    def fit(
        self, x: Any, y: Any = None, *, likelihood: str | None = None, size: int | None = None,
        steps: int | None = None, epochs: float | None = None, lr: float | None = None, augment: Augment | None = None,
        progress: bool = False, on_step: OnStep = None,
    ) -> Summary:  # fmt: skip
        """Learn one task from all its data, keep its summary, forget the data.

        The data are arrays x and y, or, alone, a Dataset of pairs, a DataLoader or an iterable of minibatches (x, y).
        `likelihood` names one for this task; `size` is N where that is not the number of rows, as with augmented data.
        `steps`, or `epochs` passes over the data, and `lr` replace those of the options for this task.
        `augment(x, generator)` changes the inputs of each minibatch of training; what is kept is not augmented.
        `progress` shows a bar; `on_step` is called after every step.

        After an interruption, or on a learner restored from a state saved meanwhile, calling it again with
        the same data goes on where it stopped.
        """
        if y is None:
            x, y = gathered(x)
        work = self.learn(x, y, likelihood=likelihood, size=size, steps=steps, epochs=epochs, lr=lr, augment=augment)
        if not progress:
            return self._run(work, contextlib.nullcontext(on_step))
        stop = checked_steps(self.options, len(y), steps, epochs, lr)
        return self._run(work, progress_bar(len(self.tasks), stop, on_step))

    def learn(
        self, x: Any, y: Any, *, likelihood: str | None = None, size: int | None = None,
        steps: int | None = None, epochs: float | None = None, lr: float | None = None, augment: Augment | None = None,
    ) -> Work[Summary]:  # fmt: skip
        """The work of fit(), which several learners may do together."""
        inputs = self._inputs(x, y)
        stop, given = checked_steps(self.options, len(inputs), steps, epochs, lr), (likelihood, size, steps, epochs, lr)
        current = self._state.current
        if current is None:
            declared = self._state.declared or Declared()
            target = self._likelihood(y, likelihood)
            encoded = target.encode(y, self.device, self.dtype)
            own_size = declared.size if size is None else checked_size(size)
            N = len(inputs) if own_size is None else own_size
            learned, held = split(self._model, target, len(self._state.past), inputs, encoded)
            with self._changing() as state:
                current = open_task(self._model, target, N, state, *learned, len(learned[0]), stream=False)
                if self.options.memory is not None:
                    check_memory(self._model, state, current, inputs, encoded, self._inference.sums)
                current.data_mark = data_mark(inputs, encoded, *given)
        else:
            if current.data_mark is None:
                raise TaskError(f"task {len(self._state.past)} is still open: end_task() ends what observe() began")
            encoded = self._continued(inputs, y, *given)
            learned, held = split(self._model, current.likelihood, len(self._state.past), inputs, encoded)
        current.optimiser.lr = self.options.lr if lr is None else lr
        yield program_of(self._model, self._state, current, *learned, stop=stop, augment=augment)
        return (yield from self._close(current, *learned, held))

    def start_task(
        self, labels: Sequence[Label] | None = None, *, likelihood: str | None = None, size: int | None = None
    ) -> None:
        """Say what is known of the task that the next observe() begins; `size` is N, which divides the KL terms."""
        if self._state.current is not None:
            raise TaskError(f"task {len(self._state.past)} is still open; call end_task() first")
        if likelihood is not None:
            check_name(likelihood)
        N = None if size is None else checked_size(size)
        self._state.declared = Declared(plain_labels(labels), likelihood, N)

    def observe(self, x: Any, y: Any) -> StepLog:
        """Learn from one minibatch of a stream (Algorithm 1): test for a boundary, then one gradient step.

        Without a detector a task lasts from start_task(), or the first minibatch, to end_task().
        """
        inputs = self._inputs(x, y)
        decision = Decision(False, float("nan"))
        with indivisible([self._lock]), self._undoing() as weights:
            current, returned = self._state.current, False
            if current is None:
                target = self._likelihood(y, least=1)
                self._open_stream(target, inputs, target.encode(y, self.device, self.dtype))
            elif self.detector is not None:
                decision, returned = watch(self, current, inputs, y)
            current = self._state.current
            assert current is not None
            try:
                encoded = current.likelihood.encode(y, self.device, self.dtype)
            except LabelError as error:
                current, encoded = with_new_labels(self, current, inputs, y, error)
            window = current.open_window(self._state.number)
            if current.estimated:
                self._state.estimate_size(window.seen + len(inputs))
            if self.step == 0:  # where the first step of a task fails the task is not opened
                weights |= copied(trained_parts(self.net))
            if current.stream is None:  # made once per task
                program = program_of(self._model, self._state, current, inputs, encoded, stream=True)
                current.stream = StreamSteps(program)
            values = current.stream.step(inputs, encoded)
            window.add(inputs, encoded, self._state.streams["window"])
            if self.options.stream_steps > 1:
                rehearse(self._state, current, window, len(inputs), self.options.stream_steps - 1)
            if self.detector is not None:
                remember(self.detector, current, inputs, encoded)
            return StepLog(self._state.number, self.step, *values, **vars(decision), returned=returned)

    @contextlib.contextmanager
    def _undoing(self) -> Iterator[Params]:
        """Inside, an error or interruption leaves the state and the detector as they were.

        So does it the weights whose values are put into the dictionary that this gives.
        """
        with self._lock:
            before, detector, weights = self._state, self.detector, Params()
            watched = None if detector is None else detector.state_dict()
            try:
                yield weights
            except BaseException:
                self._state = before
                put_back([trained_parts(self.net)[name] for name in weights], list(weights.values()))
                if detector is not None and watched is not None:
                    detector.load_state_dict(watched)
                raise

    def familiarity(self, x: Any) -> Tensor:
        """The boundary score ℓ of each input and function, [n, C]: small where x is unlike the open task."""
        if self._state.current is None:
            raise TaskError("no task is open; observe() opens one")
        current, inputs = self._state.current, self._inputs(x)
        with self._lock, torch.no_grad(), network_failures():
            return self._score(current)(inputs)[0]

    def end_task(self) -> Summary:
        """End the task that observe() is learning: choose its points from the window, keep its summary."""
        current = self._state.current
        if current is None:
            raise TaskError("no task is open; observe() opens one, and fit() ends its own")
        with self._undoing():
            profile = None if self.detector is None else self.detector.profile()
            data = current.open_window(self._state.number).data()
            summary: Summary = finish([self._close(current, *data, profile=profile)])[0]
            if self.detector is not None:
                self.detector.reset()
            return summary

    def abandon_task(self) -> None:
        """Drop the task that is open, with what was learned for it alone; the shared weights are not changed."""
        if self._state.current is None:
            raise TaskError("no task is open")
        with self._undoing(), self._changing() as state:
            state.past, state.current = state.summaries(), None
            if self.detector is not None:
                self.detector.reset()

    # -- prediction -------------------------------------------------------------------------------------

    @property
    def tasks(self) -> tuple[Summary, ...]:
        """The summaries of the tasks learned so far; the task being learned, if any, comes after them."""
        return tuple(self._state.past)

    def _beliefs(self, x: Tensor) -> Beliefs:
        return self._predictor.beliefs(self._state, x, self._state.window)

    def _in_task(self, x: Tensor, number: int) -> Prediction:
        return self._predictor.in_task(self._state, x, number)

    def _deployed(self, task: int | None) -> tuple[Deployed, Tensor]:
        with self._lock, torch.no_grad():
            return frcl_module(self, task), example_of(self)

    @property
    def feature_scale(self) -> float:
        """What the network's outputs are multiplied by, so that their first root mean square is 1; in a stream 3."""
        return float(self._model.scale) if self._state.past or self._state.current is not None else 1.0

    def mean(self, x: Any, task: int) -> Tensor:
        """The mean of the functions of a task alone, [n, C], without variance: as fast as a linear head."""
        with self._lock:
            return self._predictor.mean(self._state, self._number(task), self._inputs(x))

    # -- keeping ----------------------------------------------------------------------------------------

    def likelihood(self, task: int) -> Likelihood:
        """The likelihood of a task, which knows its labels."""
        number, state = self._number(task), self._state
        return (state.opened(number) or state.past[number]).likelihood

    @property
    def _count(self) -> int:
        return max(len(self._state.past), self._state.number + (self._state.current is not None))

    def _kept(self) -> Kept:
        return self._state.kept()

    def kept_inputs(self) -> list[Tensor]:
        """The inducing inputs Z of each past task."""
        return [summary.Z for summary in self._state.past]

    def past_divergences(self) -> list[float]:
        """KL(q(u_i) ‖ p_θ(u_i)) of each past task under the current θ, in nats."""
        with self._lock, torch.no_grad():
            each = [(self._model.features(one.Z)[None], prior_kl_terms([one.belief])) for one in self._state.past]
            return [float(prior_kl(Phi, terms)) for Phi, terms in each]

    def save(self, path: str | Path) -> None:
        """Write the state to one file, atomically; `frcl.load` reads it, without a network where it is one of frcl."""
        state = self.state_dict()
        save_state(path, {**state["meta"], "network": describe(self.net)}, state["tensors"])

    def _score(self, current: CurrentTask) -> Score:
        """The boundary score and the moments of f under the current posterior, as a function of inputs."""
        model, regularisers = self._model, self._state.regularisers
        objective = Objective(model.map, current.likelihood, self.options, regularisers, model.prior)
        return partial(objective.familiarity, current.params, current.Z, self._model.weights)

    def _likelihood(
        self, y: Any, name: str | None = None, *, labels: Sequence[Label] | None = None, least: int = 2
    ) -> Likelihood:
        """The likelihood of a new task, from its targets and what was declared."""
        declared, options = self._state.declared or Declared(), self.options
        labels = labels or declared.labels or self.labels
        settings = {name: getattr(options, name) for name in ("samples", "predict_samples", "target_noise")}
        return likelihood_for(y, name or declared.likelihood or options.likelihood, labels, settings, least)

    def _open_stream(self, likelihood: Likelihood, x: Tensor, y: Tensor) -> None:
        size, window = (self._state.declared or Declared()).size or self.options.task_size, self.options.window
        with self._changing() as state:
            guess = estimated_size([one.size for one in state.past], len(x))
            current = open_task(self._model, likelihood, size or int(guess), state, x, y, window, stream=True)
            if self.options.memory is not None:
                check_memory(self._model, state, current, x, y, self._inference.sums)
            current.window, current.estimated = Window(window), size is None

    def _close(
        self, current: CurrentTask, x: Tensor, y: Tensor, held: Examples | None = None, profile: Profile | None = None
    ) -> Work[Summary]:
        """Turn the current task into its summary; its points are chosen from x and y, its temperature on `held`.

        The sums that infer the task are over all of them. All of it or nothing: where something fails or is interrupted
        the task stays open.
        """
        with self._lock:
            after = self._state.branch()
            number = len(after.past) if current.returned is None else current.returned
            summary = yield from close_task(self._model, current, after, x, y)
            after.past[-1] = summary = replace(summary, profile=profile)
            if len(self._state.task_sums.blocks) == len(self._state.past):  # else those of some task are missing
                every = (x, y) if held is None else (torch.cat([x, held[0]]), torch.cat([y, held[1]]))
                after.task_sums = self._ended(summary.likelihood, *every, current.returned)
            if current.returned is not None:
                settle(after, number)
            if self.options.memory is not None:
                summary = within_memory(self._model, after, current, number, x)
            if held is not None:
                temperature = self._predictor.temperature(after, number, *held)
                after.past[number] = summary = replace(summary, temperature=temperature)
            self._state = after
        return summary


@shows_options(PLUS)
def FRCLPlus(
    net: nn.Module, points: int | None = None, *, detector: BoundaryDetector | None = None,
    labels: Sequence[Label] | None = None, device: str | torch.device | None = None, **keywords: Unpack[FRCLKeywords],
) -> FRCL:  # fmt: skip
    """An `FRCL` learner with the options of FRCL+.

    Instead of the paper's KL at the inducing points it has predictions stored there, old functions held at current
    inputs that look like theirs, and the curvature of the shared weights; the learning rate decays.

    Parameters are those of `FRCL`, without `regularisers` and `options`.
    """
    given: dict[str, Any] = dict(keywords) if points is None else {"points": points, **keywords}
    return FRCL(net, detector=detector, labels=labels, device=device, options=changed(PLUS, given))
