"""A network with one head a task and a regulariser that holds it: finetuning, EWC, SI, LwF, replay and more."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from frcl.baselines.common import (
    check_fits,
    check_task,
    class_spec,
    gaussian_prediction,
    initial_head,
    labels_again,
    packed,
    plain_terms,
    point_prediction,
    unpacked,
)
from frcl.baselines.options import TrainingOptions
from frcl.engine.adam import Optimiser
from frcl.engine.program import ROWS, Program, Terms, minibatch_rows
from frcl.engine.tensors import Params, exact_number, leaf, refuse_non_finite
from frcl.features import FIXED, check_features, check_network, is_stackable
from frcl.learners.accounting import Parts, parts_of
from frcl.learners.inputs import check_lengths, checked_inputs, checked_size, data_mark
from frcl.learners.lockstep import OnStep, Work, run_alone
from frcl.learners.targets import TargetSpec
from frcl.learners.types import Prediction
from frcl.regularisers.distillation import Distillation
from frcl.regularisers.protocol import HEAD, Heads, Moment, Place, Regulariser, named, under
from frcl.regularisers.quadratic import RunningAnchor
from frcl.regularisers.replay import Buffer
from frcl.seeding import Streams

CHUNK = 4096


class Penalised:
    """Minimises mean negative log-likelihood + penalty; what the penalty is, the regulariser says."""

    def __init__(
        self,
        net: nn.Module,
        options: TrainingOptions,
        regulariser: Regulariser,
        *,
        device: str | torch.device = "cpu",
    ) -> None:
        check_network(net)
        self.device = torch.device(device)
        self.net = copy.deepcopy(net).to(self.device)
        self.options = options
        self.regulariser = regulariser
        self._model = Heads(self.net)
        self._streams = Streams(options.seed, self.device)
        self._specs: list[TargetSpec] = []
        self._heads: Params = {}
        self._shape: tuple[int, ...] | None = None
        self._optimiser: Optimiser | None = None  # while a task is being learned
        self._step = 0
        self._mark = ""
        self._N = 0.0

    # -- learning -----------------------------------------------------------------------------------------

    def fit(self, x: Any, y: Any, *, size: int | None = None, on_step: OnStep = None) -> None:
        """Learn one task; called again with the same data after an interruption, goes on where it stopped."""
        task = len(self._specs) - (self._optimiser is not None)
        run_alone(self.learn(x, y, size=size), task, lambda: self._step, on_step)

    def learn(self, x: Any, y: Any, *, size: int | None = None) -> Work[None]:
        """What fit() does, as work that several learners may do together."""
        if self._optimiser is None:
            inputs, labels, spec = self.check(x, y)
            self._open(spec, inputs, labels, float(checked_size(size, len(inputs))))
        else:
            inputs = checked_inputs(x, self._shape, self._dtype, self.device)
            check_lengths(inputs, y)
            labels = labels_again(self._specs, self._mark, inputs, y)
        yield self._program(inputs, labels)
        now = self._now()
        refuse_non_finite(now.params)
        self.regulariser.end(now, inputs, labels, self._streams["selection"])
        self._optimiser = None

    def check(self, x: Any, y: Any) -> tuple[Tensor, Tensor, TargetSpec]:
        """The data of a new task as tensors, or an error before anything is changed."""
        inputs = checked_inputs(x, self._shape, self._dtype, self.device)
        check_lengths(inputs, y)
        spec = class_spec(y)
        labels = spec.encode(y, self.device, self._dtype)
        self.regulariser.check(labels)
        check_features(self.net, inputs)
        return inputs, labels, spec

    def _open(self, spec: TargetSpec, x: Tensor, y: Tensor, N: float) -> None:
        K = check_features(self.net, x) + 1
        task = len(self._specs)
        self._heads[f"{HEAD}{task}"] = leaf(initial_head(spec.functions, K, self._streams, self._dtype, self.device))
        self._specs.append(spec)
        self._shape = tuple(x.shape[1:])
        self._step, self._mark, self._N = 0, data_mark(x, y), N
        self._optimiser = Optimiser(self._trained(), self.options.lr)
        self.regulariser.begin(self._now())

    def _program(self, x: Tensor, y: Tensor) -> Program:
        """The steps left of the task that is open."""
        options, regulariser, streams = self.options, self.regulariser, self._streams
        assert self._optimiser is not None
        trained = self._optimiser.params
        at = Place(self._model, len(self._specs) - 1)
        fixed = {name: value.detach() for name, value in self._params().items() if name not in trained}
        fixed |= dict(self.net.named_buffers())

        def draw(steps: int) -> Params:
            rows = minibatch_rows(len(x), options.batch_size, steps, streams, self.device)
            return {ROWS: rows, **regulariser.draw(steps, streams["past"])}

        def loss(params: Params, constants: Params, rows: Tensor, targets: Tensor, noise: Params) -> Terms:
            whole = {**under(constants, FIXED), **params}
            nll = F.cross_entropy(at.model.logits(whole, rows, at.task), targets)
            return plain_terms(nll, regulariser.penalty(at, whole, constants, rows, noise))

        carry = regulariser.carry()
        return Program(
            net=self.net, loss=loss, optimiser=self._optimiser, x=x, y=y, draw=draw, streams=streams,
            constants={
                "N": exact_number(self._N, self._dtype, self.device), **named(FIXED, fixed), **regulariser.constants()
            },
            step=self._step, stop=options.steps, advance=self._advance,
            carry=carry, follow=regulariser.follow if carry else None,
            stackable=is_stackable(self.net) and regulariser.stackable,
            signature=(repr(replace(options, seed=0)), at.task, str(self.net)),
        )  # fmt: skip

    @property
    def step(self) -> int:
        """Steps taken of the latest task."""
        return self._step

    def _advance(self) -> None:
        self._step += 1

    def _trained(self) -> Params:
        """What a step moves: the shared network, the current head, and the old ones where they are trained on."""
        shared = {name: p for name, p in self.net.named_parameters() if p.requires_grad}
        newest = f"{HEAD}{len(self._specs) - 1}"
        heads = self._heads if self.regulariser.trains_old_heads else {newest: self._heads[newest]}
        return {**shared, **heads}

    def _params(self) -> Params:
        return {**dict(self.net.named_parameters()), **self._heads}

    def _now(self) -> Moment:
        return Moment(self._model, self._params(), len(self._specs) - 1, self._N)

    @property
    def _dtype(self) -> torch.dtype:
        return next((p.dtype for p in self.net.parameters() if p.is_floating_point()), torch.float32)

    # -- prediction -----------------------------------------------------------------------------------------

    def predict(self, x: Any, task: int | None = None) -> Prediction:
        """Class probabilities; with a Laplace posterior (DLP) also the variance of the functions."""
        number = check_task(task, len(self._specs))
        inputs = checked_inputs(x, self._shape, self._dtype, self.device)
        params, spec = self._params(), self._specs[number]
        head = params[f"{HEAD}{number}"]
        with torch.no_grad():
            Phi = torch.cat([self._model.features(params, rows) for rows in inputs.split(CHUNK)])
            precision = self._head_precision(number)
            if precision is None:
                return point_prediction(Phi @ head.mT, spec)
            return gaussian_prediction(Phi @ head.mT, Phi.square() @ (1 / precision).mT, spec, self.options.seed)

    def _head_precision(self, task: int) -> Tensor | None:
        """Ω of a finished head where the regulariser is a posterior: var f_c(x) = Σ_k φ_k(x)²/Ω_ck, exact for the head.

        The uncertainty of the shared weights is left out: to draw them from a diagonal posterior, in which many weights
        have next to no information, ruins the features.
        """
        return self.regulariser.heads.get(f"{HEAD}{task}") if isinstance(self.regulariser, RunningAnchor) else None

    # -- keeping --------------------------------------------------------------------------------------------

    def memory_bytes(self) -> int:
        """Heads, and what the regulariser keeps."""
        return sum(self.memory_parts().values())

    def memory_parts(self) -> Parts:
        """The same by kind; a teacher that every later task begins with is a copy of the network."""
        kept = {"heads": list(self._heads.values())} | self.regulariser.kept()
        if self._specs and isinstance(self.regulariser, Distillation):
            kept["network"] = [p for p in self.net.parameters() if p.requires_grad]
        return parts_of(kept)

    def kept_inputs(self) -> list[Tensor]:
        """Stored examples of past tasks, where the method stores some."""
        return list(self.regulariser.x) if isinstance(self.regulariser, Buffer) else []

    def past_divergences(self) -> list[float]:
        """Not a measure that these methods have."""
        return []

    def state_dict(self) -> dict[str, Any]:
        """Everything that decides what happens next, copied."""
        tensors: Params = {f"net/{name}": value for name, value in self.net.state_dict().items()}
        tensors |= {f"heads/{name}": value for name, value in self._heads.items()}
        tensors |= {f"regulariser/{name}": value for name, value in self.regulariser.state().items()}
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
        network = under(tensors, "net/")
        check_fits(self.net, network)
        self.net.load_state_dict(network)
        self._streams = streams
        self._specs = [TargetSpec.from_json(data) for data in meta["specs"]]
        self._heads = {name: leaf(value) for name, value in under(tensors, "heads/").items()}
        self._shape = None if meta["shape"] is None else tuple(meta["shape"])
        self._step, self._mark, self._N = meta["step"], meta["mark"], meta["N"]
        self.regulariser.load(under(tensors, "regulariser/"))
        self._optimiser = None
        if meta["open"]:
            self._optimiser = Optimiser(self._trained(), self.options.lr)
            self._optimiser.restore(under(tensors, "adam/"))
