"""A step on a CUDA device as one graph: recorded once, then replayed without Python or launches in between."""

import gc
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import TypeVar

import torch
from torch import Tensor

from frcl.trees import named_tensors, tree_map

Replay = Callable[[], None]
A = TypeVar("A")
B = TypeVar("B")
T = TypeVar("T")
MOST_SHAPES = 4  # of inputs that a function is recorded for: every graph has memory of its own
WARM_UPS = 2  # libraries are loaded, workspaces allocated and plans made outside of the recording
TRIALS = WARM_UPS + 1  # how often the step is called before it is replayed: what it counts must have room for them


def inside_a_transform() -> bool:
    """Whether a torch.func transform (vmap, grad) is at work, under which no value of a tensor can be looked at."""
    active = getattr(torch._C, "_are_functorch_transforms_active", None)
    return active is None or bool(active())


def captured(step: Replay, changes: Sequence[Tensor], device: torch.device) -> Replay:
    """The step as a CUDA graph; the step itself on any other device, or where it cannot be recorded.

    A step reads and writes the same tensors every time, in place, looks at no value of them, and draws no random
    number. `changes` are the tensors that it writes: they are as before when this returns.
    """
    if device.type != "cuda":
        return step
    before = [tensor.detach().clone() for tensor in changes]
    try:
        now = torch.backends.cudnn  # inside, convolutions are computed by algorithms that give the same bits every time
        same = now.flags(enabled=now.enabled, benchmark=False, deterministic=True, allow_tf32=now.allow_tf32)
        with torch.cuda.device(device), same, _uncollected():
            here = torch.cuda.current_stream()
            (side,) = _beside(here, 1)
            side.wait_stream(here)
            with torch.cuda.stream(side):
                for _ in range(WARM_UPS):
                    step()
            here.wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                step()
        return graph.replay
    except RuntimeError as error:
        torch.cuda.synchronize(device)
        warnings.warn(f"this step cannot be recorded as a CUDA graph and runs eagerly: {error}", stacklevel=2)
        return step
    finally:
        put_back(changes, before)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Inside, Python collects no garbage: to free an old graph while another is being recorded spoils the recording."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def spread(works: Sequence[Callable[[], A]], device: torch.device) -> list[A]:
    """What each of them gives; on CUDA each has a stream of its own: branches, if a graph is being recorded."""
    if device.type != "cuda":
        return [work() for work in works]
    here = torch.cuda.current_stream(device)
    sides, found = _beside(here, len(works) - 1), []  # the first stays here
    for work, side in zip(works[1:], sides, strict=True):
        side.wait_stream(here)
        with torch.cuda.stream(side):
            found.append(work())
    found.insert(0, works[0]())
    for side in sides:
        here.wait_stream(side)
    return found


@lru_cache(maxsize=64)
def _beside(stream: torch.cuda.Stream, count: int) -> list[torch.cuda.Stream]:
    """Other streams beside this one, the same every time: what one of them allocated it can use again."""
    return [torch.cuda.Stream(stream.device) for _ in range(count)]


def both(first: Callable[[], A], second: Callable[[], B], device: torch.device) -> tuple[A, B]:
    """What two functions give, as `spread` has it."""
    a, b = spread([first, second], device)
    return a, b  # type: ignore[return-value]


def put_back(changes: Sequence[Tensor], before: Sequence[Tensor]) -> None:
    """Give tensors the values that they had before."""
    with torch.no_grad():
        for tensor, value in zip(changes, before, strict=True):
            tensor.copy_(value)


def in_place(into: T | None, tree: T, length: int) -> T:
    """A tree copied to where a recorded step reads it, the same memory every time, of `length` steps and the trials."""
    if into is None:
        into = tree_map(lambda value: value.new_zeros(length + TRIALS, *value.shape[1:]), tree)
    for (_, target), (_, value) in zip(named_tensors(into), named_tensors(tree), strict=True):
        target[: len(value)].copy_(value)
    return into


class Captured:
    """A function of one tensor as CUDA graphs, one for each of the first few shapes of its input; else the function.

    The function reads and writes no other tensor than those that it always reads, and its result has a fixed shape.
    """

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        self._function = function
        self._recorded: dict[tuple[int, ...], tuple[Tensor, Tensor, Replay]] = {}

    def __deepcopy__(self, memo: dict[int, object]) -> None:
        return None  # a copy of a learner records it again

    def _is_recorded(self, x: Tensor) -> bool:
        return x.is_cuda and (len(self._recorded) < MOST_SHAPES or tuple(x.shape) in self._recorded)

    def __call__(self, x: Tensor) -> Tensor:
        """function(x); on CUDA the result is overwritten by the next call."""
        if not self._is_recorded(x):
            return self._function(x)
        key = tuple(x.shape)
        if key not in self._recorded:
            given = x.clone()
            held = torch.empty_like(self._function(given))

            def compute() -> None:
                held.copy_(self._function(given))

            self._recorded[key] = given, held, captured(compute, [held], x.device)
        given, held, replay = self._recorded[key]
        given.copy_(x)
        replay()
        return held
