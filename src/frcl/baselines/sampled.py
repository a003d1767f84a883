"""What the methods with a mean-field Gaussian over the weights share: its parts, and predictions by networks drawn."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from frcl.baselines.common import Baseline, Saved, sampled_prediction
from frcl.baselines.options import SFSVIOptions, VCLOptions
from frcl.checks import check_like, check_weights, expect
from frcl.engine.program import Streams
from frcl.features import is_stackable, trained_parts
from frcl.learners.types import Prediction
from frcl.likelihoods import Likelihood
from frcl.regularisers.fisher import HEAD
from frcl.regularisers.mean_field import MeanField, drawn, standard_draws
from frcl.regularisers.protocol import Kept
from frcl.seeding import fork
from frcl.trees import Params

CHUNK, DRAWS = 1024, 10  # inputs, and drawn networks that they pass through, at once
STEPS_AHEAD = 10  # steps whose draws are made at once: `samples` numbers for each weight and step
Network = Callable[[Params, Tensor], Tensor]  # weights, inputs [n, ...] → functions [n, C]


def sampled_functions(q: MeanField, network: Network, net: nn.Module, x: Tensor, seed: int, count: int) -> Tensor:
    """Functions [count, n, C] of networks drawn from q, the same at every call and on every device.

    `net` is the module behind `network`.
    """
    generator, parts = fork(seed, "prediction"), []
    for first in range(0, count, DRAWS):
        each = [standard_draws(q.mean, 1, generator) for _ in range(min(count - first, DRAWS))]
        draws = {name: torch.cat([one[name] for one in each]).to(x.device) for name in q.mean}
        parts.append(_functions(network, net, drawn(q, draws), x))
    return torch.cat(parts)


def _functions(network: Network, net: nn.Module, weights: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """[S, n, C] of S networks; as one where that is faster and the network allows it."""
    if is_stackable(net):
        with contextlib.suppress(RuntimeError):  # a network that cannot be batched
            return torch.cat([torch.vmap(network, (0, None))(dict(weights), rows) for rows in x.split(CHUNK)], 1)
    count = len(next(iter(weights.values())))
    each = [{name: value[i] for name, value in weights.items()} for i in range(count)]
    return torch.stack([torch.cat([network(one, rows) for rows in x.split(CHUNK)]) for one in each])


class Head(NamedTuple):
    """q of the head of a task, [C, K] each."""

    mean: Tensor
    log_std: Tensor


@dataclass
class Gaussians:
    """q without the means of the shared weights, which the network has."""

    log_std: Params = field(default_factory=dict)
    heads: list[Head] = field(default_factory=list)


O = TypeVar("O", bound=VCLOptions | SFSVIOptions)  # noqa: E741
Own = TypeVar("Own", bound=Gaussians)


class MeanFieldMethod(Baseline[O, Own]):
    """A method with a Gaussian q over the shared weights and the heads."""

    def _network(self, weights: Params, x: Tensor) -> Tensor:
        """Functions [B, C] of one network drawn from q, with the head that is among its weights."""
        theta = {name: value for name, value in weights.items() if name != HEAD}
        return self.features(theta, x) @ weights[HEAD].mT

    def _with_head(self, head: Head) -> MeanField:
        """q of the shared weights and of a head."""
        shared = trained_parts(self.net)
        std = {name: self._own.log_std[name] for name in shared}
        return MeanField({**shared, HEAD: head.mean}, {**std, HEAD: head.log_std})

    def _draws(self, like: Params, steps: int, streams: Streams) -> Params:
        """The draws of the networks that some steps take from q, [steps, samples, ...]."""
        draws = standard_draws(like, steps * self.options.samples, streams["likelihood"])
        return {name: value.unflatten(0, (steps, self.options.samples)) for name, value in draws.items()}

    def _drawn(self, q: MeanField, task: int, x: Tensor) -> Prediction:
        """The mean over networks drawn from q."""
        options = self.options
        f = sampled_functions(q, self._network, self.net, x, options.seed, options.predict_samples)
        return sampled_prediction(f, self._likelihoods[task])

    def _check_heads(self, saved: Saved, likelihoods: Sequence[Likelihood], K: int) -> None:
        """Refuse standard deviations of other weights, and other heads than one of each of these likelihoods."""
        own = saved.own
        expect(saved.input_shape is None or own.log_std.keys() >= set(saved.trained), "standard deviations are missing")
        check_weights(own.log_std, dict(self.net.named_parameters()), own.log_std, "the standard deviations")
        for head, likelihood in zip(own.heads, likelihoods, strict=True):
            for part in head:
                check_like(part, (likelihood.functions, K), self.dtype, "a head")

    def _kept(self) -> Kept:
        """q, whose means are the network itself."""
        own, shared = self._own, trained_parts(self.net)
        return {"posterior": [*shared.values(), *own.log_std.values(), *(part for head in own.heads for part in head)]}
