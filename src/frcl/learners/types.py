"""What the learner hands out and what it keeps: predictions, step logs, summaries of past tasks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from frcl.learners.accounting import Parts, parts_of
from frcl.learners.targets import Label, TargetSpec
from frcl.summary import FunctionBelief


@dataclass(frozen=True)
class Prediction:
    """What is believed about some inputs.

    mean, variance   of the functions f, [n, C] each (one function for a binary task with Bernoulli)
    probs            class probabilities [n, classes], columns as in `classes`; None for regression. Of f over the
                     task's temperature, where it has one
    labels           the most probable label value of each input; None for regression
    classes          the label values of the task; None for regression
    noise            learned noise variance of the targets [C] for regression: y has variance + noise
    """

    mean: Tensor
    variance: Tensor
    probs: Tensor | None
    labels: Any
    classes: tuple[Label, ...] | None
    noise: Tensor | None


@dataclass(frozen=True)
class StepLog:
    """One gradient step, in nats per example: loss = −log_likelihood + kl_now + kl_past.

    `statistic` is NaN where the detector made no test; `boundary` says that this minibatch began a new task; `beside`
    is the statistic of the detector's other test, the one that decides nothing.
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
    """All that is left of a past task: inducing inputs Z [M, ...], q(u), and what its targets were.

    size: how many examples it had; before, after: the selection's objective at its start and at Z, None where
    the points were there before the task was learned (function-space inference). head [C, K]: the mean of w, where
    something needs it; f(x) = φ(x)ᵀ w. spread [C]: how much less uncertain the functions were when the task ended
    than the points alone say, as a ratio of mean variances, where a head is what predicts. temperature []: class
    probabilities are those of f divided by it, where some examples were held out to find it.
    """

    Z: Tensor
    belief: FunctionBelief
    target: TargetSpec
    likelihood_params: dict[str, Tensor]
    size: int
    before: float | None
    after: float | None
    head: Tensor | None = None
    spread: Tensor | None = None
    temperature: Tensor | None = None

    def bytes(self) -> int:
        """Memory this summary takes."""
        return sum(self.parts().values())

    def parts(self) -> Parts:
        """The same by kind."""
        learned = [self.belief.mean, self.belief.factor, *self.likelihood_params.values()]
        learned += [one for one in (self.spread, self.temperature) if one is not None]
        heads = [] if self.head is None else [self.head]
        return parts_of({"points": [self.Z], "posterior": learned, "heads": heads})
