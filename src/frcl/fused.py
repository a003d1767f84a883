"""Blocks of a convolutional network as CUDA kernels: the first one whole, of later ones what follows the convolution.

`block` is convolution, max pooling, bias and ReLU as one kernel. With one input channel the convolution is nine
products an entry, and its map [n, C, size, size] is many times larger than the image that it comes from and than what
the pooling leaves of it. So the kernel never writes the map: it works out each pooling window anew from the image, and
remembers the place of the maximum for the way back. For each image,

    y[c, i, j] = relu(b[c] + max over places (r, s) of window (i, j) of  Σ_ab W[c, a, b] x[r + a − 1, s + b − 1]),
    dW[c, a, b] = Σ_ij g[c, i, j] x[r + a − 1, s + b − 1]  with (r, s) the place of the maximum,
    db[c] = Σ_ij g[c, i, j],

with g the gradient of y where y > 0 and zero elsewhere; x is zero outside of the image, places outside of the map do
not count, and of equal places the first wins. All in float32, in an order of sums that depends on the shapes alone.

`pooled` is max pooling, bias and ReLU of a map h that is there, with the same places. Windows overlap, so on the way
back each entry of h asks the up to four windows that it lies in whether it was their maximum:

    y[c, i, j] = relu(b[c] + max over places (r, s) of window (i, j) of  h[c, r, s]),
    dh[c, r, s] = Σ of g[c, i, j] over the windows whose maximum is at (r, s),     db[c] = Σ_rs dh[c, r, s].

The kernels are written in Triton, which comes with PyTorch for CUDA and is imported when the first one is wanted.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from typing import Any, NamedTuple, no_type_check

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from frcl.graphs import inside_a_transform

tl: Any = None  # triton.language, from `_kernels` on; Triton wants it under a global name

HEIGHT, WARPS = 8, 4  # entries of y [n, h, h] that a program works on at once, and its warps
PROGRAMS = 1024  # at most so many programs for a channel; each goes through its share of the entries


class Pooling(NamedTuple):
    """Which max pooling, with stride 2, of a map size × size: the window, the padding, the size after it."""

    size: int
    window: int
    padding: int
    after: int


def pooling_of(pool: nn.MaxPool2d, size: int) -> Pooling:
    window, padding = pool.kernel_size, pool.padding
    assert isinstance(window, int)
    assert isinstance(padding, int)
    return Pooling(size, window, padding, (size + 2 * padding - window + pool.ceil_mode) // 2 + 1)


def serves(x: Tensor, weight: Tensor, bias: Tensor, pooling: Pooling) -> bool:
    """Whether `block` can take these: x [n, 1, size, size] on CUDA without a gradient, float32, Triton at work."""
    return (
        x.is_cuda
        and x.shape[1] == 1
        and not x.requires_grad
        and x.dtype == weight.dtype == bias.dtype == torch.float32
        and 0 < x.shape[0] * max(pooling.size**2, len(bias) * pooling.after**2) < 2**31  # indices are int32
        and not inside_a_transform()
        and _works(x.device, len(bias), pooling)
    )


def pools(h: Tensor, bias: Tensor, pooling: Pooling) -> bool:
    """Whether `pooled` can take these: h [n, C, size, size] on CUDA, float32, Triton at work."""
    return (
        h.is_cuda
        and h.dtype == bias.dtype == torch.float32
        and 0 < h.shape[0] * h.shape[1] * max(pooling.size, pooling.after) ** 2 < 2**31  # indices are int32
        and not inside_a_transform()
        and _pooling_works(h.device, len(bias), pooling)
    )


def block(x: Tensor, weight: Tensor, bias: Tensor, pooling: Pooling) -> Tensor:
    """relu(max_pool(conv(x)) + b), [n, C, after, after] with the channels side by side in memory."""
    y: Tensor = _Block.apply(x, weight, bias, pooling)  # type: ignore[no-untyped-call]
    return y


class _Block(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, pooling: Pooling) -> Tensor:
        x = x.contiguous()
        y, place = forward(x, weight, bias, pooling)
        ctx.save_for_backward(x, place)
        ctx.pooling = pooling
        return y.permute(0, 3, 1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[None, Tensor, Tensor, None]:
        x, place = ctx.saved_tensors
        return None, *backward(x, place, upstream.permute(0, 2, 3, 1).contiguous(), ctx.pooling), None


def pooled(h: Tensor, bias: Tensor, pooling: Pooling) -> Tensor:
    """relu(max_pool(h) + b), [n, C, after, after] with the channels side by side in memory."""
    y: Tensor = _Pooled.apply(h, bias, pooling)  # type: ignore[no-untyped-call]
    return y


class _Pooled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor, bias: Tensor, pooling: Pooling) -> Tensor:
        h = h.permute(0, 2, 3, 1).contiguous()
        y = h.new_empty(len(h), pooling.after, pooling.after, len(bias))
        place = torch.empty_like(y, dtype=torch.uint8)
        _launch(2, (h, bias.contiguous(), y, place), place, pooling)
        ctx.save_for_backward(place)
        ctx.pooling = pooling
        return y.permute(0, 3, 1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, Tensor, None]:
        (place,), pooling = ctx.saved_tensors, ctx.pooling
        upstream = upstream.permute(0, 2, 3, 1).contiguous()
        slope = upstream.new_empty(len(place), pooling.size, pooling.size, place.shape[-1])
        part = slope.new_empty(_shares(slope)[0], place.shape[-1])
        _launch(3, (upstream, place, slope, part), slope, pooling)
        return slope.permute(0, 3, 1, 2), part.sum(0), None


def forward(x: Tensor, weight: Tensor, bias: Tensor, pooling: Pooling) -> tuple[Tensor, Tensor]:
    """y and the place of each maximum, numbered by rows of its window, or window² where y is zero: [n, h, h, C]."""
    y = x.new_empty(len(x), pooling.after, pooling.after, len(bias))
    place = torch.empty_like(y, dtype=torch.uint8)
    _launch(0, (x, weight.contiguous(), bias.contiguous(), y, place), place, pooling)
    return y, place


def backward(x: Tensor, place: Tensor, upstream: Tensor, pooling: Pooling) -> tuple[Tensor, Tensor]:
    """dW [C, 1, 3, 3] and db [C]: each program sums over its own entries of y, then one sum over the programs."""
    C = place.shape[-1]
    part = x.new_empty(_shares(place)[0], 10 * C)
    _launch(1, (x, upstream, place, part), place, pooling)
    total = part.sum(0)
    return total[: 9 * C].view(C, 1, 3, 3), total[9 * C :]


def _shares(entries: Tensor) -> tuple[int, int, int]:
    """How many programs, the entries [n, h, h] of a tensor [n, h, h, C], how often a program takes HEIGHT of them."""
    rows = entries.numel() // entries.shape[-1]
    share = -(-rows // (HEIGHT * PROGRAMS))
    return -(-rows // (HEIGHT * share)), rows, share


def _launch(which: int, tensors: tuple[Tensor, ...], entries: Tensor, pooling: Pooling) -> None:
    C = entries.shape[-1]
    width = min(64, max(16, 1 << (C - 1).bit_length()))  # channels a program: a power of two
    programs, rows, share = _shares(entries)
    kernel = _kernels()[which][programs, -(-C // width)]
    with torch.cuda.device_of(entries):
        kernel(*tensors, rows, share, *pooling, C, width, HEIGHT, num_warps=WARPS)


@lru_cache(maxsize=64)
def _works(device: torch.device, C: int, pooling: Pooling) -> bool:
    """Whether both kernels of `block` compile and launch, tried once on a blank image."""

    def attempt() -> None:
        shapes = (1, pooling.size, pooling.size), (C, 9), (C,)
        x, weight, bias = (torch.zeros(shape, device=device, dtype=torch.float32) for shape in shapes)
        y, place = forward(x, weight, bias, pooling)
        backward(x, place, y, pooling)

    return _succeeds(attempt, f"the fused first block does not work on {device}")


@lru_cache(maxsize=64)
def _pooling_works(device: torch.device, C: int, pooling: Pooling) -> bool:
    """Whether both kernels of `pooled` compile and launch, tried once on a blank map."""

    def attempt() -> None:
        shapes = (1, C, pooling.size, pooling.size), (C,)
        h, bias = (torch.zeros(shape, device=device, dtype=torch.float32, requires_grad=True) for shape in shapes)
        with torch.enable_grad():
            torch.autograd.grad(pooled(h, bias, pooling).sum(), (h, bias))

    return _succeeds(attempt, f"the fused pooling does not work on {device}")


def _succeeds(attempt: Callable[[], None], otherwise: str) -> bool:
    try:
        attempt()
    except torch.OutOfMemoryError:
        raise
    except ImportError:  # no Triton
        return False
    except Exception as error:  # the compiler's own errors have no common class
        warnings.warn(f"{otherwise}; going without it: {error}", stacklevel=3)
        return False
    return True


@lru_cache(maxsize=1)
def _kernels() -> tuple[Any, ...]:
    """The kernels; what Triton compiles depends on the pooling and the channels, not on the number of images."""
    global tl, _pixels
    triton, tl = import_module("triton"), import_module("triton.language")
    _pixels = triton.jit(_pixels)
    each = (_forward, _backward, _pool_forward, _pool_backward)
    return tuple(triton.jit(kernel, do_not_specialize=["rows", "share"]) for kernel in each)


@no_type_check
def _pixels(x, r, s, k: tl.constexpr, tap: tl.constexpr, size: tl.constexpr, window: tl.constexpr):
    """What a tap of the filter sees at place k of a window; the first tap at the first place sees (r, s) of image x."""
    r += k // window + tap // 3
    s += k % window + tap % 3
    seen = (r >= 0) & (r < size) & (s >= 0) & (s < size)
    return tl.load(x + r * size + s, mask=seen, other=0.0)[:, None]


@no_type_check
def _forward(
    x, weight, bias, y, place, rows, share,
    size: tl.constexpr, window: tl.constexpr, padding: tl.constexpr, after: tl.constexpr,
    C: tl.constexpr, width: tl.constexpr, height: tl.constexpr,
):  # fmt: skip
    """`share` times `height` entries of y [n, h, h], for `width` channels side by side."""
    c = tl.program_id(1) * width + tl.arange(0, width)
    # the bias again for every entry: as this load wants it, Triton shares out [height, width] among the threads, each
    # with several channels of one entry, which use its pixels together
    b = tl.load(bias + (tl.arange(0, height) * 0)[:, None] + c[None, :], mask=(c < C)[None, :], other=0.0)
    w0 = tl.load(weight + c * 9, mask=c < C, other=0.0)[None, :]
    w1 = tl.load(weight + c * 9 + 1, mask=c < C, other=0.0)[None, :]
    w2 = tl.load(weight + c * 9 + 2, mask=c < C, other=0.0)[None, :]
    w3 = tl.load(weight + c * 9 + 3, mask=c < C, other=0.0)[None, :]
    w4 = tl.load(weight + c * 9 + 4, mask=c < C, other=0.0)[None, :]
    w5 = tl.load(weight + c * 9 + 5, mask=c < C, other=0.0)[None, :]
    w6 = tl.load(weight + c * 9 + 6, mask=c < C, other=0.0)[None, :]
    w7 = tl.load(weight + c * 9 + 7, mask=c < C, other=0.0)[None, :]
    w8 = tl.load(weight + c * 9 + 8, mask=c < C, other=0.0)[None, :]
    turn = 0
    while turn < share:
        m = (tl.program_id(0) * share + turn) * height + tl.arange(0, height)
        to = m[:, None] * C + c[None, :]
        real = (m < rows)[:, None] & (c < C)[None, :]
        m = tl.minimum(m, rows - 1)
        image = x + m // (after * after) * (size * size)
        r, s = m // after % after * 2 - padding - 1, m % after * 2 - padding - 1
        best = tl.full([height, width], float("-inf"), tl.float32)
        at = tl.zeros([height, width], tl.int32)
        for k in tl.static_range(window * window):
            row, column = r + 1 + k // window, s + 1 + k % window
            on_map = (row >= 0) & (row < size) & (column >= 0) & (column < size)
            h = b + tl.where(on_map, 0.0, float("-inf"))[:, None]
            h += w0 * _pixels(image, r, s, k, 0, size, window)
            h += w1 * _pixels(image, r, s, k, 1, size, window)
            h += w2 * _pixels(image, r, s, k, 2, size, window)
            h += w3 * _pixels(image, r, s, k, 3, size, window)
            h += w4 * _pixels(image, r, s, k, 4, size, window)
            h += w5 * _pixels(image, r, s, k, 5, size, window)
            h += w6 * _pixels(image, r, s, k, 6, size, window)
            h += w7 * _pixels(image, r, s, k, 7, size, window)
            h += w8 * _pixels(image, r, s, k, 8, size, window)
            at = tl.where(h > best, k, at)
            best = tl.maximum(best, h, propagate_nan=tl.PropagateNan.ALL)
        off = best <= 0  # false for NaN, which must not be hidden
        tl.store(y + to, tl.where(off, 0.0, best), mask=real)
        tl.store(place + to, tl.where(off, window * window, at).to(tl.uint8), mask=real)
        turn += 1


@no_type_check
def _backward(
    x, upstream, place, part, rows, share,
    size: tl.constexpr, window: tl.constexpr, padding: tl.constexpr, after: tl.constexpr,
    C: tl.constexpr, width: tl.constexpr, height: tl.constexpr,
):  # fmt: skip
    """Sums over `share` times `height` entries of y [n, h, h], for `width` channels: dW [C, 9], then db [C]."""
    c = tl.program_id(1) * width + tl.arange(0, width)
    db = tl.zeros([height, width], tl.float32)
    w0, w1, w2, w3, w4, w5, w6, w7, w8 = db, db, db, db, db, db, db, db, db
    turn = 0
    while turn < share:
        m = (tl.program_id(0) * share + turn) * height + tl.arange(0, height)
        real = (m < rows)[:, None] & (c < C)[None, :]
        at = tl.load(place + m[:, None] * C + c[None, :], mask=real)
        g = tl.load(upstream + m[:, None] * C + c[None, :], mask=real, other=0.0)
        m = tl.minimum(m, rows - 1)
        image = x + m // (after * after) * (size * size)
        r, s = m // after % after * 2 - padding - 1, m % after * 2 - padding - 1
        db += tl.where(at < window * window, g, 0.0)
        for k in tl.static_range(window * window):
            here = tl.where(at == k, g, 0.0)
            w0 += here * _pixels(image, r, s, k, 0, size, window)
            w1 += here * _pixels(image, r, s, k, 1, size, window)
            w2 += here * _pixels(image, r, s, k, 2, size, window)
            w3 += here * _pixels(image, r, s, k, 3, size, window)
            w4 += here * _pixels(image, r, s, k, 4, size, window)
            w5 += here * _pixels(image, r, s, k, 5, size, window)
            w6 += here * _pixels(image, r, s, k, 6, size, window)
            w7 += here * _pixels(image, r, s, k, 7, size, window)
            w8 += here * _pixels(image, r, s, k, 8, size, window)
        turn += 1
    to = part + tl.program_id(0) * (10 * C) + c * 9
    tl.store(to, tl.sum(w0, 0), mask=c < C)
    tl.store(to + 1, tl.sum(w1, 0), mask=c < C)
    tl.store(to + 2, tl.sum(w2, 0), mask=c < C)
    tl.store(to + 3, tl.sum(w3, 0), mask=c < C)
    tl.store(to + 4, tl.sum(w4, 0), mask=c < C)
    tl.store(to + 5, tl.sum(w5, 0), mask=c < C)
    tl.store(to + 6, tl.sum(w6, 0), mask=c < C)
    tl.store(to + 7, tl.sum(w7, 0), mask=c < C)
    tl.store(to + 8, tl.sum(w8, 0), mask=c < C)
    tl.store(part + tl.program_id(0) * (10 * C) + 9 * C + c, tl.sum(db, 0), mask=c < C)


@no_type_check
def _pool_forward(
    h, bias, y, place, rows, share,
    size: tl.constexpr, window: tl.constexpr, padding: tl.constexpr, after: tl.constexpr,
    C: tl.constexpr, width: tl.constexpr, height: tl.constexpr,
):  # fmt: skip
    """`share` times `height` entries of y [n, h, h], for `width` channels side by side."""
    c = tl.program_id(1) * width + tl.arange(0, width)
    b = tl.load(bias + c, mask=c < C, other=0.0)[None, :]
    turn = 0
    while turn < share:
        m = (tl.program_id(0) * share + turn) * height + tl.arange(0, height)
        to = m[:, None] * C + c[None, :]
        real = (m < rows)[:, None] & (c < C)[None, :]
        image = m // (after * after) * (size * size)
        r, s = m // after % after * 2 - padding, m % after * 2 - padding
        best = tl.full([height, width], float("-inf"), tl.float32)
        at = tl.zeros([height, width], tl.int32)
        for k in tl.static_range(window * window):
            row, column = r + k // window, s + k % window
            on_map = (row >= 0) & (row < size) & (column >= 0) & (column < size)
            entry = (image + row * size + column)[:, None] * C + c[None, :]
            value = tl.load(h + entry, mask=on_map[:, None] & real, other=float("-inf"))
            at = tl.where(value > best, k, at)
            best = tl.maximum(best, value, propagate_nan=tl.PropagateNan.ALL)
        best += b
        off = best <= 0  # false for NaN, which must not be hidden
        tl.store(y + to, tl.where(off, 0.0, best), mask=real)
        tl.store(place + to, tl.where(off, window * window, at).to(tl.uint8), mask=real)
        turn += 1


@no_type_check
def _pool_backward(
    upstream, place, slope, part, rows, share,
    size: tl.constexpr, window: tl.constexpr, padding: tl.constexpr, after: tl.constexpr,
    C: tl.constexpr, width: tl.constexpr, height: tl.constexpr,
):  # fmt: skip
    """`share` times `height` entries of dh [n, size, size], for `width` channels; and their sums, db [C]."""
    c = tl.program_id(1) * width + tl.arange(0, width)
    db = tl.zeros([height, width], tl.float32)
    turn = 0
    while turn < share:
        m = (tl.program_id(0) * share + turn) * height + tl.arange(0, height)
        real = (m < rows)[:, None] & (c < C)[None, :]
        image, r, s = m // (size * size) * (after * after), m // size % size + padding, m % size + padding
        total = tl.zeros([height, width], tl.float32)
        for k in tl.static_range(((window + 1) // 2) * ((window + 1) // 2)):  # the windows that reach this far
            i, j = r // 2 - k // ((window + 1) // 2), s // 2 - k % ((window + 1) // 2)
            below, beside = r - 2 * i, s - 2 * j
            inside = (i >= 0) & (i < after) & (below < window) & (j >= 0) & (j < after) & (beside < window)
            entry = (image + i * after + j)[:, None] * C + c[None, :]
            at = tl.load(place + entry, mask=inside[:, None] & real, other=255).to(tl.int32)
            g = tl.load(upstream + entry, mask=inside[:, None] & real, other=0.0)
            total += tl.where(at == (below * window + beside)[:, None], g, 0.0)
        tl.store(slope + m[:, None] * C + c[None, :], total, mask=real)
        db += total
        turn += 1
    tl.store(part + tl.program_id(0) * C + c, tl.sum(db, 0), mask=c < C)
