"""An example of a package that extends frcl: a benchmark, a likelihood, a criterion and a method.

frcl finds them through the entry points in pyproject.toml; nothing of frcl is changed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from frcl import Regulariser
from frcl.baselines.options import TrainingOptions
from frcl.data import BenchmarkSpec, Request, Split, Task, TaskList
from frcl.likelihoods.base import ClassLikelihood, at_class, softmax_divergence
from frcl.linalg import gaussian_expectation_nodes
from frcl.methods import Method, baseline
from frcl.options import NOT_NEGATIVE, option
from frcl.regularisers.protocol import Step
from frcl.regularisers.protocol import Task as LearnedTask
from frcl.selection import Criterion, TaskData
from frcl.trees import Params

# -- a benchmark -------------------------------------------------------------------------------------------------------


def _spirals(seed: int, number: int, train_on: str) -> Task:
    """Two spirals, rotated by 30 degrees per task."""
    generator = torch.Generator().manual_seed(1000 * seed + number)
    t = 0.5 + 2.5 * torch.rand(500, generator=generator)
    y = torch.randint(2, (500,), generator=generator)
    angle = 2 * t + math.pi * y + math.radians(30 * number)
    x = t[:, None] * torch.stack([angle.cos(), angle.sin()], 1) / 3
    train, validation, test = Split(x[:350], y[:350]), Split(x[350:400], y[350:400]), Split(x[400:], y[400:])
    if train_on == "train+validation":
        train = Split(x[:400], y[:400])
    return Task(f"{30 * number}°", train, validation, test, size=len(train))


def _build(request: Request) -> object:
    tasks, train_on = request.options.tasks or 3, request.options.train_on

    def source(seed: int) -> TaskList:
        every = (_spirals(seed, number, train_on).to(request.device) for number in range(tasks))
        return TaskList("spirals", tuple(every))

    return source


SPIRALS = BenchmarkSpec(
    "3 tasks, two spirals that are rotated from task to task; nothing to download",
    _build,
    defaults={"network": {"widths": [64, 64]}, "training": {"steps": 500}},
)


# -- a likelihood ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ordinal(ClassLikelihood):
    """Labels with an order, such as grades: p(class c | f) = σ(b_{c+1} − f) − σ(b_c − f), one function.

    It is cut into C intervals at b_c = 2c − C, c = 1..C−1, and the outer ones are open: b_0 = −∞, b_C = ∞.
    """

    name: ClassVar[str] = "ordinal"
    nodes: int = 64  # of the quadrature

    @property
    def functions(self) -> int:
        return 1

    def log_probabilities(self, f: Tensor) -> Tensor:
        """log p(class c | f) for all c and the first function of f [..., C'], [..., C].

        With h and l the bounds of class c it is log σ(h − f) + log σ(f − l) + log(1 − exp(l − h)).
        """
        count, end = len(self.labels), f.new_full((1,), torch.inf)
        cuts = 2.0 * torch.arange(1, count, dtype=f.dtype, device=f.device) - count
        low, high = torch.cat([-end, cuts]), torch.cat([cuts, end])
        return F.logsigmoid(high - f[..., :1]) + F.logsigmoid(f[..., :1] - low) + torch.log1p(-torch.exp(low - high))

    def at_nodes(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        """The log probabilities at the nodes of a Gauss–Hermite quadrature, [B, Q, C], and its weights [Q]."""
        f, weights = gaussian_expectation_nodes(mean[:, 0], variance[:, 0], self.nodes)
        return self.log_probabilities(f[..., None]), weights

    def expected_log_prob(self, mean: Tensor, variance: Tensor, y: Tensor, draws: Tensor, params: Params) -> Tensor:
        """E[log p(y | f)] by quadrature."""
        log_p, weights = self.at_nodes(mean, variance)
        return at_class(log_p, y[:, None]) @ weights

    def log_prob(self, f: Tensor, y: Tensor, params: Params) -> Tensor:
        """log p(y | f)."""
        return at_class(self.log_probabilities(f), y)

    def probabilities(self, mean: Tensor, variance: Tensor, draws: Tensor) -> Tensor:
        """p(y = c) = E[p(class c | f)] by quadrature, [B, C]."""
        log_p, weights = self.at_nodes(mean, variance)
        return log_p.exp().mT @ weights

    def divergence(self, old: Tensor, new: Tensor, own: Tensor, params: Params) -> Tensor:
        """Σ_c p_old (log p_old − log p_new)."""
        every = own[..., :1].expand(*own.shape[:-1], len(self.labels))
        return softmax_divergence(self.log_probabilities(old), self.log_probabilities(new), every)

    def fisher_terms(self, f: Tensor, params: Params) -> tuple[Tensor, Tensor]:
        """log p_c and p_c: the Fisher information is Σ_c p_c (∂ log p_c / ∂θ)²."""
        return super().fisher_terms(self.log_probabilities(f), params)

    def sample(self, f: Tensor, params: Params, generator: torch.Generator) -> Tensor:
        """Class c with probability p(class c | f)."""
        reached = self.log_probabilities(f).exp().cumsum(-1)[..., :-1]
        draws = torch.rand(f.shape[:-1], dtype=f.dtype, device=f.device, generator=generator)
        return (draws[..., None] > reached).sum(-1)


# -- a selection criterion ---------------------------------------------------------------------------------------------


def closest_pair(task: TaskData, index: Tensor) -> float:
    """−(smallest distance between the features of two inducing points): points far from each other are best."""
    return -float(torch.pdist(task.Phi[index]).min())


SPREAD = Criterion("spread", closest_pair)


# -- a method: a regulariser, its options and a name ------------------------------------------------------------------


@dataclass
class L1(Regulariser):
    """weight Σ_p |θ_p − θ_p at the start of the task|, in nats per example: only some weights change in a task."""

    weight: float = 1e-3
    start: Params = field(default_factory=dict, init=False, repr=False)
    name: ClassVar[str] = "l1"

    def begin(self, task: LearnedTask) -> None:
        self.start = {name: value.detach().clone() for name, value in task.theta.items()} if task.past else {}

    def constants(self, task: LearnedTask) -> Params:
        return self.start

    def penalty(self, step: Step, constants: Params, draws: Any) -> Tensor | None:
        if not constants:
            return None
        return (
            self.weight * torch.stack([(step.theta[name] - old).abs().sum() for name, old in constants.items()]).sum()
        )

    def end(self, task: LearnedTask, x: Tensor, y: Tensor, generator: torch.Generator) -> None:
        self.start = {}


@dataclass(frozen=True)
class L1Options(TrainingOptions):
    """Options of the method `l1`."""

    strength: float = option(1e-3, "weight of the penalty", NOT_NEGATIVE)

    def regularisers(self) -> list[Regulariser]:
        return [L1(self.strength)]


METHOD = Method(
    "l1",
    "L1 penalty on the change of the weights in a task",
    L1Options(),
    baseline("frcl.baselines.penalised:Penalised"),
)
