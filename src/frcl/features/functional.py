"""The features of the model as a function of the weights, and the checks that a network must pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.func import functional_call

from frcl.errors import NetworkError
from frcl.features.batch_norm import depends_on_batches

PROBE_SIZE = 8
ROUNDING = 0.02  # largest difference between batch sizes in TF32 or bfloat16, relative to the largest feature


def features(net: nn.Module, theta: Mapping[str, Tensor], x: Tensor, scale: float) -> Tensor:
    """[scale · net(x; θ), 1], shape [B, K]: K counts the bias column."""
    out: Tensor = functional_call(net, dict(theta), (x,))
    return torch.cat([times(scale, out), out.new_ones(out.shape[0], 1)], dim=1)


def times(factor: float, x: Tensor) -> Tensor:
    """factor · x; x itself if the factor is one."""
    return x if factor == 1.0 else factor * x


def fixed_parts(net: nn.Module) -> dict[str, Tensor]:
    """The tensors of a network that are not trained: buffers, and parameters without a gradient."""
    return {**{n: p for n, p in net.named_parameters() if not p.requires_grad}, **dict(net.named_buffers())}


def has_convolutions(net: nn.Module) -> bool:
    return any(isinstance(module, nn.modules.conv._ConvNd) for module in net.modules())


def is_stackable(net: nn.Module) -> bool:
    """Whether several copies of the network can be computed as one batch, and profit from it.

    Batched convolutions are slower than separate ones. An embedding with `padding_idx` or `max_norm` gives other
    results when batched.
    """
    return not has_convolutions(net) and not any(
        isinstance(module, nn.Embedding) and (module.padding_idx is not None or module.max_norm is not None)
        for module in net.modules()
    )


@contextmanager
def network_failures() -> Iterator[None]:
    """A context in which the errors that a network raises on unsuitable inputs become a NetworkError."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, IndexError, ValueError) as error:
        raise NetworkError(f"the network failed on these inputs: {error}") from error


def in_chunks(function: Callable[[Tensor], Tensor], x: Tensor, size: int) -> Tensor:
    """function(x) for a large x, without gradient, a slice at a time."""
    with torch.no_grad():
        if len(x) <= size:
            return function(x)
        return torch.cat([function(part) for part in x.split(size)])


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
        if depends_on_batches(module):
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
    except Exception as error:
        raise NetworkError(
            f"the network failed on inputs of shape {tuple(probe.shape)} and type {probe.dtype}: {error}. "
            "It must map [batch, ...] to [batch, K]; integer inputs are passed as they are, so convert "
            "images to float first."
        ) from error
    _check_output(net, first, probe)
    if not torch.equal(first, second):
        raise NetworkError(
            "the network gives different features for the same inputs: something in it is random. "
            "Call net.eval() before handing it over, or remove the random layer."
        )
    size = first.abs().max()
    if not torch.allclose(first[:1], alone, rtol=0.0, atol=ROUNDING * float(size)):
        raise NetworkError(
            "the network's features for one input depend on the rest of the batch. "
            "Use a normalisation that works on one input at a time."
        )
    return int(first.shape[1])


def _check_output(net: nn.Module, first: object, probe: Tensor) -> None:
    """Refuse an output that is not a finite matrix [B, K] of the type of the weights."""
    if not isinstance(first, Tensor) or first.ndim != 2 or first.shape[0] != len(probe) or not first.shape[1]:
        given = tuple(first.shape) if isinstance(first, Tensor) else type(first).__name__
        raise NetworkError(
            f"the network gave {given} for {len(probe)} inputs; expected a tensor [{len(probe)}, K]. "
            "Flatten its output and leave out the classification layer."
        )
    if not first.is_floating_point():
        raise NetworkError(f"the network gives features of type {first.dtype}; expected floating point")
    expected = next((p.dtype for p in net.parameters() if p.is_floating_point()), first.dtype)
    if first.dtype != expected:
        raise NetworkError(
            f"the network's weights are {expected}, its features {first.dtype}; cast its output to {expected}"
        )
    if not first.isfinite().all():
        raise NetworkError(
            "the network gives NaN or infinite features. Scale the inputs (for images, to [0, 1]) "
            "and check its weights."
        )
