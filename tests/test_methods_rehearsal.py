"""Methods with one head and a memory: which examples are kept, each loss by value, one softmax over all labels."""

import math
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.stats import chisquare
from torch import nn

from frcl import MLP, DataError, LabelError, OptionError, TaskError
from frcl.baselines.agem import conflict
from frcl.baselines.derpp import distance_to_logits
from frcl.baselines.memory import Batch, Memory, drawn_batch, greedy_balanced, placed
from frcl.baselines.penalised import Parameters
from frcl.errors import CheckpointError
from frcl.learners.state import reservoir_places
from frcl.methods import METHODS, make_learner
from frcl.summary import StoredInputs
from streams import blobs, same_tensors

D = torch.float64
RESERVOIRS = ("er", "derpp", "agem")
NAMES = (*RESERVOIRS, "gdumb")
TASKS = [blobs((0, 1), 60, 1), blobs((2, 3, 4), 60, 2), blobs((5, 6), 60, 3)]
SMALL = {"steps": 12, "batch_size": 10, "points": 20, "lr": 5e-3}


def make(name, net=None, seed=0, **changes):
    options = METHODS[name].options
    given = {**SMALL, "memory_batch": 8, **changes}
    given = {key: value for key, value in given.items() if hasattr(options, key)}
    net = MLP(4, (16, 8), last="relu", seed=1) if net is None else net
    return make_learner(net, replace(options, **given), seed=seed, method=name)


def taught(name, tasks=TASKS, **changes):
    learner = make(name, **changes)
    for x, y in tasks:
        learner.fit(x, y)
    return learner


# -- which examples are kept -----------------------------------------------------------------------------------------


def kept_by_definition(n, M, sizes, seed):
    """Algorithm R, one example at a time, with the random numbers of each minibatch in turn."""
    generator, kept, seen = torch.Generator().manual_seed(seed), [], 0
    for size in sizes:
        for draw in torch.rand(size, generator=generator, dtype=D).tolist():
            if seen < M:
                kept.append(seen)
            elif (place := math.floor(draw * (seen + 1))) < M:
                kept[place] = seen
            seen += 1
    assert seen == n
    return kept


def kept_by_places(n, M, sizes, seed):
    generator, memory, seen = torch.Generator().manual_seed(seed), None, 0
    for size in sizes:
        places = reservoir_places(seen, 0 if memory is None else len(memory.row), size, M, generator)
        numbers = torch.arange(seen, seen + size)
        new = Memory(StoredInputs(numbers[:, None].double()), numbers, numbers, numbers[:, None].double(), numbers)
        memory = placed(memory, places, new)
        seen += size
    assert seen == n
    assert torch.equal(memory.x.inputs[:, 0].long(), memory.row)
    assert torch.equal(memory.logits[:, 0].long(), memory.row)
    assert torch.equal(memory.task, memory.row)
    assert torch.equal(memory.known, memory.row)
    return memory.row.tolist()


@pytest.mark.parametrize("sizes", [[1] * 40, [7] * 5 + [5], [40], [3, 30, 7]])
def test_the_reservoir_is_that_of_one_example_at_a_time(sizes):
    for seed in range(20):
        assert kept_by_places(40, 9, sizes, seed) == kept_by_definition(40, 9, sizes, seed)


def test_every_example_is_kept_with_the_same_probability():
    n, M, trials = 30, 6, 3000
    counts, pairs = np.zeros(n), np.zeros((2, 2))
    for seed in range(trials):
        kept = kept_by_places(n, M, [4] * 7 + [2], seed)
        assert len(set(kept)) == M
        counts[kept] += 1
        pairs[int(0 in kept), int(n - 1 in kept)] += 1
    # chosen without replacement the counts vary by (n − M)/(n − 1) less than a multinomial
    assert chisquare(counts * 1.0).statistic * (1 - 1 / n) / (1 - M / n) < 52.3  # 99.5 % of χ² with 29 degrees
    both = trials * M * (M - 1) / (n * (n - 1))
    assert abs(pairs[1, 1] - both) < 4 * math.sqrt(both)


def test_emptied_places_are_filled_first():
    generator = torch.Generator().manual_seed(0)
    assert reservoir_places(100, 3, 2, 5, generator) == [3, 4]
    assert all(place < 5 for place in reservoir_places(102, 5, 50, 5, generator))


def greedy_by_definition(stream, K, draws):
    """GDumb's Algorithm 1 on a dictionary of lists."""
    D_c = {}
    for (number, label), draw in zip(stream, draws, strict=True):
        D_c.setdefault(label, [])
        k_c = K / len(D_c)
        if len(D_c[label]) < k_c:
            if sum(map(len, D_c.values())) >= K:
                most = max(len(one) for one in D_c.values())
                largest = next(one for one in D_c.values() if len(one) == most)
                largest.pop(int(draw * len(largest)))
            D_c[label].append(number)
    return {number for one in D_c.values() for number in one}


@pytest.mark.parametrize("K", [1, 3, 7, 20, 200])
def test_the_greedy_choice_is_that_of_its_definition(K):
    dice = random.Random(K)
    for _ in range(60):
        labels = [dice.choice([0, 0, 0, 1, 2, 5]) for _ in range(dice.randrange(1, 90))]
        draws = [dice.random() for _ in labels]
        kept = greedy_balanced(labels, [], (), K, draws)
        assert set(kept) == greedy_by_definition(list(enumerate(labels)), K, draws)
        assert len(kept) <= K
        share = math.floor(K / len(set(labels)))
        for label in set(labels):
            assert sum(labels[i] == label for i in kept) >= min(share, labels.count(label))


def test_the_greedy_choice_goes_on_where_it_stopped():
    labels = [0] * 30 + [1] * 4 + [2] * 30
    whole = greedy_balanced(labels, [], (), 12, [0.0] * 64)
    first = greedy_balanced(labels[:34], [], (), 12, [0.0] * 34)
    then = greedy_balanced(labels[34:], [labels[i] for i in first], (0, 1), 12, [0.0] * 30)
    numbers = [*first, *range(34, 64)]
    assert [numbers[i] for i in then] == whole
    assert [labels[i] for i in whole] == [0] * 4 + [1] * 4 + [2] * 4


def test_a_batch_is_drawn_without_replacement_and_filled_up_without_weight(generator):
    x = torch.randn(5, 3, generator=generator)
    memory = Memory(StoredInputs(x), torch.tensor([0, 1, 2, 0, 1]), torch.tensor([0, 0, 1, 1, 1]))
    like, head = torch.randn(2, 3, generator=generator), torch.zeros(3, 8)
    seen = torch.zeros(5)
    for _ in range(300):
        batch = drawn_batch(memory, 3, like, head, generator)
        rows = [x.eq(one).all(1).nonzero().item() for one in batch.x]
        assert len(set(rows)) == 3
        assert torch.equal(batch.row, memory.row[rows])
        assert batch.weight.tolist() == [1, 1, 1]
        seen[rows] += 1
    assert bool(((seen - 180).abs() < 45).all())  # 5 standard deviations
    few = drawn_batch(memory, 4, like, head, generator, before=1)
    assert few.weight.tolist() == [1, 1, 0, 0]
    assert {tuple(one) for one in few.x.tolist()} == {tuple(one) for one in x[:2].tolist()}
    for none in (drawn_batch(None, 2, like, head, generator), drawn_batch(memory, 2, like, head, generator, before=0)):
        assert none.weight.tolist() == [0, 0]
        assert torch.equal(none.x, like[:1].expand(2, 3))


# -- losses ----------------------------------------------------------------------------------------------------------


def step_of(name, generator, **changes):
    """A learner in its second task, the program of its steps, and the parameters and draws of the next step."""
    net = MLP(4, (16, 8), last="relu", seed=1).double()
    learner = make(name, net, **changes)
    learner.fit(*TASKS[0])
    program = next(learner.learn(*TASKS[1]))
    drawn = program.draw(1)
    x, y = program.x[drawn.rows[0]], program.y[drawn.rows[0]]
    draws = type(drawn.draws)(
        tuple(Batch(*(None if one is None else one[0] for one in batch)) for batch in drawn.draws.batches),
        *(one[0] for one in drawn.draws[1:]),
    )
    return learner, program, draws, x, y


def f_of(learner, x):
    return learner.features(dict(learner.net.named_parameters()), x) @ learner._own.head.mT


@pytest.mark.parametrize("points", [4, 20])
def test_experience_replay_is_the_mean_over_both_minibatches(generator, points):
    learner, program, draws, x, y = step_of("er", generator, points=points)
    (old,) = draws.batches
    real = old.weight > 0
    assert int(real.sum()) == min(8, points)
    f = f_of(learner, torch.cat([x, old.x[real]]))
    expected = F.cross_entropy(f, torch.cat([y, old.row[real]]))
    terms = program.loss(program.optimiser.tree, program.constants, x, y, draws)
    torch.testing.assert_close(terms.loss, expected)
    torch.testing.assert_close(terms.loss, -terms.log_likelihood + terms.kl_past)


@pytest.mark.parametrize(("alpha", "beta"), [(0.0, 0.0), (0.3, 0.0), (0.0, 0.7), (0.2, 1.0)])
def test_derpp_by_its_formula(generator, alpha, beta):
    learner, program, draws, x, y = step_of("derpp", generator, alpha=alpha, beta=beta)
    dark, labelled = draws.batches
    assert not torch.equal(dark.row, labelled.row)
    assert not torch.equal(dark.x, labelled.x)
    loss = F.cross_entropy(f_of(learner, x), y)
    loss = loss + alpha * F.mse_loss(f_of(learner, dark.x)[:, :2], dark.logits[:, :2])  # two labels were known then
    loss = loss + beta * F.cross_entropy(f_of(learner, labelled.x), labelled.row)
    terms = program.loss(program.optimiser.tree, program.constants, x, y, draws)
    torch.testing.assert_close(terms.loss, loss)


def test_logits_that_were_not_there_do_not_count(generator):
    f, z = torch.randn(3, 4, generator=generator, dtype=D), torch.randn(3, 4, generator=generator, dtype=D)
    there = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0]], dtype=D)
    weight = torch.tensor([1.0, 1.0, 0.0], dtype=D)
    found = distance_to_logits(f, Batch(z, torch.zeros(3), weight, z, there))
    squares = [(f[i, c] - z[i, c]) ** 2 for i, count in ((0, 4), (1, 2)) for c in range(count)]
    torch.testing.assert_close(found, sum(squares) / 6)
    assert float(distance_to_logits(f, Batch(z, torch.zeros(3), weight, f, there))) == 0.0


def test_the_logits_are_those_before_the_step():
    """Of the first minibatch: from the initial weights."""
    learner = make("derpp", points=10, batch_size=10, classes=2, steps=1)
    first = make("derpp", points=10, batch_size=10, classes=2, steps=1)
    program = next(first.learn(*TASKS[0]))
    x = program.x[program.draw(1).rows[0]]
    expected = f_of(first, x)
    learner.fit(*TASKS[0])
    memory = learner._own.memory
    assert torch.equal(memory.x.inputs, x)
    torch.testing.assert_close(memory.logits, expected)
    assert memory.known.tolist() == [2] * 10


def direct_projection(g, r):
    """Of Chaudhry et al., equation 11, on vectors."""
    dot = torch.dot(g, r)
    return g if dot >= 0 else g - dot / torch.dot(r, r) * r


@pytest.mark.parametrize("angle", [0.2, 1.5, 1.7, 3.1])
def test_the_projection_is_its_closed_form_and_the_nearest_direction_without_conflict(angle, generator):
    r = torch.randn(12, generator=generator, dtype=D)
    other = torch.randn(12, generator=generator, dtype=D)
    other -= torch.dot(other, r) / torch.dot(r, r) * r
    g = 2 * (math.cos(angle) * r / r.norm() + math.sin(angle) * other / other.norm())
    split = lambda v: {"a": v[:5].view(5, 1), "b": v[5:]}  # noqa: E731
    found = g + conflict(split(g), split(r)) * r
    torch.testing.assert_close(found, direct_projection(g, r))
    assert float(torch.dot(found, r)) >= -1e-12
    if angle < math.pi / 2:
        assert torch.equal(found, g)
    for _ in range(200):
        near = found + 0.3 * torch.randn(12, generator=generator, dtype=D)
        if torch.dot(near, r) >= 0:
            assert (near - g).norm() >= (found - g).norm()


def test_nothing_conflicts_with_nothing():
    g = {"a": torch.tensor([1.0, -1.0])}
    assert float(conflict(g, {"a": torch.zeros(2)})) == 0.0


def test_a_step_of_agem_goes_down_the_projected_gradient(generator):
    conflicts = []
    for seed in range(6):
        learner, program, draws, x, y = step_of("agem", generator, seed=seed)
        (old,) = draws.batches
        assert set(old.row.tolist()) <= {0, 1}, "examples of past tasks alone"
        tree = program.optimiser.tree
        params = list(program.optimiser.params.values())
        new, past = F.cross_entropy(f_of(learner, x), y), F.cross_entropy(f_of(learner, old.x), old.row)
        terms = program.loss(tree, program.constants, x, y, draws)
        flat = [
            torch.cat([one.flatten() for one in torch.autograd.grad(loss, params, allow_unused=False)])
            for loss in (new, past, terms.loss)
        ]
        g, r, found = flat
        conflicts.append(float(torch.dot(g, r)) < 0)
        torch.testing.assert_close(found, direct_projection(g, r))
        assert float(torch.dot(found, r)) >= -1e-10
        assert (terms.kl_past > 0) == conflicts[-1]
    assert any(conflicts)
    learner = make("agem")
    program = next(learner.learn(*TASKS[0]))
    drawn = program.draw(1)
    assert float(drawn.draws.batches[0].weight.sum()) == 0, "the first task has none before it"


def test_agem_protects_past_tasks_alone():
    """Also when the memory has examples of the current one."""
    learner = make("agem")
    for number, task in enumerate(TASKS[:2]):
        for _ in range(3):
            learner.observe(*task)
        x, y = task
        assert number in learner._own.memory.task
        (old,) = learner._replayed(x, y).batches
        assert bool((old.weight > 0).any()) == (number > 0)
        assert set(old.row[old.weight > 0].tolist()) <= {0, 1}
        learner.end_task()


# -- one head --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_one_softmax_over_all_labels(name):
    learner = taught(name)
    x = torch.cat([one for one, _ in TASKS])
    p = learner.predict(x)
    theta = learner._own.theta if name == "gdumb" else dict(learner.net.named_parameters())
    f = learner.features(theta, x) @ learner._own.head.mT
    torch.testing.assert_close(p.probs, f.softmax(1).detach())
    assert p.classes == tuple(range(7))
    start = 0
    for k, C in enumerate((2, 3, 2)):
        own = slice(start, start + C)
        torch.testing.assert_close(p.task_probs[:, k], p.probs[:, own].sum(1))
        torch.testing.assert_close(learner.predict(x, task=k).probs, f[:, own].softmax(1).detach())
        torch.testing.assert_close(p.in_task(k).probs, learner.predict(x, task=k).probs)
        start += C


@pytest.mark.parametrize("name", NAMES)
def test_labels_of_several_tasks_are_one_row(name):
    tasks = [blobs((7, 3), 60, 1), blobs((7, 3), 60, 2), blobs((3, 9), 60, 3)]
    learner = taught(name, tasks)
    assert learner._own.labels == (3, 7, 9)
    assert len(learner._own.head) == 3
    p = learner.predict(tasks[0][0])
    each = [[1 / 3, 1 / 2, 0], [1 / 3, 1 / 2, 0], [1 / 3, 0, 1]]
    torch.testing.assert_close(p.task_probs, p.probs @ torch.tensor(each).mT)
    named = p.probs[:, :2] / p.probs[:, :2].sum(1, keepdim=True)
    torch.testing.assert_close(learner.predict(tasks[0][0], task=1).probs, named)
    learner.forget(2)
    assert learner._own.labels == (3, 7)
    assert set(learner._own.memory.row.tolist()) <= {0, 1}


@pytest.mark.parametrize("name", NAMES)
def test_a_head_of_fixed_size(name):
    learner = make(name, classes=7)
    learner.fit(*TASKS[0])
    assert learner._own.head.shape == (7, 9)
    assert learner.predict(TASKS[0][0]).classes == (0, 1)
    twin = make(name, classes=7)
    twin.load_state_dict(learner.state_dict())
    learner.fit(*TASKS[1])
    before = learner.state_dict()
    for labels in ((7, 8), ("a", "b")):
        wrong = np.array(labels)[np.arange(60) % 2]
        with pytest.raises(LabelError, match="0 to 6"):
            learner.fit(TASKS[2][0], wrong)
    assert same_tensors(before["tensors"], learner.state_dict()["tensors"])
    learner.forget(0)
    assert learner._own.head.shape == (7, 9)
    assert torch.equal(learner._own.head[:2], torch.zeros(2, 9))
    assert learner.predict(TASKS[0][0]).classes == (2, 3, 4)
    with pytest.raises(CheckpointError):
        make(name).load_state_dict(learner.state_dict())


def test_labels_are_integers_or_texts():
    learner = taught("er", TASKS[:1])
    with pytest.raises(LabelError, match="one kind"):
        learner.fit(TASKS[1][0], np.array(["a", "b"])[np.arange(60) % 2])
    with pytest.raises(DataError, match="floats"):
        learner.observe(TASKS[1][0], torch.rand(60))


# -- streams ---------------------------------------------------------------------------------------------------------


def stream(seed=0):
    """Minibatches of all tasks in order, each with the labels of its own task."""
    parts = [part for x, y in TASKS for part in zip(x.split(10), y.split(10), strict=True)]
    return parts[:3] + [parts[3 + i] for i in torch.randperm(15, generator=torch.Generator().manual_seed(seed))]


@pytest.mark.parametrize("name", RESERVOIRS)
def test_a_stream_is_the_same_steps_as_fit(name):
    """On the same minibatches: every tensor of the state is equal."""
    whole, streamed = (make(name, classes=7) for _ in range(2))
    logs = []
    whole.fit(*TASKS[0], on_step=logs.append)
    x, y = TASKS[0]
    order = make(name, classes=7)
    next(order.learn(x, y))
    for step in range(12):
        order._state.optimiser.steps = step
        rows = order._pick(1, len(x))[0]
        log = streamed.observe(x[rows], y[rows])
        assert (log.task, log.step) == (0, step + 1)
        assert log.loss == pytest.approx(logs[step].loss, rel=1e-6)
    streamed.end_task()
    a, b = whole.state_dict(), streamed.state_dict()
    ignored = "streams/"  # fit() draws rows from one that observe() does not need
    for key, value in a["tensors"].items():
        if not key.startswith(ignored):
            torch.testing.assert_close(b["tensors"][key], value, rtol=1e-5, atol=1e-6, msg=key)


@pytest.mark.parametrize("name", RESERVOIRS)
def test_labels_may_appear_at_any_time_and_no_boundary_is_needed(name):
    learner = make(name, points=30, lr=2e-2)
    seen = set()
    for x, y in stream() * 8:
        learner.observe(x, y)
        seen |= set(y.tolist())
        p = learner.predict(x)
        assert p.classes == tuple(sorted(seen))
        torch.testing.assert_close(p.probs.sum(1), torch.ones(10))
    torch.testing.assert_close(p.in_task(0).probs, p.probs)  # the stream is one task
    assert set(learner._own.labels) == set(range(7))
    assert learner._own.seen == 8 * 180
    assert len(learner._own.memory.row) == 30
    x, y = (torch.cat(part) for part in zip(*TASKS, strict=True))
    if name != "agem":  # without a boundary no task is past
        assert float((learner.predict(x).labels == y).float().mean()) > 0.8
    learner.end_task()
    assert learner.memory_bytes() > 0
    assert torch.equal(learner.predict(x).probs, learner.predict(x, task=0).probs)


def test_the_learning_rate_of_a_stream_neither_rises_nor_falls():
    plain, other = make("er"), make("er", warm_up=0.5, lr_decay=0.5)
    for x, y in stream()[:5]:
        assert plain.observe(x, y).loss == other.observe(x, y).loss


@pytest.mark.parametrize("name", NAMES)
def test_a_stream_goes_on_from_a_saved_state_bit_for_bit(name):
    parts, whole = stream(), make(name)
    for x, y in parts[:7]:
        whole.observe(x, y)
    resumed = make(name)
    resumed.load_state_dict(whole.state_dict())
    for learner in (whole, resumed):
        for x, y in parts[7:]:
            learner.observe(x, y)
        learner.end_task()
    assert same_tensors(whole.state_dict()["tensors"], resumed.state_dict()["tensors"])
    assert whole.state_dict()["meta"] == resumed.state_dict()["meta"]
    for learner in (whole, resumed):
        learner.fit(*blobs((0, 8), 60, 4))
    assert same_tensors(whole.state_dict()["tensors"], resumed.state_dict()["tensors"])


@pytest.mark.parametrize("name", NAMES)
def test_what_a_stream_refuses_leaves_no_trace(name):
    learner = taught(name, TASKS[:1])
    with pytest.raises(TaskError, match="observe"):
        learner.end_task()
    learner.observe(*stream()[0])
    before = learner.state_dict()
    for x, y, error in (
        (torch.full((4, 4), math.nan), [0, 1, 9, 9], DataError),
        (torch.ones(4, 4), [0.5, 1.0, 2.0, 3.0], DataError),
        (torch.ones(4, 4), [0, 1], DataError),
        (torch.ones(4, 4), ["a", "b", "a", "b"], LabelError),
        (torch.ones(4, 3), [0, 1, 0, 1], DataError),
    ):
        with pytest.raises(error):
            learner.observe(x, y)
    with pytest.raises(TaskError, match="still open"):
        learner.fit(*TASKS[1])
    with pytest.raises(TaskError, match="still open"):
        learner.forget(0)
    after = learner.state_dict()
    assert before["meta"] == after["meta"]
    assert same_tensors(before["tensors"], after["tensors"])
    with pytest.raises(OptionError, match="all examples of a task at once"):
        make(name, task_inference="exact").observe(*stream()[0])


@pytest.mark.parametrize("name", RESERVOIRS)
def test_a_step_that_is_refused_takes_the_new_labels_back(name):
    class Root(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(4, 6, bias=False)

        def forward(self, x):
            return self.first(x).abs().sqrt()

    torch.manual_seed(0)
    learner = make(name, Root())
    learner.observe(*TASKS[0])
    before = learner.state_dict()
    with pytest.raises(Exception, match="not finite"):
        learner.observe(torch.zeros(4, 4), [0, 1, 9, 9])
    after = learner.state_dict()
    assert before["meta"] == after["meta"]
    assert same_tensors(before["tensors"], after["tensors"])


# -- GDumb -----------------------------------------------------------------------------------------------------------


def test_gdumb_learns_its_memory_from_the_beginning():
    """By a loop of gradient descent from the initial weights, on the memory alone."""
    net = MLP(4, (16, 8), last="relu", seed=1).double()
    learner = make("gdumb", net, optimiser="sgd", lr=0.05, momentum=0.9, points=15)
    learner.fit(*TASKS[0])
    program = next(learner.learn(*TASKS[1]))
    head = learner._own.head.detach().clone()
    rows = learner._pick(12, 15)
    memory = learner._own.memory
    assert torch.bincount(memory.row).tolist() == [3] * 5
    learner.fit(*TASKS[1])
    params = [*(one.detach().clone() for one in net.parameters()), head]
    moments = [torch.zeros_like(one) for one in params]
    for picked in rows:
        for one in params:
            one.requires_grad_(True)
        f = learner.features(dict(zip(dict(net.named_parameters()), params, strict=False)), memory.x.inputs[picked])
        gradients = torch.autograd.grad(F.cross_entropy(f @ params[-1].mT, memory.row[picked]), params)
        moments = [0.9 * m + g for m, g in zip(moments, gradients, strict=True)]
        params = [(one - 0.05 * m).detach() for one, m in zip(params, moments, strict=True)]
    for one, other in zip((*learner._own.theta.values(), learner._own.head), params, strict=True):
        torch.testing.assert_close(one.detach(), other)
    assert program.stop == 12
    for one, other in zip(learner.net.parameters(), net.parameters(), strict=True):
        assert torch.equal(one, other)


def test_gdumb_trains_at_the_end_of_a_stream():
    learner = make("gdumb", steps=150, points=40)
    for x, y in stream():
        log = learner.observe(x, y)
        assert math.isnan(log.loss)
    learner.end_task()
    x, y = (torch.cat(part) for part in zip(*TASKS, strict=True))
    assert float((learner.predict(x).labels == y).float().mean()) > 0.9
    assert set(torch.bincount(learner._own.memory.row).tolist()) <= {5, 6}


@pytest.mark.parametrize("name", NAMES)
def test_what_is_replayed_is_augmented_too(name):
    """Every image is moved by one pixel to the right, out of the picture for those that have something there only."""

    class Right:
        def draws(self, shape, generator):
            return torch.ones(tuple(shape))

        def apply(self, x, draws):
            return x.roll(1, 2) * draws[:, None, None]

        def __call__(self, x, generator):
            return self.apply(x, self.draws((len(x),), generator))

    seen = []
    net = nn.Sequential(nn.Flatten(), MLP(9, (8, 6), seed=1))
    learner = make(name, net, points=8)
    images = torch.zeros(40, 3, 3)
    images[torch.arange(40), 0, torch.arange(40) % 2] = 1.0
    learner.fit(images, torch.arange(40) % 2)
    net_of = learner.net.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    learner.fit(images, torch.arange(40) % 2, augment=Right())
    net_of.remove()
    trained = torch.cat([one for one in seen if len(one) in (10, 18, 26)])  # minibatches with what is replayed
    of = trained[:, 0].argmax(1)
    assert set(of.tolist()) <= ({0, 1, 2} if name == "derpp" else {1, 2})  # logits to keep are of images as they are
    assert 2 in of
    assert set(learner._own.memory.x.inputs[:, 0].argmax(1).tolist()) <= {0, 1}


def test_parameters_are_those_of_one_head():
    learner = make("er")
    program = next(learner.learn(*TASKS[0]))
    assert isinstance(program.optimiser.tree, Parameters)
    assert program.optimiser.tree.heads is None
    assert program.chunk == 1
