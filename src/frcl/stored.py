"""Inputs as they are stored: exactly, and in one byte per number where they have few different values."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from frcl.trees import total_bytes

LEVELS = 256  # different values that one byte can number


class StoredInputs(NamedTuple):
    """Inputs [M, ...] as they are; or, with a table, their indices in it as uint8 and the table of their values.

    Images of 8 bits have at most 256 different values, whatever they were divided by or shifted to.
    """

    values: Tensor
    table: Tensor | None = None

    @property
    def inputs(self) -> Tensor:
        """The inputs as they were given."""
        return self.values if self.table is None else self.table[self.values.long()]

    @property
    def kept(self) -> list[Tensor]:
        """The tensors that are stored."""
        return [self.values] if self.table is None else [self.values, self.table]

    @property
    def is_sound(self) -> bool:
        """Whether the indices are those of a sorted table."""
        if self.table is None:
            return True
        indices, levels = self.values, self.table.numel()
        fits = indices.dtype == torch.uint8 and indices.numel() > 0 and self.table.shape == (levels,)
        return fits and bool((self.table.diff() > 0).all()) and int(indices.max()) < levels <= LEVELS


def stored_inputs(x: Tensor) -> StoredInputs:
    """A copy of inputs in the smaller of the two ways."""
    if x.element_size() > 1 and not x.is_complex():
        table, index = x.detach().unique(return_inverse=True)
        small = StoredInputs(index.to(torch.uint8), table)
        if len(table) <= LEVELS and total_bytes(small) < total_bytes(x):
            return small
    return StoredInputs(x.detach().clone())
