"""Sequential function-space variational inference (Rudner, Bickford Smith, Feng, Teh and Gal, 2022)."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from frcl.baselines.common import Saved
from frcl.baselines.options import SFSVIOptions
from frcl.baselines.sampled import STEPS_AHEAD, Gaussians, Head, MeanFieldMethod
from frcl.checks import check_like, check_stored, expect
from frcl.engine.program import Drawn, Program, Terms
from frcl.features import fixed_parts, trained_parts
from frcl.learners.types import Prediction
from frcl.likelihoods import Likelihood
from frcl.regularisers.fisher import HEAD
from frcl.regularisers.function_space import Functions, Linearised, mean_kl
from frcl.regularisers.heads import grown_head, head_rows, row_tensors
from frcl.regularisers.mean_field import MeanField, expected_loss, isotropic
from frcl.regularisers.protocol import Kept, points_of, stacked_points
from frcl.selection import random_start
from frcl.summary import StoredInputs, padded, stored_inputs
from frcl.trees import Tree, copied

POINTS_AT_ONCE = 256  # context points at which the prior is computed at once


class Context(NamedTuple):
    """The context points of a task, and what q said of its functions there when the last task ended, [M, C] each.

    While the task itself is open nothing was said yet.
    """

    x: StoredInputs
    mean: Tensor | None = None
    variance: Tensor | None = None


class Prior(NamedTuple):
    """What the KL reads: context points [T, M, ...] of past tasks with the prior of their functions, [T, M, C].

    For the first task there are no points, but the range of its inputs, [2], and the prior is the same everywhere. A
    task has functions where `there`, [T, C], is one, at `rows` of the head; these are the open task's in the first.
    """

    x: Tensor | None
    limits: Tensor
    functions: Functions
    rows: Tensor
    there: Tensor


@dataclass
class Posterior(Gaussians):
    """q, and the context points of every task.

    `head` is that of all tasks together while a task is open; between tasks each has its own in `heads`.
    """

    contexts: list[Context] = field(default_factory=list)
    head: Head | None = None


class SFSVI(MeanFieldMethod[SFSVIOptions, Posterior]):
    """A Gaussian q with independent weights, held by what it says of functions at context points.

    Task t minimises over q, in nats per example,

        E_q[−log p(y | x, w)] + κ · mean over context points z of Σ_c KL( q_t(f_c(z)) ‖ q_{t−1}(f_c(z)) )

    with the functions linearised at the mean of q, so that they are Gaussian. Context points are drawn at every step
    from the examples that are kept of each past task. In the first task they are drawn uniformly between the smallest
    and the largest number of its inputs (minibatches, where inputs are whole numbers), with the prior N(0, v₀).

    The mean over the points in place of the ELBO's sum over N is the authors' choice. Means and standard deviations go
    on from task to task; new heads begin at `initial_std`.
    """

    own_type = Posterior

    def _rows(self) -> list[list[int]]:
        """For each task, the open one included, its rows of the head of all tasks."""
        return head_rows(self._likelihoods, shared=self.options.shared_head)

    def _begin(self, x: Tensor, y: Tensor, K: int) -> None:
        options, own, rows = self.options, self._own, self._rows()
        M = points_of(options.points, options.points_per_class, self._now.likelihood, len(x))
        fresh = self._new_head(K)
        start = isotropic({**trained_parts(self.net), HEAD: fresh}, options.initial_std).log_std
        mean = grown_head([one.mean for one in own.heads], rows, fresh)
        log_std = grown_head([one.log_std for one in own.heads], rows, start.pop(HEAD))
        chosen = random_start(len(x), M, self._state.streams["selection"], y).to(x.device)
        own.head, own.log_std = Head(mean, log_std), start | copied(own.log_std)
        own.contexts = [*own.contexts, Context(stored_inputs(x[chosen]))]

    def _trained(self) -> MeanField:
        """q with the head of all tasks; a task must be open."""
        assert self._own.head is not None
        return self._with_head(self._own.head)

    def _programs(self, x: Tensor, y: Tensor) -> Iterator[Program]:
        options, state, like = self.options, self._state, self._optimiser.tree.mean
        rows, prior = row_tensors(self._rows(), self.device), self._prior(x)
        linearised = Linearised(self.features, trained_parts(self.net), fixed_parts(self.net), x)
        network, first = self._network, not state.past

        def loss(q: MeanField, constants: Tree, x: Tensor, y: Tensor, draws: Tree) -> Terms:
            fixed, prior, rows = constants
            of_weights, points = draws
            nll = expected_loss(lambda w: F.cross_entropy(network({**fixed, **w}, x)[:, rows], y), q, of_weights)
            z = context_points(prior, x, points)
            p = prior.functions
            if not first:
                index = points[..., None].expand(-1, -1, p.mean.shape[-1])
                p = Functions(p.mean.gather(1, index), p.variance.gather(1, index))
            kl = options.kl_weight * mean_kl(linearised(q, fixed, z, prior.rows), p, prior.there)
            zero = torch.zeros_like(kl)
            return Terms(nll + kl, -nll, *((kl, zero) if first else (zero, kl)))

        def draw(steps: int, picked: Tensor) -> Drawn:
            return Drawn(picked, (self._draws(like, steps, state.streams), self._points(steps, x)))

        constants = copied(fixed_parts(self.net)), prior, rows.own
        yield self._program(loss, constants, x, y, options.steps, draw, chunk=STEPS_AHEAD)

    def _points(self, steps: int, x: Tensor) -> Tensor:
        """Which of the context points the next steps use, [steps, T, m]; or for the first task new ones, as numbers
        between 0 and 1 [steps, m, ...]."""
        generator, m = self._state.streams["past"], self.options.context
        if not self._state.past:
            shape = (steps, m, *x.shape[1:]) if x.is_floating_point() else (steps, 0)
            return torch.rand(shape, generator=generator, device=generator.device, dtype=self.dtype)
        counts = [len(one.x.values) for one in self._own.contexts[:-1]]
        keys = torch.rand(
            steps, len(counts), max(counts), generator=generator, device=generator.device, dtype=torch.float64
        )
        absent = torch.arange(max(counts), device=keys.device) >= torch.tensor(counts, device=keys.device)[:, None]
        return keys.masked_fill(absent, 2.0).argsort(2)[..., : min(m, *counts)].contiguous()

    def _prior(self, x: Tensor) -> Prior:
        own, tasks, options = self._own, self._rows(), self.options
        limits = torch.stack([x.min(), x.max()]).to(self.dtype)
        rows = row_tensors(tasks, self.device)
        if rows.past is None:
            zero = torch.zeros(1, 1, len(rows.own), dtype=self.dtype, device=self.device)
            functions = Functions(zero, zero + options.prior_variance)
            return Prior(None, limits, functions, rows.own[None], torch.ones_like(zero[0]))
        past = own.contexts[:-1]
        mean = padded([one.mean for one in past if one.mean is not None])
        variance = padded([one.variance for one in past if one.variance is not None])
        there = padded([torch.ones(len(one), dtype=self.dtype, device=self.device) for one in tasks[:-1]])
        functions = Functions(mean, torch.where(variance > 0, variance, 1.0))
        return Prior(stacked_points([one.x.inputs for one in past]), limits, functions, rows.past, there)

    def _finish(self) -> None:
        """Divide the head between the tasks, and compute what q says at all context points, the next task's prior."""
        own, q = self._own, copied(self._trained())
        own.heads = [Head(q.mean[HEAD][rows], q.log_std[HEAD][rows]) for rows in self._rows()]
        own.log_std = {**own.log_std, **{name: value for name, value in q.log_std.items() if name != HEAD}}
        own.contexts = [self._believed(one.x, q, rows) for one, rows in zip(own.contexts, self._rows(), strict=True)]
        own.head = None

    def _believed(self, stored: StoredInputs, q: MeanField, rows: list[int]) -> Context:
        x, fixed = stored.inputs, fixed_parts(self.net)
        linearised = Linearised(self.features, {n: v for n, v in q.mean.items() if n != HEAD}, fixed, x)
        at = torch.tensor([rows], device=self.device)
        with torch.no_grad():
            parts = [linearised(q, fixed, part[None], at) for part in x.split(POINTS_AT_ONCE)]
        mean, variance = (torch.cat(part, 1)[0] for part in zip(*parts, strict=True))
        return Context(stored, mean, variance)

    def _head(self, task: int) -> Head:
        own = self._own
        if own.head is None:
            return own.heads[task]
        rows = self._rows()[task]
        return Head(own.head.mean[rows], own.head.log_std[rows])

    def _predict(self, task: int, x: Tensor, shared: Callable[[], Tensor]) -> Prediction:
        return self._drawn(self._with_head(self._head(task)), task, x)

    def _check(self, saved: Saved, tasks: Sequence[Likelihood], K: int) -> None:
        own, opened = saved.own, saved.current is not None
        finished = tasks[:-1] if opened else tasks
        self._check_heads(saved, finished, K)
        expect((own.head is not None) == opened, "the head of all tasks belongs to an open task")
        if own.head is not None:
            rows = 1 + max(map(max, head_rows(tasks, shared=self.options.shared_head)))
            for part in own.head:
                check_like(part, (rows, K), self.dtype, "the head of all tasks")
        for number, (context, likelihood) in enumerate(zip(own.contexts, tasks, strict=True)):
            check_stored(context.x, saved, self.dtype, "context points")
            for part in (context.mean, context.variance):
                expect((part is not None) == (number < len(finished)), "what q says at context points")
                if part is not None:
                    shape = len(context.x.values), likelihood.functions
                    check_like(part, shape, self.dtype, "what q says at context points")
            expect(context.variance is None or bool((context.variance > 0).all()), "a variance is not positive")

    def _kept(self) -> Kept:
        """q, the context points, and what q says there."""
        contexts = self._own.contexts
        said = [part for one in contexts for part in one[1:] if isinstance(part, Tensor)]
        points = [part for one in contexts for part in one.x.kept]
        return {"posterior": [*super()._kept()["posterior"], *said], "points": points}

    def kept_inputs(self) -> list[Tensor]:
        """The context points of each task."""
        return [one.x.inputs for one in self._own.contexts[: len(self._state.past)]]


def context_points(prior: Prior, x: Tensor, points: Tensor) -> Tensor:
    """z [T, m, ...]: those of past tasks at these places; in the first task inputs between its limits."""
    if prior.x is not None:
        index = points.reshape(*points.shape, *[1] * (prior.x.ndim - 2)).expand(-1, -1, *prior.x.shape[2:])
        chosen: Tensor = prior.x.gather(1, index)
        return chosen
    if not x.is_floating_point():
        return x[None]
    low, high = prior.limits.unbind()
    inputs: Tensor = low + (high - low) * points
    return inputs[None]
