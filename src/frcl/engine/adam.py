"""Adam (Kingma and Ba, 2015) on a tree of tensors, with a state of plain tensors that can be stacked with others'."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from frcl.trees import Params, Tree, named_tensors, stack, with_tensors

BETAS = (0.9, 0.999)
EPS = 1e-8


class AdamState(NamedTuple):
    """Moments by name and the number of steps: what has to be saved."""

    steps: int
    exp_avg: Params
    exp_avg_sq: Params


class Optimiser:
    """Moves the leaf tensors of a tree down a gradient. `steps` is the one count of steps taken."""

    def __init__(self, params: Tree, lr: float) -> None:
        self.tree = params
        self.params: Params = dict(named_tensors(params))
        self.lr = lr
        self.decay: tuple[float, float] | None = None  # the last step, and over how many steps before it lr decays
        kinds: dict[Any, list[str]] = {}  # names by type
        for name, p in self.params.items():
            p.data = p.data.contiguous()
            kinds.setdefault(p.dtype, []).append(name)
        self._kinds = list(kinds.values())
        self.exp_avg = {name: torch.zeros_like(p, requires_grad=False) for name, p in self.params.items()}
        self.exp_avg_sq = {name: torch.zeros_like(p, requires_grad=False) for name, p in self.params.items()}
        self.steps = 0
        device = next((p.device for p in self.params.values()), torch.device("cpu"))
        self._count = torch.zeros((), device=device)  # `steps` as the kernel reads it, on the device

    def apply(self, gradients: Mapping[str, Tensor]) -> None:
        """Move the parameters down a gradient; whoever calls this counts the step."""
        with torch.no_grad():
            self._count += 1
            lr: float | Tensor = self.lr
            if self.decay is not None:  # a tensor, so that a step can be recorded
                last, over = self.decay
                lr = self.lr * ((last + 1 - self._count) / over).clamp(0.0, 1.0)
            for names in self._kinds:
                _adam(
                    [self.params[n] for n in names], [gradients[n].contiguous() for n in names],
                    [self.exp_avg[n] for n in names], [self.exp_avg_sq[n] for n in names], self._count, lr,
                )  # fmt: skip

    def decays(self, last: int, share: float) -> None:
        """From now on lr falls linearly over this share of the steps 1 to `last`, then is zero."""
        self.decay = (float(last), share * last) if share else None

    def changes(self) -> list[Tensor]:
        """Every tensor that a step writes."""
        return [*self.params.values(), *self.exp_avg.values(), *self.exp_avg_sq.values(), self._count]

    def settle(self) -> None:
        """Give everything memory of its own, where it is part of a stack."""
        for part in (self.params, self.exp_avg, self.exp_avg_sq):
            for value in part.values():
                value.data = value.data.clone()
        self._count = self._count.clone()

    def state(self) -> AdamState:
        return AdamState(self.steps, self.exp_avg, self.exp_avg_sq)

    def restore(self, state: AdamState) -> None:
        """Go on from a saved state; its moments must have the names and shapes of the parameters."""
        self.steps = state.steps
        self._count.fill_(state.steps)
        for own, saved in ((self.exp_avg, state.exp_avg), (self.exp_avg_sq, state.exp_avg_sq)):
            if own.keys() != saved.keys() or any(own[name].shape != saved[name].shape for name in own):
                raise ValueError("the moments of Adam do not have the names and shapes of the parameters")
            for name, value in saved.items():
                own[name].copy_(value)


def stacked(optimisers: Sequence[Optimiser]) -> Optimiser:
    """One optimiser over all of them with a leading axis, of which their own tensors become slices.

    A step of the one is a step of each: the parameters and moments of the others are views of its own.
    """
    first = optimisers[0]
    params = with_tensors(first.tree, _one_block([one.params for one in optimisers]))
    block = Optimiser(params, first.lr)
    block.exp_avg = _one_block([one.exp_avg for one in optimisers])
    block.exp_avg_sq = _one_block([one.exp_avg_sq for one in optimisers])
    block._count = first._count.clone()
    block.decay = first.decay
    for one in optimisers:
        one._count = block._count
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

    It ignores strides: everything must be contiguous.
    """
    torch._fused_adam_(
        params, grads, exp_avg, exp_avg_sq, [], [count] * len(params),
        lr=lr, beta1=BETAS[0], beta2=BETAS[1], weight_decay=0.0, eps=EPS, amsgrad=False, maximize=False,
    )  # fmt: skip
