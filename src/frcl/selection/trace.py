"""The trace criterion (equation 6): swaps, many searches side by side, and greedy addition (Section 2.4).

Features Φ in this file are kernel features, σ_w φ(x), so that k(x, x') = φ(x)ᵀφ(x').
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from frcl.errors import DataError
from frcl.graphs import captured, spread
from frcl.linalg import cholesky, inverse_lower
from frcl.selection.base import Recipe, Selected

REFRESH = 64  # proposals between two direct recomputations of the matrix that a search keeps


def residual_projection(Phi_z: Tensor, u_noise: float) -> Tensor:
    """R = I − Φ_Zᵀ K̃_Z⁻¹ Φ_Z = σ² (Φ_ZᵀΦ_Z + σ² I)⁻¹, [K, K]: φᵀRφ is what Z leaves unexplained of k(x, x)."""
    root = inverse_lower(cholesky(Phi_z.mT @ Phi_z, u_noise))
    return u_noise * (root.mT @ root)


def trace_term(gram: Tensor, Phi_z: Tensor, u_noise: float) -> Tensor:
    """T(Z) = tr(K_X − K_XZ K̃_Z⁻¹ K_ZX) = tr(R G) [...], with G = Φ_XᵀΦ_X [..., K, K] (`gram`)."""
    return (residual_projection(Phi_z, u_noise) * gram).sum((-2, -1))


class Exchange(NamedTuple):
    """Point j of Z exchanged for one with features φ: R' = R − Σ u uᵀ/d, so T' = T − Σ uᵀG u/d; and P' = P − Σ v vᵀ/d.

    Each sum has two terms: point j goes, φ comes. P [S, n, n] is the matrix that a search keeps; u [S, 2, K],
    v [S, 2, n], d [S, 2, 1]. There are two forms, each used where it subtracts no nearly equal numbers. With R₋ the
    residual projection without point j, and r = R₋φ, both have R' = R₋ − r rᵀ/(σ² + φᵀr).
    """

    u: Tensor
    v: Tensor
    d: Tensor

    def fall(self, gram: Tensor) -> Tensor:
        """T − T' [S]; its cost does not depend on N."""
        return torch.bmm(self.u, gram).mul_(self.u).div_(self.d).sum((1, 2))


def exchange_in_points(P: Tensor, Phi_z: Tensor, slot: Tensor, here: Tensor, pair: Tensor, known: Tensor) -> Exchange:
    """For M ≤ K, where P = −K̃⁻¹ [S, M, M]. With a = K̃⁻¹e_j, p = Φ_Zᵀa, and b = K̃₋⁻¹Φ_Zφ, zero at j:

        R₋ = R + p pᵀ/a_j,   r = φ − Φ_Zᵀb.

    Φ_Z [S, M, K]; slot j [S, 1, 1]; here, a mask [S, 1, M] of where j is; pair (0, φ) [S, 2, K]; known, diag(1, σ²).
    """
    first, noise_of_second = known[:, :1], known[:, 1:]
    v = torch.bmm(torch.where(here, first, torch.bmm(pair, Phi_z.mT)), P)  # −a and −K̃⁻¹Φ_Zφ, Φ_Zφ zero at j
    ends = v.gather(2, slot.expand(-1, 2, -1))
    a, b = v.unbind(1)
    a_j, b_j = ends.unbind(1)
    b.addcmul_(a, b_j / a_j, value=-1)  # −b
    u = torch.baddbmm(pair, v, Phi_z)  # −p and r
    d = (u * pair).sum(2, keepdim=True).add_(noise_of_second).addcmul_(ends, first)  # −a_j and σ² + φᵀr
    b.masked_fill_(here[:, 0], 1.0)
    return Exchange(u, v, d)


def exchange_in_features(P: Tensor, Phi_z: Tensor, slot: Tensor, here: Tensor, pair: Tensor, known: Tensor) -> Exchange:
    """For M > K, where P = R [S, K, K]. With q = Rφ_j and c = σ² − φ_jᵀq:

        R₋ = R + q qᵀ/c,   r = Rφ + q (qᵀφ)/c.

    Takes what the other form takes, but (φ_j, φ) for (0, φ), and diag(−σ², σ²) as `known`.
    """
    u = torch.bmm(pair, P)  # q and Rφ
    products = torch.baddbmm(known[None], u, pair.mT)
    minus_c, along, _, last = products.view(-1, 4, 1).unbind(1)
    q, r = u.unbind(1)
    ratio = along / minus_c
    r.addcmul_(q, ratio, value=-1)
    last.addcmul_(along, ratio, value=-1)  # σ² + φᵀr
    return Exchange(u, u, products.diagonal(dim1=1, dim2=2).unsqueeze(2))


@dataclass(frozen=True)
class TraceSearch:
    """The paper's search as data: proposal t is to exchange the point in slots[t] of Z for example proposals[t].

    Phi [N, K]; start [M] indices of the points it begins with; slots, proposals [steps].
    """

    Phi: Tensor
    start: Tensor
    u_noise: float
    slots: Tensor
    proposals: Tensor


def trace_search(Phi: Tensor, start: Tensor, u_noise: float, steps: int, generator: torch.Generator) -> TraceSearch:
    """A search of `steps` proposals, each of a random point of Z and a random example."""
    slots = torch.randint(len(start), (steps,), generator=generator, device=generator.device)
    proposals = torch.randint(len(Phi), (steps,), generator=generator, device=generator.device)
    return TraceSearch(Phi, start, u_noise, slots, proposals)


def run_searches(searches: Sequence[TraceSearch]) -> list[Selected]:
    """What each search finds; those of the same sizes are run side by side, where their features are."""
    if not searches:
        return []
    groups: dict[object, list[int]] = {}
    for i, one in enumerate(searches):
        key = len(one.start), one.Phi.shape[1], len(one.slots), one.u_noise, one.Phi.device
        groups.setdefault(key, []).append(i)
    found: dict[int, Selected] = {}
    with torch.inference_mode():  # on CUDA the searches may still be under way after it
        swaps_of = [Swaps([searches[i] for i in members]) for members in groups.values()]
        if len(swaps_of) == 1:
            swaps_of[0].run()
        else:
            spread([swaps.run for swaps in swaps_of], searches[0].Phi.device)
    for members, swaps in zip(groups.values(), swaps_of, strict=True):
        index = swaps.index.cpu().clone()  # out of inference mode
        each = zip(index, swaps.before.tolist(), swaps.after.tolist(), strict=True)
        found |= zip(members, (Selected(*one) for one in each), strict=True)
    return [found[i] for i in range(len(searches))]


class Swaps:
    """S searches under way. G and the features of the proposed points are all that they look at.

    `table` [S, M + steps + 1, K] holds for each search the features of Z, of the proposed points, and a row of zeros.
    """

    def __init__(self, searches: Sequence[TraceSearch]) -> None:
        first = searches[0]
        S, M, K, steps, device = len(searches), len(first.start), first.Phi.shape[1], len(first.slots), first.Phi.device
        self.u_noise, self.device = first.u_noise, device
        self.steps, self.has_few_points, self.may_look = steps, M <= K, device.type == "cpu"
        self.gram = torch.stack([_gram(search.Phi) for search in searches])
        self.index = torch.stack([search.start.to(device) for search in searches])
        self.slots = torch.stack([search.slots.to(device) for search in searches])[:, None]
        self.proposals = torch.stack([search.proposals.to(device) for search in searches])
        points = torch.cat((self.index, self.proposals), 1)
        seen = [search.Phi[rows].double() for search, rows in zip(searches, points, strict=True)]
        self.table = torch.nn.functional.pad(torch.stack(seen), (0, 0, 0, 1))
        self.Phi_z, self.rows = self.table[:, :M], self.table.flatten(0, 1)
        self.P = self.direct()
        self.exchange = exchange_in_points if self.has_few_points else exchange_in_features
        diagonal = [1.0 if self.has_few_points else -self.u_noise, self.u_noise]
        self.known = torch.diag(torch.tensor(diagonal, dtype=torch.float64, device=device))
        going = torch.full_like(self.slots, M + steps) if self.has_few_points else self.slots
        coming = torch.arange(M, M + steps, device=device).expand_as(going)
        begin = torch.arange(S, device=device)[:, None, None] * self.table.shape[1]
        self.pairs = (torch.cat((going, coming), 1) + begin).flatten(0, 1).mT.contiguous()  # [steps, 2 S] of `rows`
        self.positions = torch.arange(M, device=device)
        self.clock = torch.full((1,), -1, device=device)

    def direct(self) -> Tensor:
        """P computed from Φ_Z."""
        if not self.has_few_points:
            return residual_projection(self.Phi_z, self.u_noise)
        root = inverse_lower(cholesky(self.Phi_z @ self.Phi_z.mT, self.u_noise))
        return -(root.mT @ root)

    def run(self) -> None:
        """All proposals, one step of all searches after another."""
        self.before = trace_term(self.gram, self.Phi_z, self.u_noise)  # T(Z) of each search, [S]
        step = self.step
        if self.device.type == "cuda" and self.steps >= REFRESH:  # fewer are not worth a recording
            step = captured(step, (self.table, self.index, self.P, self.clock), self.device)
        self.recorded = step  # a recording must live until it has been carried out
        for done in range(0, self.steps, REFRESH):
            if done:
                self.P.copy_(self.direct())
            for _ in range(min(REFRESH, self.steps - done)):
                step()
        self.after = trace_term(self.gram, self.Phi_z, self.u_noise)

    def step(self) -> None:
        """The next proposal of each search, accepted where T falls and the candidate is not in Z.

        On a GPU it looks at no value, so that it can be recorded; on the CPU it writes nothing where nothing changes.
        """
        self.clock.add_(1)
        slot = self.slots.index_select(2, self.clock)  # [S, 1, 1]
        here = self.positions == slot  # [S, 1, M]
        pair = self.rows.index_select(0, self.pairs.index_select(0, self.clock).view(-1)).view(len(slot), 2, -1)
        exchange = self.exchange(self.P, self.Phi_z, slot, here, pair, self.known)
        fall = exchange.fall(self.gram)
        if self.may_look and max(fall.tolist()) <= 0:
            return
        candidate = self.proposals.index_select(1, self.clock)  # [S, 1]
        accepted = ((fall > 0) > (self.index == candidate).any(1))[:, None, None]
        self.P.baddbmm_((exchange.v / exchange.d * accepted).mT, exchange.v, alpha=-1)
        changed = here & accepted
        torch.where(changed[:, 0], candidate, self.index, out=self.index)
        torch.where(changed.mT, pair[:, 1:], self.Phi_z, out=self.Phi_z)


def trace_greedy(Phi: Tensor, M: int, u_noise: float) -> Selected:
    """Add M points one at a time, each the one that lowers the trace term most.

    Adding x lowers T by d(x)/(σ² + c(x)), c = φᵀRφ, d = φᵀRGRφ; both are updated for all N points with two
    products Φv per step. `before` is the trace without any point.
    """
    features = Phi.double()
    gram = features.mT @ features
    R = torch.eye(len(gram), dtype=features.dtype, device=features.device)
    c = features.square().sum(1)
    d = (features @ gram * features).sum(1)
    taken = torch.zeros(len(features), dtype=torch.bool, device=features.device)
    index = torch.empty(M, dtype=torch.long, device=features.device)
    for m in range(M):
        best = (d / (u_noise + c)).masked_fill(taken, -torch.inf).argmax(0, keepdim=True)  # [1]
        taken.index_fill_(0, best, True)
        index[m : m + 1] = best
        # R' = R − v vᵀ/s,  R'GR' = RGR − (v gᵀR + R g vᵀ)/s + v (vᵀg) vᵀ/s²
        v = R @ features.index_select(0, best)[0]  # [K]
        g = gram @ v
        s = u_noise + c.index_select(0, best)[0]
        along_v, along_Rg = features @ v, features @ (R @ g)
        R = R - torch.outer(v, v) / s
        c = c - along_v.square() / s
        d = d - 2 * along_v * along_Rg / s + along_v.square() * (v @ g) / s**2
    after = trace_term(gram, features.index_select(0, index), u_noise)
    return Selected(index.cpu(), float(gram.diagonal().sum()), float(after))


def trace_at(Phi: Tensor, index: Tensor, u_noise: float) -> float:
    """T of the points in `index`."""
    return float(trace_term(_gram(Phi), Phi[index.to(Phi.device)].double(), u_noise))


def _gram(Phi: Tensor) -> Tensor:
    """ΦᵀΦ in float64, in slices so that a large task needs no second copy of its features."""
    total = torch.zeros(Phi.shape[1], Phi.shape[1], dtype=torch.float64, device=Phi.device)
    for part in Phi.split(8192):
        wide = part.double()
        total += wide.mT @ wide
    return total


def random_start(N: int, M: int, generator: torch.Generator, classes: Tensor | None = None) -> Tensor:
    """M different indices below N: uniform, or spread evenly over the classes [N] if given."""
    if M > N:
        raise DataError(f"cannot choose {M} inducing points from {N} examples")
    order = torch.randperm(N, generator=generator, device=generator.device).cpu()
    if classes is None:
        return order[:M]
    labels, rank = classes.cpu()[order], torch.empty_like(order)
    for label in labels.unique():
        where = (labels == label).nonzero()[:, 0]
        rank[where] = torch.arange(len(where))  # every class appears once before any appears twice, and so on
    return order[torch.argsort(rank, stable=True)][:M]


def plan_by_inputs(
    Phi: Tensor, M: int, recipe: Recipe, u_noise: float, generator: torch.Generator, classes: Tensor | None = None
) -> Selected | TraceSearch:
    """M points by features alone, or the search for them; `classes` [N]: a balanced start. Phi: kernel features."""
    start = random_start(len(Phi), M, generator, classes)
    if recipe.criterion == "random":
        value = trace_at(Phi, start, u_noise)  # in the place of an objective, which a random choice has not
        return Selected(start, value, value)
    if recipe.search == "greedy":
        return trace_greedy(Phi, M, u_noise)
    return trace_search(Phi, start, u_noise, recipe.steps, generator)
