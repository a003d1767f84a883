"""A network with regularisers around its training: finetune, joint, LwF, SI, single, and what fails."""

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from frcl import MLP, NumericalError, OptionError
from frcl.baselines.options import FinetuneOptions, JointOptions, LwFOptions, OnlineEWCOptions, SingleOptions, SIOptions
from frcl.baselines.penalised import Penalised
from frcl.learners.lockstep import together
from frcl.likelihoods import Softmax
from frcl.methods import default_options, make_learner
from frcl.regularisers import Curvature, FunctionalKL, MemoryTargets, Replay
from frcl.regularisers.protocol import Regulariser, Step, Task
from frcl.seeding import stream_seed
from frcl.trees import leaf
from oracles import functions, gradients
from streams import blobs, same_tensors

D = torch.float64
FOUR = Softmax((0, 1, 2, 3))


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
        before = learner.state_dict()["tensors"]["past/0/head"].clone()
        learner.fit(*blobs((0, 1), 90, 2))
        assert torch.equal(before, learner.state_dict()["tensors"]["past/0/head"]) != moves


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
    head = leaf(twin._new_head(9, 3))
    adam = torch.optim.Adam([*net.parameters(), head], lr=1e-3)
    for _ in range(5):
        rows = torch.randint(90, (10,), generator=twin._state.streams["batches"])
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
        head = leaf(twin._new_head(9, 2))
        adam = torch.optim.Adam([*shared.values(), head], lr=options.lr)
        for rows in torch.randint(60, (7, 10), generator=twin._state.streams["batches"]):
            batch = x[rows].double(), y[rows]
            gradient = gradients(nll(net, head, *batch), shared)
            before = {name: p.detach().clone() for name, p in shared.items()}
            held = sum((importance[name] * (p - start[name]).square()).sum() for name, p in shared.items())
            adam.zero_grad()
            (nll(net, head, *batch) + strength * held).backward()
            adam.step()
            for name, p in shared.items():
                path[name] -= gradient[name] * (p.detach() - before[name])
        for name, p in shared.items():
            gone = (p.detach() - start[name]).square()
            importance[name] += path[name].clamp_min(0) / (gone + options.damping)
    for name, value in importance.items():
        torch.testing.assert_close(learner.regularisers[0].importance[name], value, rtol=1e-6, atol=1e-10)


def test_joint_equals_training_on_a_minibatch_of_every_task():
    """Adam by hand on the mean loss of the current minibatch plus N_0/N times that of the first task's."""
    (x0, y0), (x1, y1) = blobs((0, 1, 2), 90, 1), blobs((0, 1), 60, 2)
    options = JointOptions(steps=5, batch_size=10)
    learner, twin = (make_learner(small_net(), options, seed=0) for _ in range(2))
    for one in (learner, twin):
        one.fit(x0, y0)
    learner.fit(x1, y1)
    net, old = twin.net, leaf(twin.state_dict()["tensors"]["past/0/head"])
    head = leaf(twin._new_head(9, 2))
    adam = torch.optim.Adam([*net.parameters(), old, head], lr=options.lr)
    current = torch.randint(60, (5, 10), generator=twin._state.streams["batches"])
    past = torch.randint(90, (5, 10), generator=twin._state.streams["past"])
    for now, then in zip(current, past, strict=True):
        adam.zero_grad()
        (nll(net, head, x1[now], y1[now]) + 90 / 60 * nll(net, old, x0[then], y0[then])).backward()
        adam.step()
    for ours, theirs in zip(learner.net.parameters(), net.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(learner.state_dict()["tensors"]["past/0/head"], old.detach(), rtol=1e-4, atol=1e-6)


def test_single_is_a_plain_network_for_each_task_with_a_seed_of_its_own():
    tasks = [blobs((0, 1, 2), 90, 1), blobs((0, 1), 60, 2)]
    learner = make_learner(small_net(), SingleOptions(steps=12, batch_size=10), seed=3)
    for x, y in tasks:
        learner.fit(x, y)
    for number, (x, y) in enumerate(tasks):
        options = FinetuneOptions(steps=12, batch_size=10, seed=stream_seed(3, f"task/{number}"))
        alone = Penalised(small_net(), options)
        alone.fit(x, y)
        assert torch.equal(learner.predict(x, number).mean, alone.predict(x).mean)


def test_lwf_equals_training_with_the_textbook_loss():
    """Adam by hand: cross-entropy plus τ² KL of the old head at temperature 2, the teacher as the task began."""
    (x0, y0), (x1, y1) = blobs((0, 1, 2), 90, 1), blobs((0, 1), 60, 2)
    options = LwFOptions(steps=5, batch_size=10, strength=3.0)
    learner, twin = (make_learner(small_net().double(), options, seed=0) for _ in range(2))
    for one in (learner, twin):
        one.fit(x0, y0)
    learner.fit(x1, y1)
    net, old, teacher = twin.net, leaf(twin.state_dict()["tensors"]["past/0/head"]), small_net().double()
    kept = old.detach().clone()
    teacher.load_state_dict(net.state_dict())
    head = leaf(twin._new_head(9, 2))
    adam = torch.optim.Adam([*net.parameters(), old, head], lr=options.lr)
    for rows in torch.randint(60, (5, 10), generator=twin._state.streams["batches"]):
        x = x1[rows].double()
        q = (functions(teacher, {}, kept, x) / 2).softmax(1).detach()
        log_p = (functions(net, {}, old, x) / 2).log_softmax(1)
        adam.zero_grad()
        (nll(net, head, x, y1[rows]) + 3.0 * 4.0 * (q * (q.log() - log_p)).sum(1).mean()).backward()
        adam.step()
    for ours, theirs in zip(learner.net.parameters(), net.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(learner.state_dict()["tensors"]["past/0/head"], old.detach(), rtol=1e-7, atol=1e-9)


@dataclass
class Watching(Regulariser):
    """Remembers every minibatch that it was shown, and one number of the generator that came with it."""

    seen: list[tuple[Tensor, Tensor, float]] = field(default_factory=list, init=False, repr=False)
    name: ClassVar[str] = "watching"
    looks: ClassVar[bool] = True

    def penalty(self, step: Step, constants: Any, draws: Any) -> None:
        return None

    def look(self, x: Tensor, y: Tensor, generator: torch.Generator) -> None:
        self.seen = [*self.seen, (x, y, float(torch.rand((), generator=generator)))]

    def end(self, task: Task, x: Tensor, y: Tensor, generator: torch.Generator) -> None:
        """Nothing is kept."""


@pytest.mark.parametrize("seeds", [1, 2])
def test_a_regulariser_that_looks_sees_every_minibatch_once(seeds):
    """In order, also over chunks of steps, after an interruption and where seeds are computed as one."""
    tasks = [blobs((0, 1), 60, 1), blobs((0, 1, 2), 60, 2)]
    options = [FinetuneOptions(steps=130, batch_size=4, seed=seed) for seed in range(seeds)]
    group = [Penalised(small_net(), one, [Watching()]) for one in options]
    for number, task in enumerate(tasks):
        work = together([one.learn(*task) for one in group])
        for _ in range(7 * number):
            next(work)
        work.close()
        for _ in together([one.learn(*task) for one in group]):
            pass
    for one, own in zip(group, options, strict=True):
        streams = Penalised(small_net(), own)._state.streams
        seen, (watching,) = [], one.regularisers
        for x, y in tasks:
            for steps in (100, 30):
                rows = torch.randint(60, (steps, 4), generator=streams["batches"])
                seen += [(x[row], y[row]) for row in rows]
        assert len(watching.seen) == len(seen) == 260
        for (x, y, _), (own_x, own_y) in zip(watching.seen, seen, strict=True):
            assert torch.equal(x, own_x)
            assert torch.equal(y, own_y)
        assert len({number for _, _, number in watching.seen}) == 260


@pytest.mark.parametrize("regulariser", [FunctionalKL(), MemoryTargets()], ids=lambda one: one.name)
def test_regularisers_that_need_inducing_points_are_refused(regulariser):
    with pytest.raises(OptionError, match=rf"{regulariser.name}.*inducing points"):
        Penalised(small_net(), FinetuneOptions(), [regulariser])


def test_several_regularisers_add_up_and_are_copied():
    """EWC's anchor and a buffer at once; the objects given stay as they were, and a state goes on bit for bit."""
    given = [Curvature(2.0), Replay(points=9)]
    tasks, logs = [blobs((0, 1, 2), 90, 1), blobs((0, 1), 90, 2), blobs((0, 1), 60, 3)], []

    def fresh() -> Penalised:
        return Penalised(small_net(), FinetuneOptions(steps=20, batch_size=10), given)

    learner, resumed = fresh(), fresh()
    for task in tasks[:2]:
        learner.fit(*task, on_step=logs.append)
    assert not given[0].anchor
    assert not given[1].x
    assert logs[-1].kl_past > 0
    parts = learner.memory_parts()
    assert set(parts) == {"heads", "anchor", "fisher", "points"}
    assert [len(x) for x in learner.kept_inputs()] == [9, 9]
    resumed.load_state_dict(learner.state_dict())
    for one in (learner, resumed):
        one.fit(*tasks[2])
    assert same_tensors(learner.state_dict()["tensors"], resumed.state_dict()["tensors"])


class Stop(Exception):
    pass


@pytest.mark.parametrize("method", ["online-ewc", "replay", "lwf", "si"])
def test_a_task_that_cannot_be_finished_stays_open_and_can_be_finished_later(method, monkeypatch):
    """All of the end or nothing: an interruption there leaves regularisers and streams as they were."""
    options = {"steps": 8} | ({"points": 9} if method == "replay" else {})
    learner, whole = (make_learner(small_net(), replace(default_options(method), **options), seed=0) for _ in range(2))
    tasks = [blobs((0, 1, 2), 90, 1), blobs((0, 1), 90, 2)]
    for one in (learner, whole):
        one.fit(*tasks[0])
    whole.fit(*tasks[1])
    kind = type(learner.regularisers[0])
    original = kind.end

    def ending(self, *args):
        original(self, *args)
        raise Stop

    with monkeypatch.context() as patch:
        patch.setattr(kind, "end", ending)
        with pytest.raises(Stop):
            learner.fit(*tasks[1])
    assert learner.step == 8
    learner.fit(*tasks[1])
    assert same_tensors(learner.state_dict()["tensors"], whole.state_dict()["tensors"])


def test_a_first_step_that_fails_leaves_no_open_task():
    learner = make_learner(small_net(), OnlineEWCOptions(steps=5), seed=0)
    learner.fit(*blobs((0, 1, 2), 90, 1))
    before, (x, y) = learner.state_dict(), blobs((0, 1), 90, 2)
    with pytest.raises(NumericalError):
        learner.fit(torch.cat([x[:20], x[20:] * 1e38]), y)  # beyond the few that the network is tried on
    assert same_tensors(before["tensors"], learner.state_dict()["tensors"])
    assert before["meta"] == learner.state_dict()["meta"]
    learner.fit(x, y)
