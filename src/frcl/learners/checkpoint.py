"""The learner's state as JSON and named tensors, and back. Nothing changes unless all of it fits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

from frcl.boundary import BoundaryDetector
from frcl.engine.adam import Optimiser
from frcl.engine.tensors import Params, leaf
from frcl.errors import CheckpointError, FrclError, OptionError
from frcl.learners.holds import Holds, make_holds, trained_heads
from frcl.learners.objective import THETA, Memory, Objective, posterior_of
from frcl.learners.options import FRCLOptions, changed
from frcl.learners.state import CurrentTask, Declared, LearnerState
from frcl.learners.targets import Label, TargetSpec
from frcl.learners.types import Summary
from frcl.learners.window import Window
from frcl.regularisers.curvature import Anchor
from frcl.regularisers.functional import make_bank
from frcl.regularisers.protocol import named, under
from frcl.seeding import Streams
from frcl.summary import FunctionBelief, prior_kl_terms

Tensors = dict[str, Tensor]
Labels = Sequence[Label] | None


def pack(
    state: LearnerState, net: nn.Module, options: FRCLOptions, detector: BoundaryDetector | None, labels: Labels
) -> dict[str, Any]:
    """{"meta": JSON-able, "tensors": by name}; all tensors are copies."""
    meta: dict[str, Any] = {
        "options": asdict(options),
        "labels": None if labels is None else list(labels),
        "detector": detector.options() if detector else None,
        "device": _device(net).type,
        "version": state.version,
        "input_shape": None if state.input_shape is None else list(state.input_shape),
        "input_floating": state.input_floating,
        "trained": [name for name, p in net.named_parameters() if p.requires_grad],
        "declared": asdict(state.declared) if state.declared else None,
        "past": [_summary_meta(summary) for summary in state.past],
        "current": _current_meta(state.current) if state.current else None,
    }
    tensors: Tensors = {f"net/{name}": value for name, value in net.state_dict().items()}
    tensors |= {f"streams/{name}": value for name, value in state.streams.state().items()}
    if state.anchor is not None:
        tensors |= named("anchor/theta/", state.anchor.theta) | named("anchor/precision/", state.anchor.precision)
    for i, summary in enumerate(state.past):
        tensors |= {f"past/{i}/{name}": value for name, value in _summary_tensors(summary).items()}
    if state.current is not None:
        tensors |= {f"current/{name}": value for name, value in _current_tensors(state.current).items()}
    if detector is not None:
        watch = detector.state_dict()
        tensors |= {f"detector/{i}": values for i, values in enumerate(watch.pop("reference"))}
        meta["detector_counters"] = watch
    return {"meta": meta, "tensors": {name: value.detach().clone() for name, value in tensors.items()}}


def settings(meta: dict[str, Any]) -> tuple[dict[str, Any], BoundaryDetector | None, Labels]:
    """Options, detector and labels of the learner that wrote `meta`."""
    if "progress" in meta:
        raise CheckpointError("this is the checkpoint of a run, not a saved learner; go on with it by `frcl resume`")
    try:
        detector = BoundaryDetector(**meta["detector"]) if meta["detector"] else None
        changed(FRCLOptions(), meta["options"])
        return dict(meta["options"]), detector, meta["labels"]
    except (KeyError, TypeError, OptionError) as error:
        raise CheckpointError(f"the checkpoint's options cannot be read: {error}") from error


def unpack(
    state: dict[str, Any],
    net: nn.Module,
    options: FRCLOptions,
    detector: BoundaryDetector | None,
    labels: Labels,
) -> LearnerState:
    """The state of a learner with these options; network and detector are set to what they were."""
    try:
        meta, tensors = state["meta"], state["tensors"]
        _check_settings(meta, options, detector, labels)
        network = under(tensors, "net/")
        _check_network(net, network)
        device = _device(net)
        past = [_summary_from(data, under(tensors, f"past/{i}/"), device) for i, data in enumerate(meta["past"])]
        if options.keeps_heads and any(summary.head is None for summary in past):
            raise CheckpointError("the state has no head of a past task, which its options ask for")
        terms = [prior_kl_terms(summary.belief) for summary in past]
        restored = LearnerState(
            streams=_streams(meta, tensors, options, device),
            past=past,
            terms=terms,
            bank=make_bank([s.Z for s in past], terms) if past else None,
            anchor=_anchor(under(tensors, "anchor/"), device),
            declared=_declared(meta["declared"]),
            input_shape=None if meta["input_shape"] is None else tuple(meta["input_shape"]),
            input_floating=meta["input_floating"],
            version=meta["version"],
        )
        trained = set(meta["trained"])
        if meta["current"] is not None:
            pieces = under(tensors, "current/")
            restored.current = _current_from(meta["current"], pieces, restored, net, options, trained)
        watch = None
        if detector is not None:
            count = sum(name.startswith("detector/") for name in tensors)
            reference = [tensors[f"detector/{i}"] for i in range(count)]
            watch = {**meta["detector_counters"], "reference": reference}
    except CheckpointError:
        raise
    except (KeyError, TypeError, IndexError, AttributeError, RuntimeError, ValueError, FrclError) as error:
        raise CheckpointError(f"the state is incomplete, or not one made by state_dict(): {error!r}") from error
    net.load_state_dict(network)
    for name, parameter in net.named_parameters():
        parameter.requires_grad_(name in trained)
    if detector is not None and watch is not None:
        detector.load_state_dict(watch)
    return restored


def _check_settings(
    meta: dict[str, Any], options: FRCLOptions, detector: BoundaryDetector | None, labels: Labels
) -> None:
    mine: dict[str, Any] = {"options": asdict(options), "detector": detector.options() if detector else None}
    mine["labels"] = None if labels is None else list(labels)
    stored = {**meta, "options": asdict(FRCLOptions()) | meta["options"]}  # an option that was not there yet was off
    if meta["detector"] is not None:
        stored["detector"] = BoundaryDetector(**meta["detector"]).options()
    for name, value in mine.items():
        if stored[name] != value:
            differing = ""
            if name == "options":
                differing = ": " + ", ".join(k for k, v in asdict(options).items() if stored[name].get(k) != v)
            raise CheckpointError(f"the state was made by a learner with other {name}{differing}")


def _check_network(net: nn.Module, stored: Tensors) -> None:
    def kinds(tensors: dict[str, Any]) -> dict[str, str]:
        return {name: f"{list(value.shape)} {value.dtype}" for name, value in tensors.items()}

    expected, given = kinds(net.state_dict()), kinds(stored)
    for name in sorted(expected.keys() | given.keys()):
        if expected.get(name) != given.get(name):
            raise CheckpointError(
                f"the checkpoint does not fit this network: {name!r} is {given.get(name, 'absent')} in the "
                f"checkpoint and {expected.get(name, 'absent')} in the network"
            )


def _streams(meta: dict[str, Any], tensors: Tensors, options: FRCLOptions, device: torch.device) -> Streams:
    """The generators as they were; on another kind of device, which cannot take their state, fresh ones."""
    if meta["device"] != device.type:
        return Streams(options.seed + 1 + int(meta["version"]), device)
    streams = Streams(options.seed, device)
    streams.restore(under(tensors, "streams/"))
    return streams


def _declared(data: dict[str, Any] | None) -> Declared | None:
    if data is None:
        return None
    return Declared(None if data["labels"] is None else tuple(data["labels"]), data["likelihood"], data["size"])


def _device(net: nn.Module) -> torch.device:
    first = next(net.parameters(), None)
    return torch.device("cpu") if first is None else first.device


# -- a past task ----------------------------------------------------------------------------------------


def _summary_meta(summary: Summary) -> dict[str, Any]:
    return {
        "target": summary.target.to_json(),
        "size": summary.size,
        "before": summary.before,
        "after": summary.after,
        "noise": summary.belief.noise,
        "posterior_noise": summary.belief.posterior_noise,
    }


def _summary_tensors(summary: Summary) -> Tensors:
    tensors = {"Z": summary.Z, "mean": summary.belief.mean, "factor": summary.belief.factor}
    if summary.head is not None:
        tensors["head"] = summary.head
    if summary.spread is not None:
        tensors["spread"] = summary.spread
    if summary.temperature is not None:
        tensors["temperature"] = summary.temperature
    return tensors | {f"likelihood/{name}": value for name, value in summary.likelihood_params.items()}


def _summary_from(data: dict[str, Any], tensors: Tensors, device: torch.device) -> Summary:
    local = {name: value.to(device).clone() for name, value in tensors.items()}
    belief = FunctionBelief(local["mean"], local["factor"], data["noise"], data["posterior_noise"])
    return Summary(
        Z=local["Z"],
        belief=belief,
        target=TargetSpec.from_json(data["target"]),
        likelihood_params=under(local, "likelihood/"),
        size=data["size"],
        before=data["before"],
        after=data["after"],
        head=local.get("head"),
        spread=local.get("spread"),
        temperature=local.get("temperature"),
    )


def _anchor(tensors: Tensors, device: torch.device) -> Anchor | None:
    if not tensors:
        return None
    local = {name: value.to(device).clone() for name, value in tensors.items()}
    return Anchor(under(local, "theta/"), under(local, "precision/"))


# -- the task being learned -------------------------------------------------------------------------------


def _current_meta(current: CurrentTask) -> dict[str, Any]:
    return {
        "target": current.target.to_json(),
        "N": float(current.memory.N),
        "step": current.step,
        "data_mark": current.data_mark,
        "shown": sorted(current.shown),
        "window_seen": current.window.seen if current.window else None,
    }


def _current_tensors(current: CurrentTask) -> Tensors:
    tensors = {f"params/{n}": v for n, v in current.params.items() if not n.startswith(THETA)}
    tensors |= {f"adam/{name}": value for name, value in current.optimiser.state().items()}
    if current.memory.Z is not None:
        tensors["Z"] = current.memory.Z
    if current.memory.holds is not None:
        tensors |= named("begin/", current.memory.holds.begin)
    tensors |= {f"recent/{i}": value for i, value in enumerate(current.recent)}
    if current.window is not None and len(current.window):
        tensors["window/x"], tensors["window/y"] = current.window.data()
    return tensors


def _current_from(
    data: dict[str, Any],
    pieces: Tensors,
    state: LearnerState,
    net: nn.Module,
    options: FRCLOptions,
    trained: set[str],
) -> CurrentTask:
    device = _device(net)
    target = TargetSpec.from_json(data["target"])
    theta: Params = {name: p for name, p in net.named_parameters() if name in trained}
    params = named(THETA, theta)
    params |= {name: leaf(value.to(device)) for name, value in under(pieces, "params/").items()}
    q = posterior_of(params)
    if q.mean.shape[:1] != (target.functions,) or q.factor.shape != (*q.mean.shape, q.mean.shape[-1]):
        raise CheckpointError("the posterior of the current task does not have the shape that its targets need")
    optimiser = Optimiser(params, options.lr)
    optimiser.restore(under(pieces, "adam/"))
    window = None if data["window_seen"] is None else Window(options.window)
    if window is not None and data["window_seen"]:
        content = pieces["window/x"].to(device), pieces["window/y"].to(device)
        window = Window.restored(options.window, data["window_seen"], *content)
    recent = under(pieces, "recent/")
    begin = {name: value.to(device) for name, value in under(pieces, "begin/").items()}
    holds = make_holds(options, state.past, theta, begin, state.anchor)
    _check_holds(holds, params, theta, options)
    Z = pieces["Z"].to(device).clone() if "Z" in pieces else None
    return CurrentTask(
        target=target,
        objective=Objective(net, target.likelihood, options),
        params=params,
        optimiser=optimiser,
        memory=Memory(data["N"], state.bank, Z, holds),
        window=window,
        data_mark=data["data_mark"],
        shown=set(data.get("shown", ())),  # files from before it was kept
        step=data["step"],
        recent=tuple(recent[str(i)].to(device).clone() for i in range(len(recent))),
    )


def _check_holds(holds: Holds | None, params: Params, theta: Params, options: FRCLOptions) -> None:
    """Refuse a task whose holds are not all there."""
    if holds is None:
        return
    if options.current_inputs and {name: p.shape for name, p in holds.begin.items()} != {
        name: p.shape for name, p in theta.items()
    }:
        raise CheckpointError("the state does not have the network as it was when the current task began")
    for name, block in trained_heads(options, holds).items():
        if name not in params or params[name].shape != block.shape:
            raise CheckpointError("the heads of past tasks do not have the shape that their targets need")
