"""Progress & compress (Schwarz et al., 2018): an active column learns a task, then is distilled into a knowledge base.

    progress   mean −log p_active(y | x)                                                     `steps` steps
    compress   τ² · mean KL( p_active(· | x; τ) ‖ p_KB(· | x; τ) ) + λ/N · ½ Σ_j Ω_j (θ_j − θ*_j)²     `compress_steps`

θ are the shared weights of the knowledge base (KB), θ* what they were after the task before, Ω ← γ Ω + N × Fisher
information (online EWC). The active column has lateral connections from the KB at θ*, in both phases: what is distilled
is one fixed function. It starts at fresh random weights at each task, one of the two ways of the original: then it
depends on the past through the KB alone, and nothing of it has to be kept. Before the first task the KB knows nothing,
and the first active column has no laterals.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from frcl.baselines.columns import Columns, layered, moving, still
from frcl.baselines.common import (
    check_fits,
    check_task,
    class_spec,
    initial_head,
    labels_again,
    packed,
    plain_terms,
    point_prediction,
    unpacked,
)
from frcl.baselines.options import PnCOptions
from frcl.engine.adam import Optimiser
from frcl.engine.program import ROWS, Loss, Program, Terms, minibatch_rows
from frcl.engine.tensors import Params, exact_number, leaf, refuse_non_finite
from frcl.features import FIXED, check_features, fixed_parts, is_stackable
from frcl.learners.accounting import Parts, parts_of
from frcl.learners.inputs import check_lengths, checked_inputs, checked_size, data_mark
from frcl.learners.lockstep import OnStep, Work, run_alone
from frcl.learners.targets import TargetSpec
from frcl.learners.types import Prediction
from frcl.regularisers.distillation import distillation
from frcl.regularisers.protocol import HEAD, Heads, Moment, Place, named, under
from frcl.regularisers.quadratic import FisherRecipe, RunningAnchor
from frcl.seeding import Streams, fork

CHUNK = 4096
KNOWN, ACTIVE = "anchor/", "active/"  # prefixes of a program's constants: θ* as the anchor names it, the column


class ProgressAndCompress:
    """A knowledge base with one head a task, `net`, which predicts; an active column while a task is being learned."""

    def __init__(self, net: nn.Module, options: PnCOptions, *, device: str | torch.device = "cpu") -> None:
        self.device = torch.device(device)
        self.net = copy.deepcopy(layered(net)).to(self.device)
        self.options = options
        self._base = Heads(self.net)
        self._columns = Columns(self.net)
        self._anchor = RunningAnchor(
            options.strength, options.decay, FisherRecipe(options.fisher, options.fisher_examples)
        )
        self._streams = Streams(options.seed, self.device)
        self._specs: list[TargetSpec] = []
        self._heads: Params = {}  # of the knowledge base
        self._active: Params = {}  # empty between tasks
        self._shape: tuple[int, ...] | None = None
        self._optimiser: Optimiser | None = None  # of the phase that the next step belongs to
        self._step = 0
        self._mark = ""
        self._N = 0.0

    # -- learning -----------------------------------------------------------------------------------------

    def fit(self, x: Any, y: Any, *, size: int | None = None, on_step: OnStep = None) -> None:
        """Learn one task; called again with the same data after an interruption, goes on where it stopped.

        Steps 1 to `steps` are the progress phase, those up to `steps` + `compress_steps` the compress phase; there the
        log's likelihood term is minus the distillation divergence.
        """
        task = len(self._specs) - (self._optimiser is not None)
        run_alone(self.learn(x, y, size=size), task, lambda: self._step, on_step)

    def learn(self, x: Any, y: Any, *, size: int | None = None) -> Work[None]:
        """What fit() does, as work that several learners may do together: one phase after the other."""
        inputs = checked_inputs(x, self._shape, self._dtype, self.device)
        check_lengths(inputs, y)
        N = float(checked_size(size, len(inputs)))
        if self._optimiser is None:
            spec = class_spec(y)
            labels = spec.encode(y, self.device, self._dtype)
            self._open(spec, inputs, labels, N)
        else:
            labels = labels_again(self._specs, self._mark, inputs, y)
        if self._step < self.options.steps:
            yield self._progress(inputs, labels)
        yield self._compress(inputs, labels)
        now = self._now()
        refuse_non_finite(now.params)
        self._anchor.end(now, inputs, labels, self._streams["selection"])
        self._optimiser, self._active = None, {}

    def _open(self, spec: TargetSpec, x: Tensor, y: Tensor, N: float) -> None:
        K = check_features(self.net, x) + 1
        task = len(self._specs)
        active, base = (initial_head(spec.functions, K, self._streams, self._dtype, self.device) for _ in range(2))
        fresh = self._columns.start(min(1, task), active, fork(self.options.seed, f"active/{task}"))
        self._active = self._columns.trainable(fresh)
        self._heads[f"{HEAD}{task}"] = leaf(base)
        self._specs.append(spec)
        self._shape = tuple(x.shape[1:])
        self._step, self._mark, self._N = 0, data_mark(x, y), N
        self._optimiser = Optimiser(self._trained(), self.options.lr)

    def _trained(self) -> Params:
        """What the next step moves: the active column, or the knowledge base with the task's head."""
        if self._step < self.options.steps:
            return moving(self._active)
        newest = f"{HEAD}{len(self._specs) - 1}"
        shared = {name: p for name, p in self.net.named_parameters() if p.requires_grad}
        return {**shared, newest: self._heads[newest]}

    def _progress(self, x: Tensor, y: Tensor) -> Program:
        """The steps left of the active column."""
        columns = self._columns

        def loss(params: Params, constants: Params, x: Tensor, y: Tensor, noise: Params) -> Terms:
            own = under(constants, FIXED) | params
            nll = F.cross_entropy(columns.logits_after(_known(constants), own, x), y)
            return plain_terms(nll, nll.new_zeros(()))

        constants = named(KNOWN, self._anchor.anchor) | named(FIXED, still(self._active))
        return self._program("progress", loss, constants, (x, y), 0, self.options.steps)

    def _compress(self, x: Tensor, y: Tensor) -> Program:
        """The steps left of the knowledge base: divergence from the active column, and the penalty."""
        columns, anchor, temperature = self._columns, self._anchor, self.options.temperature
        at = Place(self._base, len(self._specs) - 1)

        def loss(params: Params, constants: Params, x: Tensor, y: Tensor, noise: Params) -> Terms:
            whole = under(constants, FIXED) | params
            with torch.no_grad():
                teacher = columns.logits_after(_known(constants), under(constants, ACTIVE), x)
            divergence = distillation(at.model.logits(whole, x, at.task), teacher, temperature)
            return plain_terms(divergence, anchor.penalty(at, whole, constants, x, noise))

        constants = {"N": exact_number(self._N, self._dtype, self.device), **anchor.constants()}
        constants |= named(ACTIVE, _detached(self._active)) | named(FIXED, _detached(fixed_parts(self.net)))
        first = self.options.steps
        return self._program("compress", loss, constants, (x, y), first, first + self.options.compress_steps)

    def _program(
        self, phase: str, loss: Loss, constants: Params, data: tuple[Tensor, Tensor], first: int, stop: int
    ) -> Program:
        options, streams, spec, (x, y) = self.options, self._streams, self._specs[-1], data
        assert self._optimiser is not None

        def draw(steps: int) -> Params:
            return {ROWS: minibatch_rows(len(x), options.batch_size, steps, streams, self.device)}

        return Program(
            net=self.net, loss=loss, optimiser=self._optimiser, constants=constants,
            x=x, y=y, draw=draw, streams=streams, step=self._step, first=first, stop=stop,
            advance=self._advance, stackable=is_stackable(self.net),
            signature=(phase, replace(options, seed=0), len(self._specs), spec.functions, str(self.net)),
        )  # fmt: skip

    def _advance(self) -> None:
        """A step was taken; with the last of the progress phase its optimiser goes."""
        self._step += 1
        if self._step == self.options.steps:
            self._optimiser = Optimiser(self._trained(), self.options.lr)

    def _params(self) -> Params:
        """The knowledge base with all its heads."""
        return {**dict(self.net.named_parameters()), **self._heads}

    def _now(self) -> Moment:
        return Moment(self._base, self._params(), len(self._specs) - 1, self._N)

    @property
    def _dtype(self) -> torch.dtype:
        return next(self.net.parameters()).dtype

    # -- prediction -----------------------------------------------------------------------------------------

    def predict(self, x: Any, task: int | None = None) -> Prediction:
        """Class probabilities from the knowledge base; for a task in its progress phase, from the active column."""
        number = check_task(task, len(self._specs))
        inputs = checked_inputs(x, self._shape, self._dtype, self.device)
        in_progress = bool(self._active) and number == len(self._specs) - 1 and self._step <= self.options.steps
        with torch.no_grad():
            parts = [
                self._active_logits(rows) if in_progress else self._base.logits(self._params(), rows, number)
                for rows in inputs.split(CHUNK)
            ]
            return point_prediction(torch.cat(parts), self._specs[number])

    def _active_logits(self, x: Tensor) -> Tensor:
        """What the active column says of the task that is open."""
        return self._columns.logits_after(_known(self._anchor.constants()), self._active, x)

    # -- keeping --------------------------------------------------------------------------------------------

    def memory_bytes(self) -> int:
        """Heads of the knowledge base, θ* and Ω."""
        return sum(self.memory_parts().values())

    def memory_parts(self) -> Parts:
        """The same by kind."""
        return parts_of({"heads": list(self._heads.values())} | self._anchor.kept())

    def kept_inputs(self) -> list[Tensor]:
        """None: no example is kept."""
        return []

    def past_divergences(self) -> list[float]:
        """Not a measure that this method has."""
        return []

    def state_dict(self) -> dict[str, Any]:
        """Everything that decides what happens next, copied."""
        tensors: Params = {f"net/{name}": value for name, value in self.net.state_dict().items()}
        tensors |= {f"heads/{name}": value for name, value in self._heads.items()}
        tensors |= {f"anchor/{name}": value for name, value in self._anchor.state().items()}
        tensors |= {f"active/{name}": value for name, value in self._active.items()}
        if self._optimiser is not None:
            tensors |= {f"adam/{name}": value for name, value in self._optimiser.state().items()}
        meta = {
            "specs": [spec.to_json() for spec in self._specs],
            "open": self._optimiser is not None,
            "step": self._step,
            "mark": self._mark,
            "N": self._N,
            "shape": None if self._shape is None else list(self._shape),
        }
        return packed(self.options, self._streams, self.device, meta, tensors)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on exactly where the learner that gave `state` was."""
        meta, tensors, streams = unpacked(state, self.options, self.device)
        network, active = under(tensors, "net/"), under(tensors, "active/")
        check_fits(self.net, network)
        if meta["open"]:
            self._columns.check_fits(active, min(1, len(meta["specs"]) - 1))
        self.net.load_state_dict(network)
        self._streams = streams
        self._specs = [TargetSpec.from_json(data) for data in meta["specs"]]
        self._heads = {name: leaf(value) for name, value in under(tensors, "heads/").items()}
        self._active = self._columns.trainable(active)
        self._shape = None if meta["shape"] is None else tuple(meta["shape"])
        self._step, self._mark, self._N = meta["step"], meta["mark"], meta["N"]
        self._anchor.load(under(tensors, "anchor/"))
        self._optimiser = None
        if meta["open"]:
            self._optimiser = Optimiser(self._trained(), self.options.lr)
            self._optimiser.restore(under(tensors, "adam/"))


def _known(constants: Params) -> list[Params]:
    """The knowledge base as it stood when the task began, θ*; nothing before the first task."""
    known = under(constants, KNOWN)
    return [known] if known else []


def _detached(params: Params) -> Params:
    return {name: value.detach() for name, value in params.items()}
