"""Averaged gradient episodic memory: a gradient that does not point against the past."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from frcl.baselines.common import plain_terms
from frcl.baselines.options import AGEMOptions
from frcl.baselines.penalised import Parameters
from frcl.baselines.rehearsal import Rehearsal, Replayed, replayed_loss
from frcl.engine.program import Loss, Terms
from frcl.trees import Params, named_tensors, with_tensors


def conflict(g: Params, r: Params) -> Tensor:
    """c = max(0, −gᵀr / rᵀr), over all parameters together; zero where r is."""
    dot = torch.stack([(g[name] * r[name]).sum() for name in r]).sum()
    size = torch.stack([value.square().sum() for value in r.values()]).sum()
    return torch.where((dot < 0) & (size > 0), -dot / torch.where(size > 0, size, 1.0), 0.0)


class WithGradient(torch.autograd.Function):
    """A value whose gradient by some tensors is known: neither loss is differentiated a second time."""

    generate_vmap_rule = True  # several seeds are trained as one program

    @staticmethod
    def forward(value: Tensor, *tensors: Tensor) -> Tensor:  # noqa: ARG004
        return value.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:  # noqa: ARG004
        ctx.save_for_backward(*inputs[1 + len(inputs) // 2 :])

    @staticmethod
    def backward(ctx: Any, up: Tensor) -> tuple[Tensor | None, ...]:
        gradients = ctx.saved_tensors
        return None, *(up * one for one in gradients), *(None for _ in gradients)


class AGEM(Rehearsal[AGEMOptions]):
    """A-GEM (Chaudhry et al., 2019, "Efficient lifelong learning with A-GEM"). It has to know when a task begins.

    With g the gradient of the loss on the minibatch and r that on examples of past tasks, a step goes down

        g̃ = g − min(0, gᵀr) / (rᵀr) · r,

    the nearest direction to g with g̃ᵀr ≥ 0. Written as g + c r with c = max(0, −gᵀr / rᵀr) it is the gradient of
    L + c L_past, where c is held constant.
    """

    past_only: ClassVar[bool] = True

    def _loss(self) -> Loss:
        features = self.features

        def loss(params: Parameters, fixed: Params, x: Tensor, y: Tensor, draws: Replayed) -> Terms:
            (old,) = draws.batches
            if len(x) < len(draws.x):  # one of several processes: the projection needs the gradient of all rows
                x, y = draws.x, draws.row

            def functions(values: Params, inputs: Tensor) -> Tensor:
                own = with_tensors(params, values)
                return features({**fixed, **own.theta}, inputs) @ own.head.mT

            def new(values: Params) -> Tensor:
                return F.cross_entropy(functions(values, x), y)

            def past(values: Params) -> Tensor:
                return replayed_loss(functions(values, old.x), old)

            values = dict(named_tensors(params))
            here = {name: value.detach() for name, value in values.items()}
            (g, nll), (r, replayed) = (torch.func.grad_and_value(part)(here) for part in (new, past))
            c = conflict(g, r)
            downhill = [g[name] + c * r[name] for name in values]
            moved = WithGradient.apply(nll, *values.values(), *downhill)  # type: ignore[no-untyped-call]
            return plain_terms(moved, c * replayed)

        return loss
