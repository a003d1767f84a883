"""Data as users have it: anything like an array, several tensors per example, data sets, loaders and iterables."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from frcl.errors import DataError, NetworkError

READ = 256  # examples of a data set that are read at once
WHAT_TO_DO = (
    "Give fit(x, y) arrays, or fit(data) a Dataset of pairs (x, y), a DataLoader, or an iterable of minibatches (x, y)."
)


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


class MultiInput(nn.Module):
    """A network with several inputs as one with a single, packed input, which is what a learner keeps and counts.

    Parameters
    ----------
    net : nn.Module
        Called as net(a, b, ...) for a tuple of inputs, as net(name=a, ...) for a dictionary.
    example : tuple or dict of tensors
        A few inputs, [n, ...] each: their shapes, and which of them are integers.

    `fit`, `observe` and `predict` of a learner with such a network take tuples or dictionaries like `example`. Integers
    are packed as floats of the network's type, which hold them exactly up to 2²⁴ in float32; larger ones are refused.
    """

    def __init__(self, net: nn.Module, example: Sequence[Any] | Mapping[str, Any]) -> None:
        super().__init__()
        if not isinstance(net, nn.Module):
            raise NetworkError(f"expected a network, an nn.Module; got {type(net).__name__}")
        self.net = net
        self.names = tuple(example) if isinstance(example, Mapping) else None
        parts = self._parts(example)
        if not parts:
            raise DataError("the example has no inputs; give a tuple or dict with at least one tensor")
        self.shapes = [tuple(part.shape[1:]) for part in parts]
        self.integers = [not part.is_floating_point() for part in parts]

    def _parts(self, x: Any) -> list[Tensor]:
        """The inputs in order, as tensors with the same number of examples."""
        if isinstance(x, Mapping) != (self.names is not None) or not isinstance(x, Mapping | tuple | list):
            wanted = "a tuple" if self.names is None else f"a dict with {', '.join(self.names)}"
            raise DataError(f"the network has several inputs: expected {wanted}, not {type(x).__name__}")
        if isinstance(x, Mapping) and set(x) != set(self.names or ()):
            raise DataError(f"expected the inputs {', '.join(self.names or ())}; got {', '.join(map(str, x))}")
        values = [x[name] for name in self.names or ()] if isinstance(x, Mapping) else list(x)
        parts = [
            one.detach() if isinstance(one, Tensor) else torch.as_tensor(numeric_array(one, "inputs")) for one in values
        ]
        if any(part.ndim == 0 for part in parts) or len({len(part) for part in parts}) > 1:
            raise DataError(f"the inputs differ in their number of examples: {[tuple(part.shape) for part in parts]}")
        return parts

    def pack(self, x: Sequence[Any] | Mapping[str, Any]) -> Tensor:
        """Several inputs, [n, ...] each, as one tensor [n, D] of the network's type."""
        parts = self._parts(x)
        if [tuple(part.shape[1:]) for part in parts] != self.shapes:
            raise DataError(f"inputs have shapes {[tuple(part.shape[1:]) for part in parts]}, not {self.shapes}")
        dtype = next((p.dtype for p in self.net.parameters() if p.is_floating_point()), torch.float32)
        largest = 2 / torch.finfo(dtype).eps
        for part, integer in zip(parts, self.integers, strict=True):
            if integer and (part.is_floating_point() or (part.numel() and int(part.abs().max()) > largest)):
                raise DataError(f"an input of integers has {part.dtype}, or values above {largest:.0f}")
        return torch.cat([part.to(dtype).reshape(len(part), -1) for part in parts], dim=1)

    def unpack(self, x: Tensor) -> list[Tensor]:
        """The inputs in order from what `pack` returned."""
        sizes = [math.prod(shape) for shape in self.shapes]
        parts = zip(x.split(sizes, dim=1), self.shapes, self.integers, strict=True)
        return [(part.long() if integer else part).unflatten(1, shape) if shape else
                (part.long() if integer else part)[:, 0] for part, shape, integer in parts]  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        parts = self.unpack(x)
        out: Tensor = self.net(*parts) if self.names is None else self.net(**dict(zip(self.names, parts, strict=True)))
        return out


def gathered(data: Any) -> tuple[Any, Any]:
    """x and y as arrays from all pairs of a Dataset, a DataLoader or an iterable of minibatches.

    The examples are in the order of the data set also where a loader would shuffle them, so that the same data gives
    the same result however it comes. All of them are held in memory while the task is learned.
    """
    xs, ys = [], []
    for item in _minibatches(data):
        if not isinstance(item, tuple | list) or len(item) != 2:
            given = f"{len(item)} parts" if isinstance(item, tuple | list) else type(item).__name__
            raise DataError(f"a minibatch is a pair (x, y), not {given}. {WHAT_TO_DO}")
        xs.append(item[0])
        ys.append(item[1])
    if not xs:
        raise DataError(f"there are no examples. {WHAT_TO_DO}")
    return _joined(xs), _joined(ys)


def _minibatches(data: Any) -> Iterable[Any]:
    from torch.utils.data import DataLoader, Dataset, RandomSampler

    if isinstance(data, DataLoader):
        if type(data.sampler) is RandomSampler and not data.sampler.replacement and data.batch_size is not None:
            return DataLoader(
                data.dataset, data.batch_size, num_workers=data.num_workers, collate_fn=data.collate_fn,
                pin_memory=data.pin_memory,
            )  # fmt: skip
        return data
    if isinstance(data, Dataset):
        return DataLoader(data, READ)
    if isinstance(data, Iterable) and not isinstance(data, Tensor | Mapping | str | bytes):
        return data
    raise DataError(f"there are no targets for data of type {type(data).__name__}. {WHAT_TO_DO}")


def _joined(parts: list[Any]) -> Any:
    """The same of all minibatches, one after another."""
    first = parts[0]
    if isinstance(first, Mapping):
        return {name: _joined([part[name] for part in parts]) for name in first}
    if isinstance(first, Tensor):
        return torch.cat(parts)
    if isinstance(first, tuple | list) and first and isinstance(first[0], Tensor) and first[0].ndim:
        return tuple(_joined([part[i] for part in parts]) for i in range(len(first)))
    if isinstance(first, tuple | list):
        return [value for part in parts for value in part]
    return torch.cat([torch.as_tensor(numeric_array(part, "a minibatch")) for part in parts])
