"""Variational continual learning with a mean-field posterior (Nguyen, Li, Bui and Turner, 2018)."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from frcl.baselines.common import Saved
from frcl.baselines.options import VCLOptions
from frcl.baselines.sampled import STEPS_AHEAD, Gaussians, Head, MeanFieldMethod
from frcl.checks import check_like, check_stored, check_targets, check_weights, expect
from frcl.distributed import on_its_own
from frcl.engine.program import Drawn, Program, Streams, Terms, exact_number
from frcl.engine.train import Optimiser, train
from frcl.features import fixed_parts, trained_parts
from frcl.learners.types import Prediction
from frcl.likelihoods import Likelihood
from frcl.regularisers.fisher import HEAD
from frcl.regularisers.mean_field import MeanField, coreset_rows, expected_loss, isotropic, mean_field_kl
from frcl.regularisers.protocol import Kept
from frcl.seeding import stream_seed
from frcl.summary import StoredInputs, stored_inputs
from frcl.trees import Params, Tree, copied, leaf, tree_map


class Coreset(NamedTuple):
    """Stored examples of a task."""

    x: StoredInputs
    y: Tensor


@dataclass
class Posterior(Gaussians):
    """q, the coresets, and the prior of the open task."""

    coresets: list[Coreset] = field(default_factory=list)
    prior: MeanField | None = None
    left_out: Tensor | None = None  # the rows of the open task's data that form its coreset


class VCL(MeanFieldMethod[VCLOptions, Posterior]):
    """A Gaussian q with independent weights over the shared network and one head per task.

    Task t minimises over the shared weights and the head of task t, in nats per example,

        E_q[−log p(y | x, w)] + KL(q_t ‖ q_{t−1})/N + KL(q(head) ‖ N(0, σ₀²))/N,      q_0 = N(0, σ₀²).

    Means begin at the network's own weights and continue from task to task. Standard deviations begin every task at
    `initial_std`, where the authors' code continues from the last task's: a new task is then learned with little noise.
    With a coreset some examples of each task are left out of its training and stored. To predict for a task, a copy of
    q is first trained on the task's coreset, with q itself as the prior; predictions never change the learner.
    """

    own_type, _shown = Posterior, ("coreset",)

    def __init__(self, net: nn.Module, options: VCLOptions, *, device: str | torch.device = "cpu") -> None:
        super().__init__(net, options, device=device)
        self._adapted: dict[int, MeanField] = {}  # q after the coreset of each task,
        self._adapted_at: object = None  # as the learner stood here

    def _begin(self, x: Tensor, y: Tensor, K: int) -> float:
        options, own, shared, streams = self.options, self._own, trained_parts(self.net), self._state.streams
        left_out = coreset_rows(options.coreset, x, y, options.points, options.points_per_class, streams["selection"])
        if len(left_out):
            own.coresets = [*own.coresets, Coreset(stored_inputs(x[left_out]), y[left_out].clone())]
        head = self._new_head(K)
        prior = isotropic({**shared, HEAD: head}, options.prior_std)
        if self._state.past:
            prior = MeanField(prior.mean | copied(shared), prior.log_std | {name: own.log_std[name] for name in shared})
        start = isotropic({**shared, HEAD: head}, options.initial_std).log_std
        own.heads = [*own.heads, Head(head, start.pop(HEAD))]
        own.log_std, own.prior, own.left_out = own.log_std | start, prior, left_out
        return 1.0 - len(left_out) / len(x)

    def _trained(self) -> MeanField:
        return self._with_head(self._own.heads[-1])

    def _programs(self, x: Tensor, y: Tensor) -> Iterator[Program]:
        own, streams, like = self._own, self._state.streams, self._optimiser.tree.mean
        assert own.prior is not None
        assert own.left_out is not None
        if len(own.left_out):
            rest = torch.ones(len(x), dtype=torch.bool, device=self.device)
            rest[own.left_out] = False
            x, y = x[rest], y[rest]
        yield self._program(
            self._loss, self._constants(own.prior, self._now.N), x, y, self.options.steps,
            lambda steps, rows: Drawn(rows, self._draws(like, steps, streams)), chunk=STEPS_AHEAD,
        )  # fmt: skip

    def _constants(self, prior: MeanField, N: float) -> Tree:
        return exact_number(N, self.dtype, self.device), prior, copied(fixed_parts(self.net))

    def _loss(self, q: MeanField, constants: Tree, x: Tensor, y: Tensor, draws: Params) -> Terms:
        N, prior, fixed = constants
        nll = expected_loss(lambda w: F.cross_entropy(self._network({**fixed, **w}, x), y), q, draws)
        kl_head, shared = mean_field_kl(q, prior, [HEAD]) / N, [name for name in q.mean if name != HEAD]
        kl_shared = (nll.new_zeros(()) + mean_field_kl(q, prior, shared)) / N
        return Terms(nll + kl_head + kl_shared, -nll, kl_head, kl_shared)

    def _finish(self) -> None:
        own = self._own
        own.heads, own.log_std, own.prior, own.left_out = copied(own.heads), copied(own.log_std), None, None

    def _predict(self, task: int, x: Tensor, shared: Callable[[], Tensor]) -> Prediction:
        return self._drawn(self._belief(task), task, x)

    def _belief(self, task: int) -> MeanField:
        """What a task is predicted with: q, or a copy of it adapted to the task's coreset."""
        q, at = self._with_head(self._own.heads[task]), (self._state, self._state.current, self.step)
        if self._adapted_at != at:
            self._adapted, self._adapted_at = {}, at
        if self._own.coresets and task not in self._adapted:
            with torch.inference_mode(False), torch.enable_grad():
                self._adapted[task] = self._adapt(copied(q), task)
        return self._adapted.get(task, q)

    def _adapt(self, q: MeanField, task: int) -> MeanField:
        """q after `adapt_steps` on the coreset of a task with q as the prior; its random streams are its own."""
        options, (kept, y) = self.options, self._own.coresets[task]
        x, B = kept.inputs, options.batch_size
        streams = Streams(stream_seed(options.seed, f"coreset/{task}"), self.device)
        optimiser = Optimiser(tree_map(leaf, q), options.adapt_lr)

        def draw(steps: int) -> Drawn:  # minibatches where they have fewer examples than the coreset
            some = len(x) > B
            rows = torch.randint(len(x), (steps, B), generator=streams["batches"], device=x.device) if some else None
            return Drawn(rows, self._draws(q.mean, steps, streams))

        program = Program(
            net=self.net, loss=self._loss, optimiser=optimiser, constants=self._constants(q, len(x)), x=x, y=y,
            draw=draw, streams=streams, stop=options.adapt_steps, chunk=STEPS_AHEAD, lock=self._lock,
        )  # fmt: skip
        with on_its_own():
            for _ in train([program]):
                pass
        return copied(optimiser.tree)  # type: ignore[no-any-return]

    def _check(self, saved: Saved, tasks: Sequence[Likelihood], K: int) -> None:
        own, opened = saved.own, saved.current is not None
        self._check_heads(saved, tasks, K)
        expect((own.prior is not None) == opened == (own.left_out is not None), "a prior belongs to an open task")
        if own.prior is not None:
            shared = {**dict(self.net.named_parameters()), HEAD: own.heads[-1].mean}
            for part in own.prior:
                check_weights(part, shared, [*saved.trained, HEAD], "the prior")
        expect(len(own.coresets) == (len(tasks) if self.options.coreset != "none" else 0), "one coreset for each task")
        for coreset, likelihood in zip(own.coresets, tasks, strict=bool(own.coresets)):
            check_stored(coreset.x, saved, self.dtype, "a coreset")
            check_targets(coreset.y, likelihood, len(coreset.x.values), self.dtype, "a coreset")
        if own.left_out is not None:
            count = len(own.coresets[-1].y) if own.coresets else 0
            check_like(own.left_out, (count,), torch.int64, "the rows of the coreset")
            expect(bool((own.left_out >= 0).all()), "the rows of the coreset")

    def _kept(self) -> Kept:
        return {**super()._kept(), "points": [part for x, y in self._own.coresets for part in (*x.kept, y)]}

    def _drop(self, number: int) -> None:
        super()._drop(number)
        self._adapted, self._adapted_at = {}, None

    def kept_inputs(self) -> list[Tensor]:
        """The coreset of each task."""
        return [coreset.x.inputs for coreset in self._own.coresets]
