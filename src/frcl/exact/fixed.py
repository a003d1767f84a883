"""Features that are never trained: random ones, made again from their seed, or those of a frozen network.

They are rounded to whole numbers, so that sums of their products are exact: free of order, and a part can be taken
away again.
"""

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from frcl.errors import DataError, NumericalError, OptionError
from frcl.seeding import fork

FeatureKind = Literal["auto", "dense", "conv", "smooth"]
STEPS = 64  # a feature of the size of the root mean square of all features of its input becomes this number
LIMIT = 8 * STEPS  # larger ones are clipped
REGIONS = 3  # maps of a convolution are averaged over 3 × 3 regions
SIDE = 28  # smooth filters are for an image with this side, or for one that is enlarged to another
SMALL = 1e-12


class RandomFeatures(nn.Module):
    """Random features of an input, [n, count], in float64; no weight is trained, all of them come from the seed.

    dense   max(wᵀ(x, 1) / ‖(x, 1)‖, 0), w ~ N(0, I): a sample of the arc-cosine kernel of degree 1
    conv    |filter ∗ image|, averaged over 3 × 3 regions; filters are Gaussian with mean zero and norm one, their side
            is a quarter of the image's
    smooth  the square roots of these, with filters that are smoothed by a Gaussian with a standard deviation of 1/28 of
            the image's side: for drawings

    Images are [height, width] or [channels, height, width]; for filters a flat input must be a square image.
    """

    def __init__(self, input_shape: tuple[int, ...], count: int, kind: FeatureKind = "auto", seed: int = 0) -> None:
        super().__init__()
        if count < 1:
            raise OptionError(f"the number of features is at least 1, not {count}")
        self.count, self.shape = count, tuple(input_shape)
        self.kind = ("conv" if len(self.shape) in (2, 3) else "dense") if kind == "auto" else kind
        generator = fork(seed, f"features/{self.kind}")
        weights: Tensor
        if self.kind == "dense":
            weights = torch.randn(math.prod(self.shape) + 1, count, generator=generator, dtype=torch.float64)
        else:
            self.image = image_shape(self.shape)
            side, smooth = min(self.image[1:]), self.kind == "smooth"
            size, self.stride = min(side, max(3, round(side / 4))), max(1, side // (SIDE if smooth else 14))
            self.regions = min(REGIONS, (side - size) // self.stride + 1)
            filters = math.ceil(count / self.regions**2)
            weights = torch.randn(filters, self.image[0], size, size, generator=generator, dtype=torch.float64)
            if smooth:
                weights = smoothed(weights, side / SIDE)
            weights = weights - weights.mean((1, 2, 3), keepdim=True)
            weights = weights / weights.flatten(1).norm(dim=1)[:, None, None, None]
        self.register_buffer("weights", weights, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Features of x [n, *shape]."""
        weights = self.get_buffer("weights")
        if self.kind == "dense":
            flat = F.pad(x.double().flatten(1), (0, 1), value=1.0)
            dense: Tensor = torch.relu(flat @ weights) / flat.norm(dim=1, keepdim=True)
            return dense
        maps = F.conv2d(x.double().reshape(-1, *self.image), weights, stride=self.stride).abs()
        return self.of_regions(F.adaptive_avg_pool2d(maps, self.regions).flatten(1))

    def of_regions(self, means: Tensor) -> Tensor:
        """The features from the means over regions, [n, filters · regions²]."""
        chosen = means[:, : self.count]
        return chosen.sqrt() if self.kind == "smooth" else chosen


def smoothed(images: Tensor, width: float) -> Tensor:
    """Images [n, channels, height, width], zero outside, under a Gaussian with this standard deviation in pixels."""
    reach = math.ceil(3 * width)
    line = (-0.5 * (torch.arange(-reach, reach + 1, dtype=images.dtype) / width).square()).exp()
    kernel = (line[:, None] * line)[None, None]
    return F.conv2d(images.flatten(0, 1)[:, None], kernel, padding=reach).view_as(images)


def image_shape(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """(channels, height, width) of inputs of this shape; flat ones are taken as square images of one channel."""
    if len(shape) == 3:
        return shape[0], shape[1], shape[2]
    if len(shape) == 2:
        return 1, shape[0], shape[1]
    side = math.isqrt(math.prod(shape))
    if len(shape) != 1 or side * side != shape[0] or side < 3:
        raise DataError(
            f"features of filters need images, or flat inputs that are square images; inputs have shape {list(shape)}. "
            'Use kind="dense".'
        )
    return 1, side, side


def whole_features(features: Tensor) -> Tensor:
    """round(STEPS · φ / rms φ) and a last column of STEPS, [n, K + 1]: whole numbers in float64.

    The root mean square is over the features of one input, so that no other input has a part in it.
    """
    if not bool(features.isfinite().all()):
        raise NumericalError("the fixed features of these inputs are not finite; scale the inputs")
    return rounded(features)


def rounded(features: Tensor) -> Tensor:
    """The same without a check of the values, as a program that is exported needs it."""
    features = features.double()
    rms = features.square().mean(1, keepdim=True).sqrt().clamp_min(SMALL)
    return F.pad((features / rms * STEPS).round().clamp(-LIMIT, LIMIT), (0, 1), value=float(STEPS))
