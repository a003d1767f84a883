"""What is written of every learner, and whether a state that is loaded makes sense.

A checksum shows that a file is what was written, not who wrote it.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from frcl import codec
from frcl.checks import check_inputs, check_like, check_stored, check_targets, expect
from frcl.engine.program import Streams
from frcl.errors import CheckpointError, FrclError
from frcl.exact.model import Tasks, restored, stored
from frcl.features import trained_parts
from frcl.likelihoods import Likelihood
from frcl.trees import Params, copied, shapes

if TYPE_CHECKING:
    from frcl.boundary import BoundaryDetector
    from frcl.learners.base import SequentialLearner
    from frcl.learners.checkpoint import Saved, SavedTask, SavedWindow
    from frcl.learners.task import Model
    from frcl.learners.types import Summary

DAMAGED = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError, FrclError)


@dataclass
class SavedLearner:
    """What is written of every learner."""

    device: str
    net: dict[str, Tensor]
    trained: list[str]  # names of the weights that are trained
    streams: dict[str, Tensor]
    regularisers: list[Any]  # the state of each
    input_shape: tuple[int, ...] | None
    input_dtype: torch.dtype | None
    task_sums: Tasks


def saved_parts(learner: SequentialLearner[Any, Any]) -> dict[str, Any]:
    """The fields of SavedLearner."""
    state = learner._state
    return {
        "device": learner.device.type, "net": dict(learner.net.state_dict()),
        "trained": list(trained_parts(learner.net)), "streams": state.streams.state(),
        "regularisers": [one.state() for one in state.regularisers],
        "input_shape": state.input_shape, "input_dtype": state.input_dtype,
        "task_sums": stored(state.task_sums),
    }  # fmt: skip


def restored_parts(learner: SequentialLearner[Any, Any], saved: SavedLearner, past: int) -> dict[str, Any]:
    """The fields of a State from them; generators that another kind of device cannot take are fresh ones."""
    regularisers, seed = [copy.copy(one) for one in learner._state.regularisers], learner.options.seed
    if len(saved.regularisers) != len(regularisers):
        raise CheckpointError("the state was made by a learner with other regularisers")
    for regulariser, own in zip(regularisers, saved.regularisers, strict=True):
        regulariser.load(own)
    here = torch.device(saved.device).type == learner.device.type
    streams = Streams(seed if here else seed + 1 + past, learner.device)
    if here:
        streams.restore(saved.streams)
    return {
        "streams": streams, "regularisers": regularisers, "input_shape": saved.input_shape,
        "input_dtype": saved.input_dtype, "task_sums": restored(saved.task_sums),
    }  # fmt: skip


def load(learner: SequentialLearner[Any, Any], saved: Any, state: Mapping[str, Any]) -> None:
    """Give a learner the state that was saved; where it does not fit, the learner is left as it was."""
    net, before = learner.net, dict(vars(learner))
    weights, trained = copied(dict(net.state_dict())), list(trained_parts(net))
    try:
        learner._check_saved(saved)
        check_fits(net.state_dict(), saved.net)
        _set_weights(net, saved.net, saved.trained)
        learner._state = learner._restored(saved)
        for regulariser in learner._state.regularisers:
            regulariser.check_state(dict(net.named_parameters()), saved, saved.past)
        check_equal(state, codec.pack(learner._saved()))
    except BaseException as error:
        vars(learner).update(before)
        _set_weights(net, weights, trained)
        if isinstance(error, CheckpointError) or not isinstance(error, DAMAGED):
            raise
        raise CheckpointError(f"the state is incomplete, or not one made by state_dict(): {error!r}") from error


def _set_weights(net: nn.Module, weights: Params, trained: Sequence[str]) -> None:
    net.load_state_dict(weights)
    for name, parameter in net.named_parameters():
        parameter.requires_grad_(name in trained)


def check_fits(expected: Params, stored: Params, place: str = "") -> None:
    """Refuse stored weights of other names, shapes or types than those expected; `place` is where they belong."""
    kinds = [{name: f"{list(one.shape)} {one.dtype}" for name, one in each.items()} for each in (expected, stored)]
    for name in sorted(expected.keys() | stored.keys()):
        own, given = (kind.get(name, "absent") for kind in kinds)
        if own != given:
            differing = f"{place}{name!r} is {given} in the checkpoint and {own} in the network"
            raise CheckpointError(f"the checkpoint does not fit this network: {differing}")


def non_finite(tensors: Mapping[str, Tensor], trained: Sequence[str]) -> str | None:
    """The name of a tensor that is not finite; buffers and fixed weights of the network may be what they like."""
    free = {f"net/{name}" for name in trained}
    for name, value in tensors.items():
        if name.startswith("net/") and name not in free:
            continue
        if value.is_floating_point() and not bool(value.isfinite().all()):
            return name
    return None


def check_equal(given: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    """Refuse a state of which something was not taken over as it is: a foreign type, a name without a place."""
    ours, theirs = (json.loads(json.dumps(one["meta"])) for one in (found, given))
    if ours["device"] != theirs["device"]:  # then the generators are fresh ones
        ours, theirs = ({k: v for k, v in one.items() if k not in ("device", "streams")} for one in (ours, theirs))
    for name in ours.keys() | theirs.keys():
        expect(ours.get(name) == theirs.get(name), f"{name!r} is not as frcl would have written it")
    for name, value in found["tensors"].items():
        other = given["tensors"].get(name)
        if "streams" in ours or not name.startswith("streams/"):
            fits = other is not None and other.dtype == value.dtype and torch.equal(other.to(value.device), value)
            expect(fits, f"{name!r} is not as frcl would have written it")
    extra = given["tensors"].keys() - found["tensors"].keys()
    expect(not extra, f"nothing refers to {min(extra, default='')!r}")


def width_of(net: nn.Module, saved: SavedLearner, dtype: torch.dtype, device: torch.device) -> int:
    """K, with the bias: what the network gives for inputs of the shape in the state; 0 before the first one."""
    shape, kind = saved.input_shape, saved.input_dtype
    if shape is None or kind is None:
        expect(shape is None and kind is None, "input_shape and input_dtype belong together")
        return 0
    expect(kind == dtype or not (kind.is_floating_point or kind.is_complex), f"inputs are {kind}")
    expect(bool(shape) and all(side >= 1 for side in shape), f"input_shape is {list(shape)}")
    probe = torch.zeros((), dtype=kind, device=device).expand(1, *shape)
    try:
        with torch.no_grad():
            return int(net(probe).shape[1]) + 1
    except Exception as error:
        raise CheckpointError(f"the network does not take inputs of the shape in the state, {list(shape)}") from error


def check_learned(params: Params, likelihood: Likelihood, dtype: torch.dtype, what: str) -> None:
    own = likelihood.initial_parameters()
    expect(own.keys() == params.keys(), f"{what}: parameters of another likelihood")
    for name, value in own.items():
        check_like(params[name], tuple(value.shape), dtype, f"{what}, {name!r}")


def check_settings_of(likelihood: Likelihood, options: object, what: str) -> None:
    """Refuse a likelihood whose settings are not those of the learner."""
    own, known = vars(likelihood), vars(options)
    for name in own.keys() & known.keys():
        expect(own[name] == known[name], f"{what}: {name} is not that of the options")


# -- FRCL --------------------------------------------------------------------------------------------------------------


def check_frcl(model: Model, saved: Saved, detector: BoundaryDetector | None) -> None:
    """Refuse the state of FRCL where a part of it does not fit the others."""
    K = width_of(model.net, saved, model.dtype, model.device)
    expect(bool(K) or not (saved.past or saved.current), "there are tasks, but no input was ever seen")
    for number, summary in enumerate(saved.past):
        check_settings_of(summary.likelihood, model.options, f"task {number}")
        _check_summary(f"task {number}", summary, model.dtype, K)
        check_stored(summary.points, saved, model.dtype, f"the points of task {number}")
    if saved.current is not None:
        expect(saved.declared is None, "a task is declared while another one is open")
        check_settings_of(saved.current.likelihood, model.options, "the open task")
        _check_current(model, saved.current, saved, K, detector)
    own, given = None if detector is None else detector.state_dict(), saved.detector  # it checks the values itself
    expect((own is None) == (given is None) and (own or {}).keys() == (given or {}).keys(), "state of another detector")


def _check_summary(what: str, summary: Summary, dtype: torch.dtype, K: int) -> None:
    Z = summary.points.values
    belief, C, M = summary.belief, summary.likelihood.functions, len(Z) if Z.ndim else 0
    check_like(belief.mean, (C, M), dtype, f"the mean of {what}")
    factor = belief.factor
    fits = factor.ndim == 3 and factor.shape[0] in (1, C) and factor.shape[1] == M and 1 <= factor.shape[2] <= max(M, K)
    expect(fits and factor.dtype == dtype, f"the covariance of {what} does not have the shape that its points need")
    positive = (("u_noise", belief.u_noise), ("prior_std", belief.prior_std), ("size", summary.size))
    for name, value in positive:
        expect(value > 0 and value * value < math.inf, f"{name} of {what} is {value}")
    expect(belief.posterior_noise in (0.0, belief.u_noise), f"posterior_noise of {what} is {belief.posterior_noise}")
    check_learned(summary.likelihood_params, summary.likelihood, dtype, what)
    for name, part, shape in (
        ("scale", belief.scale, (C,)), ("spread", summary.spread, (C,)), ("temperature", summary.temperature, ()),
    ):  # fmt: skip
        if part is not None:
            check_like(part, shape, dtype, f"{name} of {what}")
            expect(bool((part > 0).all()), f"{name} of {what} is not positive")
    expect(belief.scale is None or len(factor) == 1, f"{what}: scales of covariances that are not shared")
    if (one := summary.profile) is not None:
        R = len(one.mean) if one.mean.ndim else 0
        check_like(one.mean, (R,), torch.float32, f"profile of {what}")
        check_like(one.root, (R, R), torch.float32, f"profile of {what}")
        expect(one.rows >= 1 and one.spread > 0, f"profile of {what}")
    if summary.head is not None:
        check_like(summary.head, (C, K), dtype, f"the head of {what}")


def _check_current(
    model: Model, task: SavedTask, saved: SavedLearner, K: int, detector: BoundaryDetector | None
) -> None:
    options, C, dtype = model.options, task.likelihood.functions, model.dtype
    expect(task.N >= 1, f"N is {task.N}")
    function, M = options.inference == "function", model.points(task.likelihood)
    n = M if function else K
    own = model.start_of_q(C, n, torch.Generator(model.device))
    expect(shapes(task.posterior) == shapes(own), "the posterior does not have the shape of the task")
    check_learned(task.learned, task.likelihood, dtype, "the open task")
    for name, Z, there in (("Z", task.Z, function and not options.learn_inputs),
                           ("trained_Z", task.trained_Z, function and options.learn_inputs)):  # fmt: skip
        expect((Z is not None) == there, f"{name} of the open task")
        if Z is not None:
            check_inputs(Z, saved, dtype, f"{name} of the open task")
            expect(len(Z) == M, f"{name} of the open task has {len(Z)} points instead of {M}")
    expect((task.data_mark is None) == (task.window is not None), "a task is opened by fit() or by observe()")
    if task.window is not None:
        _check_window(task.window, task.likelihood, saved, options.window, dtype)
    most = 0 if detector is None else detector.window if detector.rescore else int(detector.compares)
    expect(len(task.recent) <= most, f"{len(task.recent)} recent minibatches")
    for x in task.recent:
        check_inputs(x, saved, dtype, "a recent minibatch")
    known = range(len(saved.past))  # type: ignore[attr-defined]
    expect(task.returned is None or task.returned in known, f"task {task.returned} was opened again, of {len(known)}")
    expect(task.before >= 0, f"the open task had {task.before} examples")
    classes = len(task.likelihood.classes or ()) or C
    expect(all(0 <= one < classes for one in task.shown), f"classes {task.shown} were shown, of {classes}")


def _check_window(
    window: SavedWindow, likelihood: Likelihood, saved: SavedLearner, capacity: int, dtype: torch.dtype
) -> None:
    expect(window.seen >= 0, f"the window has seen {window.seen} examples")
    expect((window.x is None) == (window.y is None) == (window.came is None) == (window.seen == 0), "the window")
    if window.x is not None and window.y is not None and window.came is not None:
        check_inputs(window.x, saved, dtype, "the window of the stream")
        n, came = min(window.seen, capacity), window.came
        expect(len(window.x) == n, "the window has another number of examples than it has seen")
        check_targets(window.y, likelihood, n, dtype, "targets of the window")
        check_like(came, (n,), torch.int64, "minibatches of the window of the current task")
        expect(
            bool(((came >= 1) & (came <= window.minibatches)).all()), "minibatches of the window of the current task"
        )
