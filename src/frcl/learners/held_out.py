"""Which examples of a task are held out of its training."""

from __future__ import annotations

import torch
from torch import Tensor


def held_rows(y: Tensor, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """`count` random rows of examples with classes y to hold out, and the others, which contain every class."""
    rows = torch.randperm(len(y), generator=generator).to(y.device)
    held, learned = rows[:count], rows[count:]
    missing = torch.isin(y[held], y[learned], invert=True)
    if bool(missing.any()):
        back = [int((y[held] == label).nonzero()[0, 0]) for label in y[held][missing].unique()]
        stays = torch.ones(count, dtype=torch.bool, device=y.device)
        stays[back] = False
        held, learned = held[stays], torch.cat([learned, held[~stays]])
    return held, learned.sort().values
