"""GDumb (Prabhu et al., 2020): keep a balanced set of examples, and learn from it alone, from the beginning.

The data of a task pass by once, and `greedy_balanced` says which examples stay. Then a network with the initial weights
learns the memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from frcl.baselines.common import CHUNK, Saved, plain_terms
from frcl.baselines.memory import Memory, greedy_balanced, joined
from frcl.baselines.options import GDumbOptions
from frcl.baselines.penalised import Parameters
from frcl.baselines.shared_head import Shared, SharedHead
from frcl.checks import check_weights, expect
from frcl.engine.program import Program, Terms, Values
from frcl.features import fixed_parts, in_chunks, trained_parts
from frcl.likelihoods import Likelihood
from frcl.regularisers.protocol import Kept
from frcl.seeding import fork
from frcl.summary import StoredInputs
from frcl.trees import Params, Tree, copied

NOTHING: Values = (math.nan, math.nan, math.nan, math.nan)  # the terms of a minibatch that is only looked at


@dataclass
class Dumb(Shared):
    """The same, and the weights of the network that was trained last; those of `net` stay as they were given."""

    theta: Params = field(default_factory=dict)


class GDumb(SharedHead[GDumbOptions, Dumb]):
    """A memory, and a network that knows nothing else."""

    own_type = Dumb
    learns_at_once = False

    def _begin(self, x: Tensor, y: Tensor, K: int) -> None:
        super()._begin(x, y, K)
        order = torch.randperm(len(x), generator=fork(self.options.seed, f"stream/{len(self._state.past)}"))
        order = order.to(x.device)
        self._take(x[order], self._rows_of_task(len(self._state.past))[y[order]])
        self._fresh()

    def _take(self, x: Tensor, rows: Tensor) -> None:
        """Let examples pass by once."""
        own, task = self._own, len(self._state.past)
        generator = fork(self.options.seed, f"greedy/{task}/{own.seen}")
        draws: list[float] = torch.rand(len(x), generator=generator, dtype=torch.float64).tolist()
        held = [] if own.memory is None else own.memory.row.tolist()
        known = self._rows(label for past in self._state.past for label in past.likelihood.classes or ()).tolist()
        left = greedy_balanced(rows.tolist(), held, {*known, *held}, self.options.points, draws)
        kept, new = (torch.tensor(part, dtype=torch.int64, device=x.device) for part in (
            [one for one in left if one < len(held)], [one - len(held) for one in left if one >= len(held)]
        ))  # fmt: skip
        more = Memory(StoredInputs(x[new]), rows[new], torch.full_like(new, task))
        memory = joined(None if own.memory is None else own.memory.at(kept), more)
        self._state.own = replace(own, memory=memory, seen=own.seen + len(x))

    def _fresh(self) -> None:
        """The weights that were given, and a new head."""
        head = self._new_head(self._head.shape[1], len(self._own.labels))
        self._state.own = replace(self._own, theta=copied(trained_parts(self.net)), head=head)

    def _trained(self) -> Parameters:
        return Parameters(self._own.theta, self._head)

    def _programs(self, x: Tensor, y: Tensor) -> Iterator[Program]:
        return self._training()

    def _training(self) -> Iterator[Program]:
        memory, features = self._own.memory, self.features
        assert memory is not None

        def loss(params: Parameters, fixed: Params, x: Tensor, y: Tensor, draws: Tree) -> Terms:
            return plain_terms(F.cross_entropy(features({**fixed, **params.theta}, x) @ params.head.mT, y))

        yield self._program(loss, fixed_parts(self.net), memory.x.inputs, memory.row, self.options.steps)

    def _finish(self) -> None:
        super()._finish()
        self._state.own = replace(self._own, theta=copied(self._own.theta))

    def _observed(self, x: Tensor, rows: Tensor) -> Values:
        """The memory alone takes part in it; `_last_programs` train the network."""
        self._take(x, rows)
        self._state.optimiser = self._new_optimiser()
        return NOTHING

    def _last_programs(self) -> Iterator[Program]:
        if self.step == 0:  # else the training was interrupted, and goes on
            with self._changing() as state:
                self._fresh()
                state.optimiser = self._new_optimiser()
        yield from self._training()

    def _features(self, x: Tensor) -> Tensor:
        theta = {**fixed_parts(self.net), **self._own.theta}
        return in_chunks(lambda rows: self.features(theta, rows), x, CHUNK)

    def _kept(self) -> Kept:
        return {**super()._kept(), "network": [*fixed_parts(self.net).values(), *self._own.theta.values()]}

    def _check(self, saved: Saved, tasks: Sequence[Likelihood], K: int) -> None:
        super()._check(saved, tasks, K)
        expect(bool(saved.own.theta) >= bool(saved.past), "there is a network where there are tasks")
        if saved.own.theta:
            check_weights(saved.own.theta, dict(self.net.named_parameters()), saved.trained, "the network")
