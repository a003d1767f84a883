"""How parameters are moved down a gradient: Adam, AdamW or SGD with momentum, weight decay, clipping."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from frcl.trees import Params

BETAS = (0.9, 0.999)
EPS = 1e-8
THETA = "theta/"  # where the weights of the network are among the parameters
Method = Literal["adam", "adamw", "sgd"]


class Rule(NamedTuple):
    """What is the same for all steps of a task.

    weight_decay is that of the network's weights alone: λθ added to their gradient, or with AdamW θ ← (1 − lr λ) θ.
    """

    method: Method = "adam"
    momentum: float = 0.9  # of SGD: b ← momentum · b + gradient, θ ← θ − lr · b
    weight_decay: float = 0.0
    backbone_lr: float | None = None  # for the network's weights; None: that of everything else
    clip_norm: float | None = None  # the largest norm of the gradient by all parameters together

    def groups(self, params: Params) -> list[list[str]]:
        """The names of parameters that are moved in one call: of one type, and alike in rate and decay."""
        apart = self.weight_decay > 0 or self.backbone_lr is not None
        found: dict[object, list[str]] = {}
        for name, p in params.items():
            found.setdefault((p.dtype, apart and name.startswith(THETA)), []).append(name)
        return list(found.values())

    def clipped(self, gradients: Mapping[str, Tensor], names: Sequence[str], axes: int) -> Mapping[str, Tensor]:
        """g · min(1, clip_norm/‖g‖), ‖g‖ over these names together; with `axes` 1 for each program of a stack."""
        if self.clip_norm is None:
            return gradients
        flat = [gradients[name].reshape(*gradients[name].shape[:axes], -1) for name in names]
        norm = torch.stack([one.double().square().sum(-1) for one in flat]).sum(0).sqrt()
        share = (self.clip_norm / (norm + 1e-6)).clamp_max(1.0)[..., None]
        each = zip(names, flat, strict=True)
        return {**gradients, **{name: (share.to(one) * one).view_as(gradients[name]) for name, one in each}}

    def move(
        self, params: Sequence[Tensor], gradients: Sequence[Tensor], moments: tuple[Sequence[Tensor], Sequence[Tensor]],
        count: Tensor, lr: float | Tensor, *, backbone: bool,
    ) -> None:  # fmt: skip
        """Move parameters in place, and their moments with them; `count` is the number of this step, from 1."""
        decay = self.weight_decay if backbone else 0.0
        if self.method == "sgd":
            for p, g, b in zip(params, gradients, moments[0], strict=True):
                b.mul_(self.momentum).add_(g + decay * p if decay else g)
                p.sub_(lr * b)
            return
        # the fused kernels of torch.optim.Adam(fused=True) and AdamW; torch.optim itself takes a second to import.
        # They ignore strides: everything must be contiguous.
        kernel: Any = torch._fused_adam_ if self.method == "adam" else torch._fused_adamw_
        kernel(
            list(params), [g.contiguous() for g in gradients], list(moments[0]), list(moments[1]), [],
            [count] * len(params), lr=lr, beta1=BETAS[0], beta2=BETAS[1], weight_decay=decay, eps=EPS, amsgrad=False,
            maximize=False,
        )  # fmt: skip
