"""A sequential test for a fall of scores, whose false alarms come at a known rate. Several streams at once.

Each minibatch is reduced to the mean score of each function. Four steps make its statistic:

1. Trend. A line through the last means, with exponentially decreasing weights, predicts the next one: scores of a model
   that is learning drift. The fall below the prediction is divided by its standard error.
2. Dependence. The part that the fall before it predicts, by the autocorrelation of falls, is subtracted: x.
3. Distribution. The p-value of x is its rank among the x before it, with a heavy tail beyond the largest of them; then
   its normal score g = Φ⁻¹(1 − p). So the distribution of the scores does not matter. A fall that one example of its
   minibatch makes alone is no rare one, even if there was none like it.
4. Windows. The statistic is max_w (g_t + … + g_{t−w+1}) / √(w v_w) over windows w of several lengths. v_w ≥ 1 is the
   variance of such sums so far, relative to that of independent scores.

`log_run_length` turns the statistic into log₁₀ of the mean number of minibatches until a stationary stream exceeds it.
"""

import math
from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from frcl.errors import CheckpointError

Floats = NDArray[np.float64]
Change = Literal["", "sharp", "gradual"]

WINDOWS = (1, 2, 4, 8, 16, 32, 64)  # lengths of the sums, in minibatches
NULL_VARIANCE = (0.98, 0.97, 0.94, 0.91, 0.87, 0.78, 0.64)  # of the sums over √w, about, for independent scores
RUN_LENGTH = (  # (statistic, log₁₀ of the mean run length): tools/run_length.py
    (2.0, 1.89), (2.25, 2.09), (2.5, 2.30), (2.75, 2.57), (3.0, 2.87),
    (3.25, 3.27), (3.5, 3.71), (3.75, 4.20), (4.0, 4.75), (4.25, 5.28),
)  # fmt: skip

FIRST = 10  # minibatches before there are falls, and falls before there are p-values
HISTORY = 500  # falls that a new one is ranked among, at most
LEAST_HISTORY = 30  # and at least, if there are that many; otherwise the later half
LAG = 8  # the last falls, which may already belong to another task, are not among them
TAIL, TAIL_SHARE, TAIL_LEAST = 0.5, 0.02, 5  # p decreases as y^(−1/TAIL) beyond this share of the history, at least 5
TREND_SHARE, TREND_LEAST, TREND_MOST = 5, 10, 100  # memory of the trend: this part of the task, within limits
GRADIENT_WEIGHT = 4.0  # a gradient may change by about twice its usual size
SPREAD_MEMORY = 20  # minibatches over which the variance within a minibatch is averaged
DEPENDENCE_MEMORY, MOST_DEPENDENCE = 2000, 0.9  # of the autocorrelation of falls
LIMIT = 3.5  # a larger fall, in root mean squares of falls, moves the trend no further
SUM_MEMORY = 1000  # minibatches over which the variance of sums is averaged
AT_ONCE = 2  # minibatches in which a sharp change is noticed
SLACK = 1.25  # the normal tail of a fall is that of one so much larger
TINY = 1e-12


class Line(NamedTuple):
    """A trend at the next minibatch, [S, C] each."""

    value: Floats
    gradient: Floats


class ChangePoint(NamedTuple):
    """How a fall began: `age`, the minibatches before the last one that already belong to it."""

    change: Change
    age: int


def log_run_length(statistic: Floats | float) -> Floats:
    """log₁₀ of the mean number of minibatches until a stationary stream exceeds the statistic.

    Interpolated in the table RUN_LENGTH, beyond its ends along its last pieces.
    """
    at, run = np.array(RUN_LENGTH).T
    gradients = np.diff(run) / np.diff(at)
    piece = np.clip(np.searchsorted(at, statistic) - 1, 0, len(gradients) - 1)
    found: Floats = run[piece] + gradients[piece] * (statistic - at[piece])
    return found


class SequentialTest:
    """The test of `streams` streams of scores of `functions` functions, all with the same numbers of examples.

    `floor` is the least standard error of a mean score: smaller falls are none.
    """

    def __init__(self, streams: int = 1, functions: int = 1, *, floor: float = 1e-3) -> None:
        S = streams
        self.floor = floor
        self.seen = self.falls = self.tested = 0  # minibatches, of which falls, of which p-values
        self.weights = np.zeros(3)  # Σ w, Σ w τ, Σ w τ², with τ = 0 at the last minibatch
        self.sums = np.zeros((2, S, functions))  # Σ w m, Σ w τ m
        self.fresh: list[int] = []  # functions of which no score was seen
        self.variance = np.zeros(S)  # of scores within a minibatch
        self.gradient_square = np.zeros(S)
        self.last = np.zeros((2, S))  # falls, the latest first
        self.products = np.zeros((3, S))  # mean products of a fall and itself, the one before, the one before that
        self.history = np.zeros((S, HISTORY + LAG))  # x, the latest last
        self.scores = np.zeros((S, 2 * WINDOWS[-1]))  # g, the latest last
        self.sum_variance = np.tile(np.array(NULL_VARIANCE), (S, 1))

    @property
    def functions(self) -> int:
        """C."""
        return int(self.sums.shape[2])

    def update(self, mean: Floats, variance: Floats, batch: int, functions: list[int] | None = None) -> Floats:
        """The statistic [S] of a minibatch of `batch` examples, −∞ while there is too little to compare it with.

        `mean` [S, C] are the mean scores; `variance` [S] is the variance, within the minibatch, of an example's score
        averaged over `functions`. These are tested, all for None; the others only have their trend followed.
        """
        statistic = np.full(len(mean), -np.inf)
        used = mean
        for c in self.fresh:  # as if its score had always been this one
            self.sums[:, :, c] = self.weights[:2, None] * mean[:, c]
        self.fresh = []
        if self.seen >= 2:
            line = self._line()
            error = mean - line.value  # [S, C]
            own = slice(None) if functions is None else functions
            keep = 1 / max(4.0, self.seen / 2) if self.seen > 3 else 1.0
            self.gradient_square += keep * (line.gradient[:, own].mean(1) ** 2 - self.gradient_square)
            spread, wider = (  # with the variance within the minibatches before, and within this one if that is larger
                np.maximum(one / batch, self.floor**2) + GRADIENT_WEIGHT * self.gradient_square
                for one in (self.variance, np.maximum(self.variance, variance))
            )
            fall = -error[:, own].mean(1) / np.sqrt(spread)
            if self.seen >= FIRST:
                statistic = self._tested(fall - (self._dependence() * self.last).sum(0), np.sqrt(spread / wider))
                fall, shrunk = self._limited(fall)
                used = line.value + shrunk[:, None] * error
            self.last = np.stack([fall, self.last[0]])
        self._follow(used, variance)
        return statistic

    def grow(self, functions: int, places: Sequence[int]) -> None:
        """There are more functions now, and those before have these places among them."""
        sums = np.zeros((*self.sums.shape[:2], functions))
        sums[..., list(places)] = self.sums
        fresh = {places[c] for c in self.fresh} | set(range(functions)) - set(places)
        self.sums, self.fresh = sums, sorted(fresh)

    def change_point(self, stream: int = 0) -> ChangePoint:
        """When and how the fall of a stream began: the step, or the ramp, that explains most of the last x.

        A step from w minibatches ago explains (Σ x)²/w of Σ x², a ramp (Σ r x)²/Σ r² with r = 1, …, w. A change is
        gradual if it is a ramp of at least 3 minibatches, or began more than AT_ONCE minibatches ago.
        """
        length = min(self.falls, 2 * WINDOWS[-1])
        x = self.history[stream, -length:][::-1] if length else np.zeros(1)  # the latest first
        w = np.arange(1, len(x) + 1)
        total, moment = np.cumsum(x), np.cumsum(w * x)  # Σ r x = (w + 1) Σ x − Σ i x_i, i = 1 for the latest
        step = np.maximum(total, 0) ** 2 / w
        ramp = np.maximum((w + 1) * total - moment, 0) ** 2 / (w * (w + 1) * (2 * w + 1) / 6)
        is_ramp = ramp[2:].max(initial=0.0) > step.max()
        age = int(ramp[2:].argmax()) + 2 if is_ramp else int(step.argmax())
        return ChangePoint("gradual" if is_ramp or age > AT_ONCE else "sharp", age)

    # -- steps ----------------------------------------------------------------------------------------------

    def _line(self) -> Line:
        """The weighted least-squares line, at τ = 1."""
        one, first, second = self.weights
        gradient = (one * self.sums[1] - first * self.sums[0]) / (one * second - first**2)
        return Line((self.sums[0] - gradient * first) / one + gradient, gradient)

    def _follow(self, mean: Floats, variance: Floats) -> None:
        """Add a minibatch to the trend and to the variance within minibatches."""
        memory = min(max(self.seen / TREND_SHARE, TREND_LEAST), TREND_MOST)
        one, first, second = self.weights
        forget = 1 - 1 / memory
        self.weights = forget * np.array([one, first - one, second - 2 * first + one]) + np.array([1.0, 0.0, 0.0])
        self.sums = forget * np.stack([self.sums[0], self.sums[1] - self.sums[0]])
        self.sums[0] += mean
        self.seen += 1
        self.variance = self.variance + (variance - self.variance) / min(self.seen, SPREAD_MEMORY)

    def _dependence(self) -> Floats:
        """The coefficients of the two falls before a fall, by the Yule–Walker equations, [2, S]."""
        one, two = self.products[1:] / np.maximum(self.products[0], TINY) * (self.falls / (self.falls + 10))
        one = np.clip(one, 0.0, MOST_DEPENDENCE)
        second = np.clip((two - one**2) / (1 - one**2), 0.0, MOST_DEPENDENCE)  # the partial autocorrelation
        return np.stack([one * (1 - second), second])

    def _limited(self, fall: Floats) -> tuple[Floats, Floats]:
        """The fall as far as it moves trend and dependence, and its ratio to the whole; updates the products."""
        most = LIMIT * np.sqrt(self.products[0]) if self.falls > 20 else np.full_like(fall, np.inf)
        ratio = np.minimum(1.0, most / np.maximum(np.abs(fall), TINY))
        fall = ratio * fall
        count = self.falls  # this one included
        memory = min(count, DEPENDENCE_MEMORY)
        self.products = self.products + (fall * np.stack([fall, *self.last]) - self.products) / memory
        return fall, ratio

    def _tested(self, x: Floats, share: Floats) -> Floats:
        """The statistic of x, which then belongs to the history; `share` as for p_value."""
        before = max(0, self.falls - LAG)
        n = min(before, HISTORY, max(LEAST_HISTORY, before // 2))
        p = (
            p_value(self.history[:, self.history.shape[1] - LAG - n : self.history.shape[1] - LAG], x, share)
            if n >= FIRST
            else None
        )
        self._keep(x)
        if p is None:
            return np.full_like(x, -np.inf)
        g = -torch.special.ndtri(torch.from_numpy(np.clip(p, 1e-300, 1 - 1e-12))).numpy()
        return self._summed(g)

    def _keep(self, x: Floats) -> None:
        self.history = np.concatenate([self.history[:, 1:], x[:, None]], 1)
        self.falls += 1

    def _summed(self, g: Floats) -> Floats:
        """The statistic after one more normal score."""
        self.scores = np.concatenate([self.scores[:, 1:], g[:, None]], 1)
        self.tested += 1
        return self._largest_sum()

    def without_dependence(self, fall: float) -> tuple[float, float]:
        """What the falls of one stream before do not predict of a fall of variance one, and its standard deviation."""
        return float(fall - (self._dependence() * self.last).sum()), math.sqrt(self._left())

    def independent_share(self) -> float:
        """The number of independent falls that tell as much of their mean as one of the falls of one stream."""
        return float(1 - self._dependence().sum()) ** 2 / self._left()

    def _left(self) -> float:
        """The variance that is left of a fall of one stream, of variance one, without its dependence."""
        one, two = (float(a) for a in self._dependence()[:, 0])
        left = 1 - two**2 if one == 0 else (1 - (one / (1 - two)) ** 2) * (1 - two**2)
        return max(left, 1 - MOST_DEPENDENCE)

    def follow_dependence(self, fall: float) -> None:
        """Take a fall of one stream into the dependence."""
        self._limited(np.array([fall]))
        self.last = np.stack([np.array([fall]), self.last[0]])

    def add_score(self, g: float) -> float:
        """The statistic of one stream after a normal score that was made elsewhere."""
        self._keep(np.array([g]))
        return float(self._summed(np.array([g]))[0])

    def _largest_sum(self) -> Floats:
        """max over windows; the variance of sums learns from the window before each."""
        total = np.cumsum(self.scores[:, ::-1], 1)
        statistic = np.full(len(total), -np.inf)
        for i, (w, usual) in enumerate(zip(WINDOWS, NULL_VARIANCE, strict=True)):
            if w > self.tested:
                break
            inflation = np.maximum(self.sum_variance[:, i] / usual, 1.0)
            statistic = np.maximum(statistic, total[:, w - 1] / np.sqrt(w * inflation))
            if 2 * w <= self.tested:
                before = total[:, 2 * w - 1] - total[:, w - 1]
                self.sum_variance[:, i] += (before**2 / w - self.sum_variance[:, i]) / min(
                    500 + self.tested, SUM_MEMORY
                )
        return statistic


def p_value(history: Floats, x: Floats, share: Floats | float = 1.0) -> Floats:
    """P(X ≥ x) of each stream, [S], by its history [S, n]; a drift of the history does not make it small.

    The largest of three: its rank; its rank if the distribution is symmetric around zero; for x > 0, its normal tail.
    In the last, x is in standard errors by the variance within its own minibatch, the `share` of x that it is so: one
    example that is far off, which may not have occurred in the history, is one standard error.
    """
    symmetric = 0.5 * upper_tail(np.abs(history), np.abs(x))
    symmetric = np.where(x >= 0, symmetric, 1 - symmetric)
    normal = torch.special.ndtr(torch.from_numpy(-SLACK * np.maximum(share * x, 0.0))).numpy()
    p: Floats = np.maximum(np.maximum(upper_tail(history, x), symmetric), normal)
    return p


def upper_tail(history: Floats, x: Floats) -> Floats:
    """(#{h ≥ x} + ½)/(n + 1); beyond the k-th largest, u, it is (k/(n + 1)) (1 + ξ (x − u)/s)^(−1/ξ).

    s is the mean excess over u of the larger ones.
    """
    n = history.shape[1]
    k = max(TAIL_LEAST, math.ceil(TAIL_SHARE * n))
    above = (history >= x[:, None]).sum(1)
    p: Floats = (above + 0.5) / (n + 1)
    far = np.nonzero(above < k)[0]
    if len(far):
        top = np.partition(history[far], n - k, axis=1)[:, n - k :]
        u = top.min(1)
        s = np.maximum((top - u[:, None]).sum(1) / (k - 1), TINY)
        p[far] = k / (n + 1) * (1 + TAIL * (x[far] - u) / s) ** (-1 / TAIL)
    return p


# -- state ---------------------------------------------------------------------------------------------------------


def state_of(test: object) -> dict[str, Any]:
    """All counters and arrays of a test, and of a test within it, copied; its `floor` is a setting."""

    def part(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return torch.from_numpy(value.copy())
        return state_of(value) if isinstance(value, SequentialTest) else copy(value)

    return {name: part(value) for name, value in vars(test).items() if name != "floor"}


def size_in(state: Mapping[str, Any], name: str, axes: int) -> int:
    """The last size of an array of a state, by which a test is made that can take over the state."""
    found = state.get(name)
    if not isinstance(found, torch.Tensor) or found.ndim != axes:
        raise CheckpointError("the state of the detector is incomplete, or not one of this detector")
    return found.shape[-1]


def load_state(test: object, state: Mapping[str, Any], signed: Sequence[str] = ("usual", "density")) -> None:
    """Take over the state of a test of the same sizes; refused as a whole if it does not fit.

    Numbers count something or are variances, and are not negative, but for those called as in `signed`.
    """
    own, loaded = state_of(test), {}
    if state.keys() != own.keys():
        raise CheckpointError("the state of the detector is incomplete, or not one of this detector")
    for name, value in state.items():
        mine = own[name]
        if isinstance(mine, torch.Tensor):
            fits = isinstance(value, torch.Tensor) and value.shape == mine.shape and value.dtype == mine.dtype
            if not fits or not bool(value.isfinite().all()):
                raise CheckpointError(f"{name!r} of the detector's state has another shape, or is not finite")
            loaded[name] = value.cpu().numpy().copy()
        elif isinstance(mine, dict):
            loaded[name] = copy(vars(test)[name])
            load_state(loaded[name], value)
        elif isinstance(mine, list):
            functions = range(own["sums"].shape[2])
            if not isinstance(value, list) or not set(value) <= set(functions):
                raise CheckpointError(f"{name!r} of the detector's state are functions, not {value!r}")
            loaded[name] = list(value)
        elif type(value) is not type(mine) or not (-math.inf if name in signed else 0) <= value < math.inf:
            kind = "count" if isinstance(mine, int) else "finite number"
            raise CheckpointError(f"{name!r} of the detector's state is a {kind}, not {value!r}")
        else:
            loaded[name] = value
    vars(test).update(loaded)
