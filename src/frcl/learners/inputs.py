"""Where data comes in: inputs as given by a user become finite tensors of the right shape, or an error."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from frcl.errors import DataError


def checked_inputs(x: Any, shape: tuple[int, ...] | None, dtype: torch.dtype, device: torch.device) -> Tensor:
    """x [n, ...] on the device; floats in `dtype`, integers as they are; each of `shape` where that is known."""
    tensor = x if isinstance(x, Tensor) else _tensor(x)
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
    if tensor.is_floating_point():
        tensor = tensor.to(dtype)
        if not bool(tensor.isfinite().all()):
            raise DataError("inputs contain NaN or infinite values; remove or replace them first")
    return tensor.detach().to(device)


def check_lengths(x: Tensor, y: Any) -> None:
    """One target per input."""
    shape = tuple(y.shape) if isinstance(y, Tensor) else np.shape(y)
    count = shape[0] if shape else 0
    if count != len(x):
        raise DataError(f"{len(x)} inputs but {count} targets; give one target per input")


def data_mark(x: Tensor) -> list[float]:
    """A few numbers that tell one data set from another."""
    values = x.double()
    return [float(len(x)), float(values.sum()), float(values.square().sum())]


def _tensor(x: Any) -> Tensor:
    array = np.asarray(x)
    if array.dtype.kind not in "biuf":
        raise DataError(f"inputs of type {array.dtype} are not supported; expected numbers")
    return torch.as_tensor(array)
