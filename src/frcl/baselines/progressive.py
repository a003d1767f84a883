"""Progressive networks (Rusu et al., 2016): a column a task, lateral connections from all columns before it.

A finished column never changes again, so nothing is forgotten; the price is memory and time, whose growth is linear in
the number of tasks for the columns and quadratic for the lateral connections and for learning through all tasks. What
the finished columns compute of a minibatch has no gradient, so it is worked out for many steps at once.
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
from frcl.baselines.options import ProgressiveOptions
from frcl.engine.adam import Optimiser
from frcl.engine.program import CHUNK as STEPS
from frcl.engine.program import ROWS, Program, Terms, minibatch_rows
from frcl.engine.tensors import Params, refuse_non_finite
from frcl.features import check_features, is_stackable
from frcl.learners.accounting import Parts, parts_of
from frcl.learners.inputs import check_lengths, checked_inputs, data_mark
from frcl.learners.lockstep import OnStep, Work, run_alone
from frcl.learners.targets import TargetSpec
from frcl.learners.types import Prediction
from frcl.regularisers.protocol import under
from frcl.seeding import Streams, fork

CHUNK = 4096
LARGEST = 1 << 30  # bytes of what finished columns compute that are held at once
EARLIER = "earlier/"  # + the number of the layer: its place among what is drawn for a step


class Progressive:
    """One column with a head for each task; task t is predicted from columns 0 to t.

    The first column starts at the weights of the network given, each later one at random weights of its own.
    """

    def __init__(self, net: nn.Module, options: ProgressiveOptions, *, device: str | torch.device = "cpu") -> None:
        self.device = torch.device(device)
        self.net = copy.deepcopy(layered(net)).to(self.device)  # the architecture, and where the first column starts
        self.options = options
        self._model = Columns(self.net)
        self._streams = Streams(options.seed, self.device)
        self._specs: list[TargetSpec] = []
        self._columns: list[Params] = []
        self._shape: tuple[int, ...] | None = None
        self._optimiser: Optimiser | None = None  # while a task is being learned
        self._step = 0
        self._mark = ""

    # -- learning -----------------------------------------------------------------------------------------

    def fit(self, x: Any, y: Any, *, size: int | None = None, on_step: OnStep = None) -> None:
        """Learn one task; called again with the same data after an interruption, goes on where it stopped.

        `size` is taken as all learners take it, and decides nothing here: no part of the loss is divided by N.
        """
        task = len(self._specs) - (self._optimiser is not None)
        run_alone(self.learn(x, y, size=size), task, lambda: self._step, on_step)

    def learn(self, x: Any, y: Any, *, size: int | None = None) -> Work[None]:
        """What fit() does, as work that several learners may do together."""
        inputs = checked_inputs(x, self._shape, self._dtype, self.device)
        check_lengths(inputs, y)
        if self._optimiser is None:
            spec = class_spec(y)
            labels = spec.encode(y, self.device, self._dtype)
            self._open(spec, inputs, labels)
        else:
            labels = labels_again(self._specs, self._mark, inputs, y)
        yield self._program(inputs, labels)
        refuse_non_finite(self._columns[-1])
        self._columns[-1] = {name: value.detach() for name, value in self._columns[-1].items()}
        self._optimiser = None

    def _open(self, spec: TargetSpec, x: Tensor, y: Tensor) -> None:
        K = check_features(self.net, x) + 1
        task = len(self._specs)
        head = initial_head(spec.functions, K, self._streams, self._dtype, self.device)
        generator = fork(self.options.seed, f"column/{task}") if task else None
        column = self._model.trainable(self._model.start(task, head, generator))
        self._columns.append(column)
        self._specs.append(spec)
        self._shape = tuple(x.shape[1:])
        self._step, self._mark = 0, data_mark(x, y)
        self._optimiser = Optimiser(moving(column), self.options.lr)

    def _program(self, x: Tensor, y: Tensor) -> Program:
        """The steps left of the newest column."""
        model, options, streams, task = self._model, self.options, self._streams, len(self._specs) - 1
        assert self._optimiser is not None
        earlier = self._columns[:task]

        def draw(steps: int) -> Params:
            rows = minibatch_rows(len(x), options.batch_size, steps, streams, self.device)
            computed = model.frozen(earlier, x[rows.flatten()])
            return {ROWS: rows} | {
                f"{EARLIER}{i}": part.unflatten(0, (steps, options.batch_size)) for i, part in enumerate(computed)
            }

        def loss(params: Params, constants: Params, x: Tensor, y: Tensor, noise: Params) -> Terms:
            computed = [noise[f"{EARLIER}{i}"] for i in range(len(noise))]
            nll = F.cross_entropy(model.logits(constants | params, x, computed), y)
            return plain_terms(nll, nll.new_zeros(()))

        def advance() -> None:
            self._step += 1

        return Program(
            net=self.net, loss=loss, optimiser=self._optimiser, constants=still(self._columns[task]),
            x=x, y=y, draw=draw, streams=streams, step=self._step, stop=options.steps,
            advance=advance, stackable=is_stackable(self.net), chunk=self._steps_at_once(x),
            signature=("progressive", replace(options, seed=0), task, self._specs[-1].functions, str(self.net)),
        )  # fmt: skip

    def _steps_at_once(self, x: Tensor) -> int:
        """As many as the finished columns leave room for; from shapes alone, so that a run taken up again agrees."""
        one = sum(part.nbytes for part in self._model.frozen(self._columns[:1], x[:1]))  # of a column and an example
        step = one * (len(self._columns) - 1) * self.options.batch_size
        return max(1, min(STEPS, LARGEST // max(1, step)))

    @property
    def _dtype(self) -> torch.dtype:
        return next(self.net.parameters()).dtype

    # -- prediction -----------------------------------------------------------------------------------------

    def predict(self, x: Any, task: int | None = None) -> Prediction:
        """Class probabilities from the task's own column and those before it."""
        number = check_task(task, len(self._specs))
        inputs = checked_inputs(x, self._shape, self._dtype, self.device)
        rows = max(1, CHUNK // (number + 1))  # the activations of all these columns are there at once
        with torch.no_grad():
            *earlier, own = self._columns[: number + 1]
            parts = [self._model.logits_after(earlier, own, some) for some in inputs.split(rows)]
            return point_prediction(torch.cat(parts), self._specs[number])

    # -- keeping --------------------------------------------------------------------------------------------

    def memory_bytes(self) -> int:
        """All columns with their lateral connections and heads."""
        return sum(self.memory_parts().values())

    def memory_parts(self) -> Parts:
        """The same by kind: columns are copies of the network."""
        return parts_of({"network": [value for column in self._columns for value in column.values()]})

    def kept_inputs(self) -> list[Tensor]:
        """None: no example is kept."""
        return []

    def past_divergences(self) -> list[float]:
        """Not a measure that this method has."""
        return []

    def state_dict(self) -> dict[str, Any]:
        """Everything that decides what happens next, copied."""
        tensors: Params = {f"net/{name}": value for name, value in self.net.state_dict().items()}
        for i, column in enumerate(self._columns):
            tensors |= {f"columns/{i}/{name}": value for name, value in column.items()}
        if self._optimiser is not None:
            tensors |= {f"adam/{name}": value for name, value in self._optimiser.state().items()}
        meta = {
            "specs": [spec.to_json() for spec in self._specs],
            "open": self._optimiser is not None,
            "step": self._step,
            "mark": self._mark,
            "shape": None if self._shape is None else list(self._shape),
        }
        return packed(self.options, self._streams, self.device, meta, tensors)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on exactly where the learner that gave `state` was."""
        meta, tensors, streams = unpacked(state, self.options, self.device)
        network = under(tensors, "net/")
        check_fits(self.net, network)
        columns = [under(tensors, f"columns/{i}/") for i in range(len(meta["specs"]))]
        for i, column in enumerate(columns):
            self._model.check_fits(column, i)
        self.net.load_state_dict(network)
        self._streams, self._columns = streams, columns
        self._specs = [TargetSpec.from_json(data) for data in meta["specs"]]
        self._shape = None if meta["shape"] is None else tuple(meta["shape"])
        self._step, self._mark = meta["step"], meta["mark"]
        self._optimiser = None
        if meta["open"]:
            columns[-1] = self._model.trainable(columns[-1])
            self._optimiser = Optimiser(moving(columns[-1]), self.options.lr)
            self._optimiser.restore(under(tensors, "adam/"))
