"""What the learners with a plain network share: targets, minibatches, point predictions, states."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

from frcl.baselines.options import TrainingOptions
from frcl.engine.program import Terms
from frcl.engine.tensors import Params
from frcl.errors import CheckpointError, DataError, TaskError
from frcl.learners.inputs import data_mark
from frcl.learners.options import FRCLOptions
from frcl.learners.targets import TargetSpec, as_values, infer_spec
from frcl.learners.types import Prediction
from frcl.likelihoods import Softmax
from frcl.regularisers.protocol import under
from frcl.seeding import Streams, fork


def class_spec(y: Any) -> TargetSpec:
    """The labels of a classification task with one output a class; regression is refused."""
    values = as_values(y)
    if isinstance(values, Tensor) and values.is_floating_point():
        raise DataError("this method is for classification; the targets are floats. FRCL does regression.")
    return infer_spec(y, FRCLOptions(likelihood="softmax"), None)


def labels_again(specs: Sequence[TargetSpec], mark: str, x: Tensor, y: Any) -> Tensor:
    """The labels of the task that is open; any data but those it began with, which `mark` tells, are refused."""
    with contextlib.suppress(DataError):
        labels = specs[-1].encode(y, x.device, x.dtype)
        if mark == data_mark(x, labels):
            return labels
    raise TaskError(f"task {len(specs) - 1} is still open: finish it with fit() on the data it began with")


def initial_head(classes: int, features: int, streams: Streams, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A linear head [C, K] with small random weights and no bias (the last column)."""
    head = torch.randn(classes, features, generator=streams["posterior"], dtype=dtype, device=device)
    head = head / math.sqrt(features)
    head[:, -1] = 0.0
    return head


def point_prediction(logits: Tensor, spec: TargetSpec) -> Prediction:
    """A prediction without uncertainty of the functions: their variance is zero."""
    return sampled_prediction(logits[None], spec)


def sampled_prediction(logits: Tensor, spec: TargetSpec) -> Prediction:
    """The mean over draws of the network, logits [S, n, C]; the variance is that between the draws."""
    probs = logits.softmax(-1).mean(0)
    variance = logits.var(0, correction=0)
    return Prediction(logits.mean(0), variance, probs, spec.decode(probs.argmax(1)), spec.labels, None)


def gaussian_prediction(mean: Tensor, variance: Tensor, spec: TargetSpec, seed: int) -> Prediction:
    """From independent Gaussian functions: the mean of the softmax by Monte Carlo, the same noise at every call."""
    likelihood = Softmax()
    shape = likelihood.noise_shape(1, mean.shape[1], False)
    noise = torch.randn(shape, generator=fork(seed, "prediction"), dtype=mean.dtype).to(mean.device)
    probs = likelihood.probabilities(mean, variance, noise)
    return Prediction(mean, variance, probs, spec.decode(probs.argmax(1)), spec.labels, None)


def plain_terms(nll: Tensor, penalty: Tensor) -> Terms:
    """The terms of a network with a penalty: what FRCL calls "KL past" is the penalty."""
    return Terms(nll + penalty, -nll, nll.new_zeros(()), penalty)


def check_task(task: int | None, count: int) -> int:
    """The number of a task that has been learned; the latest for None."""
    if count == 0:
        raise TaskError("nothing has been learned yet; call fit() first")
    if task is None:
        return count - 1
    if not 0 <= task < count:
        raise TaskError(f"unknown task {task}; tasks 0 to {count - 1} have been learned")
    return task


def packed(
    options: TrainingOptions, streams: Streams, device: torch.device, meta: Mapping[str, Any], tensors: Params
) -> dict[str, Any]:
    """A state as every learner gives it: copies, with the random streams and the options."""
    named = {**tensors, **{f"streams/{name}": value for name, value in streams.state().items()}}
    return {
        "meta": {**meta, "options": asdict(options), "device": device.type},
        "tensors": {name: value.detach().clone() for name, value in named.items()},
    }


def unpacked(
    state: dict[str, Any], options: TrainingOptions, device: torch.device
) -> tuple[dict[str, Any], Params, Streams]:
    """What `packed` put together, tensors on the device; a state of other options is refused."""
    try:
        meta, tensors = state["meta"], state["tensors"]
        stored, kind = meta["options"], meta["device"]
    except (KeyError, TypeError) as error:
        raise CheckpointError("this is not a state made by state_dict()") from error
    if stored != asdict(options):
        raise CheckpointError("the state was made by a learner with other options")
    streams = Streams(options.seed, device)
    if kind == device.type:
        streams.restore(under(tensors, "streams/"))
    local = {name: value.to(device).clone() for name, value in tensors.items() if not name.startswith("streams/")}
    return meta, local, streams


def check_fits(net: nn.Module, stored: Params) -> None:
    """Refuse the weights of a network of another shape."""
    expected = {name: tuple(value.shape) for name, value in net.state_dict().items()}
    given = {name: tuple(value.shape) for name, value in stored.items()}
    for name in sorted(expected.keys() | given.keys()):
        if expected.get(name) != given.get(name):
            raise CheckpointError(
                f"the checkpoint does not fit this network: {name!r} is {given.get(name, 'absent')} in the "
                f"checkpoint and {expected.get(name, 'absent')} in the network"
            )
