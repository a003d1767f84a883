"""A bounded, uniform sample of the current task's examples, from which its inducing points are chosen."""

from __future__ import annotations

import torch
from torch import Tensor


class Window:
    """Reservoir sampling: after n examples each of them is held with probability min(1, capacity/n)."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.seen = 0
        self._x: Tensor | None = None
        self._y: Tensor | None = None

    def add(self, x: Tensor, y: Tensor, generator: torch.Generator) -> None:
        """Take in a minibatch (copied)."""
        if self._x is None or self._y is None:
            self._x = x.new_empty(self.capacity, *x.shape[1:])
            self._y = y.new_empty(self.capacity, *y.shape[1:])
        draws = torch.rand(len(x), generator=generator, device=generator.device, dtype=torch.float64).tolist()
        kept: dict[int, int] = {}  # by place: the last row that fell there
        for row, draw in enumerate(draws):
            place = self.seen if self.seen < self.capacity else int(draw * (self.seen + 1))
            if place < self.capacity:
                kept[place] = row
            self.seen += 1
        if kept:
            places, rows = (torch.tensor(list(part), device=x.device) for part in (kept, kept.values()))
            self._x[places] = x[rows]
            self._y[places] = y[rows]

    def __len__(self) -> int:
        return min(self.seen, self.capacity)

    def data(self) -> tuple[Tensor, Tensor]:
        """The examples held."""
        assert self._x is not None
        assert self._y is not None
        return self._x[: len(self)], self._y[: len(self)]

    @classmethod
    def restored(cls, capacity: int, seen: int, x: Tensor, y: Tensor) -> Window:
        """A window with the given content, `data()` of the one that was saved."""
        window = cls(capacity)
        window.seen = seen
        window._x = x.new_empty(capacity, *x.shape[1:])
        window._y = y.new_empty(capacity, *y.shape[1:])
        window._x[: len(x)] = x
        window._y[: len(y)] = y
        return window
