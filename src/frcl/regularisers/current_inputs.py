"""Old functions held at the inputs of the current task, where they are known at no cost in memory.

    penalty = weight · τ² · (1/B) Σ_b Σ_i D( f_i(x_b; θ_begin, w_i,begin)/τ ‖ f_i(x_b; θ, w_i)/τ )    nats per example

With `trust` the divergence at x_b counts max(0, corr(x_b, x̄_i)) times, x̄_i the mean input of task i: an old function
is worth keeping where it is known, at inputs that look like those of its task. Splits of one set of images have
correlations of about a half, permutations of the pixels none. Inputs of fewer than 16 numbers, or of whole numbers,
are all taken to be known.

D is the divergence of the predictive distributions of past task i. θ_begin and w_begin are the network and the old
heads as they stood when the current task began: constants, with which the old side is computed for each minibatch by
one forward pass. At that moment the penalty is zero, and so is its gradient. With τ > 1 and heads that are trained
along this is learning without forgetting (Li and Hoiem, 2016); there D is for classes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from frcl.checks import Seen, check_like
from frcl.features import FeatureMap
from frcl.likelihoods import Likelihood
from frcl.regularisers.heads import divergence, functions_at, make_block
from frcl.regularisers.protocol import Kept, Regulariser, Step, Task, check_beginning, number, register, remembered
from frcl.trees import Params, Tree, copied, total_bytes, tree_map


def distillation(student: Tensor, teacher: Tensor, temperature: float, likelihood: Likelihood) -> Tensor:
    """τ² · mean over inputs of D(teacher/τ ‖ student/τ); functions [n, C] each."""
    own = torch.ones_like(student[:1])
    apart = likelihood.divergence(teacher / temperature, student / temperature, own, {})
    return temperature**2 * apart.mean()


MANY = 16  # numbers of an input from which on their correlation says something


def centred(rows: Tensor) -> Tensor:
    """Rows less their mean, of length one (zero where constant): the product of two is their correlation."""
    rows = rows - rows.mean(1, keepdim=True)
    return torch.nn.functional.normalize(rows, dim=1)


def _known(features: FeatureMap, theta: Params, means: Tensor | None, x: Tensor) -> Tensor:
    """Features of inputs in the network as it began, [n, K]; then, with the means of T tasks, their trust [n, T]."""
    Phi = features(theta, x)
    if means is None:
        return Phi
    inputs = x if features.prepared else features.through_front(x)
    return torch.cat([Phi, (centred(inputs.flatten(1)) @ means.mT).clamp_min(0.0)], 1)


@register
@dataclass
class CurrentInputs(Regulariser):
    """Holds the functions of past tasks at the current inputs; with τ = 2 and trained heads it is LwF."""

    weight: float = number(1.0)
    temperature: float = number(1.0, positive=True)
    train_heads: bool = False
    trust: bool = False
    theta: Params = remembered()  # θ_begin; empty between tasks
    means: list[Tensor] = remembered(list)  # with `trust`: the mean input of each past task, flat
    name: ClassVar[str] = "current-inputs"
    uses_heads: ClassVar[bool] = True
    knows: ClassVar[bool] = True

    def begin(self, task: Task) -> None:
        self.theta = copied(task.theta) if task.past else {}

    def constants(self, task: Task) -> Tree:
        means = centred(torch.stack(self.means)) if self.means else None
        return (self.theta, make_block(task.past), means) if task.past else ()

    def of_inputs(self, task: Task, constants: Tree, x: Tensor) -> Tensor | None:
        if not constants:
            return None
        theta, _, means = constants
        return _known(task.features, {**task.fixed, **theta}, means, x)

    def penalty(self, step: Step, constants: Tree, draws: Tree) -> Tensor | None:
        if not constants:
            return None
        (theta, block, means), tau = constants, self.temperature
        known: Tensor | tuple[()] = draws
        if not isinstance(known, Tensor):
            with torch.no_grad():
                known = _known(step.features, {**step.theta, **theta}, means, step.x)
        K = step.Phi.shape[1]
        Phi_old, alike = known[:, :K], None if means is None else known[:, K:].mT  # [B, K], [T, B]
        if step.tasks is not None:
            block, alike = tree_map(lambda part: part[step.tasks], (block, alike))
        old, new = functions_at(Phi_old, block.heads), functions_at(step.Phi, block.now(step))
        apart = divergence(1 / tau * old, 1 / tau * new, block)  # [k, B]
        if alike is not None:
            apart = apart * alike
        return self.weight * (tau**2 * (apart.mean(1).sum() * step.scale))

    def end(self, task: Task, x: Tensor, y: Tensor, generator: torch.Generator) -> None:
        self.theta = {}
        if (inputs := self._compared(task, x)) is not None:
            self.means = [*self.means, inputs.flatten(1).mean(0)]

    def _compared(self, task: Task, x: Tensor) -> Tensor | None:
        """Inputs as those of tasks are compared; None where they are not."""
        inputs = task.features.through_front(x) if self.trust else x
        return inputs if self.trust and inputs[0].numel() >= MANY and inputs.is_floating_point() else None

    def check_resumed(self, task: Task) -> None:
        check_beginning(self.theta, task)

    def check_state(self, weights: Mapping[str, Tensor], saved: Seen, past: Sequence[Any]) -> None:
        super().check_state(weights, saved, past)
        has_front = any(name.startswith("front.") for name in saved.net)  # the means are those of its output
        size = len(self.means[0]) if has_front and self.means else math.prod(saved.input_shape or ())
        for mean in self.means:
            check_like(mean, (size,), next(iter(weights.values())).dtype, f"'means' of {self.name}")

    def kept(self, theta: Params) -> Kept:
        """A copy of the network, which every later task begins with; the mean inputs."""
        return {"network": list(theta.values())} | ({"statistics": self.means} if self.means else {})

    def added_bytes(self, task: Task, x: Tensor) -> int:
        return total_bytes(self._compared(task, x[:1]))
