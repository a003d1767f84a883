"""What the engine is given: a task to be learned, as a pure loss of trees; its random streams; a step as one thing."""

from __future__ import annotations

import math
import signal
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import attrgetter
from types import FrameType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from frcl.augment import Augmentation
from frcl.errors import NumericalError
from frcl.graphs import in_place
from frcl.seeding import fork
from frcl.trees import Params, Tree, copied, stack, with_tensors

if TYPE_CHECKING:
    from frcl.engine.train import Optimiser


def gradient(loss: Tensor, params: Params) -> Params:
    """The gradient of a loss by name; zero for what it does not depend on."""
    found = torch.autograd.grad(loss, list(params.values()), allow_unused=True, materialize_grads=True)
    return dict(zip(params, found, strict=True))


class StepLock:
    """Held by a thread while it takes a step of a learner, opens or closes a task, predicts, or packs the state.

    Re-entrant and fair: a thread that waits goes before one that comes back. Otherwise a loop of steps, which lets go
    for microseconds, would keep all others waiting. A copy of a learner has a lock of its own.
    """

    def __init__(self) -> None:
        self._turn, self._lock = threading.Lock(), threading.RLock()

    def __enter__(self) -> None:
        lock: Any = self._lock
        if lock._is_owned():
            lock.acquire()
            return
        try:
            with self._turn:
                lock.acquire()
        except BaseException:
            if lock._is_owned():
                lock.release()
            raise

    # the lock's own, without a step in Python: no interruption comes before it lets go
    __exit__ = property(attrgetter("_lock.__exit__"))

    def __reduce__(self) -> tuple[type[StepLock], tuple[()]]:
        return StepLock, ()


@contextmanager
def indivisible(locks: Sequence[StepLock] = ()) -> Iterator[None]:
    """A context that holds some locks, and in which Ctrl-C (SIGINT) waits until its end; pressed again, it does not.

    Python runs handlers of signals in the main thread alone; in other threads there is nothing to put off.
    """
    handler = signal.getsignal(signal.SIGINT) if threading.current_thread() is threading.main_thread() else None
    pressed: list[tuple[int, FrameType | None]] = []
    held: list[StepLock] = []

    def note(number: int, frame: FrameType | None) -> None:
        pressed.append((number, frame))
        if len(pressed) > 1 and callable(handler):
            pressed.clear()
            handler(number, frame)

    if callable(handler):
        signal.signal(signal.SIGINT, note)
    try:
        for lock in dict.fromkeys(locks):
            lock.__enter__()
            held.append(lock)
        yield
    finally:
        while held:
            held.pop().__exit__(None, None, None)
        if callable(handler):
            if signal.getsignal(signal.SIGINT) == note:
                signal.signal(signal.SIGINT, handler)
            if pressed:
                handler(*pressed[0])


STREAMS = ("posterior", "batches", "likelihood", "past", "selection", "window")


class Streams(dict[str, torch.Generator]):
    """The named generators of one learner, with a state that can be saved and put back.

    Numbers of several steps may be drawn ahead: until all these are taken, the state before them, `held`, is saved.
    """

    def __init__(self, seed: int, device: torch.device) -> None:
        super().__init__({name: fork(seed, name, device) for name in STREAMS})
        self.held: dict[str, Tensor] | None = None

    def hold(self) -> None:
        """Remember the state: what is drawn from here on is for steps not yet taken. First go back to the last hold."""
        if self.held is not None:
            self.restore(self.held)
        self.held = {name: generator.get_state() for name, generator in self.items()}

    def state(self) -> dict[str, Tensor]:
        """The state that belongs to the last step taken."""
        now = {name: one.get_state() for name, one in self.items()} if self.held is None else self.held
        return {name: value.clone() for name, value in now.items()}

    def restore(self, state: dict[str, Tensor]) -> None:
        for name, generator in self.items():
            generator.set_state(state[name].to("cpu", torch.uint8))
        self.held = None


CHUNK = 100  # steps whose random numbers are drawn at once


class Drawn(NamedTuple):
    """Everything random of some steps: which examples each of them uses [n, B] (None: all), and trees [n, ...]."""

    rows: Tensor | None
    draws: Tree
    augment: Tree = ()


class Terms(NamedTuple):
    """The loss and its parts, in nats per example: loss = −log_likelihood + kl_now + kl_past."""

    loss: Tensor
    log_likelihood: Tensor
    kl_now: Tensor
    kl_past: Tensor


Values = tuple[float, float, float, float]  # Terms as numbers


# (params, constants, x, y, draws); pure: reads its arguments alone, changes nothing, branches on no value
Loss = Callable[[Tree, Tree, Tensor, Tensor, Tree], Terms]
# (carry, constants, gradient, before, after); updates what a regulariser carries along, in place, elementwise
Follow = Callable[[Tree, Tree, Tree, Tree, Tree], None]


@dataclass
class Program:
    """Steps up to `stop` of one learner on the data of one task.

    net        the network that the loss calls: by it the engine remembers whether it can be batched
    loss       of a minibatch, from parameters, constants and the draws of the step
    follow     called after every step with what is carried along
    optimiser  the parameters, and how many steps were taken
    constants  whatever else the loss reads; unchanged until `stop`
    draw       everything random of the next n steps, from `streams`
    first      number of the step before the first one of this program's optimiser
    look       called with the minibatch of every step after it was taken, and with the number of the step
    augment    changes the inputs of each minibatch
    share      the draws of some examples of a minibatch, where draws belong to examples
    signature  two programs may run as one where signatures and shapes are equal: their losses are one function
    stackable  whether copies of the constants may be stacked with those of other programs
    lock       held while a step is taken
    """

    net: nn.Module
    loss: Loss
    optimiser: Optimiser
    constants: Tree
    x: Tensor
    y: Tensor
    draw: Callable[[int], Drawn]
    streams: Streams
    stop: int
    first: int = 0
    carry: Tree = field(default_factory=dict)
    follow: Follow | None = None
    look: Callable[[Tensor, Tensor, int], None] | None = None
    augment: Augmentation | None = None
    share: Callable[[Tree, slice], Tree] | None = None
    signature: Hashable = None
    stackable: bool = True
    chunk: int = CHUNK
    lock: StepLock = field(default_factory=StepLock)

    @property
    def step(self) -> int:
        """Steps taken, those before this program included."""
        return self.first + self.optimiser.steps


class Unit:
    """Takes the steps of one program, a chunk at a time, or of several programs that are stacked (`Block`)."""

    is_stacked: ClassVar[bool] = False

    def __init__(self, program: Program) -> None:
        self.programs: Sequence[Program] = [program]
        self.optimiser, self.constants, self.carry = program.optimiser, program.constants, program.carry
        self.drawn: Any = None  # the Drawn of the chunk, once one is loaded

    def load(self) -> range:
        """Draw everything random of the chunk with the next step; returns which of its steps are left.

        The streams remember where the chunk began, so that a state saved within it can go on exactly.
        """
        first = self.programs[0]
        taken = first.optimiser.steps % first.chunk
        self.start = first.step - taken
        self.size = min(first.chunk, first.stop - self.start)
        each = []
        for program in self.programs:
            program.streams.hold()
            own = program.draw(self.size)
            if program.augment is not None:
                batch = len(program.x) if own.rows is None else own.rows.shape[1]
                own = own._replace(augment=program.augment.draws(self.start, self.size, batch, program.x.device))
            each.append(own)
        drawn = stack(each, 1) if self.is_stacked else each[0]
        self.drawn = in_place(self.drawn, drawn, first.chunk) if first.x.is_cuda else drawn
        return range(taken, self.size)

    def computed(self, drawn: Drawn) -> tuple[Terms, Params]:
        """The terms of the step with this randomness, numbers or [programs] each, and the gradient of their sum."""
        (program,), (rows, draws, changes) = self.programs, drawn
        x, y = program.x, program.y
        if rows is not None:
            x, y = x.index_select(0, rows), y.index_select(0, rows)  # faster than indexing
        if program.augment is not None:
            x = program.augment(x, changes, program.step)
        terms = program.loss(self.optimiser.tree, self.constants, x, y, draws)
        return terms, gradient(terms.loss, self.optimiser.params)

    def minibatch(self, program: int, at: int) -> tuple[Tensor, Tensor]:
        """The examples that a program used in the step at a place of the chunk."""
        own, rows = self.programs[program], self.drawn.rows
        if rows is None:
            return own.x, own.y
        used = rows[at, program] if self.is_stacked else rows[at]
        return own.x.index_select(0, used), own.y.index_select(0, used)

    def move(self, terms: Terms, found: Params) -> Tensor:
        """Take the step with these terms down the gradient found; returns them, [programs, 4]."""
        optimiser, follow = self.optimiser, self.programs[0].follow
        before = {} if follow is None else copied(optimiser.params)
        optimiser.apply(found)
        if follow is not None:
            trees = [with_tensors(optimiser.tree, values) for values in (found, before, optimiser.params)]
            with torch.no_grad():
                follow(self.carry, self.constants, *trees)
        return torch.stack([term.detach().to(terms.loss.dtype) for term in terms], -1).view(-1, len(terms))

    def count(self, places: range) -> None:
        """The steps at these places of the chunk have been taken."""
        for i, program in enumerate(self.programs):
            program.optimiser.steps += len(places)
            if places.stop == self.size:
                program.streams.held = None
            if program.look is not None:
                for at in places:
                    program.look(*self.minibatch(i, at), self.start + at + 1)


def exact_number(value: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A number as a tensor of that type, or of float32 where the type has fewer digits."""
    return torch.full((), value, dtype=torch.promote_types(dtype, torch.float32), device=device)


REFUSED = {
    "loss": "the loss is {value}; this step was not taken. Lower the learning rate (lr), scale the inputs, or raise "
    "u_noise, the variance on the inducing values.",
    "gradient": "the gradient of {name!r} is not finite, or too large, although the loss is finite; this step was not "
    "taken. Some operation of the network may have no finite derivative at these inputs, such as a square root at "
    "zero; else scale the inputs.",
    "parameter": "{name!r} is no longer finite: learning has diverged. Go back to an earlier state; then lower the "
    "learning rate (lr), scale the inputs, or raise u_noise.",
}


def refuse_non_finite(kind: Literal["loss", "gradient", "parameter"], tensors: Mapping[str, Tensor]) -> None:
    """Refuse tensors that are not finite; a gradient by its norm, because Adam keeps squares, also to be finite."""
    for name, value in tensors.items():
        if kind == "gradient":
            is_finite = math.isfinite(torch.linalg.vector_norm(value).item())
        else:
            is_finite = math.isfinite(value.sum().item()) or bool(value.isfinite().all())  # the sum is the faster
        if not is_finite:
            found = value.detach()[~value.isfinite()].tolist()
            raise NumericalError(REFUSED[kind].format(name=name, value=found[0] if found else math.inf))
