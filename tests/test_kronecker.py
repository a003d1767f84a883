"""The Kronecker-factored anchor, against the whole Fisher information where the factorisation is exact."""

import pytest
import torch
from torch import Tensor, nn

import frcl
from frcl import MLP, Curvature, KroneckerCurvature
from frcl import likelihoods as models
from frcl.regularisers.kronecker import Factors, kronecker_factors, merged, random_sums
from frcl.regularisers.protocol import FeatureMap, Step, Task

D = torch.float64


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=D)


def ended(net: nn.Module, likelihood: models.Likelihood, head: Tensor, N: float) -> Task:
    learned = {name: value.to(D) for name, value in likelihood.initial_parameters().items()}
    theta = dict(net.named_parameters())
    return Task(FeatureMap(net), theta, {}, [], likelihood, N, head=head, likelihood_params=learned)


def value_at(regulariser: KroneckerCurvature | Curvature, task: Task, theta: dict[str, Tensor], x: Tensor) -> Tensor:
    step = Step(task.features, theta, task.head, None, x, x, x, None, None, 1, torch.tensor(1.0, dtype=D))
    return regulariser.penalty(step, regulariser.constants(task), ())


def whole_fisher(task: Task, x: Tensor) -> Tensor:
    """N E_x E_y[s sᵀ], s the gradient of log p(y | x) by all weights, one example and one outcome at a time."""
    names, total = list(task.theta), 0.0
    for one in x:
        leaves = {name: task.theta[name].detach().clone().requires_grad_() for name in names}
        values, weights = task.likelihood.fisher_terms(
            task.features(leaves, one[None]) @ task.head.mT, task.likelihood_params
        )
        for value, weight in zip(values[0], weights[0], strict=True):
            each = torch.autograd.grad(value, list(leaves.values()), retain_graph=True)
            score = torch.cat([part.flatten() for part in each])
            total = total + float(weight) * torch.outer(score, score) * task.N / len(x)
    return total


CASES = {
    "one linear layer, constant G": (nn.Linear(3, 2).double(), models.Gaussian(4), 6, 3),
    "one example, softmax": (nn.Sequential(nn.Linear(3, 2)).double(), models.Softmax((0, 1, 2)), 1, 3),
    "a convolution at one position": (
        nn.Sequential(nn.Unflatten(1, (2, 2, 2)), nn.Conv2d(2, 2, 2), nn.Flatten()).double(),
        models.Softmax((0, 1, 2)),
        1,
        8,
    ),
    "no bias": (nn.Sequential(nn.Linear(3, 2, bias=False)).double(), models.Bernoulli((0, 1)), 1, 3),
}


@pytest.mark.parametrize("case", CASES)
def test_one_layer_is_exact_where_the_information_is_a_product(case, generator):
    net, likelihood, B, inputs = CASES[case]
    x, head = randn(B, inputs, seed=1), randn(likelihood.functions, 3, seed=2)
    task, regulariser = ended(net, likelihood, head, 50.0), KroneckerCurvature(2.0)
    regulariser.end(task, x, torch.zeros(B), generator)
    shift = {name: randn(*value.shape, seed=3) for name, value in task.theta.items()}
    theta = {name: (value.detach() + shift[name]).requires_grad_() for name, value in task.theta.items()}
    flat = torch.cat([part.flatten() for part in shift.values()])
    fisher = whole_fisher(task, x)
    value = value_at(regulariser, task, theta, x)
    torch.testing.assert_close(value.detach(), 2.0 * 0.5 * flat @ fisher @ flat, rtol=1e-9, atol=1e-9)
    found = torch.cat([one.flatten() for one in torch.autograd.grad(value, list(theta.values()))])
    torch.testing.assert_close(found, 2.0 * fisher @ flat, rtol=1e-9, atol=1e-9)
    same = {name: part.detach().clone().requires_grad_() for name, part in task.theta.items()}
    value = value_at(regulariser, task, same, x)
    assert float(value.detach()) == 0.0
    assert all(not one.any() for one in torch.autograd.grad(value, list(same.values())))


def test_every_layer_of_a_network_has_its_own_block(generator):
    """One example: the block of each layer of an MLP is exact; moving one layer alone costs ½ δᵀ F_ll δ."""
    net, likelihood, x = MLP(3, (4, 2), seed=3).double(), models.Softmax((0, 1, 2)), randn(1, 3, seed=4)
    task = ended(net, likelihood, randn(3, 3, seed=5), 10.0)
    regulariser = KroneckerCurvature(1.0)
    regulariser.end(task, x, torch.zeros(1), generator)
    assert not regulariser.precision, "no weight is left to the diagonal"
    fisher, at = whole_fisher(task, x), 0
    for weight, bias in (("layers.1.weight", "layers.1.bias"), ("layers.3.weight", "layers.3.bias")):
        size = task.theta[weight].numel() + task.theta[bias].numel()
        shift = randn(size, seed=6)
        cut = task.theta[weight].numel()
        parts = {weight: shift[:cut].view_as(task.theta[weight]), bias: shift[cut:]}
        theta = {name: value.detach() + parts.get(name, 0.0) for name, value in task.theta.items()}
        block = fisher[at : at + size, at : at + size]
        torch.testing.assert_close(value_at(regulariser, task, theta, x), 0.5 * shift @ block @ shift)
        at += size


def test_the_trace_over_examples_is_that_of_the_fisher_information(generator):
    """tr(A ⊗ G) = tr A · tr G equals Σ_b ‖a_b‖² Σ_r w ‖g‖² where inputs have one length: brute force over examples."""
    net, likelihood = nn.Linear(3, 2, bias=False).double(), models.Softmax((0, 1, 2))
    x = torch.nn.functional.normalize(randn(7, 3, seed=1))
    task = ended(net, likelihood, randn(3, 3, seed=2), 20.0)
    A, G = (part["weight"] for part in kronecker_factors(task, x, generator))
    torch.testing.assert_close(A.trace() * G.trace(), whole_fisher(task, x).trace())
    torch.testing.assert_close(A, 20.0 / 7 * x.mT @ x)


SHAPES = [
    {"stride": 2, "padding": 1, "dilation": 1},
    {"stride": (1, 2), "padding": (0, 2), "dilation": (2, 1)},
    {"padding": "same"},
    {"padding": "valid", "bias": False},
]


@pytest.mark.parametrize("settings", SHAPES)
def test_the_rows_of_a_convolution_are_the_patches_under_its_kernel(settings, generator):
    """Against the convolution itself: a position's output is the kernel times its row; A and G sum over positions."""
    conv = nn.Conv2d(2, 3, (3, 3) if settings["padding"] == "same" else (3, 2), **settings).double()
    net, x = nn.Sequential(conv, nn.Flatten(), nn.LazyLinear(4).double()), randn(5, 2, 6, 7, seed=1)
    net(x)
    likelihood = models.Softmax((0, 1, 2))
    task = ended(net, likelihood, randn(3, 5, seed=2), 40.0)
    A, G = (part["0.weight"] for part in kronecker_factors(task, x, generator))
    maps = conv(x).detach().requires_grad_()  # [B, 3, ...]
    padded = x
    if settings["padding"] == "same":
        padded = nn.functional.pad(x, [1, 1, 1, 1])
    elif settings["padding"] != "valid":
        side = settings["padding"] if isinstance(settings["padding"], tuple) else (settings["padding"],) * 2
        padded = nn.functional.pad(x, [side[1], side[1], side[0], side[0]])
    steps, spread = ((n, n) if isinstance(n, int) else n for n in (conv.stride, conv.dilation))
    rows = []
    for b in range(5):
        for i in range(maps.shape[2]):
            for j in range(maps.shape[3]):
                top, left = i * steps[0], j * steps[1]
                patch = padded[
                    b,
                    :,
                    top : top + 2 * spread[0] + 1 : spread[0],
                    left : left + (conv.kernel_size[1] - 1) * spread[1] + 1 : spread[1],
                ]
                rows.append(patch.flatten() if conv.bias is None else torch.cat([patch.flatten(), randn(1) ** 0]))
    a = torch.stack(rows)
    weight = conv.weight.flatten(1) if conv.bias is None else torch.cat([conv.weight.flatten(1), conv.bias[:, None]], 1)
    torch.testing.assert_close(a @ weight.mT, maps.movedim(1, -1).flatten(0, -2))
    torch.testing.assert_close(A, a.mT @ a * 40.0 / 5)
    f = net[1:](maps) @ task.head[:, :-1].mT + task.head[:, -1]
    g = 0.0
    for c in range(3):
        (one,) = torch.autograd.grad(f.log_softmax(1)[:, c].sum(), maps, retain_graph=True)
        each = one.movedim(1, -1)
        weighted = each * f.softmax(1)[:, c].reshape(-1, 1, 1, 1)
        g = g + weighted.flatten(0, -2).mT @ each.flatten(0, -2)
    torch.testing.assert_close(G, g.detach() / len(a))


def test_examples_in_parts_have_the_factors_of_all_together(monkeypatch, generator):
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3)).double()
    task = ended(net, models.Bernoulli((0, 1)), randn(1, 4, seed=2), 40.0)
    x = randn(7, 1, 4, 4, seed=1)
    whole = kronecker_factors(task, x, generator)
    monkeypatch.setattr("frcl.regularisers.kronecker.MAPS", 3)
    for one, other in zip(whole, kronecker_factors(task, x, generator), strict=True):
        assert one.keys() == other.keys() == {"0.weight", "3.weight"}
        for name in one:
            torch.testing.assert_close(one[name], other[name])


def test_many_classes_have_the_factors_of_the_gradients_one_by_one_on_average(monkeypatch, generator):
    """Random sums of the values against all values: the mean over many draws, and each draw where examples are many."""
    net, likelihood = MLP(3, (4, 2), seed=3).double(), models.Softmax(tuple(range(12)))
    task, x = ended(net, likelihood, randn(12, 3, seed=2), 40.0), randn(400, 3, seed=1)
    found = kronecker_factors(task, x, generator)
    mean = torch.stack([kronecker_factors(task, x, generator).outputs["layers.1.weight"] for _ in range(50)]).mean(0)
    monkeypatch.setattr("frcl.regularisers.kronecker.VALUES", 12)
    exact = kronecker_factors(task, x, generator)
    size = float(exact.outputs["layers.1.weight"].norm())
    assert float((mean - exact.outputs["layers.1.weight"]).norm()) < 0.02 * size
    for name, G in exact.outputs.items():
        assert 0 < float((found.outputs[name] - G).norm()) < 0.15 * float(G.norm())
        torch.testing.assert_close(found.inputs[name], exact.inputs[name])


def test_random_sums_have_the_fisher_information_of_an_example(generator):
    values, weights = randn(1, 5, seed=1).expand(20_000, 5), randn(1, 5, seed=2).softmax(1).expand(20_000, 5)
    sums, shares = random_sums(values, weights, generator)
    torch.testing.assert_close(
        (sums.square() * shares).sum(1).mean(), (weights * values.square()).sum(1)[0], rtol=0.02, atol=0.0
    )


def test_merged_factors_have_the_trace_of_the_sum_and_equal_it_where_the_outputs_agree():
    A, B, G, H = (
        m @ m.mT for m in (randn(3, 3, seed=1), randn(3, 3, seed=2), randn(2, 2, seed=3), randn(2, 2, seed=4))
    )
    for other, equal in ((H, False), (0.3 * G, True)):
        first = merged(Factors({}, {}), Factors({"w": A}, {"w": G}), 0.5)
        both = merged(first, Factors({"w": B}, {"w": other}), 0.5)
        found = torch.kron(both.inputs["w"], both.outputs["w"])
        total = 0.5 * torch.kron(A, G) + torch.kron(B, other)
        torch.testing.assert_close(found.trace(), total.trace())
        assert torch.allclose(found, total) == equal
        sizes = 0.5 * A.trace() * G.trace(), B.trace() * other.trace()
        mean = (sizes[0] * G / G.trace() + sizes[1] * other / other.trace()) / sum(sizes)
        torch.testing.assert_close(both.outputs["w"], mean)


class Convolved(nn.Module):
    """A convolution and a linear layer that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.linear = nn.Conv1d(1, 2, 2), nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.linear(self.conv(x[:, None]).mT)).sum(1)


def test_other_weights_have_the_diagonal_of_curvature(generator):
    net, likelihood, x = Convolved().double(), models.Softmax((0, 1, 2)), randn(6, 4, seed=1)
    task = ended(net, likelihood, randn(3, 3, seed=2), 30.0)
    own, diagonal = KroneckerCurvature(1.0), Curvature(1.0)
    own.end(task, x, torch.zeros(6), generator)
    diagonal.end(task, x, torch.zeros(6), generator)
    assert set(own.precision) == {"conv.weight", "conv.bias"}
    assert set(own.inputs) == {"linear.weight"}
    for name, value in own.precision.items():
        torch.testing.assert_close(value, diagonal.precision[name])
    theta = {name: value.detach() + 1.0 * name.startswith("conv") for name, value in task.theta.items()}
    torch.testing.assert_close(value_at(own, task, theta, x), value_at(diagonal, task, theta, x))


def test_a_learner_with_it_saves_resumes_and_trains_several_seeds_alike(tmp_path):
    x = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
    tasks = [(x, (x[:, 0] > 0).long()), (x, (x[:, 1] > 0).long()), (x, (x[:, 2] > 0).long())]

    def learner() -> frcl.FRCL:
        return frcl.FRCL(
            MLP(4, (8, 5), seed=1), points=4, steps=30, batch_size=20, curvature=3.0,
            curvature_structure="kronecker", fisher_examples=30,
        )  # fmt: skip

    whole, half = learner(), learner()
    for one in tasks[:2]:
        whole.fit(*one)
        half.fit(*one)
    half.save(tmp_path / "half")
    loaded = frcl.load(tmp_path / "half", MLP(4, (8, 5), seed=2))
    for one in (whole, loaded):
        one.fit(*tasks[2])
    assert torch.equal(whole.predict(x, 0).probs, loaded.predict(x, 0).probs)
    free = frcl.FRCL(MLP(4, (8, 5), seed=1), points=4, steps=30, batch_size=20)
    for one in tasks:
        free.fit(*one)
    assert not torch.equal(whole.predict(x, 0).probs, free.predict(x, 0).probs)


def test_layers_may_be_frozen_and_thawed_between_tasks():
    x = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
    learner = frcl.FRCL(
        MLP(4, (8, 5), seed=1), points=4, steps=5, curvature=1.0, curvature_structure="kronecker", fisher_examples=20
    )
    for frozen in ((), ("layers.1.bias",), ("layers.1.weight", "layers.1.bias"), ()):
        for name, value in learner.net.named_parameters():
            value.requires_grad_(name not in frozen)
        learner.fit(x, (x[:, 0] > 0).long())
    (one,) = [each for each in learner.regularisers if each.name == "kronecker-curvature"]
    assert set(one.precision) == {"layers.1.weight"}, "of the task in which its bias was frozen"
    assert {name: len(A) for name, A in one.inputs.items()} == {"layers.1.weight": 5, "layers.3.weight": 9}
