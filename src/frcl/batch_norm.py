"""Batch norm as a fixed function: its statistics frozen, or folded into the convolution before it."""

import copy
from collections import Counter

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from frcl.errors import NetworkError

FOLDED = ((nn.Conv1d, nn.BatchNorm1d), (nn.Conv2d, nn.BatchNorm2d), (nn.Conv3d, nn.BatchNorm3d))


def freeze_batch_norm(net: nn.Module, *, train_affine: bool = False, fold: bool = False) -> nn.Module:
    """A copy of `net` whose batch norm is a fixed function: y = γ (x − m)/√(v + ε) + β with m and v as they are now.

    Parameters
    ----------
    net : nn.Module
        Any network; also instance norm with running statistics is frozen. The rest of it is copied as it is.
    train_affine : bool
        Whether γ and β are trained with the other weights.
    fold : bool
        Whether a batch norm that follows a convolution directly is folded into it, which gives the same function, up
        to rounding, at less cost. It then has no γ and β of its own: the convolution is trained if it was before.
    """
    if not isinstance(net, nn.Module):
        raise NetworkError(f"expected a network, an nn.Module; got {type(net).__name__}")
    frozen = copy.deepcopy(net)
    for name, module in frozen.named_modules():
        if isinstance(module, _NormBase) and (module.track_running_stats or isinstance(module, _BatchNorm)):
            if module.running_mean is None:
                raise NetworkError(
                    f"{type(module).__name__} at {name or 'its root'!r} has no running statistics to freeze: it was "
                    "made with track_running_stats=False. Use GroupNorm or LayerNorm."
                )
            module.eval()
            for parameter in module.parameters():
                parameter.requires_grad_(train_affine)
    return _fold(frozen) if fold else frozen


def _fold(net: nn.Module) -> nn.Module:
    """The network with each batch norm that reads a convolution folded into it: W' = (γ/√(v + ε)) W, b' likewise."""
    from torch.nn.utils.fusion import fuse_conv_bn_weights

    for before, after in _pairs(net):
        convolution, norm = net.get_submodule(before), net.get_submodule(after)
        assert isinstance(convolution, nn.Conv1d | nn.Conv2d | nn.Conv3d)
        assert isinstance(norm, _NormBase)
        assert norm.running_mean is not None
        assert norm.running_var is not None
        convolution.weight, convolution.bias = fuse_conv_bn_weights(
            convolution.weight, convolution.bias, norm.running_mean, norm.running_var, norm.eps, norm.weight, norm.bias
        )
        convolution.bias.requires_grad_(convolution.weight.requires_grad)
        parent, _, name = after.rpartition(".")
        setattr(net.get_submodule(parent), name, nn.Identity())
    return net


def _pairs(net: nn.Module) -> list[tuple[str, str]]:
    """Names of convolutions and batch norms where the one is read by the other alone, and each is called once."""
    from torch import fx

    try:
        nodes = list(fx.symbolic_trace(net).graph.nodes)
    except Exception as error:
        raise NetworkError(
            f"the layers of {type(net).__name__} cannot be traced, so batch norm cannot be folded: {error}. "
            "Freeze it without fold=True, which gives the same function."
        ) from error
    used = Counter(node.target.rpartition(".")[0] if node.op == "get_attr" else node.target for node in nodes
                   if node.op in ("call_module", "get_attr"))  # fmt: skip
    pairs = []
    for node in nodes:
        before = node.args[0] if node.op == "call_module" and len(node.args) == 1 else None
        if before is not None and before.op == "call_module" and len(before.users) == 1:
            once = used[before.target] == used[node.target] == 1
            kinds = type(net.get_submodule(before.target)), type(net.get_submodule(node.target))
            if once and kinds in FOLDED:
                pairs.append((before.target, node.target))
    return pairs
