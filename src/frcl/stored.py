"""Inputs as they are stored: exactly, in one byte per number where they have few different values, or in two."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from frcl.trees import total_bytes

LEVELS = 256  # different values that one byte can number


class StoredInputs(NamedTuple):
    """Inputs [M, ...] as they are; or, with a table, their indices in it as uint8 and the table of their values.

    Images of 8 bits have at most 256 different values, whatever they were divided by or shifted to. Values of float16
    with an empty table are inputs of its type.
    """

    values: Tensor
    table: Tensor | None = None

    @property
    def inputs(self) -> Tensor:
        """The inputs as they were given."""
        if self.table is None:
            return self.values
        is_half = self.values.dtype == torch.float16
        return self.values.to(self.table.dtype) if is_half else self.table[self.values.long()]

    @property
    def kept(self) -> list[Tensor]:
        """The tensors that are stored."""
        return [self.values] if self.table is None else [self.values, self.table]

    @property
    def is_sound(self) -> bool:
        """Whether the indices are those of a sorted table, or values of float16 have none."""
        if self.table is None:
            return True
        if self.values.dtype == torch.float16:
            return self.table.shape == (0,) and self.table.is_floating_point() and self.table.element_size() > 2
        indices, levels = self.values, self.table.numel()
        fits = indices.dtype == torch.uint8 and indices.numel() > 0 and self.table.shape == (levels,)
        return fits and bool((self.table.diff() > 0).all()) and int(indices.max()) < levels <= LEVELS


def stored_inputs(x: Tensor) -> StoredInputs:
    """A copy of inputs in the smallest of the ways that are exact."""
    x = x.detach()
    ways = [StoredInputs(x)]
    if x.is_floating_point() and x.element_size() > 2 and bool((x.half().to(x.dtype) == x).all()):
        ways.append(StoredInputs(x.half(), x.new_empty(0)))
    if x.element_size() > 1 and not x.is_complex():
        table, index = x.unique(return_inverse=True)
        if len(table) <= LEVELS:
            ways.append(StoredInputs(index.to(torch.uint8), table))
    best = min(ways, key=total_bytes)
    return StoredInputs(x.clone()) if best.table is None else best
