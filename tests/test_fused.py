"""The fused blocks against PyTorch's own layers: interpreted on a CPU where Triton is there, compiled on CUDA."""

import importlib.util
import os
import subprocess
import sys
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

from frcl import ConvNet, fused
from frcl.features import _pool
from frcl.graphs import captured

CPU = torch.device("cpu")
needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")


class Case(NamedTuple):
    size: int
    pooling: str
    C: int
    n: int
    kind: str  # "random"; or whole numbers, whose sums are exact: from a "wide" range, with "ties", a "constant" image


CASES = [
    Case(28, "same", 64, 1, "wide"),
    Case(28, "valid", 5, 2, "random"),
    Case(28, "same", 3, 1, "ties"),
    Case(27, "same", 3, 1, "random"),
    Case(27, "valid", 16, 1, "ties"),
    Case(5, "same", 70, 7, "random"),
    Case(5, "valid", 1, 9, "ties"),
    Case(5, "same", 5, 2, "constant"),
    Case(6, "same", 5, 2, "constant"),
    Case(2, "same", 2, 3, "random"),
    Case(2, "valid", 2, 3, "random"),
    Case(1, "same", 2, 3, "random"),
    Case(1, "valid", 2, 3, "random"),
]
LARGE = [Case(28, "same", 64, 333, "wide"), Case(28, "same", 64, 90, "ties")]


def tensors(case: Case, device: torch.device = CPU) -> list[Tensor]:
    """x, W, b and the gradient of y."""
    generator = torch.Generator().manual_seed(3)
    after = _pool(case.size, case.pooling)[1]
    shapes = (case.n, 1, case.size, case.size), (case.C, 1, 3, 3), (case.C,), (case.n, case.C, after, after)
    if case.kind == "random":
        drawn = [torch.randn(shape, generator=generator) for shape in shapes]
    else:
        drawn = [torch.randint(-2, 3, shape, generator=generator).float() for shape in shapes]
    if case.kind == "wide":
        drawn[:3] = [torch.randint(-99, 100, shape, generator=generator).float() for shape in shapes[:3]]
    if case.kind == "constant":
        drawn[0] = torch.ones(shapes[0])
    return [tensor.to(device) for tensor in drawn]


def layers(x: Tensor, W: Tensor, b: Tensor, pool: nn.MaxPool2d) -> Tensor:
    return torch.relu(pool(nn.functional.conv2d(x, W, padding=1)) + b[:, None, None])


def kernels(x: Tensor, W: Tensor, b: Tensor, pool: nn.MaxPool2d) -> Tensor:
    return fused.block(x, W, b, fused.pooling_of(pool, x.shape[-1]))


def outcome(function, case: Case, device: torch.device = CPU, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """y, dW and db."""
    x, W, b, upstream = (tensor.to(dtype) for tensor in tensors(case, device))
    W.requires_grad_(), b.requires_grad_()
    y = function(x, W, b, _pool(case.size, case.pooling)[0])
    return [y.detach(), *torch.autograd.grad(y, (W, b), upstream)]


def check(got: list[Tensor], case: Case) -> None:
    assert got[0].is_contiguous(memory_format=torch.channels_last)
    for ours, theirs in zip(got, outcome(layers, case, dtype=torch.float64), strict=True):
        if case.kind == "random":
            torch.testing.assert_close(ours.cpu(), theirs.float(), rtol=1e-5, atol=1e-5 * float(theirs.abs().max()))
        else:
            assert torch.equal(ours.cpu().double(), theirs)


def map_of(case: Case, device: torch.device = CPU) -> list[Tensor]:
    """A map h with the channels side by side, b and the gradient of y."""
    *_, b, upstream = tensors(case, device)
    generator = torch.Generator().manual_seed(4)
    draw = torch.randn if case.kind == "random" else lambda shape, **how: torch.randint(-2, 3, shape, **how).float()
    h = draw((case.n, case.C, case.size, case.size), generator=generator).to(device)
    return [h.contiguous(memory_format=torch.channels_last), b, upstream]


def pool_layers(h: Tensor, b: Tensor, pool: nn.MaxPool2d) -> Tensor:
    return torch.relu(pool(h) + b[:, None, None])


def pool_kernels(h: Tensor, b: Tensor, pool: nn.MaxPool2d) -> Tensor:
    return fused.pooled(h, b, fused.pooling_of(pool, h.shape[-1]))


def pool_outcome(function, case: Case, device: torch.device = CPU, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """y, dh and db."""
    h, b, upstream = (tensor.to(dtype) for tensor in map_of(case, device))
    y = function(h.requires_grad_(), b.requires_grad_(), _pool(case.size, case.pooling)[0])
    return [y.detach(), *torch.autograd.grad(y, (h, b), upstream)]


def check_pool(got: list[Tensor], case: Case) -> None:
    assert all(part.is_contiguous(memory_format=torch.channels_last) for part in got[:2])
    for ours, theirs in zip(got, pool_outcome(pool_layers, case, dtype=torch.float64), strict=True):
        torch.testing.assert_close(ours.cpu().double(), theirs, rtol=1e-6, atol=1e-6 * float(theirs.abs().max()))


# --- interpreted: Triton reads its mode when it is imported, so the kernels run in a process of their own


def interpret(path: str) -> None:
    fused.HEIGHT, fused.PROGRAMS = 128, 2  # large arrays for numpy; several turns a program, and fewer for the last
    results = [outcome(kernels, case) for case in CASES]
    pools = [pool_outcome(pool_kernels, case) for case in CASES]
    nan = kernels(*with_nan(), _pool(28, "valid")[0]), pool_kernels(*map_with_nan(), _pool(28, "valid")[0])
    torch.save({"cases": results, "pools": pools, "nan": nan}, path)


def with_nan() -> list[Tensor]:
    x, W, b, _ = tensors(CASES[1])
    x[0, 0, 4, 4] = torch.nan
    return [x, W, b]


def map_with_nan() -> list[Tensor]:
    h, b, _ = map_of(CASES[1])
    h[0, 3, 4, 4] = torch.nan
    return [h, b]


@pytest.fixture(scope="module")
def interpreted(tmp_path_factory):
    path = tmp_path_factory.mktemp("fused") / "interpreted.pt"
    environment = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    subprocess.run([sys.executable, __file__, str(path)], env=environment, check=True)
    return torch.load(path)


@needs_triton
@pytest.mark.parametrize("case", CASES, ids=str)
def test_interpreted_kernels_give_what_the_layers_give(interpreted, case):
    check(interpreted["cases"][CASES.index(case)], case)


@needs_triton
@pytest.mark.parametrize("case", CASES, ids=str)
def test_interpreted_pooling_gives_what_the_layers_give(interpreted, case):
    check_pool(interpreted["pools"][CASES.index(case)], case)


@needs_triton
def test_nan_is_not_hidden(interpreted):
    pool = _pool(28, "valid")[0]
    for got, expected in zip(
        interpreted["nan"], (layers(*with_nan(), pool), pool_layers(*map_with_nan(), pool)), strict=True
    ):
        assert expected.isnan().any()
        torch.testing.assert_close(got, expected, equal_nan=True, rtol=1e-4, atol=1e-5)


# --- who uses it, and when not


@pytest.mark.parametrize("pooling", ["same", "valid"])
def test_the_pooling_is_that_of_the_layer(pooling):
    for size in range(1, 31):
        pool, after = _pool(size, pooling)
        assert fused.pooling_of(pool, size).after == after == pool(torch.zeros(1, 1, size, size)).shape[-1]


def like(**changes) -> SimpleNamespace:
    """What `serves` looks at of an input that it takes."""
    fields = {"is_cuda": True, "shape": (4, 1, 28, 28), "requires_grad": False, "dtype": torch.float32}
    return SimpleNamespace(**{**fields, "device": torch.device("cuda"), **changes})


def test_it_serves_one_channel_without_gradient_on_cuda(monkeypatch):
    monkeypatch.setattr(fused, "_works", lambda device, C, pooling: True)
    W, b, pooling = torch.zeros(8, 1, 3, 3), torch.zeros(8), fused.Pooling(28, 3, 0, 14)
    assert fused.serves(like(), W, b, pooling)
    for change in (
        {"is_cuda": False},
        {"shape": (4, 2, 28, 28)},
        {"shape": (0, 1, 28, 28)},
        {"shape": (2**31 // (8 * 196) + 1, 1, 28, 28)},
        {"requires_grad": True},
        {"dtype": torch.float64},
    ):
        assert not fused.serves(like(**change), W, b, pooling)
    assert not fused.serves(like(), W.double(), b, pooling)
    inside = torch.vmap(lambda w: w + float(fused.serves(like(), w, b, pooling)))
    assert not inside(W[:, None]).any()
    monkeypatch.delattr(torch._C, "_are_functorch_transforms_active")
    assert not fused.serves(like(), W, b, pooling)


def test_pooling_serves_maps_on_cuda(monkeypatch):
    monkeypatch.setattr(fused, "_pooling_works", lambda device, C, pooling: True)
    b, pooling = torch.zeros(8), fused.Pooling(14, 3, 0, 7)
    fits = {"shape": (4, 8, 14, 14), "requires_grad": True}
    assert fused.pools(like(**fits), b, pooling)
    for change in ({"is_cuda": False}, {"shape": (0, 8, 14, 14)}, {"shape": (2**31 // (8 * 196) + 1, 8, 14, 14)}):
        assert not fused.pools(like(**{**fits, **change}), b, pooling)
    assert not fused.pools(like(**fits, dtype=torch.float64), b, pooling)
    assert not fused.pools(like(**fits), b.double(), pooling)
    inside = torch.vmap(lambda b: b + float(fused.pools(like(**fits), b, pooling)))
    assert not inside(b[None]).any()


@pytest.mark.parametrize("works", ["_works", "_pooling_works"])
def test_kernels_that_fail_are_named_once_and_done_without(monkeypatch, works):
    def broken():
        raise RuntimeError("no such instruction")

    works = getattr(fused, works)
    monkeypatch.setattr(fused, "_kernels", broken)
    works.cache_clear()
    with pytest.warns(UserWarning, match="going without it: no such instruction"):
        assert not works(CPU, 2, fused.Pooling(5, 3, 1, 3))
    assert not works(CPU, 2, fused.Pooling(5, 3, 1, 3))  # warnings are errors here
    works.cache_clear()


@pytest.mark.parametrize("works", ["_works", "_pooling_works"])
def test_without_triton_nothing_is_said(monkeypatch, works):
    works = getattr(fused, works)
    monkeypatch.setitem(sys.modules, "triton", None)  # an import of it fails
    monkeypatch.setattr(fused, "_kernels", fused._kernels.__wrapped__)
    works.cache_clear()
    assert not works(CPU, 2, fused.Pooling(5, 3, 1, 3))
    works.cache_clear()


def test_the_network_uses_it_for_the_blocks_that_it_serves(monkeypatch):
    net, x, seen = ConvNet(9, filters=(3, 4)), torch.rand(2, 9, 9), []

    def block(x, W, b, pooling):
        seen.append(pooling)
        return layers(x, W, b, net.layers[2])

    expected = net(x)
    monkeypatch.setattr(fused, "serves", lambda x, W, b, pooling: x.shape[1] == 1)
    monkeypatch.setattr(fused, "block", block)
    torch.testing.assert_close(net(x), expected)
    assert seen == [fused.Pooling(9, 3, 1, 5)]


def test_the_network_uses_pooling_for_later_blocks(monkeypatch):
    net, x, seen = ConvNet(9, filters=(3, 4)), torch.rand(2, 9, 9), []

    def pooled(h, b, pooling):
        seen.append(pooling)
        return pool_layers(h, b, net.layers[2])

    expected = net(x)
    monkeypatch.setattr(fused, "pools", lambda h, b, pooling: h.shape[1] == 4)
    monkeypatch.setattr(fused, "pooled", pooled)
    torch.testing.assert_close(net(x), expected)
    assert seen == [fused.Pooling(5, 3, 1, 3)]


# --- compiled


@pytest.fixture
def cuda() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device())


@needs_cuda
@needs_triton
@pytest.mark.parametrize("case", [*CASES, *LARGE], ids=str)
def test_compiled_kernels_give_what_the_layers_give(cuda, case):
    x, W, b, _ = tensors(case, cuda)
    assert fused.serves(x, W, b, fused.pooling_of(_pool(case.size, case.pooling)[0], case.size))
    got, again = outcome(kernels, case, cuda), outcome(kernels, case, cuda)
    check(got, case)
    assert all(torch.equal(a, b) for a, b in zip(got, again, strict=True))


@needs_cuda
@needs_triton
@pytest.mark.parametrize(
    "case", [*CASES, Case(14, "same", 64, 333, "random"), Case(7, "same", 64, 90, "ties")], ids=str
)
def test_compiled_pooling_gives_what_the_layers_give(cuda, case):
    h, b, _ = map_of(case, cuda)
    assert fused.pools(h, b, fused.pooling_of(_pool(case.size, case.pooling)[0], case.size))
    got, again = pool_outcome(pool_kernels, case, cuda), pool_outcome(pool_kernels, case, cuda)
    check_pool(got, case)
    assert all(torch.equal(a, b) for a, b in zip(got, again, strict=True))


@needs_cuda
@needs_triton
def test_in_a_cuda_graph_it_reads_what_is_there_at_replay(cuda):
    case = Case(28, "same", 64, 50, "random")
    x, W, b, upstream = tensors(case, cuda)
    W.requires_grad_(), b.requires_grad_()
    pool = _pool(28, "same")[0]
    with torch.no_grad():
        result = [torch.empty_like(upstream), torch.empty_like(W), torch.empty_like(b)]

    def step() -> None:
        y = kernels(x, W, b, pool)
        for kept, value in zip(result, (y, *torch.autograd.grad(y, (W, b), upstream)), strict=True):
            kept.copy_(value.detach())

    replay = captured(step, result, cuda)
    with torch.no_grad():
        W.mul_(-1)
        x.add_(0.1)
    replay()
    torch.cuda.synchronize()
    y = kernels(x, W, b, pool)
    for kept, value in zip(result, (y, *torch.autograd.grad(y, (W, b), upstream)), strict=True):
        assert torch.equal(kept, value)


@needs_cuda
@needs_triton
def test_the_map_is_never_stored(cuda):
    case = Case(28, "same", 64, 400, "random")
    outcome(kernels, case, cuda)
    x, W, b, _ = tensors(case, cuda)
    torch.cuda.reset_peak_memory_stats(cuda)
    before = torch.cuda.memory_allocated(cuda)
    y = kernels(x, W.requires_grad_(), b, _pool(28, "same")[0])
    y.sum().backward()
    taken = torch.cuda.max_memory_allocated(cuda) - before
    assert taken < 400 * 64 * 28 * 28 * 4


@needs_cuda
@needs_triton
def test_compiled_kernels_do_not_hide_nan(cuda):
    case = [tensor.to(cuda) for tensor in with_nan()]
    pool = _pool(28, "valid")[0]
    assert torch.equal(kernels(*case, pool).isnan(), layers(*case, pool).isnan())
    case = [tensor.to(cuda) for tensor in map_with_nan()]
    assert torch.equal(pool_kernels(*case, pool).isnan(), pool_layers(*case, pool).isnan())


@needs_cuda
@needs_triton
@pytest.mark.parametrize(("filters", "error"), [((64,), 1e-4), ((64, 64), 0.05)])  # later blocks may use TF32
def test_a_network_equals_its_double_on_the_cpu(cuda, filters, error):
    net, x = ConvNet(28, filters=filters).double(), torch.rand(40, 28, 28, generator=torch.Generator().manual_seed(0))
    exact = torch.autograd.grad(net(x.double()).square().sum(), list(net.parameters()))
    net = net.float().to(cuda)
    ours = torch.autograd.grad(net(x.to(cuda)).square().sum(), list(net.parameters()))
    for a, b in zip(ours, exact, strict=True):
        assert (a.cpu() - b).norm() < error * b.norm()


@needs_cuda
@needs_triton
def test_the_fisher_information_goes_without_it(cuda):
    from frcl.regularisers.fisher import diagonal_fisher

    net = ConvNet(9, filters=(3, 4)).to(cuda)
    x, y = torch.rand(6, 9, 9, device=cuda), torch.arange(6, device=cuda) % 4
    params = dict(net.named_parameters())
    fisher = diagonal_fisher(lambda p, x: torch.func.functional_call(net, p, (x,))[:, :4], params, x, y)
    assert all(value.isfinite().all() for value in fisher.values())


if __name__ == "__main__":
    interpret(sys.argv[1])
