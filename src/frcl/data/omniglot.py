"""Sequential Omniglot: one task for each of the 50 alphabets (Schwarz et al., 2018)."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from frcl.data.archives import read_archives
from frcl.data.augment import draw_moves, move_images
from frcl.data.download import Progress
from frcl.data.drawings import DRAWERS, SIDE, Drawings, read_compact, to_compact
from frcl.data.lookup import find, obtain, writable_folder
from frcl.data.options import OMNIGLOT as OMNIGLOT_OPTIONS
from frcl.data.options import BenchmarkOptions, OmniglotSplit
from frcl.data.registry import BENCHMARKS, BenchmarkSpec, Request, Source
from frcl.data.sources import OMNIGLOT, OmniglotFiles
from frcl.data.tasks import Split, Task, checked_number, first_tasks
from frcl.files import write_atomically
from frcl.seeding import fork

SHARES = (12, 4, 4)  # of the 20 drawings of a character: train, validation, test
TRAIN, VALIDATION, TEST = range(3)


def load_omniglot(
    data: Path | None = None, *, files: OmniglotFiles = OMNIGLOT, on_progress: Progress | None = None
) -> Drawings:
    """All drawings, from the compact file if there is one. Otherwise from the archives, and the file is written."""
    found = find(files.compact, data)
    if found.content is not None:
        return read_compact(found.content, str(found.path))
    drawings = read_archives(obtain(files.archives, data, on_progress=on_progress))
    folder = writable_folder(files.compact, data)
    if folder is not None:
        with contextlib.suppress(OSError):  # it would only make the next start faster
            write_atomically(folder / files.compact.name, to_compact(drawings))
    return drawings


@dataclass(frozen=True)
class Alphabet:
    """The drawings of one alphabet, sorted by character and drawer."""

    name: str
    images: Tensor  # [20 C, 28, 28] uint8, 1 = ink
    characters: Tensor  # [20 C] int64, 0 to C − 1
    drawers: Tensor  # [20 C] int64, 1 to 20


@dataclass(frozen=True)
class Alphabets:
    """A benchmark with one alphabet per task. Tasks are built, and their images augmented, on demand."""

    name: str
    alphabets: tuple[Alphabet, ...]
    options: BenchmarkOptions
    seed: int

    @property
    def input_shape(self) -> tuple[int, ...]:
        return (SIDE, SIDE)

    @property
    def task_names(self) -> tuple[str, ...]:
        return tuple(alphabet.name.replace("_", " ") for alphabet in self.alphabets)

    def __len__(self) -> int:
        return len(self.alphabets)

    def task(self, number: int) -> Task:
        alphabet = self.alphabets[checked_number(self, number)]
        parts = parts_of(alphabet, self.options.omniglot_split, self.seed)
        used = parts == TRAIN
        if self.options.train_on == "train+validation":
            used |= parts == VALIDATION
        train = augmented(alphabet, used, self.options, self.seed)
        return Task(
            self.task_names[number],
            train,
            plain(alphabet, parts == VALIDATION),
            plain(alphabet, parts == TEST),
            size=len(train) if self.options.size == "augmented" else int(used.sum()),
        )

    def test_split(self, number: int) -> Split:
        alphabet = self.alphabets[checked_number(self, number)]
        return plain(alphabet, parts_of(alphabet, self.options.omniglot_split, self.seed) == TEST)


def omniglot_tasks(
    drawings: Drawings, options: BenchmarkOptions, seed: int, device: torch.device | str = "cpu"
) -> Alphabets:
    """The alphabets in the order that the seed gives, or in alphabetical order."""
    count = len(drawings.alphabets)
    order = torch.arange(count)
    if options.alphabet_order == "seed":
        order = torch.randperm(count, generator=fork(seed, "omniglot/order"))
    chosen = first_tasks("omniglot", order.tolist(), options.tasks)
    return Alphabets("omniglot", tuple(_alphabet(drawings, which, device) for which in chosen), options, seed)


def parts_of(alphabet: Alphabet, how: OmniglotSplit, seed: int) -> Tensor:
    """[20 C]: TRAIN, VALIDATION or TEST for each drawing; 12, 4 and 4 drawings of each character.

    "drawer" takes drawers 1–12, 13–16 and 17–20; "stratified" lets the seed choose for each character.
    """
    parts = torch.repeat_interleave(torch.arange(3), torch.tensor(SHARES))  # of drawers in some order
    if how == "drawer":
        return parts.to(alphabet.drawers.device)[alphabet.drawers - 1]
    characters = len(alphabet.images) // DRAWERS
    generator = fork(seed, f"omniglot/split/{alphabet.name}")
    rank = torch.rand(characters, DRAWERS, generator=generator, dtype=torch.float64).argsort(dim=1)
    return parts[rank].flatten().to(alphabet.images.device)


def plain(alphabet: Alphabet, used: Tensor) -> Split:
    """The chosen drawings as they are."""
    return Split(alphabet.images[used].float(), alphabet.characters[used])


def augmented(alphabet: Alphabet, used: Tensor, options: BenchmarkOptions, seed: int) -> Split:
    """All versions of the chosen drawings; the versions of one drawing are adjacent.

    The versions of a drawing depend on the seed alone, not on the other drawings in use, nor on the device (up to
    rounding): the moves are drawn on the CPU for all drawings, and the images are made on the device.
    """
    generator = fork(seed, f"omniglot/augment/{alphabet.name}")
    count, rotation, shift = len(alphabet.images), options.rotation, options.shift
    moves = draw_moves(count, options.augment, rotation=rotation, shift=shift, generator=generator)
    chosen = plain(alphabet, used)
    x = move_images(chosen.x, moves[used.cpu()])
    return Split(x.flatten(0, 1), chosen.y.repeat_interleave(options.augment))


def _alphabet(drawings: Drawings, which: int, device: torch.device | str) -> Alphabet:
    own = drawings.alphabet == which
    paper = np.unpackbits(drawings.images[own], axis=1).reshape(-1, SIDE, SIDE)
    return Alphabet(
        str(drawings.alphabets[which]),
        torch.from_numpy(1 - paper).to(device),
        torch.from_numpy(drawings.character[own].astype(np.int64)).to(device),
        torch.from_numpy(drawings.drawer[own].astype(np.int64)).to(device),
    )


def _source(request: Request) -> Source:
    drawings = load_omniglot(request.data, on_progress=request.on_progress)
    return lambda seed: omniglot_tasks(drawings, request.options, seed, request.device)


BENCHMARKS.add(
    "omniglot",
    BenchmarkSpec("50 tasks, one for each alphabet, with 14 to 55 characters", _source, OMNIGLOT_OPTIONS, "omniglot"),
)
