"""The features of the model as a function of the weights, and the properties of a network that training needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.func import functional_call

from frcl.errors import NetworkError

FIXED = "fixed/"  # prefix of the fixed parts among the constants of a training step


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
