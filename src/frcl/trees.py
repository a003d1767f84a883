"""Nested dictionaries, tuples, named tuples and lists of tensors; other leaves, such as None, are carried along."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

Params = dict[str, Tensor]
Tree = Any
T = TypeVar("T")
SLICE = 1 << 20  # numbers that are summed up at once
ODD = -0x61C8864680B583EB  # 2⁶⁴ over the golden ratio, as a signed number


def tree_map(function: Callable[..., Any], tree: T, *rest: T) -> T:
    """`function` of every tensor of `tree`, and of the tensors at the same place in the others."""
    if isinstance(tree, Tensor):
        return function(tree, *rest)  # type: ignore[no-any-return]
    if isinstance(tree, Mapping):
        return {key: tree_map(function, tree[key], *(other[key] for other in rest)) for key in tree}  # type: ignore[index, return-value]
    if isinstance(tree, tuple | list):
        parts = [tree_map(function, *items) for items in zip(tree, *rest, strict=True)]
        return type(tree)(*parts) if getattr(tree, "_fields", None) is not None else type(tree)(parts)
    return tree


def named_tensors(tree: Tree, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    """The tensors with their places as names: "theta/layers.1.weight", "posterior/mean", "heads/0"."""
    if isinstance(tree, Tensor):
        yield prefix, tree
        return
    tree = tree._asdict() if getattr(tree, "_fields", None) is not None else tree
    items = tree.items() if isinstance(tree, Mapping) else enumerate(tree) if isinstance(tree, tuple | list) else ()
    for key, value in items:
        yield from named_tensors(value, f"{prefix}/{key}" if prefix else str(key))


def with_tensors(tree: T, tensors: Mapping[str, Tensor]) -> T:
    """The same structure with the tensors of these names in the places of its own."""
    names = iter([name for name, _ in named_tensors(tree)])
    return tree_map(lambda _: tensors[next(names)], tree)


def stack(trees: Sequence[T], dim: int = 0) -> T:
    """Trees of one structure as one, every tensor with another axis."""
    return tree_map(lambda *each: torch.stack(each, dim), *trees)


def in_one_block(trees: Sequence[T]) -> T:
    """The same, outside of any gradient; the tensors of each tree become slices of those of the one."""
    block = detached(stack(trees))
    for i, tree in enumerate(trees):
        for (_, whole), (_, own) in zip(named_tensors(block), named_tensors(tree), strict=True):
            own.data = whole[i]
    return block


def batch_axes(tree: Tree) -> Any:
    """What `torch.vmap` is told of a stacked tree: axis 0 for tensors, None for constants."""
    if isinstance(tree, Tensor):
        return 0
    if isinstance(tree, Mapping):
        return {key: batch_axes(value) for key, value in tree.items()}
    if isinstance(tree, tuple | list):
        parts = [batch_axes(value) for value in tree]
        return type(tree)(*parts) if getattr(tree, "_fields", None) is not None else type(tree)(parts)
    return None


def detached(tree: T) -> T:
    """The same values, outside of any gradient."""
    return tree_map(Tensor.detach, tree)


def copied(tree: T) -> T:
    """Copies that nothing else changes."""
    return tree_map(torch.clone, detached(tree))


def leaf(tensor: Tensor) -> Tensor:
    """A trainable copy of the tensor."""
    return tensor.detach().clone().requires_grad_(True)


def shapes(tree: Tree) -> list[tuple[str, tuple[int, ...], str]]:
    """Names, shapes and types of all tensors."""
    return [(name, tuple(tensor.shape), str(tensor.dtype)) for name, tensor in named_tensors(tree)]


def total_bytes(tree: Tree) -> int:
    """Memory of all tensors."""
    return sum(tensor.numel() * tensor.element_size() for _, tensor in named_tensors(tree))


def data_mark(x: object, *rest: object) -> str:
    """A digest that tells one data set from another: the content of tensors, the text of everything else.

    Of a tensor Σ_j w_j · mixed(bits of number j) modulo 2⁶⁴, w_j odd, for each slice; computed where the tensor is.
    """
    digest = hashlib.blake2b(digest_size=16)
    for part in (x, *rest):
        if not isinstance(part, Tensor):
            digest.update(repr(part).encode())
            continue
        whole = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[part.element_size()]
        bits = part.detach().contiguous().flatten()
        bits = bits.to(torch.uint8) if bits.dtype == torch.bool else bits.view(whole)
        weights = torch.arange(1, 2 * min(SLICE, max(len(bits), 1)), 2, device=part.device) * ODD
        sums = []
        for some in bits.split(SLICE):
            wide = some.to(torch.int64) * ODD
            mixed = wide ^ (wide >> 32)  # bits that differ in the high half alone, as 0.0 and 1.0 do, differ in the low
            sums.append((mixed * weights[: len(some)]).sum())
        content = torch.stack(sums).tolist() if sums else []
        digest.update(f"{part.dtype}{tuple(part.shape)}{content}".encode())
    return digest.hexdigest()
