"""What the engine is given: a task to be learned, as a pure loss of trees; its optimiser; a step as one thing."""

from __future__ import annotations

import math
import signal
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from types import FrameType
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from frcl.engine.natural import RATE, natural_step
from frcl.errors import NumericalError
from frcl.graphs import TRIALS
from frcl.seeding import Streams
from frcl.trees import Params, Tree, named_tensors, tree_map, with_tensors

BETAS = (0.9, 0.999)
EPS = 1e-8


class AdamState(NamedTuple):
    """Moments by name and the number of steps: what has to be saved."""

    steps: int
    exp_avg: Params
    exp_avg_sq: Params


NATURAL = ("posterior/mean", "posterior/factor")


class Optimiser:
    """Moves the leaf tensors of a tree down a gradient, by Adam. `steps` is the one count of steps taken.

    Where `natural` is given, the number of examples N, the posterior takes natural-gradient steps instead.
    """

    def __init__(self, params: Tree, lr: float, natural: Tensor | None = None) -> None:
        self.tree = params
        self.params: Params = dict(named_tensors(params))
        self.lr, self.natural = lr, natural
        self.decay: tuple[float, float] | None = None  # the last step, and over how many steps before it lr decays
        kinds: dict[Any, list[str]] = {}  # names by type
        for name, p in self.params.items():
            p.data = p.data.contiguous()
            if natural is None or name not in NATURAL:
                kinds.setdefault(p.dtype, []).append(name)
        self._kinds = list(kinds.values())
        by_adam = {name: self.params[name] for names in self._kinds for name in names}
        self.exp_avg = {name: torch.zeros_like(p, requires_grad=False) for name, p in by_adam.items()}
        self.exp_avg_sq = {name: torch.zeros_like(p, requires_grad=False) for name, p in by_adam.items()}
        self.steps = 0
        device = next((p.device for p in self.params.values()), torch.device("cpu"))
        self._count = torch.zeros((), device=device)  # `steps` as the kernel reads it, on the device

    def apply(self, gradients: Mapping[str, Tensor]) -> None:
        """Move the parameters down a gradient; whoever calls this counts the step."""
        with torch.no_grad():
            self._count += 1
            share: float | Tensor = 1.0
            if self.decay is not None:  # a tensor, so that a step can be recorded
                last, over = self.decay
                share = ((last + 1 - self._count) / over).clamp(0.0, 1.0)
            if self.natural is not None:
                mean, factor = NATURAL
                natural_step(
                    self.params[mean], self.params[factor], gradients[mean], gradients[factor], self.natural,
                    RATE * share,
                )  # fmt: skip
            for names in self._kinds:
                # the fused kernel of torch.optim.Adam(fused=True); torch.optim itself takes a second to import.
                # It ignores strides: everything must be contiguous.
                torch._fused_adam_(
                    [self.params[n] for n in names], [gradients[n].contiguous() for n in names],
                    [self.exp_avg[n] for n in names], [self.exp_avg_sq[n] for n in names], [],
                    [self._count] * len(names), lr=self.lr * share, beta1=BETAS[0], beta2=BETAS[1],
                    weight_decay=0.0, eps=EPS, amsgrad=False, maximize=False,
                )  # fmt: skip

    def decays(self, last: int, share: float) -> None:
        """From now on lr falls linearly over this share of the steps 1 to `last`, then is zero."""
        self.decay = (float(last), share * last) if share else None

    def changes(self) -> list[Tensor]:
        """Every tensor that a step writes."""
        return [*self.params.values(), *self.exp_avg.values(), *self.exp_avg_sq.values(), self._count]

    def settle(self) -> None:
        """Give everything memory of its own, where it is part of a stack."""
        for part in (self.params, self.exp_avg, self.exp_avg_sq):
            for value in part.values():
                value.data = value.data.clone()
        self._count = self._count.clone()

    def state(self) -> AdamState:
        return AdamState(self.steps, self.exp_avg, self.exp_avg_sq)

    def restore(self, state: AdamState) -> None:
        """Go on from a saved state; its moments must have the names and shapes of the parameters."""
        if not 0 <= state.steps < 2**31:
            raise ValueError(f"{state.steps} steps were taken")
        if any(bool((value < 0).any()) for value in state.exp_avg_sq.values()):
            raise ValueError("the second moment of Adam, a mean of squares, is negative")
        self.steps = state.steps
        self._count.fill_(state.steps)
        for own, saved in ((self.exp_avg, state.exp_avg), (self.exp_avg_sq, state.exp_avg_sq)):
            if own.keys() != saved.keys() or any(own[name].shape != saved[name].shape for name in own):
                raise ValueError("the moments of Adam do not have the names and shapes of the parameters")
            for name, value in saved.items():
                own[name].copy_(value)


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

    @property
    def __exit__(self) -> Callable[..., None]:
        """The lock's own, which is not written in Python: no interruption comes before it lets go."""
        return self._lock.__exit__

    def __deepcopy__(self, memo: dict[int, Any]) -> StepLock:
        return StepLock()

    def __reduce__(self) -> tuple[type[StepLock], tuple[()]]:
        return StepLock, ()


class Indivisible:
    """A context that holds some locks, and in which Ctrl-C (SIGINT) waits until its end; pressed again, it does not.

    Python runs handlers of signals in the main thread alone; in other threads there is nothing to put off.
    """

    def __init__(self, locks: Sequence[StepLock] = ()) -> None:
        self._locks = list(dict.fromkeys(locks))
        self._held = 0
        self._handler: Callable[[int, FrameType | None], Any] | None = None
        self._pressed: tuple[int, FrameType | None] | None = None

    def __enter__(self) -> None:
        self._handler = self._pressed = None
        if threading.current_thread() is threading.main_thread():
            handler = signal.getsignal(signal.SIGINT)
            if callable(handler):
                self._handler = handler
                signal.signal(signal.SIGINT, self._note)
        try:
            for lock in self._locks:
                lock.__enter__()
                self._held += 1
        except BaseException:
            self.__exit__()
            raise

    def _note(self, number: int, frame: FrameType | None) -> None:
        again, self._pressed = self._pressed, (number, frame)
        if again is not None and self._handler is not None:
            self._pressed = None
            self._handler(number, frame)

    def __exit__(self, *_: object) -> None:
        while self._held:
            self._held -= 1
            self._locks[self._held].__exit__(None, None, None)
        if self._handler is None:
            return
        if signal.getsignal(signal.SIGINT) == self._note:
            signal.signal(signal.SIGINT, self._handler)
        if self._pressed is not None:
            self._handler(*self._pressed)


CHUNK = 100  # steps whose random numbers are drawn at once


class Drawn(NamedTuple):
    """Everything random of some steps: which examples each of them uses [n, B] (None: all), and a tree [n, ...]."""

    rows: Tensor | None
    draws: Tree


def minibatch_rows(examples: int, size: int, steps: int, streams: Streams, device: torch.device) -> Tensor:
    """Which examples each step uses, [steps, size], drawn with replacement from the stream "batches"."""
    return torch.randint(examples, (steps, size), generator=streams["batches"], device=device)


class Terms(NamedTuple):
    """The loss and its parts, in nats per example: loss = −log_likelihood + kl_now + kl_past."""

    loss: Tensor
    log_likelihood: Tensor
    kl_now: Tensor
    kl_past: Tensor


Values = tuple[float, float, float, float]  # Terms as numbers


class Loss(Protocol):
    """Pure: reads its arguments alone, changes nothing, branches on no value, so it can be batched and recorded."""

    def __call__(self, params: Tree, constants: Tree, x: Tensor, y: Tensor, draws: Tree, /) -> Terms: ...


class Follow(Protocol):
    """Called after a step with the tensors that a regulariser carries along, which it updates in place, elementwise."""

    def __call__(self, carry: Tree, constants: Tree, gradient: Tree, before: Tree, after: Tree, /) -> None: ...


@dataclass
class Program:
    """Steps up to `stop` of one learner on the data of one task.

    net        the network that the loss calls: by it the engine remembers whether it can be batched
    loss       of a minibatch, from parameters, constants and the draws of the step
    optimiser  the parameters, and how many steps were taken
    constants  whatever else the loss reads; unchanged until `stop`
    draw       everything random of the next n steps, from `streams`
    first      number of the step before the first one of this program's optimiser
    look       called with the minibatch of every step after it was taken, and with the number of the step
    augment    changes the inputs of the minibatch of a step, given its number; not recorded, and not stacked
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
    augment: Callable[[Tensor, int], Tensor] | None = None
    share: Callable[[Tree, slice], Tree] | None = None
    signature: Hashable = None
    stackable: bool = True
    chunk: int = CHUNK
    lock: StepLock = field(default_factory=StepLock)

    @property
    def params(self) -> Params:
        """What is trained, by name."""
        return self.optimiser.params

    @property
    def step(self) -> int:
        """Steps taken, those before this program included."""
        return self.first + self.optimiser.steps

    def next_chunk(self) -> tuple[int, int, Drawn]:
        """First and last step of the chunk with the next step, and its randomness.

        The streams remember where the chunk began, so that a state saved within it can go on exactly.
        """
        start = self.step - self.optimiser.steps % self.chunk
        end = min(start + self.chunk, self.stop)
        self.streams.hold()
        return start, end, self.draw(end - start)


class Unit(ABC):
    """Takes steps; the random numbers of a chunk are loaded first."""

    programs: Sequence[Program]
    optimiser: Optimiser
    constants: Tree
    carry: Tree
    drawn: Drawn | None = None

    @abstractmethod
    def load(self, drawn: Sequence[Drawn]) -> None:
        """What the programs drew for a chunk, into the same tensors every time."""

    @abstractmethod
    def terms(self, at: int | Tensor) -> Terms:
        """The terms of a step with the randomness at a place of the chunk: numbers, or [programs] each."""

    @abstractmethod
    def minibatch(self, program: int, at: int) -> tuple[Tensor, Tensor]:
        """The examples that a program used in the step at a place of the chunk."""

    def move(self, terms: Terms, found: Params) -> Tensor:
        """Take the step with these terms down the gradient found; returns them, [programs, 4]."""
        optimiser, follow = self.optimiser, self.programs[0].follow
        if follow is None:
            optimiser.apply(found)
        else:
            before = {name: value.detach().clone() for name, value in optimiser.params.items()}
            optimiser.apply(found)
            trees = [with_tensors(optimiser.tree, values) for values in (found, before, optimiser.params)]
            with torch.no_grad():
                follow(self.carry, self.constants, *trees)
        return torch.stack([term.detach().to(terms.loss.dtype) for term in terms], -1).view(-1, len(terms))


def at_place(drawn: Drawn, at: int | Tensor) -> Drawn:
    """The randomness of one step; its place in the chunk is a number, or a tensor where the step is recorded."""
    if isinstance(at, int):
        return tree_map(itemgetter(at), drawn)
    return tree_map(lambda value: value.index_select(0, at)[0], drawn)


def loaded(into: Drawn | None, drawn: Drawn, chunk: int) -> Drawn:
    """On CUDA always into the same tensors, from which a recorded step reads, with room for the trials before it."""
    if not any(value.is_cuda for _, value in named_tensors(drawn)):
        return drawn
    if into is None:
        into = tree_map(lambda value: value.new_zeros(chunk + TRIALS, *value.shape[1:]), drawn)
    for (_, target), (_, value) in zip(named_tensors(into), named_tensors(drawn), strict=True):
        target[: len(value)].copy_(value)
    return into


def exact_number(value: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A number as a tensor of that type, or of float32 where the type has fewer digits."""
    return torch.full((), value, dtype=torch.promote_types(dtype, torch.float32), device=device)


def refuse_non_finite_loss(loss: Tensor) -> None:
    """Refuse the loss of a step that is about to be taken."""
    if not bool(loss.isfinite().all()):
        value = float(loss.detach()[~loss.isfinite()].flatten()[0])
        raise NumericalError(
            f"the loss is {value}; this step was not taken. Lower the learning rate (lr), scale the "
            "inputs, or raise u_noise, the variance on the inducing values."
        )


def refuse_non_finite_gradient(found: Params) -> None:
    """Refuse the gradient of a step that is about to be taken, by its norm: Adam keeps squares, also to be finite."""
    for name, value in found.items():
        if not math.isfinite(torch.linalg.vector_norm(value).item()):
            raise NumericalError(
                f"the gradient of {name!r} is not finite, or too large, although the loss is finite; this step was not "
                "taken. Some operation of the network may have no finite derivative at these inputs, such as a square "
                "root at zero; else scale the inputs."
            )


def refuse_non_finite(params: Tree) -> None:
    """Refuse parameters that are no longer finite, where the gradient was not checked in every step."""
    for name, value in named_tensors(params):
        if not bool(value.isfinite().all()):
            raise NumericalError(
                f"{name!r} is no longer finite: learning has diverged. Go back to an earlier state; then lower the "
                "learning rate (lr), scale the inputs, or raise u_noise."
            )
