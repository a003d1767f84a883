"""What a step reads of its examples and no step changes, as what a frozen network gives for them: computed once.

The steps of a task use an example several times. Computed before the first of them, it costs a pass over the data
instead of one over every minibatch, and a step only picks the rows of its examples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from frcl.distributed import processes
from frcl.engine.program import CHUNK as STEPS
from frcl.features import network_failures
from frcl.regularisers.protocol import Regulariser, Task
from frcl.trees import Tree

CHUNK = 4096  # examples that pass through the network at once
LARGEST = 1 << 28  # bytes that are held of all examples
AT_ONCE = 1 << 30  # bytes that are held of the minibatches of some steps

Table = Sequence[Tensor]  # tensors with a row for each example


def of_examples(function: Callable[[Tensor], Table], x: Tensor, uses: int) -> list[Tensor] | None:
    """function(x) of all examples, where no gradient is needed; the steps use `uses` examples in all.

    None where it is better computed in each step: where there are fewer uses than examples, where it takes too much
    memory, where several processes learn together. It is decided by sizes alone, so that a resumed run agrees.
    """
    if processes() is not None or uses < len(x):
        return None
    with torch.no_grad():
        if sum(part.nbytes for part in function(x[:1])) * len(x) > LARGEST:
            return None
        chunks = [function(part) for part in x.split(CHUNK)]
        return [torch.cat(parts) for parts in zip(*chunks, strict=True)]


def of_rows(table: Table, rows: Tensor) -> list[Tensor]:
    """The rows of a table for the minibatches of some steps [steps, B], each [steps, B, ...]."""
    picked = rows.flatten()
    return [part.index_select(0, picked).unflatten(0, rows.shape) for part in table]


def steps_at_once(table: Table, batch: int) -> int:
    """How many steps get their rows at once: fewer where these take too much memory. From shapes alone, as above."""
    return max(1, min(STEPS, AT_ONCE // max(1, batch * sum(part[:1].nbytes for part in table))))


def known_of(
    regularisers: Sequence[Regulariser], task: Task, constants: Sequence[Tree], x: Tensor, uses: int
) -> list[Tensor | None]:
    """What each regulariser reads of the examples x, or None where it reads nothing or computes it in each step."""
    found: list[Tensor | None] = []
    for one, own in zip(regularisers, constants, strict=True):

        def function(rows: Tensor, one: Regulariser = one, own: Tree = own) -> Table:
            value = one.of_inputs(task, own, rows) if one.knows else None
            return [] if value is None else [value]

        with network_failures():
            table = of_examples(function, x, uses)
        found.append(table[0] if table else None)
    return found


def with_known(own: tuple[Tree, ...], known: Sequence[Tensor | None], rows: Tensor) -> tuple[Tree, ...]:
    """The draws of regularisers for some steps; in their place, where something is known, its rows [steps, B, ...]."""
    return tuple(drawn if table is None else of_rows([table], rows)[0] for drawn, table in zip(own, known, strict=True))
