"""Few inputs on a CPU: NumPy has half the overhead of torch. Formulas of both use operators that both know, and these.

A formula of tensors or of arrays has arguments of type Any; it is written once.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import numpy as np
import torch
from torch import Tensor

Array = np.ndarray[Any, np.dtype[Any]]
FEW = 16  # inputs for which the overhead of an operator counts more than its arithmetic
ALONE = 1 << 18  # multiplications of a product of matrices that BLAS leaves to one thread
DOT_ALONE = 10_000  # those of a dot product
MANY = 128  # numbers for which torch adds up exponentials faster than NumPy

P = ParamSpec("P")
R = TypeVar("R")


def quiet(function: Callable[P, R]) -> Callable[P, R]:
    """A decorator: what is not finite is looked for, and needs no warning, nor an error where a user asks for them.

    `np.errstate` is one too, but one that cannot be nested before NumPy 2.
    """

    @functools.wraps(function)
    def inner(*args: P.args, **kwargs: P.kwargs) -> R:
        with np.errstate(all="ignore"):
            return function(*args, **kwargs)

    return inner


def is_few(x: Tensor) -> bool:
    """Whether these are values [n, ...] of few inputs, which an array can have too."""
    small = x.is_cpu and x.shape[0] <= FEW and x.dtype != torch.bfloat16 and not x.is_neg()
    return small and not torch.compiler.is_compiling()


def array_of(x: Tensor) -> Array:
    """A tensor as an array, which shares its memory."""
    found: Array = x.numpy()
    return found


def arrays(values: Any) -> Any:
    """A named tuple with its tensors as arrays."""
    return values._make(array_of(one) if isinstance(one, Tensor) else one for one in values)


def is_finite(*values: Array) -> bool:
    """Whether the sum of the squares is finite, as it is for finite numbers that are not huge."""
    return all(math.isfinite(np.vdot(v, v) if v.size <= DOT_ALONE else np.square(v).sum()) for v in values)


def product(a: Any, b: Any) -> Any:
    """a b. A large one of arrays is left to torch: NumPy has threads of its own, which wait where cores are busy."""
    if isinstance(a, Tensor) or a.shape[0] * b.size <= ALONE:
        return a @ b
    dtype = np.result_type(a, b)
    left, right = (torch.from_numpy(one.astype(dtype, copy=False)) for one in (a, b))
    return (left @ right).numpy()


def log1p(x: Any) -> Any:
    """log(1 + x)."""
    return x.log1p() if isinstance(x, Tensor) else np.log1p(x)


def log_sum_exp(x: Any) -> Any:
    """log Σ exp over the last axis; −∞ where there is nothing."""
    if isinstance(x, Tensor):
        return x.logsumexp(-1)
    return np.logaddexp.reduce(x, -1) if x.size < MANY else torch.from_numpy(x).logsumexp(-1).numpy()


def softmax(x: Any, axis: int) -> Any:
    """exp x / Σ exp x."""
    if isinstance(x, Tensor):
        return x.softmax(axis)
    powers = np.exp(x - x.max(axis, keepdims=True))
    return powers / powers.sum(axis, keepdims=True)


def add_product(a: Any, b: Any, c: Any) -> Any:
    """a + b c."""
    return torch.addcmul(a, b, c) if isinstance(a, Tensor) else a + b * c


def log_softmax(x: Any) -> Any:
    """x − log Σ exp x over the last axis."""
    return x.log_softmax(-1) if isinstance(x, Tensor) else x - log_sum_exp(x)[..., None]
