"""Several processes that train one learner: which of them this one is, and what they tell each other.

Every process holds the same learner and the same data. `frcl.engine` splits the minibatches between them.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import reduce
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from frcl.errors import FrclError

T = TypeVar("T")
LAUNCHED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # what torchrun tells each process


class ProcessError(FrclError):
    """Another process of a run over several processes failed, or is gone; its own message says why."""


@dataclass(eq=False)
class Processes:
    """The processes of one run, as one of them sees them.

    rank, size  the number of this process, from 0, and how many there are
    asked       whether this process was asked to stop
    stopped     whether any process had been asked to stop when the last step was taken: the same in all of them
    """

    rank: int
    size: int
    asked: Callable[[], bool] = bool
    stopped: bool = False

    @property
    def is_first(self) -> bool:
        """Whether this is the process that writes files and prints."""
        return self.rank == 0

    def from_first(self, make: Callable[[], T]) -> T:
        """What `make` returns in the first process; the others wait for it."""
        box = [make() if self.is_first else None]
        with _collective():
            dist.broadcast_object_list(box)
        return box[0]  # type: ignore[return-value]

    def all_agree(self, value: Any) -> bool:
        """Whether all processes have an equal value here."""
        return all(one == value for one in self._gathered(value))

    def take_from_first(self, tensor: Tensor) -> Tensor:
        """The values that the tensor has in the first process, in new memory."""
        copy = tensor.detach().clone(memory_format=torch.contiguous_format)
        with _collective():
            dist.broadcast(copy, 0)
        return copy

    def summed(self, tensors: Sequence[Tensor], failure: Exception | None = None) -> list[Tensor]:
        """The sums over all processes, the same to the last bit in each, of one dimension each.

        Where a process failed, it raises its error here, and the others a ProcessError.
        """
        dtype = reduce(torch.promote_types, (one.dtype for one in tensors), torch.float32)
        told = tensors[0].new_tensor([failure is not None, self.asked()], dtype=dtype)
        flat = torch.cat([told, *(one.detach().flatten().to(dtype) for one in tensors)])
        with _collective():
            dist.all_reduce(flat)
        failed, asked, *_ = flat[:2].tolist()
        self.stopped = self.stopped or asked > 0
        if failed:
            self._raise(failure)
        return [
            sums.to(one.dtype) for sums, one in zip(flat[2:].split([t.numel() for t in tensors]), tensors, strict=True)
        ]

    def _raise(self, failure: Exception | None) -> None:
        each = self._gathered(None if failure is None else f"{failure}" or type(failure).__name__)
        first = next(rank for rank, reason in enumerate(each) if reason is not None)
        if first == self.rank and failure is not None:
            raise failure
        raise ProcessError(f"process {first} of {self.size} failed: {each[first]}")

    def _gathered(self, value: Any) -> list[Any]:
        each: list[Any] = [None] * self.size
        with _collective():
            dist.all_gather_object(each, value)
        return each


@contextmanager
def _collective() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise ProcessError(f"another process has ended, or cannot be reached: {str(error).splitlines()[0]}") from error


_CURRENT: ContextVar[Processes | None] = ContextVar("processes", default=None)


processes = _CURRENT.get  # the processes that train together with this one; None: it trains alone


def is_follower() -> bool:
    """Whether this process trains together with others and is not the first of them."""
    group = processes()
    return group is not None and not group.is_first


def from_first(make: Callable[[], T]) -> T:
    """What `make` returns in the first process, or in this one if it is alone."""
    group = processes()
    return make() if group is None else group.from_first(make)


def agreed(stop: Callable[[], bool]) -> Callable[[], bool]:
    """Whether to stop, such that all processes stop after the same step once one of them was asked to."""
    group = processes()
    if group is None:
        return stop
    group.asked, group.stopped = stop, False
    return lambda: group.stopped


def is_launched() -> bool:
    """Whether this process was started as one of several, by torchrun or in the same way."""
    return all(name in os.environ for name in LAUNCHED) and int(os.environ["WORLD_SIZE"]) > 1


@contextmanager
def data_parallel() -> Iterator[Processes]:
    """Inside, learners train on minibatches that are split between the processes started by torchrun.

    Each process runs the same program: the same learner, the same data, the same calls. A process that was started by
    itself trains alone. A process group of torch.distributed that exists already is used as it is.
    """
    made = is_launched() and not dist.is_initialized()
    if made:
        if torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
        with _collective():
            dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
            dist.all_reduce(torch.zeros(1))  # no process goes on, and perhaps ends, before all are connected
    several = dist.is_initialized() and dist.get_world_size() > 1
    found = Processes(dist.get_rank(), dist.get_world_size()) if several else Processes(0, 1)
    before = _CURRENT.set(found if several else None)
    try:
        yield found
    finally:
        _CURRENT.reset(before)
        if made:
            dist.destroy_process_group()


@contextmanager
def on_its_own() -> Iterator[None]:
    """Inside, this process trains alone."""
    before = _CURRENT.set(None)
    try:
        yield
    finally:
        _CURRENT.reset(before)
