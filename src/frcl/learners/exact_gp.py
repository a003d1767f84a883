"""ExactGP: a Bayesian linear model on fixed features. Nothing is forgotten, and the order of tasks does not matter."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, TypedDict, Unpack

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from frcl import codec
from frcl.augment import Augment
from frcl.engine.program import Program
from frcl.errors import CheckpointError, DataError, LabelError, OptionError, TaskError
from frcl.exact.fixed import FeatureKind, RandomFeatures, whole_features
from frcl.exact.linear import POWERS, TEMPER, features_within
from frcl.exact.model import Believed, ExactModel, Tasks, added, restored, stored, stored_bytes, without
from frcl.features import check_features, check_network, network_failures
from frcl.files import save_state
from frcl.learners.base import checked_inputs
from frcl.learners.deploy import Deployed, exact_gp_module, example_of, export, export_onnx
from frcl.learners.loaded import check_fits
from frcl.learners.lockstep import Work
from frcl.learners.mixture import Columns, check_task, checked_tasks, over_labels, summed
from frcl.learners.networks import describe
from frcl.learners.types import Accounts, OnStep, Parts, Prediction, plural
from frcl.likelihoods import Gaussian, Label, all_labels, as_values
from frcl.likelihoods.base import refuse_what_looks_like_labels
from frcl.options import NOT_NEGATIVE, SHARE, MethodOptions, changed, option, shows_options


@dataclass(frozen=True)
class ExactGPOptions(MethodOptions):
    """Everything that can be set on an `ExactGP`; the noise and the prior follow from the data."""

    batched_on_cpu: ClassVar[bool] = False  # there are no steps to batch

    features: int = option(540, "random features, without the bias; ignored where a network is given")
    memory: int | None = option(None, "instead of `features`: bytes of their triangle of 32-bit sums, 4 (K+1)(K+2)/2")
    kind: FeatureKind = option(
        "auto", "'image', or 'conv' without the brightness, 'smooth' for drawings, 'dense'; auto: by the shape"
    )
    of_network: bool = option(False, "features of the network, as it is, instead of random ones")
    per_task: bool = option(False, "keep the sums of every task too, so that forget() needs no data; T times the bytes")

    held_out: float = option(
        0.0,
        "fit(): share of each class's examples, the last ones, on which the power of the class probabilities is chosen "
        "before they are added; 0: it is 3/4",
        SHARE, 0.5,
    )  # fmt: skip

    steps: int = option(1, "has no meaning: there are no gradient steps")
    batch_size: int = option(4096, "has no meaning: there are no minibatches")
    seed: int = option(0, "root of the random features", NOT_NEGATIVE)

    @property
    def count(self) -> int:
        """The number of random features, without the bias."""
        if self.memory is None:
            return self.features
        return max(1, features_within(self.memory))


class ExactGPKeywords(TypedDict, total=False):
    """The fields of `ExactGPOptions` as keywords, for the type checker; a test holds the two equal."""

    memory: int | None
    kind: FeatureKind
    of_network: bool
    per_task: bool
    held_out: float
    steps: int
    batch_size: int
    seed: int


@dataclass(frozen=True)
class ExactState:
    """Everything that changes."""

    labels: list[list[Label]] = field(default_factory=list)  # of each task, in the order of its columns
    losses: list[list[float]] = field(default_factory=list)  # of each task, with each of POWERS on what was held out
    outputs: int = 0  # width of numeric targets; 0: the targets are labels
    input_shape: tuple[int, ...] | None = None
    input_dtype: torch.dtype | None = None


@dataclass
class SavedExact:
    """Everything that is written; sums as `stored` gives them."""

    exact_gp: dict[str, Any]  # options
    net: dict[str, Tensor] | None  # weights of the frozen network, where the features are its outputs
    state: ExactState
    tasks: Tasks


@shows_options(ExactGPOptions())
class ExactGP(Accounts):
    """A Gaussian process on features that are never trained: random ones, or those of a frozen network.

    ΦᵀΦ and ΦᵀY are added task by task or minibatch by minibatch, in any order; the posterior is solved when asked, with
    noise and prior by the marginal likelihood. For classes a column of Y stands for a label of a task, and the class
    probabilities follow from the distribution of the functions within each class. Regression tasks are examples of one
    function: the targets of all tasks must have the same width.

    Parameters
    ----------
    features : int or nn.Module
        How many random features, 540 by default; or a network, frozen and copied, whose outputs are the features.
    device : str or torch.device, optional
        Where to compute; the network's own device, or the CPU.
    options : ExactGPOptions, optional
        All options at once; keywords change it.
    """

    def __init__(
        self,
        features: int | nn.Module | None = None,
        *,
        device: str | torch.device | None = None,
        options: ExactGPOptions | None = None,
        **keywords: Unpack[ExactGPKeywords],
    ) -> None:
        counted = not (features is None or isinstance(features, nn.Module))
        given: dict[str, Any] = {"features": features, **keywords} if counted else dict(keywords)
        self.options = changed(ExactGPOptions() if options is None else options, given)
        self.net: nn.Module | None = None
        self.device = torch.device("cpu" if device is None else device)
        if isinstance(features, nn.Module):
            check_network(features)
            if device is None:
                self.device = next((p.device for p in features.parameters()), self.device)
            self.net = copy.deepcopy(features).to(self.device).requires_grad_(False)
        self._random: RandomFeatures | None = None
        self._state = ExactState()
        self._model = ExactModel(self.features)

    def __repr__(self) -> str:
        kind = f"{self.options.count} random features" if self.net is None else type(self.net).__name__
        knows = f"{plural(len(self._state.labels), 'task')} learned"
        return f"ExactGP({kind}; {knows}, {self.memory_bytes():,} bytes kept)"

    # -- learning ---------------------------------------------------------------------------------------

    def fit(self, x: Any, y: Any, *, size: int | None = None, on_step: OnStep = None) -> None:
        """Add all data of a new task. `size` and `on_step` have no meaning: every example counts once, in no steps."""
        self._add(x, y, len(self._state.labels), self.options.held_out)

    def learn(self, x: Any, y: Any, *, size: int | None = None, augment: Augment | None = None) -> Work[None]:
        """The work of fit()."""
        if augment is not None:
            raise OptionError("ExactGP takes no minibatches, so there is nothing to augment; give it augmented data")
        nothing: Iterator[Program] = iter(())
        yield from nothing
        self.fit(x, y)

    def observe(self, x: Any, y: Any, task: int | None = None) -> None:
        """Add a minibatch to a task, the latest by default; the number after the latest begins a new task."""
        known = len(self._state.labels)
        self._add(x, y, max(known - 1, 0) if task is None else check_task(task, known + 1, "fit()"))

    def forget(self, task: int, x: Any | None = None, y: Any | None = None) -> None:
        """Subtract a task as if it had never been added; later tasks move up by one.

        All its data must be given again, unless the option `per_task` keeps its sums.
        """
        number = check_task(task, len(self._state.labels), "fit()")
        old = None
        if x is not None and y is not None:
            state = self._with_targets(y, number)
            old = self._model.of(self._inputs(x, y), self._targets(y, state, number))
            if state != self._state:
                raise TaskError(f"these are not exactly the examples of task {number}: there are other labels")
        tasks = without(self._model.tasks, number, old)
        labels, losses = ([*own[:number], *own[number + 1 :]] for own in (self._state.labels, self._state.losses))
        self._state = replace(self._state, labels=labels, losses=losses) if labels else ExactState()
        self._model = self._model_of(tasks)

    # -- prediction -------------------------------------------------------------------------------------

    def predict(self, x: Any, task: int | Sequence[int] | Tensor | None = None) -> Prediction:
        """What is believed about x: over all labels ever seen, or in a task, or each input in a task of its own."""
        state, inputs, sums = self._state, self._inputs(x), self._model.tasks
        with torch.no_grad(), network_failures():
            numbers = None if task is None else checked_tasks(task, len(state.labels), len(inputs), "fit()")
            found = self._model.believe(inputs)

        def in_task(number: int) -> Prediction:
            if self._model.tasks is not sums:
                raise TaskError("the learner has changed since this prediction; call predict(x, task=...)")
            numbers = checked_tasks(number, len(state.labels), len(inputs), "fit()")
            return self._of(state, found, numbers, None)

        return self._of(state, found, numbers, None if task is not None else in_task)

    def _of(
        self, state: ExactState, found: Believed, numbers: Tensor | None, in_task: Callable[[int], Prediction] | None
    ) -> Prediction:
        """A prediction over all labels, or in the task that each input is known to have."""
        with torch.no_grad():
            if state.outputs:
                return self._numbers(found, in_task)
            assert found.log_probs is not None
            if numbers is not None:
                return self._in_tasks(state, found, numbers)
            probs, labels = found.log_probs.exp().float(), [label for own in state.labels for label in own]
            of_task = [task for task, own in enumerate(state.labels) for _ in own]
            tasks = summed(probs, of_task, len(state.labels))
            return over_labels(probs, labels, tasks, *_unlike_and_moments(found, slice(None)), in_task)

    def _in_tasks(self, state: ExactState, found: Believed, numbers: Tensor) -> Prediction:
        """Over the labels of the tasks that are named, each input in its own."""
        ends, named = list(itertools.accumulate(map(len, state.labels))), sorted(set(numbers.tolist()))
        columns = [range(ends[task] - len(state.labels[task]), ends[task]) for task in named]
        keep = [column for own in columns for column in own]
        assert found.log_probs is not None
        log_probs = found.log_probs[:, keep]
        if len(named) > 1:
            of_column = torch.tensor([task for task in named for _ in state.labels[task]])
            log_probs = log_probs.masked_fill((of_column != numbers[:, None]).to(log_probs.device), -torch.inf)
        labels = [label for task in named for label in state.labels[task]]
        return over_labels(log_probs.softmax(1).float(), labels, None, *_unlike_and_moments(found, keep))

    def _numbers(self, found: Believed, in_task: Callable[[int], Prediction] | None) -> Prediction:
        mean, spread = found.mean.float(), found.variance[:, None].expand_as(found.mean)
        total = spread + self._model.noise

        def density(y: Any) -> Tensor:
            gap = (Gaussian(self._state.outputs).encode(y, self.device, torch.float64) - found.mean).square()
            return (-0.5 * (gap / total + (2 * torch.pi * total).log())).sum(1).float()

        return Prediction(
            mean, spread.float(), target_mean=mean, target_variance=total.float(), density=density,
            novelty=lambda: found.novelty.float(), in_task=in_task,
        )  # fmt: skip

    def _deployed(self, task: int | None) -> tuple[Deployed, Tensor]:
        number = None if task is None else check_task(task, len(self._state.labels), "fit()")
        return exact_gp_module(self, number), example_of(self)

    export, export_onnx = export, export_onnx

    # -- keeping ----------------------------------------------------------------------------------------

    def memory_parts(self) -> Parts:
        """Bytes kept of past tasks by kind. Sums count as they are saved: whole numbers, of 32 bits where they fit."""
        return {"statistics": stored_bytes(self._model.tasks)} if self._model.tasks.blocks else {}

    def kept_inputs(self) -> list[Tensor]:
        """No inputs are kept."""
        return []

    def state_dict(self) -> dict[str, Any]:
        """Everything that decides what happens next, exactly: {"meta": JSON-able, "tensors": by name}."""
        kept = stored(self._model.tasks)
        net = None if self.net is None else self.net.state_dict()
        return codec.pack(SavedExact(asdict(self.options), net, self._state, kept))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue exactly where the learner that gave `state` was; refused as a whole if it does not fit."""
        saved = codec.unpack(SavedExact, state, self.device)
        if saved.exact_gp != asdict(self.options) or (saved.net is None) != (self.net is None):
            raise CheckpointError("the state was made by a learner with other options or features")
        if self.net is not None and saved.net is not None:
            check_fits(self.net.state_dict(), saved.net)
        own, tasks = saved.state, restored(saved.tasks)
        widths = [len(block.squares) for block in tasks.blocks]
        if widths != [own.outputs or len(labels) for labels in own.labels]:
            raise CheckpointError("the labels of this state do not fit its sums")
        sound = [len(one) in (0, len(POWERS)) and all(map(math.isfinite, one)) for one in own.losses]
        if len(sound) != len(widths) or not all(sound):
            raise CheckpointError("the losses of powers in this state are damaged")
        if self.net is not None and saved.net is not None:
            self.net.load_state_dict(saved.net)
        self._state, self._random = own, None
        self._model = self._model_of(tasks)

    def save(self, path: str | Path) -> None:
        """Write the state to one file, atomically; `frcl.load` reads it, without a network where it is one of frcl."""
        state, network = self.state_dict(), None if self.net is None else describe(self.net)
        save_state(path, {**state["meta"], "network": network}, state["tensors"])

    # -- one addition -----------------------------------------------------------------------------------

    def features(self, x: Tensor) -> Tensor:
        """The fixed features of inputs: whole numbers [n, K], the last of them the bias."""
        if self.net is not None:
            return whole_features(self.net(x))
        if self._random is None:
            made = RandomFeatures(tuple(x.shape[1:]), self.options.count, self.options.kind, self.options.seed)
            self._random = made.to(self.device)
        return self._random.whole(x)

    def _add(self, x: Any, y: Any, number: int, held_out: float = 0.0) -> None:
        inputs = self._inputs(x, y)
        if self.net is not None and not self._state.labels:
            check_features(self.net, inputs)
        state = self._with_targets(y, number)
        with network_failures(), torch.no_grad():
            targets = self._targets(y, state, number)
            new, losses = self._model.of(inputs, targets), state.losses
            if held_out and not state.outputs:
                losses = [*losses[:-1], self._model.losses(inputs, targets, new, held_out)]
        tasks = added(self._model.tasks, number, new, own_gram=self.options.per_task)
        self._state = replace(state, input_shape=tuple(inputs.shape[1:]), input_dtype=inputs.dtype, losses=losses)
        self._model = self._model_of(tasks)

    def _model_of(self, tasks: Tasks) -> ExactModel:
        """The model of these sums, with the power of the least loss."""
        losses = [sum(each) for each in zip(*filter(None, self._state.losses), strict=True)]
        power = POWERS[losses.index(min(losses))] if any(losses) else TEMPER
        return ExactModel(self.features, not self._state.outputs, tasks, power)

    def _with_targets(self, y: Any, number: int) -> ExactState:
        """The state with what these targets of a task bring: labels that it has not had, or the width of numbers."""
        state, values = self._state, as_values(y)
        if number == len(state.labels):
            state = replace(state, labels=[*state.labels, []], losses=[*state.losses, []])
        labels = list(state.labels)
        if isinstance(values, Tensor) and values.is_floating_point():
            refuse_what_looks_like_labels(values)
            outputs = Gaussian.from_targets(values, None, {}).outputs
            if self._state.labels and state.outputs != outputs:
                raise DataError(f"the targets are {outputs} numbers; earlier ones were {state.outputs or 'labels'}")
            return replace(state, labels=labels, outputs=outputs)
        if state.outputs:
            raise DataError("the targets are labels; earlier ones were numbers. Use another learner for them.")
        if values.ndim != 1:
            raise LabelError(f"labels must be one per example, [N]; got shape {tuple(values.shape)}")
        found = (values.unique() if isinstance(values, Tensor) else np.unique(values)).tolist()
        all_labels([*found, *(label for own in labels for label in own)])  # of one kind
        labels[number] = [*labels[number], *(label for label in found if label not in labels[number])]
        return replace(state, labels=labels)

    def _targets(self, y: Any, state: ExactState, number: int) -> Tensor:
        """Targets [n, C]: numbers, or indicators of the labels of the task."""
        if state.outputs:
            return Gaussian(state.outputs).encode(y, self.device, torch.float64)
        values = as_values(y)
        given = values.cpu().numpy() if isinstance(values, Tensor) else values
        own = np.array(state.labels[number])
        order = np.argsort(own)
        index = torch.from_numpy(order[np.searchsorted(own, given, sorter=order)])
        return F.one_hot(index, len(own)).double().to(self.device)

    @property
    def dtype(self) -> torch.dtype:
        """The type of floating-point inputs."""
        return next((p.dtype for p in self.net.parameters()), torch.float32) if self.net is not None else torch.float32

    def _inputs(self, x: Any, y: Any | None = None) -> Tensor:
        return checked_inputs(self, x, y)


def _unlike_and_moments(found: Believed, columns: slice | list[int]) -> tuple[Callable[[], Tensor], Columns]:
    """The novelty, and mean and variance of the functions of some columns, computed when they are asked for."""

    def variance() -> Tensor:
        return found.variance[:, None].expand_as(found.mean)[:, columns].float()

    return lambda: found.novelty.float(), (lambda: found.mean[:, columns].float(), variance)


def restored_exact_gp(state: dict[str, Any], net: Any, device: str | torch.device | None) -> ExactGP:
    """The learner whose state this is; `net` is a network of the shape of its own, where it has one."""
    own = state["meta"].get("net") is not None
    if own and not isinstance(net, nn.Module):
        raise CheckpointError("this is an ExactGP on the features of a network; give one of the same shape")
    try:
        options = changed(ExactGPOptions(), dict(state["meta"]["exact_gp"]))
    except (TypeError, ValueError, OptionError) as error:
        raise CheckpointError(f"the checkpoint's options cannot be read: {error}") from error
    learner = ExactGP(net if own else None, device=device, options=options)
    learner.load_state_dict(state)
    return learner
