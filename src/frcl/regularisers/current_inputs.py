"""Old functions held at the inputs of the current task, where they are known at no cost in memory.

    penalty = weight · τ² · (1/B) Σ_b Σ_i D( f_i(x_b; θ_begin, w_i,begin)/τ ‖ f_i(x_b; θ, w_i)/τ )    nats per example

D is the divergence of the predictive distributions of past task i. θ_begin and w_begin are the network and the old
heads as they stood when the current task began: constants, with which the old side is computed for each minibatch by
one forward pass. At that moment the penalty is zero, and so is its gradient. With τ > 1 and heads that are trained
along this is learning without forgetting (Li and Hoiem, 2016); there D is for classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from frcl.errors import CheckpointError
from frcl.likelihoods import Likelihood
from frcl.regularisers.heads import divergence, functions_at, make_block
from frcl.regularisers.protocol import Kept, Regulariser, Step, Task, number, register, remembered
from frcl.trees import Params, Tree, copied, shapes


def distillation(student: Tensor, teacher: Tensor, temperature: float, likelihood: Likelihood) -> Tensor:
    """τ² · mean over inputs of D(teacher/τ ‖ student/τ); functions [n, C] each."""
    own = torch.ones_like(student[:1])
    apart = likelihood.divergence(teacher / temperature, student / temperature, own, {})
    return temperature**2 * apart.mean()


@register
@dataclass
class CurrentInputs(Regulariser):
    """Holds the functions of past tasks at the current inputs; with τ = 2 and trained heads it is LwF."""

    weight: float = number(1.0)
    temperature: float = number(1.0, positive=True)
    train_heads: bool = False
    theta: Params = remembered()  # θ_begin; empty between tasks
    name: ClassVar[str] = "current-inputs"
    uses_heads: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.trains_heads = self.train_heads

    def begin(self, task: Task) -> None:
        self.theta = copied(task.theta) if task.past else {}

    def constants(self, task: Task) -> Tree:
        return (self.theta, make_block(task.past)) if task.past else ()

    def penalty(self, step: Step, constants: Tree, draws: Tree) -> Tensor | None:
        if not constants:
            return None
        (theta, block), tau = constants, self.temperature
        with torch.no_grad():
            Phi_old = step.features({**step.theta, **theta}, step.x)
        block = block.at(step.tasks)
        old, new = functions_at(Phi_old, block.heads), functions_at(step.Phi, block.now(step))
        apart = divergence(1 / tau * old, 1 / tau * new, block)  # [k, B]
        return self.weight * (tau**2 * (apart.mean(1).sum() * step.scale))

    def end(self, task: Task, x: Tensor, y: Tensor, generator: torch.Generator) -> None:
        self.theta = {}

    def check_resumed(self, task: Task) -> None:
        expected = shapes(task.theta) if task.past else []
        if sorted(shapes(self.theta)) != sorted(expected):
            raise CheckpointError("the state lacks the network as it was when the current task began")

    def kept(self, theta: Params) -> Kept:
        """A copy of the network, which every later task begins with."""
        return {"network": list(theta.values())}
