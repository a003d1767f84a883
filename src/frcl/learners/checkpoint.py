"""The learner's state as JSON and named tensors, and back. Nothing changes unless all of it fits."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from frcl import codec
from frcl.boundary import BoundaryDetector
from frcl.engine.program import exact_number
from frcl.engine.train import AdamState, Optimiser
from frcl.errors import CheckpointError, FrclError
from frcl.features import trained_parts
from frcl.learners.base import checked_size
from frcl.learners.loaded import SavedLearner, check_frcl, restored_parts, saved_parts
from frcl.learners.objective import Parameters
from frcl.learners.options import FRCLOptions
from frcl.learners.state import CurrentTask, Declared, LearnerState, Window
from frcl.learners.types import Summary
from frcl.likelihoods import Label, Likelihood, check_name, likelihood_from_json, plain_labels
from frcl.options import changed
from frcl.posterior import Posterior
from frcl.regularisers.heads import make_block
from frcl.regularisers.protocol import from_json, to_json
from frcl.trees import leaf, tree_map

if TYPE_CHECKING:
    from frcl.learners.frcl import FRCL

codec.read_with(Likelihood, likelihood_from_json)


@dataclass
class Settings:
    """What a learner was made with."""

    options: dict[str, Any]
    labels: tuple[Label, ...] | None
    detector: dict[str, Any] | None
    regularisers: list[dict[str, Any]] | None  # None: those of the options


@dataclass
class SavedWindow:
    """The sample of a stream's data."""

    seen: int
    minibatches: int
    x: Tensor | None
    y: Tensor | None
    came: Tensor | None


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
    returned: int | None
    estimated: bool
    before: int


@dataclass
class Saved(SavedLearner):
    """Everything that is written."""

    settings: Settings
    feature_scale: float
    feature_size: float
    declared: Declared | None
    past: list[Summary]
    current: SavedTask | None
    detector: dict[str, Any] | None


def settings_of(learner: FRCL) -> Settings:
    """What the learner was made with."""
    detector = learner.detector.options() if learner.detector else None
    regularisers = [to_json(one) for one in learner.regularisers] if learner.custom_regularisers else None
    return Settings(asdict(learner.options), learner.labels, detector, regularisers)


def saved(learner: FRCL) -> Saved:
    """What is written of a learner."""
    state, task = learner._state, None
    if (current := state.current) is not None:
        params, window = current.params, current.window
        content = (*window.data(), window.came()) if window is not None and len(window) else (None, None, None)
        task = SavedTask(
            current.likelihood, current.N, params.posterior, params.likelihood, params.heads, params.Z,
            current.optimiser.state(), current.Z, current.data_mark,
            None if window is None else SavedWindow(window.seen, window.minibatches, *content),
            list(current.recent), sorted(current.shown), current.returned, current.estimated, current.before,
        )  # fmt: skip
    return Saved(
        **saved_parts(learner), settings=settings_of(learner), feature_scale=learner.feature_scale,
        feature_size=learner._model.size, declared=state.declared, past=state.past, current=task,
        detector=None if learner.detector is None else learner.detector.state_dict(),
    )  # fmt: skip


def settings(meta: Any) -> dict[str, Any]:
    """Options, detector, labels and regularisers of the learner that wrote `meta`, as keywords of FRCL."""
    if isinstance(meta, Mapping) and "progress" in meta:
        raise CheckpointError("this is the checkpoint of a run, not a saved learner; go on with it by `frcl resume`")
    try:
        own = codec.unpack(Settings, {"meta": meta["settings"], "tensors": {}})
        options, labels = changed(FRCLOptions(), own.options), plain_labels(own.labels)
        detector = BoundaryDetector(**own.detector) if own.detector else None
        chosen = None if own.regularisers is None else [from_json(one) for one in own.regularisers]
        return {"options": options, "detector": detector, "labels": labels, "regularisers": chosen}
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError, FrclError) as error:
        raise CheckpointError(f"the checkpoint's options cannot be read: {error}") from error


def restored(learner: FRCL, saved: Saved) -> LearnerState:
    """The state of a learner with these settings, whose network is what it was; its detector is set to what it was."""
    for name, value in (("scale", saved.feature_scale), ("size", saved.feature_size)):
        if not 0.0 < value < math.inf:
            raise CheckpointError(f"the {name} of the features is {value}; expected a positive number")
    check_frcl(learner._model, saved, learner.detector)
    if saved.declared is not None:
        declared = saved.declared
        plain_labels(declared.labels)
        check_name(declared.likelihood or "auto")
        checked_size(1 if declared.size is None else declared.size)
    state = LearnerState(
        **restored_parts(learner, saved, len(saved.past)), past=saved.past, declared=saved.declared
    )  # fmt: skip
    needs_heads = learner.options.prediction != "summary" or any(one.uses_heads for one in state.regularisers)
    if needs_heads and any(summary.head is None for summary in saved.past):
        raise CheckpointError("the state lacks the head of a past task, which its options need")
    if saved.current is not None:
        state.current = _current(learner, saved.current, state)
        task = learner._model.task(state, saved.current.likelihood, saved.current.N)
        for regulariser in state.regularisers:
            regulariser.check_resumed(task)
            regulariser.constants(task)  # fails where something of the task is missing
    detector = copy.deepcopy(learner.detector)
    if detector is not None:
        detector.load_state_dict(saved.detector or {})
    learner.detector = detector
    learner._model.scale.fill_(saved.feature_scale)
    learner._model.size = saved.feature_size
    return state


def _current(learner: FRCL, saved: SavedTask, state: LearnerState) -> CurrentTask:
    trains_heads = bool(state.past) and any(one.trains_heads for one in state.regularisers)
    expected = make_block(state.past).heads.shape if trains_heads else None
    if (None if saved.heads is None else saved.heads.shape) != expected:
        raise CheckpointError("the heads of past tasks do not have the shape that their targets need")
    trained = tree_map(leaf, (saved.posterior, saved.learned, saved.heads, saved.trained_Z))
    params = Parameters(trained_parts(learner.net), *trained)
    model = learner._model
    natural = exact_number(saved.N, model.dtype, model.device) if model.is_natural else None
    optimiser = Optimiser(params, model.options.lr, natural, model.rule)
    optimiser.restore(saved.adam)
    window = None if saved.window is None else Window.restored(learner.options.window, **vars(saved.window))
    return CurrentTask(
        saved.likelihood, saved.N, params, optimiser, saved.Z, saved.data_mark, window, tuple(saved.recent),
        set(saved.shown), saved.returned, saved.estimated, saved.before,
    )  # fmt: skip


def check_settings(learner: FRCL, saved: Saved) -> None:
    """Refuse the state of a learner that was made with something else."""
    stored = saved.settings
    for name, value in vars(settings_of(learner)).items():
        if getattr(stored, name) != value:
            differing = ""
            if name == "options":
                differing = ": " + ", ".join(key for key, mine in value.items() if stored.options.get(key) != mine)
            raise CheckpointError(f"the state was made by a learner with other {name}{differing}")
