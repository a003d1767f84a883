"""A bound on the memory of all tasks: exact marginals, which points go, and that the bound holds."""

import math

import pytest
import torch

import frcl
from frcl import FRCL, MLP, CurrentInputs, Ensemble, FRCLPlus, FunctionalKL
from frcl.budget import Elimination, allowed_bytes, parsed_bytes, randomly_thinned, thinned
from frcl.errors import BudgetError, OptionError
from frcl.learners.budget import size_at
from frcl.posterior import Posterior
from frcl.regularisers.replay import Replay
from frcl.summary import (
    belief_from_function,
    belief_from_weights,
    head_moments,
    make_head,
    marginal,
    prior_kl,
    prior_kl_terms,
)
from oracles import covariances, direct_prediction, direct_prior_kl, direct_trace, rand_posterior
from streams import accuracy, blobs, same_tensors, small_learner

D = torch.float64
SHAPES = [(6, 9), (9, 9), (14, 9), (12, 3)]  # (M, K)
STRUCTURES = ("full", "shared", "diagonal", "function")


def randn(generator, *shape):
    return torch.randn(*shape, generator=generator, dtype=D)


def belief(structure, Phi, generator):
    """A q(u) at points with features Phi, of float64."""
    M, K = Phi.shape
    q = rand_posterior(3, M if structure == "function" else K, generator)
    if structure == "function":
        return belief_from_function(q, 1e-2, 0.7)
    if structure == "shared":
        q = q._replace(factor=q.factor[:1])
    if structure == "diagonal":
        q = Posterior(q.mean, 0.2 + torch.rand(3, K, generator=generator, dtype=D))
    return belief_from_weights(q, Phi, 1e-2, 0.7)


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize(("M", "K"), SHAPES)
def test_a_subset_of_q_is_the_marginal_of_the_dense_gaussian(generator, M, K, structure):
    Phi = randn(generator, M, K)
    whole = belief(structure, Phi, generator)
    for rows in ([4], [5, 0, 2], list(range(1, M))):
        part = marginal(whole, torch.tensor(rows))
        torch.testing.assert_close(part.mean, whole.mean[:, rows])
        torch.testing.assert_close(covariances(part), covariances(whole)[:, rows][:, :, rows])
        assert part.factor.shape[1:] == (len(rows), min(len(rows), whole.factor.shape[2]))
        kl = prior_kl(Phi[None, rows], prior_kl_terms([part]))
        torch.testing.assert_close(kl[0], direct_prior_kl(0.7 * Phi[rows], part), rtol=1e-8, atol=1e-8)
        x = randn(generator, 5, K)
        found = head_moments(make_head(Phi[rows], part), x)
        for own, direct in zip(found, direct_prediction(0.7 * x, 0.7 * Phi[rows], part), strict=True):
            torch.testing.assert_close(own, direct, rtol=1e-7, atol=1e-9)


def removed(Phi, u_noise, gone):
    """What the trace misses more of all points without those in `gone`, as a share of the variance; brute force."""
    left = torch.tensor([j for j in range(len(Phi)) if j not in gone])
    every = torch.arange(len(Phi))
    return (direct_trace(Phi, left, u_noise) - direct_trace(Phi, every, u_noise)) / float(Phi.square().sum())


@pytest.mark.parametrize(("M", "K"), SHAPES)
def test_the_loss_of_a_point_is_what_the_trace_term_rises(generator, M, K):
    Phi = randn(generator, M, K)
    task, gone = Elimination(Phi, 1e-2), []
    for j in (2, 0, 5, 3):
        before = removed(Phi, 1e-2, gone) if gone else 0.0
        rises = [removed(Phi, 1e-2, [*gone, i]) - before for i in range(M) if i not in gone]
        losses = task.losses()
        assert losses[gone].tolist() == [math.inf] * len(gone)
        own = losses[task.left]
        torch.testing.assert_close(own, torch.tensor(rises, dtype=D), rtol=1e-6, atol=1e-9)
        task.remove(j)
        gone.append(j)


def greedy_by_brute_force(Phis, u_noise, sizes, excess):
    """Always the point with the least loss per byte."""
    gone = [[] for _ in Phis]
    while excess > 0:
        best = None
        for i, Phi in enumerate(Phis):
            left = len(Phi) - len(gone[i])
            before = removed(Phi, u_noise, gone[i]) if gone[i] else 0.0
            for j in (j for j in range(len(Phi)) if j not in gone[i] and left > 1):
                bytes_ = sizes[i](left) - sizes[i](left - 1)
                value = (removed(Phi, u_noise, [*gone[i], j]) - before) / bytes_
                best = min(best or (math.inf, 0, 0, 0), (value, i, j, bytes_))
        if best is None:
            break
        gone[best[1]].append(best[2])
        excess -= best[3]
    return [[j for j in range(len(Phi)) if j not in own] for Phi, own in zip(Phis, gone, strict=True)]


def test_points_go_where_they_are_missed_least_per_byte(generator):
    Phis = [
        randn(generator, 5, 4),
        3.0 * randn(generator, 7, 4),
        randn(generator, 6, 4) * torch.tensor([1, 1, 0.1, 0.01]),
    ]
    sizes = [lambda m: 10 * m + m * min(m, 4), lambda m: 25 * m, lambda m: 10 * m + m * min(m, 4)]
    for excess in (1, 60, 150, 10_000):
        kept = thinned([Elimination(Phi, 0.1) for Phi in Phis], sizes, excess)
        assert [rows.tolist() for rows in kept] == greedy_by_brute_force(Phis, 0.1, sizes, excess)
    assert [len(rows) for rows in kept] == [1, 1, 1]


def test_of_equal_points_one_is_left(generator):
    Phi = randn(generator, 4, 6).repeat(3, 1)
    (rows,) = thinned([Elimination(Phi, 1e-3)], [lambda m: m], 8)
    assert sorted((rows % 4).tolist()) == [0, 1, 2, 3]


def test_random_points_go_from_the_largest_task(generator):
    counts, size = [30, 10, 2], [lambda m: 2 * m, lambda m: 3 * m, lambda m: 2 * m]
    kept = [randomly_thinned(counts, size, 41, generator) for _ in range(300)]
    for rows in kept:
        assert [len(one) for one in rows] == [12, 8, 2]  # 24, 24 and 4 bytes, where there were 60, 30 and 4
        assert all(len(one.unique()) == len(one) for one in rows)
    every = torch.bincount(torch.cat([rows[0] for rows in kept]), minlength=30) / 300
    torch.testing.assert_close(every, torch.full((30,), 12 / 30), rtol=0, atol=0.12)
    assert [len(rows) for rows in randomly_thinned(counts, size, 10_000, generator)] == [1, 1, 1]


def test_amounts_of_memory():
    amounts = (3_000, "3 kB", "3000", "3_000", "0.003MB", "2 MiB", "1.5 GiB", "7 B")
    assert [parsed_bytes(one) for one in amounts] == [3000, 3000, 3000, 3000, 3000, 2**21, 3 * 2**29, 7]
    assert [allowed_bytes(100, growth, 16) for growth in (0.0, 0.5, 1.0)] == [100, 400, 1600]
    for wrong in ("2 MBB", "", "MB", "-2 MB", "0.0001 B", "2 M B", "2__0", "_2", 0, -1, 1.5, True):
        with pytest.raises(OptionError, match="memory"):
            frcl.FRCLOptions(memory=wrong)


def regression(seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(60, 4, generator=g)
    return x, torch.stack([x.sum(1).sin(), x[:, 0]], 1)


def counts(seed):
    x, y = regression(seed)
    return x, y[:, :1].exp().round().long()


KINDS = {
    "classes": ({}, lambda i: blobs(tuple(range(3 * i, 3 * i + 2 + i % 3)), 60, i)),
    "robustmax": ({"likelihood": "robustmax"}, lambda i: blobs((0, 1, 2), 60, i)),
    "gaussian": ({}, regression),
    "poisson": ({"likelihood": "poisson"}, counts),
    "plus": ({"plus": True}, lambda i: blobs((0, 1, 2), 60, i)),
    "tempered": ({"held_out": 0.2, "prediction": "corrected"}, lambda i: blobs((0, 1, 2), 60, i)),
    "trained heads": ({"current_inputs": 0.1, "memory_targets": 1.0}, lambda i: blobs((0, 1, 2), 60, i)),
    "function space": ({"inference": "function", "learn_inputs": True}, lambda i: blobs((0, 1, 2), 60, i)),
    "shared": ({"covariance": "shared"}, lambda i: blobs((0, 1, 2), 60, i)),
    "diagonal": ({"covariance": "diagonal"}, lambda i: blobs((0, 1, 2), 60, i)),
    "sums": ({"task_inference": "exact", "task_features": 4}, lambda i: blobs((0, 1, 2), 60, i)),
    "random": ({"memory_drop": "random"}, lambda i: blobs((0, 1, 2), 60, i)),
}  # fmt: skip


def learner_of(memory, plus=False, **options):
    given = {"points": 12, "steps": 4, "batch_size": 16, "search_steps": 20, "fisher_examples": 10, **options}
    return (FRCLPlus if plus else FRCL)(MLP(4, (8, 6), seed=1), memory=memory, **given)


@pytest.mark.parametrize("kind", KINDS)
def test_the_bound_holds_after_every_task(kind, tmp_path):
    options, task = KINDS[kind]
    free = learner_of(None, **options)
    for i in range(2):
        free.fit(*task(i))
    memory = free.memory_bytes()
    learner = learner_of(memory, **options)
    for i in range(7):
        summary = learner.fit(*task(i))
        assert learner.memory_bytes() <= memory
        assert summary is learner.tasks[-1]
        if i == 1:  # as without a bound while there is room
            assert same_tensors(learner.state_dict()["tensors"], free.state_dict()["tensors"])
        if i == 4:
            learner.save(tmp_path / "half.frcl")
    assert learner.memory_bytes() > 0.8 * memory  # and no more is given up than needed
    assert all(1 <= len(one.Z) == one.belief.M < 12 for one in learner.tasks)
    for one in learner.tasks:
        points, q = one.kept()["points"], (one.belief.mean, one.belief.factor)
        assert size_at(one)(one.belief.M) == sum(part.nbytes for part in (points[0], *q))
    again = frcl.load(tmp_path / "half.frcl", MLP(4, (8, 6)))
    for i in (5, 6):
        again.fit(*task(i))
    assert same_tensors(again.state_dict()["tensors"], learner.state_dict()["tensors"])
    assert learner.predict(task(0)[0], task=0).mean.isfinite().all()


@pytest.mark.parametrize("kind", ["classes", "gaussian", "frozen"])
@pytest.mark.parametrize("inference", ["exact", "both"])
@pytest.mark.parametrize("stream", [False, True])
def test_sums_that_will_not_fit_are_refused_before_the_task_is_learned(kind, inference, stream):
    """Their size is known before; what is needed at least is no more than what is kept then."""
    x, y = regression(0) if kind == "gaussian" else blobs((0, 1, 2), 60, 0)

    def make(memory):
        net = MLP(4, (8, 6), seed=1).requires_grad_(kind != "frozen")
        return FRCL(net, points=4, steps=3, task_inference=inference, task_features=50, memory=memory)

    free = make(None)
    free.fit(x, y)
    with pytest.raises(BudgetError, match=r"one point of each and what else is kept take [\d,]+") as refused:
        (lambda learner: learner.observe if stream else learner.fit)(make(100))(x, y)
    assert "abandon_task" not in str(refused.value)
    least = int(refused.value.args[0].rpartition("take ")[2].partition(". ")[0].replace(",", ""))
    sums = free.memory_parts()["sums"]
    assert sums < least <= free.memory_bytes()
    with pytest.raises(BudgetError):
        make(least - 1).fit(x, y)
    learner = make(least)
    learner.fit(x, y)
    assert learner.memory_bytes() <= least
    assert len(learner.tasks[0].Z) == 1


def test_a_task_that_was_thinned_is_still_known():
    tasks = [blobs((3 * i, 3 * i + 1, 3 * i + 2), 150, i) for i in range(6)]
    memory = 2 * 20 * 4 * (4 + 3 + 3 * 9)
    learner = small_learner(points=20, steps=200, memory=memory)
    for x, y in tasks:
        learner.fit(x, y)
    assert sum(len(one.Z) for one in learner.tasks) < 60
    assert min(accuracy(learner, *task, number) for number, task in enumerate(tasks)) > 0.9


def test_memory_may_grow():
    learner = learner_of(500, memory_growth=0.5)
    sizes = []
    for i in range(6):
        learner.fit(*blobs((0, 1), 60, i))
        sizes.append(learner.memory_bytes())
    for tasks, size in enumerate(sizes, 1):
        assert 0.85 * 500 * math.sqrt(tasks) < size <= 500 * math.sqrt(tasks)


def test_a_stream_is_bounded_too():
    learner = learner_of(1500, window=40)
    for i in range(5):
        x, y = blobs((0, 1), 60, i)
        for rows in range(0, 60, 20):
            learner.observe(x[rows : rows + 20], y[rows : rows + 20])
        learner.end_task()
        assert learner.memory_bytes() <= 1500


PROFILE = 4 * (64 + 64 * 64)  # bytes of the mean and the root of the covariance of 64 features


@pytest.mark.parametrize(
    ("points", "memory", "profiles", "left"),
    [
        (60, 4 * (60 * 4 * (4 + 3 + 3 * 41) + PROFILE), [True, True, True, True], 240),  # all of it fits
        (12, 4 * 12 * 4 * (4 + 3 + 3 * 12) + 2 * PROFILE, [False, False, True, True], 48),  # they take most of it
        (60, 6 * PROFILE, [False, True, True, True], None),  # three take half of it: then points go
        (60, 6 * PROFILE - 1, [False, False, True, True], None),
        (60, 4 * 4 * (4 + 3 + 3), [False] * 4, 4),  # one point of each task
    ],
)
@pytest.mark.parametrize("drop", ["trace", "random"])
def test_in_a_stream_with_a_detector_the_oldest_profiles_go(points, memory, profiles, left, drop):
    learner = FRCL(
        MLP(4, (8, 40), seed=1), points, memory=memory, memory_drop=drop, detector=frcl.BoundaryDetector(),
        window=70, search_steps=20, labels=(0, 1, 2),
    )  # fmt: skip
    for i in range(4):
        x, y = blobs((0, 1, 2), 70, i)
        for rows in range(0, 70, 10):
            learner.observe(x[rows : rows + 10], y[rows : rows + 10])
        learner.end_task()
        assert learner.memory_bytes() <= memory
    assert [one.profile is not None for one in learner.tasks] == profiles
    kept = sum(len(one.Z) for one in learner.tasks)
    assert kept == left if left else 4 < kept < 4 * points
    assert learner.memory_parts().get("statistics", 0) == sum(profiles) * PROFILE


def test_a_stream_of_any_number_of_tasks_stays_within_the_bound(generator):
    """Boundaries are found meanwhile, and a task of which the profile is left is known when it returns."""
    learner = FRCL(MLP(20, (32, 32), seed=1), 20, lr=3e-3, memory="60 kB", detector=frcl.BoundaryDetector())
    means = 4 * torch.randn(9, 2, 20, generator=generator)
    for number in (*range(9), 7):
        for _ in range(60):
            y = torch.randint(0, 2, (32,), generator=generator)
            learner.observe(means[number][y] + torch.randn(32, 20, generator=generator), y)
            assert learner.memory_bytes() <= 60_000
    known = [one.profile is not None for one in learner.tasks]
    assert len(known) > 6
    assert known == [False] * (len(known) - 2) + [True] * 2
    assert learner._state.number == len(known) - 2


def test_every_member_of_an_ensemble_is_bounded(tmp_path):
    options = {"points": 12, "steps": 4, "batch_size": 16, "search_steps": 20}
    learner = Ensemble(MLP(4, (8, 6), seed=1), 2, memory="1.5 kB", **options)
    for i in range(4):
        learner.fit(*blobs((0, 1), 60, i))
        assert all(member.memory_bytes() <= 1500 for member in learner.members)
    learner.save(tmp_path / "both.frcl")
    assert frcl.load(tmp_path / "both.frcl", MLP(4, (8, 6))).memory_bytes() == learner.memory_bytes() <= 3000


def test_a_task_without_room_is_refused_before_it_is_learned():
    """One point of 4 numbers with one function takes 4 · (4 + 1 + 1) bytes."""
    learner = learner_of(3 * 24)
    for i in range(3):
        learner.fit(*blobs((0, 1), 60, i))
    assert learner.memory_bytes() == 72
    before = learner.state_dict()["tensors"]
    with pytest.raises(BudgetError, match=r"memory=72 is 72 bytes for 4 tasks, but one point of each .* take 96"):
        learner.fit(*blobs((0, 1), 60, 3))
    with pytest.raises(BudgetError):
        learner.observe(*blobs((0, 1), 60, 3))
    assert same_tensors(before, learner.state_dict()["tensors"])


HEAD = 4 * 3 * 9  # bytes of numbers for each weight of a last layer
WEIGHTS = {  # regularisers, how many tasks add something of the weights, and what else there is of the first one
    "fisher": ([frcl.Curvature(1.0)], 1, 0),
    "posterior": ([frcl.Curvature(1.0, prior_precision=1.0)], 1, HEAD),
    "kronecker": ([frcl.KroneckerCurvature(1.0)], 1, 0),
    "ewc": ([frcl.EWC(1.0)], 2, 0),
    "path": ([frcl.PathIntegral()], 1, 0),
    "network": ([CurrentInputs(1.0, trust=True)], 2, 0),
    "memorable": ([frcl.MemorablePast(points=1)], 1, HEAD + 4 * 20),
    "several": ([CurrentInputs(1.0), frcl.KroneckerCurvature(1.0)], 1, 0),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", WEIGHTS)
def test_what_is_kept_of_the_weights_is_known_before_a_task_is_learned(kind, stream, generator):
    """The bytes that are needed are named before the first step, and they are enough."""
    regularisers, added, more = WEIGHTS[kind]
    x, y = torch.randn(60, 20, generator=generator), torch.arange(60) % 3

    def make(memory):
        net = torch.nn.Sequential(MLP(20, (8,), seed=1), torch.nn.LayerNorm(8))
        return FRCL(net, points=2, steps=1, regularisers=regularisers, memory=memory, fisher_examples=10)

    learner = make(100)
    for tasks in range(added):
        with pytest.raises(BudgetError, match=r"one point of each and what else is kept take [\d,]+\. Use") as refused:
            learner.observe(x, y) if stream else learner.fit(x, y)
        assert (learner.step, len(learner.tasks)) == (0, tasks)
        least = int(refused.value.args[0].rpartition("take ")[2].partition(". ")[0].replace(",", "")) + more
        learner = make(least)
        for _ in range(tasks + 1):
            learner.fit(x, y)
        assert sum(value.nbytes for value in learner.net.parameters()) < learner.memory_bytes() <= least


def test_frcl_plus_is_refused_before_its_first_step():
    x, y = torch.randn(300, 784, generator=torch.Generator().manual_seed(0)), torch.arange(300) % 2
    with pytest.raises(BudgetError, match=r'memory="?.2 MB.*take 3,\d{3},\d{3}\. Use more memory'):
        FRCLPlus(MLP(784, (100, 100)), memory="2 MB").fit(x, y)


@pytest.mark.parametrize("stream", [False, True])
def test_where_a_regulariser_takes_the_room_the_task_stays_open(stream):
    learner = FRCL(
        MLP(4, (8, 6), seed=1), memory=500, points=5, steps=4, batch_size=16,
        regularisers=[FunctionalKL(), Replay(points=20)],
    )  # fmt: skip
    x, y = blobs((0, 1), 60, 1)
    if stream:
        learner.observe(x, y)
    with pytest.raises(BudgetError, match="The task stays open"):
        learner.end_task() if stream else learner.fit(x, y)
    assert (learner.tasks, learner.memory_bytes()) == ((), 0)
    assert learner.step == (1 if stream else 4)
    learner.abandon_task()


def test_sizes_count_for_what_is_left():
    """With a weight of N/M for each point, fewer points count for more."""
    learner = learner_of(1100, current_inputs=0.1, memory_targets=1.0, train_heads=False)
    for i in range(3):
        learner.fit(*blobs((0, 1), 60, i))
    assert {len(one.Z) for one in learner.tasks} != {12}
    assert isinstance(learner.regularisers[1], CurrentInputs)
    _, weight, _ = learner.regularisers[2].constants(learner._model.task(learner._state, learner.likelihood(0), 60.0))
    torch.testing.assert_close(weight.sum(1), torch.full((3,), 60.0))


def test_a_temperature_that_is_chosen_last_has_its_place():
    options = {"held_out": 0.2, "steps": 2}
    free = learner_of(None, **options)
    free.fit(*blobs((0, 1, 2), 60, 0))
    memory = free.memory_bytes() - 4  # all but the temperature
    learner = learner_of(memory, **options)
    assert len(learner.fit(*blobs((0, 1, 2), 60, 0)).Z) == 11
    assert learner.memory_bytes() <= memory
