"""A fresh network for each task: an upper bound that forgets nothing and shares nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from frcl.baselines.classification import CHUNK, initial_head, plain_terms, point_prediction
from frcl.baselines.common import Baseline
from frcl.baselines.options import SingleOptions
from frcl.baselines.state import NewTask
from frcl.engine.program import Program, Terms
from frcl.features import fixed_parts, in_chunks
from frcl.learners.types import Prediction
from frcl.regularisers.protocol import Kept
from frcl.seeding import Streams, stream_seed
from frcl.trees import Params, Tree, copied


class Network(NamedTuple):
    """The trained weights of one task and its head."""

    theta: Params
    head: Tensor


@dataclass
class Networks:
    """The network of each task, the open one included."""

    each: list[Network] = field(default_factory=list)


class Single(Baseline[SingleOptions, Networks]):
    """Every task begins at the weights of the network given, with random streams of its own."""

    def __init__(self, net: nn.Module, options: SingleOptions, *, device: str | torch.device = "cpu") -> None:
        super().__init__(net, options, Networks(), device=device)

    def _begin(self, task: NewTask) -> float:
        seed = stream_seed(self.options.seed, f"task/{task.number}")
        self._state.streams = Streams(seed, self.device)
        head = initial_head(task.likelihood.functions, task.K, self._state.streams, self.dtype, self.device)
        self._own.each = [*self._own.each, Network(copied(self._theta()), head)]
        return task.N

    def _trained(self) -> Network:
        return self._own.each[-1]

    def _programs(self, x: Tensor, y: Tensor) -> Iterator[Program]:
        features = self.features

        def loss(params: Network, fixed: Params, x: Tensor, y: Tensor, draws: Tree) -> Terms:
            return plain_terms(F.cross_entropy(features({**fixed, **params.theta}, x) @ params.head.mT, y))

        yield self._program(loss, fixed_parts(self.net), x, y, self.options.steps)

    def _finish(self) -> None:
        self._own.each = copied(self._own.each)

    def _predict(self, task: int, x: Tensor) -> Prediction:
        theta, head = self._own.each[task]
        f = in_chunks(lambda rows: self.features({**fixed_parts(self.net), **theta}, rows) @ head.mT, x, CHUNK)
        return point_prediction(f, self._likelihood(task))

    def _kept(self) -> Kept:
        networks = [{**dict(self.net.named_parameters()), **one.theta} for one in self._own.each]
        return {
            "network": [value for one in networks for value in one.values()],
            "heads": [one.head for one in self._own.each],
        }
