"""The learner's state as JSON and named tensors, and back. Nothing changes unless all of it fits."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from frcl import codec
from frcl.boundary import BoundaryDetector
from frcl.engine.adam import AdamState, Optimiser
from frcl.errors import CheckpointError, FrclError, OptionError
from frcl.learners.objective import Parameters
from frcl.learners.options import FRCLOptions
from frcl.learners.state import CurrentTask, Declared, LearnerState
from frcl.learners.types import Summary
from frcl.learners.window import Window
from frcl.likelihoods import Label, Likelihood, likelihood_from_json
from frcl.options import changed
from frcl.posterior import Posterior
from frcl.regularisers.heads import make_block
from frcl.regularisers.protocol import Regulariser, from_json, to_json
from frcl.seeding import Streams
from frcl.trees import Params, leaf, tree_map

if TYPE_CHECKING:
    from frcl.learners.frcl import FRCL

codec.read_with(Likelihood, likelihood_from_json)


@dataclass
class Settings:
    """What a learner was made with."""

    options: dict[str, Any]
    labels: list[Label] | None
    detector: dict[str, Any] | None
    regularisers: list[dict[str, Any]] | None  # None: those of the options


@dataclass
class SavedWindow:
    """The sample of a stream's data."""

    seen: int
    x: Tensor | None
    y: Tensor | None


@dataclass
class SavedTask:
    """The task being learned, without the shared weights."""

    likelihood: Likelihood
    N: float
    posterior: Posterior
    learned: dict[str, Tensor]
    heads: Tensor | None
    trained_Z: Tensor | None
    adam: AdamState
    Z: Tensor | None
    data_mark: str | None
    window: SavedWindow | None
    recent: list[Tensor]
    shown: list[int]


@dataclass
class Saved:
    """Everything that is written."""

    settings: Settings
    device: str
    net: dict[str, Tensor]
    trained: list[str]
    streams: dict[str, Tensor]
    input_shape: list[int] | None
    input_floating: bool | None
    declared: Declared | None
    past: list[Summary]
    regularisers: list[Any]  # the state of each
    current: SavedTask | None
    detector: dict[str, Any] | None


def settings_of(learner: FRCL) -> Settings:
    """What the learner was made with."""
    return Settings(
        options=asdict(learner.options),
        labels=None if learner.labels is None else list(learner.labels),
        detector=learner.detector.options() if learner.detector else None,
        regularisers=[to_json(one) for one in learner.regularisers] if learner.custom_regularisers else None,
    )


def pack(learner: FRCL) -> dict[str, Any]:
    """{"meta": JSON-able, "tensors": by name}; all tensors are copies."""
    state, net = learner._state, learner.net
    saved = Saved(
        settings=settings_of(learner),
        device=learner.device.type,
        net=dict(net.state_dict()),
        trained=[name for name, p in net.named_parameters() if p.requires_grad],
        streams=state.streams.state(),
        input_shape=None if state.input_shape is None else list(state.input_shape),
        input_floating=state.input_floating,
        declared=state.declared,
        past=state.past,
        regularisers=[one.state() for one in state.regularisers],
        current=None if state.current is None else _saved_task(state.current),
        detector=None if learner.detector is None else learner.detector.state_dict(),
    )
    return codec.pack(saved)


def _saved_task(current: CurrentTask) -> SavedTask:
    params, window = current.params, current.window
    content = window.data() if window is not None and len(window) else (None, None)
    return SavedTask(
        current.likelihood, current.N, params.posterior, params.likelihood, params.heads, params.Z,
        current.optimiser.state(), current.Z, current.data_mark,
        None if window is None else SavedWindow(window.seen, *content), list(current.recent), sorted(current.shown),
    )  # fmt: skip


def settings(meta: Any) -> tuple[FRCLOptions, BoundaryDetector | None, list[Label] | None, list[Regulariser] | None]:
    """Options, detector, labels and regularisers of the learner that wrote `meta`."""
    if isinstance(meta, Mapping) and "progress" in meta:
        raise CheckpointError("this is the checkpoint of a run, not a saved learner; go on with it by `frcl resume`")
    try:
        own = codec.unpack(Settings, {"meta": meta["settings"], "tensors": {}})
        options = changed(FRCLOptions(), own.options)
        detector = BoundaryDetector(**own.detector) if own.detector else None
        chosen = None if own.regularisers is None else [from_json(one) for one in own.regularisers]
        return options, detector, own.labels, chosen
    except (KeyError, TypeError, OptionError) as error:
        raise CheckpointError(f"the checkpoint's options cannot be read: {error}") from error


def unpack(learner: FRCL, state: dict[str, Any]) -> LearnerState:
    """The state of a learner with these settings; its network and detector are set to what they were."""
    saved = codec.unpack(Saved, state, learner.device)
    _check_settings(saved.settings, settings_of(learner))
    check_fits(learner.net, saved.net)
    try:
        restored = _restored(learner, saved)
        if saved.current is not None:
            theta: Params = {name: p for name, p in learner.net.named_parameters() if name in saved.trained}
            restored.current = _current(learner, saved.current, theta, restored)
            task = learner._model.task(restored, saved.current.likelihood, saved.current.N)
            for regulariser in restored.regularisers:
                regulariser.check_resumed(replace(task, theta=theta))
        detector = copy.deepcopy(learner.detector)
        if detector is not None:
            detector.load_state_dict(saved.detector or {})
    except CheckpointError:
        raise
    except (KeyError, TypeError, IndexError, AttributeError, RuntimeError, ValueError, FrclError) as error:
        raise CheckpointError(f"the state is incomplete, or not one made by state_dict(): {error!r}") from error
    learner.net.load_state_dict(saved.net)
    for name, parameter in learner.net.named_parameters():
        parameter.requires_grad_(name in saved.trained)
    learner.detector = detector
    return restored


def _restored(learner: FRCL, saved: Saved) -> LearnerState:
    """All but the task being learned."""
    regularisers = [copy.copy(one) for one in learner._state.regularisers]
    if len(saved.regularisers) != len(regularisers):
        raise CheckpointError("the state was made by a learner with other regularisers")
    for regulariser, own in zip(regularisers, saved.regularisers, strict=True):
        regulariser.load(own)
    needs_heads = learner.options.prediction != "summary" or any(one.uses_heads for one in regularisers)
    if needs_heads and any(summary.head is None for summary in saved.past):
        raise CheckpointError("the state lacks the head of a past task, which its options need")
    for number, summary in enumerate(saved.past):
        _check_summary(number, summary)
    shape = None if saved.input_shape is None else tuple(saved.input_shape)
    streams = restored_streams(saved.streams, saved.device, learner.options.seed, len(saved.past), learner.device)
    return LearnerState(
        streams, regularisers, saved.past, None, saved.declared, shape, saved.input_floating
    )  # fmt: skip


def _check_summary(number: int, summary: Summary) -> None:
    """Refuse a summary whose parts do not belong together."""
    belief, C, M = summary.belief, summary.likelihood.functions, len(summary.Z)
    fits = belief.mean.shape == (C, M) and belief.factor.ndim == 3 and belief.factor.shape[:2] == (C, M)
    if not fits or (summary.head is not None and (summary.head.ndim != 2 or len(summary.head) != C)):
        raise CheckpointError(f"the summary of task {number} does not have the shape that its points and targets need")


def restored_streams(saved: Params, saved_on: str, seed: int, past: int, device: torch.device) -> Streams:
    """The generators as they were; on another kind of device, which cannot take their state, fresh ones."""
    if saved_on != device.type:
        return Streams(seed + 1 + past, device)
    streams = Streams(seed, device)
    streams.restore(saved)
    return streams


def _current(learner: FRCL, saved: SavedTask, theta: Params, state: LearnerState) -> CurrentTask:
    q, functions = saved.posterior, saved.likelihood.functions
    if q.mean.ndim != 2 or q.mean.shape[0] != functions or q.factor.shape != (*q.mean.shape, q.mean.shape[-1]):
        raise CheckpointError("the posterior of the current task does not have the shape that its targets need")
    trains_heads = bool(state.past) and any(one.trains_heads for one in state.regularisers)
    expected = make_block(state.past).heads.shape if trains_heads else None
    if (None if saved.heads is None else saved.heads.shape) != expected:
        raise CheckpointError("the heads of past tasks do not have the shape that their targets need")
    params = Parameters(
        theta, tree_map(leaf, q), {name: leaf(value) for name, value in saved.learned.items()},
        None if saved.heads is None else leaf(saved.heads), None if saved.trained_Z is None else leaf(saved.trained_Z),
    )  # fmt: skip
    optimiser = Optimiser(params, learner.options.lr)
    optimiser.restore(saved.adam)
    window = None
    if saved.window is not None:
        window = Window(learner.options.window)
        if saved.window.x is not None and saved.window.y is not None:
            window = Window.restored(learner.options.window, saved.window.seen, saved.window.x, saved.window.y)
    return CurrentTask(
        likelihood=saved.likelihood, N=saved.N, optimiser=optimiser, Z=saved.Z, data_mark=saved.data_mark,
        window=window, recent=tuple(saved.recent), shown=set(saved.shown),
    )  # fmt: skip


def _check_settings(stored: Settings, own: Settings) -> None:
    for name, value in vars(own).items():
        if getattr(stored, name) != value:
            differing = ""
            if name == "options":
                differing = ": " + ", ".join(key for key, mine in value.items() if stored.options.get(key) != mine)
            raise CheckpointError(f"the state was made by a learner with other {name}{differing}")


def check_fits(net: nn.Module, stored: Params) -> None:
    """Refuse the weights of a network of another shape or type."""

    def kinds(tensors: Mapping[str, Any]) -> dict[str, str]:
        return {name: f"{list(value.shape)} {value.dtype}" for name, value in tensors.items()}

    expected, given = kinds(net.state_dict()), kinds(stored)
    for name in sorted(expected.keys() | given.keys()):
        if expected.get(name) != given.get(name):
            raise CheckpointError(
                f"the checkpoint does not fit this network: {name!r} is {given.get(name, 'absent')} in the "
                f"checkpoint and {expected.get(name, 'absent')} in the network"
            )
