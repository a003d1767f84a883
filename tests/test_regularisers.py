"""The regularisers beside the paper's KL, as formulas: each against a plain loop over tasks, without padding."""

import itertools
from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Independent, Normal, kl_divergence
from torch.func import functional_call

from frcl import MLP, CurrentInputs, Curvature, MemoryTargets
from frcl import likelihoods as models
from frcl.regularisers.fisher import diagonal_fisher
from frcl.regularisers.heads import HeadBlock, divergence, functions_at, make_block
from frcl.regularisers.protocol import FeatureMap, Step, Task
from frcl.regularisers.quadratic import quadratic, running_sum
from frcl.trees import Tree, tree_map

D = torch.float64
K, B = 5, 7
KINDS = ("bernoulli", "softmax", "gaussian", "softmax", "gaussian")
FUNCTIONS, POINTS, SIZES = (1, 4, 3, 2, 1), (3, 5, 2, 4, 1), (90.0, 40.0, 7.0, 1000.0, 55.0)


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=D)


@dataclass(frozen=True)
class Kept:
    """A past task as a regulariser sees it."""

    likelihood: models.Likelihood
    head: Tensor
    likelihood_params: dict[str, Tensor]
    size: float = 100
    belief: object = None


def kept(kind: str, head: Tensor, variance: Tensor | None = None) -> Kept:
    labels = tuple(range(max(2, len(head))))
    match kind:
        case "bernoulli":
            return Kept(models.Bernoulli((0, 1)), head, {})
        case "softmax":
            return Kept(models.Softmax(labels), head, {})
        case _:
            return Kept(models.Gaussian(len(head)), head, {"log_noise": variance.log()})


def current_inputs(
    Phi_old: Tensor, Phi: Tensor, block: HeadBlock, heads: Tensor, index: Tensor | None = None
) -> Tensor:
    """The penalty of CurrentInputs(1) where the old and the new network give these features."""
    step = Step(
        features=lambda theta, x: Phi_old, theta={}, head=heads, heads=heads, x=Phi, y=Phi, Phi=Phi, Phi_z=None,
        tasks=index, past_tasks=len(block.heads), N=torch.tensor(1.0),
    )  # fmt: skip
    return CurrentInputs(1.0).penalty(step, ({}, block, None), ())


def memory_targets(Phi_z: Tensor, constants: Tree, heads: Tensor, index: Tensor | None = None) -> Tensor:
    """The penalty of MemoryTargets(1) with these features at the points in use, and heads of all tasks."""
    step = Step(
        features=None, theta={}, head=heads, heads=heads, x=Phi_z, y=Phi_z, Phi=Phi_z, Phi_z=Phi_z, tasks=index,
        past_tasks=len(heads), N=torch.tensor(1.0),
    )  # fmt: skip
    return MemoryTargets(1.0).penalty(step, constants, ())


def apart(kind: str, old: Tensor, new: Tensor, variance: Tensor) -> Tensor:
    """D at one input from torch.distributions; functions [C] each."""
    match kind:
        case "bernoulli":
            return kl_divergence(Bernoulli(logits=old[0]), Bernoulli(logits=new[0]))
        case "softmax":
            return kl_divergence(Categorical(logits=old), Categorical(logits=new))
        case _:
            return kl_divergence(*(Independent(Normal(f, variance.sqrt()), 1) for f in (old, new)))


class Setting:
    """Five tasks of different kinds, functions and points, as a block and one by one."""

    def __init__(self) -> None:
        self.old = [randn(C, K, seed=10 + i) for i, C in enumerate(FUNCTIONS)]
        self.new = [head + 0.3 * randn(*head.shape, seed=20 + i) for i, head in enumerate(self.old)]
        self.variance = [0.2 + randn(C, seed=30 + i).square() for i, C in enumerate(FUNCTIONS)]
        self.means = [randn(C, M, seed=40 + i) for i, (C, M) in enumerate(zip(FUNCTIONS, POINTS, strict=True))]
        self.Phi_z = [randn(M, K, seed=50 + i) for i, M in enumerate(POINTS)]
        self.Phi_old, self.Phi = randn(B, K, seed=1), randn(B, K, seed=2)
        self.block, moved = (
            make_block([kept(*one) for one in zip(KINDS, heads, self.variance, strict=True)])
            for heads in (self.old, self.new)
        )
        self.moved = moved.heads
        past = [
            replace(kept(*one), size=size, belief=SimpleNamespace(mean=mean))
            for *one, size, mean in zip(KINDS, self.old, self.variance, SIZES, self.means, strict=True)
        ]
        self.targets = MemoryTargets(1.0).constants(Task(None, {}, {}, past, past[0].likelihood, 1.0))
        M = max(POINTS)
        self.padded = torch.stack([torch.cat([Phi, Phi[:1].expand(M - len(Phi), K)]) for Phi in self.Phi_z])

    def current_inputs(self, task: int) -> Tensor:
        """(1/B) Σ_b D of one task."""
        pairs = zip(self.Phi_old @ self.old[task].mT, self.Phi @ self.new[task].mT, strict=True)
        return sum(apart(KINDS[task], a, b, self.variance[task]) for a, b in pairs) / B

    def memory_targets(self, task: int) -> Tensor:
        """(N_i/M_i) Σ_j D of one task."""
        pairs = zip(self.means[task].mT, self.Phi_z[task] @ self.new[task].mT, strict=True)
        return SIZES[task] / POINTS[task] * sum(apart(KINDS[task], a, b, self.variance[task]) for a, b in pairs)


def at(tree, index: Tensor | None):
    return tree if index is None else tree_map(lambda part: part[index], tree)


@pytest.fixture
def setting() -> Setting:
    return Setting()


def test_the_divergence_is_that_of_the_predictive_distributions(setting):
    old, new = functions_at(setting.Phi_old, setting.block.heads), functions_at(setting.Phi, setting.moved)
    found = divergence(old, new, setting.block)
    assert found.shape == (5, B)
    for task, kind in enumerate(KINDS):
        for b in range(B):
            values = (setting.Phi_old[b] @ setting.old[task].mT, setting.Phi[b] @ setting.new[task].mT)
            expected = apart(kind, *values, setting.variance[task])
            torch.testing.assert_close(found[task, b], expected, rtol=1e-10, atol=1e-12)


def test_two_functions_of_a_softmax_are_one_of_a_bernoulli():
    """softmax [f, 0], and softmax [a, b] with f = a − b."""
    one, two = randn(1, K, seed=1), randn(1, K, seed=2)
    pairs = [torch.cat([head + one, one]) for head in (one, two)]
    binary, softmax = make_block([kept("bernoulli", one)]), make_block([kept("softmax", pairs[0])])
    Phi = randn(B, K, seed=3)
    values = []
    for block, heads in ((binary, two), (softmax, pairs[1])):
        values.append(divergence(functions_at(Phi, block.heads), functions_at(Phi, heads[None]), block))
    torch.testing.assert_close(values[0], values[1], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("tasks", [None, [3], [4, 1], [2, 0, 4]])
def test_values_and_gradients_are_those_of_a_loop(setting, tasks):
    """Also through the features; padded rows of the heads, and what stands at padded points, get no gradient."""
    index = None if tasks is None else torch.tensor(tasks)
    looked_at = range(5) if tasks is None else tasks
    leaves = {"Phi": setting.Phi, "moved": setting.moved, "padded": setting.padded}
    for value in (*leaves.values(), *setting.new, *setting.Phi_z):
        value.requires_grad_()
    scale = 5 / len(looked_at)
    ours = current_inputs(setting.Phi_old, setting.Phi, setting.block, setting.moved, index)
    ours = ours + 0.01 * memory_targets(at(setting.padded, index), setting.targets, setting.moved, index)
    loop = scale * sum(setting.current_inputs(i) + 0.01 * setting.memory_targets(i) for i in looked_at)
    torch.testing.assert_close(ours, loop, rtol=1e-10, atol=0)
    found = dict(zip(leaves, torch.autograd.grad(ours, list(leaves.values())), strict=True))
    gradients = torch.autograd.grad(loop, [setting.Phi, *setting.new, *setting.Phi_z], materialize_grads=True)
    torch.testing.assert_close(found["Phi"], gradients[0], rtol=1e-10, atol=1e-12)
    for i, C in enumerate(FUNCTIONS):
        torch.testing.assert_close(found["moved"][i, :C], gradients[1 + i], rtol=1e-10, atol=1e-12)
        assert not found["moved"][i, C:].any()
        torch.testing.assert_close(found["padded"][i, : POINTS[i]], gradients[6 + i], rtol=1e-10, atol=1e-12)
        assert not found["padded"][i, POINTS[i] :].any()


@pytest.mark.parametrize("count", [1, 2, 4])
def test_the_mean_over_all_subsets_is_the_whole(setting, count):
    def both(index: Tensor | None) -> Tensor:
        return torch.stack([
            current_inputs(setting.Phi_old, setting.Phi, setting.block, setting.moved, index),
            memory_targets(at(setting.padded, index), setting.targets, setting.moved, index),
        ])  # fmt: skip

    subsets = [both(torch.tensor(chosen)) for chosen in itertools.combinations(range(5), count)]
    torch.testing.assert_close(torch.stack(subsets).mean(0), both(None), rtol=1e-12, atol=0)


def test_equal_functions_are_at_distance_zero_with_zero_gradient(setting):
    Phi, heads = setting.Phi.requires_grad_(), setting.block.heads.clone().requires_grad_()
    value = current_inputs(setting.Phi.detach(), Phi, setting.block, heads)
    assert abs(float(value.detach())) < 1e-14
    for one_gradient in torch.autograd.grad(value, (Phi, heads)):
        assert float(one_gradient.abs().max()) < 1e-14


def test_far_apart_functions_stay_finite():
    block = make_block([kept("bernoulli", 1e4 * torch.ones(1, 2)), kept("softmax", -1e4 * torch.ones(3, 2))])
    heads = (-block.heads).requires_grad_()
    value = current_inputs(torch.ones(4, 2), torch.ones(4, 2), block, heads)
    assert value.isfinite()
    assert torch.autograd.grad(value, heads)[0].isfinite().all()


def test_old_functions_are_kept_where_inputs_look_like_those_of_their_task(generator):
    """Each divergence is weighted by the correlation of the input with the mean input of the task, by numpy."""
    net = MLP(20, (4, 3), seed=1).double()
    data = [randn(9, 20, seed=i) + 2 * randn(20, seed=10 + i) for i in range(2)]
    past = [kept("softmax", randn(3, 4, seed=20)), kept("softmax", randn(2, 4, seed=21))]
    task = Task(FeatureMap(net), dict(net.named_parameters()), {}, past, past[0].likelihood, 50.0)
    regulariser = CurrentInputs(0.7, trust=True)
    for x in data:
        regulariser.end(task, x, torch.zeros(len(x)), generator)
    regulariser.begin(task)
    x = torch.cat([data[0][:3], -data[1][:2], randn(3, 20, seed=30)])
    theta = {name: value.detach() + 0.1 for name, value in task.theta.items()}
    now, then = task.features(theta, x), task.features(task.theta, x).detach()
    step = Step(task.features, theta, past[0].head, None, x, x, now, None, None, 2, torch.tensor(50.0, dtype=D))
    expected = 0.0
    for one, mine in zip(past, data, strict=True):
        for b in range(len(x)):
            trust = max(0.0, float(np.corrcoef(x[b].numpy(), mine.mean(0).numpy())[0, 1]))
            old, new = (Categorical(logits=Phi[b] @ one.head.mT) for Phi in (then, now))
            expected = expected + 0.7 * trust * kl_divergence(old, new) / len(x)
    torch.testing.assert_close(regulariser.penalty(step, regulariser.constants(task), ()), expected)
    chosen = step._replace(tasks=torch.tensor([1]))
    part = regulariser.penalty(chosen, regulariser.constants(task), ())
    assert 0 < float(part) < 2 * float(expected)
    few = CurrentInputs(0.7, trust=True)
    few.end(task, data[0][:, :5], torch.zeros(9), generator)
    assert not few.means, "five numbers say nothing of how alike two inputs are"


# -- curvature --------------------------------------------------------------------------------------------------


def tiny() -> tuple[MLP, dict[str, Tensor], Tensor]:
    net = MLP(3, (4, 2), seed=3).double()
    return net, {name: p.detach() for name, p in net.named_parameters()}, randn(6, 3, seed=4)


@pytest.mark.parametrize(("kind", "C"), [("bernoulli", 1), ("softmax", 3), ("gaussian", 2)])
def test_the_fisher_information_is_that_of_each_example_by_itself(kind, C):
    """E over y ~ p(y | x) of the squared gradient of log p(y | x), one example and one outcome at a time."""
    net, theta, x = tiny()
    head, variance = randn(C, 2, seed=5), 0.2 + randn(C, seed=6).square()

    def outputs(params: dict[str, Tensor], rows: Tensor) -> Tensor:
        return functional_call(net, params, (rows,)) @ head.mT

    model = kept(kind, head, variance)
    y = torch.zeros(6, dtype=torch.long)
    found = diagonal_fisher(outputs, theta, x, y, model.likelihood, learned=model.likelihood_params)
    expected = {name: torch.zeros_like(value) for name, value in theta.items()}
    for one in x:
        leaves = {name: value.clone().requires_grad_() for name, value in theta.items()}
        f = functional_call(net, leaves, (one[None],))[0] @ head.mT
        match kind:
            case "bernoulli":
                p = torch.sigmoid(f[0].detach())
                outcomes = [(p, Bernoulli(logits=f[0]).log_prob(p.new_ones(()))),
                            (1 - p, Bernoulli(logits=f[0]).log_prob(p.new_zeros(())))]  # fmt: skip
            case "softmax":
                outcomes = [(f.softmax(0)[c].detach(), f.log_softmax(0)[c]) for c in range(C)]
            case _:  # y = f ± s, one target at a time, has the variance of the noise
                outcomes = []
                for c, sign in itertools.product(range(C), (-1.0, 1.0)):
                    y = f.detach()[c] + sign * variance[c].sqrt()
                    outcomes.append((torch.tensor(0.5, dtype=D), Normal(f[c], variance[c].sqrt()).log_prob(y)))
        for weight, log_p in outcomes:
            gradients = torch.autograd.grad(log_p, list(leaves.values()), retain_graph=True)
            for name, one_gradient in zip(leaves, gradients, strict=True):
                expected[name] += weight * one_gradient.square() / len(x)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-10, atol=1e-12)


class Scaled(torch.nn.Module):
    """One feature, w · x: with the head v a Gaussian likelihood has the Fisher information (v x)²/s² in w."""

    def __init__(self, start: float) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.full((3,), start, dtype=D))

    def forward(self, x: Tensor) -> Tensor:
        return self.w * x


def ended(net: Scaled, head: Tensor, N: float) -> Task:
    """A regression task with noise variance 1 that ended with this head."""
    theta = dict(net.named_parameters())
    params = {"log_noise": torch.zeros(1, dtype=D)}
    return Task(FeatureMap(net), theta, {}, [], models.Gaussian(1), N, head=head, likelihood_params=params)


def test_the_anchor_runs_over_tasks_and_its_value_is_a_quadratic(generator):
    """Ω ← γ Ω + N F with F = mean of (v x)² by hand; the anchor is where the latest task ended, as a copy."""
    net, regulariser = Scaled(0.3), Curvature(2.0, decay=0.5)
    x, y = randn(5, 3, seed=1), randn(5, 1, seed=2)
    heads = [torch.tensor([[1.0, 2.0, 0.0, 0.5]], dtype=D), torch.tensor([[3.0, 0.0, 1.0, 0.1]], dtype=D)]
    information = [N * (head[0, :3] * x).square().mean(0) for head, N in zip(heads, (10.0, 20.0), strict=True)]
    regulariser.end(ended(net, heads[0], 10.0), x, y, generator)
    torch.testing.assert_close(regulariser.precision["w"], information[0])
    with torch.no_grad():
        net.w.add_(1.0)
    assert not torch.equal(regulariser.anchor["w"], net.w), "the anchor is a copy"
    regulariser.end(ended(net, heads[1], 20.0), x, y, generator)
    omega = 0.5 * information[0] + information[1]
    torch.testing.assert_close(regulariser.precision["w"], omega)
    assert torch.equal(regulariser.anchor["w"], net.w)
    shift = torch.tensor([0.1, -2.0, 3.0], dtype=D)
    for moved, expected in ((torch.zeros(3, dtype=D), 0.0), (shift, 0.5 * float((omega * shift.square()).sum()))):
        theta = {"w": (net.w.detach() + moved).requires_grad_()}
        step = Step(FeatureMap(net), theta, heads[1], None, x, y, x, None, None, 2, torch.tensor(4.0, dtype=D))
        value = regulariser.penalty(step, regulariser.constants(ended(net, heads[1], 4.0)), ())
        assert float(value.detach()) == pytest.approx(2.0 * expected / 4.0)
        torch.testing.assert_close(torch.autograd.grad(value, theta["w"])[0], 2.0 * omega * moved / 4.0)


def test_a_quadratic_is_zero_at_its_anchor_and_its_precision_runs():
    anchor, precision = {"w": torch.ones(2)}, {"w": torch.tensor([1.0, 4.0])}
    assert float(quadratic({"w": torch.ones(2)}, anchor, precision)) == 0.0
    assert float(quadratic({"w": torch.tensor([2.0, 3.0])}, anchor, precision)) == 0.5 * (1 + 16)
    after = running_sum({"v": torch.ones(1), "w": torch.ones(1)}, {"w": torch.ones(1)}, 0.5)
    assert (float(after["v"]), float(after["w"])) == (1.0, 1.5), "weights that a task did not train stay"
