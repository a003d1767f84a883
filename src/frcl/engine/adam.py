"""Adam (Kingma and Ba, 2015) on named tensors, with a state of plain tensors that can stand in a block with others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from frcl.engine.tensors import Params, refuse_non_finite_loss, stack

BETAS = (0.9, 0.999)
EPS = 1e-8


class Optimiser:
    """Moves named leaf tensors down a gradient; every moment is a tensor by name, the step count is one for all."""

    def __init__(self, params: Params, lr: float) -> None:
        self.params = params
        self.lr = lr
        self.fall: tuple[float, float] | None = None  # the last step, and over how many steps before it the rate falls
        for p in params.values():
            p.data = p.data.contiguous()
        self.exp_avg = {name: torch.zeros_like(p, requires_grad=False) for name, p in params.items()}
        self.exp_avg_sq = {name: torch.zeros_like(p, requires_grad=False) for name, p in params.items()}
        device = next((p.device for p in params.values()), torch.device("cpu"))
        self.count = torch.zeros((), device=device)

    def step(self, loss: Tensor, *, check: bool = True) -> None:
        """Move the parameters down the gradient of `loss`; refuse a loss that is not finite."""
        if check:
            refuse_non_finite_loss(loss)
        self.apply(gradient(loss, self.params))

    def apply(self, gradients: Mapping[str, Tensor]) -> None:
        """Move the parameters down a gradient that was worked out already."""
        with torch.no_grad():
            self.count += 1
            lr = self._rate_now()
            for names in self._kinds():
                _adam(
                    [self.params[n] for n in names], [gradients[n].contiguous() for n in names],
                    [self.exp_avg[n] for n in names], [self.exp_avg_sq[n] for n in names], self.count, lr,
                )  # fmt: skip

    def falls(self, last: int, share: float) -> None:
        """From now on the rate falls in a straight line over this share of the steps 1 to `last`, then is zero."""
        self.fall = (float(last), share * last) if share else None

    def _rate_now(self) -> float | Tensor:
        """The rate of step number `count`; worked out from it where it is not constant, so that it can be recorded."""
        if self.fall is None:
            return self.lr
        last, over = self.fall
        return self.lr * ((last + 1 - self.count) / over).clamp(0.0, 1.0)

    def _kinds(self) -> list[list[str]]:
        """The names, those of one type together."""
        kinds: dict[Any, list[str]] = {}
        for name, p in self.params.items():
            kinds.setdefault(p.dtype, []).append(name)
        return list(kinds.values())

    def changes(self) -> list[Tensor]:
        """Every tensor that a step writes."""
        return [*self.params.values(), *self.exp_avg.values(), *self.exp_avg_sq.values(), self.count]

    def settle(self) -> None:
        """Give everything memory of its own, where it lies in a block with others."""
        for part in (self.params, self.exp_avg, self.exp_avg_sq):
            for value in part.values():
                value.data = value.data.clone()
        self.count = self.count.clone()

    def state(self) -> Params:
        """The moments and the step count by parameter, copied: "name::exp_avg" and so on; nothing before a step."""
        if not bool(self.count):
            return {}
        state: Params = {}
        for name in self.params:
            state[f"{name}::step"] = self.count.clone()
            state[f"{name}::exp_avg"] = self.exp_avg[name].clone()
            state[f"{name}::exp_avg_sq"] = self.exp_avg_sq[name].clone()
        return state

    def restore(self, state: Mapping[str, Tensor]) -> None:
        for key, value in state.items():
            name, kind = key.rsplit("::", 1)
            if kind == "step":
                self.count.copy_(value)
            else:
                {"exp_avg": self.exp_avg, "exp_avg_sq": self.exp_avg_sq}[kind][name].copy_(value)


def stacked(optimisers: Sequence[Optimiser]) -> Optimiser:
    """One optimiser over all of them with a leading axis; what they had then lies in it, slice by slice.

    A step of the one is a step of each: the parameters and moments of the others are views of its own.
    """
    first = optimisers[0]
    block = Optimiser(_one_block([one.params for one in optimisers]), first.lr)
    block.exp_avg = _one_block([one.exp_avg for one in optimisers])
    block.exp_avg_sq = _one_block([one.exp_avg_sq for one in optimisers])
    block.count = first.count.clone()
    block.fall = first.fall
    for one in optimisers:
        one.count = block.count
    for value in block.params.values():
        value.requires_grad_(True)
    return block


def _one_block(each: Sequence[Params]) -> Params:
    block = {name: value.detach() for name, value in stack(each).items()}
    for i, one in enumerate(each):
        for name, tensor in one.items():
            tensor.data = block[name][i]
    return block


def gradient(loss: Tensor, params: Params) -> Params:
    """The gradient of a loss by name; zero for what it does not depend on."""
    found = torch.autograd.grad(loss, list(params.values()), allow_unused=True, materialize_grads=True)
    return dict(zip(params, found, strict=True))


def _adam(
    params: list[Tensor], grads: list[Tensor], exp_avg: list[Tensor], exp_avg_sq: list[Tensor],
    count: Tensor, lr: float | Tensor,
) -> None:  # fmt: skip
    """The fused kernel that torch.optim.Adam(fused=True) calls; torch.optim itself takes a second to import.

    It walks through memory without a look at strides: everything is contiguous.
    """
    torch._fused_adam_(
        params, grads, exp_avg, exp_avg_sq, [], [count] * len(params),
        lr=lr, beta1=BETAS[0], beta2=BETAS[1], weight_decay=0.0, eps=EPS, amsgrad=False, maximize=False,
    )  # fmt: skip
