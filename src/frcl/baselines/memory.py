"""Examples that are kept of a stream: which ones, and minibatches of them.

A reservoir of M examples is a uniform sample of all n examples seen (Vitter, 1985): example n + 1 takes a place drawn
from 0 … n, and is dropped where there is no such place. The greedy choice of GDumb (Prabhu et al., 2020) takes whatever
keeps the classes equal.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from frcl.summary import StoredInputs, stored_inputs
from frcl.trees import tree_map


class Memory(NamedTuple):
    """m examples with their rows of the one head and their tasks, and what the head said of them where that is kept.

    While a task is open `x` has no table, so that places can be written.
    """

    x: StoredInputs  # [m, ...]
    row: Tensor  # [m] int64, the row of the head that belongs to the label
    task: Tensor  # [m] int64
    logits: Tensor | None = None  # [m, C], zero from the column `known` on
    known: Tensor | None = None  # [m] int64, how many rows the head had then

    def opened(self) -> "Memory":
        """A copy whose places can be written."""
        return tree_map(torch.clone, self)._replace(x=StoredInputs(self.x.inputs.clone()))

    def closed(self) -> "Memory":
        """The same in the smallest of the ways that are exact."""
        return self._replace(x=stored_inputs(self.x.inputs))

    def at(self, index: Tensor) -> "Memory":
        """Some of the examples, copied; no table."""
        plain = self._replace(x=StoredInputs(self.x.inputs))
        return tree_map(lambda part: part[index], plain)

    def tensors(self) -> list[Tensor]:
        """Everything that is stored."""
        return [*self.x.kept, *(one for one in self[1:] if one is not None)]


class Batch(NamedTuple):
    """Examples drawn from a memory for one step, always as many; where it has fewer, the rest has no weight."""

    x: Tensor  # [k, ...]
    row: Tensor  # [k]
    weight: Tensor  # [k], one or zero
    logits: Tensor | None = None  # [k, C]
    there: Tensor | None = None  # [k, C], one where a logit was stored


# -- which examples are kept -----------------------------------------------------------------------------------------


def greedy_balanced(
    labels: Sequence[int], kept: Sequence[int], known: Iterable[int], capacity: int, draws: Sequence[float]
) -> list[int]:
    """GDumb's choice: the examples that remain when examples with `labels` follow those with labels `kept`.

    A label is taken while it has fewer than capacity / (number of labels so far) examples; where there is no place for
    it, one drawn from those of the most frequent label goes. `known` are the labels that came before. The examples are
    numbered from the first one kept.
    """
    of_label: dict[int, list[int]] = {label: [] for label in known}
    for number, label in enumerate(kept):
        of_label.setdefault(label, []).append(number)
    total = len(kept)
    for number, (label, draw) in enumerate(zip(labels, draws, strict=True), len(kept)):
        own = of_label.setdefault(label, [])
        if len(own) * len(of_label) >= capacity:
            continue
        if total == capacity:
            largest = max(of_label.values(), key=len)
            del largest[int(draw * len(largest))]
            total -= 1
        own.append(number)
        total += 1
    return sorted(number for numbers in of_label.values() for number in numbers)


# -- writing and reading ---------------------------------------------------------------------------------------------


def joined(memory: Memory | None, more: Memory) -> Memory:
    """Further examples after those of an opened memory."""
    if memory is None:
        return more
    plain = memory._replace(x=StoredInputs(memory.x.inputs))
    return tree_map(lambda one, two: torch.cat([one, two]), plain, more)


def placed(memory: Memory | None, places: Sequence[int], new: Memory) -> Memory | None:
    """An opened memory with new examples at their places: written there, or appended. −1: dropped."""
    held = 0 if memory is None else len(memory.row)
    last = {place: i for i, place in enumerate(places) if place >= 0}  # of several in one place the last one stays
    if appended := [last[place] for place in sorted(last) if place >= held]:
        memory = joined(memory, new.at(torch.tensor(appended, device=new.row.device)))
    written = [place for place in last if place < held]
    if written and memory is not None:
        to, of = (torch.tensor(index, device=new.row.device) for index in (written, [last[p] for p in written]))
        for old, own in zip((memory.x.values, *memory[1:]), (new.x.values, *new[1:]), strict=True):
            if old is not None and own is not None:
                old[to] = own[of]
    return memory


def drawn_batch(
    memory: Memory | None, k: int, like: Tensor, head: Tensor, generator: torch.Generator, before: int | None = None
) -> Batch:
    """k different examples, of tasks with a smaller number than `before` alone where one is given.

    Where the memory has fewer, the rest are copies of the first one, or of the first of the inputs `like`; `head` is
    the one that they are for.
    """
    device = like.device
    eligible = torch.arange(0 if memory is None else len(memory.row), device=device)
    if before is not None and memory is not None:
        eligible = (memory.task < before).nonzero()[:, 0]
    if memory is None or not len(eligible):
        none = head.new_zeros(k, len(head))
        x = like[:1].expand(k, *like.shape[1:])
        return Batch(x, torch.zeros(k, dtype=torch.int64, device=device), none[:, 0], none, none)
    picked = eligible[torch.randperm(len(eligible), generator=generator, device=device)[:k]]
    index = torch.cat([picked, picked[:1].expand(k - len(picked))])
    weight = (torch.arange(k, device=device) < len(picked)).to(head.dtype)
    batch = Batch(memory.x.values.index_select(0, index), memory.row[index], weight)
    if memory.logits is None or memory.known is None:
        return batch
    there = torch.arange(len(head), device=device) < memory.known[index, None]
    return batch._replace(logits=memory.logits[index], there=there.to(head.dtype))


def weighted_mean(values: Tensor, weight: Tensor) -> Tensor:
    """Σ_j w_j v_j / Σ_j w_j; zero where nothing has a weight."""
    return (weight * values).sum() / weight.sum().clamp_min(1.0)
