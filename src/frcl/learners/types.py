"""What a learner returns, what it keeps, and what the runner needs of one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from torch import Tensor

from frcl.augment import Augment
from frcl.boundary import Change, Profile
from frcl.errors import TaskError
from frcl.inference import Asked
from frcl.learners.lockstep import Work
from frcl.likelihoods import Label, Likelihood, decoded
from frcl.summary import FunctionBelief, StoredInputs
from frcl.trees import Params, total_bytes

KINDS = {
    "points": "stored inputs, with their labels where those are stored",
    "posterior": "Gaussian beliefs, and what was learned with a likelihood",
    "heads": "last-layer weights of past tasks; twice where a task goes on training them",
    "statistics": "sums over examples, from which a posterior is solved when asked",
    "sums": "sums over examples, from which the task of an input is inferred where it is not named",
    "fisher": "importances of weights: Fisher information, or what a method has in its place",
    "anchor": "weights that the importances refer to",
    "network": "other copies of a network; also those that are held only while a task is learned",
}
Parts = dict[str, int]  # bytes by kind; a kind of which there is nothing is left out


RARE = 1e-4  # least probability of a task at which it is predicted in full


def parts_of(kept: Mapping[str, Iterable[Tensor]]) -> Parts:
    """The bytes of tensors by kind."""
    return {kind: size for kind, tensors in kept.items() if (size := total_bytes(list(tensors)))}


def added(each: Sequence[Parts]) -> Parts:
    """The bytes of several, kind by kind."""
    kinds = dict.fromkeys(kind for one in each for kind in one)
    return {kind: sum(one.get(kind, 0) for one in each) for kind in kinds}


SHOWN, WIDEST = 10, 80  # rows of a table in a notebook, characters of a cell


def html_table(caption: str, columns: Sequence[str], rows: Sequence[Sequence[object]], more: int = 0) -> str:
    """A small table for a notebook, and the number of rows that are not shown; all text is escaped."""
    texts = [[str(cell) for cell in row] for row in rows[:SHOWN]]
    cells = [[escape(text if len(text) <= WIDEST else f"{text[:WIDEST]}…") for text in row] for row in texts]
    body = "".join(f"<tr><td>{'</td><td>'.join(row)}</td></tr>" for row in cells)
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    more += len(rows) - len(texts)
    end = f"<p>… and {more:,} more</p>" if more else ""
    return f"<p>{escape(caption)}</p><table><tr>{head}</tr>{body}</table>{end}"


def plural(count: int, noun: str) -> str:
    """As "1 task" or "2 tasks"."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def learner_html(name: str, parts: Parts, tasks: Sequence[Summary] = ()) -> str:
    """What a notebook shows of a learner: its `repr`, the bytes kept by kind, and the summaries of its tasks."""
    html = html_table(name, ("kept", "bytes", ""), [(kind, f"{size:,}", KINDS[kind]) for kind, size in parts.items()])
    labels = [", ".join(map(str, one.likelihood.classes or ("numbers",))) for one in tasks]
    rows = [(i, f"{one.size:,}", len(one.Z), labels[i], f"{one.bytes():,}") for i, one in enumerate(tasks)]
    return html + (html_table("Tasks", ("task", "examples", "points", "labels", "bytes"), rows) if rows else "")


class Accounts(ABC):
    """What accounts for the bytes that it keeps of past tasks."""

    @abstractmethod
    def memory_parts(self) -> Parts:
        """Bytes that are kept of past tasks by kind: points, posterior, heads, and what the regularisers keep."""

    def memory_bytes(self) -> int:
        """Bytes that are kept of past tasks."""
        return sum(self.memory_parts().values())

    def past_divergences(self) -> list[float]:
        """How far each past task is from what was kept of it, in nats, where the method has such a measure."""
        return []

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return learner_html(repr(self), self.memory_parts())


V = TypeVar("V")


class Later(Generic[V]):
    """A field of a dataclass that may be given as a function, which is called when the field is first read."""

    def __init__(self, *default: V) -> None:
        self._default = default

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type | None = None) -> V:
        if instance is None:  # asked for its default
            if not self._default:
                raise AttributeError(self._name)
            return self._default[0]
        value = vars(instance)[self._name]
        if callable(value):
            value = vars(instance)[self._name] = value()
        return value  # type: ignore[no-any-return]

    def __set__(self, instance: Any, value: V | Callable[[], V]) -> None:
        vars(instance)[self._name] = value


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
    in_task          where no task was named: in_task(k) is predict(x, task=k) without another pass through the network,
                     as long as the learner has not changed; None otherwise

    Probabilities are those of f divided by the task's temperature, where it has one. Where no task was named, `mean`
    and `variance` are those of the indicators of the classes, or of the mixture of the tasks' functions for numeric
    targets.
    """

    mean: Later[Tensor] = Later()
    variance: Later[Tensor] = Later()
    probs: Tensor | None = None
    classes: tuple[Label, ...] | None = None
    target_mean: Tensor | None = None
    target_variance: Tensor | None = None
    density: Callable[[Any], Tensor] | None = field(default=None, repr=False, compare=False)
    task_probs: Tensor | None = None
    novelty: Later[Tensor | None] = Later(None)
    in_task: Callable[[int], Prediction] | None = field(default=None, repr=False, compare=False)

    @cached_property
    def labels(self) -> Any:
        """The most probable label of each input, a tensor of integers or an array of strings; None for numbers."""
        return None if self.probs is None or self.classes is None else decoded(self.classes, self.probs.argmax(1))

    def _repr_html_(self) -> str:
        """What a notebook shows: the first inputs, each with its label and probability or its mean and std."""
        shown = slice(0, SHOWN)
        if self.probs is not None:
            columns = ["input", "label", "probability"]
            parts: list[Any] = [list(self.labels[shown]), self.probs[shown].max(1).values]
        else:
            mean, variance = self.target_mean, self.target_variance
            if mean is None or variance is None:
                mean, variance = self.mean, self.variance
            columns, parts = ["input", "mean", "std"], [mean[shown].squeeze(1), variance[shown].sqrt().squeeze(1)]
        if self.task_probs is not None:
            columns, parts = [*columns, "task"], [*parts, self.task_probs[shown].argmax(1)]
        if self.novelty is not None:
            columns, parts = [*columns, "novelty"], [*parts, self.novelty[shown]]
        rows = [(i, *(_shown(part[i]) for part in parts)) for i in range(min(len(self.mean), SHOWN))]
        return html_table(f"Prediction of {len(self.mean):,} inputs", columns, rows, len(self.mean) - len(rows))

    def log_predictive(self, y: Any) -> Tensor:
        """log p(y | x) of targets y, one for each input, in nats, [n]."""
        if self.density is None:
            raise TaskError("this prediction has no density of targets; use probs")
        return self.density(y)


class Beliefs(NamedTuple):
    """What a learner can say about some inputs, on features that are computed once."""

    asked: Asked  # for the inference of the task
    within: Callable[[int, Tensor | None], Prediction]  # in a task, of these rows of the inputs, or of all
    at_mean: Callable[[int], Prediction | None] = lambda _: None  # probabilities without variance, where they cost less
    # w_k p(y | x, k) [n, Σ C_k] of the classes of some tasks with weights w [n, T], and the label of each column, where
    # that costs less than to ask task by task
    weighted: Callable[[Sequence[int], Tensor], tuple[Tensor, tuple[Label, ...]] | None] = lambda *_: None


@dataclass(frozen=True)
class StepLog:
    """One gradient step, in nats per example: loss = −log_likelihood + kl_now + kl_past.

    `boundary` says that this minibatch began a new task; `statistic` is NaN where the detector made no test;
    `beside` is the statistic of the detector's second test, which decides nothing. At a boundary `change` is "sharp" or
    "gradual"; the new task is estimated to have begun `age` minibatches before this one. `returned` says that from
    this minibatch on a task that was known before is learned further, at a boundary or one minibatch after it; with
    `continues` it is the one that was open: its inputs have changed, but its labels are predicted as well as before.
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
    change: Change = ""
    age: int = 0
    continues: bool = False
    returned: bool = False


def _shown(value: Any) -> object:
    """A number with four digits, several of them in brackets; labels as they are."""
    plain = value.tolist() if isinstance(value, Tensor) else value
    if isinstance(plain, list):
        return f"[{', '.join(f'{one:.4g}' for one in plain)}]"
    return f"{plain:.4g}" if isinstance(plain, float) else plain


OnStep = Callable[[StepLog], None] | None


@dataclass(frozen=True)
class Summary:
    """All that is kept of a past task.

    points             inducing inputs Z [M, ...], as they are stored; belief, q(u) there, with σ_w and σ² of its prior
    likelihood         its likelihood with its targets; likelihood_params, what was learned with it
    size               N, its number of examples
    before, after      the selection's objective at its start and at Z; None where Z was chosen before learning
    head               [C, K], the mean of w, where something needs it; f(x) = φ(x)ᵀ w
    spread             [C], where a head predicts: how much less uncertain the functions were when the task ended than
                       the points alone say, as a ratio of mean variances
    temperature        class probabilities are those of f divided by it, where examples were held out to find it
    profile            what its inputs look like, where a detector watched them
    """

    points: StoredInputs
    belief: FunctionBelief
    likelihood: Likelihood
    likelihood_params: Params
    size: int
    before: float | None
    after: float | None
    head: Tensor | None = None
    spread: Tensor | None = None
    temperature: Tensor | None = None
    profile: Profile | None = None

    @property
    def Z(self) -> Tensor:
        """Inducing inputs [M, ...]."""
        return self.points.inputs

    def bytes(self) -> int:
        """Memory that this summary takes."""
        return sum(self.parts().values())

    def parts(self) -> Parts:
        """The same by kind."""
        return parts_of(self.kept())

    def kept(self) -> dict[str, list[Tensor]]:
        """All its tensors by kind."""
        learned = [self.belief.mean, self.belief.factor, *self.likelihood_params.values()]
        learned += [one for one in (self.belief.scale, self.spread, self.temperature) if one is not None]
        heads = [] if self.head is None else [self.head]
        statistics = [] if self.profile is None else self.profile.tensors()
        return {"points": self.points.kept, "posterior": learned, "heads": heads, "statistics": statistics}


class Learner(Protocol):
    """A method of continual learning: learns tasks one after another and predicts for each of them."""

    def fit(self, x: Any, y: Any, *, size: int | None = None, on_step: OnStep = None) -> object:
        """Learn one task; called again with the same data after an interruption, go on where it stopped."""

    def learn(self, x: Any, y: Any, *, size: int | None = None, augment: Augment | None = None) -> Work[Any]:
        """What fit() does, as work that several learners may do together; `augment` changes training minibatches."""

    def predict(self, x: Any, task: int | None = None) -> Prediction:
        """What is believed about x in a task."""

    def memory_bytes(self) -> int:
        """Bytes kept of past tasks."""

    def memory_parts(self) -> Parts:
        """The same by kind; they add up to `memory_bytes`."""

    def kept_inputs(self) -> Sequence[Tensor]:
        """Inputs kept of each past task, where the method keeps some."""

    def past_divergences(self) -> Sequence[float]:
        """How far each past task is from what was kept of it, in nats, where the method has such a measure."""

    def state_dict(self) -> dict[str, Any]:
        """Everything that decides what happens next: {"meta": JSON-able, "tensors": by name}."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on exactly where the learner that gave the state was."""


class StreamLearner(Learner, Protocol):
    """A learner that takes minibatches one at a time and may begin a new task by itself."""

    @property
    def tasks(self) -> Sequence[Summary]:
        """What is kept of each finished task."""

    def observe(self, x: Any, y: Any) -> StepLog:
        """Learn from one minibatch."""

    def end_task(self) -> object:
        """End the task that is open."""


@contextmanager
def progress_bar(task: int, stop: int, on_step: OnStep) -> Iterator[OnStep]:
    """`on_step` that also moves a bar in a terminal or a notebook."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns) as bars:
        bar = bars.add_task(f"task {task}", total=stop)

        def told(log: StepLog) -> None:
            bars.update(bar, completed=log.step, description=f"task {task}  loss {log.loss:.3f}")
            if on_step is not None:
                on_step(log)

        yield told
