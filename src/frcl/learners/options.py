"""The options of FRCL, in one place: what each means, its default, its range."""

from __future__ import annotations

import difflib
import math
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args

import numpy as np

from frcl.errors import OptionError
from frcl.selection import Criterion, Recipe, Search, Start

LikelihoodName = Literal["auto", "bernoulli", "softmax", "robustmax", "gaussian"]
Inference = Literal["weight", "function"]
Predicted = Literal["summary", "head", "corrected"]


@dataclass(frozen=True)
class FRCLOptions:
    """Everything that can be set on an `FRCL` learner."""

    points: int = 40  # inducing points kept per task
    points_per_class: int | None = None  # instead of `points`: this many for each class of a task

    # the model
    prior_std: float = 1.0  # σ_w, prior standard deviation of each last-layer weight
    feature_scale: float = 1.0  # features are the network's outputs times this
    u_noise: float = 1e-3  # σ², variance of u around f(Z): with M > K it is the strength of the regulariser
    likelihood: LikelihoodName = "auto"  # auto: bernoulli for 2 classes, softmax for more, gaussian for floats
    samples: int = 8  # Monte Carlo samples a step (softmax)
    predict_samples: int = 64  # Monte Carlo samples of a prediction (softmax)
    target_noise: float = 0.1  # starting value of the learned noise variance (gaussian)

    # inference for the current task
    inference: Inference = "weight"  # Section 2.3, or "function" for Sections 2.1 and 2.2
    learn_inputs: bool = False  # function: learn Z as pseudo-inputs instead of keeping data points
    initial_scale: float = 0.1  # L starts at this times I; Algorithm 1 has 1, with which early learning is slow
    prior_weight: float = 1.0  # weight of the current task's own KL; the ELBO has 1, and above it q is wider

    # optimisation
    steps: int = 1000  # gradient steps of fit() a task
    batch_size: int = 128  # minibatch of fit()
    lr: float = 1e-3  # Adam's learning rate
    lr_decay: float = 0.0  # fit(): over this share of the steps, the last ones, the rate falls to zero
    past_tasks_per_step: int | None = None  # at most this many past KL terms a step; None: all

    # what holds the past; each weight in nats per example, 0: off
    functional: float = 1.0  # the paper's KL at the inducing points
    current_inputs: float = 0.0  # old functions, as they were when the task began, at the inputs of the minibatch
    memory_targets: float = 0.0  # predictive distributions stored at the points, which stand for N/M examples each
    curvature: float = 0.0  # diagonal Fisher anchor on the shared weights, running over tasks
    curvature_decay: float = 1.0  # γ: what remains of the old Fisher information when a task is added
    fisher_examples: int = 2000  # examples that the Fisher information is averaged over
    train_heads: bool = True  # whether heads of old tasks go on being trained where a hold uses them
    prediction: Predicted = "summary"  # of an old task: Section 2.5, its "head", or that "corrected" by the summary
    head_variance: float = 1.0  # where a head predicts: the share of its variance that counts

    # calibration
    held_out: float = 0.0  # share of fit()'s examples, counted in N, that only serve to choose a temperature

    # selection of the inducing points
    selection: Criterion = "trace"
    search: Search = "swap"  # "greedy" is for the trace alone
    search_steps: int = 1000  # proposals of a swap search
    search_examples: int = 10_000  # supervised criteria look at no more than this many examples
    start: Start = "uniform"  # where a search starts, and what "random" keeps; or "balanced" over classes

    # streams
    task_size: int = 10_000  # N of a task learned by observe() when start_task() did not say
    window: int = 2_000  # examples of the current task that observe() keeps to choose points from

    seed: int = 0

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            value = getattr(self, name)
            if value not in choices:
                raise OptionError(f"{name}={value!r} is unknown; choose one of {', '.join(choices)}")
        for name in _WHOLE:
            value = getattr(self, name)
            if value is None and name in ("points_per_class", "past_tasks_per_step"):
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise OptionError(f"{name} must be a whole number of at least 1, not {value!r}")
        for name in _POSITIVE:
            value = getattr(self, name)
            if not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
                raise OptionError(f"{name} must be a positive number, not {value!r}")
        for name in _NOT_NEGATIVE:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
                raise OptionError(f"{name} must be a number that is not negative, not {value!r}")
        if self.lr_decay > 1:
            raise OptionError(f"rate_decay is a share of the steps, from 0 to 1, not {self.lr_decay!r}")
        if self.held_out > 0.5:
            raise OptionError(f"held_out is a share of the examples, from 0 to 0.5, not {self.held_out!r}")
        if not isinstance(self.train_heads, bool):
            raise OptionError(f"train_heads is True or False, not {self.train_heads!r}")
        if not isinstance(self.seed, int) or isinstance(self.seed, bool) or self.seed < 0:
            raise OptionError(f"seed must be a whole number, not negative; got {self.seed!r}")
        if self.search == "greedy" and self.selection != "trace":
            raise OptionError(f'search="greedy" is for selection="trace", not for {self.selection!r}')
        if self.inference == "function" and self.selection not in ("random", "trace"):
            raise OptionError(
                f'inference="function" chooses its points before learning, so selection is "random" or "trace", '
                f"not {self.selection!r}"
            )
        if self.learn_inputs and self.inference != "function":
            raise OptionError('learn_inputs=True needs inference="function"')

    @property
    def prior_variance(self) -> float:
        """σ_w²."""
        return self.prior_std**2

    @property
    def uses_heads(self) -> bool:
        """Whether something holds the past through heads of old tasks."""
        return self.current_inputs > 0 or self.memory_targets > 0

    @property
    def keeps_heads(self) -> bool:
        """Whether the head of a task is kept when the task is over."""
        return self.uses_heads or self.prediction != "summary"

    @property
    def recipe(self) -> Recipe:
        """How inducing points are chosen."""
        return Recipe(self.selection, self.search, self.search_steps, self.search_examples)


_CHOICES: dict[str, tuple[str, ...]] = {
    "likelihood": get_args(LikelihoodName),
    "inference": get_args(Inference),
    "prediction": get_args(Predicted),
    "selection": get_args(Criterion),
    "search": get_args(Search),
    "start": get_args(Start),
}
_WHOLE = (
    "points", "points_per_class", "samples", "predict_samples", "steps", "batch_size", "past_tasks_per_step",
    "search_steps", "search_examples", "task_size", "window", "fisher_examples",
)  # fmt: skip
HOLDS = ("functional", "current_inputs", "memory_targets", "curvature")  # what holds the past, each with a weight
_NOT_NEGATIVE = (*HOLDS, "curvature_decay", "lr_decay", "held_out")
_POSITIVE = (
    "prior_std", "feature_scale", "u_noise", "target_noise", "initial_scale", "lr", "prior_weight",
    "head_variance",
)  # fmt: skip

PLUS = FRCLOptions(
    lr_decay=0.5, current_inputs=0.1, memory_targets=1.0, curvature=10.0, train_heads=False, prediction="head",
    head_variance=0.1,
)  # fmt: skip
"""FRCL+: every hold on; old tasks predicted by their heads, which stay as they were; a rate that falls.

Chosen on validation data, mostly of Split- and Permuted-MNIST with 2 and 10 points (docs/frcl-plus.md).
"""


def changed(options: FRCLOptions, changes: dict[str, Any]) -> FRCLOptions:
    """The options with some changed by name; an unknown name is refused, with the nearest one."""
    known = [field.name for field in fields(FRCLOptions)]
    for name in changes:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; known are {', '.join(known)}"
            raise OptionError(f"unknown option {name!r}{hint}")
    plain = {name: value.item() if isinstance(value, np.generic) else value for name, value in changes.items()}
    return replace(options, **plain)
