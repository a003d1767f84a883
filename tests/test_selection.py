from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from frcl.errors import DataError
from frcl.likelihoods import Bernoulli, Gaussian, Softmax
from frcl.posterior import Posterior
from frcl.selection import Recipe, TaskData, plan_by_inputs, random_start, select_by_targets
from frcl.selection.supervised import classification_error, negative_elbo, negative_log_predictive, swap_search
from frcl.selection.trace import (
    REFRESH,
    Selected,
    Swaps,
    TraceSearch,
    exchange_in_features,
    exchange_in_points,
    residual_projection,
    run_searches,
    trace_at,
    trace_greedy,
    trace_search,
    trace_term,
)
from oracles import direct_prediction, direct_prior_kl, direct_trace, rand_posterior
from streams import select_by_inputs, trace_swaps

D = torch.float64


def features(N: int, K: int, g: torch.Generator) -> torch.Tensor:
    return torch.randn(N, K, generator=g, dtype=D) * torch.linspace(0.2, 3, K, dtype=D)


@pytest.mark.parametrize("M", [1, 5, 10, 17])
def test_trace_term_equals_the_matrix_formula(generator, M):
    Phi = features(40, 10, generator)
    index = random_start(40, M, generator)
    value = float(trace_term(Phi.T @ Phi, Phi[index], 1e-2))
    assert value == pytest.approx(direct_trace(Phi, index, 1e-2), rel=1e-9, abs=1e-9)
    assert trace_at(Phi, index, 1e-2) == pytest.approx(value, rel=1e-9, abs=1e-9)
    R = residual_projection(Phi[index], 1e-2)
    K_z = Phi[index] @ Phi[index].T + 1e-2 * torch.eye(M, dtype=D)
    torch.testing.assert_close(R, torch.eye(10, dtype=D) - Phi[index].T @ torch.linalg.solve(K_z, Phi[index]))


class Calls(TorchDispatchMode):
    """Records the operations that are called, each with the shapes of its tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[tuple[str, list[torch.Size]]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        shapes = [value.shape for value in args if isinstance(value, torch.Tensor)]
        self.made.append((func.overloadpacket.__name__, shapes))
        return func(*args, **(kwargs or {}))

    @property
    def reads(self) -> int:
        """How often a value of a tensor was asked for."""
        return [name for name, _ in self.made].count("_local_scalar_dense")


def kept_matrix(Phi_z: torch.Tensor, u_noise: float) -> torch.Tensor:
    """P [M, M] or [K, K] of an exchange, from its definition."""
    M, K = Phi_z.shape
    if M <= K:
        return -torch.linalg.inv(Phi_z @ Phi_z.T + u_noise * torch.eye(M, dtype=D))
    return u_noise * torch.linalg.inv(Phi_z.T @ Phi_z + u_noise * torch.eye(K, dtype=D))


def exchanged(Phi_z, P, gram, u_noise, slots, incoming):
    """Slot slots[s] of Phi_z[s] goes to incoming[s], accepted whatever comes: Φ_Z', P' and T − T' of all."""
    S, M, K = Phi_z.shape
    rows = torch.arange(S)
    form = exchange_in_points if M <= K else exchange_in_features
    known = torch.diag(torch.tensor([1.0 if M <= K else -u_noise, u_noise], dtype=D))
    going = torch.zeros(S, K, dtype=D) if M <= K else Phi_z[rows, slots]
    here = (torch.arange(M) == slots[:, None])[:, None]
    exchange = form(P, Phi_z, slots[:, None, None], here, torch.stack((going, incoming), 1), known)
    Phi_z = Phi_z.clone()
    Phi_z[rows, slots] = incoming
    return Phi_z, P - (exchange.v / exchange.d).mT @ exchange.v, exchange.fall(gram)


@pytest.mark.parametrize("M", [1, 6, 20, 21, 45])  # K = 20
def test_an_exchange_equals_its_definition(generator, M):
    Phi = torch.stack([features(100, 20, generator) for _ in range(3)])
    gram, Phi_z, incoming = Phi.mT @ Phi, Phi[:, :M], Phi[:, 99]
    P = torch.stack([kept_matrix(each, 1e-2) for each in Phi_z])
    slots = torch.randint(M, (3,), generator=generator)
    after, P_after, fall = exchanged(Phi_z, P, gram, 1e-2, slots, incoming)
    for s in range(3):
        torch.testing.assert_close(P_after[s], kept_matrix(after[s], 1e-2), rtol=1e-8, atol=1e-8)
        index = torch.arange(M)
        index[slots[s]] = 99
        difference = direct_trace(Phi[s], torch.arange(M), 1e-2) - direct_trace(Phi[s], index, 1e-2)
        assert float(fall[s]) == pytest.approx(difference, rel=1e-7)


@pytest.mark.parametrize("M", [6, 20, 21, 45])  # K = 20
@pytest.mark.parametrize("u_noise", [1e-3, 1e-5])
def test_rank_two_updates_equal_direct_recomputation_after_1000_moves(generator, M, u_noise):
    Phi = 3 * torch.randn(300, 20, generator=generator, dtype=D)
    gram = Phi.T @ Phi
    Phi_z, index = Phi[None, :M], list(range(M))
    for move in range(1000):
        if move % REFRESH == 0 and move < 960:  # as the search does; the last moves are left to the updates
            P, value = kept_matrix(Phi_z[0], u_noise)[None], float(trace_term(gram, Phi_z[0], u_noise))
        slot = torch.randint(M, (1,), generator=generator)
        candidate = next(i for i in torch.randperm(300, generator=generator).tolist() if i not in index)
        index[int(slot)] = candidate
        Phi_z, P, fall = exchanged(Phi_z, P, gram[None], u_noise, slot, Phi[candidate : candidate + 1])
        value -= float(fall)
    direct = float(trace_term(gram, Phi_z[0], u_noise))
    assert value == pytest.approx(direct, rel=1e-5, abs=1e-8 * float(gram.trace()))


@pytest.mark.parametrize("M", [4, 9])
def test_the_cost_of_a_swap_does_not_depend_on_the_size_of_the_task(generator, M):
    """A proposal and its acceptance: the same operations on tensors of the same shapes at two sizes of the task."""
    recorded = []
    for N in (50, 5000):
        swaps = Swaps([trace_search(features(N, 6, generator), random_start(N, M, generator), 1e-3, 10, generator)])
        swaps.may_look = False
        with Calls() as calls:
            swaps.step()
        recorded.append(calls.made)
    assert recorded[0] == recorded[1]
    assert "baddbmm_" in {name for name, _ in recorded[0]}  # the update was among them


# -- the search ----------------------------------------------------------------------------------------------


def searched_directly(search: TraceSearch) -> tuple[list[int], float, float]:
    """The search with T worked out from N×N matrices for every proposal."""
    Phi, index = search.Phi.double(), search.start.clone()
    before = value = direct_trace(Phi, index, search.u_noise)
    for slot, candidate in zip(search.slots, search.proposals, strict=True):
        if candidate in index:
            continue
        changed = index.clone()
        changed[slot] = candidate
        proposed = direct_trace(Phi, changed, search.u_noise)
        if proposed < value:
            index, value = changed, proposed
    return index.tolist(), before, value


def searched_one_at_a_time(Phi, start, u_noise, steps, generator):
    """The search for one Z with branches: draws its own numbers, keeps K̃⁻¹ or B⁻¹, refreshes after 64 accepted."""
    gram, few = (Phi.double().T @ Phi.double()), len(start) <= Phi.shape[1]
    slots = torch.randint(len(start), (steps,), generator=generator).tolist()
    proposals = torch.randint(len(Phi), (steps,), generator=generator).tolist()

    def invert(Z):
        square = Z @ Z.T if few else Z.T @ Z
        return torch.linalg.inv(square + u_noise * torch.eye(len(square), dtype=D))

    index, Z, accepted = start.tolist(), Phi[start].double(), 0
    inverse = invert(Z)
    for slot, candidate in zip(slots, proposals, strict=True):
        phi = Phi[candidate].double()
        if candidate in index:
            continue
        if few:
            a, k = inverse[:, slot], Z @ phi
            k[slot] = 0.0
            b = inverse @ k
            b = b - a * (b[slot] / a[slot])
            p, r = a @ Z, phi - b @ Z
            schur = u_noise + phi @ r
            b[slot] = -1.0
            change = p @ gram @ p / a[slot] - r @ gram @ r / schur
            update = torch.outer(b, b) / schur - torch.outer(a, a) / a[slot]
        else:
            u = inverse @ Z[slot]
            left = 1.0 - Z[slot] @ u
            w = inverse @ phi + u * (u @ phi / left)
            schur = 1.0 + phi @ w
            change = u @ gram @ u / left - w @ gram @ w / schur
            update = torch.outer(u, u) / left - torch.outer(w, w) / schur
        if change >= 0:
            continue
        index[slot], Z[slot], accepted = candidate, phi, accepted + 1
        inverse = invert(Z) if accepted % 64 == 0 else inverse + update
    return index


@pytest.mark.parametrize(("M", "K"), [(1, 4), (4, 6), (6, 6), (9, 6), (30, 12)])
def test_searches_side_by_side_equal_direct_ones(generator, M, K):
    searches = []
    for _ in range(3):
        Phi = features(50, K, generator)
        searches.append(trace_search(Phi, random_start(50, M, generator), 1e-3, 150, generator))
    for search, found in zip(searches, run_searches(searches), strict=True):
        index, before, after = searched_directly(search)
        assert found.index.tolist() == index
        assert found.before == pytest.approx(before, rel=1e-7, abs=1e-9)
        assert found.after == pytest.approx(after, rel=1e-7, abs=1e-9)
        assert index != search.start.tolist()
        alone = run_searches([search])[0]
        assert torch.equal(alone.index, found.index)
        assert alone.after == pytest.approx(found.after, rel=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, D])
@pytest.mark.parametrize(("M", "K"), [(5, 16), (16, 16), (30, 16)])
def test_a_seed_gives_the_points_of_the_search_for_one_set_with_branches(generator, M, K, dtype):
    Phi = features(400, K, generator).to(dtype)
    start = random_start(400, M, generator)
    for seed in range(3):
        found = trace_swaps(Phi, start, 1e-3, 500, torch.Generator().manual_seed(seed))
        expected = searched_one_at_a_time(Phi, start, 1e-3, 500, torch.Generator().manual_seed(seed))
        assert found.index.tolist() == expected


def test_searches_of_different_sizes_come_back_in_their_order(generator):
    sizes = [(4, 6, 80, 1e-3), (9, 6, 80, 1e-3), (4, 6, 80, 1e-3), (4, 6, 80, 1e-2), (4, 6, 3, 1e-3), (4, 8, 80, 1e-3)]
    searches = [
        trace_search(features(60, K, generator), random_start(60, M, generator), u_noise, steps, generator)
        for M, K, steps, u_noise in sizes
    ]
    for search, found in zip(searches, run_searches(searches), strict=True):
        index, before, after = searched_directly(search)
        assert found.index.tolist() == index
        assert (found.before, found.after) == pytest.approx((before, after), rel=1e-7)
    assert run_searches([]) == []


@pytest.mark.parametrize("M", [4, 9])
def test_a_step_that_may_not_look_ends_at_the_same_points(generator, M):
    """The step as a GPU takes it: it writes every time, and can be taken where tensors have no values to look at."""
    searches = [
        trace_search(features(60, 6, generator), random_start(60, M, generator), 1e-3, 200, generator) for _ in range(3)
    ]
    swaps = Swaps(searches)
    swaps.may_look = False
    swaps.run()
    assert swaps.index.tolist() == [found.index.tolist() for found in run_searches(searches)]
    blind = Swaps([replace(search, Phi=search.Phi.to("meta")) for search in searches])
    blind.run()
    assert blind.P.is_meta
    blind.clock.sub_(1)
    blind.may_look = True
    with pytest.raises((NotImplementedError, RuntimeError), match="meta"):
        blind.step()


def test_a_point_of_Z_is_not_taken_twice(generator):
    """A second copy of the strong point 1 would lower the trace term, in place of the useless point 0."""
    Phi = torch.tensor([[0.0, 0.0, 0.0], [1.0, 2.0, 0.0], [0.0, 0.0, 0.01], [0.0, 0.0, 0.0]], dtype=D)
    assert direct_trace(Phi, torch.tensor([1, 1]), 0.5) < direct_trace(Phi, torch.tensor([0, 1]), 0.5)
    for start in ([0, 1], [0, 1, 3, 2]):  # M ≤ K, M > K
        twice = TraceSearch(Phi, torch.tensor(start), 0.5, torch.tensor([0, 1]), torch.tensor([1, 1]))
        assert run_searches([twice])[0].index.tolist() == start
    assert trace_greedy(Phi, 2, 0.5).index.tolist() == [1, 2]
    for M in (3, 8):
        Phi = features(M + 2, 5, generator)
        found = trace_swaps(Phi, random_start(M + 2, M, generator), 1e-3, 200, generator)
        assert len(set(found.index.tolist())) == M


def test_greedy_reads_no_value_for_each_point(generator):
    counts = []
    for M in (2, 8):
        with Calls() as calls:
            trace_greedy(features(30, 6, generator), M, 1e-3)
        counts.append(calls.reads)
    assert counts == [2, 2]  # `before` and `after`


def test_a_plan_is_points_or_the_search_for_them():
    Phi = features(80, 6, torch.Generator().manual_seed(1))
    for recipe, kind in (
        (Recipe("random"), Selected),
        (Recipe("trace", "greedy"), Selected),
        (Recipe("trace", "swap", 70), TraceSearch),
    ):
        plan = plan_by_inputs(Phi, 5, recipe, 1e-3, torch.Generator().manual_seed(3))
        assert type(plan) is kind
        found = plan if isinstance(plan, Selected) else run_searches([plan])[0]
        at_once = select_by_inputs(Phi, 5, recipe, 1e-3, torch.Generator().manual_seed(3))
        assert torch.equal(found.index, at_once.index)
        assert (found.before, found.after) == (at_once.before, at_once.after)
        assert found.after == pytest.approx(direct_trace(Phi, found.index, 1e-3), rel=1e-6)


def test_a_part_of_the_examples_stands_for_all_of_them(generator):
    """The ELBO judged on a random part is near the one on everything: the KL keeps its weight."""
    task = task_data("softmax", generator, N=2000)
    task = replace(task, size=2000.0)
    index = torch.arange(5)
    part = replace(task, Phi=task.Phi[:400], y=task.y[:400])
    assert negative_elbo(part, index) == pytest.approx(negative_elbo(task, index), rel=0.15)


def test_a_search_without_other_examples_is_still_a_number(generator):
    task = task_data("softmax", generator, N=6)
    for criterion in ("predictive", "error", "elbo"):
        found = select_by_targets(task, 6, Recipe(criterion, steps=5), generator)
        assert sorted(found.index.tolist()) == list(range(6))
        assert found.after == found.before
        few = select_by_targets(task_data("softmax", generator), 6, Recipe(criterion, steps=5, examples=3), generator)
        assert few.after <= few.before


@pytest.mark.parametrize("M", [4, 9])
def test_swaps_return_the_points_they_found(generator, M):
    Phi = features(200, 6, generator)
    start = random_start(200, M, generator)
    found = trace_swaps(Phi, start, 1e-3, 400, generator)
    assert found.before == pytest.approx(direct_trace(Phi, start, 1e-3), rel=1e-7)
    assert found.after == pytest.approx(direct_trace(Phi, found.index, 1e-3), rel=1e-7)
    assert found.after < found.before
    assert len(set(found.index.tolist())) == M
    assert not torch.equal(found.index, start)


def test_swaps_never_make_it_worse_and_zero_steps_keep_the_start(generator):
    Phi = features(60, 5, generator)
    start = random_start(60, 3, generator)
    for steps in (1, 2, 5, 20, 80):
        found = trace_swaps(Phi, start, 1e-3, steps, generator)
        assert direct_trace(Phi, found.index, 1e-3) <= direct_trace(Phi, start, 1e-3)
    assert torch.equal(trace_swaps(Phi, start, 1e-3, 0, generator).index, start)


def test_greedy_takes_the_best_point_each_time(generator):
    Phi = features(30, 6, generator)
    found = trace_greedy(Phi, 8, 1e-3)
    taken: list[int] = []
    for expected in found.index.tolist():
        rest = [i for i in range(30) if i not in taken]
        values = [direct_trace(Phi, torch.tensor([*taken, i]), 1e-3) for i in rest]
        assert expected == rest[int(torch.tensor(values).argmin())]
        taken.append(expected)
    assert found.before == pytest.approx(float((Phi * Phi).sum()))
    assert found.after == pytest.approx(direct_trace(Phi, found.index, 1e-3), rel=1e-6)


def test_greedy_beats_random_and_swaps_beat_their_start(generator):
    Phi = features(500, 12, generator)
    random = select_by_inputs(Phi, 8, Recipe("random"), 1e-3, generator)
    swapped = select_by_inputs(Phi, 8, Recipe("trace", "swap", 500), 1e-3, generator)
    greedy = select_by_inputs(Phi, 8, Recipe("trace", "greedy"), 1e-3, generator)
    assert random.before == random.after
    assert greedy.after < random.after
    assert swapped.after < swapped.before


def test_starts(generator):
    assert sorted(random_start(5, 5, generator).tolist()) == [0, 1, 2, 3, 4]
    classes = torch.tensor([0] * 90 + [1] * 8 + [2] * 2)
    balanced = classes[random_start(100, 9, generator, classes)]
    assert torch.bincount(balanced).tolist() == [4, 3, 2] or torch.bincount(balanced).tolist() == [3, 4, 2]
    assert len(set(random_start(100, 60, generator, classes).tolist())) == 60
    with pytest.raises(DataError, match="cannot choose 6 inducing points from 5 examples"):
        random_start(5, 6, generator)


def task_data(kind: str, generator: torch.Generator, N: int = 40, K: int = 6) -> TaskData:
    Phi = features(N, K, generator)
    C = {"bernoulli": 1, "softmax": 3, "gaussian": 2}[kind]
    q = rand_posterior(C, K, generator)
    q = Posterior(3 * q.mean, q.factor)
    f = Phi @ q.mean.T
    y = {"bernoulli": (f[:, 0] > 0).long(), "softmax": f.argmax(1), "gaussian": f}[kind]
    model = {"bernoulli": Bernoulli((0, 1)), "softmax": Softmax((0, 1, 2)), "gaussian": Gaussian(2)}[kind]
    params = {"log_noise": torch.zeros(2, dtype=D)} if kind == "gaussian" else {}
    draws = torch.randn(16, 1, C, generator=generator, dtype=D)
    return TaskData(Phi, y, q, model, params, prior_std=1.5, u_noise=1e-2, draws=draws, size=2.0 * N)


def direct_moments(task: TaskData, index: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    from frcl.summary import belief_from_weights

    belief = belief_from_weights(task.q, task.Phi[index], task.u_noise)
    return direct_prediction(1.5 * task.Phi, 1.5 * task.Phi[index], belief)


@pytest.mark.parametrize("kind", ["bernoulli", "softmax", "gaussian"])
def test_supervised_criteria_equal_their_definitions(generator, kind):
    from frcl.summary import belief_from_weights

    task = task_data(kind, generator)
    index = random_start(40, 4, generator)
    mean, variance = direct_moments(task, index)
    rest = [i for i in range(40) if i not in index.tolist()]
    if kind == "gaussian":
        scale = (variance + 1.0).sqrt()
        density = torch.distributions.Normal(mean, scale).log_prob(task.y).sum(1)
    else:
        probabilities = task.likelihood.probabilities(mean, variance, task.draws)
        density = probabilities.gather(1, task.y[:, None])[:, 0].log()
        wrong = (probabilities.argmax(1) != task.y).double()
        assert classification_error(task, index) == pytest.approx(float(wrong[rest].mean()))
    assert negative_log_predictive(task, index) == pytest.approx(-float(density[rest].mean()), rel=1e-6)
    kl = direct_prior_kl(1.5 * task.Phi[index], belief_from_weights(task.q, task.Phi[index], task.u_noise))
    expected = task.likelihood.expected_log_prob(mean, variance, task.y, task.draws, task.params)
    assert negative_elbo(task, index) == pytest.approx(float(kl - 2 * expected.sum()), rel=1e-6)


@pytest.mark.parametrize("criterion", ["predictive", "error", "elbo"])
def test_supervised_search_returns_points_that_have_the_value_it_says(generator, criterion):
    task = task_data("softmax", generator)
    measure = {"predictive": negative_log_predictive, "error": classification_error, "elbo": negative_elbo}[criterion]
    found = select_by_targets(task, 4, Recipe(criterion, steps=60), generator)
    assert found.after == pytest.approx(measure(task, found.index))
    assert found.after < found.before
    assert len(set(found.index.tolist())) == 4


def test_a_supervised_search_on_part_of_the_examples_returns_indices_into_all(generator):
    task = task_data("softmax", generator, N=200)
    found = select_by_targets(task, 5, Recipe("predictive", steps=30, examples=20), generator)
    assert int(found.index.max()) > 20
    assert len(set(found.index.tolist())) == 5


def test_swap_search_on_a_known_objective(generator):
    """Sum of the indices: enough swaps find the smallest ones."""
    found = swap_search(lambda index: float(index.sum()), 12, torch.tensor([11, 10, 9]), 600, generator)
    assert sorted(found.index.tolist()) == [0, 1, 2]
    assert (found.before, found.after) == (30.0, 3.0)
