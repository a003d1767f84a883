"""Changes to the inputs of training minibatches: any function of inputs and a generator, or random crops and flips."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor

from frcl.errors import DataError, OptionError
from frcl.seeding import fork

Augment = Callable[[Tensor, torch.Generator], Tensor]


@runtime_checkable
class PureAugment(Protocol):
    """An `Augment` in two parts: random numbers drawn ahead, and a pure function of inputs and these numbers.

    Its steps can be recorded as a CUDA graph and stacked with those of other seeds, and stored examples that are
    replayed are changed by it too.
    """

    def __call__(self, x: Tensor, generator: torch.Generator, /) -> Tensor: ...

    def draws(self, shape: Sequence[int], generator: torch.Generator, /) -> Any:
        """A tree of tensors [*shape], what is random for that many inputs."""

    def apply(self, x: Tensor, draws: Any, /) -> Tensor:
        """The inputs x [B, ...], changed as draws [B] say."""


class CropDraws(NamedTuple):
    """Of each image: the first row and column of its crop in the padded image, and whether it is mirrored."""

    top: Tensor
    left: Tensor
    mirrored: Tensor


@dataclass(frozen=True)
class CropFlip:
    """A random crop of each image after padding with zeros on all sides, mirrored left to right in half the cases.

    Images are [B, channels, height, width], [B, height, width], or square ones that are flat, [B, side²].
    """

    padding: int = 4
    flip: bool = True

    def __post_init__(self) -> None:
        if type(self.padding) is not int or self.padding < 0 or type(self.flip) is not bool:
            raise OptionError(f"CropFlip(padding=4, flip=True) takes a whole number and a truth value; got {self}")

    def draws(self, shape: Sequence[int], generator: torch.Generator) -> CropDraws:
        def integers(most: int) -> Tensor:
            return torch.randint(most, tuple(shape), generator=generator, device=generator.device)

        return CropDraws(
            integers(2 * self.padding + 1), integers(2 * self.padding + 1), integers(2 if self.flip else 1)
        )

    def apply(self, x: Tensor, draws: CropDraws) -> Tensor:
        """out[i, r, c] = padded[top + r, left + c], or padded[top + r, left + width − 1 − c] where it is mirrored."""
        side = math.isqrt(x.shape[1])
        if x.ndim not in (3, 4) and (x.ndim != 2 or side**2 != x.shape[1]):
            raise DataError(
                "crops and flips need images, [n, channels, height, width], or flat and square; inputs are "
                f"{tuple(x.shape)}"
            )
        images = x if x.ndim == 4 else x.view(len(x), 1, side, side) if x.ndim == 2 else x[:, None]
        height, width = images.shape[2:]
        columns = torch.arange(width, device=x.device)
        columns = torch.where(draws.mirrored[:, None] == 1, width - 1 - columns, columns) + draws.left[:, None]
        rows = torch.arange(height, device=x.device) + draws.top[:, None]
        padded = F.pad(images, (self.padding,) * 4).permute(0, 2, 3, 1)
        image = torch.arange(len(x), device=x.device)[:, None, None]
        out = padded[image, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2).contiguous()
        return out.view(x.shape)

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        return self.apply(x, self.draws((len(x),), generator))


@dataclass(frozen=True)
class Augmentation:
    """An `Augment` in the training of one task: what is random depends on the seed, the task and the step alone."""

    function: Augment
    seed: int
    task: int

    @property
    def is_pure(self) -> bool:
        """Whether minibatches are changed by a pure function of numbers drawn ahead."""
        return isinstance(self.function, PureAugment)

    def draws(self, first: int, steps: int, batch: int, device: torch.device) -> Any:
        """Everything random of some steps, the first of which has this number; [steps, batch] each."""
        if not isinstance(self.function, PureAugment):
            return ()
        return self.function.draws((steps, batch), fork(self.seed, f"augment/{self.task}/{first}", device))

    def __call__(self, x: Tensor, draws: Any, step: int) -> Tensor:
        """A minibatch as it is learned from."""
        if isinstance(self.function, PureAugment):
            return self.function.apply(x, draws)
        found: object = self.function(x, fork(self.seed, f"augment/{self.task}/{step}", x.device))
        if not isinstance(found, Tensor) or found.shape != x.shape or found.dtype != x.dtype:
            given = f"{tuple(found.shape)} {found.dtype}" if isinstance(found, Tensor) else type(found).__name__
            raise DataError(f"augment gave {given} for a minibatch {tuple(x.shape)} {x.dtype}; expected the same shape")
        return found
