"""Progress & compress (Schwarz et al., 2018): an active column learns a task, then is distilled into a knowledge base.

    progress   mean −log p_active(y | x)                                                     `steps` steps
    compress   τ² · mean KL( p_active(· | x; τ) ‖ p_KB(· | x; τ) ) + λ/N · ½ Σ_j Ω_j (θ_j − θ*_j)²     `compress_steps`

θ are the shared weights of the knowledge base (KB), θ* what they were after the task before, Ω ← γ Ω + N × Fisher
information (online EWC). The active column has lateral connections from the KB at θ*, in both phases: what is distilled
is one fixed function. It starts at fresh random weights at each task, one of the two ways of the original: then it
depends on the past through the KB alone, and nothing of it has to be kept. Before the first task the KB knows nothing,
and the first active column has no laterals.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from frcl.baselines.common import Baseline, Saved, plain_terms, sampled_prediction
from frcl.baselines.options import PnCOptions
from frcl.baselines.penalised import Parameters
from frcl.baselines.progressive import COLUMN_HEAD, Columns, layered
from frcl.checks import check_like, expect
from frcl.engine.ahead import Table, of_examples, of_rows, steps_at_once
from frcl.engine.program import Drawn, Loss, Program, Terms, exact_number
from frcl.features import fixed_parts, trained_parts
from frcl.learners.deploy import Deployed, example_of, heads_module
from frcl.learners.types import Prediction
from frcl.likelihoods import Likelihood
from frcl.regularisers import Curvature
from frcl.regularisers.current_inputs import distillation
from frcl.regularisers.protocol import Step
from frcl.seeding import fork
from frcl.trees import Params, Tree, detached


@dataclass
class OpenTask:
    """What there is only while a task is learned: the active column, the head of the KB, and the phase."""

    active: Params = field(default_factory=dict)
    head: Tensor | None = None
    compressing: bool = False


class ProgressAndCompress(Baseline[PnCOptions, OpenTask]):
    """A knowledge base with one head per task, `net`, which predicts; an active column while a task is learned.

    Steps 1 to `steps` of a task are the progress phase, the next `compress_steps` the compress phase: there
    the log's likelihood term is minus the distillation divergence.
    """

    own_type = OpenTask

    def __init__(self, net: nn.Module, options: PnCOptions, *, device: str | torch.device = "cpu") -> None:
        super().__init__(layered(net), options, device=device)
        self._columns = Columns(layered(self.net))

    @property
    def _anchor(self) -> Curvature:
        return cast("Curvature", self._state.regularisers[0])

    def _begin(self, x: Tensor, y: Tensor, K: int) -> None:
        number, active, base = len(self._state.past), self._new_head(K), self._new_head(K)
        fresh = self._columns.start(min(1, number), active, fork(self.options.seed, f"active/{number}"))
        self._state.own = OpenTask(fresh, base)

    def _trained(self) -> Tree:
        own = self._own
        if not own.compressing:
            return self._columns.split(own.active)[0]
        assert own.head is not None
        return Parameters(trained_parts(self.net), own.head)

    def _programs(self, x: Tensor, y: Tensor) -> Iterator[Program]:
        if not self._own.compressing:
            if self.step < self.options.steps:
                yield self._progress(x, y)
            with self._changing() as state:
                state.own.compressing, state.current = True, replace(self._now, first=self.options.steps)
                state.optimiser = self._new_optimiser()
        yield self._compress(x, y)

    def _known(self) -> list[Params]:
        """The KB as it stood when the task began, if it then knew a task."""
        return [{**fixed_parts(self.net), **self._anchor.anchor}] if self._state.past else []

    def _progress(self, x: Tensor, y: Tensor) -> Program:
        columns = self._columns

        def loss(params: Params, constants: tuple[list[Params], Params], x: Tensor, y: Tensor, draws: Tree) -> Terms:
            known, fixed = constants
            earlier = draws or columns.frozen(known, x)
            return plain_terms(F.cross_entropy(columns.logits({**fixed, **params}, x, earlier), y))

        known = self._known()
        table = of_examples(lambda part: columns.frozen(known, part), x, self._uses(self.options.steps))
        return self._ahead_of(table, loss, (known, columns.split(self._own.active)[1]), x, y, self.options.steps)

    def _ahead_of(self, table: Table | None, loss: Loss, constants: Tree, x: Tensor, y: Tensor, stop: int) -> Program:
        """Steps whose draws are the rows of a table, where there is one."""
        return self._program(
            loss, constants, x, y, stop, lambda _, rows: Drawn(rows, of_rows(table or (), rows)),
            signature=self._signature(self._now.first, table is None),
            chunk=steps_at_once(table or (), self.options.batch_size),
        )  # fmt: skip

    def _compress(self, x: Tensor, y: Tensor) -> Program:
        """The steps left of the knowledge base: divergence from the active column, and the penalty."""
        columns, anchor, options, features = self._columns, self._anchor, self.options, self.features
        task, tasks, likelihood = self._task(), len(self._state.past), self._now.likelihood

        def loss(params: Parameters, constants: Tree, x: Tensor, y: Tensor, draws: Tree) -> Terms:
            known, active, fixed, held, N = constants
            theta = {**fixed, **params.theta}
            with torch.no_grad():
                teacher = draws[0] if draws else columns.logits_after(known, active, x)
            Phi = features(theta, x)
            apart = distillation(Phi @ params.head.mT, teacher, options.temperature, likelihood)
            step = Step(features, theta, params.head, None, x, y, Phi, None, None, tasks, N)
            return plain_terms(apart, anchor.penalty(step, held, ()))

        N = exact_number(task.N, self.dtype, self.device)
        known, active = self._known(), detached(self._own.active)
        uses = self._uses(options.compress_steps)
        table = of_examples(lambda part: [columns.logits_after(known, active, part)], x, uses)
        constants = (known, active, task.fixed, anchor.constants(task), N)
        return self._ahead_of(table, loss, constants, x, y, options.steps + options.compress_steps)

    def _finish(self) -> Tensor:
        head, self._state.own = self._own.head, OpenTask()
        assert head is not None
        return head.detach().clone()

    def _predict(self, task: int, x: Tensor, shared: Callable[[], Tensor]) -> Prediction:
        """From the knowledge base; for a task in its progress phase, from the active column."""
        own, past = self._own, self._state.past
        if task == len(past) and not own.compressing:
            return self._point(task, x, lambda rows: self._columns.logits_after(self._known(), own.active, rows))
        head = past[task].head if task < len(past) else own.head
        assert head is not None
        return sampled_prediction((shared() @ head.mT)[None], self._likelihoods[task])

    def _deployed(self, task: int | None) -> tuple[Deployed, Tensor]:
        with self._lock, torch.no_grad():
            heads = [one.head for one in self._state.past if one.head is not None]
            return heads_module(self, heads, task), example_of(self)

    def _check(self, saved: Saved, tasks: Sequence[Likelihood], K: int) -> None:
        own, now = saved.own, saved.current
        expect(all(one.head is not None for one in saved.past), "a task has no head")
        expect(bool(own.active) == (own.head is not None) == (now is not None), "columns without an open task")
        expect(own.compressing == (now is not None and now.first > 0), "the phase of the open task")
        if now is not None:
            self._columns.check_fits(own.active, min(1, len(saved.past)))
            for head in (own.head, own.active[COLUMN_HEAD]):
                check_like(head, (now.likelihood.functions, K), self.dtype, "a head of the open task")
