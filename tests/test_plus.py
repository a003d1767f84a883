"""FRCL with more regularisers: the whole objective by hand, what is kept, what is predicted, and what stays off."""

import copy
import itertools
from collections import Counter
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Independent, Normal, kl_divergence
from torch.utils._python_dispatch import TorchDispatchMode

import frcl
from frcl import FRCL, MLP, BoundaryDetector, CheckpointError, OptionError
from frcl.engine.batching import batched_loss
from frcl.engine.program import gradient
from frcl.learners.lockstep import together
from frcl.learners.objective import Draws, Objective
from frcl.learners.task import constants_of, program_of
from frcl.regularisers.protocol import stacked_points
from frcl.summary import belief_from_weights, make_head, prior_kl, prior_kl_terms, recentred
from frcl.trees import detached, named_tensors, stack, with_tensors
from oracles import direct_prior_kl, rand_posterior
from streams import blobs, same_tensors, small_learner

D = torch.float64
ALL = {"functional": 0.7, "current_inputs": 1.3, "memory_targets": 0.4, "curvature": 2.5, "prediction": "corrected"}
MODEL = {"prior_std": 2.0**0.5, "u_noise": 1e-2}
OFF = {"functional": 0.0, "current_inputs": 0.0, "memory_targets": 0.0, "curvature": 0.0}
X = torch.randn(60, 4, generator=torch.Generator().manual_seed(5))
TASKS = [  # two classes, three classes, two real targets; different sizes
    blobs((0, 1), 60, 1),
    blobs((3, 4, 5), 90, 2),
    (X, torch.stack([X[:, 0].sin(), X[:, 1] * X[:, 2]], 1)),
]


def plus(**options) -> FRCL:
    given = {"points": 6, "steps": 25, "batch_size": 16, "lr": 5e-3, "search_steps": 20, "fisher_examples": 10}
    return FRCL(MLP(4, (8, 5), seed=1).double(), **{**given, **MODEL, **ALL, **options})


def taught(count: int = 3, **options) -> FRCL:
    learner = plus(**options)
    for x, y in TASKS[:count]:
        learner.fit(x.double(), y.double() if y.is_floating_point() else y)
    return learner


def opened(learner: FRCL, steps: int) -> FRCL:
    """The learner after so many minibatches of a next task; with 0 the task is open, and no step was taken."""
    x, y = (part[:16] for part in blobs((7, 8, 9), 90, 4))
    learner.start_task(labels=(7, 8, 9), size=500)
    before = copy.deepcopy(learner.net.state_dict())
    for _ in range(max(steps, 1)):
        learner.observe(x.double(), y)
    if steps == 0:  # as it was before the step that opened it
        learner.net.load_state_dict(before)
        state = learner._state
        if state.current.params.heads is not None:
            for rows, summary in zip(state.current.params.heads, state.past, strict=True):
                rows.data[: len(summary.head)] = summary.head
    return learner


def batch() -> tuple[Tensor, Tensor]:
    x, y = blobs((7, 8, 9), 90, 4)
    return x[:16].double(), y[:16] - 7


def terms_of(learner: FRCL, tasks: Tensor | None = None):
    model, state = learner._model, learner._state
    objective = Objective(model.map, state.current.likelihood, model.options, state.regularisers, model.prior)
    constants = constants_of(model, state, state.current, model.map)
    draws = Draws(torch.zeros(8, 16, 3, dtype=D), tasks, tuple(() for _ in state.regularisers))
    return objective(state.current.params, constants, *batch(), draws)


def params_of(learner: FRCL) -> dict[str, Tensor]:
    """What is trained, by name."""
    return learner._state.current.optimiser.params


def anchor_of(learner: FRCL):
    """The curvature of the shared weights, None where there is none."""
    return next((one for one in learner.regularisers if one.name == "curvature"), None)


# -- the objective ------------------------------------------------------------------------------------------------


def phi(learner: FRCL, x: Tensor, net: MLP | None = None) -> Tensor:
    """The features, of another network if one is given."""
    out = (learner.net if net is None else net)(x)
    return torch.cat([learner.feature_scale * out, torch.ones(len(x), 1, dtype=D)], 1)


def apart(summary, old: Tensor, new: Tensor) -> Tensor:
    """Σ over inputs of D between functions [n, C] of a task."""
    kind = summary.likelihood.name
    if kind == "bernoulli":
        return sum(kl_divergence(Bernoulli(logits=a[0]), Bernoulli(logits=b[0])) for a, b in zip(old, new, strict=True))
    if kind == "gaussian":
        s = summary.likelihood_params["log_noise"].exp().sqrt()
        return sum(
            kl_divergence(Independent(Normal(a, s), 1), Independent(Normal(b, s), 1))
            for a, b in zip(old, new, strict=True)
        )
    return sum(kl_divergence(Categorical(logits=a), Categorical(logits=b)) for a, b in zip(old, new, strict=True))


def by_hand(learner: FRCL, begin: MLP, heads: list[Tensor], anchor, x: Tensor, N: float, weights: dict) -> Tensor:
    """The four penalties, task by task, from the public summaries; heads are the current ones, differentiable."""
    total = torch.zeros((), dtype=D)
    for summary, head in zip(learner.tasks, heads, strict=True):
        Phi_z = phi(learner, summary.Z)
        total = total + weights["functional"] * direct_prior_kl(2**0.5 * Phi_z, summary.belief) / N
        old = (phi(learner, x, begin) @ summary.head.mT).detach()
        total = total + weights["current_inputs"] * apart(summary, old, phi(learner, x) @ head.mT) / len(x)
        weight = weights["memory_targets"] * summary.size / len(summary.Z) / N
        total = total + weight * apart(summary, summary.belief.mean.mT, Phi_z @ head.mT)
    for name, p in learner.net.named_parameters():
        rest = anchor.precision[name] * (p - anchor.anchor[name]).square()
        total = total + weights["curvature"] * 0.5 * rest.sum() / N
    return total


@pytest.mark.parametrize("train_heads", [True, False])
@pytest.mark.parametrize("only", [None, "functional", "current_inputs", "memory_targets", "curvature"])
def test_value_and_gradient_of_all_regularisers(only, train_heads):
    weights = {name: ALL[name] for name in OFF} if only is None else {**OFF, only: ALL[only]}
    learner = taught(**{**weights, "train_heads": train_heads})
    begin = copy.deepcopy(learner.net)
    opened(learner, 12)
    current = learner._state.current
    has_heads = only in (None, "current_inputs", "memory_targets")
    block = current.params.heads
    assert (block is not None) == (train_heads and has_heads)
    heads = [summary.head for summary in learner.tasks]
    if block is not None:
        heads = [
            rows[: s.likelihood.functions].detach().requires_grad_()
            for rows, s in zip(block, learner.tasks, strict=True)
        ]
        assert not any(torch.equal(head, s.head) for head, s in zip(heads, learner.tasks, strict=True))
    if not has_heads:
        heads = [torch.zeros(s.likelihood.functions, 6, dtype=D) for s in learner.tasks]
        learner._state.past = [replace(s, head=h) for s, h in zip(learner.tasks, heads, strict=True)]
    anchor = anchor_of(learner)
    if only not in (None, "curvature"):
        assert anchor is None
        anchor = type("Free", (), {"precision": Counter(), "anchor": dict(learner.net.named_parameters())})
    terms = terms_of(learner)
    expected = by_hand(learner, begin, heads, anchor, batch()[0], 500.0, weights)
    torch.testing.assert_close(terms.kl_past, expected, rtol=1e-9, atol=1e-12)
    assert float(expected.detach()) > 0
    found = gradient(terms.kl_past, params_of(learner))
    theta = dict(learner.net.named_parameters())
    direct = torch.autograd.grad(expected, [*theta.values()], retain_graph=True, allow_unused=True)
    for name, value in zip(theta, direct, strict=True):
        value = torch.zeros_like(theta[name]) if value is None else value
        torch.testing.assert_close(found[f"theta/{name}"], value, rtol=1e-7, atol=1e-10)
    if block is not None:
        for rows, value in zip(found["heads"], torch.autograd.grad(expected, heads), strict=True):
            torch.testing.assert_close(rows[: len(value)], value, rtol=1e-9, atol=1e-12)
            assert not rows[len(value) :].any()


@pytest.mark.parametrize(
    ("only", "tasks"), [("current_inputs", None), ("curvature", None), ("memory_targets", torch.tensor([1]))]
)
def test_nothing_is_penalised_when_a_task_begins(only, tasks):
    """Neither value nor gradient; for stored predictions, of the latest task, whose functions have not moved yet."""
    learner = opened(taught(2, **{**OFF, only: 1.0}), 0)
    terms = terms_of(learner, tasks)
    assert abs(float(terms.kl_past.detach())) < 1e-12
    for name, value in gradient(terms.kl_past, params_of(learner)).items():
        assert float(value.abs().max()) < 1e-10, name
    moved = opened(taught(2, **{**OFF, only: 1.0}), 12)
    assert float(terms_of(moved, tasks).kl_past.detach()) > 1e-6


@pytest.mark.parametrize("count", [1, 2])
def test_sampled_tasks_are_unbiased_for_all_regularisers_together(count):
    learner = opened(taught(), 12)
    whole = terms_of(learner)
    subsets = [terms_of(learner, torch.tensor(chosen)) for chosen in itertools.combinations(range(3), count)]
    torch.testing.assert_close(torch.stack([t.kl_past for t in subsets]).mean(), whole.kl_past, rtol=1e-10, atol=0)
    params = params_of(learner)
    each = [gradient(terms.kl_past, params) for terms in subsets]
    for name, value in gradient(whole.kl_past, params).items():
        torch.testing.assert_close(torch.stack([one[name] for one in each]).mean(0), value, rtol=1e-8, atol=1e-11)


class Operations(TorchDispatchMode):
    """Counts operators, and the sizes of what they give."""

    def __init__(self) -> None:
        super().__init__()
        self.names: Counter = Counter()
        self.shapes: Counter = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.names[str(func)] += 1
        if isinstance(out, Tensor):
            self.shapes[tuple(out.shape)] += 1
        return out


def test_a_step_is_flat_in_the_number_of_tasks():
    """The same operators for 3 and for 7 past tasks; of all that grows there is the gradient of the heads alone."""
    seen = {}
    for count in (3, 7):
        learner = plus(past_tasks_per_step=1, steps=2)
        for number in range(count):
            learner.fit(*(part.double() if part.is_floating_point() else part for part in blobs((0, 1, 2), 60, number)))
        opened(learner, 1)
        model, state = learner._model, learner._state
        constants, objective = (
            constants_of(model, state, state.current, model.map),
            Objective(model.map, learner.likelihood(len(state.past)), model.options, state.regularisers, model.prior),
        )
        draws = Draws(torch.zeros(8, 16, 3, dtype=D), torch.tensor([1]), ((),) * 4)
        with Operations() as operations:
            gradient(objective(state.current.params, constants, *batch(), draws).loss, params_of(learner))
        seen[count] = operations
    assert seen[3].names == seen[7].names
    grown = {count: set(one.shapes) - set(seen[10 - count].shapes) for count, one in seen.items()}
    assert grown == {3: {(3, 3, 6)}, 7: {(7, 3, 6)}}


def test_the_old_network_is_asked_without_gradient_and_the_new_one_once():
    learner = opened(taught(), 1)
    calls = []
    handle = learner.net.register_forward_hook(lambda *given: calls.append((len(given[1][0]), given[2].requires_grad)))
    terms_of(learner)
    handle.remove()
    assert sorted(calls) == [(16, False), (16 + 3 * 6, True)]
    constants = constants_of(learner._model, learner._state, learner._state.current, learner._model.map)
    assert all(not value.requires_grad for _, value in named_tensors(constants))


# -- what is kept -------------------------------------------------------------------------------------------------


def test_a_kept_head_is_the_mean_of_the_weights():
    learner, means = plus(), []
    for x, y in TASKS:
        x, y = x.double(), y.double() if y.is_floating_point() else y
        learner.fit(x, y, on_step=lambda log: means.append(learner._state.current.params.posterior.mean.clone()))
        assert torch.equal(learner.tasks[-1].head, means[-1])
    first = plus()
    before = first.fit(*(part.double() if part.is_floating_point() else part for part in TASKS[0])).head.clone()
    first.fit(TASKS[1][0].double(), TASKS[1][1])
    assert not torch.equal(first.tasks[0].head, before), "old heads go on being trained"
    fixed = plus(train_heads=False)
    before = fixed.fit(TASKS[0][0].double(), TASKS[0][1]).head.clone()
    fixed.fit(TASKS[1][0].double(), TASKS[1][1])
    assert torch.equal(fixed.tasks[0].head, before)


def test_a_kept_head_in_function_space_is_what_the_summary_predicts():
    learner = taught(1, inference="function", points=8)
    summary = learner.tasks[0]
    x = torch.randn(9, 4, generator=torch.Generator().manual_seed(0), dtype=D)
    expected = FRCL(learner.net, points=8, inference="function", **MODEL)
    expected._state.past = [replace(summary, head=None)]
    expected._state.input_shape = (4,)
    expected._model.scale.copy_(learner._model.scale)
    torch.testing.assert_close(phi(learner, x) @ summary.head.mT, expected.predict(x, 0).mean, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("likelihood", ["auto", "robustmax"])
def test_the_curvature_is_the_fisher_information_at_the_mean_head(likelihood):
    """N F over all examples, brute force; after a second task γ Ω + N F."""
    learner = plus(curvature_decay=0.3, fisher_examples=1000, points=4)
    omega = {name: torch.zeros_like(p) for name, p in learner.net.named_parameters()}
    for x, y in ((TASKS[0][0][:8], TASKS[0][1][:8]), (TASKS[1][0][:9], TASKS[1][1][:9])):
        binary = y.max() < 2
        summary = learner.fit(x.double(), y, likelihood="bernoulli" if binary else likelihood, size=50)
        omega = {name: 0.3 * value for name, value in omega.items()}
        for one in x.double():
            f = (phi(learner, one[None]) @ summary.head.mT)[0]
            f = torch.cat([f, 0 * f]) if binary else f
            for c in range(len(f)):
                each = torch.autograd.grad(f.log_softmax(0)[c], list(learner.net.parameters()), retain_graph=True)
                for name, value in zip(omega, each, strict=True):
                    omega[name] += 50 / len(x) * f.softmax(0)[c].detach() * value.square()
    for name, value in omega.items():
        torch.testing.assert_close(anchor_of(learner).precision[name], value, rtol=1e-8, atol=1e-10)
        assert torch.equal(anchor_of(learner).anchor[name], dict(learner.net.named_parameters())[name])


def test_heads_are_kept_only_where_something_needs_them():
    for changes, kept in [
        ({}, False), ({"curvature": 1.0}, False), ({"current_inputs": 1.0}, True), ({"memory_targets": 0.1}, True),
        ({"prediction": "head"}, True), ({"prediction": "corrected"}, True),
    ]:  # fmt: skip
        learner = taught(1, **{**OFF, "prediction": "summary", "functional": 1.0, **changes})
        assert (learner.tasks[0].head is not None) == kept, changes


def test_bytes_by_kind_are_those_counted_by_hand():
    """A network 4-8-5, K = 6; two tasks with 6 points, of one and of three functions, in float32."""
    learner = FRCL(MLP(4, (8, 5)), points=6, steps=2, search_steps=2, fisher_examples=5, **ALL)
    assert learner.memory_parts() == {}
    network = 4 * 8 + 8 + 8 * 5 + 5
    for x, y in TASKS[:2]:
        learner.fit(x, y)
    assert learner.memory_parts() == {
        "points": 4 * 2 * 6 * 4,
        "posterior": 4 * (1 + 3) * (6 + 6 * 6 + 1),
        "heads": 2 * 4 * (1 + 3) * 6,  # as they are trained, and as they were when the task began
        "network": 4 * network,
        "fisher": 4 * network,
        "anchor": 4 * network,
    }
    assert learner.memory_bytes() == sum(learner.memory_parts().values())
    fixed = FRCL(MLP(4, (8, 5)), points=6, steps=2, search_steps=2, train_heads=False, memory_targets=1.0)
    fixed.fit(*TASKS[1])
    assert fixed.memory_parts()["heads"] == 4 * 3 * 6, "heads that stay as they are have no second copy"
    learner.fit(TASKS[2][0], TASKS[2][1].float())
    assert learner.memory_parts()["posterior"] == 4 * ((1 + 3 + 2) * (6 + 6 * 6 + 1) + 2), (
        "and the noise of two targets"
    )
    ensemble = frcl.Ensemble(MLP(4, (8, 5)), members=2, points=6, steps=2, search_steps=2, current_inputs=1.0)
    ensemble.fit(*TASKS[0])
    one, two = (member.memory_parts() for member in ensemble.members)
    assert ensemble.memory_parts() == {kind: size + two[kind] for kind, size in one.items()}
    assert ensemble.memory_bytes() == sum(ensemble.memory_parts().values())


# -- prediction -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("M", [4, 9])
def test_a_recentred_head_is_gp_regression_around_it(M, generator):
    """mean(x) = φᵀv + k_xZ (K + σ²I)⁻¹ (μ_u − Φ_Z v), with explicit inverses; the variance is that without centre."""
    old, Phi_z, Phi_x = (torch.randn(n, 6, generator=generator, dtype=D) for n in (M, M, 8))
    belief = belief_from_weights(rand_posterior(3, 6, generator), old, 0.05)
    v = torch.randn(3, 6, generator=generator, dtype=D)
    plain = make_head(Phi_z, belief)
    found = recentred(plain, Phi_z, belief, v)
    inverse = torch.linalg.inv(Phi_z @ Phi_z.mT + 0.05 * torch.eye(M, dtype=D))
    expected = Phi_x @ v.mT + Phi_x @ Phi_z.mT @ inverse @ (belief.mean.mT - Phi_z @ v.mT)
    torch.testing.assert_close(Phi_x @ found.weights, expected, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(recentred(plain, Phi_z, belief, 0 * v).weights, plain.weights)
    assert torch.equal(found.P, plain.P)
    assert torch.equal(found.blocks, plain.blocks)


def means_of(learner: FRCL, x: Tensor, task: int) -> dict[str, Tensor]:
    """What each way of predicting says, of the same learner."""
    found, state = {}, learner.state_dict()
    for kind in ("summary", "head", "corrected"):
        other = plus(**{**vars(learner.options), "prediction": kind})
        settings = {**state["meta"]["settings"], "options": vars(other.options)}
        other.load_state_dict({**state, "meta": {**state["meta"], "settings": settings}})
        p = other.predict(x, task)
        torch.testing.assert_close(p.mean, other.mean(x, task), rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(p.variance, learner.predict(x, task).variance)
        found[kind] = p.mean
    return found


@pytest.mark.parametrize("prediction", ["head", "corrected"])
@pytest.mark.parametrize("labels", [(0, 1), (0, 1, 2)])
def test_a_head_is_as_sure_as_the_posterior_was_when_its_task_ended(prediction, labels):
    """On average over the task; through the summary alone, with three points, it is less sure."""
    learner = plus(points=3, prediction=prediction, prior_std=2.0**0.5)
    x, y = blobs(labels, 120, 1)
    learner.start_task(labels=labels, size=120)
    for _ in range(12):  # all of it stays in the window
        learner.observe(x, y)
    before = learner.predict(x, task=0)
    summary = learner.end_task()
    after = learner.predict(x, task=0)
    torch.testing.assert_close(after.mean, before.mean, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(after.variance.mean(0), before.variance.mean(0), rtol=1e-4, atol=1e-6)
    assert bool((summary.spread < 0.9).all())
    far = learner.predict(50 * torch.ones(1, x.shape[1], dtype=x.dtype), task=0)
    assert bool((far.variance > after.variance.max()).all())


def test_the_papers_prediction_has_the_variance_of_the_summary_alone():
    assert all(summary.spread is None for summary in taught(prediction="summary").tasks)


@pytest.mark.parametrize("inference", ["weight", "function"])
def test_a_share_of_a_heads_variance_counts(inference):
    x = TASKS[0][0].double()
    for prediction, share in (("head", 0.25), ("corrected", 0.25), ("summary", 1.0)):
        whole, part = (
            taught(2, prediction=prediction, inference=inference, curvature=0.0, head_variance=value).predict(x, task=0)
            for value in (1.0, 0.25)
        )
        torch.testing.assert_close(part.mean, whole.mean)
        torch.testing.assert_close(part.variance, share * whole.variance)
    with pytest.raises(OptionError, match="head_variance must be a positive number"):
        plus(head_variance=0.0)


def test_without_drift_the_correction_is_nothing():
    learner, x = taught(2), TASKS[1][0].double()
    means = means_of(learner, x, 1)
    torch.testing.assert_close(means["head"], phi(learner, x) @ learner.tasks[1].head.mT)
    torch.testing.assert_close(means["corrected"], means["head"], rtol=1e-9, atol=1e-9)
    assert float((means["summary"] - means["head"]).abs().max()) > 1e-3


def test_with_drift_the_stored_values_win_at_the_points():
    learner = taught(2, u_noise=1e-9, points=5)
    learner._state.current = None
    with torch.no_grad():
        for p in learner.net.parameters():
            p.add_(0.1 * torch.randn(p.shape, generator=torch.Generator().manual_seed(1), dtype=D))
    for task, summary in enumerate(learner.tasks):
        means = means_of(learner, summary.Z, task)
        stored = summary.belief.mean.mT
        torch.testing.assert_close(means["corrected"], stored, rtol=1e-5, atol=1e-5)
        assert float((means["head"] - stored).abs().max()) > 1e-2
        away = means_of(learner, 100 + summary.Z, task)
        assert float((away["corrected"] - away["summary"]).abs().max()) > 1e-2


def test_old_tasks_are_predicted_with_heads_as_they_are_being_trained():
    learner = taught(2, prediction="head")
    opened(learner, 3)
    live = learner._state.current.params.heads[1, :3].detach()
    x = TASKS[1][0].double()
    torch.testing.assert_close(learner.mean(x, 1), phi(learner, x) @ live.mT)
    first = learner.mean(x, 1)
    learner.observe(batch()[0], batch()[1] + 7)
    assert not torch.equal(learner.mean(x, 1), first)


def test_a_dropped_task_leaves_heads_and_network_as_they_are():
    learner = taught(2)
    opened(learner, 3)
    x = TASKS[1][0].double()
    before, live = learner.predict(x, 1), learner._state.current.params.heads.detach().clone()
    learner.abandon_task()
    assert torch.equal(learner.predict(x, 1).mean, before.mean)
    assert torch.equal(learner.tasks[0].head, live[0, :1])
    assert torch.equal(learner.tasks[1].head, live[1, :3])
    learner.fit(TASKS[2][0].double(), TASKS[2][1].double())


# -- off is off ---------------------------------------------------------------------------------------------------


def test_zero_weights_leave_frcl_bit_for_bit():
    off = {"curvature_decay": 0.3, "fisher_examples": 3, "train_heads": False, **OFF, "functional": 1.0}
    plain, given = small_learner(past_tasks_per_step=1), small_learner(past_tasks_per_step=1, **off)
    for learner in (plain, given):
        for number, labels in enumerate(((0, 1), (3, 4, 5), (0, 2))):
            learner.fit(*blobs(labels, 90, number))
        learner.observe(*blobs((0, 1, 2), 30, 7))
    assert same_tensors(plain.state_dict()["tensors"], given.state_dict()["tensors"])
    assert [one.name for one in given.regularisers] == ["functional-kl"]
    assert set(params_of(plain)) == {f"theta/{n}" for n, _ in plain.net.named_parameters()} | {
        "posterior/mean", "posterior/factor"
    }  # fmt: skip
    assert not [n for n in plain.state_dict()["tensors"] if "head" in n or "regularisers" in n]
    assert set(plain.memory_parts()) == {"points", "posterior"}


def test_the_paper_alone_is_the_past_kl_over_n_and_nothing_else():
    """Bit for bit, with the operators of the paper's objective alone."""
    learner = opened(taught(**{**OFF, "functional": 1.0, "prediction": "summary"}), 2)
    points = stacked_points([summary.Z for summary in learner.tasks])
    x, _ = batch()
    Phi = phi(learner, torch.cat([x, points.flatten(0, 1)]))[16:].unflatten(0, points.shape[:2])
    expected = prior_kl(Phi, prior_kl_terms([summary.belief for summary in learner.tasks])).sum() / 500.0
    assert torch.equal(terms_of(learner).kl_past, expected)


def test_without_any_regulariser_the_past_is_not_looked_at():
    learner = opened(taught(**OFF, prediction="head"), 1)
    calls = []
    learner.net.register_forward_hook(lambda *given: calls.append(len(given[1][0])))
    assert float(terms_of(learner).kl_past) == 0.0
    assert calls == [16]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("functional", -1.0), ("current_inputs", float("nan")), ("memory_targets", "much"), ("curvature", float("inf")),
        ("curvature", True), ("curvature_decay", -0.1), ("lr_decay", 1.1), ("lr_decay", -0.1),
        ("prior_weight", 0.0), ("fisher_examples", 0), ("train_heads", 1), ("prediction", "heads"),
    ],
)  # fmt: skip
def test_values_that_make_no_sense(option, value):
    with pytest.raises(OptionError, match=option):
        small_learner(**{option: value})


# -- with everything else -----------------------------------------------------------------------------------------


def test_a_frozen_network_has_nothing_to_hold():
    net = MLP(4, (8, 5))
    for p in net.parameters():
        p.requires_grad_(False)
    learner = FRCL(net, points=6, steps=3, search_steps=3, **ALL)
    for x, y in TASKS[:2]:
        learner.fit(x, y)
    assert "anchor" not in learner.memory_parts()


def test_weights_frozen_later_are_left_out_of_the_anchor():
    learner = taught(1)
    learner.net.layers[1].weight.requires_grad_(False)
    learner.fit(TASKS[1][0].double(), TASKS[1][1])
    assert set(anchor_of(learner).precision) == set(dict(learner.net.named_parameters()))


@pytest.mark.parametrize("options", [{}, {"past_tasks_per_step": 1}, {"train_heads": False}, {"inference": "function"}])
def test_seeds_together_are_seeds_alone(options):
    """Three tasks of different kinds, few steps; Adam divides the gradients of old heads, rounding, by their size."""

    def learners() -> list[FRCL]:
        found = [plus(seed=seed, **{"steps": 8, "points": 8, **options}) for seed in range(3)]
        for seed, one in enumerate(found):
            one.net.load_state_dict(MLP(4, (8, 5), seed=seed).double().state_dict())
        return found

    alone, group = learners(), learners()
    for x, y in TASKS:
        x, y = x.double(), y.double() if y.is_floating_point() else y
        for one in alone:
            one.fit(x, y)
        list(together([one.learn(x, y) for one in group]))
    for one, other in zip(alone, group, strict=True):
        for name, value in one.state_dict()["tensors"].items():
            if value.is_floating_point():
                torch.testing.assert_close(
                    other.state_dict()["tensors"][name], value, rtol=1e-7, atol=1e-9, msg=lambda m, n=name: f"{n}: {m}"
                )


@pytest.mark.parametrize("tasks", [None, [[0, 2], [1, 0]]])
def test_the_objective_can_be_mapped_over_seeds(tasks):
    """Parameters, constants and sampled tasks with a leading axis give the gradients of single calls."""
    learners = [opened(taught(seed=seed), 3 + seed) for seed in range(2)]
    programs = [program_of(one._model, one._state, one._state.current, *batch()) for one in learners]
    used = [None, None] if tasks is None else list(torch.tensor(tasks))
    draws = [Draws(torch.zeros(8, 16, 3, dtype=D), one, ((),) * 4) for one in used]
    blocks = [{n: v.detach().clone() for n, v in p.optimiser.params.items()} for p in programs]
    x, y = (part.expand(2, *part.shape) for part in batch())
    tree, constants = programs[0].optimiser.tree, stack([p.constants for p in programs])

    def together_loss(block):
        return batched_loss(programs[0], with_tensors(tree, block), constants, x, y, stack(draws)).kl_past.sum()

    mapped = torch.func.grad(together_loss)(stack(blocks))
    for i, program in enumerate(programs):

        def alone_loss(own, program=program, i=i):
            return program.loss(with_tensors(tree, own), detached(program.constants), x[i], y[i], draws[i]).kl_past

        for name, value in torch.func.grad(alone_loss)(blocks[i]).items():
            torch.testing.assert_close(mapped[name][i], value, rtol=1e-10, atol=1e-12)


def test_a_recorded_step_is_the_eager_step(monkeypatch):
    """What is recorded on CUDA, called without a graph."""
    eager, recorded = (taught(past_tasks_per_step=1) for _ in range(2))
    x, y = batch()
    for number in range(6):
        logs = [learner.observe(x, y) for learner in (eager, recorded)]
        assert repr(logs[0]) == repr(logs[1])
        if number == 0:
            program = recorded._state.current.stream.program
            monkeypatch.setattr("frcl.engine.train.EAGER", 0)
            monkeypatch.setattr("frcl.engine.train.can_record", lambda programs, own=program: programs[0] is own)
    assert recorded._state.current.stream.recorded is not None
    assert same_tensors(eager.state_dict()["tensors"], recorded.state_dict()["tensors"])


def test_one_observe_is_one_step_of_fit():
    fitted, streamed = (plus(steps=10) for _ in range(2))
    for learner in (fitted, streamed):
        learner.fit(TASKS[0][0].double(), TASKS[0][1])
    x, y = TASKS[1][0].double(), TASKS[1][1]
    generator = torch.Generator()
    generator.set_state(fitted._state.streams["batches"].get_state())
    fitted.fit(x, y)
    streamed.start_task(labels=(3, 4, 5), size=90)
    for _ in range(10):
        rows = torch.randint(90, (16,), generator=generator)
        streamed.observe(x[rows], y[rows])
    assert same_tensors(fitted.net.state_dict(), streamed.net.state_dict())
    assert torch.equal(fitted.tasks[0].head, streamed._state.summaries()[0].head)


def test_boundaries_that_are_found_hold_the_past_too():
    learner = small_learner(
        points=10, initial_std=1.0, detector=BoundaryDetector(5.0), current_inputs=1.0, memory_targets=1.0,
        curvature=1.0, prediction="corrected", fisher_examples=50,
    )  # fmt: skip
    found = []
    for t, number in enumerate(itertools.chain([11] * 120, [12] * 60)):
        x, y = blobs((0, 1), 64 * 120, number)
        rows = slice(64 * (t % 120), 64 * (t % 120) + 64)
        if learner.observe(x[rows], y[rows]).boundary:
            found.append(t)
    assert found == [120]
    x, y = blobs((0, 1), 400, 11)
    assert float((learner.predict(x, 0).labels == y).double().mean()) > 0.95


def test_a_state_of_other_regularisers_is_refused():
    learner = small_learner(steps=5)
    learner.fit(*blobs((0, 1), 60, 1))
    with pytest.raises(CheckpointError, match="other options: current_inputs"):
        small_learner(steps=5, current_inputs=1.0).load_state_dict(learner.state_dict())
    own = small_learner(steps=5, regularisers=[frcl.FunctionalKL(2.0), frcl.CurrentInputs(0.5)])
    with pytest.raises(CheckpointError, match="other regularisers"):
        own.load_state_dict(learner.state_dict())


def test_regularisers_given_by_hand_are_those_of_the_options(tmp_path):
    """The same learner by weights and by a list; the list is saved with it."""
    by_weights = small_learner(steps=20, current_inputs=0.3, curvature=2.0, train_heads=False, fisher_examples=20)
    chosen = [frcl.FunctionalKL(), frcl.CurrentInputs(0.3, trust=True), frcl.Curvature(2.0, examples=20)]
    by_list = small_learner(steps=20, regularisers=chosen)
    for learner in (by_weights, by_list):
        for number in range(3):
            learner.fit(*blobs((0, 1, 2), 60, number))
    assert same_tensors(by_weights.state_dict()["tensors"], by_list.state_dict()["tensors"])
    assert not chosen[2].anchor, "the learner has copies of its own"
    by_list.save(tmp_path / "list.frcl")
    loaded = frcl.load(tmp_path / "list.frcl", MLP(4, (16, 8)))
    assert [repr(one) for one in loaded.regularisers] == [repr(one) for one in chosen]
    for learner in (by_list, loaded):
        learner.fit(*blobs((0, 1, 2), 60, 7))
    assert same_tensors(by_list.state_dict()["tensors"], loaded.state_dict()["tensors"])


@pytest.mark.parametrize(
    ("name", "message"),
    [("past/1/head", r'past\[1\]\.head" is not in the file'), ("regularisers/1/theta/layers.1.bias", "not in the file"),
     ("current/heads", r'current\.heads" is not in the file')],
)  # fmt: skip
def test_states_without_what_the_regularisers_need_are_refused(name, message):
    learner = opened(taught(), 2)
    state = learner.state_dict()
    state["tensors"] = {n: v for n, v in state["tensors"].items() if not n.endswith(name)}
    with pytest.raises(CheckpointError, match=message):
        plus().load_state_dict(state)


@pytest.mark.parametrize(
    ("place", "message"), [(("past", 1, "head"), "head of a past task"), (("current", "heads"), "heads of past tasks")]
)
def test_states_that_lack_heads_are_refused(place, message):
    state = opened(taught(), 2).state_dict()
    part = state["meta"]
    for key in place[:-1]:
        part = part[key]
    part[place[-1]] = None
    with pytest.raises(CheckpointError, match=message):
        plus().load_state_dict(state)


def test_a_state_without_the_network_at_the_beginning_of_the_task_is_refused():
    state = opened(taught(), 2).state_dict()
    del state["meta"]["regularisers"][1]["theta"]["layers.1.bias"]
    with pytest.raises(CheckpointError, match="when the current task began"):
        plus().load_state_dict(state)
