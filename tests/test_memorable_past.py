"""FROMP: kernels, penalty, memorable points and Σ, each against brute force."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call, jacrev

from frcl import MLP, DataError
from frcl import likelihoods as models
from frcl.baselines.common import Finished
from frcl.features import FeatureMap
from frcl.regularisers import MemorablePast
from frcl.regularisers.fisher import HEAD
from frcl.regularisers.memorable_past import information, kernels, memorable
from frcl.regularisers.protocol import Step, Task
from frcl.trees import leaf

D = torch.float64
NET = MLP(3, (4, 2), seed=1).double()
FEATURES = FeatureMap(NET)
CLASSES = (3, 2)


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=D)


def weights(seed: int, size: float = 0.5) -> dict[str, Tensor]:
    named = NET.named_parameters()
    return {name: size * randn(*value.shape, seed=seed + i) for i, (name, value) in enumerate(named)}


def probs(theta: dict[str, Tensor], head: Tensor, x: Tensor) -> Tensor:
    Phi = functional_call(NET, theta, (x,))
    return (Phi @ head[:, :-1].mT + head[:, -1]).softmax(1)


def whole_jacobian(theta: dict[str, Tensor], head: Tensor, x: Tensor) -> Tensor:
    """∂ probabilities by all weights and the head, [B, C, P], by one call of `jacrev`."""

    def values(everything: dict[str, Tensor]) -> Tensor:
        own = {name: value for name, value in everything.items() if name != HEAD}
        return probs(own, everything[HEAD], x)

    found = jacrev(values)({**theta, HEAD: head})
    return torch.cat([found[name].flatten(2) for name in [*theta, HEAD]], 2)


def flat(parts: dict[str, Tensor], names: list[str]) -> Tensor:
    return torch.cat([parts[name].flatten() for name in names])


def positive(seed: int, C: int) -> dict[str, Tensor]:
    return {name: value.square() + 0.1 for name, value in {**weights(seed), HEAD: randn(C, 3, seed=seed + 9)}.items()}


def test_kernel_of_each_class_is_that_of_the_whole_jacobian():
    theta, head, x, precision = weights(1), randn(3, 3, seed=2), randn(5, 3, seed=3), positive(40, 3)
    m, K = kernels(FEATURES, {}, {**theta, HEAD: head}, precision, x)
    J, sigma = whole_jacobian(theta, head, x), 1 / flat(precision, [*theta, HEAD])
    torch.testing.assert_close(m, probs(theta, head, x))
    assert K.dtype == D
    for c in range(3):
        torch.testing.assert_close(K[c], J[:, c] @ torch.diag(sigma) @ J[:, c].mT)


def test_function_space_and_weight_space_are_the_same():
    """½ Δᵀ (J Σ Jᵀ + ε I)⁻¹ Δ is the least of ½ wᵀ Σ⁻¹ w + |J w − Δ|²/2ε over changes w of the weights; and the Laplace
    posterior (JᵀJ/ε + Σ⁻¹)⁻¹ of the weights has the predictive variance of the Gaussian process."""
    theta, head, x, precision, eps = weights(1), randn(3, 3, seed=2), randn(5, 3, seed=3), positive(40, 3), 0.3
    _, K = kernels(FEATURES, {}, {**theta, HEAD: head}, precision, x)
    J, Lambda = whole_jacobian(theta, head, x)[:, 1], torch.diag(flat(precision, [*theta, HEAD]))
    delta, K = randn(5, seed=7), K[1]
    A = J.mT @ J / eps + Lambda
    w = torch.linalg.solve(A, J.mT @ delta / eps)
    in_weights = 0.5 * w @ Lambda @ w + (J @ w - delta).square().sum() / (2 * eps)
    noisy = K + eps * torch.eye(5, dtype=D)
    torch.testing.assert_close(0.5 * delta @ torch.linalg.solve(noisy, delta), in_weights)
    torch.testing.assert_close(J @ torch.linalg.inv(A) @ J.mT, K - K @ torch.linalg.solve(noisy, K))


def gauss_newton(theta: dict[str, Tensor], head: Tensor, x: Tensor) -> Tensor:
    """Σ_b diag(J_bᵀ Λ_b J_b), J the Jacobian of the functions, Λ the Hessian of the loss, one example at a time."""
    names, total = [*theta, HEAD], 0.0
    for row in x:

        def functions(everything: dict[str, Tensor], row: Tensor = row) -> Tensor:
            own = {name: value for name, value in everything.items() if name != HEAD}
            phi = functional_call(NET, own, (row[None],))[0]
            return everything[HEAD][:, :-1] @ phi + everything[HEAD][:, -1]

        point = {**theta, HEAD: head}
        found = jacrev(functions)(point)
        J = torch.cat([found[name].flatten(1) for name in names], 1)
        f = functions(point)
        Lambda = torch.func.hessian(lambda f: -f.log_softmax(0)[0])(f)
        total = total + (J.mT @ Lambda @ J).diagonal()
    return total


def test_information_is_the_diagonal_of_the_gauss_newton_matrix():
    theta, head, x = weights(1), randn(3, 3, seed=2), randn(7, 3, seed=3)
    found = information(FEATURES, {}, {**theta, HEAD: head}, x)
    torch.testing.assert_close(flat(found, [*theta, HEAD]), gauss_newton(theta, head, x))


@pytest.mark.parametrize("M", [2, 6, 7, 9, 40])
def test_memorable_points_have_the_largest_lambda_of_each_class(M):
    p, y = randn(60, 3, seed=1).softmax(1), torch.randint(3, (60,), generator=torch.Generator().manual_seed(2))
    chosen = memorable(p, y, M)
    score = [sum(float(q * (1 - q)) for q in row) for row in p]
    ranked = [sorted((i for i in range(60) if y[i] == c), key=lambda i: -score[i]) for c in range(3)]
    taken = [sorted(own[: len([i for i in chosen.tolist() if y[i] == c])]) for c, own in enumerate(ranked)]
    assert sorted(chosen.tolist()) == sorted(i for own in taken for i in own)
    assert len(set(chosen.tolist())) == M
    counts = [len(own) for own in taken]
    assert max(counts) - min(counts) <= 1


def test_a_class_with_few_examples_leaves_its_share_to_the_others():
    p, y = randn(10, 2, seed=1).softmax(1), torch.tensor([0] * 8 + [1] * 2)
    chosen = memorable(p, y, 6)
    assert {8, 9} <= set(chosen.tolist())
    assert len(chosen) == 6


# -- the penalty -------------------------------------------------------------------------------------------------


def task_of(number: int) -> tuple[Task, Tensor, Tensor]:
    """A finished task, its network and head moved to somewhere else, and its data."""
    C, N = CLASSES[number], 20 + 10 * number
    likelihood = models.Softmax(tuple(range(C)))
    task = Task(FEATURES, weights(100 * number), {}, [], likelihood, float(2 * N), head=randn(C, 3, seed=number))
    return task, randn(N, 3, seed=50 + number), torch.arange(N) % C


def after_two_tasks(**settings) -> tuple[MemorablePast, Task]:
    """A regulariser in its third task, which begins with weights and heads unlike those of the tasks before."""
    regulariser, past = MemorablePast(**{"points": 5, "prior_precision": 0.4, "jitter": 0.02, **settings}), []
    for number in range(2):
        task, x, y = task_of(number)
        regulariser.begin(replace(task, past=past))
        regulariser.end(replace(task, past=past), x, y, torch.Generator().manual_seed(number))
        past = [*past, Finished(task.likelihood, len(x), randn(CLASSES[number], 3, seed=70 + number))]
    third = Task(FEATURES, weights(7), {}, past, models.Softmax((0, 1)), 30.0)
    regulariser.begin(third)
    return regulariser, third


def step_at(task: Task, theta: dict[str, Tensor], heads: list[Tensor], tasks: Tensor | None = None) -> Step:
    block = torch.stack([F.pad(head, (0, 0, 0, 3 - len(head))) for head in heads])
    x = randn(2, 3, seed=1)
    return Step(FEATURES, theta, heads[0], block, x, x, x, None, tasks, 2, torch.tensor(task.N, dtype=D))


def test_sigma_is_the_sum_over_tasks_and_the_points_are_those_of_their_time():
    regulariser, _ = after_two_tasks()
    expected: list[Tensor] = []
    for number in range(2):
        task, x, y = task_of(number)
        expected.append(task.N / len(x) * gauss_newton(task.theta, task.head, x))
        p = probs(task.theta, task.head, x)
        assert torch.equal(regulariser.kept_inputs()[number], x[memorable(p, y, 5)])
    size = sum(value.numel() for value in NET.parameters())
    torch.testing.assert_close(flat(regulariser.precision, list(weights(0))), expected[0][:size] + expected[1][:size])
    for number in range(2):
        torch.testing.assert_close(regulariser.heads[number].flatten(), expected[number][size:])


def by_hand(regulariser: MemorablePast, task: Task, number: int) -> tuple[Tensor, Tensor]:
    """m* [M, C] and (J Σ Jᵀ + ε I)⁻¹ [C, M, M] of a past task, with the weights and heads where the open one began."""
    x, head = regulariser.kept_inputs()[number], task.past[number].head
    J = whole_jacobian(task.theta, head, x)
    own = torch.cat([flat(regulariser.precision, list(task.theta)), regulariser.heads[number].flatten()]) + 0.4
    K = torch.einsum("acp,p,bcp->cab", J, 1 / own, J) + 0.02 * torch.eye(5, dtype=D)
    return probs(task.theta, head, x), torch.linalg.inv(K)


def test_the_penalty_and_its_gradient():
    """By value a loop over tasks and classes; the gradient is τ Σ J(θ)ᵀ K⁻¹ (m − m*), with K a constant."""
    regulariser, task = after_two_tasks(weight=1.7)
    theta = {name: leaf(value) for name, value in weights(300).items()}
    heads = [leaf(randn(C, 3, seed=80 + i)) for i, C in enumerate(CLASSES)]
    value = regulariser.penalty(step_at(task, theta, heads), regulariser.constants(task), ())
    total, shared, own = 0.0, 0.0, []
    size = sum(part.numel() for part in theta.values())
    for number in range(2):
        x = regulariser.kept_inputs()[number]
        (m_star, inverse), C = by_hand(regulariser, task, number), CLASSES[number]
        m, J = probs(theta, heads[number], x).detach(), whole_jacobian(theta, heads[number], x).detach()
        moved = m - m_star
        total = total + sum(0.5 * moved[:, c] @ inverse[c] @ moved[:, c] for c in range(C))
        g = sum(J[:, c].mT @ inverse[c] @ moved[:, c] for c in range(C))
        shared, own = shared + g[:size], [*own, g[size:]]
    torch.testing.assert_close(value.detach(), 1.7 * total)
    found = torch.autograd.grad(value, [*theta.values(), *heads])
    torch.testing.assert_close(torch.cat([part.flatten() for part in found[: len(theta)]]), 1.7 * shared)
    for part, expected in zip(found[len(theta) :], own, strict=True):
        torch.testing.assert_close(part.flatten(), 1.7 * expected)


def test_it_is_zero_where_the_task_began_and_some_tasks_estimate_all():
    regulariser, task = after_two_tasks()
    heads, constants = [one.head for one in task.past], regulariser.constants(task)
    assert float(regulariser.penalty(step_at(task, task.theta, heads), constants, ())) == 0.0
    theta = weights(300)
    whole = regulariser.penalty(step_at(task, theta, heads), constants, ())
    each = [regulariser.penalty(step_at(task, theta, heads, torch.tensor([i])), constants, ()) for i in range(2)]
    torch.testing.assert_close(sum(each) / 2, whole)
    assert MemorablePast().penalty(step_at(task, theta, heads), (), ()) is None


def test_what_it_cannot_keep_is_refused():
    task, _, _ = task_of(0)
    with pytest.raises(DataError, match="for classes with a softmax, not gaussian"):
        MemorablePast().begin(replace(task, likelihood=models.Gaussian(1)))
    with pytest.raises(DataError, match="4 examples are fewer than the 5 to keep"):
        MemorablePast(points=5).begin(replace(task, examples=4))
