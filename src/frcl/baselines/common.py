"""What all baselines share: how a task is opened, continued and finished, the border to the user, saved states.

A baseline is a network, a list of regularisers (empty for some) and a dataclass with whatever else its method keeps.
Final classes implement the hooks of `Baseline`, each no more than its own mathematics.
"""

from __future__ import annotations

import contextlib
import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, make_dataclass, replace
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor, nn

from frcl import codec
from frcl.baselines.classification import CHUNK, initial_head, sampled_prediction
from frcl.baselines.options import TrainingOptions
from frcl.engine.adam import AdamState, Optimiser
from frcl.engine.program import Drawn, Loss, Program, minibatch_rows, refuse_non_finite
from frcl.errors import CheckpointError, DataError, FrclError, OptionError, TaskError
from frcl.features import check_features, check_network, fixed_parts, in_chunks, is_stackable
from frcl.learners.accounting import Parts, added, parts_of
from frcl.learners.checkpoint import check_fits, restored_streams
from frcl.learners.inputs import check_lengths, check_task, checked_inputs, checked_size, data_mark
from frcl.learners.lockstep import OnStep, Work, run_alone
from frcl.learners.types import Prediction
from frcl.likelihoods import Likelihood, Softmax, as_values
from frcl.regularisers.protocol import FeatureMap, Kept, Regulariser, Task
from frcl.seeding import Streams
from frcl.trees import Params, Tree, copied, detached, named_tensors

O = TypeVar("O", bound=TrainingOptions)  # noqa: E741
Own = TypeVar("Own")


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
class State(Generic[Own]):
    """Everything that changes, the network's weights apart; `own` is what a method keeps for itself.

    Parts of `own` are replaced, never changed in place, so that a shallow copy is a snapshot.
    """

    streams: Streams
    regularisers: list[Regulariser]
    own: Own
    past: list[Finished] = field(default_factory=list)
    current: Current | None = None
    optimiser: Optimiser | None = None  # of the open task
    input_shape: tuple[int, ...] | None = None
    input_floating: bool | None = None

    def snapshot(self) -> State[Own]:
        """A copy to return to."""
        return replace(self, regularisers=[copy.copy(one) for one in self.regularisers], own=copy.copy(self.own))


@dataclass
class Saved:
    """Everything that is written."""

    options: dict[str, Any]
    device: str
    net: dict[str, Tensor]
    trained: list[str]  # names of the weights that are trained
    streams: dict[str, Tensor]
    regularisers: list[Any]  # the state of each
    past: list[Finished]
    current: Current | None
    adam: AdamState | None
    input_shape: tuple[int, ...] | None
    input_floating: bool | None
    own: Any


class Baseline(ABC, Generic[O, Own]):
    """A method that learns classification tasks one after another, each from all its data.

    Parameters
    ----------
    net : nn.Module
        Feature network from inputs to [batch, K]; copied.
    options : TrainingOptions
        Steps, learning rate and so on.
    regularisers : sequence of Regulariser, optional
        What keeps past tasks in place, copied; by default those of the options.
    """

    own_type: ClassVar[type[Any]]  # what the method keeps for itself: a dataclass with a default for every field

    def __init__(
        self, net: nn.Module, options: O, regularisers: Sequence[Regulariser] | None = None,
        *, device: str | torch.device = "cpu",
    ) -> None:  # fmt: skip
        check_network(net)
        chosen = options.regularisers() if regularisers is None else regularisers
        for one in chosen:
            if one.uses_points:
                raise OptionError(
                    f"regulariser {one.name!r} reads the inducing points of past tasks, and this learner keeps none; "
                    "use frcl.FRCL(net, regularisers=[...])"
                )
        self.device = torch.device(device)
        self.net = copy.deepcopy(net).to(self.device)
        self.dtype = next((p.dtype for p in net.parameters() if p.is_floating_point()), torch.float32)
        self.options = options
        self.features = FeatureMap(self.net)
        self._state: State[Own] = State(
            Streams(options.seed, self.device), [copy.deepcopy(one) for one in chosen], self.own_type()
        )

    @abstractmethod
    def _begin(self, x: Tensor, y: Tensor, new_head: Callable[[], Tensor]) -> float | None:
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
    def _predict(self, task: int, x: Tensor) -> Prediction:
        """What is believed about x in a task that is finished or open; called without gradient."""

    def _kept(self) -> Kept:
        """What is kept of past tasks beside what the regularisers keep."""
        return {"heads": [task.head for task in self._state.past if task.head is not None]}

    def _check(self, own: Own, tasks: int) -> None:
        """Refuse what was read for `own`, of that many tasks, where it does not fit this network."""

    def fit(self, x: Any, y: Any, *, size: int | None = None, on_step: OnStep = None) -> None:
        """Learn one task; called again with the same data after an interruption, continue where it stopped.

        `size` is N where that is not the number of rows. `on_step` is called after every step.
        """
        begins = self._state.current is None
        with self._all_or_nothing(lambda error: isinstance(error, FrclError) and begins and self.step == 0):
            run_alone(self.learn(x, y, size=size), len(self._state.past), lambda: self.step, on_step)

    def learn(self, x: Any, y: Any, *, size: int | None = None) -> Work[None]:
        """The work of fit(), which several learners may do together."""
        inputs = self._inputs(x)
        check_lengths(inputs, y)
        N = float(checked_size(size, len(inputs)))
        targets = self._open(inputs, y, N) if self._state.current is None else self._continued(inputs, y)
        yield from self._programs(inputs, targets)
        self._close(inputs, targets)

    def _open(self, x: Tensor, y: Any, N: float) -> Tensor:
        state, values = self._state, as_values(y)
        if isinstance(values, Tensor) and values.is_floating_point():
            raise DataError("this method is for classification; the targets are floats. FRCL does regression.")
        likelihood = Softmax.from_targets(values, None, {})
        targets = likelihood.encode(y, self.device, self.dtype)
        for one in state.regularisers:
            one.check(likelihood, len(targets))
        shape = likelihood.functions, check_features(self.net, x) + 1
        with self._all_or_nothing():
            N *= self._begin(x, targets, lambda: initial_head(*shape, state.streams, self.dtype, self.device)) or 1.0
            state.current, state.optimiser = Current(likelihood, N, data_mark(x, targets)), self._new_optimiser()
            state.input_shape, state.input_floating = tuple(x.shape[1:]), x.is_floating_point()
            for one in state.regularisers:
                one.begin(self._task())
        return targets

    def _continued(self, x: Tensor, y: Any) -> Tensor:
        """The targets of the open task; any data but those that it began with is refused."""
        with contextlib.suppress(DataError):
            targets = self._now.likelihood.encode(y, self.device, self.dtype)
            if self._now.data_mark == data_mark(x, targets):
                return targets
        raise TaskError(f"task {len(self._state.past)} is still open: finish it with fit() on the data it began with")

    def _close(self, x: Tensor, y: Tensor) -> None:
        state, current = self._state, self._now
        refuse_non_finite(self._optimiser.tree)
        with self._all_or_nothing():
            head = self._finish()
            task = replace(self._task(), head=head)
            for one in state.regularisers:
                one.end(task, x, y, state.streams["selection"])
            state.past = [*state.past, Finished(current.likelihood, int(current.N), head)]
            state.current = state.optimiser = None

    @contextlib.contextmanager
    def _all_or_nothing(self, concerns: Callable[[BaseException], bool] = lambda _: True) -> Iterator[None]:
        """Inside, an error or interruption (of those that it `concerns`) leaves state and streams as they were."""
        before, streams = self._state.snapshot(), self._state.streams.state()
        try:
            yield
        except BaseException as error:
            if concerns(error):
                self._state = before
                before.streams.restore(streams)
            raise

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

    def _theta(self) -> Params:
        return {name: p for name, p in self.net.named_parameters() if p.requires_grad}

    def _task(self) -> Task:
        """The open task, as regularisers are told of it."""
        now, past, at_most = self._now, self._state.past, self.options.tasks_per_step
        fixed = fixed_parts(self.net)
        return Task(self.features, self._theta(), fixed, past, now.likelihood, now.N, tasks_per_step=at_most)

    def _new_optimiser(self) -> Optimiser:
        tree = self._trained()
        for _, tensor in named_tensors(tree):
            tensor.requires_grad_(True)
        return Optimiser(tree, self.options.lr)

    def _program(
        self, loss: Loss, constants: Tree, x: Tensor, y: Tensor, stop: int,
        draw: Callable[[int, Tensor], Drawn] = lambda _, rows: Drawn(rows, ()), **settings: Any,
    ) -> Program:  # fmt: skip
        """Steps up to `stop` with this loss; `draw` is told how many steps, and the rows of their minibatches."""
        state, now, options = self._state, self._now, self.options

        def drawn(steps: int) -> Drawn:
            return draw(steps, minibatch_rows(len(x), options.batch_size, steps, state.streams, self.device))

        given = {"stackable": is_stackable(self.net), **settings}
        return Program(
            net=self.net, loss=loss, optimiser=self._optimiser, constants=detached(constants), x=x, y=y, draw=drawn,
            streams=state.streams, stop=stop, first=now.first, signature=self._signature(now.first), **given,
        )  # fmt: skip

    def _signature(self, *rest: object) -> object:
        """What two learners must have in common besides shapes to be computed as one."""
        count = len(self._state.past) + (self._state.current is not None)
        tasks = [self._likelihood(task).functions for task in range(count)]
        regularisers = repr(self._state.regularisers)
        return type(self), repr(replace(self.options, seed=0)), regularisers, str(self.net), tuple(tasks), rest

    @property
    def regularisers(self) -> tuple[Regulariser, ...]:
        """What keeps past tasks in place."""
        return tuple(self._state.regularisers)

    @property
    def step(self) -> int:
        """Steps taken of the task that is open; 0 if none is."""
        return 0 if self._state.current is None else self._now.first + self._optimiser.steps

    def predict(self, x: Any, task: int | None = None) -> Prediction:
        """What is believed about x in a task (the latest by default)."""
        number = check_task(task, len(self._state.past) + (self._state.current is not None))
        inputs = self._inputs(x)
        with torch.no_grad():
            return self._predict(number, inputs)

    def _inputs(self, x: Any) -> Tensor:
        return checked_inputs(x, self._state.input_shape, self.dtype, self.device, self._state.input_floating)

    def _likelihood(self, task: int) -> Softmax:
        past = self._state.past
        found = past[task].likelihood if task < len(past) else self._now.likelihood
        assert isinstance(found, Softmax)
        return found

    def _point(self, task: int, x: Tensor, functions: Callable[[Tensor], Tensor], chunk: int = CHUNK) -> Prediction:
        """A prediction from the functions [n, C] of one network, without uncertainty: their variance is zero."""
        return sampled_prediction(in_chunks(functions, x, chunk)[None], self._likelihood(task))

    def memory_bytes(self) -> int:
        """Bytes that are kept of past tasks."""
        return sum(self.memory_parts().values())

    def memory_parts(self) -> Parts:
        """The same by kind."""
        if not self._state.past:
            return {}
        theta = self._theta()
        return added([parts_of(self._kept()), *(parts_of(one.kept(theta)) for one in self._state.regularisers)])

    def kept_inputs(self) -> list[Tensor]:
        """Stored inputs of each past task, where the method stores some."""
        return [x for one in self._state.regularisers for x in one.kept_inputs()]

    def past_divergences(self) -> list[float]:
        """Not a measure that these methods have."""
        return []

    def state_dict(self) -> dict[str, Any]:
        """Everything that decides what happens next, copied: {"meta": JSON-able, "tensors": by name}."""
        state, optimiser = self._state, self._state.optimiser
        return codec.pack(Saved(
            options=asdict(self.options), device=self.device.type, net=dict(self.net.state_dict()),
            trained=list(self._theta()), streams=state.streams.state(),
            regularisers=[one.state() for one in state.regularisers], past=state.past,
            current=state.current, adam=None if optimiser is None else optimiser.state(),
            input_shape=state.input_shape, input_floating=state.input_floating, own=state.own,
        ))  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue exactly where the learner that gave `state` was; refused as a whole if it does not fit."""
        kind: type[Saved] = make_dataclass("Saved", [("own", self.own_type)], bases=(Saved,))
        saved = codec.unpack(kind, state, self.device)
        if saved.options != asdict(self.options):
            raise CheckpointError("the state was made by a learner with other options")
        check_fits(self.net, saved.net)
        self._check(saved.own, len(saved.past) + (saved.current is not None))
        before, weights, trained = self._state, copied(dict(self.net.state_dict())), list(self._theta())
        try:
            self._set_weights(saved.net, saved.trained)
            regularisers = [copy.copy(one) for one in before.regularisers]
            for one, own in zip(regularisers, saved.regularisers, strict=True):
                one.load(own)
            streams = restored_streams(saved.streams, saved.device, self.options.seed, len(saved.past), self.device)
            self._state = State(
                streams, regularisers, saved.own, saved.past, saved.current, None, saved.input_shape,
                saved.input_floating,
            )  # fmt: skip
            if saved.current is not None:
                self._state.optimiser = self._new_optimiser()
                self._state.optimiser.restore(saved.adam)  # type: ignore[arg-type]
        except (KeyError, TypeError, IndexError, AttributeError, RuntimeError, ValueError) as error:
            self._state = before
            self._set_weights(weights, trained)
            raise CheckpointError(f"the state is incomplete, or not one made by state_dict(): {error!r}") from error

    def _set_weights(self, weights: Params, trained: Sequence[str]) -> None:
        self.net.load_state_dict(weights)
        for name, parameter in self.net.named_parameters():
            parameter.requires_grad_(name in trained)
