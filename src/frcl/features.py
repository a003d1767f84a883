"""Feature networks φ(x; θ), the bias column, and the checks that a network must pass.

Any `nn.Module` from inputs [B, ...] to [B, K] serves, if it is one fixed function of each input: batch
norm frozen, no active dropout, finite output. The features of the model are the network's outputs times a scale,
with a column of ones appended for the bias.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from frcl.errors import FrclError, NetworkError, OptionError
from frcl.frozen import FrozenFront
from frcl.seeding import fork

FEATURE_SCALE = "frcl/feature_scale"  # no name of a parameter: these have no "/"
SIZE = 1.0  # root mean square of the features: the larger, the faster the last layer learns beside the network
STREAM_SIZE = 3.0  # where every minibatch is seen once
PROBE_SIZE = 8
ROUNDING = 0.02  # largest difference between batch sizes in TF32 or bfloat16, relative to the largest feature


@dataclass(frozen=True)
class FeatureMap:
    """φ(x; θ) as a pure function: [s · net(x; θ), 1], shape [B, K]; K counts the bias column.

    The scale s comes with the weights, as `FEATURE_SCALE`; without it s = 1. With `prepared` the inputs are what the
    frozen part of the network gave for them; with `bfloat16` the network is computed by torch.autocast.
    """

    net: nn.Module
    bfloat16: bool = False
    prepared: bool = False

    def __call__(self, theta: Mapping[str, Tensor], x: Tensor) -> Tensor:
        weights = dict(theta)
        scale = weights.pop(FEATURE_SCALE, None)
        given = None
        if self.prepared:
            weights = {name: value for name, value in weights.items() if not name.startswith("front.")}
            given = {"prepared": True}
        if self.bfloat16:
            with torch.autocast(x.device.type, torch.bfloat16, cache_enabled=False):
                out: Tensor = functional_call(self.net, weights, (x,), given).float()
        else:
            out = functional_call(self.net, weights, (x,), given)
        return with_bias(out if scale is None else scale * out)

    def ahead(self) -> FeatureMap:
        """The same for inputs that have passed through the frozen part of the network, where it has one."""
        return replace(self, prepared=isinstance(self.net, FrozenFront))

    def inputs(self, x: Tensor) -> Tensor:
        """Inputs as this map takes them."""
        return self.through_front(x) if self.prepared else x

    def through_front(self, x: Tensor) -> Tensor:
        """What the frozen part of the network gives for inputs; they themselves where it has none."""
        if not isinstance(self.net, FrozenFront):
            return x
        with network_failures(), torch.autocast(x.device.type, torch.bfloat16, self.bfloat16, cache_enabled=False):
            found: Tensor = self.net.prepare(x)
        return found.float() if self.bfloat16 else found

    def outputs(self, x: Tensor) -> Tensor:
        """The network's outputs with the weights that it has."""
        if not self.bfloat16:
            return self.net(x)  # type: ignore[no-any-return]
        with torch.autocast(x.device.type, torch.bfloat16, cache_enabled=False):
            return self.net(x).float()  # type: ignore[no-any-return]


def with_bias(outputs: Tensor) -> Tensor:
    """[outputs, 1]: a column of ones for the bias."""
    return torch.cat([outputs, outputs.new_ones(outputs.shape[0], 1)], dim=1)


def common_scale(outputs: Tensor, size: float = SIZE) -> Tensor:
    """The s with which a network's outputs have this root mean square; 1 where no number of their type is that s."""
    s = (size * outputs.double().square().mean().rsqrt()).to(outputs)
    return torch.where(s.isfinite() & (s > 0), s, 1.0)


def fixed_parts(net: nn.Module) -> dict[str, Tensor]:
    """The tensors of a network that are not trained: buffers, and parameters without a gradient."""
    return {**{n: p for n, p in net.named_parameters() if not p.requires_grad}, **dict(net.named_buffers())}


def trained_parts(net: nn.Module) -> dict[str, Tensor]:
    """The weights of a network that are trained."""
    return {name: p for name, p in net.named_parameters() if p.requires_grad}


def has_convolutions(net: nn.Module) -> bool:
    return any(isinstance(module, nn.modules.conv._ConvNd) for module in net.modules())


def is_stackable(net: nn.Module, *, prepared: bool = False) -> bool:
    """Whether several copies of the network can be computed as one batch, and profit from it.

    Batched convolutions are slower than separate ones. An embedding with `padding_idx` or `max_norm` gives other
    results when batched. With `prepared` only what follows the frozen part counts.
    """
    if prepared and isinstance(net, FrozenFront):
        net = net.rest
    return not has_convolutions(net) and not any(
        isinstance(module, nn.Embedding) and (module.padding_idx is not None or module.max_norm is not None)
        for module in net.modules()
    )


class network_failures(AbstractContextManager[object]):
    """A context in which the errors that a network raises on unsuitable inputs become a NetworkError."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        is_unsuitable = isinstance(error, RuntimeError | IndexError | ValueError)
        if is_unsuitable and not isinstance(error, torch.OutOfMemoryError | FrclError):
            raise NetworkError(f"the network failed on these inputs: {error}") from error


def in_chunks(function: Callable[[Tensor], Tensor], x: Tensor, size: int) -> Tensor:
    """function(x) for a large x, without gradient, a slice at a time."""
    with torch.no_grad():
        return function(x) if len(x) <= size else torch.cat([function(part) for part in x.split(size)])


def check_network(net: nn.Module) -> None:
    """Refuse a network with modules that make its output depend on anything but the input and the weights."""
    if not isinstance(net, nn.Module):
        raise NetworkError(f"expected a network, an nn.Module; got {type(net).__name__}")
    for name, parameter in net.named_parameters():
        if parameter.dtype == torch.float16:
            raise NetworkError(
                f"the network's {name!r} is float16, which overflows in training; call net.float() first"
            )
    for name, module in net.named_modules():
        kind = type(module).__name__
        is_batch_norm = isinstance(module, _BatchNorm)
        if (is_batch_norm and module.running_mean is None) or (
            isinstance(module, _NormBase) and module.training and (is_batch_norm or module.track_running_stats)
        ):
            raise NetworkError(
                f"the network has {kind} at {name or 'its root'!r} that is not frozen: its output for one input "
                "depends on other inputs or on running statistics, so a stored function would change by itself. "
                "If it has been trained, freeze it: net = frcl.freeze_batch_norm(net). Else use GroupNorm or LayerNorm."
            )
        if isinstance(module, nn.modules.dropout._DropoutNd) and module.training and module.p > 0:
            raise NetworkError(
                f"the network has active dropout ({kind} at {name!r}, p={module.p}): features must be the same "
                "each time. Call net.eval() before handing it over, or remove the layer."
            )


def check_features(net: nn.Module, x: Tensor) -> int:
    """Run the network on a few inputs and refuse it if it is not a feature map; returns K without the bias."""
    check_network(net)
    probe = x[:PROBE_SIZE]
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[x.device] if x.is_cuda else []):
            first, second, alone = net(probe), net(probe), net(probe[:1])
    except MemoryError:
        raise
    except Exception as error:
        raise NetworkError(
            f"the network failed on inputs of shape {tuple(probe.shape)} and type {probe.dtype}: {error}. "
            "It must map [batch, ...] to [batch, K]; integer inputs are passed as they are, so convert "
            "images to float first."
        ) from error
    n, weights = len(probe), next((p.dtype for p in net.parameters() if p.is_floating_point()), None)
    problem = ""
    if not isinstance(first, Tensor) or first.ndim != 2 or len(first) != n or not first.shape[1]:
        given = tuple(first.shape) if isinstance(first, Tensor) else type(first).__name__
        problem = f" gave {given} for {n} inputs; expected a tensor [{n}, K]. Flatten its output and leave out the "
        problem += "classification layer."
    elif not first.is_floating_point():
        problem = f" gives features of type {first.dtype}; expected floating point"
    elif first.dtype != (weights or first.dtype):
        problem = f"'s weights are {weights}, its features {first.dtype}; cast its output to {weights}"
    elif not first.isfinite().all():
        problem = " gives NaN or infinite features. Scale the inputs (for images, to [0, 1]) and check its weights."
    elif not torch.equal(first, second):
        problem = " gives different features for the same inputs: something in it is random. Call net.eval() before "
        problem += "handing it over, or remove the random layer."
    elif not torch.allclose(first[:1], alone, rtol=0.0, atol=ROUNDING * float(first.abs().max())):
        problem = "'s features for one input depend on the rest of the batch. Use a normalisation that works on one "
        problem += "input at a time."
    if problem:
        raise NetworkError(f"the network{problem}")
    return int(first.shape[1])


def uninitialised(kind: Callable[..., nn.Module], *arguments: int, **settings: Any) -> nn.Module:
    """A layer whose weights are not filled in; without memory where the default device is "meta"."""
    layer = kind(*arguments, device="meta", **settings)
    return layer if torch.get_default_device().type == "meta" else layer.to_empty(device="cpu")


def initialise(net: nn.Module, seed: int) -> None:
    """He-uniform weights and zero biases from the named stream of the seed, in order of the layers."""
    generator = fork(seed, "network")
    for layer in net.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d) and not layer.weight.is_meta:
            nn.init.kaiming_uniform_(layer.weight, nonlinearity="relu", generator=generator)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


class MLP(nn.Module):
    """Fully connected network with ReLU; inputs of any shape are flattened.

    `last` says whether the last layer, the features, is passed through ReLU ("relu") or not ("linear").
    The weights come from `seed` alone, not from the global random state.
    """

    def __init__(
        self, inputs: int, widths: Sequence[int] = (256, 256), *, last: Literal["linear", "relu"] = "linear",
        seed: int = 0,
    ) -> None:  # fmt: skip
        super().__init__()
        inputs, *widths = map(operator.index, (inputs, *widths))  # numbers of NumPy too
        if inputs < 1 or not widths or min(widths) < 1:
            raise OptionError(f"MLP needs positive sizes; got inputs={inputs}, widths={tuple(widths)}")
        if last not in ("linear", "relu"):
            raise OptionError(f'MLP: last is "linear" or "relu", not {last!r}')
        self.arguments = {"inputs": inputs, "widths": widths, "last": last}
        layers: list[nn.Module] = [nn.Flatten()]
        for fan_in, fan_out in itertools.pairwise([inputs, *widths]):
            layers += [uninitialised(nn.Linear, fan_in, fan_out), nn.ReLU()]
        self.layers = nn.Sequential(*(layers[:-1] if last == "linear" else layers))
        initialise(self, seed)

    def forward(self, x: Tensor) -> Tensor:
        """The layers in turn. Adding the bias separately is faster than `nn.Linear` where seeds are batched."""
        for layer in self.layers:
            hooks = layer._forward_hooks or layer._forward_pre_hooks
            if type(layer) is nn.Linear and layer.bias is not None and not hooks:
                x = nn.functional.linear(x, layer.weight) + layer.bias
            else:
                x = layer(x)
        return x


def _pool(size: int, padding: Literal["valid", "same"]) -> tuple[nn.Module, int]:
    """Max pooling 3×3 with stride 2 and the size of the map after it.

    "valid" drops incomplete windows; a smaller map is pooled whole, since four such blocks do not fit 28×28 (28 → 13 →
    6 → 2 → 1). "same" pads (28 → 14 → 7 → 4 → 2): on both sides of an odd size, on the far side of an even one.
    """
    if padding == "valid":
        window = min(3, size)
        return nn.MaxPool2d(window, stride=2), (size - window) // 2 + 1
    return nn.MaxPool2d(3, stride=2, padding=size % 2, ceil_mode=size % 2 == 0), math.ceil(size / 2)


class ConvNet(nn.Module):
    """The paper's Omniglot network: blocks of 3×3 convolution (padding "same"), ReLU and 3×3/2 max pooling.

    Takes [B, size, size] or [B, channels, size, size] and returns the flattened last map, `outputs` features.
    """

    def __init__(
        self, size: int = 28, *, channels: int = 1, filters: Sequence[int] = (64, 64, 64, 64),
        pooling: Literal["valid", "same"] = "same", seed: int = 0,
    ) -> None:  # fmt: skip
        super().__init__()
        size, channels, *filters = map(operator.index, (size, channels, *filters))
        if size < 1 or channels < 1 or not filters or min(filters) < 1:
            raise OptionError(
                f"ConvNet needs positive sizes; got size={size}, channels={channels}, filters={tuple(filters)}"
            )
        if pooling not in ("valid", "same"):
            raise OptionError(f'ConvNet: pooling is "valid" or "same", not {pooling!r}')
        self.channels, self.size = channels, size
        self.arguments = {"size": size, "channels": channels, "filters": filters, "pooling": pooling}
        layers: list[nn.Module] = []
        for before, width in itertools.pairwise([channels, *filters]):
            pool, size = _pool(size, pooling)
            layers += [uninitialised(nn.Conv2d, before, width, 3, padding=1), nn.ReLU(), pool]
        self.layers = nn.Sequential(*layers, nn.Flatten())
        self.made = list(self.layers)
        self.outputs = filters[-1] * size * size
        initialise(self, seed)

    def forward(self, x: Tensor) -> Tensor:
        """The layers in turn, but bias and ReLU after the pooling, on fewer entries: max(h) + b = max(h + b)."""
        h = x.reshape(-1, self.channels, self.size, self.size)
        layers = list(self.layers)
        if layers != self.made or any(layer._forward_hooks or layer._forward_pre_hooks for layer in layers):
            out: Tensor = self.layers(h)  # a layer was replaced, or has a hook
            return out
        for i in range(0, len(self.layers) - 1, 3):
            convolution, pool = self.layers[i], self.layers[i + 2]
            assert isinstance(convolution, nn.Conv2d)
            assert convolution.bias is not None
            h = nn.functional.conv2d(h, convolution.weight, padding=1)
            h = pool(h if h.is_cuda else _channels_last(h))  # pooling is slow on a CPU in the other format
            h = torch.relu(h + convolution.bias[:, None, None])
            h = _channels_last(h) if h.is_cuda else h  # convolutions are faster on CUDA in this format
        return h.flatten(1)


def _channels_last(h: Tensor) -> Tensor:
    """The same map in channels-last memory format."""
    return h.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
