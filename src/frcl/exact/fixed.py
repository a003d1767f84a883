"""Features that are never trained: random ones, made again from their seed, or those of a frozen network.

They are rounded to whole numbers, so that sums of their products are exact: free of order, and a part can be taken
away again.
"""

import math
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from frcl.errors import DataError, NumericalError, OptionError
from frcl.few import Array, array_of, is_few, is_finite, product, quiet
from frcl.seeding import fork

FeatureKind = Literal["auto", "dense", "image", "conv", "smooth"]
STEPS = 64  # a feature of the size of the root mean square of all features of its input becomes this number
LIMIT = 8 * STEPS  # larger ones are clipped
REGIONS = 3  # maps of a convolution are averaged over 3 × 3 regions
LEAST_SIDE = 3  # of an image: filters have this side at least
SIDE = 28  # smooth filters are for an image with this side, or for one that is enlarged to another
SMALL = 1e-12
AT_ONCE = 64  # images of which a CPU has the maps in its cache


class RandomFeatures(nn.Module):
    """Random features of an input, [n, count], in float64; no weight is trained, all of them come from the seed.

    dense   max(wᵀ(x, 1) / ‖(x, 1)‖, 0), w ~ N(0, I): a sample of the arc-cosine kernel of degree 1
    conv    |filter ∗ image|, averaged over 3 × 3 regions; filters are Gaussian with mean zero and norm one, their side
            is a quarter of the image's
    image   the same, which know nothing of the brightness, and the mean of each channel over each region, at most a
            quarter of all: c / rms c and b / (rms² b + rms² c)^½ for features c of filters and means b of an input
    smooth  the square roots of those of filters alone, which are smoothed by a Gaussian with a standard deviation of
            1/28 of the image's side: for drawings

    Images are [height, width] or [channels, height, width]; for filters a flat input must be a square image. By default
    inputs of these shapes with sides of at least 3 are images, and others are flat.
    """

    def __init__(self, input_shape: tuple[int, ...], count: int, kind: FeatureKind = "auto", seed: int = 0) -> None:
        super().__init__()
        if count < 1:
            raise OptionError(f"the number of features is at least 1, not {count}")
        self.count, self.shape = count, tuple(input_shape)
        images = len(self.shape) in (2, 3) and min(self.shape[-2:]) >= LEAST_SIDE
        self.kind = ("image" if images else "dense") if kind == "auto" else kind
        generator = fork(seed, f"features/{self.kind}")
        weights: Tensor
        if self.kind == "dense":
            weights = torch.randn(math.prod(self.shape) + 1, count, generator=generator, dtype=torch.float64)
        else:
            self.image = image_shape(self.shape)
            side, smooth = min(self.image[1:]), self.kind == "smooth"
            size, self.stride = max(LEAST_SIDE, round(side / 4)), max(1, side // (SIDE if smooth else 14))
            self.regions = min(REGIONS, (side - size) // self.stride + 1)
            levels = min(self.image[0] * self.regions**2, count // 4) if self.kind == "image" else 0
            self.filtered = count - levels  # features of filters; the others are of the brightness
            filters = math.ceil(self.filtered / self.regions**2)
            weights = torch.randn(filters, self.image[0], size, size, generator=generator, dtype=torch.float64)
            if smooth:
                weights = smoothed(weights, side / SIDE)
            weights = weights - weights.mean((1, 2, 3), keepdim=True)
            weights = weights / weights.flatten(1).norm(dim=1)[:, None, None, None]
        self.register_buffer("weights", weights, persistent=False)
        if self.kind == "image":
            for name, length in zip(("rows", "columns"), self.image[1:], strict=True):
                lines = torch.eye(length, dtype=torch.float64)
                self.register_buffer(name, F.adaptive_avg_pool1d(lines, self.regions), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Features of x [n, *shape]."""
        weights = self.get_buffer("weights")
        if self.kind == "dense":
            flat = F.pad(x.double().flatten(1), (0, 1), value=1.0)
            dense: Tensor = torch.relu(flat @ weights) / flat.norm(dim=1, keepdim=True)
            return dense
        return torch.cat([self._of_images(some) for some in x.split(AT_ONCE if x.device.type == "cpu" else len(x))])

    @quiet
    def whole(self, x: Tensor) -> Tensor:
        """The features of x as whole numbers, and the bias.

        Those of few flat inputs are rounded without their division by ‖(x, 1)‖: they are divided by their size anyway.
        """
        if self.kind == "dense" and is_few(x):
            weights, flat = array_of(self.get_buffer("weights")), array_of(x).reshape(len(x), -1)
            features = (product(flat.astype(weights.dtype), weights[:-1]) + weights[-1]).clip(0.0)
            if is_finite(features):
                return torch.from_numpy(_with_bias(features))
        return whole_features(self(x))

    def _of_images(self, x: Tensor) -> Tensor:
        images = x.double().reshape(-1, *self.image)
        maps = F.conv2d(images, self.get_buffer("weights"), stride=self.stride).abs()
        return self.of_regions(F.adaptive_avg_pool2d(maps, self.regions).flatten(1), images)

    def of_regions(self, means: Tensor, images: Tensor) -> Tensor:
        """The features from the means of filters over regions, [n, filters · regions²], and from the images."""
        chosen = means[:, : self.filtered]
        if self.kind != "image":
            return chosen.sqrt() if self.kind == "smooth" else chosen
        of_regions = self.get_buffer("rows").mT @ images @ self.get_buffer("columns")  # [n, channels, regions, regions]
        levels = of_regions.flatten(2).mT.flatten(1)[:, : self.count - self.filtered]
        contrast, level = (one.square().mean(1, keepdim=True) for one in (chosen, levels))
        return torch.cat([chosen / (contrast.sqrt() + SMALL), levels / ((contrast + level).sqrt() + SMALL)], 1)


def smoothed(images: Tensor, width: float) -> Tensor:
    """Images [n, channels, height, width], zero outside, under a Gaussian with this standard deviation in pixels."""
    reach = math.ceil(3 * width)
    line = (-0.5 * (torch.arange(-reach, reach + 1, dtype=images.dtype) / width).square()).exp()
    kernel = (line[:, None] * line)[None, None]
    return F.conv2d(images.flatten(0, 1)[:, None], kernel, padding=reach).view_as(images)


def image_shape(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """(channels, height, width) of inputs of this shape; flat ones are taken as square images of one channel."""
    side, whole = math.isqrt(math.prod(shape)), shape
    if len(shape) == 1 and side * side == shape[0]:
        whole = side, side
    if len(whole) == 2:
        whole = 1, *whole
    if len(whole) != 3 or min(whole[1:]) < LEAST_SIDE:
        raise DataError(
            "features of filters need images with sides of at least 3, or flat inputs that are square images; inputs "
            f'have shape {list(shape)}. Choose the kind "dense".'
        )
    return whole[0], whole[1], whole[2]


@quiet
def whole_features(features: Tensor) -> Tensor:
    """round(STEPS · φ / rms φ) and a last column of STEPS, [n, K + 1]: whole numbers in float64.

    The root mean square is over the features of one input, so that no other input has a part in it.
    """
    if is_few(features):
        few = array_of(features.double())
        if is_finite(few):
            return torch.from_numpy(_with_bias(few))
    if not bool(features.isfinite().all()):
        raise NumericalError("the fixed features of these inputs are not finite; scale the inputs")
    return rounded(features)


def rounded(features: Tensor) -> Tensor:
    """The same without a check of the values, as a program that is exported needs it."""
    return F.pad(whole_numbers(features.double()), (0, 1), value=float(STEPS))


def _with_bias(features: Array) -> Array:
    """The same of an array."""
    found = np.full((features.shape[0], features.shape[1] + 1), float(STEPS))
    found[:, :-1] = whole_numbers(features)
    return found


def whole_numbers(features: Any) -> Any:
    """round(STEPS · φ / rms φ) [n, K], of tensors or of arrays."""
    rms = ((features * features).mean(1) ** 0.5).clip(SMALL)[:, None]
    return (features / rms * STEPS).round().clip(-LIMIT, LIMIT)
