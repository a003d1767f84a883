"""Where data comes in: inputs as given by a user become finite tensors of the right shape, or an error."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import torch
from torch import Tensor

from frcl.arrays import numeric_array
from frcl.errors import DataError, OptionError, TaskError


def checked_inputs(
    x: Any,
    shape: tuple[int, ...] | None,
    dtype: torch.dtype,
    device: torch.device,
    floating: bool | None = None,
) -> Tensor:
    """x [n, ...] on the device; floats in `dtype`, integers as they are.

    Each input is of `shape`, and the inputs are floats or not as `floating` says, where these are known.
    """
    tensor = x.detach() if isinstance(x, Tensor) else torch.as_tensor(numeric_array(x, "inputs"))
    if tensor.is_sparse or tensor.layout != torch.strided:
        raise DataError("inputs are a sparse tensor; expected a dense one: call .to_dense()")
    if tensor.ndim < 2 or len(tensor) == 0:
        raise DataError(
            "inputs must be [examples, ...] with at least one example and one more dimension; "
            f"got shape {tuple(tensor.shape)}"
        )
    if shape is not None and tuple(tensor.shape[1:]) != shape:
        raise DataError(
            f"each input has shape {tuple(tensor.shape[1:])}; earlier ones had {shape}, and all tasks share one network"
        )
    if tensor.is_complex():
        raise DataError("inputs are complex; expected real numbers")
    if floating is not None and tensor.is_floating_point() != floating:
        raise DataError(f"inputs are {tensor.dtype}; earlier ones were {'floats' if floating else 'integers'}")
    if tensor.is_floating_point():
        tensor = tensor.to(dtype)
        if not all_finite(tensor):
            raise DataError("inputs contain NaN or infinite values; remove or replace them first")
    return tensor.to(device)


def all_finite(x: Tensor) -> bool:
    """Whether no element is NaN or infinite. One that is makes the sum so too; the reverse is looked into."""
    return bool(x.sum().isfinite()) or bool(x.isfinite().all())


def check_lengths(x: Tensor, y: Any) -> None:
    """One target per input."""
    try:
        shape = tuple(y.shape) if isinstance(y, Tensor) else np.shape(y)
    except ValueError as error:
        raise DataError(f"targets are not a regular array: {error}") from error
    count = shape[0] if shape else 0
    if count != len(x):
        raise DataError(f"{len(x)} inputs but {count} targets; give one target per input")


def checked_size(given: int | None, otherwise: int) -> int:
    """N as given, or what it is otherwise."""
    if given is None:
        return otherwise
    if given < 1:
        raise OptionError(f"size is the number of examples of the task, at least 1; got {given}")
    return given


def check_task(task: int | None, count: int, begin: str = "fit()") -> int:
    """The number of one of the `count` tasks that have been learned; the latest for None."""
    if count == 0:
        raise TaskError(f"nothing has been learned yet; call {begin} first")
    if task is None:
        return count - 1
    if not isinstance(task, int | np.integer) or isinstance(task, bool):
        raise TaskError(f"a task is named by its number, 0 to {count - 1}; got {task!r}")
    if not 0 <= task < count:
        raise TaskError(f"unknown task {task}; tasks 0 to {count - 1} have been learned")
    return int(task)


def checked_tasks(tasks: Any, count: int, inputs: int, begin: str = "fit()") -> Tensor:
    """The task of each input, [inputs] int64, from one number for all or an array with one for each."""
    if isinstance(tasks, int | np.integer) or np.ndim(tasks) == 0:
        return torch.full((inputs,), check_task(tasks, count, begin))
    numbers = tasks.detach().cpu() if isinstance(tasks, Tensor) else torch.as_tensor(np.asarray(tasks))
    if numbers.shape != (inputs,) or numbers.is_floating_point() or numbers.dtype == torch.bool:
        raise TaskError(
            f"task is one number, or an array of {inputs} whole numbers, one for each input; got "
            f"{numbers.dtype} of shape {tuple(numbers.shape)}"
        )
    for number in numbers.unique().tolist():
        check_task(number, count, begin)
    return numbers.long()


SLICE = 1 << 20  # numbers that are summed up at once
ODD = -0x61C8864680B583EB  # 2⁶⁴ over the golden ratio, as a signed number


def data_mark(x: Tensor, *rest: object) -> str:
    """A digest that tells one data set from another: the content of tensors, the text of everything else."""
    digest = hashlib.blake2b(digest_size=16)
    for part in (x, *rest):
        if isinstance(part, Tensor):
            digest.update(f"{part.dtype}{tuple(part.shape)}{_sums(part)}".encode())
        else:
            digest.update(repr(part).encode())
    return digest.hexdigest()


def _sums(x: Tensor) -> list[int]:
    """Σ_j w_j · mixed(bits of number j) modulo 2⁶⁴, w_j odd, for each slice of x; computed where x is."""
    whole = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()]
    bits = x.detach().contiguous().flatten()
    bits = bits.to(torch.uint8) if bits.dtype == torch.bool else bits.view(whole)
    weights = torch.arange(1, 2 * min(SLICE, max(len(bits), 1)), 2, device=x.device) * ODD
    sums = [(_mixed(part) * weights[: len(part)]).sum() for part in bits.split(SLICE)]
    return torch.stack(sums).tolist() if sums else []


def _mixed(bits: Tensor) -> Tensor:
    """Numbers that differ in their high bits alone, as 0.0 and 1.0 do, come to differ in their low ones."""
    wide = bits.to(torch.int64) * ODD
    return wide ^ (wide >> 32)
