"""A fresh network for each task: an upper bound that forgets nothing and shares nothing."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch.nn.functional as F
from torch import Tensor

from frcl.baselines.common import Baseline, Saved, plain_terms
from frcl.baselines.options import SingleOptions
from frcl.baselines.penalised import Parameters
from frcl.checks import check_like, check_weights, expect
from frcl.engine.program import Program, Streams, Terms
from frcl.features import fixed_parts, trained_parts
from frcl.learners.types import Prediction
from frcl.likelihoods import Likelihood
from frcl.regularisers.protocol import Kept
from frcl.seeding import stream_seed
from frcl.trees import Params, Tree, copied


@dataclass
class Networks:
    """The network of each task, the open one included."""

    each: list[Parameters] = field(default_factory=list)


class Single(Baseline[SingleOptions, Networks]):
    """Every task begins at the weights of the network given, with random streams of its own."""

    own_type = Networks

    def _begin(self, x: Tensor, y: Tensor, K: int) -> None:
        self._state.streams = Streams(stream_seed(self.options.seed, f"task/{len(self._state.past)}"), self.device)
        self._own.each = [*self._own.each, Parameters(copied(trained_parts(self.net)), self._new_head(K))]

    def _trained(self) -> Parameters:
        return self._own.each[-1]

    def _programs(self, x: Tensor, y: Tensor) -> Iterator[Program]:
        features = self.features

        def loss(params: Parameters, fixed: Params, x: Tensor, y: Tensor, draws: Tree) -> Terms:
            return plain_terms(F.cross_entropy(features({**fixed, **params.theta}, x) @ params.head.mT, y))

        yield self._program(loss, fixed_parts(self.net), x, y, self.options.steps)

    def _finish(self) -> None:
        self._own.each = copied(self._own.each)

    def _check(self, saved: Saved, tasks: Sequence[Likelihood], K: int) -> None:
        for own, likelihood in zip(saved.own.each, tasks, strict=True):
            check_weights(own.theta, dict(self.net.named_parameters()), saved.trained, "a network")
            check_like(own.head, (likelihood.functions, K), self.dtype, "the head of a network")
            expect(own.heads is None, "the network of a task has other heads")

    def _predict(self, task: int, x: Tensor, shared: Callable[[], Tensor]) -> Prediction:
        own = self._own.each[task]
        theta = {**fixed_parts(self.net), **own.theta}
        return self._point(task, x, lambda rows: self.features(theta, rows) @ own.head.mT)

    def _kept(self) -> Kept:
        each, net = self._own.each, dict(self.net.named_parameters())
        networks = [value for one in each for value in {**net, **one.theta}.values()]
        return {"network": networks, "heads": [one.head for one in each]}
