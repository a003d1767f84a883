"""Sequential Omniglot: one task for each of the 50 alphabets (Schwarz et al., 2018), with augmented images."""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from frcl.data.drawings import DRAWERS, SIDE, Drawings, read_compact
from frcl.data.files import OMNIGLOT, DataSet
from frcl.data.options import OMNIGLOT as OMNIGLOT_OPTIONS
from frcl.data.options import BenchmarkOptions, OmniglotSplit
from frcl.data.registry import BENCHMARKS, BenchmarkSpec, Request, Source
from frcl.data.tasks import BuiltTasks, Device, Progress, Split, Task, first_tasks
from frcl.seeding import fork

SHARES = (12, 4, 4)  # of the 20 drawings of a character: train, validation, test
TRAIN, VALIDATION, TEST = range(3)


def load_omniglot(data: Path | None = None, files: DataSet = OMNIGLOT, on_progress: Progress | None = None) -> Drawings:
    """All drawings, from the compact file if there is one. Otherwise from the archives, and the file is written."""
    ((name, content),) = files.contents(data, on_progress=on_progress).items()
    return read_compact(content, name)


@dataclass(frozen=True)
class Alphabet:
    """The drawings of one alphabet, sorted by character and drawer."""

    name: str
    images: Tensor  # [20 C, 28, 28] uint8, 1 = ink
    labels: Tensor  # [20 C] int64, of the characters: no other alphabet has these

    def plain(self, used: Tensor) -> Split:
        return Split(self.images[used].float(), self.labels[used])

    def augmented(self, used: Tensor, options: BenchmarkOptions, seed: int) -> Split:
        """All versions of the chosen drawings; the versions of one drawing are adjacent."""
        # they depend on the seed alone, up to rounding: moves are drawn on the CPU, for drawings not in use as well
        limits = {"rotation": options.rotation, "shift": options.shift}
        generator = fork(seed, f"omniglot/augment/{self.name}")
        moves = draw_moves(len(self.images), options.augment, **limits, generator=generator)
        x = move_images(self.images[used].float(), moves[used.cpu()])
        return Split(x.flatten(0, 1), self.labels[used].repeat_interleave(options.augment))


def alphabets_of(drawings: Drawings, options: BenchmarkOptions, seed: int, device: Device = "cpu") -> list[Alphabet]:
    """The alphabets in the order that the seed gives, or in alphabetical order; labels number all their characters."""
    order = torch.arange(len(drawings.alphabets))
    if options.alphabet_order == "seed":
        order = torch.randperm(len(order), generator=fork(seed, "omniglot/order"))
    alphabets = []
    for which in first_tasks("omniglot", order.tolist(), options.tasks):
        own = np.flatnonzero(drawings.alphabet == which)  # sorted, all drawings of a character in a row
        ink = 1 - np.unpackbits(drawings.images[own], axis=1).reshape(-1, SIDE, SIDE)
        images, labels = (torch.from_numpy(array).to(device) for array in (ink, own // DRAWERS))
        alphabets.append(Alphabet(str(drawings.alphabets[which]), images, labels))
    return alphabets


def omniglot_tasks(drawings: Drawings, options: BenchmarkOptions, seed: int, device: Device = "cpu") -> BuiltTasks:
    """One alphabet per task. Tasks are built, and their images augmented, on demand."""
    alphabets = alphabets_of(drawings, options, seed, device)
    names = tuple(alphabet.name.replace("_", " ") for alphabet in alphabets)

    def build(number: int) -> Task:
        alphabet = alphabets[number]
        parts = parts_of(alphabet, options.omniglot_split, seed)
        used = parts != TEST if options.train_on == "train+validation" else parts == TRAIN
        train = alphabet.augmented(used, options, seed)
        size = len(train) if options.size == "augmented" else int(used.sum())
        return Task(names[number], train, alphabet.plain(parts == VALIDATION), alphabet.plain(parts == TEST), size)

    def test_of(number: int) -> Split:
        return alphabets[number].plain(parts_of(alphabets[number], options.omniglot_split, seed) == TEST)

    return BuiltTasks("omniglot", names, build, test_of)


def parts_of(alphabet: Alphabet, how: OmniglotSplit, seed: int) -> Tensor:
    """[20 C]: TRAIN, VALIDATION or TEST for each drawing; of a character 12, 4 and 4, by drawer or by the seed."""
    parts = torch.repeat_interleave(torch.arange(3), torch.tensor(SHARES))  # of drawers in some order
    characters = len(alphabet.images) // DRAWERS
    if how == "drawer":
        return parts.repeat(characters).to(alphabet.images.device)
    generator = fork(seed, f"omniglot/split/{alphabet.name}")
    rank = torch.rand(characters, DRAWERS, generator=generator, dtype=torch.float64).argsort(dim=1)
    return parts[rank].flatten().to(alphabet.images.device)


def draw_moves(images: int, versions: int, *, rotation: float, shift: float, generator: torch.Generator) -> Tensor:
    """The move of each version of each image: [images, versions, 3], an angle in radians and (right, down) in
    pixels, uniform in ±rotation (degrees) and ±shift. Version 0 is not moved."""
    uniform = 2 * torch.rand(images, versions, 3, generator=generator, dtype=torch.float64) - 1
    uniform[:, 0] = 0.0
    return uniform * torch.tensor([math.radians(rotation), shift, shift], dtype=torch.float64)


def move_images(images: Tensor, moves: Tensor) -> Tensor:
    """All versions [n, versions, H, H] of square images [n, H, H] in [0, 1]; version 0 is the image, bit for bit."""
    (n, side, _), versions = images.shape, moves.shape[1]
    if versions == 1:
        return images[:, None]
    # rotated clockwise about the centre by the angle, then shifted, with bilinear interpolation and zeros outside
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


def _source(request: Request) -> Source:
    drawings = load_omniglot(request.data, on_progress=request.on_progress)
    return lambda seed: omniglot_tasks(drawings, request.options, seed, request.device)


TEXT = "50 tasks, one per alphabet, with 14 to 55 characters"
BENCHMARKS.add("omniglot", BenchmarkSpec(TEXT, _source, OMNIGLOT_OPTIONS, ("omniglot",)))
