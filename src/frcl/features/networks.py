"""The feature networks of the paper: fully connected and convolutional."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from frcl.errors import OptionError
from frcl.seeding import fork


def initialise(net: nn.Module, seed: int) -> None:
    """He-uniform weights and zero biases from the named stream of the seed, in order of the layers."""
    generator = fork(seed, "network")
    for layer in net.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            nn.init.kaiming_uniform_(layer.weight, nonlinearity="relu", generator=generator)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


class MLP(nn.Module):
    """Fully connected network with ReLU; inputs of any shape are flattened.

    `last` says whether the last layer, the features, is passed through ReLU ("relu") or not ("linear").
    The weights come from `seed` alone, not from the global random state.
    """

    def __init__(
        self,
        inputs: int,
        widths: Sequence[int] = (256, 256),
        *,
        last: Literal["linear", "relu"] = "linear",
        seed: int = 0,
    ) -> None:
        super().__init__()
        if inputs < 1 or not widths or min(widths) < 1:
            raise OptionError(f"MLP needs positive sizes; got inputs={inputs}, widths={tuple(widths)}")
        if last not in ("linear", "relu"):
            raise OptionError(f'MLP: last is "linear" or "relu", not {last!r}')
        sizes = [inputs, *widths]
        layers: list[nn.Module] = [nn.Flatten()]
        for fan_in, fan_out in itertools.pairwise(sizes):
            layers += [nn.utils.skip_init(nn.Linear, fan_in, fan_out), nn.ReLU()]
        if last == "linear":
            layers.pop()
        self.layers = nn.Sequential(*layers)
        self.made = layers
        initialise(self, seed)

    def forward(self, x: Tensor) -> Tensor:
        """The layers in turn. Adding the bias separately is faster than `nn.Linear` where seeds are batched."""
        if not _as_made(self):
            out: Tensor = self.layers(x)
            return out
        h = x.flatten(1)
        for layer in list(self.layers)[1:]:
            h = nn.functional.linear(h, layer.weight) + layer.bias if isinstance(layer, nn.Linear) else layer(h)
        return h


def _as_made(net: MLP | ConvNet) -> bool:
    """Whether no layer was replaced after construction and none has a forward hook."""
    layers = list(net.layers)
    return layers == net.made and not any(layer._forward_hooks or layer._forward_pre_hooks for layer in layers)


def _pool(size: int, padding: Literal["valid", "same"]) -> tuple[nn.Module, int]:
    """Max pooling 3×3 with stride 2 and the size of the map after it.

    "valid" drops incomplete windows; a map smaller than the window is pooled whole, since four
    such blocks do not fit 28×28 (28 → 13 → 6 → 2 → 1). "same" pads (28 → 14 → 7 → 4 → 2): on both sides for an odd
    size, and on the far side only for an even one (`ceil_mode`).
    """
    if padding == "valid":
        window = min(3, size)
        return nn.MaxPool2d(window, stride=2), (size - window) // 2 + 1
    return nn.MaxPool2d(3, stride=2, padding=size % 2, ceil_mode=size % 2 == 0), math.ceil(size / 2)


class ConvNet(nn.Module):
    """The paper's Omniglot network: blocks of 3×3 convolution (padding "same"), ReLU and 3×3/2 max pooling.

    Takes [B, size, size] or [B, channels, size, size] and returns the flattened last map. `outputs` is the number
    of features.
    """

    def __init__(
        self,
        size: int = 28,
        *,
        channels: int = 1,
        filters: Sequence[int] = (64, 64, 64, 64),
        pooling: Literal["valid", "same"] = "same",
        seed: int = 0,
    ) -> None:
        super().__init__()
        if size < 1 or channels < 1 or not filters or min(filters) < 1:
            raise OptionError(
                f"ConvNet needs positive sizes; got size={size}, channels={channels}, filters={tuple(filters)}"
            )
        if pooling not in ("valid", "same"):
            raise OptionError(f'ConvNet: pooling is "valid" or "same", not {pooling!r}')
        self.channels, self.size = channels, size
        layers: list[nn.Module] = []
        before = channels
        for width in filters:
            pool, size = _pool(size, pooling)
            layers += [nn.utils.skip_init(nn.Conv2d, before, width, 3, padding=1), nn.ReLU(), pool]
            before = width
        self.layers = nn.Sequential(*layers, nn.Flatten())
        self.made = list(self.layers)
        self.outputs = before * size * size
        initialise(self, seed)

    def forward(self, x: Tensor) -> Tensor:
        """The layers in turn, but bias and ReLU after the pooling, on fewer entries: max(h) + b = max(h + b)."""
        h = x.reshape(-1, self.channels, self.size, self.size)
        if not _as_made(self):
            out: Tensor = self.layers(h)
            return out
        for i in range(0, len(self.layers) - 1, 3):
            convolution, pool = self.layers[i], self.layers[i + 2]
            assert isinstance(convolution, nn.Conv2d)
            assert convolution.bias is not None
            h = pool(nn.functional.conv2d(h, convolution.weight, padding=1))
            h = _channels_last(torch.relu(h + convolution.bias[:, None, None]))
        return h.flatten(1)


def _channels_last(h: Tensor) -> Tensor:
    """The same map in channels-last memory format on CUDA, where convolutions are faster in it."""
    return h.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2) if h.is_cuda else h
