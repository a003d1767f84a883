"""Noticing by itself that the data changed (Section 3, Appendix E). Usable on any stream of scores."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from frcl.errors import DataError, OptionError
from frcl.posterior import Moments

TINY = 1e-30  # under a logarithm: a score of exactly zero is as surprising as it gets


def symmetrised_kl(moments: Moments, prior_variance: Tensor) -> Tensor:
    """ℓ = ½ [ KL(q‖p) + KL(p‖q) ] of q = N(μ, σ²) and p = N(0, k), [B, C]; prior_variance [B]:

        ℓ = ¼ [ (σ² + μ²)/k + (k + μ²)/σ² − 2 ] = ¼ [ (σ² − k)²/(σ² k) + μ² (1/k + 1/σ²) ]

    in the second form, which rounding cannot make negative. Small where the posterior has fallen back to the
    prior: the input is unlike what was learned.
    """
    k = prior_variance[:, None]
    square, variance = moments.mean.square(), moments.variance
    return 0.25 * ((variance - k).square() / (variance * k) + square * (1 / k + 1 / variance))


class WelchTest(NamedTuple):
    """The statistic and its Welch–Satterthwaite degrees of freedom, one per function [C]."""

    statistic: Tensor
    dof: Tensor


def welch(old: Tensor, new: Tensor) -> WelchTest:
    """Welch's t for "the mean of `new` is smaller than the mean of `old`"; [n_old, C], [n_new, C], unequal variances.

    t = (m_old − m_new) / √(s²_old/n_old + s²_new/n_new)
    """
    part_old = old.var(0, correction=1) / len(old)
    part_new = new.var(0, correction=1) / len(new)
    difference = old.mean(0) - new.mean(0)
    error = part_old + part_new
    statistic = torch.where(difference == 0, 0.0, difference / error.sqrt())
    dof = error.square() / (part_old.square() / (len(old) - 1) + part_new.square() / (len(new) - 1))
    return WelchTest(statistic, dof)


@dataclass(frozen=True)
class Decision:
    """What the detector says of one minibatch; a statistic is NaN where no test was made."""

    boundary: bool
    statistic: float
    beside: float = math.nan  # of the test that decides nothing


class BoundaryDetector:
    """Welch's one-sided test of each minibatch's scores against those before it.

    Parameters
    ----------
    threshold : float
        A switch is declared when the statistic exceeds it.
    window : int
        How many of the last minibatches make the reference (the paper: 1; it suggests 10).
    rescore : bool
        Score the reference again with the current model. Otherwise every step of learning between two minibatches moves
        the scores a little, and over ten of them that looks like a change.
    beside : int
        A second test with this many of the last minibatches, which decides nothing: it shows the statistic of a
        detector with such a window on the same stream. 0: none; with `rescore` at most `window`.
    all_functions : bool
        Also test the functions of classes that the task has not shown.
    log_space : bool
        Test log-scores, which the paper found more robust.
    aggregate : {"max", "median", "mean"}
        Of the statistics of the functions.
    warm_up : int
        Minibatches before the first test of all (starting_time in Algorithm 1).
    minimum_time : int
        Minibatches that a task lasts before a switch can be declared.
    pause : int
        Minibatches without a test after a switch.
    """

    def __init__(
        self,
        threshold: float = 5.0,
        *,
        window: int = 1,
        rescore: bool = False,
        beside: int = 0,
        all_functions: bool = False,
        log_space: bool = True,
        aggregate: Literal["max", "median", "mean"] = "max",
        warm_up: int = 10,
        minimum_time: int = 10,
        pause: int = 10,
    ) -> None:
        if aggregate not in ("max", "median", "mean"):
            raise OptionError(f'aggregate is "max", "median" or "mean", not {aggregate!r}')
        if window < 1:
            raise OptionError(f"window must be at least 1 minibatch, not {window}")
        if rescore and beside > window:
            raise OptionError(f"with rescore, beside is at most window, {window} minibatches, not {beside}")
        if min(warm_up, minimum_time, pause, beside) < 0:
            raise OptionError("warm_up, minimum_time, pause and beside count minibatches and cannot be negative")
        if not math.isfinite(threshold):
            raise OptionError(f"threshold must be a finite number, not {threshold}")
        self.threshold = threshold
        self.window = window
        self.rescore = rescore
        self.beside = beside
        self.all_functions = all_functions
        self.log_space = log_space
        self.aggregate = aggregate
        self.warm_up = warm_up
        self.minimum_time = minimum_time
        self.pause = pause
        self._reference: deque[Tensor] = deque(maxlen=0 if rescore else max(beside, window))
        self._in_task = 0
        self._wait = warm_up + minimum_time

    @property
    def due(self) -> bool:
        """Whether the next minibatch would be tested, as far as time goes."""
        return self._in_task >= self._wait

    def update(
        self,
        scores: Tensor,
        *,
        allow: bool = True,
        reference: Tensor | None = None,
        functions: Sequence[int] | None = None,
    ) -> Decision:
        """Look at the scores of the next minibatch, [B] or [B, C]; with allow=False learn from it only.

        With `rescore` the reference is what the caller gives: scores of the last minibatches, [n, C], by the same model
        as `scores`; without any no test is made. `functions` are those that are tested, all for None: scores of a class
        that the task has not shown yet only tell how far its function is on the way back to the prior.
        """
        values = self._prepare(scores)
        if self._reference and self._reference[-1].shape[1] != values.shape[1]:
            self._reference.clear()
        statistic = beside = math.nan
        if allow and self.due and len(values) > 1:
            columns = slice(None) if functions is None else list(functions)
            given = self._prepare(reference) if self.rescore and reference is not None else None
            statistic = self._statistic(self._old(self.window, given), values, columns)
            if self.beside:
                last = None if given is None else given[-self.beside * len(values) :]
                beside = self._statistic(self._old(self.beside, last), values, columns)
        if statistic > self.threshold:
            self.reset()
            return Decision(True, statistic, beside)
        self._reference.append(values)
        self._in_task += 1
        return Decision(False, statistic, beside)

    def _old(self, window: int, given: Tensor | None) -> Tensor | None:
        """What the minibatch is compared with; None if there is nothing to compare it with."""
        if self.rescore:
            return given
        last = list(self._reference)[-window:]
        return torch.cat(last) if last else None

    def reset(self) -> None:
        """Begin a new task: forget the reference and wait again before testing."""
        self._reference.clear()
        self._in_task = 0
        self._wait = max(self.pause, self.minimum_time)

    def _statistic(self, old: Tensor | None, values: Tensor, columns: list[int] | slice) -> float:
        if old is None or not values[:, columns].shape[1]:
            return math.nan
        statistic = welch(old[:, columns], values[:, columns]).statistic
        match self.aggregate:
            case "max":
                return float(statistic.max())
            case "median":
                return float(statistic.quantile(0.5))
            case "mean":
                return float(statistic.mean())

    def _prepare(self, scores: Tensor) -> Tensor:
        if scores.ndim not in (1, 2) or len(scores) == 0:
            raise DataError(f"scores must be [batch] or [batch, functions]; got shape {tuple(scores.shape)}")
        values = scores.detach().to("cpu", torch.float64).reshape(len(scores), -1)
        if not bool(values.isfinite().all()):
            raise DataError("scores must be finite")
        if self.log_space:
            if bool((values < 0).any()):
                raise DataError("scores must not be negative when the test is made in log space")
            values = values.clamp_min(TINY).log()
        return values

    def options(self) -> dict[str, Any]:
        """What the constructor was given, to make the same detector again."""
        names = (
            "threshold", "window", "rescore", "beside", "all_functions", "log_space", "aggregate",
            "warm_up", "minimum_time", "pause",
        )  # fmt: skip
        return {name: getattr(self, name) for name in names}

    def state_dict(self) -> dict[str, Any]:
        """The reference and the counters, for a resume that continues bit for bit."""
        return {
            "in_task": self._in_task,
            "wait": self._wait,
            "reference": [values.clone() for values in self._reference],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._in_task = state["in_task"]
        self._wait = state["wait"]
        self._reference = deque((values.clone() for values in state["reference"]), maxlen=self._reference.maxlen)
