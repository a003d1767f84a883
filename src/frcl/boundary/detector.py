"""The detector: a test of each minibatch, waiting times, and a state that can be saved."""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, get_args

import torch
from torch import Tensor

from frcl.boundary.aftermath import Aftermath
from frcl.boundary.profile import InputTest, Profile
from frcl.boundary.score import welch
from frcl.boundary.sequential import Change, SequentialTest, load_state, log_run_length, size_in, state_of
from frcl.boundary.settings import DetectorSettings
from frcl.errors import CheckpointError, DataError
from frcl.options import shows_options

TINY = 1e-30  # under a logarithm: a score of exactly zero is as surprising as it gets
KNOWN_SHARE = 0.9  # of the labels of a minibatch that a task must have, where it is taken to be that task
KNOWING = 0.8  # of a guess: a head with a larger share of its negative log-density hardly knows the labels
FLOOR = 1e-3  # standard error of mean log-scores below which a fall is none


@dataclass(frozen=True)
class Decision:
    """What the detector says of one minibatch; a statistic is NaN where no test was made.

    At a boundary `change` is "sharp" or "gradual", and the `age` minibatches before this one already come after it, as
    far as can be estimated. Where `continues` the labels are predicted as well as before: the inputs have changed, the
    task has not.
    """

    boundary: bool
    statistic: float
    beside: float = math.nan  # of the test that decides nothing
    change: Change = ""
    age: int = 0
    continues: bool = False


@dataclass
class Watched:
    """What changes while a stream is watched."""

    wait: int  # minibatches before the next test
    reference: deque[Tensor]  # the last ones, for Welch's test
    in_task: int = 0
    tests: dict[str, SequentialTest] = field(default_factory=dict)  # of the scores, and of the labels' density
    inputs: InputTest | None = None
    ended: Profile | None = None  # what was known of the inputs at the last boundary
    before: tuple[SequentialTest | None, InputTest | None] = (None, None)  # tests of labels and inputs at that boundary
    change: Change = ""  # at the last boundary; `after`: what came after it
    after: Aftermath | None = None


@shows_options(DetectorSettings())
@dataclass(frozen=True)
class BoundaryDetector(DetectorSettings):
    """A test of each minibatch's scores against those before it, which declares a switch when they have fallen.

    By default the test is calibrated: it compares windows of 1 to 64 minibatches with the trend before, and declares a
    switch by mistake about once in `expected_run` minibatches. With `threshold` it is the paper's, Welch's test. Unless
    `rescore` is given, its reference is scored by the model as it was: then every step of learning moves the scores a
    little, and over ten minibatches that looks like a change.
    """

    _now: Watched = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        reference = deque[Tensor](maxlen=0 if self.rescore else max(self.beside, self.window))
        object.__setattr__(self, "_now", Watched(self.waits.warm_up + self.waits.minimum_time, reference))

    @property
    def ended(self) -> Profile | None:
        """What was known of the inputs at the last boundary."""
        return self._now.ended

    @property
    def change(self) -> Change:
        """How the data changed at the last boundary; what came since may show that a "sharp" change goes on."""
        after = self._now.after
        return "gradual" if after is not None and after.goes_on() else self._now.change

    @property
    def level(self) -> float:
        """The statistic above which a switch is declared: the threshold, or log₁₀ of the expected run."""
        return math.log10(self.expected_run) if self.threshold is None else self.threshold

    @property
    def due(self) -> bool:
        """Whether the next minibatch would be tested, as far as time goes."""
        return self._now.in_task >= self._now.wait

    @property
    def compares(self) -> bool:
        """Whether the scores of a minibatch are best compared with those of the task's first one by the same model."""
        return self.threshold is None

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
        guess: float | None = None,
    ) -> Decision:
        """Look at the scores of the next minibatch, [B] or [B, C]; with allow=False learn from it only.

        With `rescore` the reference is what the caller gives: scores of the last minibatches, [n, C], by the same model
        as `scores`; without any no test is made. `functions` are those that are tested, all for None: scores of a class
        that the task has not shown yet only tell how far its function is on the way back to the prior. Without a
        threshold, what is tested is by how much the scores differ from the mean of such a reference, always the same
        inputs of the task: what learning does to the scores of all inputs is no change of the data. `log_density`
        are log-densities of the labels, [n], of the examples whose labels are to be tested. `features` [B, R] are fixed
        features of the inputs. `guess` is the log-density of labels that are guessed, all of them alike.
        """
        values = self._prepare(scores)
        allow = allow and self.due and len(values) > 1
        dense = None if log_density is None else self._finite(log_density)
        tested: dict[str, float] = {}
        if features is not None:
            if self._now.inputs is None or self._now.inputs.sum.shape != features.shape[1:]:
                self._now.inputs = InputTest(features.shape[1])
            tested["inputs"] = self._now.inputs.test(self._finite(features).numpy())
        if self.threshold is not None:
            found = self._welch(values, allow, reference, functions)
        else:
            tested = tested if self.inputs else {}
            if reference is not None:
                values = values - self._prepare(reference).mean(0)
            found = self._calibrated(values, dense if self.labels else None, allow, functions, tested)
        if found.boundary:
            if self.threshold is None and self._predicted(dense, len(values), guess):
                found = replace(found, continues=True)
            inputs, after = self._now.inputs, self._now.after
            if after is not None and after.goes_on():
                found = replace(found, change="gradual")  # the last change has not ended yet
            self._now.ended, self._now.before = self.profile(), (self._now.tests.get("labels"), inputs)
            self.reset()
            self._now.inputs = None if inputs is None else inputs.successor()
            self._now.change, ended = found.change, self._now.ended
            self._now.after = None if ended is None or self.threshold is not None else Aftermath.after(ended)
            return found
        self._now.in_task += 1
        if self.threshold is not None:
            self._now.reference.append(values)
        if features is not None and self._now.inputs is not None:
            known = None if dense is None or not len(dense) else float(dense.mean())
            self._now.inputs.learn(self._finite(features).numpy(), known)
            if self._now.after is not None:
                self._now.after.learn(self._finite(features).numpy())
        return found

    def profile(self) -> Profile | None:
        """What is known of the inputs of the task; None where no features were given, or too few."""
        return None if self._now.inputs is None else self._now.inputs.profile()

    def reset(self) -> None:
        """Begin a new task: forget the reference and wait again before testing."""
        self._now.reference.clear()
        self._now.tests.clear()
        self._now.inputs = self._now.after = None
        self._now.change, self._now.in_task = "", 0
        self._now.wait = max(self.waits.pause, self.waits.minimum_time)

    def _predicted(self, dense: Tensor | None, batch: int, guess: float | None) -> bool:
        """Whether the labels of a minibatch are about as probable as those before: then the head still serves.

        A head that says no more than a guess, neither before nor of these, cannot tell.
        """
        inputs = self._now.inputs
        if not self.labels or inputs is None or dense is None or len(dense) < KNOWN_SHARE * batch:
            return False
        density = float(dense.mean())
        knows = guess is None or max(inputs.density, density) >= KNOWING * guess
        return knows and inputs.expects(density)

    def go_on(self) -> None:
        """The task goes on after the boundary just declared: what was known of its labels is known of them still."""
        labels, inputs = self._now.before
        if labels is not None:
            self._now.tests["labels"] = labels
        if inputs is not None:
            self._now.inputs = inputs.with_new_inputs()

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
            test = self._now.tests.get(name)
            if test is None or test.functions != sample.shape[1]:
                test = self._now.tests[name] = SequentialTest(functions=sample.shape[1], floor=self._floor(name))
            mean, variance = sample.mean(0).numpy()[None], sample[:, own].mean(1).var(0, correction=1).numpy()[None]
            found[name] = float(test.update(mean, variance, len(sample), own)[0])
        name = max(found, key=lambda one: found[one], default="")
        if not allow or not name or not math.isfinite(found[name]):
            return Decision(False, math.nan)
        statistic = float(log_run_length(found[name])) - math.log10(len(found))
        if statistic <= self.level:
            return Decision(False, statistic)
        assert self._now.inputs is not None or name != "inputs"
        point = (self._now.inputs if name == "inputs" else self._now.tests[name]).change_point()  # type: ignore[union-attr]
        return Decision(True, statistic, change=point.change, age=point.age)

    def _floor(self, name: str) -> float:
        return FLOOR if self.log_space or name == "labels" else 1e-12

    # -- the paper's test -------------------------------------------------------------------------------------

    def _welch(
        self, values: Tensor, allow: bool, reference: Tensor | None, functions: Sequence[int] | None
    ) -> Decision:
        assert self.threshold is not None
        if self._now.reference and self._now.reference[-1].shape[1] != values.shape[1]:
            self._now.reference.clear()
        statistic = beside = math.nan
        if allow:
            columns = slice(None) if functions is None else list(functions)
            if self.rescore:
                old = values[:0] if reference is None else self._prepare(reference)
                last = old[-self.beside * len(values) :]
            else:
                past = [values[:0], *self._now.reference]
                old, last = (torch.cat(past[-window:]) for window in (self.window, self.beside))
            statistic = self._statistic(old, values, columns)
            beside = self._statistic(last, values, columns) if self.beside else math.nan
        boundary = statistic > self.threshold
        return Decision(boundary, statistic, beside, "sharp" if boundary else "")

    def _statistic(self, old: Tensor, values: Tensor, columns: list[int] | slice) -> float:
        """NaN where there is nothing to compare."""
        if not len(old) or not values[:, columns].shape[1]:
            return math.nan
        statistic = welch(old[:, columns], values[:, columns])
        if self.aggregate == "median":
            return float(statistic.quantile(0.5))
        return float(statistic.max() if self.aggregate == "max" else statistic.mean())

    # -- the border -----------------------------------------------------------------------------------------

    def _prepare(self, scores: Tensor) -> Tensor:
        if scores.ndim not in (1, 2) or len(scores) == 0:
            raise DataError(f"scores must be [batch] or [batch, functions]; got shape {tuple(scores.shape)}")
        values = self._finite(scores).reshape(len(scores), -1)
        if self.log_space and bool((values < 0).any()):
            raise DataError("scores must not be negative when the test is made in log space")
        return values.clamp_min(TINY).log() if self.log_space else values

    def _finite(self, scores: Tensor) -> Tensor:
        values = scores.detach().to("cpu", torch.float64)
        if not bool(values.isfinite().all()):
            raise DataError("scores must be finite")
        return values

    def grow(self, functions: int, places: Sequence[int] | None) -> None:
        """The task has more functions now: those before have these places; None: none of them continues."""
        test = self._now.tests.get("scores")
        if test is not None and places is None:
            del self._now.tests["scores"]
        elif test is not None and places is not None:
            test.grow(functions, places)

    def state_dict(self) -> dict[str, Any]:
        """The reference and the counters, for a resume that continues bit for bit."""
        now = self._now
        return {
            "in_task": now.in_task,
            "wait": now.wait,
            "reference": [values.clone() for values in now.reference],
            "tests": {name: state_of(test) for name, test in now.tests.items()},
            "inputs": None if now.inputs is None else state_of(now.inputs),
            "change": now.change,
            "after": None if now.after is None else state_of(now.after),
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
        restored = {}
        for name, own in tests.items():
            restored[name] = SequentialTest(functions=size_in(own, "sums", 3), floor=self._floor(name))
            load_state(restored[name], own)
        inputs = None
        if state["inputs"] is not None:
            inputs = InputTest(size_in(state["inputs"], "sum", 1))
            load_state(inputs, state["inputs"])
        after = None
        if state["after"] is not None:
            after = Aftermath.of(size_in(state["after"], "mean", 1))
            load_state(after, state["after"])
        if state["change"] not in get_args(Change):
            raise CheckpointError(f"a change is one of {get_args(Change)}, not {state['change']!r}")
        past = deque((values.clone() for values in reference), maxlen=self._now.reference.maxlen)
        in_task, wait = counts
        watched = Watched(wait, past, in_task, restored, inputs, self._now.ended, change=state["change"], after=after)
        object.__setattr__(self, "_now", watched)
