"""What all baselines share: how a task is opened, continued and finished, the border to the user, saved states.

A baseline is a network, a list of regularisers (empty for some) and a dataclass with whatever else its method keeps.
Final classes implement the hooks of `Baseline`, each no more than its own mathematics.
"""

import contextlib
import copy
import functools
import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields, make_dataclass, replace
from typing import Any, ClassVar, Generic, Self, TypeVar

import torch
from torch import Tensor, nn

from frcl.augment import Augment, Augmentation
from frcl.baselines.options import TrainingOptions
from frcl.checks import check_like, expect
from frcl.engine.program import Drawn, Loss, Program, Streams, Terms, refuse_non_finite
from frcl.engine.train import AdamState, Optimiser
from frcl.errors import CheckpointError, DataError, OptionError
from frcl.features import FeatureMap, check_features, fixed_parts, in_chunks, is_stackable, trained_parts
from frcl.inference import Asked
from frcl.learners.base import SequentialLearner, State, checked_size
from frcl.learners.loaded import SavedLearner, restored_parts, saved_parts, width_of
from frcl.learners.lockstep import Work
from frcl.learners.types import Beliefs, OnStep, Prediction
from frcl.likelihoods import Labels, Likelihood, Softmax, as_values
from frcl.regularisers.protocol import Kept, Regulariser, Task, drop_task, hooks
from frcl.trees import Params, Tree, data_mark, detached, named_tensors

O = TypeVar("O", bound=TrainingOptions)  # noqa: E741
Own = TypeVar("Own")
CHUNK = 4096  # inputs that pass through the network at once outside of training


@dataclass(frozen=True)
class Finished:
    """What is kept of a finished task; `head` [C, K] where the method has one on shared features."""

    likelihood: Likelihood
    size: int
    head: Tensor | None = None
    likelihood_params: Params = field(default_factory=dict)


@dataclass(eq=False)
class Current:
    """The task that is open; `first` counts the steps before those of the optimiser."""

    likelihood: Likelihood
    N: float
    data_mark: str
    first: int = 0


@dataclass(eq=False)
class BaselineState(State, Generic[Own]):
    """Everything that changes, the network's weights apart; `own` is what a method keeps for itself."""

    past: list[Finished] = field(default_factory=list)
    current: Current | None = None
    own: Own = field(kw_only=True)
    optimiser: Optimiser | None = None  # of the open task

    def branch(self) -> Self:
        return replace(super().branch(), own=copy.copy(self.own))


@dataclass
class Saved(SavedLearner):
    """Everything that is written."""

    options: dict[str, Any]
    past: list[Finished]
    current: Current | None
    adam: AdamState | None
    own: Any


class Baseline(SequentialLearner[O, BaselineState[Own]], Generic[O, Own]):
    """A method that learns classification tasks one after another, each from all its data.

    `net` maps inputs to features [batch, K]. It is copied, as are the `regularisers`, by default those of the options.
    """

    own_type: ClassVar[type[Any]]  # what the method keeps for itself: a dataclass with a default for every field

    def __init__(
        self, net: nn.Module, options: O, regularisers: Sequence[Regulariser] | None = None,
        *, device: str | torch.device = "cpu",
    ) -> None:  # fmt: skip
        super().__init__(net, options, device)
        chosen = options.regularisers() if regularisers is None else regularisers
        for one in chosen:
            if one.uses_points:
                raise OptionError(
                    f"regulariser {one.name!r} reads the inducing points of past tasks, and this learner keeps none; "
                    "use frcl.FRCL(net, regularisers=[...])"
                )
        self.features = FeatureMap(self.net, options.bfloat16)
        self._ahead = self.features  # of the inputs of training
        self._infer_tasks()
        self._changes: Augmentation | None = None  # of the minibatches of the task that is learned by fit()
        self._state = BaselineState(
            Streams(options.seed, self.device), [copy.deepcopy(one) for one in chosen], own=self.own_type()
        )

    @abstractmethod
    def _begin(self, x: Tensor, y: Tensor, K: int) -> float | None:
        """Put what a new task needs into `own`; returns the share of its examples that it learns from, if not all."""

    @abstractmethod
    def _trained(self) -> Tree:
        """The tensors that the next steps move; those of `own` become trainable when a task is opened or restored."""

    @abstractmethod
    def _programs(self, x: Tensor, y: Tensor) -> Iterator[Program]:
        """The steps left of the open task, in one program or several, one after another."""

    @abstractmethod
    def _finish(self) -> Tensor | None:
        """Turn what was trained into what is kept; returns the task's head on shared features, where it has one."""

    @abstractmethod
    def _predict(self, task: int, x: Tensor, shared: Callable[[], Tensor]) -> Prediction:
        """What is believed about x in a task that is finished or open; `shared` gives its features in the network."""

    def _kept(self) -> Kept:
        """What is kept of past tasks beside what the regularisers keep."""
        return {"heads": [task.head for task in self._state.past if task.head is not None]}

    def _check(self, saved: Saved, tasks: Sequence[Likelihood], K: int) -> None:
        """Refuse what was read for `own`, with tasks of these likelihoods, where it does not fit this network."""

    def fit(
        self, x: Any, y: Any, *, size: int | None = None, augment: Augment | None = None, on_step: OnStep = None
    ) -> None:
        """Learn one task; called again with the same data after an interruption, continue where it stopped.

        `size` is N where that is not the number of rows. `augment(x, generator)` changes the inputs of each minibatch.
        `on_step` is called after every step.
        """
        self._run(self.learn(x, y, size=size, augment=augment), contextlib.nullcontext(on_step))

    def learn(self, x: Any, y: Any, *, size: int | None = None, augment: Augment | None = None) -> Work[None]:
        """The work of fit(), which several learners may do together."""
        inputs = self._inputs(x, y)
        N = float(len(inputs) if size is None else checked_size(size))
        targets = self._open(inputs, y, N) if self._state.current is None else self._continued(inputs, y)
        state, number = self._state, len(self._state.past)
        self._changes = hooks(state.regularisers, self.options.seed, number, augment)["augment"]
        self._ahead = self.features.ahead() if augment is None else self.features
        for program in self._programs(inputs, targets):
            yield replace(program, augment=self._changes)
        self._close(inputs, targets)

    def _open(self, x: Tensor, y: Any, N: float) -> Tensor:
        likelihood = Softmax.from_targets(class_values(y), None, {})
        targets = likelihood.encode(y, self.device, self.dtype)
        K = check_features(self.net, x) + 1
        with self._changing() as state:
            state.current = Current(likelihood, N, data_mark(x, targets))
            state.current.N *= self._begin(x, targets, K) or 1.0
            state.optimiser = self._new_optimiser()
            state.input_shape, state.input_dtype = tuple(x.shape[1:]), x.dtype
            for one in state.regularisers:
                one.begin(replace(self._task(), examples=len(targets)))
        return targets

    def _close(self, x: Tensor, y: Tensor) -> None:
        current = self._now
        refuse_non_finite("parameter", self._optimiser.params)
        with self._changing() as state:
            head = self._finish()
            task = replace(self._task(), features=replace(self.features, bfloat16=False), head=head)
            for one in state.regularisers:
                one.end(task, x, y, state.streams["selection"])
            state.task_sums = self._ended(current.likelihood, x, y)
            state.past = [*state.past, Finished(current.likelihood, int(current.N), head)]
            state.current = state.optimiser = None

    @property
    def _own(self) -> Own:
        return self._state.own

    @property
    def _now(self) -> Current:
        assert self._state.current is not None
        return self._state.current

    @property
    def _optimiser(self) -> Optimiser:
        assert self._state.optimiser is not None
        return self._state.optimiser

    def _task(self) -> Task:
        """The open task, as regularisers are told of it."""
        now, options = self._now, self.options
        return Task(
            self.features, trained_parts(self.net), fixed_parts(self.net), self._state.past, now.likelihood, now.N,
            tasks_per_step=options.past_tasks_per_step, shared_head=options.shared_head,
        )  # fmt: skip

    def _new_head(self, K: int, rows: int | None = None) -> Tensor:
        """A linear head [C, K] with small random weights and no bias (the last column); C is `rows`, or the classes."""
        C, generator = rows or self._now.likelihood.functions, self._state.streams["posterior"]
        head = torch.randn(C, K, generator=generator, dtype=self.dtype, device=self.device) / math.sqrt(K)
        head[:, -1] = 0.0
        return head

    def _new_optimiser(self) -> Optimiser:
        tree = self._trained()
        for _, tensor in named_tensors(tree):
            tensor.requires_grad_(True)
        return Optimiser(tree, self.options.lr, rule=self.options.rule)

    def _program(
        self, loss: Loss, constants: Tree, x: Tensor, y: Tensor, stop: int,
        draw: Callable[[int, Tensor], Drawn] = lambda _, rows: Drawn(rows, ()), **settings: Any,
    ) -> Program:  # fmt: skip
        """Steps up to `stop` with this loss; `draw` is told how many steps, and the rows of their minibatches."""
        first, options = self._now.first, self.options
        self._optimiser.schedule(stop - first, options.warm_up, options.lr_decay)
        return Program(
            net=self.net, loss=loss, optimiser=self._optimiser, constants=detached(constants), x=x, y=y,
            draw=lambda steps: draw(steps, self._pick(steps, len(x))), streams=self._state.streams, stop=stop,
            first=first, lock=self._lock,
            **{"stackable": is_stackable(self.net), "signature": self._signature(first), **settings},
        )  # fmt: skip

    def _uses(self, steps: int) -> int:
        """How many examples these steps use as they are, not augmented."""
        return steps * self.options.batch_size if self._changes is None else 0

    def _pick(self, steps: int, examples: int) -> Tensor:
        """Which of the examples the minibatches of the next steps have, [steps, B]."""
        shape, generator = (steps, self.options.batch_size), self._state.streams["batches"]
        return torch.randint(examples, shape, generator=generator, device=self.device)

    def _signature(self, *rest: object) -> object:
        """What two learners must have in common besides shapes to be computed as one."""
        tasks, regularisers = tuple(one.functions for one in self._likelihoods), repr(self._state.regularisers)
        return type(self), repr(replace(self.options, seed=0)), regularisers, str(self.net), tasks, rest

    @property
    def step(self) -> int:
        """Steps taken of the task that is open; 0 if none is."""
        return 0 if self._state.current is None else self._now.first + self._optimiser.steps

    def _beliefs(self, x: Tensor) -> Beliefs:
        finished = len(self._state.past)
        shared = functools.cache(lambda: self._features(x))
        predict = functools.cache(lambda task: self._predict(task, x, shared))

        def probs() -> list[Tensor]:
            return [probs for task in range(finished) if (probs := predict(task).probs) is not None]

        def no_points() -> Any:
            raise AssertionError("baselines infer the task from their heads, or from sums over all examples")

        return Beliefs(Asked(x, lambda: shared()[:, :-1], no_points, probs, None), lambda task, _: predict(task))

    def _features(self, x: Tensor) -> Tensor:
        """Features of x in the network as it stands, [n, K]."""
        return in_chunks(functools.partial(self.features, dict(self.net.named_parameters())), x, CHUNK)

    @property
    def _likelihoods(self) -> list[Likelihood]:
        """Those of all tasks, the open one included."""
        past = [one.likelihood for one in self._state.past]
        return past if self._state.current is None else [*past, self._now.likelihood]

    def _point(self, task: int, x: Tensor, functions: Callable[[Tensor], Tensor], chunk: int = CHUNK) -> Prediction:
        """A prediction from the functions [n, C] of one network, without uncertainty: their variance is zero."""
        return sampled_prediction(in_chunks(functions, x, chunk)[None], self._likelihoods[task])

    def _drop(self, number: int) -> None:
        super()._drop(number)
        drop_task(self._own, fields(self._own), number, last=not self._state.past)  # type: ignore[arg-type]

    def kept_inputs(self) -> list[Tensor]:
        """Stored inputs of each past task, where the method stores some."""
        return [x for one in self._state.regularisers for x in one.kept_inputs()]

    def _saved(self) -> Saved:
        state, optimiser = self._state, self._state.optimiser
        return Saved(
            **saved_parts(self), options=asdict(self.options), past=state.past, current=state.current,
            adam=None if optimiser is None else optimiser.state(), own=state.own,
        )  # fmt: skip

    @property
    def _saved_type(self) -> type[Saved]:  # type: ignore[override]
        """What is written, with what the method keeps for itself."""
        return make_dataclass("Saved", [("own", self.own_type)], bases=(Saved,))

    def _check_saved(self, saved: Saved) -> None:
        if saved.options != asdict(self.options):
            raise CheckpointError("the state was made by a learner with other options")
        K, now = width_of(self.net, saved, self.dtype, self.device), saved.current
        tasks = [one.likelihood for one in saved.past] + ([] if now is None else [now.likelihood])
        expect(bool(K) or not tasks, "there are tasks, but no input was ever seen")
        expect((now is None) == (saved.adam is None), "an open task has moments of Adam")
        expect(now is None or (now.N > 0 and now.first in (0, self.options.steps)), "N or the steps of the open task")
        for likelihood in tasks:
            fits = isinstance(likelihood, Softmax) and likelihood == Softmax(likelihood.labels)
            expect(fits, "the likelihood of a task is not the softmax of its labels")
        for one in saved.past:
            expect(one.size > 0 and not one.likelihood_params, f"the size of a task is {one.size}")
            if one.head is not None:
                check_like(one.head, (one.likelihood.functions, K), self.dtype, "the head of a task")
        self._check(saved, tasks, K)

    def _restored(self, saved: Saved) -> BaselineState[Own]:
        self._state = BaselineState(
            **restored_parts(self, saved, len(saved.past)), past=saved.past, current=saved.current, own=saved.own
        )  # fmt: skip
        if saved.current is not None:
            self._state.optimiser = self._new_optimiser()
            self._state.optimiser.restore(saved.adam)  # type: ignore[arg-type]
            for one in self._state.regularisers:
                one.check_resumed(self._task())
                one.constants(self._task())  # fails where something of the task is missing
        return self._state


def class_values(y: Any) -> Tensor | Labels:
    """Labels as a user gives them; numbers that are no labels are refused."""
    values = as_values(y)
    if isinstance(values, Tensor) and values.is_floating_point():
        raise DataError("this method is for classification; the targets are floats. FRCL does regression.")
    return values


def plain_terms(nll: Tensor, penalty: Tensor | None = None) -> Terms:
    """The terms of a network with a penalty: what FRCL calls "KL past" is the penalty."""
    zero = nll.new_zeros(())
    return Terms(nll, -nll, zero, zero) if penalty is None else Terms(nll + penalty, -nll, zero, penalty)


def sampled_prediction(f: Tensor, likelihood: Likelihood) -> Prediction:
    """The mean over draws of the network, functions [S, n, C]; the variance is that between the draws."""
    return Prediction(f.mean(0), f.var(0, correction=0), f.softmax(-1).mean(0), likelihood.classes)
