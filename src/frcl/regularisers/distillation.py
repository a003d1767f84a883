"""Learning without forgetting: the old heads keep their answers on the current inputs.

    penalty = λ τ² Σ_i (1/B) Σ_x KL( p_i^old(· | x; τ) ‖ p_i(· | x; τ) )      nats per example

p^old comes from the network as it stood when the task began, at temperature τ. At that moment the penalty is zero, and
so is its gradient.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from frcl.regularisers.protocol import Kept, Moment, Params, Place, Plain, named, under


def distillation(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """τ² · mean over inputs of KL(teacher ‖ student) of the tempered softmax; logits [B, C] each."""
    log_student = (student / temperature).log_softmax(1)
    log_teacher = (teacher / temperature).log_softmax(1)
    divergence = (log_teacher.exp() * (log_teacher - log_student)).sum(1)
    return temperature**2 * divergence.mean()


@dataclass
class Distillation(Plain):
    """Holds every old head on the inputs of the current task."""

    strength: float
    temperature: float
    teacher: Params = field(default_factory=dict)  # the network as it stood when the task began
    trains_old_heads: bool = True

    def begin(self, now: Moment) -> None:
        self.teacher = {name: value.detach().clone() for name, value in now.params.items()} if now.task else {}

    def constants(self) -> Params:
        return named("teacher/", self.teacher)

    def penalty(self, at: Place, params: Params, constants: Params, x: Tensor, noise: Params) -> Tensor:
        if at.task == 0:
            return x.new_zeros(())
        with torch.no_grad():
            targets = at.model.all_logits(params | under(constants, "teacher/"), x, at.task)
        outputs = at.model.all_logits(params, x, at.task)
        parts = [distillation(s, t, self.temperature) for s, t in zip(outputs, targets, strict=True)]
        return self.strength * torch.stack(parts).sum()

    def end(self, now: Moment, x: Tensor, y: Tensor, generator: torch.Generator) -> None:
        self.teacher = {}

    def kept(self) -> Kept:
        """Nothing between tasks; the teacher, there while a task is learned, is counted by its learner."""
        return {}

    def state(self) -> Params:
        return named("teacher/", self.teacher)

    def load(self, state: Params) -> None:
        self.teacher = {name: value.clone() for name, value in under(state, "teacher/").items()}
