"""Learning without forgetting: the old heads keep their answers on the current inputs.

    penalty = λ τ² Σ_i (1/B) Σ_x KL( p_i^old(· | x; τ) ‖ p_i(· | x; τ) )      nats per example

p^old comes from the network as it stood when the task began, at temperature τ. At that moment the penalty is zero, and
so is its gradient.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from frcl.regularisers.protocol import Moment, Params


def distillation(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """τ² · mean over inputs of KL(teacher ‖ student) of the tempered softmax; logits [B, C] each."""
    log_student = (student / temperature).log_softmax(1)
    log_teacher = (teacher / temperature).log_softmax(1)
    divergence = (log_teacher.exp() * (log_teacher - log_student)).sum(1)
    return temperature**2 * divergence.mean()


@dataclass
class Distillation:
    """Holds every old head on the inputs of the current task."""

    strength: float
    temperature: float
    teacher: Params = field(default_factory=dict)  # the network as it stood when the task began
    trains_old_heads: bool = True

    def check(self, y: Tensor) -> None:
        """Any task will do."""

    def begin(self, now: Moment) -> None:
        self.teacher = {name: value.detach().clone() for name, value in now.params.items()} if now.task else {}

    def penalty(self, now: Moment, params: Params, x: Tensor, generator: torch.Generator) -> Tensor:
        if now.task == 0:
            return x.new_zeros(())
        with torch.no_grad():
            targets = now.model.all_logits(self.teacher, x, now.task)
        outputs = now.model.all_logits(params, x, now.task)
        parts = [distillation(s, t, self.temperature) for s, t in zip(outputs, targets, strict=True)]
        return self.strength * torch.stack(parts).sum()

    def after_step(self, gradient: Params, before: Params, after: Params) -> None:
        """Nothing to follow."""

    def end(self, now: Moment, x: Tensor, y: Tensor, generator: torch.Generator) -> None:
        self.teacher = {}

    def kept(self) -> list[Tensor]:
        return []

    def state(self) -> Params:
        return {f"teacher/{name}": value for name, value in self.teacher.items()}

    def load(self, state: Params) -> None:
        self.teacher = {name.removeprefix("teacher/"): value.clone() for name, value in state.items()}
