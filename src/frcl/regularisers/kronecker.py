"""A running quadratic anchor on θ whose curvature is a Kronecker product for each layer (K-FAC Laplace).

    penalty = weight/N · ½ Σ_l ⟨ΔW_l, G_l ΔW_l A_l⟩ + the diagonal anchor of all other weights        nats per example

ΔW_l = W_l − W*_l has the bias of the layer as its last column. For a layer s = W a the Fisher information of an example
is a aᵀ ⊗ E_y[g gᵀ], g = ∂ log p(y | x)/∂s; over the N_i examples of a task it is approximated by A_i ⊗ G_i with
A_i = N_i E[a aᵀ] and G_i = E[g gᵀ] (Martens and Grosse, 2015; Ritter et al., 2018). Unlike a diagonal it knows which
*directions* of the inputs of a layer a task uses: tasks whose inputs span other directions do not hinder each other.

A convolution is a linear layer whose inputs are the patches under its kernel. Its positions count as examples of their
own: A_i sums over the positions of an image, G_i averages over them (Grosse and Martens, 2016).

The sum over tasks is kept as one product. With τ_i = tr A_i · tr G_i,

    A = Σ_i A_i tr G_i,    G = Σ_i τ_i G_i / tr G_i / Σ_i τ_i,

which has the trace of Σ_i A_i ⊗ G_i, and equals it where all G_i are proportional.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from frcl.features import has_convolutions
from frcl.regularisers.fisher import task_information
from frcl.regularisers.jacobians import bias_of
from frcl.regularisers.protocol import Kept, Regulariser, Step, Task, number, register, remembered
from frcl.regularisers.quadratic import quadratic, running_sum
from frcl.selection import random_start
from frcl.trees import Params, Tree, copied, total_bytes

MAPS = 250  # examples whose gradients by the maps of a convolutional network are computed at once
VALUES = 10  # of log p(y | x) at most, whose gradients are computed one by one
SUMS = 4  # random sums that stand for more of them


class Factors(NamedTuple):
    """A [in, in] and G [out, out] by the name of a weight; A has one more row where the layer has a bias."""

    inputs: Params
    outputs: Params


class _Call(NamedTuple):
    """One use of a layer: its rows a [n, in], examples or positions, and its outputs s, with the outputs in `axis`."""

    rows: Tensor
    out: Tensor
    axis: int


class _Layers(TorchFunctionMode):
    """Notes the calls of the layers whose weights are in `theta`, while a network computes."""

    def __init__(self, theta: Params) -> None:
        super().__init__()
        self.names = {id(value): name for name, value in theta.items()}
        self.calls: dict[str, list[_Call]] = {}

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func in (torch.nn.functional.linear, torch.nn.functional.conv2d):
            found = inspect.signature(_linear if func is torch.nn.functional.linear else _conv2d)
            given = found.bind(*args, **(kwargs or {}))
            given.apply_defaults()
            name = self.names.get(id(given.arguments["weight"]))
            if name is not None and given.arguments.get("groups", 1) == 1:
                rows, axis = (_linear if func is torch.nn.functional.linear else _conv2d)(**given.arguments)
                self.calls.setdefault(name, []).append(_Call(rows, out, axis))
        return out


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> tuple[Tensor, int]:
    """The rows of a call of `torch.nn.functional.linear`: positions of a sequence count as examples."""
    return input.detach().flatten(0, -2), -1


def _conv2d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1,
    groups: int = 1,
) -> tuple[Tensor, int]:  # fmt: skip
    """The rows of a call of `torch.nn.functional.conv2d`: the patch under the kernel at each position."""
    a, size = input.detach(), weight.shape[2:]
    if isinstance(padding, str):
        steps = dilation if isinstance(dilation, tuple | list) else (dilation, dilation)
        whole = [step * (n - 1) if padding == "same" else 0 for step, n in zip(steps, size, strict=True)]
        a = torch.nn.functional.pad(a, [side for n in reversed(whole) for side in (n // 2, n - n // 2)])
        padding = 0
    patches = torch.nn.functional.unfold(a, size, dilation=dilation, padding=padding, stride=stride)
    return patches.mT.flatten(0, 1), 1


def kronecker_factors(task: Task, x: Tensor, generator: torch.Generator) -> Factors:
    """A_i = N E[a aᵀ] and G_i = E[g gᵀ] of every layer, over the examples x; exact over few y, else unbiased."""
    found, rows = Factors({}, {}), dict[str, int]()
    for part in x.split(MAPS if has_convolutions(task.features.net) else len(x)):
        for name, (A, G, n) in _sums(task, part, generator).items():
            found.inputs[name] = found.inputs.get(name, 0.0) + A * (task.N / len(x))
            found.outputs[name] = found.outputs.get(name, 0.0) + G
            rows[name] = rows.get(name, 0) + n
    return Factors(found.inputs, {name: G / rows[name] for name, G in found.outputs.items()})


def random_sums(values: Tensor, weights: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """SUMS values v_s = Σ_r ε_sr √weights_r values_r with random signs ε, and weights 1/SUMS; both [B, SUMS].

    As E[ε_r ε_q] is 1 for r = q and else 0, E Σ_s ∇v_s ∇v_sᵀ / SUMS = Σ_r weights_r ∇values_r ∇values_rᵀ.
    """
    B, R = values.shape
    signs = torch.randint(0, 2, (B, SUMS, R), generator=generator, device=generator.device).to(values) * 2 - 1
    return torch.einsum("bsr,br->bs", signs * weights.sqrt()[:, None], values), weights.new_full((B, SUMS), 1 / SUMS)


def _sums(task: Task, x: Tensor, generator: torch.Generator) -> dict[str, tuple[Tensor, Tensor, int]]:
    """Of every layer Σ a aᵀ and Σ E_y[g gᵀ] over its rows, and how many rows there are."""
    theta = {name: value.detach().requires_grad_() for name, value in task.theta.items()}
    whole = {name: value for name, value in theta.items() if not bias_of(name, task.fixed)}  # no bias is frozen
    assert task.head is not None
    with torch.enable_grad():
        with _Layers(whole) as layers:
            f = task.features({**task.fixed, **theta}, x) @ task.head.detach().mT
        values, weights = task.likelihood.fisher_terms(f, task.likelihood_params)
        if values.shape[1] > VALUES:
            values, weights = random_sums(values, weights, generator)
        outs = [call.out for calls in layers.calls.values() for call in calls]
        by_value = [
            torch.autograd.grad(value.sum(), outs, retain_graph=True, allow_unused=True, materialize_grads=True)
            for value in (values.unbind(1) if outs else ())
        ]
    found, at = dict[str, tuple[Tensor, Tensor, int]](), 0
    for name, calls in layers.calls.items():
        rows = torch.cat([call.rows for call in calls])
        if bias_of(name, task.theta):
            rows = torch.cat([rows, rows.new_ones(len(rows), 1)], 1)
        G = torch.zeros((), device=x.device)
        for r, gradients in enumerate(by_value):
            for call, g in zip(calls, gradients[at : at + len(calls)], strict=True):
                each = g.movedim(call.axis, -1)
                weighted = each * weights[:, r].reshape(-1, *[1] * (g.ndim - 1))
                G = G + weighted.flatten(0, -2).mT @ each.flatten(0, -2)
        found[name] = rows.mT @ rows, G, len(rows)
        at += len(calls)
    return found


def merged(old: Factors, new: Factors, decay: float) -> Factors:
    """The factors of the sum of both: A has the scale, G has trace one."""
    inputs, outputs = dict(old.inputs), dict(old.outputs)
    for name, A in new.inputs.items():
        size = new.outputs[name].trace()
        A, G = A * size, new.outputs[name] / torch.where(size > 0, size, 1.0)
        if name in inputs:
            before, share = decay * inputs[name], A.trace()
            whole = before.trace() + share
            share = torch.where(whole > 0, share / whole, 1.0)
            A, G = before + A, torch.lerp(outputs[name], G, share)
        inputs[name], outputs[name] = A, G
    return Factors(inputs, outputs)


def _outside(layers: Collection[str], theta: Params) -> list[str]:
    """The weights that belong to none of these layers."""
    covered = {*layers, *(bias_of(name, theta) for name in layers)}
    return [name for name in theta if name not in covered]


@register
@dataclass
class KroneckerCurvature(Regulariser):
    """One running anchor, Kronecker-factored for linear layers and 2-d convolutions, diagonal for all other weights."""

    weight: float = number(1.0)
    decay: float = number(1.0)
    examples: int = 2000
    anchor: Params = remembered()
    inputs: Params = remembered()  # A
    outputs: Params = remembered()  # G, of trace one
    precision: Params = remembered(positive=True)  # Ω of the other weights
    name: ClassVar[str] = "kronecker-curvature"

    def constants(self, task: Task) -> Tree:
        return (self.anchor, self.inputs, self.outputs, self.precision) if self.anchor else ()

    def penalty(self, step: Step, constants: Tree, draws: Tree) -> Tensor | None:
        if not constants:
            return None
        anchor, inputs, outputs, precision = constants
        total = step.Phi.new_zeros(())
        for name, A in inputs.items():
            bias = bias_of(name, anchor)
            parts = [(step.theta[name] - anchor[name]).flatten(1)]
            moved = torch.cat(parts if bias is None else [*parts, (step.theta[bias] - anchor[bias])[:, None]], 1)
            with torch.no_grad():
                gradient = outputs[name] @ moved @ A
            total = total + (gradient * (moved - 0.5 * moved.detach())).sum()
        if precision:
            total = total + quadratic(step.theta, {name: anchor[name] for name in precision}, precision)
        return self.weight * total / step.N

    def end(self, task: Task, x: Tensor, y: Tensor, generator: torch.Generator) -> None:
        if not task.theta:
            return
        rows = random_start(len(x), min(len(x), self.examples), generator).to(x.device)
        new = kronecker_factors(task, x[rows], generator)
        self.inputs, self.outputs = merged(Factors(self.inputs, self.outputs), new, self.decay)
        if other := _outside(new.inputs, task.theta):
            information, _ = task_information(task, x[rows], y[rows], generator, examples=len(rows), only=other)
            self.precision = running_sum(self.precision, information, self.decay)
        self.anchor = self.anchor | copied(task.theta)

    def shape_of(self, part: str, weight: str, weights: Mapping[str, Tensor]) -> tuple[int, ...]:
        shape = tuple(weights[weight].shape)
        if part not in ("inputs", "outputs"):
            return shape
        size = shape[0] if part == "outputs" else math.prod(shape[1:]) + (bias_of(weight, self.anchor) is not None)
        return size, size

    def kept(self, theta: Params) -> Kept:
        fisher = [*self.inputs.values(), *self.outputs.values(), *self.precision.values()]
        return {"anchor": list(self.anchor.values()), "fisher": fisher}

    def added_bytes(self, task: Task, x: Tensor) -> int:
        if self.anchor or not task.theta:
            return 0
        theta = {name: value for name, value in task.theta.items() if not bias_of(name, task.fixed)}
        with torch.no_grad(), _Layers(theta) as layers:
            task.features({**task.fixed, **task.theta}, x[:1])
        shapes = {name: theta[name].flatten(1).shape for name in layers.calls}
        sizes = [m * m + (n + (bias_of(name, task.theta) is not None)) ** 2 for name, (m, n) in shapes.items()]
        other, item = _outside(shapes, task.theta), next(iter(task.theta.values())).element_size()
        return total_bytes([task.theta, [task.theta[name] for name in other]]) + item * sum(sizes)
