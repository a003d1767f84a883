"""Named tensors: what is trained, what is refused, what is worked out in slices."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from frcl.errors import NumericalError

Params = dict[str, Tensor]


def leaf(tensor: Tensor) -> Tensor:
    """A trainable copy of the tensor."""
    return tensor.detach().clone().requires_grad_(True)


def stack(each: Sequence[Params], dim: int = 0) -> Params:
    """Named tensors of several as one, with another axis."""
    return {name: torch.stack([one[name] for one in each], dim) for name in each[0]}


def exact_number(value: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A number as a tensor of that type, or of float32 where the type has fewer digits."""
    return torch.full((), value, dtype=torch.promote_types(dtype, torch.float32), device=device)


def in_chunks(function: Callable[[Tensor], Tensor], x: Tensor, size: int) -> Tensor:
    """function(x) for a large x, without gradient, a slice at a time."""
    with torch.no_grad():
        if len(x) <= size:
            return function(x)
        return torch.cat([function(part) for part in x.split(size)])


def refuse_non_finite_loss(loss: Tensor) -> None:
    """Refuse the loss of a step that is about to be taken."""
    if not bool(loss.isfinite().all()):
        value = float(loss.detach()[~loss.isfinite()].flatten()[0])
        raise NumericalError(
            f"the loss is {value}; this step was not taken. Lower the learning rate (lr), scale the "
            "inputs, or raise noise, the variance on the inducing values."
        )


def refuse_non_finite(params: Mapping[str, Tensor]) -> None:
    """Refuse parameters that are not finite any more, where the loss was not looked at in every step."""
    for name, value in params.items():
        if not bool(value.isfinite().all()):
            raise NumericalError(
                f"{name!r} is not finite any more: learning has diverged. Go back to an earlier state; then lower the "
                "learning rate (lr), scale the inputs, or raise noise."
            )
