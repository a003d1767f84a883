"""Augmentation by rotation and shift: pure functions, with the random numbers drawn first and passed in."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F


def draw_moves(images: int, versions: int, *, rotation: float, shift: float, generator: torch.Generator) -> Tensor:
    """The move of each version of each image: [images, versions, 3], an angle in radians and (right, down) in
    pixels, uniform in ±rotation (degrees) and ±shift. Version 0 is not moved."""
    uniform = 2 * torch.rand(images, versions, 3, generator=generator, dtype=torch.float64) - 1
    uniform[:, 0] = 0.0
    return uniform * torch.tensor([math.radians(rotation), shift, shift], dtype=torch.float64)


def move_images(images: Tensor, moves: Tensor) -> Tensor:
    """All versions [n, versions, H, H] of square images [n, H, H] in [0, 1].

    A version is the image rotated clockwise about its centre by the angle, then shifted, with bilinear interpolation
    and zeros outside of the image. Version 0 is the image itself, bit for bit.
    """
    n, side, _ = images.shape
    versions = moves.shape[1]
    if versions == 1:
        return images[:, None]
    angle, right, down = moves[:, 1:].to(images.device).flatten(0, 1).unbind(-1)
    cos, sin = angle.cos(), angle.sin()
    # grid_sample takes the source of each pixel: source = Rᵀ (target − shift), in units of half a side
    x, y = 2 * right / side, 2 * down / side
    rows = [[cos, sin, -(cos * x + sin * y)], [-sin, cos, sin * x - cos * y]]
    theta = torch.stack([torch.stack(row, dim=-1) for row in rows], dim=1).to(images.dtype)
    source = images[:, None].expand(n, versions - 1, side, side).reshape(-1, 1, side, side)
    grid = F.affine_grid(theta, list(source.shape), align_corners=False)
    moved = F.grid_sample(source, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
    return torch.cat([images[:, None], moved.clamp(0, 1).view(n, versions - 1, side, side)], dim=1)
