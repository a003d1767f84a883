"""Predictions of a mean-field Gaussian over the weights of a network, by networks drawn from it."""

import contextlib
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from frcl.features import is_stackable
from frcl.regularisers.mean_field import MeanField, drawn, standard_noise
from frcl.seeding import fork
from frcl.trees import Params

CHUNK, DRAWS = 1024, 10  # inputs, and drawn networks that they pass through, at once
Network = Callable[[Params, Tensor], Tensor]  # weights, inputs [n, ...] → functions [n, C]


def sampled_functions(q: MeanField, network: Network, net: nn.Module, x: Tensor, seed: int, count: int) -> Tensor:
    """Functions [count, n, C] of networks drawn from q, the same at every call and on every device.

    `net` is the module behind `network`.
    """
    generator, parts = fork(seed, "prediction"), []
    for first in range(0, count, DRAWS):
        each = [standard_noise(q.mean, 1, generator) for _ in range(min(count - first, DRAWS))]
        noise = {name: torch.cat([one[name] for one in each]).to(x.device) for name in q.mean}
        parts.append(_functions(network, net, drawn(q, noise), x))
    return torch.cat(parts)


def _functions(network: Network, net: nn.Module, weights: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """[S, n, C] of S networks; as one where that is faster and the network allows it."""
    if is_stackable(net):
        with contextlib.suppress(RuntimeError):  # a network that cannot be batched
            return torch.cat([torch.vmap(network, (0, None))(dict(weights), rows) for rows in x.split(CHUNK)], 1)
    count = len(next(iter(weights.values())))
    each = [{name: value[i] for name, value in weights.items()} for i in range(count)]
    return torch.stack([torch.cat([network(one, rows) for rows in x.split(CHUNK)]) for one in each])
