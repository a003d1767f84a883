"""Feature networks by name, sized for a benchmark's inputs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from torch import nn

from frcl.errors import OptionError
from frcl.features import MLP, ConvNet
from frcl.options import Options, option


@dataclass(frozen=True)
class NetworkOptions(Options):
    """Which feature network is used where none is brought."""

    kind: Literal["mlp", "conv"] = option("mlp", "fully connected, or convolutional")
    widths: tuple[int, ...] = option((100, 100), "mlp: hidden layers; conv: filters of each block")
    last: Literal["linear", "relu"] = option("linear", "mlp: whether the last layer is followed by ReLU")
    pooling: Literal["same", "valid"] = option("same", "conv: padding of the max pooling")

    @property
    def batched_on_cpu(self) -> bool:
        """Whether several networks trained as one program are faster on the CPU; convolutions are not."""
        return self.kind != "conv"


def build_network(options: NetworkOptions, input_shape: tuple[int, ...], seed: int) -> nn.Module:
    """The network for inputs of that shape, its weights from the seed."""
    if options.kind == "mlp":
        return MLP(math.prod(input_shape), options.widths, last=options.last, seed=seed)
    if len(input_shape) not in (2, 3) or input_shape[-1] != input_shape[-2]:
        raise OptionError(f'network kind "conv" needs square images; the inputs have shape {list(input_shape)}')
    channels = input_shape[0] if len(input_shape) == 3 else 1
    return ConvNet(input_shape[-1], channels=channels, filters=options.widths, pooling=options.pooling, seed=seed)
