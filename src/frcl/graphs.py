"""A step on a CUDA device as one graph: recorded once, then replayed without Python or launches in between."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TypeVar

import torch
from torch import Tensor

Step = Callable[[], None]
A = TypeVar("A")
B = TypeVar("B")
WARM_UPS = 2  # libraries are loaded, workspaces allocated and plans made outside of the recording
TRIALS = WARM_UPS + 1  # how often the step is called before it is replayed: what it counts must have room for them


def captured(step: Step, changes: Sequence[Tensor], device: torch.device) -> Step:
    """The step as a CUDA graph; the step itself on any other device, or where it cannot be recorded.

    A step reads and writes the same tensors every time, in place, looks at no value of them, and draws no random
    number. `changes` are the tensors that it writes: they are as before when this returns.
    """
    if device.type != "cuda":
        return step
    before = [tensor.detach().clone() for tensor in changes]
    try:
        with torch.cuda.device(device):
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(WARM_UPS):
                    step()
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                step()
    except RuntimeError as error:
        torch.cuda.synchronize(device)
        warnings.warn(f"this step cannot be recorded as a CUDA graph and runs eagerly: {error}", stacklevel=2)
        _put_back(changes, before)
        return step
    _put_back(changes, before)

    def replay() -> None:
        graph.replay()

    return replay


def side_by_side(steps: Sequence[Step], device: torch.device) -> Step:
    """One step that takes them all: on CUDA each on a stream of its own, so that a graph holds them as branches."""
    if device.type != "cuda" or len(steps) == 1:

        def one_after_another() -> None:
            for step in steps:
                step()

        return one_after_another
    streams = [torch.cuda.Stream(device) for _ in steps]

    def together() -> None:
        here = torch.cuda.current_stream(device)
        for step, stream in zip(steps, streams, strict=True):
            stream.wait_stream(here)
            with torch.cuda.stream(stream):
                step()
        for stream in streams:
            here.wait_stream(stream)

    return together


def both(first: Callable[[], A], second: Callable[[], B], device: torch.device) -> tuple[A, B]:
    """What two functions give; on CUDA the second runs on another stream beside the first."""
    if device.type != "cuda":
        return first(), second()
    here = torch.cuda.current_stream(device)
    side = _side_of(here)
    side.wait_stream(here)
    with torch.cuda.stream(side):
        b = second()
    a = first()
    here.wait_stream(side)
    return a, b


@lru_cache(maxsize=64)
def _side_of(stream: torch.cuda.Stream) -> torch.cuda.Stream:
    """The other stream beside this one, always the same: what it allocated it can use again."""
    return torch.cuda.Stream(stream.device)


def _put_back(changes: Sequence[Tensor], before: Sequence[Tensor]) -> None:
    with torch.no_grad():
        for tensor, value in zip(changes, before, strict=True):
            tensor.copy_(value)
