"""Anything like an array, as one that torch can take."""

from __future__ import annotations

from typing import Any

import numpy as np
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
