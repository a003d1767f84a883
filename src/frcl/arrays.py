"""Anything like an array, as one that torch can take."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from frcl.errors import DataError


def numeric_array(values: Any, what: str) -> np.ndarray[Any, np.dtype[Any]]:
    """Anything like an array as one that torch can take: contiguous, native, of a plain numeric type."""
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise DataError(f"{what} are not a regular array: {error}") from error
    if array.dtype.kind not in "biuf":
        raise DataError(f"{what} of type {array.dtype} are not supported; expected numbers")
    plain = np.float64 if array.dtype.kind == "f" and array.dtype.itemsize > 8 else array.dtype.newbyteorder("=")
    return np.ascontiguousarray(array, dtype=plain)


def check_lengths(x: Tensor, y: Any) -> None:
    """One target per input."""
    try:
        shape = tuple(y.shape) if isinstance(y, Tensor) else np.shape(y)
    except ValueError as error:
        raise DataError(f"targets are not a regular array: {error}") from error
    count = shape[0] if shape else 0
    if count != len(x):
        raise DataError(f"{len(x)} inputs but {count} targets; give one target per input")


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
        # one number that is not finite makes the sum so too; the reverse is looked into
        if not (bool(tensor.sum().isfinite()) or bool(tensor.isfinite().all())):
            raise DataError("inputs contain NaN or infinite values; remove or replace them first")
    return tensor.to(device)
