"""Progressive networks (Rusu et al., 2016): one column per task, lateral connections from all columns before it.

A finished column never changes again, so nothing is forgotten; the price is memory and time, whose growth is linear in
the number of tasks for the columns and quadratic for the lateral connections and for learning through all tasks. What
the finished columns compute of a minibatch has no gradient, so it is computed for many steps at once.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from frcl.baselines.columns import COLUMN_HEAD, Columns, layered
from frcl.baselines.common import CHUNK, Baseline, Saved, plain_terms
from frcl.baselines.options import ProgressiveOptions
from frcl.engine.program import CHUNK as STEPS
from frcl.engine.program import Drawn, Program, Terms
from frcl.errors import TaskError
from frcl.learners.loaded import check_like
from frcl.learners.types import Prediction
from frcl.likelihoods import Likelihood
from frcl.regularisers.protocol import Kept
from frcl.seeding import fork
from frcl.trees import Params, Tree, copied

LARGEST = 1 << 30  # bytes of what finished columns compute that are held at once


@dataclass
class Grown:
    """The column of each task, the open one included."""

    columns: list[Params] = field(default_factory=list)


class Progressive(Baseline[ProgressiveOptions, Grown]):
    """One column with a head for each task; task t is predicted from columns 0 to t.

    The first column starts at the weights of the network given, each later one at random weights of its own. No part of
    the loss is divided by N, so `size` decides nothing.
    """

    own_type = Grown

    def __init__(self, net: nn.Module, options: ProgressiveOptions, *, device: str | torch.device = "cpu") -> None:
        super().__init__(layered(net), options, device=device)
        self._model = Columns(layered(self.net))

    def _begin(self, x: Tensor, y: Tensor, new_head: Callable[[], Tensor]) -> None:
        number = len(self._state.past)
        generator = fork(self.options.seed, f"column/{number}") if number else None
        self._own.columns = [*self._own.columns, self._model.start(number, new_head(), generator)]

    def _trained(self) -> Params:
        return self._model.split(self._own.columns[-1])[0]

    def _programs(self, x: Tensor, y: Tensor) -> Iterator[Program]:
        model, (*earlier, own) = self._model, self._own.columns

        def draw(steps: int, rows: Tensor) -> Drawn:
            computed = model.frozen(earlier, x[rows.flatten()])
            return Drawn(rows, [part.unflatten(0, (steps, self.options.batch_size)) for part in computed])

        def loss(params: Params, fixed: Params, x: Tensor, y: Tensor, draws: Tree) -> Terms:
            return plain_terms(F.cross_entropy(model.logits({**fixed, **params}, x, list(draws)), y))

        yield self._program(
            loss, model.split(own)[1], x, y, self.options.steps, draw, chunk=self._steps_at_once(x),
            share=lambda draws, rows: [part[rows] for part in draws],
        )  # fmt: skip

    def _steps_at_once(self, x: Tensor) -> int:
        """As many as the finished columns leave room for; from shapes alone, so that a resumed run agrees."""
        columns = self._own.columns
        one = sum(part.nbytes for part in self._model.frozen(columns[:1], x[:1]))  # of one column and example
        step = one * (len(columns) - 1) * self.options.batch_size
        return max(1, min(STEPS, LARGEST // max(1, step)))

    def _finish(self) -> None:
        *earlier, own = self._own.columns
        self._own.columns = [*earlier, copied(own)]

    def _predict(self, task: int, x: Tensor, shared: Callable[[], Tensor]) -> Prediction:
        """From the task's own column and those before it, whose activations are in memory at once."""
        *earlier, own = self._own.columns[: task + 1]
        chunk = max(1, CHUNK // (task + 1))
        return self._point(task, x, lambda rows: self._model.logits_after(earlier, own, rows), chunk)

    def _drop(self, number: int) -> None:
        if number < len(self._state.past):
            raise TaskError("later columns read the column of this task; only the latest task can be forgotten")
        super()._drop(number)

    def _kept(self) -> Kept:
        return {"network": [value for column in self._own.columns for value in column.values()]}

    def _check(self, saved: Saved, tasks: Sequence[Likelihood], K: int) -> None:
        for i, (column, likelihood) in enumerate(zip(saved.own.columns, tasks, strict=True)):
            self._model.check_fits(column, i)
            check_like(column[COLUMN_HEAD], (likelihood.functions, K), self.dtype, "the head of a column")
