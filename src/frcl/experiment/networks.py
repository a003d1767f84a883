"""Feature networks by name, sized for a benchmark's inputs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from torch import nn

from frcl.errors import OptionError
from frcl.features import MLP, ConvNet


@dataclass(frozen=True)
class NetworkOptions:
    """Which feature network is used where none is brought."""

    kind: Literal["mlp", "conv"] = "mlp"
    widths: tuple[int, ...] = (100, 100)  # mlp: hidden layers; conv: filters of each block
    last: Literal["linear", "relu"] = "linear"  # mlp: ReLU after the last layer or not
    pooling: Literal["same", "valid"] = "same"  # conv: padding of the max pooling

    @property
    def batched_on_cpu(self) -> bool:
        """Whether several networks trained as one program are faster on the CPU; convolutions are not."""
        return self.kind != "conv"

    def __post_init__(self) -> None:
        choices = {"kind": ("mlp", "conv"), "last": ("linear", "relu"), "pooling": ("same", "valid")}
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise OptionError(f"{name}={getattr(self, name)!r} is unknown; choose one of {', '.join(allowed)}")
        if not self.widths or any(not isinstance(width, int) or width < 1 for width in self.widths):
            raise OptionError(f"widths must be whole numbers of at least 1, not {self.widths!r}")


def build_network(options: NetworkOptions, input_shape: tuple[int, ...], seed: int) -> nn.Module:
    """The network for inputs of that shape, its weights from the seed."""
    if options.kind == "mlp":
        return MLP(math.prod(input_shape), options.widths, last=options.last, seed=seed)
    if len(input_shape) not in (2, 3) or input_shape[-1] != input_shape[-2]:
        raise OptionError(f'network kind "conv" needs square images; the inputs have shape {list(input_shape)}')
    channels = input_shape[0] if len(input_shape) == 3 else 1
    return ConvNet(input_shape[-1], channels=channels, filters=options.widths, pooling=options.pooling, seed=seed)
