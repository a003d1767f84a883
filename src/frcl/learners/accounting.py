"""Bytes that a learner keeps of past tasks, by kind: what it needs besides the network in order to go on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from torch import Tensor

from frcl.trees import total_bytes

KINDS = {
    "points": "stored inputs, with their labels where those are stored",
    "posterior": "Gaussian beliefs, and what was learned with a likelihood",
    "heads": "last-layer weights of past tasks; twice where a task goes on training them",
    "statistics": "sums over examples, from which a posterior is solved when asked",
    "fisher": "importances of weights: Fisher information, or what a method has in its place",
    "anchor": "weights that the importances refer to",
    "network": "other copies of a network; also those that are held only while a task is learned",
}
Parts = dict[str, int]  # bytes by kind; a kind of which there is nothing is left out


def parts_of(kept: Mapping[str, Iterable[Tensor]]) -> Parts:
    """The bytes of tensors by kind."""
    found = {kind: total_bytes(list(tensors)) for kind, tensors in kept.items()}
    return {kind: size for kind, size in found.items() if size}


def added(each: Sequence[Parts]) -> Parts:
    """The bytes of several, kind by kind."""
    kinds = dict.fromkeys(kind for one in each for kind in one)
    return {kind: sum(one.get(kind, 0) for one in each) for kind in kinds}
