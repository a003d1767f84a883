"""A-GEM (Chaudhry et al., 2019, "Efficient lifelong learning with A-GEM").

With g the gradient of the loss on the minibatch and r that on examples of past tasks, a step goes down

    g̃ = g − min(0, gᵀr) / (rᵀr) · r,

the nearest direction to g with g̃ᵀr ≥ 0. Written as g + c r with c = max(0, −gᵀr / rᵀr) it is the gradient of
L + c L_past, where c is held constant. The examples are those of a reservoir over all tasks.
"""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from frcl.baselines.common import plain_terms
from frcl.baselines.memory import weighted_mean
from frcl.baselines.penalised import Parameters
from frcl.baselines.rehearsal import Rehearsal, Replayed
from frcl.baselines.rehearsal_options import AGEMOptions
from frcl.engine.program import Loss, Terms
from frcl.trees import Params, named_tensors, with_tensors


def conflict(g: Params, r: Params) -> Tensor:
    """c = max(0, −gᵀr / rᵀr), over all parameters together; zero where r is."""
    dot = torch.stack([(g[name] * r[name]).sum() for name in r]).sum()
    size = torch.stack([value.square().sum() for value in r.values()]).sum()
    return torch.where((dot < 0) & (size > 0), -dot / torch.where(size > 0, size, 1.0), 0.0)


class AGEM(Rehearsal[AGEMOptions]):
    """Projects the gradient where a step would raise the loss on past tasks. It has to know when a task begins."""

    past_only: ClassVar[bool] = True

    def _loss(self) -> Loss:
        features = self.features

        def loss(params: Parameters, fixed: Params, x: Tensor, y: Tensor, draws: Replayed) -> Terms:
            (old,) = draws.batches
            if len(x) < len(draws.x):  # one of several processes: the projection needs the gradient of all rows
                x, y = draws.x, draws.row

            def new(values: Params) -> Tensor:
                own = with_tensors(params, values)
                f = features({**fixed, **own.theta}, x) @ own.head.mT
                return F.cross_entropy(f, y)

            def past(values: Params) -> Tensor:
                own = with_tensors(params, values)
                f = features({**fixed, **own.theta}, old.x) @ own.head.mT
                return weighted_mean(F.cross_entropy(f, old.row, reduction="none"), old.weight)

            values = dict(named_tensors(params))
            here = {name: value.detach() for name, value in values.items()}
            c = conflict(torch.func.grad(new)(here), torch.func.grad(past)(here)).detach()
            return plain_terms(new(values), c * past(values))

        return loss
