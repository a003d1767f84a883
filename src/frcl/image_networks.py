"""Feature networks for colour images: FROMP's convolutional network and a ResNet-18 with GroupNorm."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from frcl.errors import OptionError
from frcl.features import initialise, uninitialised

CENTRE, SPREAD = 0.5, 0.25  # pixels in [0, 1] are centred and scaled to about unit variance


def _check_sizes(kind: str, **sizes: int) -> None:
    if min(sizes.values()) < 1:
        given = ", ".join(f"{name}={size}" for name, size in sizes.items())
        raise OptionError(f"{kind} needs positive sizes; got {given}")


class CifarNet(nn.Module):
    """FROMP's network for Split CIFAR: pairs of 3×3 convolutions, 2×2 max pooling after each pair, a dense layer.

    The first convolution of a pair is padded, the second is not (Zenke et al., 2017); ReLU after every layer. Takes
    [B, channels, size, size] with pixels in [0, 1] and gives `width` features.
    """

    def __init__(
        self, size: int = 32, *, channels: int = 3, filters: Sequence[int] = (32, 64), width: int = 512, seed: int = 0
    ) -> None:
        super().__init__()
        _check_sizes("CifarNet", size=size, channels=channels, width=width, filters=min(filters, default=0))
        self.outputs = width
        self.arguments = {"size": size, "channels": channels, "filters": list(filters), "width": width}
        layers: list[nn.Module] = []
        before, side = channels, size
        for after in filters:
            layers += [uninitialised(nn.Conv2d, before, after, 3, padding=1), nn.ReLU()]
            layers += [uninitialised(nn.Conv2d, after, after, 3), nn.ReLU(), nn.MaxPool2d(2)]
            before, side = after, (side - 2) // 2
        if side < 1:
            raise OptionError(f"CifarNet: {len(filters)} pairs of layers do not fit images of {size}×{size} pixels")
        dense = uninitialised(nn.Linear, before * side * side, width)
        self.layers = nn.Sequential(*layers, nn.Flatten(), dense, nn.ReLU())
        initialise(self, seed)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers((x - CENTRE) / SPREAD)
        return out


def _norm(width: int) -> nn.GroupNorm:
    """GroupNorm with 16 channels per group."""
    return nn.GroupNorm(max(1, width // 16), width)


class _Residual(nn.Module):
    """ReLU(x + N(W₂ ReLU(N(W₁ x)))), where x goes through a 1×1 convolution if the shape changes."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = uninitialised(nn.Conv2d, before, after, 3, stride=stride, padding=1, bias=False)
        self.norm1 = _norm(after)
        self.conv2 = uninitialised(nn.Conv2d, after, after, 3, padding=1, bias=False)
        self.norm2 = _norm(after)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or before != after:
            convolution = uninitialised(nn.Conv2d, before, after, 1, stride=stride, bias=False)
            self.shortcut = nn.Sequential(convolution, _norm(after))

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.shortcut(x) + self.norm2(self.conv2(h)))


class ResNet18(nn.Module):
    """ResNet-18 for small images (He et al., 2016) with GroupNorm in place of batch norm.

    The first convolution is 3×3 with stride 1 and there is no pooling after it. Takes [B, channels, height, width]
    with pixels in [0, 1], and gives 8 · `width` features, averaged over the image.
    """

    def __init__(self, *, channels: int = 3, width: int = 64, seed: int = 0) -> None:
        super().__init__()
        _check_sizes("ResNet18", channels=channels, width=width)
        self.outputs = 8 * width
        self.arguments = {"channels": channels, "width": width}
        stem = uninitialised(nn.Conv2d, channels, width, 3, padding=1, bias=False)
        blocks: list[nn.Module] = []
        before = width
        for stage in range(4):
            after = width * 2**stage
            blocks += [_Residual(before, after, 1 if stage == 0 else 2), _Residual(after, after, 1)]
            before = after
        self.layers = nn.Sequential(stem, _norm(width), nn.ReLU(), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        initialise(self, seed)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers((x - CENTRE) / SPREAD)
        return out
