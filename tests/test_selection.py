from dataclasses import replace

import pytest
import torch

from frcl.errors import DataError
from frcl.likelihoods import Bernoulli, Gaussian, Softmax
from frcl.posterior import Posterior
from frcl.selection import (
    REFRESH,
    Recipe,
    TaskData,
    accept,
    classification_error,
    negative_elbo,
    negative_log_predictive,
    propose,
    random_start,
    residual_projection,
    select_by_inputs,
    select_by_targets,
    swap_search,
    trace_greedy,
    trace_state,
    trace_swaps,
    trace_term,
)
from oracles import direct_prediction, direct_prior_kl, direct_trace, rand_posterior

D = torch.float64


def features(N: int, K: int, g: torch.Generator) -> torch.Tensor:
    return torch.randn(N, K, generator=g, dtype=D) * torch.linspace(0.2, 3, K, dtype=D)


@pytest.mark.parametrize("M", [1, 5, 10, 17])
def test_trace_term_equals_the_matrix_formula(generator, M):
    Phi = features(40, 10, generator)
    index = random_start(40, M, generator)
    value = trace_term(Phi.T @ Phi, Phi[index], 1e-2)
    assert value == pytest.approx(direct_trace(Phi, index, 1e-2), rel=1e-9, abs=1e-9)
    R = residual_projection(Phi[index], 1e-2)
    K_z = Phi[index] @ Phi[index].T + 1e-2 * torch.eye(M, dtype=D)
    torch.testing.assert_close(R, torch.eye(10, dtype=D) - Phi[index].T @ torch.linalg.solve(K_z, Phi[index]))


@pytest.mark.parametrize("M", [6, 20, 21, 45])  # K = 20
@pytest.mark.parametrize("noise", [1e-3, 1e-5])
def test_rank_two_swaps_equal_direct_recomputation_after_1000_moves(generator, M, noise):
    Phi = 3 * torch.randn(300, 20, generator=generator, dtype=D)
    gram = Phi.T @ Phi
    state, index = trace_state(gram, Phi[:M], noise), list(range(M))
    for move in range(1, 1001):
        slot = int(torch.randint(M, (), generator=generator))
        candidate = next(i for i in torch.randperm(300, generator=generator).tolist() if i not in index)
        index[slot] = candidate
        state = accept(state, propose(state, gram, noise, slot, Phi[candidate]))
        if move % REFRESH == 0 and move < 960:  # as the search does; the last moves are left to the updates
            state = trace_state(gram, state.Phi_z, noise)
    direct = trace_state(gram, state.Phi_z, noise)
    assert state.value == pytest.approx(direct.value, rel=1e-5, abs=1e-8 * float(gram.trace()))


@pytest.mark.parametrize("M", [4, 9])
def test_the_cost_of_a_swap_does_not_depend_on_the_size_of_the_task(generator, M):
    """Floating-point operations of a proposal and its acceptance, counted, at two sizes of the task."""
    from torch.utils.flop_counter import FlopCounterMode

    counts, largest = [], []
    for N in (50, 5000):
        Phi = features(N, 6, generator)
        gram = Phi.T @ Phi
        state = trace_state(gram, Phi[:M], 1e-3)
        with FlopCounterMode(display=False) as counter:
            exchange = propose(state, gram, 1e-3, 0, Phi[9])
            after = accept(state, exchange)
        counts.append(counter.get_total_flops())
        largest.append(max(t.numel() for t in (*exchange, *after) if isinstance(t, torch.Tensor)))
    assert counts[0] == counts[1]
    assert largest[0] == largest[1] <= max(M * M, M * 6, 36)


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
    model = {"bernoulli": Bernoulli(), "softmax": Softmax(), "gaussian": Gaussian()}[kind]
    params = {"log_noise": torch.zeros(2, dtype=D)} if kind == "gaussian" else {}
    noise_mc = torch.randn(16, 1, C, generator=generator, dtype=D)
    return TaskData(Phi, y, q, model, params, prior_deviation=1.5, noise=1e-2, noise_mc=noise_mc, size=2.0 * N)


def direct_moments(task: TaskData, index: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    from frcl.summary import belief_from_weights

    belief = belief_from_weights(task.q, task.Phi[index], task.noise)
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
        probabilities = task.likelihood.probabilities(mean, variance, task.noise_mc)
        density = probabilities.gather(1, task.y[:, None])[:, 0].log()
        wrong = (probabilities.argmax(1) != task.y).double()
        assert classification_error(task, index) == pytest.approx(float(wrong[rest].mean()))
    assert negative_log_predictive(task, index) == pytest.approx(-float(density[rest].mean()), rel=1e-6)
    kl = direct_prior_kl(1.5 * task.Phi[index], belief_from_weights(task.q, task.Phi[index], task.noise))
    expected = task.likelihood.expected_log_prob(mean, variance, task.y, task.noise_mc, task.params)
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
