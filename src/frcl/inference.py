"""p(task | x): which task an input belongs to, from the summaries of the tasks, from sums over all examples, or both.

Each way is a classifier of tasks that is Bayesian and solved in closed form (`frcl.exact`): a linear model on features
that are never trained, in which every class of every task is a column; the probability of a task is the sum of those of
its classes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Sequence
from typing import Literal, NamedTuple, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from frcl.errors import OptionError, TaskError
from frcl.exact.fixed import FeatureKind, RandomFeatures, whole_features
from frcl.exact.linear import Sums, features_within
from frcl.exact.model import CHUNK, Believed, ExactModel, Tasks, added
from frcl.features import FeatureMap, trained_parts
from frcl.few import array_of, is_few, log_sum_exp, quiet
from frcl.frozen import CHUNK as FRONT_CHUNK
from frcl.likelihoods import Likelihood

LEAST = 50  # of random features; with fewer the points say more of the task
FromSummaries = Literal["auto", "summaries", "exact", "both"]  # for learners that keep points of past tasks
FromHeads = Literal["heads", "exact"]  # for the others


class Points(NamedTuple):
    """Examples that stand for a task."""

    x: Tensor  # inputs [M, ...]
    features: Tensor  # of the network as it stands, [M, K]
    classes: Tensor  # int64 [M]; zeros for numeric targets


class Asked(NamedTuple):
    """Inputs whose task is wanted, and what the learner can say about them."""

    x: Tensor  # [n, ...]
    features: Callable[[], Tensor]  # of the network, without the bias, [n, K]
    points: Callable[[], Sequence[Points]]  # of each task
    probs: Callable[[], Sequence[Tensor]]  # class probabilities in each task, [n, C_k]
    version: Hashable  # changes with the points and with the network


class Inferred(NamedTuple):
    """What is believed about the task of each input."""

    log_probs: Tensor  # [n, T] float64
    unlike: Callable[[], Tensor] | None  # the novelty, which is not computed before it is asked for

    @property
    def novelty(self) -> Tensor | None:
        """How unlike everything learned each input is, [n]: about one for inputs like those learned."""
        return None if self.unlike is None else self.unlike()


class TaskInference(Protocol):
    """A way to infer the task. What it keeps of the tasks is in `Tasks`, which belong to the learner's state."""

    @property
    def sums(self) -> Exact | None:
        """What takes in the examples of a task that ends, if anything does."""

    @property
    def needs_sums(self) -> bool:
        """Whether it cannot do without the sums."""

    def check(self, x: Tensor) -> None:
        """Refuse inputs like x [1, ...] that it could not use."""

    def infer(self, kept: Tasks, asked: Asked) -> Inferred:
        """The probability of each task for each input."""

    def models(self, kept: Tasks) -> list[Solved]:
        """The models whose geometric mean that is."""


class Solved(NamedTuple):
    """A model of the task, and what it reads: random features of the input, features of the network, or both."""

    model: ExactModel
    of_input: bool
    of_network: bool


class InputFeatures:
    """Fixed random features of inputs, made when the shape of the inputs is known."""

    of_network, stand = False, True

    def __init__(self, count: int, kind: FeatureKind, seed: int) -> None:
        self.count, self.kind, self.seed = count, kind, seed
        self._most = count
        self._made: RandomFeatures | None = None

    def fit(self, x: Tensor) -> bool:
        """Be no more than fit, as a triangle of sums, in one byte for each number in x; whether that is enough."""
        self.count = min(self._most, features_within(x.numel()))
        return self.count >= LEAST

    def check(self, x: Tensor) -> None:
        """Refuse inputs like x [1, ...] that have no such features."""
        self(x)

    def read(self, x: Tensor) -> Tensor:
        """What these are features of."""
        return x

    def asked(self, asked: Asked) -> Tensor:
        """The same of inputs whose task is wanted."""
        return asked.x

    def __call__(self, x: Tensor) -> Tensor:
        return self._of(x).whole(x)

    def raw(self, x: Tensor) -> Tensor:
        """The features as they are, [n, count] float64."""
        found: Tensor = self._of(x)(x)
        return found

    def _of(self, x: Tensor) -> RandomFeatures:
        """The features of inputs like x."""
        if self._made is None or (self._made.shape, self._made.count) != (tuple(x.shape[1:]), self.count):
            self._made = RandomFeatures(tuple(x.shape[1:]), self.count, self.kind, self.seed).to(x.device)
        return self._made


class NetworkFeatures:
    """The features of a network of which no weight is trained: the features with which its tasks are learned."""

    of_network = True

    def __init__(self, map: FeatureMap) -> None:
        self._map = map
        self.count = 0  # as many as the network has

    __call__ = staticmethod(whole_features)

    @property
    def stand(self) -> bool:
        """Whether the network is still fixed."""
        return not trained_parts(self._map.net)

    def fit(self, x: Tensor) -> bool:
        """Whether they fit, as a triangle of sums, in one byte for each number in x."""
        return self.read(x[:1]).shape[1] <= features_within(x.numel())

    def check(self, x: Tensor) -> None:
        """Nothing: a learner checks its network itself."""

    def read(self, x: Tensor) -> Tensor:
        """The outputs of the network."""
        if not self.stand:
            raise TaskError(
                "the network is trained now, and the sums from which the task is inferred are of its features as they "
                "were: freeze it again, or make the learner with another task_inference"
            )
        with torch.no_grad():  # in the parts in which a frozen front remembers what it gave
            return torch.cat([self._map.outputs(rows) for rows in x.split(FRONT_CHUNK)])

    def asked(self, asked: Asked) -> Tensor:
        """The same, where they are computed anyway."""
        return asked.features()


@quiet
def by_task(found: Believed, kept: Tasks) -> Inferred:
    """The probability of a task is the sum of those of its columns; log 0 is −∞, for a task without any."""
    assert found.log_probs is not None
    log_probs, sizes = found.log_probs, [block.squares.shape[0] for block in kept.blocks]
    if is_few(log_probs):
        own, ends = array_of(log_probs), list(itertools.accumulate(sizes))
        each = [log_sum_exp(own[:, end - size : end]) for size, end in zip(sizes, ends, strict=True)]
        return Inferred(torch.from_numpy(np.array(each).T), lambda: found.novelty)
    parts = log_probs.split(sizes, 1)
    return Inferred(torch.stack([log_sum_exp(part) for part in parts], 1), lambda: found.novelty)


class Exact:
    """From sums over all examples of all tasks: exact and free of order, at the cost of their memory.

    `bounded`: there are no more features than fit, as a triangle of sums, in one byte for each number in the inputs of
    the first task, and no sums if these are too few.
    """

    def __init__(self, features: InputFeatures | NetworkFeatures, *, bounded: bool = False) -> None:
        self.features, self._bounded = features, bounded
        self._model = ExactModel(features)
        self.sums: Exact | None = self
        self.needs_sums = True
        self.check = features.check

    def ended(self, kept: Tasks, x: Tensor, y: Tensor, likelihood: Likelihood, number: int | None = None) -> Tasks:
        """What is kept after one more task, with encoded targets y [N, ...] of its examples; or more of task `number`.

        Its classes then are columns of their own, unless they are as many as before.
        """
        if self._bounded and not self.features.stand:
            return Tasks()
        if self._bounded and kept.gram is None and not self.features.fit(x):
            return kept
        new = self.of(kept, x, y, likelihood)
        if number is None:
            return added(kept, len(kept.blocks), new, own_gram=False)
        old = kept.blocks[number]
        if old.squares.shape != new.squares.shape:  # `added` pads the columns before by zeros
            none = new.squares.new_zeros(len(old.squares))
            cross = torch.cat([new.cross.new_zeros(old.cross.shape), new.cross], 1)
            new = new._replace(cross=cross, squares=torch.cat([none, new.squares]))
        return added(kept, number, new, own_gram=False)

    def least_bytes(self, kept: Tasks, x: Tensor, columns: int) -> int:
        """Bytes that one more task of inputs like x adds at least, with 32 bits per sum."""
        self._go_on_with(kept)
        K = self.features(self.features.read(x[:1])).shape[1]
        return 4 * ((kept.gram is None) * K * (K + 1) // 2 + (K + 1) * columns + 1)

    def of(self, kept: Tasks, x: Tensor, y: Tensor, likelihood: Likelihood) -> Sums:
        """The sums of the examples of a task, of the features that the others have; numeric targets are one class."""
        self._go_on_with(kept)
        classes = y if likelihood.classes is not None else torch.zeros(len(y), dtype=torch.int64, device=y.device)
        new = self._model.of(self.features.read(x), F.one_hot(classes, len(likelihood.classes or (None,))))
        seen = new.squares > 0  # a class without examples is no column
        return new._replace(cross=new.cross[:, seen], squares=new.squares[seen])

    def infer(self, kept: Tasks, asked: Asked) -> Inferred:
        self._go_on_with(kept)
        self._model.tasks = kept
        return by_task(self._model.believe(self.features.asked(asked)), kept)

    def models(self, kept: Tasks) -> list[Solved]:
        return [Solved(self._model, not self.features.of_network, self.features.of_network)]

    def _go_on_with(self, kept: Tasks) -> None:
        """Use the features that the sums have; the last of them is the bias."""
        if kept.gram is not None:
            self.features.count = len(kept.gram) - 1


class Summaries:
    """From the points of each task alone, with fixed features of the input and those of the network as it stands.

    No memory beside the points; computed again when the network has moved.
    """

    sums, needs_sums = None, False

    def __init__(self, features: InputFeatures) -> None:
        self._features = features
        self.check = features.check
        self._model = ExactModel(lambda Phi: Phi)
        self._version: Hashable = None

    def infer(self, kept: Tasks, asked: Asked) -> Inferred:
        if self._version is None or self._version != asked.version:
            self._model.tasks = self._learned(asked.points())
            self._version = asked.version
        chunks = zip(asked.x.split(CHUNK), asked.features().split(CHUNK), strict=True)
        found = [by_task(self._model.believe(self._joined(*chunk)), self._model.tasks) for chunk in chunks]
        novelty = [one.unlike for one in found if one.unlike is not None]
        return Inferred(torch.cat([one.log_probs for one in found]), lambda: torch.cat([each() for each in novelty]))

    def models(self, kept: Tasks) -> list[Solved]:
        return [Solved(self._model, True, True)]

    def _learned(self, points: Sequence[Points]) -> Tasks:
        tasks = Tasks()
        for number, own in enumerate(points):
            found = own.classes.unique()  # classes without a point are no columns
            targets = F.one_hot(torch.searchsorted(found, own.classes), len(found))
            new = self._model.of(self._joined(own.x, own.features), targets)
            tasks = added(tasks, number, new, own_gram=False)
        return tasks

    def _joined(self, x: Tensor, features: Tensor) -> Tensor:
        return torch.cat([self._features(x), whole_features(features)], 1)


class Auto:
    """From the sums as long as a learner keeps those of every task, else from the summaries."""

    needs_sums = False

    def __init__(self, of_sums: InputFeatures | NetworkFeatures, of_points: InputFeatures) -> None:
        self.sums, self._summaries = Exact(of_sums, bounded=True), Summaries(of_points)
        self.check = of_points.check

    def among(self, kept: Tasks) -> Exact | Summaries:
        """The one that answers."""
        return self.sums if kept.blocks and self.sums.features.stand else self._summaries

    def infer(self, kept: Tasks, asked: Asked) -> Inferred:
        return self.among(kept).infer(kept, asked)

    def models(self, kept: Tasks) -> list[Solved]:
        return self.among(kept).models(kept)


class Both:
    """The geometric mean of the two."""

    needs_sums = True

    def __init__(self, of_sums: InputFeatures | NetworkFeatures, of_points: InputFeatures) -> None:
        self.sums, self._summaries = Exact(of_sums), Summaries(of_points)
        self.check = of_points.check

    def infer(self, kept: Tasks, asked: Asked) -> Inferred:
        exact, summaries = self.sums.infer(kept, asked), self._summaries.infer(kept, asked)
        return Inferred((0.5 * (exact.log_probs + summaries.log_probs)).log_softmax(1), exact.unlike)

    def models(self, kept: Tasks) -> list[Solved]:
        return [*self.sums.models(kept), *self._summaries.models(kept)]


class Heads:
    """From the heads alone: p(task | x) ∝ the largest probability that the task gives to a class. Weak, but free."""

    sums, needs_sums = None, False

    def check(self, x: Tensor) -> None:
        """Nothing: inputs are read by the network alone."""

    def infer(self, kept: Tasks, asked: Asked) -> Inferred:
        sureness = torch.stack([one.amax(1) for one in asked.probs()], 1)
        return Inferred(sureness.double().log().log_softmax(1), None)

    def models(self, kept: Tasks) -> list[Solved]:
        return []


def task_inference(name: str, count: int, kind: FeatureKind, seed: int, map: FeatureMap | None = None) -> TaskInference:
    """The way of that name, with `count` fixed random features; sums have those of the network where it is fixed."""
    features = InputFeatures(count, kind, seed)
    of_sums: InputFeatures | NetworkFeatures = InputFeatures(count, kind, seed)
    if map is not None and not trained_parts(map.net):
        of_sums = NetworkFeatures(map)
    match name:
        case "auto":
            return Auto(of_sums, features)
        case "summaries":
            return Summaries(features)
        case "exact":
            return Exact(of_sums)
        case "both":
            return Both(of_sums, features)
        case "heads":
            return Heads()
    raise OptionError(f"unknown task inference {name!r}; choose auto, summaries, exact, both or heads")
