"""What is refused: losses and parameters that are not finite; and large inputs processed in slices."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from frcl.errors import NumericalError
from frcl.trees import Tree, named_tensors


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
            "inputs, or raise u_noise, the variance on the inducing values."
        )


def refuse_non_finite(params: Tree) -> None:
    """Refuse parameters that are no longer finite, where the loss was not checked in every step."""
    for name, value in named_tensors(params):
        if not bool(value.isfinite().all()):
            raise NumericalError(
                f"{name!r} is no longer finite: learning has diverged. Go back to an earlier state; then lower the "
                "learning rate (lr), scale the inputs, or raise u_noise."
            )
