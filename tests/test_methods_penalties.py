"""Each penalty by value: Fisher information, quadratic anchors, path integral, distillation, replay."""

import itertools
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import MultivariateNormal, kl_divergence

from frcl.baselines.common import Finished
from frcl.errors import DataError
from frcl.likelihoods import Bernoulli, Gaussian, Softmax
from frcl.regularisers import EWC, CurrentInputs, Curvature, FunctionalKL, MemoryTargets, PathIntegral, Replay
from frcl.regularisers.current_inputs import distillation
from frcl.regularisers.fisher import diagonal_fisher, task_information
from frcl.regularisers.heads import log_prob, make_block
from frcl.regularisers.protocol import FeatureMap, Step, Task, draw_penalties
from frcl.regularisers.quadratic import Anchor, quadratic
from frcl.regularisers.replay import Replayed
from frcl.summary import FunctionBelief
from frcl.trees import batch_axes, leaf, named_tensors, stack, tree_map
from oracles import functions, gradients

D = torch.float64
FOUR = Softmax((0, 1, 2, 3))


def likelihood(C: int) -> Softmax:
    return Softmax(tuple(range(C)))


def finished(head: Tensor, size: int = 50) -> Finished:
    return Finished(likelihood(len(head)), size, head.detach())


def ask(regulariser, task, theta, x, *, head=None, heads=None, tasks=None, draws=()):
    """The penalty of one minibatch; zero where there is none."""
    head = torch.zeros(2, 5, dtype=D) if head is None else head
    N = torch.tensor(task.N, dtype=D)
    Phi = task.features(theta, x)
    y = torch.zeros(len(x), dtype=torch.int64)
    step = Step(task.features, theta, head, heads, x, y, Phi, None, tasks, len(task.past), N)
    if isinstance(regulariser, Replay) and not isinstance(draws, Replayed):
        draws = Replayed(draws)  # the rows of each buffer
    value = regulariser.penalty(step, regulariser.constants(task), draws)
    return torch.zeros((), dtype=D) if value is None else value


def softmax_regression(params, x):
    return x @ params["W"].mT


@pytest.fixture
def regression(generator):
    """Softmax regression with a known Fisher information: (1/n) Σ x_k² p_c (1 − p_c)."""
    x = torch.randn(60, 5, generator=generator, dtype=D)
    W = torch.randn(4, 5, generator=generator, dtype=D)
    p = (x @ W.mT).softmax(1)
    exact = torch.einsum("bc,bk->ck", p * (1 - p), x.square()) / 60
    y = torch.randint(4, (60,), generator=generator)
    return {"W": W}, x, y, exact


def test_exact_fisher_equals_the_closed_form_of_softmax_regression(regression):
    params, x, y, exact = regression
    torch.testing.assert_close(diagonal_fisher(softmax_regression, params, x, y, FOUR)["W"], exact)


@pytest.mark.parametrize("mode", ["exact", "empirical"])
def test_fisher_does_not_depend_on_the_batch_size(regression, mode):
    params, x, y, _ = regression
    values = [diagonal_fisher(softmax_regression, params, x, y, FOUR, mode, chunk=size)["W"] for size in (1, 7, 60)]
    torch.testing.assert_close(values[0], values[1])
    torch.testing.assert_close(values[0], values[2])


def test_empirical_fisher_is_the_mean_squared_gradient_of_single_examples(regression):
    params, x, y, exact = regression
    W = params["W"].clone().requires_grad_()
    squares = []
    for one, label in zip(x, y, strict=True):
        (gradient,) = torch.autograd.grad(F.cross_entropy((one @ W.mT)[None], label[None]), W)
        squares.append(gradient.square())
    empirical = diagonal_fisher(softmax_regression, params, x, y, FOUR, "empirical")["W"]
    torch.testing.assert_close(empirical, torch.stack(squares).mean(0))
    assert not torch.allclose(empirical, exact, rtol=0.05)


def test_sampled_fisher_is_unbiased(regression, generator):
    params, x, y, exact = regression
    draws = [
        diagonal_fisher(softmax_regression, params, x, y, FOUR, "sampled", generator=generator)["W"] for _ in range(400)
    ]
    torch.testing.assert_close(torch.stack(draws).mean(0), exact, rtol=0.1, atol=0.01)


# -- quadratic anchors ------------------------------------------------------------------------------------


class Tiny(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 4, dtype=D)

    def forward(self, x):
        return torch.tanh(self.layer(x))


@pytest.fixture
def first(generator):
    """A task of three classes that has just ended."""
    net = Tiny()
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(torch.randn(p.shape, generator=generator, dtype=D))
    head = torch.randn(3, 5, generator=generator, dtype=D)
    return Task(FeatureMap(net), dict(net.named_parameters()), {}, (), likelihood(3), 50.0, head=head)


@pytest.fixture
def data(generator):
    return torch.randn(40, 3, generator=generator, dtype=D), torch.arange(40) % 3


def moved(params, generator, size=0.1):
    return {n: p.detach() + size * torch.randn(p.shape, generator=generator, dtype=D) for n, p in params.items()}


def after(task: Task, *, N: float = 20.0, C: int = 2) -> Task:
    """The same network when the next task, of another size, has begun."""
    return replace(task, past=[*task.past, finished(task.head, int(task.N))], likelihood=likelihood(C), N=N, head=None)


def ANCHORS():
    return {
        "ewc": EWC(3.0, 1000),
        "online": Curvature(3.0, 1.0, 1000),
        "dlp": Curvature(3.0, 1.0, 1000, prior_precision=0.5),
    }


@pytest.mark.parametrize("kind", ["ewc", "online", "dlp"])
def test_anchor_penalties_by_value(first, data, generator, kind):
    """Zero at the anchor, λ/N · ½ δᵀΩδ after a displacement δ, Ω = N_i × Fisher information of the shared weights."""
    regulariser = ANCHORS()[kind]
    regulariser.begin(first)
    regulariser.end(first, *data, generator)
    later = after(first)
    at_anchor = ask(regulariser, later, later.theta, data[0])
    assert float(at_anchor.detach()) == pytest.approx(0.0, abs=1e-14)
    net = first.features.net
    fisher = diagonal_fisher(lambda p, x: functions(net, p, first.head, x), dict(first.theta), *data, first.likelihood)
    there = moved(later.theta, generator)
    prior = 0.5 if kind == "dlp" else 0.0
    expected = sum(
        ((50.0 * fisher[n] + prior) * (there[n] - first.theta[n].detach()).square()).sum()
        for n in ("layer.weight", "layer.bias")
    )
    value = ask(regulariser, later, there, data[0])
    assert float(value) == pytest.approx(3.0 / 20.0 * 0.5 * float(expected))


def test_a_prior_on_the_head_is_dlps_alone(first, data, generator):
    head = torch.randn(2, 5, generator=generator, dtype=D)
    for kind, regulariser in ANCHORS().items():
        regulariser.begin(first)
        regulariser.end(first, *data, generator)
        value = ask(regulariser, after(first), first.theta, data[0], head=head)
        expected = 3.0 / 20.0 * 0.5 * 0.5 * float(head.square().sum()) if kind == "dlp" else 0.0
        assert float(value.detach()) == pytest.approx(expected, abs=1e-14)


def test_the_anchor_is_a_copy(first, data, generator):
    regulariser = EWC(1.0)
    regulariser.end(first, *data, generator)
    before = {n: v.clone() for n, v in named_tensors(regulariser.state())}
    with torch.no_grad():
        for p in first.theta.values():
            p.add_(1.0)
    assert len(before) == 4
    assert all(torch.equal(before[n], v) for n, v in named_tensors(regulariser.state()))
    assert float(ask(regulariser, after(first), first.theta, data[0]).detach()) > 0
    running = Curvature(1.0)
    running.end(first, *data, generator)
    with torch.no_grad():
        for p in first.theta.values():
            p.add_(1.0)
    assert float(ask(running, after(first), first.theta, data[0]).detach()) > 0


def test_old_heads_are_not_anchored(first, data, generator):
    regulariser = EWC(1.0)
    regulariser.end(first, *data, generator)
    assert {n.rsplit("/", 1)[1] for n, _ in named_tensors(regulariser.state())} == {"layer.weight", "layer.bias"}


def test_two_tasks_add_up_and_the_running_anchor_decays(first, data, generator):
    separate, running = EWC(1.0), Curvature(1.0, 0.5)
    for regulariser in (separate, running):
        regulariser.end(first, *data, generator)
    before = dict(running.precision)
    head = torch.randn(2, 5, generator=generator, dtype=D)
    second = replace(after(first), theta=moved(first.theta, generator), head=head)
    y = torch.arange(40) % 2
    for regulariser in (separate, running):
        regulariser.end(second, data[0], y, generator)
    new, _ = task_information(second, data[0], y, generator)
    for name, value in running.precision.items():
        torch.testing.assert_close(value, 0.5 * before[name] + new[name])
        assert torch.equal(running.anchor[name], second.theta[name])
    there = moved(second.theta, generator)
    parts = [quadratic(there, one.theta, one.precision) for one in separate.anchors]
    later = after(second, N=10.0)
    assert float(ask(separate, later, there, data[0])) == pytest.approx(float(sum(parts)) / 10.0)


def test_online_ewc_by_hand(first, data, generator):
    """Two tasks: the anchor is the latest θ, Ω = γ N₁F₁ + N₂F₂ with F from gradients of single examples."""
    net, gamma = first.features.net, 0.7
    running, omega, task = Curvature(3.0, gamma), {}, first
    for C in (3, 2):
        head = torch.randn(C, 5, generator=generator, dtype=D)
        task = replace(task, head=head, likelihood=likelihood(C), theta=moved(task.theta, generator))
        running.begin(task)
        running.end(task, data[0], torch.arange(40) % C, generator)
        fisher = {n: torch.zeros_like(v) for n, v in task.theta.items()}
        for x in data[0]:
            theta = {n: leaf(v) for n, v in task.theta.items()}
            log_p = functions(net, theta, head, x[None])[0].log_softmax(0)
            for c in range(C):
                g = torch.autograd.grad(log_p[c], list(theta.values()), retain_graph=True)
                for n, value in zip(theta, g, strict=True):
                    fisher[n] += log_p[c].exp().detach() * value.square() / 40
        omega = {n: gamma * omega.get(n, torch.zeros(())) + task.N * f for n, f in fisher.items()}
        anchor, task = task.theta, after(task, N=20.0)
    there = moved(anchor, generator)
    expected = sum((omega[n] * (there[n] - anchor[n]).square()).sum() for n in omega)
    assert float(ask(running, task, there, data[0])) == pytest.approx(3.0 / 20.0 * 0.5 * float(expected))


def test_merged_anchors_are_the_sum_of_the_separate_ones(first, generator):
    """Value and gradient, also where nothing holds a weight, or only one of the tasks."""
    regulariser = EWC(2.0)
    shapes = {n: p.shape for n, p in first.theta.items()}
    for task in range(3):
        anchor = {n: torch.randn(s, generator=generator, dtype=D) for n, s in shapes.items()}
        precision = {n: 100 * torch.rand(s, generator=generator, dtype=D) for n, s in shapes.items()}
        precision["layer.weight"][0] = 0.0
        precision["layer.weight"][1] *= task == 1
        regulariser.anchors.append(Anchor(anchor, precision))
    params = {n: leaf(p) for n, p in first.theta.items()}
    value = ask(regulariser, after(first, N=40.0), params, torch.zeros(1, 3, dtype=D))
    expected = sum(2.0 / 40.0 * quadratic(params, one.theta, one.precision) for one in regulariser.anchors)
    torch.testing.assert_close(value, expected)
    found, expected = gradients(value, params), gradients(expected, params)
    for name in params:
        torch.testing.assert_close(found[name], expected[name])
    assert float(found["layer.weight"][0].abs().max()) == 0.0
    assert float(found["layer.weight"][1].abs().min()) > 0.0


def test_laplace_on_softmax_regression_is_the_prior_of_the_next_task():
    """DLP without features to learn: the penalty's curvature is the Hessian of the first task's loss plus the prior."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(200, 2, generator=g, dtype=D)
    y = (x[:, 0] > 0).long()
    W = torch.zeros(2, 3, dtype=D)
    now = Task(FeatureMap(nn.Identity()), {}, {}, (), likelihood(2), 200.0, head=W)
    regulariser = Curvature(1.0, 1.0, 200, prior_precision=0.7)
    regulariser.end(now, x, y, g)
    Phi = torch.cat([x, torch.ones(200, 1, dtype=D)], 1)

    def loss(w):
        return F.cross_entropy(Phi @ w.mT, y, reduction="sum") + 0.35 * w.square().sum()

    hessian = torch.autograd.functional.hessian(loss, W).reshape(6, 6).diagonal().reshape(2, 3)
    torch.testing.assert_close(regulariser.heads[0], hessian)
    variance = torch.einsum("nk,ck,nk->nc", Phi, 1 / hessian, Phi)
    torch.testing.assert_close(regulariser.head_variance(0, Phi), variance)
    assert regulariser.head_variance(1, Phi) is None


# -- path integral --------------------------------------------------------------------------------------------


def test_path_integral_sums_to_the_loss_drop_as_the_rate_goes_to_zero():
    """Gradient flow on the full batch: Σ_j ω_j → L(start) − L(end)."""
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(30, 3, generator=g, dtype=D), torch.arange(30) % 2
    errors = []
    for lr, steps in ((0.2, 20), (0.02, 200), (0.002, 2000)):
        net = Tiny()
        with torch.no_grad():
            for p in net.parameters():
                p.copy_(torch.randn(p.shape, generator=torch.Generator().manual_seed(3), dtype=D))
        head = torch.randn(2, 5, generator=torch.Generator().manual_seed(4), dtype=D)
        shared = dict(net.named_parameters())
        now = Task(FeatureMap(net), shared, {}, (), likelihood(2), 30.0)
        path = PathIntegral(1.0, 0.1)
        path.begin(now)
        constants, losses = path.constants(now), []
        for _ in range(steps + 1):
            loss = F.cross_entropy(functions(net, shared, head, x), y)
            losses.append(float(loss.detach()))
            gradient = dict(zip(shared, torch.autograd.grad(loss, list(shared.values())), strict=True))
            if len(losses) > steps:
                break
            before = {n: p.detach().clone() for n, p in shared.items()}
            with torch.no_grad():
                for n, p in shared.items():
                    p.sub_(lr * gradient[n])
            path.follow(path.path, constants, gradient, before, {n: p.detach() for n, p in shared.items()})
        total = sum(float(value.sum()) for value in path.path.values())
        errors.append(abs(total - (losses[0] - losses[-1])))
    assert errors[2] < errors[1] < errors[0]
    assert errors[2] < 1e-3 * (losses[0] - losses[-1])


def test_importance_and_penalty_by_value(first, generator):
    path = PathIntegral(0.5, damping=0.1)
    path.begin(first)
    start = {n: v.clone() for n, v in path.start.items()}
    gradient = {n: torch.ones_like(p) for n, p in first.theta.items()}
    before = {n: p.detach().clone() for n, p in first.theta.items()}
    with torch.no_grad():
        for p in first.theta.values():
            p.sub_(0.2)
    there = {n: p.detach() for n, p in first.theta.items()}
    path.follow(path.path, path.constants(first), gradient, before, there)
    path.end(first, torch.zeros(1, 3), torch.zeros(1), generator)
    expected = 0.2 / (0.2**2 + 0.1)
    for value in path.importance.values():
        torch.testing.assert_close(value, torch.full_like(value, expected))
    later = after(first)
    path.begin(later)
    nothing = torch.zeros(1, 3, dtype=D)
    assert float(ask(path, later, later.theta, nothing).detach()) == 0.0
    there = {n: v + 0.3 for n, v in later.theta.items()}
    count = sum(v.numel() for v in start.values())
    value = ask(path, later, there, nothing)
    assert float(value.detach()) == pytest.approx(0.5 * expected * 0.09 * count)


def test_a_weight_that_went_the_wrong_way_is_not_important(first, generator):
    path = PathIntegral(1.0, 0.1)
    path.begin(first)
    same = {n: p.detach().clone() for n, p in first.theta.items()}
    gradient = {n: torch.ones_like(p) for n, p in same.items()}
    path.follow(path.path, path.constants(first), gradient, same, {n: p + 1 for n, p in same.items()})
    path.end(first, torch.zeros(1, 3), torch.zeros(1), generator)
    assert all(float(v.abs().max()) == 0.0 for v in path.importance.values())


# -- distillation ---------------------------------------------------------------------------------------------


def test_distillation_by_value_and_zero_gradient_when_student_is_teacher(generator):
    teacher = torch.randn(7, 4, generator=generator, dtype=D)
    student = teacher.clone().requires_grad_()
    value = distillation(student, teacher, 2.0, FOUR)
    value.backward()
    assert float(value.detach()) == pytest.approx(0.0, abs=1e-14)
    assert float(student.grad.abs().max()) == pytest.approx(0.0, abs=1e-14)
    other = torch.randn(7, 4, generator=generator, dtype=D)
    p, q = (other / 2).softmax(1), (teacher / 2).softmax(1)
    expected = 4.0 * (q * (q / p).log()).sum(1).mean()
    assert float(distillation(other, teacher, 2.0, FOUR)) == pytest.approx(float(expected))
    assert float(distillation(other + 5.0, teacher, 2.0, FOUR)) == pytest.approx(float(expected))


def test_lwf_holds_every_old_head_at_its_start(first, data, generator):
    """With temperature 2 the textbook loss of Li and Hoiem, Σ_i τ² KL(old/τ ‖ new/τ), tasks of different classes."""
    held = CurrentInputs(2.0, 2.0, train_heads=True)
    assert held.trains_heads
    held.begin(first)
    assert float(ask(held, first, first.theta, data[0])) == 0.0
    later = replace(after(first), head=torch.randn(2, 5, generator=generator, dtype=D))
    later = after(later)
    held.begin(later)
    old = [one.head for one in later.past]
    block = leaf(torch.stack([old[0], torch.cat([old[1], torch.zeros(1, 5, dtype=D)])]))
    live = {n: leaf(v) for n, v in later.theta.items()}
    value = ask(held, later, live, data[0], heads=block)
    found = gradients(value, {**live, "heads": block})
    assert float(value.detach()) == pytest.approx(0.0, abs=1e-14)
    assert all(float(gradient.abs().max()) < 1e-14 for gradient in found.values())
    there, net, expected = moved(later.theta, generator), first.features.net, 0.0
    heads = block.detach() + 0.1 * torch.randn(2, 3, 5, generator=generator, dtype=D)  # the padded row too
    for i, head in enumerate(old):
        q = (functions(net, later.theta, head, data[0]) / 2).softmax(1)
        p = (functions(net, there, heads[i, : len(head)], data[0]) / 2).softmax(1)
        expected += 2.0 * 4.0 * float((q * (q / p).log()).sum(1).mean().detach())
    assert float(ask(held, later, there, data[0], heads=heads)) == pytest.approx(expected)


# -- replay -----------------------------------------------------------------------------------------------------


def test_buffer_has_the_promised_size_and_balance(first, generator):
    x, y = torch.randn(90, 3, generator=generator, dtype=D), torch.tensor([0] * 70 + [1] * 15 + [2] * 5)
    buffer = Replay(points=12)
    buffer.end(first, x, y, generator)
    assert torch.bincount(buffer.y[0]).tolist() == [4, 4, 4]
    rows = {tuple(row) for row in x.tolist()}
    assert all(tuple(row) in rows for row in buffer.kept_inputs()[0].tolist())
    per_class = Replay(points=None, points_per_class=2)
    per_class.end(first, x, y, generator)
    assert torch.bincount(per_class.y[0]).tolist() == [2, 2, 2]
    with pytest.raises(DataError, match="90 examples are fewer than the 91 to keep"):
        Replay(points=91).begin(replace(first, examples=len(y)))


def test_replay_loss_is_unbiased_for_the_loss_on_all_past_data(first, generator):
    """The mean over many random buffers is (1/N) × the summed loss of the whole past task."""
    x = torch.randn(30, 3, generator=generator, dtype=D)
    y = torch.arange(30) % 3
    now = replace(first, N=30.0)
    later = after(now)
    values = []
    for _ in range(3000):
        buffer = Replay(points=6)
        buffer.end(now, x, y, generator)
        values.append(float(ask(buffer, later, first.theta, x).detach()))
    whole = F.cross_entropy(functions(first.features.net, first.theta, first.head, x), y, reduction="sum") / 20.0
    assert sum(values) / len(values) == pytest.approx(float(whole.detach()), rel=0.02)


def drawn_once(buffer, task, generator):
    """Keywords of `ask`: the tasks and rows of one step."""
    tasks = draw_penalties([], 1, len(task.past), task.tasks_per_step, generator).tasks
    draws = tree_map(lambda rows: rows[0], buffer.draw(1, len(task.past), generator))
    return {"tasks": None if tasks is None else tasks[0], "draws": draws}


def test_sub_sampled_buffers_and_joint_minibatches_are_unbiased(first, generator):
    x, y = torch.randn(30, 3, generator=generator, dtype=D), torch.arange(30) % 3
    now = replace(first, N=30.0)
    other = torch.randn(3, 5, generator=generator, dtype=D)
    later = after(replace(after(now, N=30.0), head=other))
    for options, tasks_per_step in (({"points": 9}, 1), ({"points": None, "batch": 5}, None)):
        buffer, whole = Replay(**options), Replay(points=options["points"])
        for _ in range(2):
            state = generator.get_state()
            for one in (buffer, whole):
                generator.set_state(state)
                one.end(now, x, y, generator)
        some = replace(later, tasks_per_step=tasks_per_step)
        drawn = [
            float(ask(buffer, some, first.theta, x, **drawn_once(buffer, some, generator)).detach())
            for _ in range(2000)
        ]
        expected = float(ask(whole, later, first.theta, x).detach())
        assert sum(drawn) / len(drawn) == pytest.approx(expected, rel=0.03)


@pytest.fixture
def uneven(first, generator):
    """Four tasks with different numbers of classes and of kept examples: a fifth task, and what a buffer holds."""
    classes, points, sizes = (3, 2, 5, 4), (9, 4, 7, 12), [90.0, 30.0, 50.0, 70.0]
    heads = [torch.randn(C, 5, generator=generator, dtype=D) for C in classes]
    x = [torch.randn(M, 3, generator=generator, dtype=D) for M in points]
    y = [torch.randint(C, (M,), generator=generator) for C, M in zip(classes, points, strict=True)]
    theta = {n: leaf(v) for n, v in first.theta.items()}
    task = replace(first, theta=theta, past=[finished(head) for head in heads], N=20.0)
    block = torch.stack([torch.cat([head, torch.randn(5 - len(head), 5, generator=generator, dtype=D)])
                         for head in heads])  # fmt: skip
    return task, {"x": x, "y": y, "sizes": sizes}, {**theta, "heads": leaf(block)}


def filled(kept, **options) -> Replay:
    buffer = Replay(**options)
    buffer.load({**kept, "x": [{"values": x} for x in kept["x"]]})
    return buffer


def replayed(task, kept, params, tasks, rows=None):
    """(1/N) Σ_i N_i × the mean loss on buffer i, over `tasks`, scaled up to all; with `rows`, on those examples."""
    total, theta = 0.0, {n: v for n, v in params.items() if n != "heads"}
    for i in tasks:
        own = slice(None) if rows is None else rows[i]
        head = params["heads"][i, : task.past[i].likelihood.functions]
        f = functions(task.features.net, theta, head, kept["x"][i][own])
        total = total + kept["sizes"][i] * F.cross_entropy(f, kept["y"][i][own])
    return total * (len(kept["x"]) / len(tasks)) / task.N


@pytest.mark.parametrize("tasks", [(0,), (1,), (2, 1), (3, 0), (1, 3, 2)])
def test_some_of_the_buffers_stand_for_all(uneven, tasks):
    """Points and classes that are padding count for nothing, in the value and in the gradient."""
    task, kept, params = uneven
    some = replace(task, tasks_per_step=len(tasks))
    value = ask(filled(kept, points=12), some, task.theta, kept["x"][0], heads=params["heads"],
                tasks=torch.tensor(tasks))  # fmt: skip
    expected = replayed(task, kept, params, tasks)
    torch.testing.assert_close(value, expected, rtol=1e-12, atol=0)
    found, wanted = gradients(value, params), gradients(expected, params)
    for name in params:
        torch.testing.assert_close(found[name], wanted[name], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_over_all_subsets_some_of_the_buffers_are_all_of_them(uneven, count):
    task, kept, params = uneven
    buffer, some, heads = filled(kept, points=12), replace(task, tasks_per_step=count), params["heads"]
    subsets = [torch.tensor(tasks) for tasks in itertools.combinations(range(4), count)]
    values = [ask(buffer, some, task.theta, kept["x"][0], heads=heads, tasks=tasks) for tasks in subsets]
    whole = ask(buffer, task, task.theta, kept["x"][0], heads=heads)
    torch.testing.assert_close(torch.stack(values).mean(), whole)
    torch.testing.assert_close(whole, replayed(task, kept, params, range(4)))
    drawn = draw_penalties([], 400, 4, count, torch.Generator().manual_seed(0)).tasks
    assert all(len(set(row)) == count for row in drawn.tolist())
    shares = torch.bincount(drawn.flatten(), minlength=4) / 400
    torch.testing.assert_close(shares, torch.full((4,), count / 4), rtol=0, atol=0.1)


def test_joint_minibatches_by_value(uneven, generator):
    """The rows drawn and no others, from each task its own; one row at a time in turn, the mean is the whole."""
    task, kept, params = uneven
    buffer, heads = filled(kept, points=None, batch=6), params["heads"]
    drawn = buffer.draw(50, 4, generator).rows
    assert all(rows.shape == (50, 6) for rows in drawn)
    assert [set(rows.flatten().tolist()) for rows in drawn] == [set(range(len(x))) for x in kept["x"]]
    rows = tuple(value[3] for value in drawn)
    value = ask(buffer, task, task.theta, kept["x"][0], heads=heads, draws=rows)
    torch.testing.assert_close(value, replayed(task, kept, params, range(4), rows))
    steps = range(9 * 4 * 7)  # a multiple of the size of every buffer
    turns = [tuple(torch.tensor([t % len(x)]) for x in kept["x"]) for t in steps]
    values = [ask(buffer, task, task.theta, kept["x"][0], heads=heads, draws=turn).detach() for turn in turns]
    torch.testing.assert_close(torch.stack(values).mean(), replayed(task, kept, params, range(4)).detach())


# -- heads of past tasks ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kept:
    """A past task with inducing inputs, as FRCL keeps it."""

    likelihood: Any
    head: Tensor
    size: int
    likelihood_params: dict[str, Tensor] = field(default_factory=dict)
    belief: Any = None


@pytest.fixture
def mixed(generator):
    """Past tasks with four likelihoods, numbers of functions and of points; their features at the points."""
    kinds = [Bernoulli((0, 1)), likelihood(4), Gaussian(3), likelihood(2), Gaussian(1)]
    past, Phi_z = [], []
    for kind, M, size in zip(kinds, (3, 5, 2, 4, 1), (90, 40, 7, 1000, 55), strict=True):
        C = kind.functions
        noise = {
            n: 0.3 + torch.rand(v.shape, generator=generator, dtype=D) for n, v in kind.initial_parameters().items()
        }
        belief = SimpleNamespace(mean=torch.randn(C, M, generator=generator, dtype=D))
        past.append(Kept(kind, torch.randn(C, 5, generator=generator, dtype=D), size, noise, belief))
        Phi_z.append(torch.randn(M, 5, generator=generator, dtype=D))
    return past, Phi_z


def between(one: Kept, old: Tensor, new: Tensor) -> Tensor:
    """D of one task at each input, by its own likelihood alone, without padding."""
    params = {name: value[None] for name, value in one.likelihood_params.items()}
    return one.likelihood.divergence(old, new, torch.ones(1, one.likelihood.functions, dtype=D), params)


@pytest.mark.parametrize("tasks", [None, (2,), (4, 0), (3, 1, 2)])
@pytest.mark.parametrize("kind", ["current-inputs", "memory-targets"])
def test_functions_are_held_as_a_loop_over_tasks_says(first, mixed, generator, kind, tasks):
    """Value and gradient; tasks of other likelihoods, padded functions and padded points count for nothing."""
    past, Phi_z = mixed
    x = torch.randn(7, 3, generator=generator, dtype=D)
    task = replace(first, past=past, N=20.0)
    regulariser = {"current-inputs": CurrentInputs(0.7, 1.5), "memory-targets": MemoryTargets(0.7)}[kind]
    regulariser.begin(task)
    there = {n: leaf(v) for n, v in moved(first.theta, generator).items()}
    heads = leaf(torch.randn(5, 4, 5, generator=generator, dtype=D))  # padded rows are not zero
    chosen = range(5) if tasks is None else tasks
    points = torch.stack([torch.cat([Phi, Phi[:1].expand(5 - len(Phi), 5)]) for Phi in Phi_z])
    index = None if tasks is None else torch.tensor(tasks)
    step = Step(
        task.features, there, torch.zeros(2, 5, dtype=D), heads, x, torch.zeros(7), task.features(there, x),
        points if index is None else points[index], index, 5, torch.tensor(20.0, dtype=D),
    )  # fmt: skip
    value = regulariser.penalty(step, regulariser.constants(task), ())
    expected = 0.0
    for i in chosen:
        one, head = past[i], heads[i, : past[i].likelihood.functions]
        if kind == "current-inputs":
            old = functions(task.features.net, first.theta, one.head, x).detach()
            apart = between(one, old / 1.5, functions(task.features.net, there, head, x) / 1.5)
            expected = expected + 0.7 * 1.5**2 * apart.mean()
        else:
            apart = between(one, one.belief.mean.mT, Phi_z[i] @ head.mT)
            expected = expected + 0.7 * one.size / len(Phi_z[i]) * apart.sum() / 20.0
    expected = expected * 5 / len(chosen)
    torch.testing.assert_close(value, expected)
    params = {**there, "heads": heads}
    found, wanted = gradients(value, params), gradients(expected, params)
    for name in params:
        torch.testing.assert_close(found[name], wanted[name])


@pytest.mark.parametrize("tasks", [None, (1,), (2, 0)])
def test_the_functional_kl_is_a_sum_over_tasks_and_functions(first, mixed, generator, tasks):
    """weight · T/k · Σ_i Σ_c KL(q(u_ic) ‖ N(0, σ_w² ΦΦᵀ + σ² I)) / N, by torch.distributions."""
    past, at = [], [torch.randn(M, 5, generator=generator, dtype=D) for M in (3, 5, 2)]
    for one, Phi in zip(mixed[0], at, strict=False):
        C, M = len(one.head), len(Phi)
        mean, factor = (torch.randn(*shape, generator=generator, dtype=D) for shape in ((C, M), (C, M, M)))
        past.append(replace(one, belief=FunctionBelief(mean, factor.tril(), 0.1, 0.1, 0.8)))
    nothing, index = torch.zeros(1, 5, dtype=D), None if tasks is None else torch.tensor(tasks)
    points = torch.stack([torch.cat([Phi, Phi[:1].expand(5 - len(Phi), 5)]) for Phi in at])
    Phi_z = points if index is None else points[index]
    step = Step(
        first.features, {}, nothing, None, nothing, nothing, nothing, Phi_z, index, 3, torch.tensor(20.0, dtype=D)
    )
    regulariser, expected, chosen = FunctionalKL(0.7), 0.0, range(3) if tasks is None else tasks
    value = regulariser.penalty(step, regulariser.constants(replace(first, past=past)), ())
    for i in chosen:
        noise, belief = 0.1 * torch.eye(len(at[i]), dtype=D), past[i].belief
        prior = MultivariateNormal(torch.zeros(len(at[i]), dtype=D), 0.64 * at[i] @ at[i].mT + noise)
        q = MultivariateNormal(belief.mean, belief.factor @ belief.factor.mT + noise)
        expected += 0.7 / 20.0 * float(kl_divergence(q, prior).sum()) * 3 / len(chosen)
    assert float(value) == pytest.approx(expected)


def test_log_probabilities_are_those_of_each_task_alone(mixed, generator):
    """Tasks with classes of two likelihoods; a task counts for itself alone, padded classes not at all."""
    past = [mixed[0][i] for i in (0, 1, 3)]
    f = torch.randn(3, 6, 4, generator=generator, dtype=D)
    y = torch.stack([torch.arange(6) % len(one.likelihood.classes) for one in past])
    found = log_prob(f, y, make_block(past))
    for i, one in enumerate(past):
        torch.testing.assert_close(found[i], one.likelihood.log_prob(f[i, :, : len(one.head)], y[i], {}))


def test_padded_rows_of_heads_are_zero_and_get_no_gradient(first, mixed):
    block, heads = make_block(mixed[0]), leaf(torch.ones(5, 4, 5, dtype=D))
    nothing = torch.zeros(1, 5, dtype=D)
    step = Step(first.features, {}, nothing, heads, nothing, nothing, nothing, None, None, 5, torch.tensor(1.0))
    now = block.now(step)
    for rows, one in zip(now, mixed[0], strict=True):
        assert bool((rows[: len(one.head)] == 1).all())
        assert not rows[len(one.head) :].any()
    (gradient,) = torch.autograd.grad(now.sum(), heads)
    assert torch.equal(gradient, now)


def test_where_old_functions_are_held_the_beginning_is_a_copy(first, data):
    held, later = CurrentInputs(1.0), after(first)
    held.begin(later)
    constants = held.constants(later)
    with torch.no_grad():
        for p in first.theta.values():
            p.add_(1.0)
    assert float(ask(held, later, first.theta, data[0]).detach()) > 0
    assert not torch.equal(constants[0]["layer.bias"], first.theta["layer.bias"])


# -- many seeds at once -------------------------------------------------------------------------------------------

KINDS = {
    "ewc": lambda: EWC(3.0),
    "online": lambda: Curvature(3.0, 0.5),
    "dlp": lambda: Curvature(3.0, 1.0, prior_precision=0.5),
    "si": lambda: PathIntegral(3.0, 0.1),
    "lwf": lambda: CurrentInputs(3.0, 2.0, train_heads=True),
    "replay": lambda: Replay(points=6),
    "replay some": lambda: Replay(points=None, points_per_class=2),
    "joint": lambda: Replay(points=None, batch=4),
}


def grown(kind, first, seed):
    """A regulariser with two tasks behind it, three and two classes, in the third; and a point to ask it at."""
    g = torch.Generator().manual_seed(seed)
    regulariser = KINDS[kind]()
    task = replace(first, past=[], tasks_per_step=1 if kind == "replay some" else None)
    for number, C in enumerate((3, 2, 3)):
        theta, head = moved(task.theta, g), torch.randn(C, 5, generator=g, dtype=D)
        task = replace(task, theta=theta, likelihood=likelihood(C), N=50.0 + seed + number, head=None)
        regulariser.begin(task)
        if number == 2:
            block = torch.stack(
                [one.head if len(one.head) == 3 else F.pad(one.head, (0, 0, 0, 1)) for one in task.past]
            )
            return regulariser, task, {**moved(theta, g), "head": head, "heads": moved({"heads": block}, g)["heads"]}
        further = moved(theta, g)
        if regulariser.carries:
            regulariser.follow(regulariser.path, regulariser.constants(task), moved(theta, g), theta, further)
        task = replace(task, theta=further, head=head)
        x, y = torch.randn(30, 3, generator=g, dtype=D), torch.arange(30) % C
        regulariser.end(task, x, y, g)
        task = after(task)
    raise AssertionError


@pytest.mark.parametrize("kind", KINDS)
def test_penalties_of_many_seeds_at_once_are_those_one_by_one(first, generator, kind):
    each = [grown(kind, first, seed) for seed in range(3)]
    regulariser, task, _ = each[0]
    x = torch.randn(3, 8, 3, generator=generator, dtype=D)
    drawn = [drawn_once(one, own, generator) for one, own, _ in each]
    constants = [(one.constants(own), torch.tensor(own.N, dtype=D)) for one, own, _ in each]

    def penalty(params, constants, x, drawn):
        theta = {n: v for n, v in params.items() if n not in ("head", "heads")}
        Phi, y = task.features(theta, x), torch.zeros(len(x), dtype=torch.int64)
        step = Step(
            task.features, theta, params["head"], params["heads"], x, y, Phi, None, drawn["tasks"], 2, constants[1]
        )
        return regulariser.penalty(step, constants[0], drawn["draws"])

    params = {name: leaf(value) for name, value in stack([at for _, _, at in each]).items()}
    arguments = (params, stack(constants), x, stack(drawn))
    values = torch.vmap(penalty, in_dims=tuple(batch_axes(one) for one in arguments))(*arguments)
    found = gradients(values.sum(), params)
    for i, (_, _, own) in enumerate(each):
        lone = {name: leaf(value) for name, value in own.items()}
        value = penalty(lone, constants[i], x[i], drawn[i])
        torch.testing.assert_close(values[i], value)
        for name, gradient in gradients(value, lone).items():
            torch.testing.assert_close(found[name][i], gradient)
    assert float(values.detach().abs().min()) > 0
    assert len(set(values.tolist())) == 3
