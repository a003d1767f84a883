"""How an objective is optimised: one Adam step at a time on named leaf tensors. Knows no learner."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from frcl.errors import NumericalError

Params = dict[str, Tensor]


class Optimiser:
    """Adam over named parameters, with a state made of plain tensors."""

    def __init__(self, params: Params, rate: float) -> None:
        self.params = params
        self._adam = torch.optim.Adam(params.values(), lr=rate, fused=True)

    def step(self, loss: Tensor, *, check: bool = True) -> None:
        """Move the parameters down the gradient of `loss`; refuse a loss that is not finite."""
        if check:
            _refuse_non_finite(loss)
        self._adam.zero_grad(set_to_none=True)
        loss.backward()
        self._adam.step()

    def apply(self, gradient: Mapping[str, Tensor], loss: Tensor) -> None:
        """Move the parameters down a gradient that was worked out already."""
        _refuse_non_finite(loss)
        for name, tensor in self.params.items():
            tensor.grad = gradient[name]
        self._adam.step()

    def state(self) -> Params:
        """Adam's moments by parameter and kind, copied: "name::exp_avg" and so on."""
        return {
            f"{name}::{kind}": value.clone()
            for name, tensor in self.params.items()
            for kind, value in self._adam.state[tensor].items()
        }

    def restore(self, state: Mapping[str, Tensor]) -> None:
        for key, value in state.items():
            name, kind = key.rsplit("::", 1)
            tensor = self.params[name]
            device = torch.device("cpu") if kind == "step" and not tensor.is_cuda else tensor.device
            self._adam.state[tensor][kind] = value.to(device).clone()


def _refuse_non_finite(loss: Tensor) -> None:
    if not bool(loss.isfinite()):
        raise NumericalError(
            f"the loss is {float(loss.detach())}; this step was not taken. Lower the learning rate (rate), scale the "
            "inputs, or raise noise, the variance on the inducing values."
        )


def refuse_non_finite(params: Mapping[str, Tensor]) -> None:
    """Refuse parameters that are not finite any more, where the loss was not looked at in every step."""
    for name, value in params.items():
        if not bool(value.isfinite().all()):
            raise NumericalError(
                f"{name!r} is not finite any more: learning has diverged. Go back to an earlier state; then lower the "
                "learning rate (rate), scale the inputs, or raise noise."
            )


def leaf(tensor: Tensor) -> Tensor:
    """A trainable copy of the tensor."""
    return tensor.detach().clone().requires_grad_(True)


def in_chunks(function: Callable[[Tensor], Tensor], x: Tensor, size: int) -> Tensor:
    """function(x) for a large x, without gradient, a slice at a time."""
    with torch.no_grad():
        return torch.cat([function(part) for part in x.split(size)])
