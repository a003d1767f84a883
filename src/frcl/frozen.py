"""Fixed parts of networks: batch norm as a fixed function, and a first part whose output is computed once."""

from __future__ import annotations

import copy
import threading
from collections import Counter, OrderedDict

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from frcl.errors import NetworkError
from frcl.graphs import inside_a_transform
from frcl.trees import data_mark

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


LEAST = 16  # inputs from which on it pays to remember
LARGEST = 2 << 30  # bytes that are remembered, of all networks together
CHUNK = 256  # inputs that pass through the frozen part at once

_found: OrderedDict[tuple[object, ...], Tensor] = OrderedDict()  # the longest unused first
_lock = threading.Lock()


class FrozenFront(nn.Module):
    """rest(front(x)), where the weights of `front` are fixed and only those of `rest` are trained; both are copied.

    Parameters
    ----------
    front : nn.Module
        Put into evaluation mode, its batch norm frozen.
    rest : nn.Module, optional
        From what `front` gives to features [batch, K]; by default nothing more is done, and no weight is trained.

    Outside of training steps, what `front` gives for 16 or more inputs is remembered by their content, up to 2 GiB in
    all; learners pass the data of a task and its stored points through it before the first step.
    """

    def __init__(self, front: nn.Module, rest: nn.Module | None = None) -> None:
        super().__init__()
        for part in (front, rest):
            if not isinstance(part, nn.Module | None) or front is None:
                raise NetworkError(f"expected a network, an nn.Module; got {type(part).__name__}")
        self.front = freeze_batch_norm(front).eval().requires_grad_(False)
        self.rest = nn.Identity() if rest is None else copy.deepcopy(rest)
        self._mark: tuple[object, str] = ((), "")

    def train(self, mode: bool = True) -> FrozenFront:
        """Sets the mode of `rest`; `front` stays in evaluation mode."""
        super().train(mode)
        self.front.eval()
        return self

    def forward(self, x: Tensor, prepared: bool = False) -> Tensor:
        """Features of inputs, or with `prepared` of what `front` gave for them."""
        out: Tensor = self.rest(x if prepared else self._through_front(x))
        return out

    def prepare(self, x: Tensor) -> Tensor:
        """What `front` gives for the inputs, without gradient."""
        with torch.no_grad():
            return torch.cat([self._through_front(part) for part in x.split(CHUNK)])

    def _through_front(self, x: Tensor) -> Tensor:
        if torch.compiler.is_compiling() or torch.is_grad_enabled() or inside_a_transform() or len(x) < LEAST:
            return self._computed(x)
        if x.is_cuda and torch.cuda.is_current_stream_capturing():
            return self._computed(x)
        key = (str(self.front), self._weights(), data_mark(x), str(x.device), torch.is_autocast_enabled(x.device.type))
        with _lock:
            if (known := _found.get(key)) is not None:
                _found.move_to_end(key)
                return known
        found = torch.cat([self._computed(part) for part in x.split(CHUNK)])
        if type(found) is Tensor and found.nbytes <= LARGEST:  # not one without values, as while a model is exported
            with _lock:
                _found[key] = found
                while sum(one.nbytes for one in _found.values()) > LARGEST:
                    _found.popitem(last=False)
        return found

    def _computed(self, x: Tensor) -> Tensor:
        out: Tensor = self.front(x)
        if not torch.compiler.is_compiling() and (not isinstance(out, Tensor) or len(out) != len(x)):
            given = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
            raise NetworkError(f"the frozen part gave {given} for {len(x)} inputs; expected a tensor [{len(x)}, ...]")
        return out

    def _weights(self) -> str:
        """A digest of the weights of `front`, computed again when one of them has changed."""
        tensors = [*self.front.parameters(), *self.front.buffers()]
        versions = [(id(one), one._version) for one in tensors]
        if self._mark[0] != versions:
            self._mark = versions, data_mark(*tensors) if tensors else "none"
        return self._mark[1]
