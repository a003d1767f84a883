"""Choosing the inducing inputs of a task among its data (Section 2.4, Appendix D).

Every criterion is minimised. A search *returns* its points, with the objective before and after.
Features Φ in this file are times σ_w, so that k(x, x') = φ(x)ᵀφ(x').
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from frcl.errors import DataError
from frcl.likelihoods import Likelihood, log_predictive
from frcl.linalg import add_diagonal, cholesky, inverse_lower
from frcl.posterior import Moments, Posterior
from frcl.summary import belief_from_weights, head_moments, make_head, prior_kl, prior_kl_terms

Criterion = Literal["random", "trace", "predictive", "error", "elbo"]
Search = Literal["swap", "greedy"]
Start = Literal["uniform", "balanced"]

REFRESH = 64  # accepted exchanges between two direct recomputations of the state


@dataclass(frozen=True)
class Selected:
    """The points found, index [M] into the task's data, and the objective at the start and at `index`."""

    index: Tensor
    before: float
    after: float


# -- where a search starts -----------------------------------------------------------------------------


def random_start(N: int, M: int, generator: torch.Generator, classes: Tensor | None = None) -> Tensor:
    """M different indices below N: uniform, or spread evenly over the classes [N] if given."""
    if M > N:
        raise DataError(f"cannot choose {M} inducing points from {N} examples")
    order = torch.randperm(N, generator=generator, device=generator.device).cpu()
    if classes is None:
        return order[:M]
    return _balanced(order, classes.cpu())[:M]


def _balanced(order: Tensor, classes: Tensor) -> Tensor:
    """`order` rearranged so that every class appears once before any appears twice, and so on."""
    labels = classes[order]
    rank = torch.empty_like(order)
    for label in labels.unique():
        where = (labels == label).nonzero()[:, 0]
        rank[where] = torch.arange(len(where))
    return order[torch.argsort(rank, stable=True)]


# -- the trace term (equation 6) ------------------------------------------------------------------------


def residual_projection(Phi_z: Tensor, noise: float) -> Tensor:
    """R = I − Φ_Zᵀ K̃_Z⁻¹ Φ_Z = σ² (Φ_ZᵀΦ_Z + σ² I)⁻¹, [K, K]: φᵀRφ is what Z leaves unexplained of k(x, x)."""
    root = inverse_lower(cholesky(add_diagonal(Phi_z.mT @ Phi_z, noise)))
    return noise * (root.mT @ root)


def trace_term(gram: Tensor, Phi_z: Tensor, noise: float) -> float:
    """T(Z) = tr(K_X − K_XZ K̃_Z⁻¹ K_ZX) = tr(R G), with G = Φ_XᵀΦ_X [K, K] (`gram`)."""
    return float((residual_projection(Phi_z, noise) * gram).sum())


class TraceState(NamedTuple):
    """A candidate Z: its features [M, K], T(Z), and the smaller of K̃_Z⁻¹ [M, M] and (Φ_ZᵀΦ_Z + σ²I)⁻¹ [K, K]."""

    Phi_z: Tensor
    inverse: Tensor
    value: float


def trace_state(gram: Tensor, Phi_z: Tensor, noise: float) -> TraceState:
    """The state of Z worked out directly."""
    M, K = Phi_z.shape
    square = Phi_z @ Phi_z.mT if M <= K else Phi_z.mT @ Phi_z
    root = inverse_lower(cholesky(add_diagonal(square, noise)))
    return TraceState(Phi_z, root.mT @ root, trace_term(gram, Phi_z, noise))


class Exchange(NamedTuple):
    """A point of Z exchanged for φ: T then, and the two rank-one changes of the inverse, each weight · v vᵀ."""

    slot: int
    phi: Tensor
    value: float
    out: Tensor
    out_weight: Tensor
    into: Tensor
    into_weight: Tensor


def propose(state: TraceState, gram: Tensor, noise: float, slot: int, phi: Tensor) -> Exchange:
    """T after slot j of Z goes to a point with features φ: a rank-two update, its cost independent of N.

    With R₋ the residual projection without point j, T₋ = tr(R₋G) and r = R₋φ,

        T' = T₋ − rᵀG r / (σ² + φᵀr).

    For M ≤ K, with a = K̃⁻¹e_j:  R₋ = R + (Φ_Zᵀa)(Φ_Zᵀa)ᵀ/a_j.
    For M > K, with u = B⁻¹φ_j, B = Φ_ZᵀΦ_Z + σ²I:  R₋ = R + σ² u uᵀ/(1 − φ_jᵀu).
    Each form is used where it subtracts no nearly equal numbers.
    """
    Phi_z, inverse, value = state
    if len(Phi_z) <= len(phi):
        a = inverse[:, slot]
        p = a @ Phi_z
        k = Phi_z @ phi
        k[slot] = 0.0
        b = inverse @ k
        b = b - a * (b[slot] / a[slot])  # K̃₋⁻¹ k, zero at j
        r = phi - b @ Phi_z
        schur = noise + phi @ r
        b[slot] = -1.0
        value += float(p @ gram @ p / a[slot] - r @ gram @ r / schur)
        return Exchange(slot, phi, value, a, -1 / a[slot], b, 1 / schur)
    u = inverse @ Phi_z[slot]
    left = 1.0 - Phi_z[slot] @ u
    w = inverse @ phi
    w = w + u * (u @ phi / left)  # B₋⁻¹ φ = r/σ²
    schur = 1.0 + phi @ w
    value += noise * float(u @ gram @ u / left - w @ gram @ w / schur)
    return Exchange(slot, phi, value, u, 1 / left, w, -1 / schur)


def accept(state: TraceState, exchange: Exchange) -> TraceState:
    """The state after the exchange."""
    inverse = state.inverse + torch.outer(exchange.out, exchange.out * exchange.out_weight)
    inverse = inverse + torch.outer(exchange.into, exchange.into * exchange.into_weight)
    Phi_z = state.Phi_z.clone()
    Phi_z[exchange.slot] = exchange.phi
    return TraceState(Phi_z, inverse, exchange.value)


def trace_swaps(Phi: Tensor, start: Tensor, noise: float, steps: int, generator: torch.Generator) -> Selected:
    """The paper's search: `steps` times a random point of Z is proposed to be exchanged for a random one of X.

    G and the features of the proposed points are all it looks at.
    """
    gram = _gram(Phi)
    slots = torch.randint(len(start), (steps,), generator=generator, device=generator.device).tolist()
    proposals = torch.randint(len(Phi), (steps,), generator=generator, device=generator.device)
    incoming = Phi[proposals.to(Phi.device)].double().cpu()
    index = start.tolist()
    state = trace_state(gram, Phi[start.to(Phi.device)].double().cpu(), noise)
    before = state.value
    accepted = 0
    for slot, candidate, phi in zip(slots, proposals.tolist(), incoming, strict=True):
        if candidate in index:
            continue
        exchange = propose(state, gram, noise, slot, phi)
        if exchange.value >= state.value:
            continue
        index[slot] = candidate
        state = accept(state, exchange)
        accepted += 1
        if accepted % REFRESH == 0:
            state = trace_state(gram, state.Phi_z, noise)
    return Selected(torch.tensor(index), before, trace_term(gram, state.Phi_z, noise))


def trace_greedy(Phi: Tensor, M: int, noise: float) -> Selected:
    """Add M points one at a time, each the one that lowers the trace term most.

    Adding x lowers T by d(x)/(σ² + c(x)), c = φᵀRφ, d = φᵀRGRφ; both are updated for all N points with two
    products Φv a step. `before` is the trace without any point.
    """
    features = Phi.double()
    gram = features.mT @ features
    R = torch.eye(len(gram), dtype=features.dtype, device=features.device)
    c = features.square().sum(1)
    d = (features @ gram * features).sum(1)
    before = float(gram.diagonal().sum())
    taken = torch.zeros(len(features), dtype=torch.bool, device=features.device)
    index = []
    for _ in range(M):
        best = int((d / (noise + c)).masked_fill(taken, -torch.inf).argmax())
        taken[best] = True
        index.append(best)
        # R' = R − v vᵀ/s,  R'GR' = RGR − (v gᵀR + R g vᵀ)/s + v (vᵀg) vᵀ/s²
        v = R @ features[best]  # [K]
        g = gram @ v
        s = noise + c[best]
        along_v, along_Rg = features @ v, features @ (R @ g)
        R = R - torch.outer(v, v) / s
        c = c - along_v.square() / s
        d = d - 2 * along_v * along_Rg / s + along_v.square() * (v @ g) / s**2
    chosen = torch.tensor(index)
    return Selected(chosen, before, trace_term(gram, features[chosen.to(Phi.device)], noise))


def _gram(Phi: Tensor) -> Tensor:
    """ΦᵀΦ in float64, on the CPU, in slices so that a large task needs no second copy of its features."""
    total = torch.zeros(Phi.shape[1], Phi.shape[1], dtype=torch.float64, device=Phi.device)
    for part in Phi.split(8192):
        total += part.double().mT @ part.double()
    return total.cpu()


# -- the supervised criteria (Appendix D) ---------------------------------------------------------------


@dataclass(frozen=True)
class TaskData:
    """What a supervised criterion looks at: features, targets and the posterior of the task just learned.

    Phi [N, K] is not times σ_w here. `noise_mc` is the Monte Carlo noise of the likelihood, the same for every
    candidate set, so that two sets are compared on equal terms.
    """

    Phi: Tensor
    y: Tensor
    q: Posterior
    likelihood: Likelihood
    params: Mapping[str, Tensor]
    prior_deviation: float
    noise: float
    noise_mc: Tensor
    size: float  # N of the task, of which these may be a part

    def moments(self, index: Tensor) -> Moments:
        """f at all N inputs, predicted from q(u) at the points in `index`."""
        belief = belief_from_weights(self.q, self.Phi[index], self.noise)
        head = make_head(self.prior_deviation * self.Phi[index], belief)
        moments = head_moments(head, belief, self.prior_deviation * self.Phi)
        return Moments(*(value.to(self.Phi) for value in moments))

    def others(self, index: Tensor) -> Tensor:
        """True at the examples that are not inducing points; everywhere if all of them are."""
        rest = torch.ones(len(self.Phi), dtype=torch.bool, device=self.Phi.device)
        if len(index) < len(rest):
            rest[index] = False
        return rest


def negative_log_predictive(task: TaskData, index: Tensor) -> float:
    """−mean of log p(y | Z) over the examples outside Z."""
    log_p = log_predictive(task.likelihood, *task.moments(index), task.y, task.noise_mc, task.params)
    return -float(log_p[task.others(index)].mean())


def classification_error(task: TaskData, index: Tensor) -> float:
    """Share of the examples outside Z whose most probable class, seen through Z, is wrong."""
    probabilities = task.likelihood.probabilities(*task.moments(index), task.noise_mc)
    wrong = probabilities.argmax(1) != task.y
    return float(wrong[task.others(index)].double().mean())


def negative_elbo(task: TaskData, index: Tensor) -> float:
    """−Σ_j E[log p(y_j | f_j)] + Σ_c KL(q(u_c | Z) ‖ p(u_c | Z)), the sum over all N examples of the task.

    Where only n of them are at hand their sum stands for it, times N/n.
    """
    belief = belief_from_weights(task.q, task.Phi[index], task.noise)
    Phi_z = (task.prior_deviation * task.Phi[index])[None]
    kl = float(prior_kl(Phi_z, prior_kl_terms(belief)))
    expected = task.likelihood.expected_log_prob(*task.moments(index), task.y, task.noise_mc, task.params)
    return kl - task.size * float(expected.double().mean())


def swap_search(
    objective: Callable[[Tensor], float], N: int, start: Tensor, steps: int, generator: torch.Generator
) -> Selected:
    """Local swaps for any objective of an index [M]: a proposal is kept when it is lower."""
    index = start.clone()
    before = value = objective(index)
    slots = torch.randint(len(start), (steps,), generator=generator, device=generator.device).tolist()
    proposals = torch.randint(N, (steps,), generator=generator, device=generator.device).tolist()
    for slot, candidate in zip(slots, proposals, strict=True):
        if bool((index == candidate).any()):
            continue
        changed = index.clone()
        changed[slot] = candidate
        proposed = objective(changed)
        if proposed < value:
            index, value = changed, proposed
    return Selected(index, before, value)


@dataclass(frozen=True)
class Recipe:
    """How points are chosen: criterion, search, number of proposals, examples a supervised criterion sees."""

    criterion: Criterion = "trace"
    search: Search = "swap"
    steps: int = 1000
    examples: int = 10_000

    @property
    def is_supervised(self) -> bool:
        return self.criterion in ("predictive", "error", "elbo")


def select_by_inputs(
    Phi: Tensor, M: int, recipe: Recipe, noise: float, generator: torch.Generator, classes: Tensor | None = None
) -> Selected:
    """M points by a criterion that looks at features alone; `classes` [N] for a balanced start.

    A random choice has no objective of its own; the trace term it happens to have stands in for it.
    """
    start = random_start(len(Phi), M, generator, classes)
    if recipe.criterion == "random":
        value = trace_term(_gram(Phi), Phi[start.to(Phi.device)].double().cpu(), noise)
        return Selected(start, value, value)
    if recipe.search == "greedy":
        return trace_greedy(Phi, M, noise)
    return trace_swaps(Phi, start, noise, recipe.steps, generator)


def select_by_targets(
    task: TaskData, M: int, recipe: Recipe, generator: torch.Generator, classes: Tensor | None = None
) -> Selected:
    """M points by a supervised criterion, judged on at most `recipe.examples` of the task's examples."""
    N, examples = len(task.Phi), recipe.examples
    rows = torch.arange(N)
    if max(examples, 2 * M) < N:
        rows = random_start(N, max(examples, 2 * M), generator, classes)
        task = replace(task, Phi=task.Phi[rows.to(task.Phi.device)], y=task.y[rows.to(task.y.device)])
    start = random_start(len(rows), M, generator, None if classes is None else classes.cpu()[rows])
    measure = {"predictive": negative_log_predictive, "error": classification_error, "elbo": negative_elbo}
    found = swap_search(lambda index: measure[recipe.criterion](task, index), len(rows), start, recipe.steps, generator)
    return replace(found, index=rows[found.index])
