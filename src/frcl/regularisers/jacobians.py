"""Jacobians of functions of a network by all its weights, and sums over their squares.

For a linear layer s = W a, used once with one row a per example, the Jacobian of value r at example b is the outer
product g_rb a_bᵀ with g_rb = ∂ value_r / ∂s. Sums over J² or over products of J are then sums over products of the two
factors, at the cost of R backward passes, and J itself is never made. Other weights, as those of convolutions, get it
example by example.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import jacrev, vjp
from torch.nn.functional import linear
from torch.overrides import TorchFunctionMode

from frcl.trees import Params, Tree, named_tensors, stack, tree_map

Values = Callable[[Params, Any], Tensor]  # weights, a tree of examples [B, ...] → values [B, R] of each alone
PROBE = 2  # inputs with which the layers are found
CHUNK = 2048  # examples whose squares are summed at once,
LARGEST = 1 << 26  # or fewer, so that a Jacobian that is made whole has no more numbers


class Layers(TorchFunctionMode):
    """Notes inputs and outputs of the linear layers whose weights are in `theta`, while a network computes.

    `shifts`, by weight, are added to the outputs. `touched` are weights that anything else reads.
    """

    def __init__(self, theta: Params, shifts: Mapping[str, Tensor] | None = None) -> None:
        super().__init__()
        self.names = {id(value): name for name, value in theta.items()}
        self.shifts = shifts or {}
        self.calls: dict[str, list[tuple[Tensor, Tensor]]] = {}
        self.touched: set[str] = set()

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func is linear and id(args[1]) in self.names:
            name = self.names[id(args[1])]
            out = out + self.shifts[name] if name in self.shifts else out
            self.calls.setdefault(name, []).append((args[0], out))
        elif func is not linear:
            self.touched.update(self.names[id(one)] for one in args if id(one) in self.names)
        return out


def bias_of(weight: str, theta: Mapping[str, Tensor]) -> str | None:
    """The name of the bias that belongs to a weight, if it is in `theta`."""
    name = weight.removesuffix("weight") + "bias"
    return name if weight.endswith("weight") and name in theta else None


class Split(NamedTuple):
    """The weights of linear layers that are used once, one row per example; and all others but their biases."""

    layers: tuple[str, ...]
    others: tuple[str, ...]


def split_of(values: Values, params: Params, x: Tree) -> Split:
    """How the weights of a network are used."""
    with torch.no_grad(), Layers(params) as seen:
        values(params, tree_map(lambda part: part[:1].expand(PROBE, *part.shape[1:]), x))
    rows = {name: [tuple(a.shape) for a, _ in calls] for name, calls in seen.calls.items()}
    layers = tuple(n for n in rows if n not in seen.touched and rows[n] == [(PROBE, params[n].shape[1])])
    covered = {*layers, *(bias_of(name, params) for name in layers)}
    return Split(layers, tuple(name for name in params if name not in covered))


class Jacobian(NamedTuple):
    """∂ values / ∂ weights at B examples, R values each.

    values   [B, R]
    inputs   [B, in] by the weight of a layer; outputs [R, B, out]: their products are its Jacobian
    biases   by the weight of a layer the name of its bias, whose Jacobian are the outputs
    others   [B, R, ...] by the name of any other weight
    """

    values: Tensor
    inputs: Params
    outputs: Params
    biases: dict[str, str]
    others: Params


def jacobian(values: Values, params: Params, x: Tree, split: Split) -> Jacobian:
    """The Jacobian by all weights in `params`, differentiable in these."""
    B = len(next(tensor for _, tensor in named_tensors(x)))

    def shifted(shifts: Params) -> tuple[Tensor, Params]:
        with Layers(params, shifts) as seen:
            found = values(params, x)
        return found, {name: seen.calls[name][0][0] for name in split.layers}

    if split.layers:
        zeros = {name: params[name].new_zeros(B, len(params[name])) for name in split.layers}
        found, pull, inputs = vjp(shifted, zeros, has_aux=True)  # type: ignore[misc]
        R = found.shape[1]
        each = torch.eye(R, dtype=found.dtype, device=found.device)[:, None].expand(R, B, R)
        (outputs,) = torch.vmap(pull)(each)
    else:
        found, inputs, outputs = values(params, x), {}, {}
    biases = {name: bias for name in split.layers if (bias := bias_of(name, params)) is not None}
    return Jacobian(found, inputs, outputs, biases, _by_example(values, params, x, split.others))


def _by_example(values: Values, params: Params, x: Tree, names: tuple[str, ...]) -> Params:
    """The Jacobian [B, R, ...] by some weights, one example at a time."""
    if not names:
        return {}

    def one(some: Params, row: Tree) -> Tensor:
        return values({**params, **some}, tree_map(lambda part: part[None], row))[0]

    return per_example(jacrev(one), {name: params[name] for name in names}, x)


def per_example(function: Callable[[Params, Any], Params], params: Params, x: Tree) -> Params:
    """The function of each example, stacked; one by one where the network cannot be batched by `torch.vmap`."""
    try:
        with warnings.catch_warnings():  # about layers that it takes one by one itself
            warnings.filterwarnings("ignore", "There is a performance drop", UserWarning)
            found: Params = torch.vmap(function, in_dims=(None, 0))(params, x)
            return found
    except torch.OutOfMemoryError:
        raise
    except RuntimeError:
        count = len(next(tensor for _, tensor in named_tensors(x)))
        return stack([function(params, tree_map(lambda part, i=i: part[i], x)) for i in range(count)])


def squares_times(J: Jacobian, s: Params) -> Tensor:
    """Σ_p J_brp² s_p, [B, R]: the diagonal of J diag(s) Jᵀ."""
    total = torch.zeros_like(J.values)
    for name, a in J.inputs.items():
        g = J.outputs[name].square()  # [R, B, out]
        per_output = a.square() @ s[name].mT
        if name in J.biases:
            per_output = per_output + s[J.biases[name]]
        total = total + (g * per_output).sum(-1).mT
    for name, part in J.others.items():
        total = total + (part.square() * s[name]).flatten(2).sum(-1)
    return total


def covariances(J: Jacobian, s: Params) -> Tensor:
    """J diag(s) Jᵀ over the examples, for each value, [R, B, B] in float64."""
    R, B = J.values.mT.shape
    total = torch.zeros(R, B, B, dtype=torch.float64, device=J.values.device)
    for name, a in J.inputs.items():
        bias, rows = J.biases.get(name), a.double()
        for r, g in enumerate(J.outputs[name].double()):
            own = (g[:, :, None] * rows[:, None, :]).flatten(1)
            total[r] += (own * s[name].double().flatten()) @ own.mT
            if bias is not None:
                total[r] += (g * s[bias].double()) @ g.mT
    for name, part in J.others.items():
        for r, rows in enumerate(part.flatten(2).unbind(1)):  # [B, P]
            own = rows.double()
            total[r] += (own * s[name].double().flatten()) @ own.mT
    return total


def squares_over_examples(
    values: Values, weights: Callable[[Tensor], Tensor], params: Params, x: Tensor, split: Split
) -> Params:
    """Σ_b Σ_r weight_br J_brp², one number for each weight; the weights [B, R] are a function of the values."""
    total = {name: torch.zeros_like(value) for name, value in params.items()}
    with torch.no_grad():
        numbers = values(params, x[:1]).numel() * sum(params[name].numel() for name in split.others)
    for rows in x.split(min(CHUNK, max(1, LARGEST // max(1, numbers)))):
        J = jacobian(values, params, rows, split)
        weight = weights(J.values)
        for name, a in J.inputs.items():
            g = (weight.mT[..., None] * J.outputs[name].square()).sum(0)  # [B, out]
            total[name] += g.mT @ a.square()
            if name in J.biases:
                total[J.biases[name]] += g.sum(0)
        for name, part in J.others.items():
            total[name] += torch.einsum("br,br...->...", weight, part.square())
    return total
