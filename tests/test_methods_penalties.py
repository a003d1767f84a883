"""Each penalty by value: Fisher information, quadratic anchors, path integral, distillation, replay."""

import itertools
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from frcl.engine.tensors import leaf
from frcl.regularisers.distillation import Distillation, distillation
from torch import nn

from frcl import MLP
from frcl.baselines.common import initial_head
from frcl.baselines.options import FinetuneOptions, JointOptions, SIOptions
from frcl.baselines.penalised import Penalised
from frcl.errors import DataError
from frcl.methods import default_options, make_learner
from frcl.regularisers.fisher import diagonal_fisher
from frcl.regularisers.path import PathIntegral
from frcl.regularisers.protocol import Heads, Moment, Place
from frcl.regularisers.quadratic import FisherRecipe, RunningAnchor, SeparateAnchors, quadratic
from frcl.regularisers.replay import Buffer
from streams import blobs

D = torch.float64


def constants_of(regulariser, now):
    """What the learner gives a penalty to read."""
    return {"N": torch.tensor(now.N, dtype=D), **regulariser.constants()}


def ask(regulariser, now, params, x, generator=None, **noise):
    """The penalty of one minibatch, with the noise given or else drawn."""
    noise = noise or {name: row[0] for name, row in regulariser.draw(1, generator).items()}
    return regulariser.penalty(Place(now.model, now.task), params, constants_of(regulariser, now), x, noise)


def gradients(value, params):
    """By name, zero where the value does not depend on it."""
    found = torch.autograd.grad(value, list(params.values()), allow_unused=True, materialize_grads=True)
    return dict(zip(params, found, strict=True))


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
    torch.testing.assert_close(diagonal_fisher(softmax_regression, params, x, y)["W"], exact)


@pytest.mark.parametrize("mode", ["exact", "empirical"])
def test_fisher_does_not_depend_on_the_batch_size(regression, mode):
    params, x, y, _ = regression
    values = [diagonal_fisher(softmax_regression, params, x, y, mode, chunk=size)["W"] for size in (1, 7, 60)]
    torch.testing.assert_close(values[0], values[1])
    torch.testing.assert_close(values[0], values[2])


def test_empirical_fisher_is_the_mean_squared_gradient_of_single_examples(regression):
    params, x, y, exact = regression
    W = params["W"].clone().requires_grad_()
    squares = []
    for one, label in zip(x, y, strict=True):
        (gradient,) = torch.autograd.grad(F.cross_entropy((one @ W.mT)[None], label[None]), W)
        squares.append(gradient.square())
    empirical = diagonal_fisher(softmax_regression, params, x, y, "empirical")["W"]
    torch.testing.assert_close(empirical, torch.stack(squares).mean(0))
    assert not torch.allclose(empirical, exact, rtol=0.05)


def test_sampled_fisher_is_unbiased(regression, generator):
    params, x, y, exact = regression
    draws = [diagonal_fisher(softmax_regression, params, x, y, "sampled", generator=generator)["W"] for _ in range(400)]
    torch.testing.assert_close(torch.stack(draws).mean(0), exact, rtol=0.1, atol=0.01)


# -- quadratic anchors ------------------------------------------------------------------------------------


class Tiny(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 4, dtype=D)

    def forward(self, x):
        return torch.tanh(self.layer(x))


@pytest.fixture
def moment(generator):
    net = Tiny()
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(torch.randn(p.shape, generator=generator, dtype=D))
    params = {**dict(net.named_parameters()), "head/0": leaf(torch.randn(3, 5, generator=generator, dtype=D))}
    return Moment(Heads(net), params, 0, N=50.0)


@pytest.fixture
def data(generator):
    return torch.randn(40, 3, generator=generator, dtype=D), torch.arange(40) % 3


def moved(params, generator, size=0.1):
    return {n: p.detach() + size * torch.randn(p.shape, generator=generator, dtype=D) for n, p in params.items()}


def after(moment: Moment) -> Moment:
    """The same network when the next task, of another size, has begun."""
    params = {**moment.params, "head/1": torch.zeros(2, 5, dtype=D)}
    return Moment(moment.model, params, 1, N=20.0)


@pytest.mark.parametrize("kind", ["ewc", "online", "dlp"])
def test_anchor_penalties_by_value(moment, data, generator, kind):
    """Zero at the anchor, λ/N · ½ δᵀΩδ after a displacement δ, Ω = N_i × Fisher information of the shared weights."""
    recipe = FisherRecipe("exact", 1000)
    make = {
        "ewc": lambda: SeparateAnchors(3.0, recipe),
        "online": lambda: RunningAnchor(3.0, 1.0, recipe),
        "dlp": lambda: RunningAnchor(3.0, 1.0, recipe, prior_precision=0.5),
    }
    regulariser = make[kind]()
    regulariser.begin(moment)
    regulariser.end(moment, *data, generator)
    later = after(moment)
    at_anchor = ask(regulariser, later, later.params, data[0])
    assert float(at_anchor.detach()) == pytest.approx(0.0, abs=1e-14)
    own = dict(moment.params)
    fisher = diagonal_fisher(lambda p, x: moment.model.logits(p, x, 0), own, *data)
    there = {**moved(later.params, generator), "head/1": later.params["head/1"]}
    prior = 0.5 if kind == "dlp" else 0.0
    expected = sum(
        ((50.0 * fisher[n] + prior) * (there[n] - moment.params[n].detach()).square()).sum()
        for n in ("layer.weight", "layer.bias")
    )
    value = ask(regulariser, later, there, data[0])
    assert float(value) == pytest.approx(3.0 / 20.0 * 0.5 * float(expected))


def test_the_anchor_is_a_copy(moment, data, generator):
    regulariser = SeparateAnchors(1.0, FisherRecipe())
    regulariser.end(moment, *data, generator)
    before = {n: v.clone() for n, v in regulariser.state().items()}
    with torch.no_grad():
        for p in moment.params.values():
            p.add_(1.0)
    assert all(torch.equal(before[n], v) for n, v in regulariser.state().items())
    assert float(ask(regulariser, after(moment), moment.params, data[0]).detach()) > 0


def test_old_heads_are_not_anchored(moment, data, generator):
    regulariser = SeparateAnchors(1.0, FisherRecipe())
    regulariser.end(moment, *data, generator)
    assert not any("head" in name for name in regulariser.state())


def test_two_tasks_add_up_and_the_running_anchor_decays(moment, data, generator):
    recipe = FisherRecipe()
    separate, running = SeparateAnchors(1.0, recipe), RunningAnchor(1.0, 0.5, recipe)
    for regulariser in (separate, running):
        regulariser.end(moment, *data, generator)
    first = dict(running.precision)
    second = Moment(
        moment.model,
        {**moved(moment.params, generator), "head/1": torch.randn(2, 5, generator=generator, dtype=D)},
        1,
        20.0,
    )
    y = torch.arange(40) % 2
    for regulariser in (separate, running):
        regulariser.end(second, data[0], y, generator)
    new = recipe.information(second, data[0], y, generator)
    for name, value in running.precision.items():
        torch.testing.assert_close(value, 0.5 * first[name] + new[name])
        assert torch.equal(running.anchor[name], second.params[name])
    there = moved(second.params, generator)
    parts = [quadratic(there, anchor, precision) for anchor, precision in separate.anchors]
    later = Moment(moment.model, there, 2, 10.0)
    assert float(ask(separate, later, there, data[0])) == pytest.approx(float(sum(parts)) / 10.0)


def test_merged_anchors_are_the_sum_of_the_separate_ones(moment, generator):
    """Value and gradient, also where nothing holds a weight, or only one of the tasks."""
    regulariser = SeparateAnchors(2.0, FisherRecipe())
    shapes = {n: p.shape for n, p in moment.params.items() if not n.startswith("head/")}
    for task in range(3):
        anchor = {n: torch.randn(s, generator=generator, dtype=D) for n, s in shapes.items()}
        precision = {n: 100 * torch.rand(s, generator=generator, dtype=D) for n, s in shapes.items()}
        precision["layer.weight"][0] = 0.0
        precision["layer.weight"][1] *= task == 1
        regulariser.anchors.append((anchor, precision))
    params = {n: leaf(p) for n, p in moment.params.items()}
    value = ask(regulariser, Moment(moment.model, params, 3, 40.0), params, torch.zeros(1, 3, dtype=D))
    expected = sum(2.0 / 40.0 * quadratic(params, *pair) for pair in regulariser.anchors)
    torch.testing.assert_close(value, expected)
    found, slopes = gradients(value, params), gradients(expected, params)
    for name in params:
        torch.testing.assert_close(found[name], slopes[name])
    assert float(found["layer.weight"][0].abs().max()) == 0.0
    assert float(found["layer.weight"][1].abs().min()) > 0.0


def test_laplace_on_softmax_regression_is_the_prior_of_the_next_task():
    """DLP without features to learn: the penalty's curvature is the Hessian of the first task's loss plus the prior."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(200, 2, generator=g, dtype=D)
    y = (x[:, 0] > 0).long()
    W = leaf(torch.zeros(2, 3, dtype=D))
    net = nn.Identity()
    model = Heads(net)
    now = Moment(model, {"head/0": W}, 0, 200.0)
    regulariser = RunningAnchor(1.0, 1.0, FisherRecipe("exact", 200), prior_precision=0.7)
    regulariser.end(now, x, y, g)
    Phi = torch.cat([x, torch.ones(200, 1, dtype=D)], 1)

    def loss(w):
        return F.cross_entropy(Phi @ w.mT, y, reduction="sum") + 0.35 * w.square().sum()

    hessian = torch.autograd.functional.hessian(loss, W.detach()).reshape(6, 6).diagonal().reshape(2, 3)
    torch.testing.assert_close(regulariser.heads["head/0"], hessian)


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
        now = Moment(Heads(net), {**dict(net.named_parameters()), "head/0": head}, 0, 30.0)
        path = PathIntegral(1.0, 0.1)
        path.begin(now)
        losses = []
        for _ in range(steps + 1):
            loss = F.cross_entropy(now.model.logits(now.params, x, 0), y)
            losses.append(float(loss.detach()))
            shared = dict(net.named_parameters())
            gradient = dict(zip(shared, torch.autograd.grad(loss, list(shared.values())), strict=True))
            if len(losses) > steps:
                break
            before = {n: p.detach().clone() for n, p in shared.items()}
            with torch.no_grad():
                for n, p in shared.items():
                    p.sub_(lr * gradient[n])
            path.follow(path.carry(), path.constants(), gradient, before, {n: p.detach() for n, p in shared.items()})
        total = sum(float(value.sum()) for value in path.path.values())
        errors.append(abs(total - (losses[0] - losses[-1])))
    assert errors[2] < errors[1] < errors[0]
    assert errors[2] < 1e-3 * (losses[0] - losses[-1])


def test_importance_and_penalty_by_value(moment, generator):
    path = PathIntegral(0.5, damping=0.1)
    path.begin(moment)
    start = {n: v.clone() for n, v in path.start.items()}
    gradient = {n: torch.ones_like(p) for n, p in moment.params.items()}
    before = {n: p.detach().clone() for n, p in moment.params.items()}
    with torch.no_grad():
        for p in moment.params.values():
            p.sub_(0.2)
    path.follow(path.carry(), path.constants(), gradient, before, {n: p.detach() for n, p in moment.params.items()})
    path.end(moment, torch.zeros(1, 3), torch.zeros(1), generator)
    expected = 0.2 / (0.2**2 + 0.1)
    for value in path.importance.values():
        torch.testing.assert_close(value, torch.full_like(value, expected))
    later = after(moment)
    path.begin(later)
    assert float(ask(path, later, later.params, torch.zeros(1, dtype=D)).detach()) == 0.0
    there = {n: v + 0.3 for n, v in later.params.items()}
    count = sum(v.numel() for v in start.values())
    value = ask(path, later, there, torch.zeros(1, dtype=D))
    assert float(value.detach()) == pytest.approx(0.5 * expected * 0.09 * count)


def test_a_weight_that_went_the_wrong_way_is_not_important(moment, generator):
    path = PathIntegral(1.0, 0.1)
    path.begin(moment)
    same = {n: p.detach().clone() for n, p in moment.params.items()}
    slope = {n: torch.ones_like(p) for n, p in same.items()}
    path.follow(path.carry(), path.constants(), slope, same, {n: p + 1 for n, p in same.items()})
    path.end(moment, torch.zeros(1, 3), torch.zeros(1), generator)
    assert all(float(v.abs().max()) == 0.0 for v in path.importance.values())


# -- distillation ---------------------------------------------------------------------------------------------


def test_distillation_by_value_and_zero_gradient_when_student_is_teacher(generator):
    teacher = torch.randn(7, 4, generator=generator, dtype=D)
    student = teacher.clone().requires_grad_()
    value = distillation(student, teacher, 2.0)
    value.backward()
    assert float(value.detach()) == pytest.approx(0.0, abs=1e-14)
    assert float(student.grad.abs().max()) == pytest.approx(0.0, abs=1e-14)
    other = torch.randn(7, 4, generator=generator, dtype=D)
    p, q = (other / 2).softmax(1), (teacher / 2).softmax(1)
    expected = 4.0 * (q * (q / p).log()).sum(1).mean()
    assert float(distillation(other, teacher, 2.0)) == pytest.approx(float(expected))
    assert float(distillation(other + 5.0, teacher, 2.0)) == pytest.approx(float(expected))


def test_lwf_holds_every_old_head_at_its_start(moment, data, generator):
    later = after(moment)
    held = Distillation(2.0, 2.0)
    held.begin(moment)
    assert float(ask(held, moment, moment.params, data[0])) == 0.0
    held.begin(later)
    live = {n: v.detach().clone().requires_grad_() for n, v in later.params.items()}
    value = ask(held, later, live, data[0])
    slopes = gradients(value, {n: live[n] for n in ("layer.weight", "head/0")})
    assert float(value.detach()) == pytest.approx(0.0, abs=1e-14)
    assert all(float(slope.abs().max()) < 1e-14 for slope in slopes.values())
    there = moved(later.params, generator)
    student = moment.model.logits(there, data[0], 0)
    teacher = moment.model.logits(later.params, data[0], 0).detach()
    expected = 2.0 * float(distillation(student, teacher, 2.0))
    assert float(ask(held, later, there, data[0])) == pytest.approx(expected)


# -- replay -----------------------------------------------------------------------------------------------------


def test_buffer_has_the_promised_size_and_balance(moment, generator):
    x, y = torch.randn(90, 3, generator=generator, dtype=D), torch.tensor([0] * 70 + [1] * 15 + [2] * 5)
    buffer = Buffer(12)
    buffer.end(moment, x, y, generator)
    assert torch.bincount(buffer.y[0]).tolist() == [4, 4, 4]
    rows = {tuple(row) for row in x.tolist()}
    assert all(tuple(row) in rows for row in buffer.x[0].tolist())
    per_class = Buffer(None, per_class=2)
    per_class.end(moment, x, y, generator)
    assert torch.bincount(per_class.y[0]).tolist() == [2, 2, 2]
    with pytest.raises(DataError, match="90 examples are fewer than the 91 to keep"):
        Buffer(91).check(y)


def test_replay_loss_is_unbiased_for_the_loss_on_all_past_data(moment, generator):
    """The mean over many random buffers is (1/N) × the summed loss of the whole past task."""
    x = torch.randn(30, 3, generator=generator, dtype=D)
    y = torch.arange(30) % 3
    now = Moment(moment.model, moment.params, 0, N=30.0)
    later = Moment(moment.model, moment.params, 1, N=20.0)
    values = []
    for _ in range(3000):
        buffer = Buffer(6)
        buffer.end(now, x, y, generator)
        values.append(float(ask(buffer, later, moment.params, x).detach()))
    whole = F.cross_entropy(moment.model.logits(moment.params, x, 0), y, reduction="sum") / 20.0
    assert sum(values) / len(values) == pytest.approx(float(whole.detach()), rel=0.02)


def test_sub_sampled_buffers_and_joint_minibatches_are_unbiased(moment, generator):
    x, y = torch.randn(30, 3, generator=generator, dtype=D), torch.arange(30) % 3
    params = {**moment.params, "head/1": torch.randn(3, 5, generator=generator, dtype=D)}
    for options in ({"points": 9, "tasks_per_step": 1}, {"points": None, "batch": 5}):
        buffer = Buffer(**options)
        whole = Buffer(options["points"])
        for task in (0, 1):
            state = generator.get_state()
            for one in (buffer, whole):
                generator.set_state(state)
                one.end(Moment(moment.model, params, task, 30.0), x, y, generator)
        later = Moment(moment.model, params, 2, 20.0)
        drawn = [float(ask(buffer, later, params, x, generator).detach()) for _ in range(2000)]
        expected = float(ask(whole, later, params, x).detach())
        assert sum(drawn) / len(drawn) == pytest.approx(expected, rel=0.03)


@pytest.fixture
def uneven(moment, generator):
    """Four tasks with different numbers of classes and of kept examples: heads, and what a buffer holds."""
    classes, points, sizes = (3, 2, 5, 4), (9, 4, 7, 12), [90.0, 30.0, 50.0, 70.0]
    heads = {f"head/{i}": torch.randn(C, 5, generator=generator, dtype=D) for i, C in enumerate(classes)}
    params = {n: leaf(v) for n, v in {**moment.params, **heads}.items()}
    x = [torch.randn(M, 3, generator=generator, dtype=D) for M in points]
    y = [torch.randint(C, (M,), generator=generator) for C, M in zip(classes, points, strict=True)]
    return Moment(moment.model, params, 4, 20.0), {"x": x, "y": y, "sizes": sizes}


def replayed(now, kept, tasks, rows=None):
    """(1/N) Σ_i N_i × the mean loss on buffer i, over `tasks`, scaled up to all; with `rows`, on those examples."""
    total = 0.0
    for i in tasks:
        own = slice(None) if rows is None else rows[i]
        logits = now.model.logits(now.params, kept["x"][i][own], i)
        total = total + kept["sizes"][i] * F.cross_entropy(logits, kept["y"][i][own])
    return total * (len(kept["x"]) / len(tasks)) / now.N


@pytest.mark.parametrize("tasks", [(0,), (1,), (2, 1), (3, 0), (1, 3, 2)])
def test_some_of_the_buffers_stand_for_all(uneven, tasks):
    """Points and classes that are padding count for nothing, in the value and in the gradient."""
    now, kept = uneven
    buffer = Buffer(12, tasks_per_step=len(tasks), **kept)
    value = ask(buffer, now, now.params, kept["x"][0], tasks=torch.tensor(tasks))
    expected = replayed(now, kept, tasks)
    torch.testing.assert_close(value, expected, rtol=1e-12, atol=0)
    found, slopes = gradients(value, now.params), gradients(expected, now.params)
    for name in now.params:
        torch.testing.assert_close(found[name], slopes[name], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_over_all_subsets_some_of_the_buffers_are_all_of_them(uneven, count):
    now, kept = uneven
    buffer = Buffer(12, tasks_per_step=count, **kept)
    subsets = [torch.tensor(tasks) for tasks in itertools.combinations(range(4), count)]
    values = [ask(buffer, now, now.params, kept["x"][0], tasks=tasks) for tasks in subsets]
    whole = ask(Buffer(12, **kept), now, now.params, kept["x"][0])
    torch.testing.assert_close(torch.stack(values).mean(), whole)
    torch.testing.assert_close(whole, replayed(now, kept, range(4)))
    drawn = buffer.draw(400, torch.Generator().manual_seed(0))["tasks"]
    assert all(len(set(row)) == count for row in drawn.tolist())
    shares = torch.bincount(drawn.flatten(), minlength=4) / 400
    torch.testing.assert_close(shares, torch.full((4,), count / 4), rtol=0, atol=0.1)


def test_joint_minibatches_by_value(uneven, generator):
    """The rows drawn and no others, from each task its own; one row at a time in turn, the mean is the whole."""
    now, kept = uneven
    buffer = Buffer(None, batch=6, **kept)
    drawn = buffer.draw(50, generator)
    assert all(drawn[f"buffer/{i}"].shape == (50, 6) for i in range(4))
    assert [set(drawn[f"buffer/{i}"].flatten().tolist()) for i in range(4)] == [set(range(len(x))) for x in kept["x"]]
    rows = {name: value[3] for name, value in drawn.items()}
    value = ask(buffer, now, now.params, kept["x"][0], **rows)
    expected = replayed(now, kept, range(4), [rows[f"buffer/{i}"] for i in range(4)])
    torch.testing.assert_close(value, expected)
    steps = range(9 * 4 * 7)  # a multiple of the size of every buffer
    turns = [{f"buffer/{i}": torch.tensor([t % len(x)]) for i, x in enumerate(kept["x"])} for t in steps]
    values = [ask(buffer, now, now.params, kept["x"][0], **turn).detach() for turn in turns]
    torch.testing.assert_close(torch.stack(values).mean(), replayed(now, kept, range(4)).detach())


# -- many seeds at once -------------------------------------------------------------------------------------------

KINDS = {
    "ewc": lambda: SeparateAnchors(3.0, FisherRecipe()),
    "online": lambda: RunningAnchor(3.0, 0.5, FisherRecipe()),
    "dlp": lambda: RunningAnchor(3.0, 1.0, FisherRecipe(), prior_precision=0.5),
    "si": lambda: PathIntegral(3.0, 0.1),
    "lwf": lambda: Distillation(3.0, 2.0),
    "replay": lambda: Buffer(6),
    "replay some": lambda: Buffer(None, per_class=2, tasks_per_step=1),
    "joint": lambda: Buffer(None, batch=4),
}


def grown(kind, moment, seed):
    """A regulariser with two tasks behind it, three and two classes, in the third; and a point to ask it at."""
    g = torch.Generator().manual_seed(seed)
    regulariser, params = KINDS[kind](), {n: p for n, p in moment.params.items() if n != "head/0"}
    for task, C in enumerate((3, 2, 3)):
        params = moved({**params, f"head/{task}": torch.randn(C, 5, generator=g, dtype=D)}, g)
        now = Moment(moment.model, params, task, 50.0 + seed + task)
        regulariser.begin(now)
        if task == 2:
            return regulariser, now, moved(params, g)
        further = moved(params, g)
        regulariser.follow(regulariser.carry(), regulariser.constants(), moved(params, g), params, further)
        params = further
        x, y = torch.randn(30, 3, generator=g, dtype=D), torch.arange(30) % C
        regulariser.end(replace(now, params=params), x, y, g)
    raise AssertionError


def stacked(each):
    return {name: torch.stack([one[name].detach() for one in each]) for name in each[0]}


@pytest.mark.parametrize("kind", KINDS)
def test_penalties_of_many_seeds_at_once_are_those_one_by_one(moment, generator, kind):
    each = [grown(kind, moment, seed) for seed in range(3)]
    first, now, _ = each[0]
    x = torch.randn(3, 8, 3, generator=generator, dtype=D)
    noise = [{n: row[0] for n, row in one.draw(1, generator).items()} for one, _, _ in each]
    constants = [constants_of(one, now) for one, now, _ in each]
    params = {name: leaf(value) for name, value in stacked([at for _, _, at in each]).items()}
    at = Place(now.model, now.task)
    batched = torch.vmap(lambda p, c, inputs, n: first.penalty(at, p, c, inputs, n))
    values = batched(params, stacked(constants), x, stacked(noise))
    slopes = gradients(values.sum(), params)
    for i, (regulariser, _, own) in enumerate(each):
        lone = {name: leaf(value) for name, value in own.items()}
        value = regulariser.penalty(at, lone, constants[i], x[i], noise[i])
        torch.testing.assert_close(values[i], value)
        for name, slope in gradients(value, lone).items():
            torch.testing.assert_close(slopes[name][i], slope)
    assert float(values.detach().abs().min()) > 0
    assert len(set(values.tolist())) == 3


# -- the learner around them --------------------------------------------------------------------------------------


def small_net() -> nn.Module:
    return MLP(4, (16, 8), last="relu", seed=1)


def test_the_loss_is_likelihood_plus_penalty():
    logs = []
    learner = make_learner(small_net(), default_options("ewc"), seed=0)
    assert isinstance(learner, Penalised)
    for seed in (1, 2):
        learner.fit(*blobs((0, 1, 2), 90, seed), on_step=logs.append)
    assert all(log.loss == pytest.approx(-log.log_likelihood + log.kl_past, abs=1e-5) for log in logs)
    assert logs[1000].kl_past == 0.0
    assert logs[-1].kl_past > 0.0


def test_old_heads_move_only_where_the_method_trains_them():
    for method, moves in (
        ("finetune", False),
        ("ewc", False),
        ("si", False),
        ("replay", True),
        ("lwf", True),
        ("joint", True),
    ):
        options = {"steps": 20} | ({"points": 9} if method == "replay" else {})
        learner = make_learner(small_net(), replace(default_options(method), **options), seed=0)
        learner.fit(*blobs((0, 1, 2), 90, 1))
        before = learner.state_dict()["tensors"]["heads/head/0"].clone()
        learner.fit(*blobs((0, 1), 90, 2))
        assert torch.equal(before, learner.state_dict()["tensors"]["heads/head/0"]) != moves


def nll(net, head, x, y):
    """Mean cross-entropy of a network with a linear head, the bias in its last column."""
    return F.cross_entropy(torch.cat([net(x), x.new_ones(len(x), 1)], 1) @ head.mT, y)


def test_finetune_equals_plain_training():
    """Adam on the cross-entropy of the same minibatches, by hand."""
    x, y = blobs((0, 1, 2), 90, 1)
    learner = make_learner(small_net(), FinetuneOptions(steps=5, batch_size=10), seed=0)
    learner.fit(x, y)
    twin = make_learner(small_net(), FinetuneOptions(steps=5, batch_size=10), seed=0)
    net = twin.net
    head = leaf(initial_head(3, 9, twin._streams, torch.float32, torch.device("cpu")))
    adam = torch.optim.Adam([*net.parameters(), head], lr=1e-3)
    for _ in range(5):
        rows = torch.randint(90, (10,), generator=twin._streams["batches"])
        adam.zero_grad()
        nll(net, head, x[rows], y[rows]).backward()
        adam.step()
    for ours, theirs in zip(learner.net.parameters(), net.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("strength", [0.0, 0.3, 1e4])
def test_si_follows_the_gradient_of_the_likelihood_alone(strength):
    """Two tasks by hand: the path integral from a gradient of the likelihood that autograd works out separately."""
    options = SIOptions(steps=7, batch_size=10, strength=strength)
    learner, twin = (make_learner(small_net().double(), options, seed=0) for _ in range(2))
    net, shared = twin.net, dict(twin.net.named_parameters())
    importance = {name: torch.zeros_like(p, requires_grad=False) for name, p in shared.items()}
    for seed in (1, 2):
        x, y = blobs((0, 1), 60, seed)
        learner.fit(x, y)
        start = {name: p.detach().clone() for name, p in shared.items()}
        path = {name: torch.zeros_like(p) for name, p in start.items()}
        head = leaf(initial_head(2, 9, twin._streams, D, torch.device("cpu")))
        adam = torch.optim.Adam([*shared.values(), head], lr=options.lr)
        for rows in torch.randint(60, (7, 10), generator=twin._streams["batches"]):
            batch = x[rows].double(), y[rows]
            slope = gradients(nll(net, head, *batch), shared)
            before = {name: p.detach().clone() for name, p in shared.items()}
            held = sum((importance[name] * (p - start[name]).square()).sum() for name, p in shared.items())
            adam.zero_grad()
            (nll(net, head, *batch) + strength * held).backward()
            adam.step()
            for name, p in shared.items():
                path[name] -= slope[name] * (p.detach() - before[name])
        for name, p in shared.items():
            gone = (p.detach() - start[name]).square()
            importance[name] += path[name].clamp_min(0) / (gone + options.damping)
    for name, value in importance.items():
        torch.testing.assert_close(learner.regulariser.importance[name], value, rtol=1e-6, atol=1e-10)


def test_joint_equals_training_on_a_minibatch_of_every_task():
    """Adam by hand on the mean loss of the current minibatch plus N_0/N times that of the first task's."""
    (x0, y0), (x1, y1) = blobs((0, 1, 2), 90, 1), blobs((0, 1), 60, 2)
    options = JointOptions(steps=5, batch_size=10)
    learner, twin = (make_learner(small_net(), options, seed=0) for _ in range(2))
    for one in (learner, twin):
        one.fit(x0, y0)
    learner.fit(x1, y1)
    net, old = twin.net, leaf(twin.state_dict()["tensors"]["heads/head/0"])
    head = leaf(initial_head(2, 9, twin._streams, torch.float32, torch.device("cpu")))
    adam = torch.optim.Adam([*net.parameters(), old, head], lr=options.lr)
    current = torch.randint(60, (5, 10), generator=twin._streams["batches"])
    past = torch.randint(90, (5, 10), generator=twin._streams["past"])
    for now, then in zip(current, past, strict=True):
        adam.zero_grad()
        (nll(net, head, x1[now], y1[now]) + 90 / 60 * nll(net, old, x0[then], y0[then])).backward()
        adam.step()
    for ours, theirs in zip(learner.net.parameters(), net.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(learner.state_dict()["tensors"]["heads/head/0"], old.detach(), rtol=1e-4, atol=1e-6)
