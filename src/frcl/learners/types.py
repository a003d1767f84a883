"""What the learner returns and what it keeps: predictions, step logs, summaries of past tasks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from frcl.errors import TaskError
from frcl.learners.accounting import Parts, parts_of
from frcl.likelihoods import Label, Likelihood
from frcl.summary import FunctionBelief
from frcl.trees import Params


@dataclass(frozen=True)
class Prediction:
    """What is believed about some inputs.

    mean, variance   of the functions f, [n, C] each (one function for a binary task with Bernoulli)
    probs            class probabilities [n, classes], columns as in `classes`; None for numeric targets
    labels           the most probable label of each input; None for numeric targets
    classes          the labels of the task; None for numeric targets
    target_mean, target_variance   of the target y, [n, C] each; None for classes
    task_probs       p(task | x) [n, T] where no task was named; None otherwise
    novelty          how unlike everything learned each input is, [n]: about 1 for inputs like those learned; None where
                     the method has no such measure

    Probabilities are those of f divided by the task's temperature, where it has one. Where no task was named, `mean`
    and `variance` are those of the indicators of the classes, or of the mixture of the tasks' functions for numeric
    targets.
    """

    mean: Tensor
    variance: Tensor
    probs: Tensor | None = None
    labels: Any = None
    classes: tuple[Label, ...] | None = None
    target_mean: Tensor | None = None
    target_variance: Tensor | None = None
    density: Callable[[Any], Tensor] | None = field(default=None, repr=False, compare=False)
    task_probs: Tensor | None = None
    novelty: Tensor | None = None

    def log_predictive(self, y: Any) -> Tensor:
        """log p(y | x) of targets y, one for each input, in nats, [n]."""
        if self.density is None:
            raise TaskError("this prediction has no density of targets; use probs")
        return self.density(y)


@dataclass(frozen=True)
class StepLog:
    """One gradient step, in nats per example: loss = −log_likelihood + kl_now + kl_past.

    `boundary` says that this minibatch began a new task; `statistic` is NaN where the detector made no test;
    `beside` is the statistic of the detector's second test, which decides nothing.
    """

    task: int
    step: int
    loss: float
    log_likelihood: float
    kl_now: float
    kl_past: float
    boundary: bool = False
    statistic: float = float("nan")
    beside: float = float("nan")


@dataclass(frozen=True)
class Summary:
    """All that is kept of a past task.

    Z                  inducing inputs [M, ...]; belief, q(u) there, with the σ_w and σ² of its prior
    likelihood         its likelihood with its targets; likelihood_params, what was learned with it
    size               N, its number of examples
    before, after      the selection's objective at its start and at Z; None where Z was chosen before learning
    head               [C, K], the mean of w, where something needs it; f(x) = φ(x)ᵀ w
    spread             [C], where a head predicts: how much less uncertain the functions were when the task ended than
                       the points alone say, as a ratio of mean variances
    temperature        class probabilities are those of f divided by it, where examples were held out to find it
    """

    Z: Tensor
    belief: FunctionBelief
    likelihood: Likelihood
    likelihood_params: Params
    size: int
    before: float | None
    after: float | None
    head: Tensor | None = None
    spread: Tensor | None = None
    temperature: Tensor | None = None

    def bytes(self) -> int:
        """Memory that this summary takes."""
        return sum(self.parts().values())

    def parts(self) -> Parts:
        """The same by kind."""
        learned = [self.belief.mean, self.belief.factor, *self.likelihood_params.values()]
        learned += [one for one in (self.spread, self.temperature) if one is not None]
        heads = [] if self.head is None else [self.head]
        return parts_of({"points": [self.Z], "posterior": learned, "heads": heads})
