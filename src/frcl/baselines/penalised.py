"""A network with one head per task and regularisers: finetuning, EWC, SI, LwF, replay and more.

    loss = −(1/B) Σ_j log p(y_j | f_j) + Σ_r penalty_r

in nats per example, the same scale as FRCL's.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from frcl.baselines.common import Baseline, Saved, plain_terms, sampled_prediction
from frcl.baselines.options import TrainingOptions
from frcl.checks import check_like, expect
from frcl.engine.ahead import known_of, with_known
from frcl.engine.program import Drawn, Program, Terms, exact_number
from frcl.features import is_stackable, trained_parts
from frcl.learners.deploy import Deployed, example_of, heads_module
from frcl.learners.types import Prediction
from frcl.likelihoods import Likelihood
from frcl.regularisers.heads import Rows, grown_head, head_rows, row_tensors, trained_heads, with_trained_heads
from frcl.regularisers.protocol import PenaltyDraws, Step, draw_penalties, hooks
from frcl.seeding import fork
from frcl.trees import Params, Tree, copied


class Parameters(NamedTuple):
    """What is trained."""

    theta: Params  # the shared weights
    head: Tensor  # [C, K], of the task; where tasks share a head the whole of it, [R, K], a row for each label
    heads: Tensor | None = None  # [T, C, K], of past tasks, where they are trained along


class Constants(NamedTuple):
    """What the loss reads besides parameters; `fixed` are weights and buffers that are not trained."""

    N: Tensor
    fixed: Params
    regularisers: tuple[Tree, ...]
    rows: Rows | None


@dataclass
class Heads:
    """What is trained of an open task besides the shared weights; None between tasks."""

    head: Tensor | None = None
    heads: Tensor | None = None


class Penalised(Baseline[TrainingOptions, Heads]):
    """Minimises mean negative log-likelihood + penalties; what these are, the regularisers say."""

    own_type = Heads

    def _begin(self, x: Tensor, y: Tensor, K: int) -> None:
        state, head = self._state, self._new_head(K)
        if not self.options.shared_head:
            state.own = Heads(head, trained_heads(state.regularisers, state.past))
            return
        state.own = Heads(grown_head(self._heads(), self._head_rows(), head))

    def _head_rows(self) -> list[list[int]]:
        """For each task, the open one included, its rows of the head that all share."""
        return head_rows(self._likelihoods, shared=True)

    def _trained(self) -> Parameters:
        assert self._own.head is not None
        return Parameters(trained_parts(self.net), self._own.head, self._own.heads)

    def _programs(self, x: Tensor, y: Tensor) -> Iterator[Program]:
        state, options, features = self._state, self.options, self._ahead
        task, regularisers, tasks = replace(self._task(), features=features), state.regularisers, len(state.past)

        def loss(params: Parameters, constants: Constants, x: Tensor, y: Tensor, draws: PenaltyDraws) -> Terms:
            theta, head, heads = {**constants.fixed, **params.theta}, params.head, params.heads
            if (rows := constants.rows) is not None:
                head, heads = head[rows.own], None if rows.past is None else head[rows.past]
            Phi = features(theta, x)
            nll = F.cross_entropy(Phi @ head.mT, y)
            step = Step(features, theta, head, heads, x, y, Phi, None, draws.tasks, tasks, constants.N)
            each = zip(regularisers, constants.regularisers, draws.own, strict=True)
            parts = [penalty for one, *own in each if (penalty := one.penalty(step, *own)) is not None]
            return plain_terms(nll, sum(parts[1:], parts[0]) if parts else None)

        def draw(steps: int, rows: Tensor) -> Drawn:
            past = draw_penalties(regularisers, steps, tasks, options.past_tasks_per_step, state.streams["past"])
            return Drawn(rows, past._replace(own=with_known(past.own, known, rows)))

        rows = row_tensors(self._head_rows(), self.device) if options.shared_head else None
        N, constants = exact_number(task.N, self.dtype, self.device), tuple(one.constants(task) for one in regularisers)
        inputs = features.inputs(x)
        known = known_of(regularisers, task, constants, inputs, self._uses(options.steps))
        yield self._program(
            loss, Constants(N, task.fixed, constants, rows), inputs, y, options.steps, draw,
            **hooks(regularisers, options.seed, tasks, None if self._changes is None else self._changes.function),
            stackable=is_stackable(self.net, prepared=features.prepared) and all(one.batchable for one in regularisers),
            signature=self._signature(self._now.first, [one is None for one in known]),
        )  # fmt: skip

    def _heads(self) -> list[Tensor]:
        """The head of every task, as it is now, the open one's included."""
        state, own = self._state, self._own
        if self.options.shared_head and own.head is not None:
            return [own.head[rows] for rows in self._head_rows()]
        past = with_trained_heads(state.past, own.heads)
        return [head for head in (*(one.head for one in past), own.head) if head is not None]

    def _finish(self) -> Tensor:
        state, heads = self._state, copied(self._heads())
        state.past = [replace(one, head=head) for one, head in zip(state.past, heads, strict=False)]
        state.own = Heads()
        return heads[-1]

    def _check(self, saved: Saved, tasks: Sequence[Likelihood], K: int) -> None:
        head, heads = saved.own.head, saved.own.heads
        expect(all(one.head is not None for one in saved.past), "a task has no head")
        expect((head is None) == (saved.current is None), "the open task has a head")
        shared = self.options.shared_head
        block = None if head is None or shared else trained_heads(self._state.regularisers, saved.past)
        expect((heads is None) == (block is None), "heads of past tasks that are trained along")
        if head is not None:
            rows = 1 + max(map(max, head_rows(tasks, shared=True))) if shared else tasks[-1].functions
            check_like(head, (rows, K), self.dtype, "the head of the open task")
        if block is not None:
            check_like(heads, tuple(block.shape), self.dtype, "the heads of past tasks")

    def _predict(self, task: int, x: Tensor, shared: Callable[[], Tensor]) -> Prediction:
        """With a regulariser that is a posterior of the head (DLP) also the variance of the functions."""
        Phi, likelihood = shared(), self._likelihoods[task]
        mean, shape = Phi @ self._heads()[task].mT, likelihood.draws_shape(1, training=False)
        for one in self._state.regularisers:
            if (variance := one.head_variance(task, Phi)) is not None:  # by Monte Carlo, with the same draws every time
                draws = torch.randn(shape, generator=fork(self.options.seed, "prediction"), dtype=mean.dtype)
                probs = likelihood.predictive(mean, variance, draws.to(mean.device), {}).probs
                return Prediction(mean, variance, probs, likelihood.classes)
        return sampled_prediction(mean[None], likelihood)

    def _deployed(self, task: int | None) -> tuple[Deployed, Tensor]:
        with self._lock, torch.no_grad():
            heads, example = self._heads(), example_of(self)
            Phi = self._features(example.to(self.device))
            if any(one.head_variance(0, Phi) is not None for one in self._state.regularisers):
                return super()._deployed(task)
            return heads_module(self, heads, task), example
