"""Checks of a state that is loaded: whether its parts are of the shapes, types and values that they can have.

A checksum shows that a file is what was written, not who wrote it.
"""

from collections.abc import Iterable, Mapping
from typing import Protocol

import torch
from torch import Tensor

from frcl.errors import CheckpointError
from frcl.likelihoods import Likelihood
from frcl.summary import StoredInputs
from frcl.trees import Params


class Seen(Protocol):
    """What a state says of the network and of the inputs that it has seen."""

    net: Params
    input_shape: tuple[int, ...] | None
    input_dtype: torch.dtype | None


def expect(fits: bool, what: str) -> None:
    """Refuse a state in which `what` is not the case."""
    if not fits:
        raise CheckpointError(f"the state makes no sense: {what}")


def check_like(x: Tensor | None, shape: tuple[int, ...], dtype: torch.dtype, what: str) -> None:
    """Refuse a tensor of another shape or type."""
    expect(x is not None and tuple(x.shape) == shape and x.dtype == dtype, f"{what} should be {list(shape)} {dtype}")


def check_inputs(x: Tensor, saved: Seen, dtype: torch.dtype, what: str) -> None:
    """Refuse stored inputs that are not like those of the learner."""
    expect(x.ndim > 1 and len(x) > 0 and tuple(x.shape[1:]) == saved.input_shape, f"{what}: inputs of another shape")
    floating = saved.input_dtype is not None and saved.input_dtype.is_floating_point
    fits = x.dtype == dtype if floating else not x.is_floating_point() and not x.is_complex()
    expect(fits, f"{what}: inputs are {x.dtype}")


def check_stored(stored: StoredInputs, saved: Seen, dtype: torch.dtype, what: str) -> None:
    """Refuse inputs whose bytes are not indices of their table, or that are not like those of the learner."""
    expect(stored.is_sound, f"{what} are not indices of a table")
    check_inputs(stored.inputs, saved, dtype, what)


def check_targets(y: Tensor, likelihood: Likelihood, n: int, dtype: torch.dtype, what: str) -> None:
    """Refuse stored targets that the likelihood cannot have encoded."""
    if likelihood.classes is None:
        return check_like(y, (n, likelihood.functions), dtype, what)
    check_like(y, (n,), torch.int64, what)
    return expect(bool(((y >= 0) & (y < len(likelihood.classes))).all()), f"{what}: a class that does not exist")


def check_weights(given: Params, like: Mapping[str, Tensor], names: Iterable[str], what: str) -> None:
    """Refuse anything but copies of the weights of these names."""
    expect(given.keys() == set(names) and given.keys() <= like.keys(), f"{what}: weights of another network")
    for name, value in given.items():
        check_like(value, tuple(like[name].shape), like[name].dtype, f"{name!r} of {what}")
