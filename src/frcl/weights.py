"""Noticing that a network has changed, whoever changed it, at a fraction of the time of one example."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor, nn

from frcl.few import ALONE


class Watched:
    """A network whose `version()` is another number whenever a parameter, a buffer or a module has changed.

    What is compared is which tensors and modules there are; the counters with which torch counts in-place changes; and,
    since changes through `.data` or a NumPy view are not counted, a linear function of the values of each tensor.
    """

    def __init__(self, net: nn.Module) -> None:
        self._net = net
        self._version = 0
        self._scan()

    def version(self) -> int:
        """The number of changes that were noticed."""
        parts = [value for own in self._owners for value in own.values()]
        if len(parts) != len(self._parts) or not all(map(operator.is_, parts, self._parts)) or self._moved():
            self._scan()
            self._version += 1
        return self._version

    def _scan(self) -> None:
        """Remember the modules and tensors that there are now."""
        each = [(one._parameters, one._buffers, one._modules) for one in self._net.modules()]
        self._owners = [own for three in each for own in three]
        self._parts: list[object] = [value for own in self._owners for value in own.values()]
        self._tensors = list({id(value): value for value in self._parts if isinstance(value, Tensor)}.values())
        floats = [value.detach() for value in self._tensors if value.is_floating_point() and value.numel()]
        self._arrays = [_form(value) for value in floats if _has_array(value)]
        self._others = [_form(value) for value in floats if not _has_array(value)]
        self._seen: tuple[object, ...] = ()
        self._moved()

    def _moved(self) -> bool:
        """Whether the tensors are other than at the last call."""
        products = [left.dot(matrix.dot(right)) for left, matrix, right in self._arrays]
        if self._others:
            each = [left @ (value.reshape(len(left), -1).to(right) @ right) for left, value, right in self._others]
            products += torch.stack([one.double() for one in each]).tolist()
        seen = products, [value._version for value in self._tensors], [value.data_ptr() for value in self._tensors]
        before, self._seen = self._seen, seen
        return before != seen


def _has_array(value: Tensor) -> bool:
    """Whether a tensor is also an array of NumPy, which has less overhead; not where NumPy would use threads."""
    small = value.is_cpu and value.numel() <= ALONE
    return small and value.is_contiguous() and value.dtype in (torch.float32, torch.float64)


def _form(value: Tensor) -> tuple[Any, Any, Any]:
    """A tensor between two vectors: as a matrix, a linear function of all its values. An array shares its memory."""
    n = value.shape[-1] if value.ndim else 1
    dtype = torch.promote_types(value.dtype, torch.float32)
    left, right = (torch.arange(1.0, k + 1, device=value.device).cos().to(dtype) for k in (value.numel() // n, n))
    return (left.numpy(), value.view(-1, n).numpy(), right.numpy()) if _has_array(value) else (left, value, right)
