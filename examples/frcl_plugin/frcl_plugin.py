"""An example of a package that extends frcl: a benchmark, a likelihood, a criterion and a method.

frcl finds them through the entry points in pyproject.toml; nothing of frcl is changed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from frcl import OptionError, Regulariser
from frcl.baselines.options import TrainingOptions
from frcl.data import BenchmarkSpec, Request, Split, Task, TaskList
from frcl.likelihoods.base import ClassLikelihood, softmax_divergence
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


def _log_ndtr(f: Tensor) -> Tensor:
    """log Φ(f), from functions that torch.vmap can batch."""
    low, high = f.clamp(max=0.0) / math.sqrt(2), f.clamp(min=0.0) / math.sqrt(2)
    tail = torch.log(0.5 * torch.special.erfcx(-low)) - low.square()
    return torch.where(f < 0, tail, torch.log1p(-0.5 * torch.erfc(high)))


def _log_probabilities(f: Tensor) -> Tensor:
    """[log p(class 0), log p(class 1)] of the first function of f [..., C'], [..., 2]."""
    return torch.cat([_log_ndtr(-f[..., :1]), _log_ndtr(f[..., :1])], -1)


@dataclass(frozen=True)
class Probit(ClassLikelihood):
    """p(class 1 | f) = Φ(f), the normal distribution function; two classes and one function."""

    name: ClassVar[str] = "probit"
    nodes: int = 64

    def __post_init__(self) -> None:
        if len(self.labels) != 2:
            raise OptionError(f'likelihood "probit" is for 2 classes; this task has {len(self.labels)}')

    @property
    def functions(self) -> int:
        return 1

    def expected_log_prob(self, mean: Tensor, variance: Tensor, y: Tensor, draws: Tensor, params: Params) -> Tensor:
        """E[log Φ((2y − 1) f)] by Gauss–Hermite quadrature."""
        f, weights = gaussian_expectation_nodes(mean[:, 0], variance[:, 0], self.nodes)  # [B, Q]
        sign = (2 * y - 1).to(mean.dtype)
        return _log_ndtr(sign[:, None] * f) @ weights

    def log_prob(self, f: Tensor, y: Tensor, params: Params) -> Tensor:
        """log Φ((2y − 1) f)."""
        return _log_ndtr((2 * y - 1).to(f.dtype) * f[..., 0])

    def probabilities(self, mean: Tensor, variance: Tensor, draws: Tensor) -> Tensor:
        """p(class 1) = Φ(μ/√(1 + σ²)), exact; [B, 2]."""
        z = mean[:, 0] / (1 + variance[:, 0]).sqrt()
        return torch.stack([torch.special.ndtr(-z), torch.special.ndtr(z)], 1)

    def divergence(self, old: Tensor, new: Tensor, own: Tensor, params: Params) -> Tensor:
        """KL of two Bernoulli distributions."""
        both = own[..., :1].expand(*own.shape[:-1], 2)
        return softmax_divergence(_log_probabilities(old), _log_probabilities(new), both)

    def fisher_terms(self, f: Tensor, params: Params) -> tuple[Tensor, Tensor]:
        """f and N(f | 0, 1)²/(Φ(f) Φ(−f)), the Fisher information of f."""
        log_density = -0.5 * (f.square() + math.log(2 * math.pi))
        log_p = _log_probabilities(f).sum(-1, keepdim=True)
        return f, (2 * log_density - log_p).exp().detach()

    def sample(self, f: Tensor, params: Params, generator: torch.Generator) -> Tensor:
        """Class 1 with probability Φ(f)."""
        draws = torch.rand(f.shape[:-1], dtype=f.dtype, device=f.device, generator=generator)
        return (draws < torch.special.ndtr(f[..., 0])).long()


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
