"""Columns with lateral connections, progressive networks, progress & compress."""

import copy
import itertools
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Categorical, kl_divergence

import frcl
from frcl import MLP, ConvNet
from frcl.baselines.options import PnCOptions, ProgressiveOptions
from frcl.baselines.progress_and_compress import ProgressAndCompress
from frcl.baselines.progressive import Columns, Progressive, layered
from frcl.engine.program import Program, Terms
from frcl.engine.train import train
from frcl.likelihoods import Softmax
from frcl.regularisers.fisher import diagonal_fisher
from frcl.seeding import fork
from frcl.trees import leaf, tree_map
from streams import accuracy, blobs, same_tensors

NETS = {
    "mlp": (lambda: MLP(5, (7, 6, 4), seed=3), (5,)),
    "relu features": (lambda: MLP(5, (7, 4), last="relu", seed=3), (5,)),
    "one layer": (lambda: MLP(5, (4,), seed=3), (5,)),
    "conv same": (lambda: ConvNet(9, channels=2, filters=(3, 4, 5), seed=3), (2, 9, 9)),
    "conv valid": (lambda: ConvNet(9, filters=(3, 4), pooling="valid", seed=3), (9, 9)),
}


def setup(kind: str, generator: torch.Generator) -> tuple[Columns, Tensor]:
    make, shape = NETS[kind]
    return Columns(layered(make())), torch.randn(6, *shape, generator=generator)


def column(model: Columns, x: Tensor, earlier: int, seed: int, classes: int = 3) -> dict[str, Tensor]:
    """A fresh column whose laterals are not zero."""
    g = torch.Generator().manual_seed(seed)
    K = model.net(x).shape[1] + 1
    own = model.start(earlier, torch.randn(classes, K, generator=g), g)
    return {name: torch.randn(v.shape, generator=g) if "lateral" in name else v for name, v in own.items()}


# -- columns ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", NETS)
def test_a_new_column_is_the_plain_network(kind, generator):
    model, x = setup(kind, generator)
    earlier = model.frozen([column(model, x, 0, 1), column(model, x, 1, 2)], x)
    head = torch.randn(3, model.net(x).shape[1] + 1, generator=generator)
    own = model.start(2, head, None)
    assert any("lateral" in name for name in own)
    assert torch.equal(model.activations(own, x, earlier)[-1], model.net(x))
    torch.testing.assert_close(model.logits(own, x, earlier), F.linear(model.net(x), head[:, :-1], head[:, -1]))
    plain = {name: value for name, value in own.items() if "lateral" not in name}
    assert torch.equal(model.logits(own, x, earlier), model.logits(plain, x, []))


def test_laterals_of_an_mlp_by_hand(generator):
    model, x = setup("mlp", generator)
    columns = [column(model, x, i, 10 + i) for i in range(3)]
    hidden: list[list[Tensor]] = []
    for own in columns:
        h1 = (x @ own["layers.1.weight"].T + own["layers.1.bias"]).relu()
        a2 = h1 @ own["layers.3.weight"].T + own["layers.3.bias"]
        for j, before in enumerate(hidden):
            a2 = a2 + before[0] @ own["lateral/3"][:, 7 * j : 7 * j + 7].T
        h2 = a2.relu()
        h3 = h2 @ own["layers.5.weight"].T + own["layers.5.bias"]
        for j, before in enumerate(hidden):
            h3 = h3 + before[1] @ own["lateral/5"][:, 6 * j : 6 * j + 6].T
        out = h3 @ own["head"][:, :-1].T + own["head"][:, -1]
        for j, before in enumerate(hidden):
            out = out + before[2] @ own["lateral/head"][:, 4 * j : 4 * j + 4].T
        hidden.append([h1, h2, h3])
    found = model.frozen(columns[:2], x)
    torch.testing.assert_close(found, [torch.cat(both, 1) for both in zip(*hidden[:2], strict=True)])
    torch.testing.assert_close(model.logits(columns[2], x, found), out)


def test_laterals_of_convolutions_are_linear_in_the_channels_at_each_pixel(generator):
    model, x = setup("conv same", generator)
    old, own = column(model, x, 0, 1), column(model, x, 1, 2)
    layers = model.net.layers

    def block(i: int, params: dict[str, Tensor], h: Tensor, extra: Tensor | float) -> Tensor:
        maps = F.conv2d(h, params[f"layers.{i}.weight"], params[f"layers.{i}.bias"], padding=1) + extra
        return layers[i + 2](maps.relu())

    def sideways(i: int, h: Tensor) -> Tensor:
        return torch.einsum("bnij,cn->bcij", h, own[f"lateral/{i}"][:, :, 0, 0])

    a1 = block(0, old, x, 0.0)
    a2 = block(3, old, a1, 0.0)
    b1 = block(0, own, x, 0.0)
    b2 = block(3, own, b1, sideways(3, a1))
    b3 = block(6, own, b2, sideways(6, a2))
    earlier = model.frozen([old], x)
    torch.testing.assert_close(earlier[:2], [a1.movedim(1, -1), a2.movedim(1, -1)])
    found = model.activations(own, x, earlier)
    torch.testing.assert_close(found, [b1.movedim(1, -1), b2.movedim(1, -1), b3.flatten(1)])
    both = [torch.cat(pair, -1) for pair in zip(earlier, found, strict=True)]
    torch.testing.assert_close(model.frozen([old, own], x), both)
    assert not torch.allclose(b2, block(3, own, b1, 0.0))


@pytest.mark.parametrize("kind", NETS)
def test_no_gradient_reaches_frozen_columns(kind, generator):
    model, x = setup(kind, generator)
    frozen = [{n: v.requires_grad_() for n, v in column(model, x, i, 10 + i).items()} for i in range(2)]
    head = torch.randn(3, model.net(x).shape[1] + 1, generator=generator)
    own = tree_map(leaf, model.start(2, head, generator))
    F.cross_entropy(model.logits(own, x, model.frozen(frozen, x)), torch.arange(6) % 3).backward()
    assert all(value.grad is None for each in frozen for value in each.values())
    assert all(value.grad is not None and value.grad.abs().max() > 0 for value in own.values())


def test_fresh_weights_are_he_uniform_and_follow_the_generator(generator):
    model = Columns(MLP(50, (200, 30), seed=0))
    one, same, other = (model.start(0, torch.zeros(2, 31), fork(0, name)) for name in ("a", "a", "b"))
    assert same_tensors(one, same)
    assert not torch.equal(one["layers.1.weight"], other["layers.1.weight"])
    bound = math.sqrt(6 / 50)
    assert 0.98 * bound < float(one["layers.1.weight"].abs().max()) <= bound
    assert float(one["layers.1.weight"].var()) == pytest.approx(bound**2 / 3, rel=0.05)
    assert not one["layers.1.bias"].any()


def test_what_the_network_holds_fixed_is_taken_as_it_is_and_not_trained(generator):
    net = MLP(5, (7, 4), seed=3)
    net.layers[1].weight.requires_grad_(False)
    model = Columns(net)
    own = model.start(1, torch.zeros(2, 5), generator)
    assert torch.equal(own["layers.1.weight"], net.layers[1].weight)
    assert not torch.equal(own["layers.3.weight"], net.layers[3].weight)
    moving, fixed = model.split(own)
    assert set(fixed) == {"layers.1.weight"}
    assert set(own) - set(moving) == {"layers.1.weight"}
    assert all(value is own[name] for name, value in {**moving, **fixed}.items())


class Other(MLP):
    def forward(self, x: Tensor) -> Tensor:
        return -super().forward(x)


@pytest.mark.parametrize("net", [nn.Sequential(nn.Linear(4, 3)), Other(4, (3,))], ids=["sequential", "subclass"])
@pytest.mark.parametrize("kind", ["progressive", "pnc"])
def test_networks_whose_hidden_layers_are_unknown_are_refused(net, kind):
    with pytest.raises(frcl.NetworkError, match=r"frcl\.MLP or frcl\.ConvNet, not .*hidden layers"):
        make(kind, net=net)


def test_a_network_with_active_dropout_is_refused():
    net = MLP(4, (8, 4))
    net.layers.insert(2, nn.Dropout(0.5))
    with pytest.raises(frcl.NetworkError, match="dropout"):
        make("progressive", net=net)


# -- both learners ------------------------------------------------------------------------------------------


def make(kind: str, net: nn.Module | None = None, **options: Any) -> Any:
    given = {"steps": 60, "batch_size": 32, "lr": 5e-3, **options}
    net = MLP(4, (16, 8), seed=1) if net is None else net
    if kind == "progressive":
        return Progressive(net, ProgressiveOptions(**given))
    return ProgressAndCompress(net, PnCOptions(**{"compress_steps": 60, **given}))


def part(state: dict[str, Any], prefix: str) -> dict[str, Tensor]:
    return {name: value for name, value in state["tensors"].items() if name.startswith(prefix)}


def next_terms(learner: Any, data: tuple[Tensor, Tensor]) -> tuple[Terms, Program]:
    """The terms of the next step on all data at once, and the program that takes it."""
    program = next(learner.learn(*data))
    return program.loss(program.optimiser.tree, program.constants, program.x, program.y, ()), program


BLOBS = [blobs((0, 1), 200, 1), blobs((3, 5, 9), 240, 2), blobs((-1, 1), 200, 3)]


@pytest.mark.parametrize("kind", ["progressive", "pnc"])
def test_three_tasks_of_different_sizes_are_learned(kind, global_random_state_untouched):
    learner = make(kind, steps=150, compress_steps=150) if kind == "pnc" else make(kind, steps=150)
    for x, y in BLOBS:
        learner.fit(x, y)
    for number, (x, y) in enumerate(BLOBS):
        assert accuracy(learner, x, y, number) > 0.9
        p = learner.predict(x, number)
        torch.testing.assert_close(p.probs.sum(1), torch.ones(len(x)))
        assert p.classes == tuple(sorted(set(y.tolist())))
    with pytest.raises(frcl.TaskError, match="unknown task 3"):
        learner.predict(BLOBS[0][0], 3)
    assert learner.kept_inputs() == []
    assert learner.past_divergences() == []


@pytest.mark.parametrize("kind", ["progressive", "pnc"])
def test_convolutions_learn_too(kind):
    g = torch.Generator().manual_seed(0)
    y = torch.arange(120) % 3
    options = {"strength": 100.0} if kind == "pnc" else {}
    learner = make(kind, net=ConvNet(8, filters=(6, 6), seed=2), steps=60, lr=1e-2, **options)
    data = []
    for _ in range(2):
        pattern = torch.randn(3, 8, 8, generator=g)
        data.append(pattern[y] + 0.5 * torch.randn(120, 8, 8, generator=g))
        learner.fit(data[-1], y)
    assert min(accuracy(learner, x, y, i) for i, x in enumerate(data)) > 0.9


class Stop(Exception):
    pass


@pytest.mark.parametrize("through_state", [False, True])
@pytest.mark.parametrize(
    ("kind", "step"), [("progressive", 1), ("progressive", 20), *(("pnc", s) for s in (7, 20, 21, 33, 40))]
)
def test_an_interrupted_task_goes_on_bit_for_bit(kind, step, through_state):
    options = {"steps": 20, "compress_steps": 20, "decay": 0.7} if kind == "pnc" else {"steps": 20}

    def stop(log):
        if log.step == step:
            raise Stop

    whole, broken = make(kind, **options), make(kind, **options)
    for learner in (whole, broken):
        learner.fit(*BLOBS[0])
    whole.fit(*BLOBS[1])
    with pytest.raises(Stop):
        broken.fit(*BLOBS[1], on_step=stop)
    with pytest.raises(frcl.TaskError, match="still open"):
        broken.fit(BLOBS[1][0] + 1, BLOBS[1][1])
    if through_state:
        state, broken = broken.state_dict(), make(kind, net=MLP(4, (16, 8), seed=5), **options)
        broken.load_state_dict(state)
        again = broken.state_dict()
        assert again["meta"] == state["meta"]
        assert same_tensors(again["tensors"], state["tensors"])
    steps = []
    broken.fit(*BLOBS[1], on_step=lambda log: steps.append(log.step))
    assert steps == list(range(step + 1, sum(options[n] for n in ("steps", "compress_steps") if n in options) + 1))
    for learner in (whole, broken):
        learner.fit(*BLOBS[2])
    assert same_tensors(whole.state_dict()["tensors"], broken.state_dict()["tensors"])


@pytest.mark.parametrize("kind", ["progressive", "pnc"])
def test_the_seed_decides_and_the_given_network_stays(kind):
    def learn(seed: int) -> dict[str, Tensor]:
        learner = make(kind, net=net, seed=seed, steps=5)
        for task in BLOBS[:2]:
            learner.fit(*task)
        learner.predict(BLOBS[0][0], 0)
        return learner.state_dict()["tensors"]

    net = MLP(4, (16, 8), seed=1)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    assert same_tensors(learn(0), learn(0))
    assert not same_tensors(learn(0), learn(1))
    assert same_tensors(before, net.state_dict())


@pytest.mark.parametrize("kind", ["progressive", "pnc"])
def test_bad_data_is_refused_before_anything_changes(kind):
    learner = make(kind, steps=3)
    learner.fit(*BLOBS[0])
    before = learner.state_dict()
    x, y = BLOBS[1]
    for bad in [(x, y[1:]), (x * math.nan, y), (x[:, :3], y), (x, y.float()), (x, torch.zeros_like(y))]:
        with pytest.raises(frcl.DataError):
            learner.fit(*bad)
    if kind == "pnc":
        with pytest.raises(frcl.OptionError, match="size"):
            learner.fit(x, y, size=-1)
    assert same_tensors(before["tensors"], learner.state_dict()["tensors"])
    assert before["meta"] == learner.state_dict()["meta"]


@pytest.mark.parametrize("kind", ["progressive", "pnc"])
def test_states_that_do_not_fit_are_refused(kind):
    learner = make(kind, steps=3)
    learner.fit(*BLOBS[0])

    def stop(log):
        raise Stop

    with pytest.raises(Stop):
        learner.fit(*BLOBS[1], on_step=stop)
    state = learner.state_dict()
    with pytest.raises(frcl.CheckpointError, match=r"does not fit|makes no sense"):
        make(kind, net=MLP(4, (16, 9)), steps=3).load_state_dict(state)
    with pytest.raises(frcl.CheckpointError, match="other options"):
        make(kind, steps=4).load_state_dict(state)
    for lost in ("lateral/3", "head", "layers.1.weight"):
        name = f"own/columns/1/{lost}" if kind == "progressive" else f"own/active/{lost}"
        tensors = {n: v for n, v in state["tensors"].items() if n != name}
        meta = copy.deepcopy(state["meta"])
        del (meta["own"]["columns"][1] if kind == "progressive" else meta["own"]["active"])[lost]
        fresh = make(kind, steps=3)
        untouched = fresh.state_dict()["tensors"]
        with pytest.raises(frcl.CheckpointError, match=f"{lost}.*absent"):
            fresh.load_state_dict({"meta": meta, "tensors": tensors})
        with pytest.raises(frcl.CheckpointError, match=f'{lost}" is not in the file'):
            fresh.load_state_dict({"meta": state["meta"], "tensors": tensors})
        assert same_tensors(untouched, fresh.state_dict()["tensors"])
    fresh = make(kind, steps=3)
    untouched, meta = fresh.state_dict(), copy.deepcopy(state["meta"])
    del meta["adam"]["exp_avg"][next(iter(meta["adam"]["exp_avg"]))]
    with pytest.raises(frcl.CheckpointError, match="moments of Adam"):
        fresh.load_state_dict({"meta": meta, "tensors": state["tensors"]})
    assert same_tensors(untouched["tensors"], fresh.state_dict()["tensors"])
    assert untouched["meta"] == fresh.state_dict()["meta"]


@pytest.mark.parametrize("kind", ["progressive", "pnc"])
def test_a_new_column_is_learned_by_the_cross_entropy_of_what_it_predicts(kind):
    learner = make(kind)
    for number, (x, y) in enumerate(BLOBS):
        terms, program = next_terms(learner, (x, y))
        torch.testing.assert_close(terms.loss, F.cross_entropy(learner.predict(x, number).mean, program.y))
        assert torch.equal(terms.log_likelihood, -terms.loss)
        assert not terms.kl_now.any()
        assert not terms.kl_past.any()
        learner.fit(x, y)


# -- progressive networks -----------------------------------------------------------------------------------


def test_frozen_columns_and_what_they_predict_stay_bit_for_bit():
    learner = make("progressive")
    columns, predictions = [], []
    for number, (x, y) in enumerate(BLOBS):
        learner.fit(x, y)
        columns.append(part(learner.state_dict(), f"own/columns/{number}/"))
        predictions.append(learner.predict(x, number))
    for number, (x, _) in enumerate(BLOBS):
        now = learner.predict(x, number)
        assert same_tensors(columns[number], part(learner.state_dict(), f"own/columns/{number}/"))
        assert torch.equal(predictions[number].probs, now.probs)
        assert torch.equal(predictions[number].labels, now.labels)
        assert not now.variance.any()


def test_how_many_steps_the_finished_columns_are_computed_for_changes_nothing(monkeypatch):
    def learned() -> tuple[list[int], Tensor]:
        learner, chunks = make("progressive", batch_size=8), []
        for x, y in BLOBS:
            chunks.append(next_terms(learner, (x, y))[1].chunk)
            learner.fit(x, y)
        return chunks, learner.predict(BLOBS[2][0], 2).mean

    whole, one = learned()
    monkeypatch.setattr("frcl.engine.ahead.AT_ONCE", 1 << 14)
    parts, other = learned()
    assert whole == [100, 100, 100]
    assert parts == [100, 21, 10]  # a step of 8 examples: 24 activations of 4 bytes in each finished column
    torch.testing.assert_close(one, other)


def test_a_task_is_predicted_from_its_column_and_those_before_it():
    learner = make("progressive", steps=20)
    for task in BLOBS:
        learner.fit(*task)
    x = BLOBS[1][0]
    before = [learner.predict(x, t).mean for t in range(3)]
    state = learner.state_dict()
    assert state["tensors"]["own/columns/1/lateral/3"].abs().max() > 0
    state["tensors"]["own/columns/1/layers.1.weight"] += 0.1
    learner.load_state_dict(state)
    after = [learner.predict(x, t).mean for t in range(3)]
    assert [torch.equal(a, b) for a, b in zip(before, after, strict=True)] == [True, False, False]


def test_the_first_column_starts_at_the_network_and_the_next_at_weights_of_its_own():
    net, starts = MLP(4, (16, 8), seed=1), []

    def watch(log):
        if log.step == 1:
            starts.append(part(learner.state_dict(), f"own/columns/{log.task}/layers.1.weight"))

    learner = make("progressive", net=net, steps=2, lr=1e-6)
    for task in BLOBS:
        learner.fit(*task, on_step=watch)
    weights = [next(iter(start.values())) for start in starts]
    torch.testing.assert_close(weights[0], net.layers[1].weight.detach(), rtol=0, atol=2e-6)
    for a, b in itertools.combinations(weights, 2):
        assert (a - b).abs().mean() > 0.1


def test_bytes_of_columns_laterals_and_heads():
    learner = make("progressive", steps=1)
    for task in BLOBS:
        learner.fit(*task)
    network = 4 * 16 + 16 + 16 * 8 + 8
    heads = (2 + 3 + 2) * 9
    laterals = (1 + 2) * 16 * 8 + 3 * 8 + 2 * 2 * 8
    assert learner.memory_bytes() == 4 * (3 * network + heads + laterals)


# -- progress & compress ------------------------------------------------------------------------------------


def test_each_phase_moves_its_own_part_only():
    learner = make("pnc", steps=8, compress_steps=6)
    learner.fit(*BLOBS[0])
    start, states, logs = learner.state_dict(), [], []

    def watch(log):
        logs.append(log)
        states.append(learner.state_dict())

    learner.fit(*BLOBS[1], on_step=watch)
    assert [log.step for log in logs] == list(range(1, 15))
    assert {log.task for log in logs} == {1}
    for log in logs:
        assert log.loss == pytest.approx(-log.log_likelihood + log.kl_past, abs=1e-6)
        assert (log.kl_past > 0) == (log.step > 9)  # zero at the anchor, where the first compress step begins
    progress, compress = states[:8], states[8:]
    for state in progress:
        assert same_tensors(part(start, "net/"), part(state, "net/"))
        assert same_tensors(part(progress[0], "own/head"), part(state, "own/head"))
        assert same_tensors(part(start, "past/"), part(state, "past/"))
    moved = [progress[-1], *compress]
    for one, two in itertools.pairwise(moved):
        assert same_tensors(part(one, "own/active/"), part(two, "own/active/"))
        assert not torch.equal(one["tensors"]["net/layers.1.weight"], two["tensors"]["net/layers.1.weight"])
        assert not torch.equal(one["tensors"]["own/head"], two["tensors"]["own/head"])
        assert torch.equal(one["tensors"]["past/0/head"], two["tensors"]["past/0/head"])
    for one, two in itertools.pairwise(progress):
        assert not torch.equal(
            one["tensors"]["own/active/layers.1.weight"], two["tensors"]["own/active/layers.1.weight"]
        )
    assert not part(learner.state_dict(), "own/")


def test_the_phases_are_two_programs_one_after_the_other():
    learner = make("pnc", steps=8, compress_steps=6)
    work = learner.learn(*BLOBS[0])
    progress = next(work)
    assert (progress.step, progress.first, progress.stop) == (0, 0, 8)
    assert len(list(train([progress]))) == 8
    compress = next(work)
    assert (compress.step, compress.first, compress.stop) == (8, 8, 14)
    assert compress.optimiser is not progress.optimiser
    assert len(list(train([compress]))) == 6
    assert next(work, None) is None
    assert learner.predict(BLOBS[0][0], 0).mean.isfinite().all()


def at_compress_start(learner: ProgressAndCompress, data: tuple[Tensor, Tensor]) -> None:
    def stop(log):
        if log.step == learner.options.steps:
            raise Stop

    with pytest.raises(Stop):
        learner.fit(*data, on_step=stop)


def active_functions(learner: ProgressAndCompress, x: Tensor) -> Tensor:
    """The functions of the active column."""
    return learner._columns.logits_after(learner._known(), learner._own.active, x).detach()


def test_the_teacher_is_one_fixed_function():
    learner = make("pnc", steps=20, compress_steps=20, strength=0.0)
    learner.fit(*BLOBS[0])
    at_compress_start(learner, BLOBS[1])
    x, seen = BLOBS[1][0], []
    before, first_base = active_functions(learner, x), learner._anchor.anchor["layers.1.weight"].clone()
    learner.fit(*BLOBS[1], on_step=lambda log: seen.append(active_functions(learner, x)))
    assert all(torch.equal(before, now) for now in seen)
    assert not torch.equal(learner._anchor.anchor["layers.1.weight"], first_base)  # and the knowledge base moved


def test_the_compress_loss_is_a_divergence_and_a_penalty():
    learner = make("pnc", steps=20, strength=3.0, temperature=2.0)
    learner.fit(*BLOBS[0])
    at_compress_start(learner, BLOBS[1])
    x, y = BLOBS[1]
    anchor = {name: value.detach().clone() for name, value in learner.net.named_parameters()}
    with torch.no_grad():
        for value in learner.net.parameters():
            value += 0.01
    terms, _ = next_terms(learner, (x, y))
    Phi = torch.cat([learner.net(x), torch.ones(len(x), 1)], 1)
    student = Phi @ learner.state_dict()["tensors"]["own/head"].T
    teacher = active_functions(learner, x)
    kl = kl_divergence(Categorical(logits=teacher / 2), Categorical(logits=student / 2))
    torch.testing.assert_close(-terms.log_likelihood, 4 * kl.mean())
    place = "regularisers/0/precision/"
    precision = {n.removeprefix(place): v for n, v in part(learner.state_dict(), place).items()}
    expected = sum(0.5 * (precision[n] * (p - anchor[n]) ** 2).sum() for n, p in learner.net.named_parameters())
    torch.testing.assert_close(terms.kl_past, 3.0 / len(y) * expected)
    torch.testing.assert_close(terms.loss, 4 * kl.mean() + 3.0 / len(y) * expected)


def test_distillation_has_no_gradient_where_the_knowledge_base_is_the_active_column():
    learner = make("pnc", steps=20)
    learner.fit(*BLOBS[0])
    at_compress_start(learner, BLOBS[1])

    def gradient() -> float:
        terms, program = next_terms(learner, BLOBS[1])
        leaves = program.optimiser.params.values()
        return max(float(g.abs().max()) for g in torch.autograd.grad(terms.log_likelihood, leaves))

    assert gradient() > 1e-2
    with torch.no_grad():
        active = learner._own.active
        for name, value in active.items():
            if name.startswith("lateral"):
                value.zero_()
        for name, value in learner.net.named_parameters():
            value.copy_(active[name])
        learner._own.head.copy_(active["head"])
    assert gradient() < 1e-6


def test_importance_is_the_running_fisher_information():
    learner = make("pnc", steps=20, decay=0.6)
    expected: dict[str, Tensor] = {}
    for number, (x, y) in enumerate(BLOBS[:2]):
        size = 1000 * (number + 1)
        learner.fit(x, y, size=size)
        tensors = learner.state_dict()["tensors"]
        head = tensors[f"past/{number}/head"]
        shared = {name: value.detach() for name, value in learner.net.named_parameters()}

        def logits(params, rows, head=head):
            out = torch.func.functional_call(learner.net, params, (rows,))
            return out @ head[:, :-1].T + head[:, -1]

        fisher = diagonal_fisher(logits, shared, x, y, Softmax(tuple(sorted(set(y.tolist())))))
        expected = {n: 0.6 * expected.get(n, torch.zeros(())) + size * f for n, f in fisher.items()}
        for name, value in shared.items():
            assert torch.equal(tensors[f"regularisers/0/anchor/{name}"], value)
            torch.testing.assert_close(
                tensors[f"regularisers/0/precision/{name}"], expected[name], rtol=1e-4, atol=1e-6
            )


def product_of_signs(seed: int) -> tuple[Tensor, Tensor]:
    """A task that needs its own hidden features: the sign of a product of two random projections."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(400, 4, generator=g)
    a, b = torch.randn(2, 4, generator=g)
    return x, ((x @ a) * (x @ b) > 0).long()


CONFLICTING = [product_of_signs(seed) for seed in (1, 2, 3)]


def at_the_end(strength: float) -> list[float]:
    learner = make("pnc", net=MLP(4, (40, 20), seed=1), steps=300, compress_steps=400, strength=strength)
    for task in CONFLICTING:
        learner.fit(*task)
    return [accuracy(learner, *task, number) for number, task in enumerate(CONFLICTING)]


@pytest.mark.slow
def test_the_penalty_is_what_holds_old_tasks():
    held, free = at_the_end(10.0), at_the_end(0.0)
    assert held[0] > 0.95
    assert sum(held) / 3 > 0.92
    assert free[0] < 0.8
    assert free[2] > 0.95


def displacement(strength: float) -> Tensor:
    learner = make("pnc", steps=20, strength=strength, compress_steps=100)
    learner.fit(*CONFLICTING[0])
    before = learner.state_dict()["tensors"]
    learner.fit(*CONFLICTING[1])
    after = learner.state_dict()["tensors"]
    names = [name for name in before if name.startswith("net/")]
    matters = torch.cat([before[f"regularisers/0/precision/{n[4:]}"].flatten() for n in names]) > 1e-3
    return torch.cat([(after[n] - before[n]).flatten().abs() for n in names])[matters]


def test_a_strong_penalty_holds_the_knowledge_base_where_it_is():
    assert displacement(0.0).max() > 0.05
    assert displacement(1e8).max() < 1e-3


def test_while_a_task_is_in_progress_its_active_column_predicts():
    learner = make("pnc", steps=100, compress_steps=5)
    learner.fit(*BLOBS[0])
    x, y = BLOBS[1]
    at_compress_start(learner, (x, y))
    assert accuracy(learner, x, y, 1) > 0.9
    torch.testing.assert_close(learner.predict(x, 1).mean, active_functions(learner, x))
    old = learner.predict(BLOBS[0][0], 0).mean
    Phi = torch.cat([learner.net(BLOBS[0][0]), torch.ones(len(BLOBS[0][0]), 1)], 1)
    torch.testing.assert_close(old, (Phi @ learner.state_dict()["tensors"]["past/0/head"].T).detach())
    learner.fit(x, y)
    Phi = torch.cat([learner.net(x), torch.ones(len(x), 1)], 1)
    torch.testing.assert_close(
        learner.predict(x, 1).mean, (Phi @ learner.state_dict()["tensors"]["past/1/head"].T).detach()
    )


def test_bytes_of_heads_anchor_and_importance():
    learner = make("pnc", steps=1, compress_steps=1)
    for task in BLOBS:
        learner.fit(*task)
    network = 4 * 16 + 16 + 16 * 8 + 8
    assert learner.memory_bytes() == 4 * (2 * network + (2 + 3 + 2) * 9)


def test_fixed_weights_of_the_knowledge_base_stay():
    net = MLP(4, (16, 8), seed=1)
    net.layers[1].weight.requires_grad_(False)
    learner = make("pnc", net=net, steps=5, compress_steps=5)
    for task in BLOBS[:2]:
        learner.fit(*task)
    assert torch.equal(net.layers[1].weight, learner.net.layers[1].weight)
    assert not torch.equal(net.layers[3].weight, learner.net.layers[3].weight)
