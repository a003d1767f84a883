"""The detector: a test of each minibatch, waiting times, and a state that can be saved."""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from frcl.boundary.profile import InputTest, Profile
from frcl.boundary.score import welch
from frcl.boundary.sequential import Change, SequentialTest, log_run_length
from frcl.errors import CheckpointError, DataError, OptionError

TINY = 1e-30  # under a logarithm: a score of exactly zero is as surprising as it gets
LEAST_RUN = 100  # shorter runs are over before there is enough to compare with
FLOOR = 1e-3  # standard error of mean log-scores below which a fall is none


@dataclass(frozen=True)
class Decision:
    """What the detector says of one minibatch; a statistic is NaN where no test was made.

    At a boundary `change` is "sharp" or "gradual", and the `age` minibatches before this one already belong to the new
    task, as far as can be estimated.
    """

    boundary: bool
    statistic: float
    beside: float = math.nan  # of the test that decides nothing
    change: Change = ""
    age: int = 0


class BoundaryDetector:
    """A test of each minibatch's scores against those before it, which declares a switch when they have fallen.

    By default the test is calibrated: it compares windows of 1 to 64 minibatches with the trend before, and declares a
    switch by mistake about once in `expected_run` minibatches. With `threshold` it is the paper's, Welch's test.

    Parameters
    ----------
    threshold : float, optional
        Make Welch's test, and declare a switch when its statistic exceeds the threshold (the paper: 5). `expected_run`,
        `labels` and `inputs` are not used then; `window`, `rescore`, `beside` and `aggregate` are used then only.
    expected_run : float
        Minibatches between two false alarms, on average.
    labels : bool
        Also test the predictive density of the labels, where it is given: labels may change while inputs do not.
    inputs : bool
        Also test the inputs themselves, where fixed features of them are given: their distance to those before.
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
    warm_up : int, optional
        Minibatches before the first test of all (starting_time in Algorithm 1); by default 10 with a threshold, else 5.
    minimum_time : int, optional
        Minibatches that a task lasts before a switch can be declared; by default as `warm_up`.
    pause : int, optional
        Minibatches without a test after a switch; by default as `warm_up`.
    """

    def __init__(
        self,
        threshold: float | None = None,
        *,
        expected_run: float = 10_000,
        labels: bool = True,
        inputs: bool = True,
        window: int = 1,
        rescore: bool = False,
        beside: int = 0,
        all_functions: bool = False,
        log_space: bool = True,
        aggregate: Literal["max", "median", "mean"] = "max",
        warm_up: int | None = None,
        minimum_time: int | None = None,
        pause: int | None = None,
    ) -> None:
        usual = 5 if threshold is None else 10
        warm_up, minimum_time, pause = (usual if one is None else one for one in (warm_up, minimum_time, pause))
        if aggregate not in ("max", "median", "mean"):
            raise OptionError(f'aggregate is "max", "median" or "mean", not {aggregate!r}')
        if window < 1:
            raise OptionError(f"window must be at least 1 minibatch, not {window}")
        if rescore and beside > window:
            raise OptionError(f"with rescore, beside is at most window, {window} minibatches, not {beside}")
        if min(warm_up, minimum_time, pause, beside) < 0:
            raise OptionError("warm_up, minimum_time, pause and beside count minibatches and cannot be negative")
        if threshold is not None and not math.isfinite(threshold):
            raise OptionError(f"threshold must be a finite number, not {threshold}")
        if not LEAST_RUN <= expected_run < math.inf:
            raise OptionError(
                f"expected_run must be a number of minibatches of at least {LEAST_RUN}, not {expected_run}"
            )
        if threshold is None and (rescore or beside or window > 1):
            raise OptionError("window, rescore and beside belong to Welch's test; give its threshold too, such as 5")
        self.threshold = threshold
        self.expected_run = float(expected_run)
        self.labels = labels
        self.inputs = inputs
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
        self._tests: dict[str, SequentialTest] = {}  # of the scores, and of the labels' density
        self._inputs: InputTest | None = None
        self.ended: Profile | None = None  # what was known of the inputs at the last boundary
        self._in_task = 0
        self._wait = warm_up + minimum_time

    @property
    def level(self) -> float:
        """The statistic above which a switch is declared: the threshold, or log₁₀ of the expected run."""
        return math.log10(self.expected_run) if self.threshold is None else self.threshold

    @property
    def due(self) -> bool:
        """Whether the next minibatch would be tested, as far as time goes."""
        return self._in_task >= self._wait

    @property
    def tests_labels(self) -> bool:
        """Whether update() has a use for the labels' density: to test it, or to know the task again."""
        return self.labels and not self.rescore

    def update(
        self,
        scores: Tensor,
        *,
        allow: bool = True,
        reference: Tensor | None = None,
        functions: Sequence[int] | None = None,
        log_density: Tensor | None = None,
        features: Tensor | None = None,
    ) -> Decision:
        """Look at the scores of the next minibatch, [B] or [B, C]; with allow=False learn from it only.

        With `rescore` the reference is what the caller gives: scores of the last minibatches, [n, C], by the same model
        as `scores`; without any no test is made. `functions` are those that are tested, all for None: scores of a class
        that the task has not shown yet only tell how far its function is on the way back to the prior. `log_density`
        are log-densities of the labels, [n], of the examples whose labels are to be tested. `features` [B, R] are fixed
        features of the inputs.
        """
        values = self._prepare(scores)
        allow = allow and self.due and len(values) > 1
        dense = None if log_density is None else self._finite(log_density)
        tested: dict[str, float] = {}
        if features is not None:
            if self._inputs is None or self._inputs.sum.shape != features.shape[1:]:
                self._inputs = InputTest(features.shape[1])
            tested["inputs"] = self._inputs.test(self._finite(features).numpy())
        if self.threshold is not None:
            found = self._welch(values, allow, reference, functions)
        else:
            tested = tested if self.inputs else {}
            found = self._calibrated(values, dense if self.labels else None, allow, functions, tested)
        if found.boundary:
            self.ended = self.profile()
            self.reset()
            return found
        self._in_task += 1
        if self.threshold is not None:
            self._reference.append(values)
        if features is not None and self._inputs is not None:
            known = None if dense is None or not len(dense) else float(dense.mean())
            self._inputs.learn(self._finite(features).numpy(), known)
        return found

    def profile(self) -> Profile | None:
        """What is known of the inputs of the task; None where no features were given, or too few."""
        return None if self._inputs is None else self._inputs.profile()

    def reset(self) -> None:
        """Begin a new task: forget the reference and wait again before testing."""
        self._reference.clear()
        self._tests.clear()
        self._inputs = None
        self._in_task = 0
        self._wait = max(self.pause, self.minimum_time)

    # -- the calibrated test ----------------------------------------------------------------------------------

    def _calibrated(
        self, values: Tensor, dense: Tensor | None, allow: bool, functions: Sequence[int] | None,
        found: dict[str, float],
    ) -> Decision:  # fmt: skip
        """The largest statistic of the tests, each for its part of the false alarms; some are `found` already."""
        columns = list(range(values.shape[1])) if functions is None else sorted(functions)
        given = {"scores": (values, columns), "labels": (dense[:, None] if dense is not None else values[:0], [0])}
        for name, (sample, own) in given.items():
            if len(sample) < 2 or not own:
                continue
            test = self._tests.get(name)
            if test is None or test.functions != sample.shape[1]:
                test = self._tests[name] = SequentialTest(functions=sample.shape[1], floor=self._floor(name))
            mean, variance = sample.mean(0).numpy()[None], sample[:, own].mean(1).var(0, correction=1).numpy()[None]
            found[name] = float(test.update(mean, variance, len(sample), own)[0])
        name = max(found, key=lambda one: found[one], default="")
        if not allow or not name or not math.isfinite(found[name]):
            return Decision(False, math.nan)
        statistic = float(log_run_length(found[name])) - math.log10(len(found))
        if statistic <= self.level:
            return Decision(False, statistic)
        assert self._inputs is not None or name != "inputs"
        point = (self._inputs if name == "inputs" else self._tests[name]).change_point()  # type: ignore[union-attr]
        return Decision(True, statistic, change=point.change, age=point.age)

    def _floor(self, name: str) -> float:
        return FLOOR if self.log_space or name == "labels" else 1e-12

    # -- the paper's test -------------------------------------------------------------------------------------

    def _welch(
        self, values: Tensor, allow: bool, reference: Tensor | None, functions: Sequence[int] | None
    ) -> Decision:
        assert self.threshold is not None
        if self._reference and self._reference[-1].shape[1] != values.shape[1]:
            self._reference.clear()
        statistic = beside = math.nan
        if allow:
            columns = slice(None) if functions is None else list(functions)
            given = self._prepare(reference) if self.rescore and reference is not None else None
            statistic = self._statistic(self._old(self.window, given), values, columns)
            if self.beside:
                last = None if given is None else given[-self.beside * len(values) :]
                beside = self._statistic(self._old(self.beside, last), values, columns)
        boundary = statistic > self.threshold
        return Decision(boundary, statistic, beside, "sharp" if boundary else "")

    def _old(self, window: int, given: Tensor | None) -> Tensor | None:
        """What the minibatch is compared with; None if there is nothing to compare it with."""
        if self.rescore:
            return given
        last = list(self._reference)[-window:]
        return torch.cat(last) if last else None

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

    # -- the border -----------------------------------------------------------------------------------------

    def _prepare(self, scores: Tensor) -> Tensor:
        if scores.ndim not in (1, 2) or len(scores) == 0:
            raise DataError(f"scores must be [batch] or [batch, functions]; got shape {tuple(scores.shape)}")
        values = self._finite(scores).reshape(len(scores), -1)
        if self.log_space:
            if bool((values < 0).any()):
                raise DataError("scores must not be negative when the test is made in log space")
            values = values.clamp_min(TINY).log()
        return values

    def _finite(self, scores: Tensor) -> Tensor:
        values = scores.detach().to("cpu", torch.float64)
        if not bool(values.isfinite().all()):
            raise DataError("scores must be finite")
        return values

    def grow(self, functions: int, places: Sequence[int] | None) -> None:
        """The task has more functions now: those before have these places; None: none of them continues."""
        test = self._tests.get("scores")
        if test is not None and places is None:
            del self._tests["scores"]
        elif test is not None and places is not None:
            test.grow(functions, places)

    def options(self) -> dict[str, Any]:
        """What the constructor was given, to make the same detector again."""
        names = (
            "threshold", "expected_run", "labels", "inputs", "window", "rescore", "beside", "all_functions",
            "log_space", "aggregate", "warm_up", "minimum_time", "pause",
        )  # fmt: skip
        return {name: getattr(self, name) for name in names}

    def state_dict(self) -> dict[str, Any]:
        """The reference and the counters, for a resume that continues bit for bit."""
        return {
            "in_task": self._in_task,
            "wait": self._wait,
            "reference": [values.clone() for values in self._reference],
            "tests": {name: test.state_dict() for name, test in self._tests.items()},
            "inputs": None if self._inputs is None else self._inputs.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where the detector that gave `state` was; refused as a whole if it does not fit."""
        counts, reference, tests = (state["in_task"], state["wait"]), state["reference"], state["tests"]
        if any(type(count) is not int or count < 0 for count in counts):
            raise CheckpointError(f"the detector's state counts minibatches, but has {counts}")
        for values in reference:
            fits = isinstance(values, Tensor) and values.ndim == 2 and values.dtype == torch.float64
            if not fits or not bool(values.isfinite().all()):
                raise CheckpointError("the detector's state has a reference that is not made of finite scores")
        if not isinstance(tests, Mapping) or tests.keys() - {"scores", "labels"}:
            raise CheckpointError("the detector's state has tests that it does not know")
        restored = {name: self._restored(name, own) for name, own in tests.items()}
        inputs = None if state["inputs"] is None else InputTest.restored(state["inputs"])
        self._in_task, self._wait = counts
        self._reference = deque((values.clone() for values in reference), maxlen=self._reference.maxlen)
        self._tests, self._inputs = restored, inputs

    def _restored(self, name: str, state: dict[str, Any]) -> SequentialTest:
        sums = state.get("sums")
        if not isinstance(sums, Tensor) or sums.ndim != 3:
            raise CheckpointError("the state of the detector is incomplete, or not one of this detector")
        test = SequentialTest(functions=sums.shape[2], floor=self._floor(name))
        test.load_state_dict(state)
        return test
