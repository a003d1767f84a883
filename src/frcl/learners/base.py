"""What all learners share: checks of the user's data, fit() as a loop, undoing what failed, saving and restoring."""

from __future__ import annotations

import contextlib
import copy
import math
from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Generic, Self, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from frcl import codec
from frcl.engine.program import StepLock, Streams
from frcl.engine.train import train
from frcl.errors import CheckpointError, DataError, NumericalError, OptionError, TaskError
from frcl.exact.model import Tasks, stored_bytes
from frcl.features import FeatureMap, check_network, trained_parts
from frcl.inference import TaskInference
from frcl.inputs import MultiInput, numeric_array
from frcl.learners.deploy import Deployed, export, export_onnx
from frcl.learners.forget import forget
from frcl.learners.loaded import load, non_finite
from frcl.learners.lockstep import Work, steps_of
from frcl.learners.mixture import check_task, checked_tasks, over_tasks
from frcl.learners.types import Accounts, Beliefs, OnStep, Parts, Prediction, StepLog, added, parts_of, plural
from frcl.likelihoods import Likelihood
from frcl.options import MethodOptions
from frcl.regularisers.protocol import Kept, Regulariser
from frcl.selection import TraceSearch, run_searches
from frcl.trees import Params, data_mark
from frcl.weights import Watched


@dataclass(eq=False)
class State:
    """Everything of a learner that changes, the network's weights apart.

    Its parts are replaced, never changed in place, so that a shallow copy is independent of it.
    """

    streams: Streams
    regularisers: list[Regulariser]
    past: list[Any] = field(default_factory=list)  # what is kept of each finished task
    current: Any = None  # the task being learned
    input_shape: tuple[int, ...] | None = None
    input_dtype: torch.dtype | None = None  # of the inputs, once one was seen
    task_sums: Tasks = field(default_factory=Tasks)  # what the inference of the task keeps

    @property
    def number(self) -> int:
        """The number of the task that is open; of the next one if none is."""
        return len(self.past)

    @property
    def window(self) -> Any:
        """A sample of the open task of a stream, where one is held; None otherwise."""
        return None

    def branch(self) -> Self:
        """A copy with streams of its own, to be changed and then taken over as a whole."""
        streams, regularisers = copy.deepcopy(self.streams), [copy.copy(one) for one in self.regularisers]
        if streams.held is not None:  # what was drawn ahead has not been used
            streams.restore(streams.held)
        return replace(self, streams=streams, regularisers=regularisers, past=list(self.past))


O = TypeVar("O", bound=MethodOptions)  # noqa: E741
S = TypeVar("S", bound=State)
Result = TypeVar("Result")


class SequentialLearner(Accounts, Generic[O, S]):
    """A network that learns tasks one after another, each in one call of fit(), and can be saved at any step.

    A final class sets `_state`, implements `learn` as a generator of training programs, and says what it keeps.
    """

    _state: S
    _inference: TaskInference  # of the task of an input
    _saved_type: ClassVar[type[Any]]  # what is written, a SavedLearner
    _opens: ClassVar[str] = "fit()"  # what opens a task
    _shown: ClassVar[tuple[str, ...]] = ()  # options that stand in the repr
    _way_out: ClassVar[str] = ""  # what else to do with an open task than to go on

    def __init__(self, net: nn.Module, options: O, device: str | torch.device | None) -> None:
        check_network(net)
        first = next((p for p in net.parameters() if p.is_floating_point()), torch.empty(0))
        self.options, self.dtype = options, first.dtype
        self.device = first.device if device is None else torch.device(device)
        self.net = copy.deepcopy(net).to(self.device)
        self._watched, self._lock = Watched(self.net), StepLock()

    def __repr__(self) -> str:
        """The method, its network and regularisers, and what it knows."""
        state = self._state
        parts = [type(self.net).__name__, *(f"{name}={getattr(self.options, name)!r}" for name in self._shown)]
        if self.regularisers:
            parts.append(f"regularisers=[{', '.join(one.name for one in self.regularisers)}]")
        learning = f", learning task {state.number} (step {self.step})" if state.current is not None else ""
        knows = f"{plural(len(state.past), 'task')} learned{learning}, {self.memory_bytes():,} bytes kept"
        return f"{self._method}({', '.join(parts)}; {knows})"

    @property
    def _method(self) -> str:
        """What the method is called."""
        return type(self.options).__name__.removesuffix("Options")

    @property
    def step(self) -> int:
        """Steps taken of the task that is open; 0 if none is."""
        return 0 if self._state.current is None else int(self._state.current.optimiser.steps)

    @abstractmethod
    def _kept(self) -> Kept:
        """What is kept of past tasks beside what the regularisers keep."""

    @abstractmethod
    def _saved(self) -> Any:
        """What is written, of type `_saved_type`."""

    @abstractmethod
    def _check_saved(self, saved: Any) -> None:
        """Refuse the state of a learner with other settings."""

    @abstractmethod
    def _restored(self, saved: Any) -> S:
        """The state that was saved; the network has its weights already."""

    # -- learning ------------------------------------------------------------------------------------------------

    def _run(self, work: Work[Result], telling: contextlib.AbstractContextManager[OnStep]) -> Result:
        """Do the work of fit() to the end; what `telling` gives is told of each step.

        An error before the first step of a new task leaves no trace. An error or interruption while the task is closed,
        however late, leaves it open.
        """
        before = opened = self._state
        task, answer = len(before.past), None
        try:
            with telling as on_step, contextlib.closing(work):
                while True:
                    try:
                        item = work.send(answer)
                    except StopIteration as end:
                        result: Result = end.value
                        return result
                    opened, answer = self._state, None
                    if isinstance(item, TraceSearch):
                        (answer,) = run_searches([item])
                        continue
                    with contextlib.closing(train([item])) as steps:
                        for taken in steps:
                            for number, (values,) in steps_of(taken, self.step) if on_step is not None else ():
                                on_step(StepLog(task, number, *values))  # type: ignore[misc]
        except BaseException as error:
            if len(self._state.past) > task:
                self._state = opened
            elif before.current is None and self.step == 0 and isinstance(error, Exception):
                self._state = before
            raise

    @contextlib.contextmanager
    def _changing(self) -> Iterator[S]:
        """Inside, the state is a copy, which is given: all its changes are taken over, or none."""
        with self._lock:
            before = self._state
            try:
                self._state = before.branch()
                yield self._state
            except BaseException:
                self._state = before
                raise

    def _continued(self, x: Tensor, y: Any, *given: object) -> Tensor:
        """The encoded targets of the open task; any data but those that fit() began with is refused."""
        current = self._state.current
        with contextlib.suppress(DataError):
            targets: Tensor = current.likelihood.encode(y, self.device, self.dtype)
            if current.data_mark == data_mark(x, targets, *given):
                return targets
        raise TaskError(f"task {len(self._state.past)} is still open: call fit() exactly as it began{self._way_out}")

    def _inputs(self, x: Any, y: Any | None = None) -> Tensor:
        """x [n, ...] on the device, one input for each target; floats in the network's type, integers as they are."""
        if isinstance(self.net, MultiInput):
            x = self.net.pack(x)
        elif isinstance(x, Mapping):
            raise DataError("inputs are a dictionary; make the network frcl.MultiInput(net, example) to use them")
        inputs = checked_inputs(self, x, y)
        if self._state.input_shape is None:
            self._inference.check(inputs[:1])
        return inputs

    @property
    def _count(self) -> int:
        """The number of tasks that have been learned or are being learned."""
        return len(self._state.past) + (self._state.current is not None)

    @property
    def _answering(self) -> int:
        """The number of tasks that have a part where none is named."""
        return len(self._state.past) if self._state.window is None else self._count

    def _number(self, task: int) -> int:
        """The number of a task that has been learned or is being learned."""
        return check_task(task, self._count, self._opens)

    # -- prediction ----------------------------------------------------------------------------------------------

    @abstractmethod
    def _beliefs(self, x: Tensor) -> Beliefs:
        """What can be said about x, in the tasks finished or open and by the inference of the task."""

    def _in_task(self, x: Tensor, number: int) -> Prediction:
        """What is believed in one task."""
        return self._beliefs(x).within(number, None)

    def predict(self, x: Any, task: int | Sequence[int] | Tensor | None = None) -> Prediction:
        """What is believed about x: over everything ever learned, or in a task, or each input in a task of its own.

        Without a task p(y | x) = Σ_k p(k | x) p(y | x, k), over all labels of all tasks; one label in several tasks is
        one label, and `task_probs` has p(k | x). The open task of a stream has its part as it is now; one that fit()
        has begun, half trained as it is, has one only where it is named.
        """
        with self._lock, torch.no_grad():
            if isinstance(task, int | np.integer):
                return self._in_task(self._inputs(x), self._number(task))
            inputs, known = self._inputs(x), self._answering
            beliefs = self._beliefs(inputs)
            if task is not None:
                numbers = checked_tasks(task, self._count, len(inputs), self._opens)
                named = sorted(set(numbers.tolist()))
                weights = (numbers[:, None] == torch.tensor(named)).to(self.device, self.dtype)
                return over_tasks(beliefs, weights, named, named=True)
            if known == 0 and self._state.current is not None:
                raise TaskError("task 0 is still being learned: finish it first, or name it, as predict(x, task=0)")
            check_task(0, known, self._opens)
            stands = self._stands(beliefs)

            def in_task(number: int) -> Prediction:
                with self._lock, torch.no_grad():
                    if self._stands(self._beliefs(inputs)) != stands:
                        raise TaskError("the learner has changed since this prediction; call predict(x, task=...)")
                    return beliefs.within(self._number(number), None)

            return self._over_tasks(beliefs, in_task)

    def _over_tasks(self, beliefs: Beliefs, in_task: Callable[[int], Prediction]) -> Prediction:
        """What is believed where no task is named, with p(task | x) and the novelty of each input."""
        found = self._inference.infer(self._sums(), beliefs.asked)
        probs = found.log_probs.exp().to(self.dtype)
        unlike = found.unlike
        novelty = None if unlike is None else lambda: unlike().to(probs)
        return over_tasks(beliefs, probs, range(probs.shape[1]), novelty, in_task=in_task)

    def _stands(self, beliefs: Beliefs) -> Hashable:
        """Equal as long as predictions stay the same."""
        return beliefs.asked.version or (self._state, self.step, self._watched.version())

    def _sums(self) -> Tasks:
        """What the inference keeps, as if the open task of a stream ended here; made once for each minibatch."""
        current, window, kept = self._state.current, self._state.window, self._state.task_sums
        if window is None or len(kept.blocks) < len(self._state.past):
            return kept
        if window.sums is None or window.sums[0] != window.seen:
            x, y = window.data()
            window.sums = window.seen, self._ended(current.likelihood, x, y, current.returned)
        return window.sums[1]  # type: ignore[no-any-return]

    def _ended(self, likelihood: Likelihood, x: Tensor, y: Tensor, number: int | None = None) -> Tasks:
        """What the inference keeps after one more task with these examples, or more of task `number`, in sums."""
        kept, sums = self._state.task_sums, self._inference.sums
        return kept if sums is None else sums.ended(kept, x, y, likelihood, number)

    # -- keeping -------------------------------------------------------------------------------------------------

    forget, export, export_onnx = forget, export, export_onnx

    def _drop(self, number: int) -> None:
        """Take a task out of what is beside the state's past and regularisers, and empty caches."""
        self._infer_tasks()

    def _infer_tasks(self) -> None:
        """Begin to infer tasks: nothing is known but what the state has."""
        options: Any = self.options
        self._inference = options.inference_of_task(FeatureMap(self.net, options.bfloat16))

    def _deployed(self, task: int | None) -> tuple[Deployed, Tensor]:
        """What is exported, and an example of its inputs."""
        raise OptionError(
            f"{type(self).__name__} has no export; it is for FRCL, FRCLPlus, Ensemble, ExactGP, and methods with a "
            "linear head for each task and no uncertainty, such as EWC"
        )

    @property
    def regularisers(self) -> tuple[Regulariser, ...]:
        """What keeps past tasks in place."""
        return tuple(self._state.regularisers)

    def memory_parts(self) -> Parts:
        return memory_of(self._state, self._kept(), trained_parts(self.net))

    def state_dict(self) -> dict[str, Any]:
        """Everything that decides what happens next, copied: {"meta": JSON-able, "tensors": by name}.

        While observe() is learning a task this includes the window of that task's examples, and its last minibatches
        where the detector has them scored again.
        """
        with self._lock:
            state, trained = codec.pack(self._saved()), list(trained_parts(self.net))
        if name := non_finite(state["tensors"], trained):
            raise NumericalError(f"{name!r} is not finite: this state is not saved. Go back to one saved before.")
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue exactly where the learner that gave `state` was; refused as a whole if it does not fit."""
        saved = codec.unpack(self._saved_type, state, self.device)
        if name := non_finite(state["tensors"], saved.trained):
            raise CheckpointError(f"{name!r} in the state is not finite")
        with self._lock:
            load(self, saved, state)


def memory_of(state: State, kept: Kept, theta: Params) -> Parts:
    """Bytes by kind of what is kept of past tasks in a state: `kept`, and what regularisers and task inference keep."""
    if not state.past:
        return {}
    parts = [parts_of(kept), *(parts_of(one.kept(theta)) for one in state.regularisers)]
    return added([*parts, {"sums": stored_bytes(state.task_sums)} if state.task_sums.blocks else {}])


# -- checks of the user's data ----------------------------------------------------------------------------------------


def checked_inputs(learner: Any, x: Any, y: Any | None) -> Tensor:
    """x [n, ...] on the device, like the inputs before, one for each target in y; floats are of the learner's type."""
    tensor = x.detach() if isinstance(x, Tensor) else torch.as_tensor(numeric_array(x, "inputs"))
    if tensor.layout != torch.strided:
        raise DataError("inputs are a sparse tensor; expected a dense one: call .to_dense()")
    shape, known, old = tuple(tensor.shape), learner._state.input_shape, learner._state.input_dtype
    if len(shape) < 2 or shape[0] == 0:
        raise DataError(f"inputs must be [examples, ...], at least one example and a dimension more; got shape {shape}")
    if known is not None and shape[1:] != known:
        raise DataError(f"each input has shape {shape[1:]}; earlier ones had {known}, and all tasks share one network")
    if tensor.is_complex():
        raise DataError("inputs are complex; expected real numbers")
    if old is not None and tensor.is_floating_point() != old.is_floating_point:
        raise DataError(f"inputs are {tensor.dtype}; earlier ones were {('integers', 'floats')[old.is_floating_point]}")
    if tensor.is_floating_point():
        tensor = tensor.to(learner.dtype)
        if not (math.isfinite(tensor.sum().item()) or bool(tensor.isfinite().all())):
            raise DataError("inputs contain NaN or infinite values; remove or replace them first")
    if y is not None:
        try:
            count = next(iter(y.shape if isinstance(y, Tensor) else np.shape(y)), 0)
        except ValueError as error:
            raise DataError(f"targets are not a regular array: {error}") from error
        if count != len(tensor):
            raise DataError(f"{len(tensor)} inputs but {count} targets; give one target per input")
    return tensor.to(learner.device)


def check_examples(points: int, likelihood: Likelihood, examples: int, held: int = 0) -> None:
    """Refuse a task with fewer examples than points, or with nothing to temper where some are held out."""
    if held and likelihood.classes is None:
        raise OptionError("held_out is for the probabilities of classes; a regression task has none: set it to 0")
    few = f"are fewer than the {points} inducing points to keep; lower points"
    if examples < points:
        raise DataError(f"{examples} examples {few}, or bring more data")
    if examples - held < points:
        raise DataError(f"{examples} examples less {held} held out {few} or held_out, or bring more data")


def checked_steps(
    options: MethodOptions, examples: int, steps: int | None, epochs: float | None, lr: float | None
) -> int:
    """The number of steps of one call of fit(), which may say otherwise than the options; checks lr too.

    Minibatches are drawn at random, so an epoch has as many examples as the data.
    """
    if steps is not None and epochs is not None:
        raise OptionError("steps and epochs both say how long to learn; give one of them")
    if steps is not None and (not isinstance(steps, int | np.integer) or isinstance(steps, bool) or steps < 1):
        raise OptionError(f"steps must be a whole number of at least 1, not {steps!r}")
    for name, value in (("epochs", epochs), ("lr", lr)):
        if value is not None and (type(value) not in (int, float) or not 0 < value < math.inf):
            raise OptionError(f"{name} must be a positive number, not {value!r}")
    return math.ceil(epochs * examples / options.batch_size) if epochs is not None else int(steps or options.steps)


def checked_size(given: int) -> int:
    """N as given by a user."""
    if not isinstance(given, int | np.integer) or isinstance(given, bool) or given < 1:
        raise OptionError(f"size is the number of examples of the task, a whole number of at least 1; got {given!r}")
    return int(given)
