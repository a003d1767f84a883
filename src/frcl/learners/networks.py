"""Networks that a file describes: ours by name and arguments, others by a name that the caller allows.

A file never brings code. A class of ours is looked up in a table; any other is imported only if the caller names it.
"""

import contextlib
import importlib
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from frcl.errors import CheckpointError
from frcl.features import MLP, ConvNet
from frcl.frozen import FrozenFront
from frcl.image_networks import CifarNet, ResNet18
from frcl.learners.loaded import DAMAGED, check_fits

OURS: dict[str, type[nn.Module]] = {f"frcl.{kind.__name__}": kind for kind in (MLP, ConvNet, CifarNet, ResNet18)}
FRONT = "frcl.FrozenFront"  # its arguments are the descriptions of its parts
KEYS = ("name", "arguments", "dtype", "training")
UNREADABLE = "the description of the network in the file cannot be read; give the network"
Description = dict[str, Any]


def describe(net: nn.Module) -> Description | None:
    """Name, arguments, type of the weights and mode of a network from which it can be made; None where it cannot be.

    A class of the user must be importable, and either have a constructor without parameters or keep its keyword
    arguments, plain values, as an attribute `arguments`. Both parts of a `FrozenFront` must be such networks.
    """
    kind = type(net)
    if kind is FrozenFront:
        return _describe_parts(net.front, net.rest, training=net.training)
    name = next((key for key, one in OURS.items() if one is kind), f"{kind.__module__}.{kind.__qualname__}")
    arguments = getattr(net, "arguments", None)
    if arguments is None and list(inspect.signature(kind).parameters):
        return None
    arguments = {} if arguments is None else arguments
    importable = name in OURS or not (kind.__module__ == "__main__" or "<" in kind.__qualname__)
    if not importable or not isinstance(arguments, Mapping) or not _is_plain(dict(arguments)):
        return None
    if name in OURS and (str(kind(**arguments)) != str(net) or _has_hooks(net)):  # a layer was replaced, or does more
        return None
    dtype = next((p.dtype for p in net.parameters() if p.is_floating_point()), torch.float32)
    return {"name": name, "arguments": dict(arguments), "dtype": str(dtype), "training": net.training}


def _describe_parts(front: Any, rest: Any, *, training: bool) -> Description | None:
    parts = {"front": describe(front), "rest": describe(rest)}
    each = [parts["front"]] if type(rest) is nn.Identity else [*parts.values()]
    made = [one for one in each if one is not None and one["name"] != FRONT]
    if len(made) < len(each):
        return None
    return {"name": FRONT, "arguments": parts, "dtype": made[-1]["dtype"], "training": training}


def _has_hooks(net: nn.Module) -> bool:
    return any(one._forward_hooks or one._forward_pre_hooks for one in net.modules())


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(one) for key, one in value.items())
    if isinstance(value, list | tuple):
        return all(_is_plain(one) for one in value)
    return value is None or type(value) in (bool, int, float, str)


def build(description: Any, weights: Mapping[str, Tensor], allow: Sequence[str]) -> nn.Module:
    """The network of a description, with weights like these; its shapes are checked before any memory is taken."""
    given = description if isinstance(description, dict) else {}
    name, arguments, dtype, training = (given.get(key) for key in KEYS)
    dtypes = {str(one): one for one in (torch.float32, torch.float64, torch.bfloat16)}
    fits = given.keys() == {*KEYS} and _is_plain(arguments) and str(dtype) in dtypes and type(training) is bool
    if not fits or not isinstance(arguments, dict):
        raise CheckpointError(UNREADABLE)
    if name == FRONT:
        return _build_front(arguments, weights, allow).train(training is True)
    kind, here = _class_of(name, allow), contextlib.nullcontext()
    for place in (torch.device("meta"), here) if name in OURS else (here,):  # first its shapes, without memory
        try:
            with place:
                net = kind(**arguments).to(dtypes[str(dtype)])
        except DAMAGED as error:
            reason = f"cannot be made from the arguments in the file: {error}"
            raise CheckpointError(f"the network {name} {reason}") from error
        check_fits(net.state_dict(), dict(weights))
    return net.train(training is True)


def _build_front(parts: Mapping[str, Any], weights: Mapping[str, Tensor], allow: Sequence[str]) -> FrozenFront:
    nested = any(isinstance(one, dict) and one.get("name") == FRONT for one in parts.values())
    if parts.keys() != {"front", "rest"} or nested:
        raise CheckpointError(UNREADABLE)

    def made(part: str) -> nn.Module:
        own = {name.removeprefix(f"{part}."): one for name, one in weights.items() if name.startswith(f"{part}.")}
        return build(parts[part], own, allow)

    net = FrozenFront(made("front"), None if parts["rest"] is None else made("rest"))
    check_fits(net.state_dict(), dict(weights))
    return net


def _class_of(name: Any, allow: Sequence[str]) -> type[nn.Module]:
    if isinstance(name, str) and name in OURS:
        return OURS[name]
    if isinstance(allow, str) or not isinstance(name, str) or name not in allow:
        raise CheckpointError(
            f"the file names the network {name!r}, which is not one of frcl; give the network, or allow it to be "
            f"imported, as allow=[{name!r}]"
        )
    module, _, attribute = name.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise CheckpointError(f"the network {name} cannot be imported: {error}") from error
    if not (isinstance(found, type) and issubclass(found, nn.Module)):
        raise CheckpointError(f"{name} is not a class of networks, an nn.Module")
    return found
