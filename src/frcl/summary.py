"""What is kept of a task: inducing inputs Z and q(u); its KL to the moving prior; prediction through it.

u is f(Z) observed with a small variance σ² (`u_noise`), which is part of the model: p(u) = N(0, K_Z + σ² I), and
q(u) made from q(w) has it too (equation 5 plus σ² I). Functions take features Φ as they are and apply the σ_w of the
task themselves: K_Z = σ_w² Φ_Z Φ_Zᵀ. In the formulas Φ' = σ_w Φ. Square matrices are float64.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from frcl.few import product
from frcl.linalg import cholesky, inverse_lower, logdet_from_cholesky, low_rank_factor, lower_factor
from frcl.posterior import Moments, Posterior, kernel_features, weight_moments
from frcl.trees import tree_map

LEVELS = 256  # different values that one byte can number


class StoredInputs(NamedTuple):
    """Inputs [M, ...] as they are; or, with a table, their indices in it as uint8 and the table of their values.

    Images of 8 bits have at most 256 different values, whatever they were divided by or shifted to. Values of float16
    with an empty table are inputs of its type.
    """

    values: Tensor
    table: Tensor | None = None

    @property
    def inputs(self) -> Tensor:
        """The inputs as they were given."""
        if self.table is None:
            return self.values
        is_half = self.values.dtype == torch.float16
        return self.values.to(self.table.dtype) if is_half else self.table[self.values.long()]

    @property
    def kept(self) -> list[Tensor]:
        """The tensors that are stored."""
        return [self.values] if self.table is None else [self.values, self.table]

    @property
    def is_sound(self) -> bool:
        """Whether the indices are those of a sorted table, or values of float16 have none."""
        if self.table is None:
            return True
        if self.values.dtype == torch.float16:
            return self.table.shape == (0,) and self.table.is_floating_point() and self.table.element_size() > 2
        indices, levels = self.values, self.table.numel()
        fits = indices.dtype == torch.uint8 and indices.numel() > 0 and self.table.shape == (levels,)
        return fits and bool((self.table.diff() > 0).all()) and int(indices.max()) < levels <= LEVELS


def stored_inputs(x: Tensor) -> StoredInputs:
    """A copy of inputs in the smallest of the ways that are exact."""
    x = x.detach()
    ways = [StoredInputs(x)]
    if x.is_floating_point() and x.element_size() > 2 and bool((x.half().to(x.dtype) == x).all()):
        ways.append(StoredInputs(x.half(), x.new_empty(0)))
    if x.element_size() > 1 and not x.is_complex():
        table, index = x.unique(return_inverse=True)
        if len(table) <= LEVELS:
            ways.append(StoredInputs(index.to(torch.uint8), table))
    sizes = [sum(part.nbytes for part in way if part is not None) for way in ways]
    best = ways[sizes.index(min(sizes))]
    return StoredInputs(x.clone()) if best.table is None else best


@dataclass(frozen=True)
class FunctionBelief:
    """q(u_c) = N(μ_c, t_c L_c L_cᵀ + posterior_noise · I), c = 1..C, at M inducing inputs.

    mean [C, M]; factor [C, M, R] with R = min(M, K), or one for all functions, [1, M, R]; scale [C] are the t_c, whose
    mean is one, and None where all of them are one; u_noise and prior_std: σ² and σ_w of the prior
    p(u) = N(0, σ_w² Φ_Z Φ_Zᵀ + σ² I).
    """

    mean: Tensor
    factor: Tensor
    u_noise: float
    posterior_noise: float
    prior_std: float = 1.0
    scale: Tensor | None = None

    @property
    def M(self) -> int:
        return self.mean.shape[1]

    @cached_property
    def with_mean(self) -> tuple[Tensor, Tensor]:
        """F and the constant of `PriorKL`; found once, since every later task needs them."""
        return _kl_parts(self, self.mean.double())

    @cached_property
    def without_mean(self) -> tuple[Tensor, Tensor]:
        """The same for A = Σ_c cov(u_c)."""
        return _kl_parts(self, self.mean.double()[:0])


def belief_from_weights(q: Posterior, Phi_z: Tensor, u_noise: float, prior_std: float = 1.0) -> FunctionBelief:
    """Equation 5: μ_u = Φ_Z μ_w, cov(u_c) = Φ_Z Σ_c Φ_Zᵀ; Phi_z [M, K].

    A factor is M×K; for M < K it is replaced by the M×M triangle with the same L_u L_uᵀ. Full and shared covariances
    keep their structure, exactly. Diagonal ones, with or without low rank, have as many M×M covariances of u as
    functions, of which one shape is kept, that of their mean, and a scale for each function:

        cov(u_c) ≈ t_c Φ_Z Σ̄ Φ_Zᵀ,   Σ̄ = (1/C) Σ_c Σ_c,   t_c = tr(Φ_Z Σ_c Φ_Zᵀ) / tr(Φ_Z Σ̄ Φ_Zᵀ).

    Σ_c cov(u_c), all that the KL to a moving prior needs, is still exact, and so is each trace.
    """
    Phi, dtype = Phi_z.double(), q.mean.dtype
    mean = q.mean.double() @ Phi.mT  # [C, M]
    scale: Tensor | None = None
    if q.factor.ndim == 3:
        factor = Phi @ q.factor.double().tril()  # [C, M, K], [1, M, K] for a shared one
    else:
        factor = (Phi @ _mean_factor(q))[None]
        traces = weight_moments(tree_map(Tensor.double, q), Phi).variance.sum(0)
        scale = (traces / traces.mean()).to(dtype)
    if factor.shape[1] < factor.shape[2]:
        factor = lower_factor(factor)
    return FunctionBelief(
        mean.to(dtype), factor.to(dtype), u_noise, posterior_noise=u_noise, prior_std=prior_std, scale=scale
    )


def _mean_factor(q: Posterior) -> Tensor:
    """A factor [K, K] of (1/C) Σ_c Σ_c for diagonal covariances, with or without low rank."""
    diagonal = q.factor.double().square().mean(0)
    if q.low_rank is None:
        return diagonal.sqrt().diag()
    columns = q.low_rank.double().movedim(0, 1).flatten(1)  # [K, C r]
    return cholesky(columns @ columns.mT / len(q.mean), diagonal)


def belief_from_function(q: Posterior, u_noise: float, prior_std: float = 1.0) -> FunctionBelief:
    """Function-space inference has q(u) = N(μ_u, L_u L_uᵀ) already."""
    return FunctionBelief(q.mean.clone(), q.factor.tril().clone(), u_noise, posterior_noise=0.0, prior_std=prior_std)


def marginal(belief: FunctionBelief, rows: Tensor) -> FunctionBelief:
    """q(u) at some of the points, exactly: N(μ_rows, t_c L_rows L_rowsᵀ + posterior_noise · I); rows [m] are indices.

    For m < R the factor is replaced by the m×m triangle with the same product.
    """
    factor = belief.factor[:, rows]
    if factor.shape[1] < factor.shape[2]:
        factor = lower_factor(factor.double()).to(factor)
    return replace(belief, mean=belief.mean[:, rows], factor=factor)


class PriorKL(NamedTuple):
    """What Σ_c KL(q(u_c) ‖ p_θ(u_c)) needs of T tasks, padded to M points and R columns.

    With A = Σ_c cov(u_c) + μ_c μ_cᵀ = F Fᵀ + C·posterior_noise·I, a constant of the task,

        Σ_c KL = ½ [ tr(K̃⁻¹ A) + C log|K̃| ] + constant.

    F [T, M, R]; mask [T, M], one at real points; the rest [T]. `smallest` is the fewest real points of a task.
    """

    F: Tensor
    mask: Tensor
    C: Tensor
    u_noise: Tensor
    posterior_noise: Tensor
    prior_std: Tensor
    constant: Tensor
    smallest: int


def prior_kl_terms(beliefs: Sequence[FunctionBelief], *, with_mean: bool = True) -> PriorKL:
    """The constants of T tasks: constant = −½ Σ_c log|cov(u_c)| − ½ C M. Without their means A = Σ_c cov(u_c)."""
    F, constant = zip(*(one.with_mean if with_mean else one.without_mean for one in beliefs), strict=True)
    mask = padded([part.new_ones(len(part)) for part in F])
    numbers = [[len(one.mean), one.u_noise, one.posterior_noise, one.prior_std] for one in beliefs]
    C, u_noise, posterior_noise, prior_std = F[0].new_tensor(numbers).unbind(1)
    return PriorKL(padded(F), mask, C, u_noise, posterior_noise, prior_std, torch.stack(constant), min(map(len, F)))


def _kl_parts(belief: FunctionBelief, mean: Tensor) -> tuple[Tensor, Tensor]:
    """F [M, R] for A with these means [·, M], and the constant."""
    L, C = belief.factor.double(), len(belief.mean)
    covariance = (L @ L.mT).sum(0) * (C // len(L))  # Σ_c of them, without their noise; Σ_c t_c = C
    F = low_rank_factor(covariance + mean.mT @ mean, L.shape[2])  # the mean lies in the span of L's columns where R < M
    if belief.scale is None:
        logdet = logdet_from_cholesky(cholesky(L @ L.mT, belief.posterior_noise)).sum() * (C // len(L))
    else:  # from the eigenvalues λ of L Lᵀ: Σ_c Σ_i log(t_c λ_i + posterior_noise)
        values = torch.linalg.eigvalsh(L[0] @ L[0].mT).clamp_min(0.0)
        logdet = (torch.outer(belief.scale.double(), values) + belief.posterior_noise).log().sum()
    return F, -0.5 * (logdet + belief.mean.numel())


def padded(each: Sequence[Tensor]) -> Tensor:
    """Tensors side by side, [T, ...], each enlarged by zeros at the end to the largest size along every axis."""
    sizes = [max(lengths) for lengths in zip(*(one.shape for one in each), strict=True)]
    out = each[0].new_zeros(len(each), *sizes)
    for part, one in zip(out, each, strict=True):
        part[tuple(slice(length) for length in one.shape)] = one
    return out


def prior_kl(Phi: Tensor, terms: PriorKL, around: tuple[Tensor, Tensor] | None = None) -> Tensor:
    """Σ_c KL(q(u_c) ‖ p_θ(u_c)) for each task, [T]; Phi [T, M, K] at the (padded) inducing inputs.

    The value and its first derivative are exact: that with respect to Φ has a closed form, from the same factorisation,
    so nothing is differentiated through a Cholesky. Second derivatives are not available. One M×M factorisation per
    task, or one K×K where every task has more points than features: with fewer it would subtract nearly equal numbers.

    `around` are means μ_u [T, M, C], zero where padded, and kept heads v [T, C, K]. Then the prior of a task is
    N(Φ_Z v_c, K̃), and `terms` are those without the mean. With the residuals μ_u − Φ_Z v as further columns of F it is
    the same KL, and their own part of the derivative is d/dΦ = −K̃⁻¹ (μ_u − Φ_Z v) vᵀ. Where the features have not moved
    since the task ended the residuals are zero, and so is that part.
    """
    scale, mask = terms.prior_std[:, None, None], terms.mask[..., None]
    if terms.smallest < Phi.shape[1]:
        Phi = torch.where(mask > 0, Phi, 0.0)
    with torch.no_grad():
        columns = terms.F.shape[2]
        fixed = kernel_features(Phi.double(), scale)
        if around is not None:
            mean, v = (part.double() for part in around)
            terms = terms._replace(F=torch.cat([terms.F, (mean - Phi.double() @ v.mT) * mask], 2))
        compute = _kl_through_points if terms.smallest <= Phi.shape[2] else _kl_through_features
        value, by_Phi, solved = compute(fixed, terms)
        gradient = scale * by_Phi
        if around is not None:
            gradient = gradient - (solved[..., columns:] * mask) @ v
    linear = (Phi * gradient.to(Phi.dtype)).sum((1, 2))
    return value + (linear - linear.detach())  # zero, with the derivative `gradient`


def _kl_through_points(Phi: Tensor, terms: PriorKL) -> tuple[Tensor, Tensor, Tensor]:
    """Value, d/dΦ' and K̃⁻¹F with M×M algebra, K̃ = Φ'Φ'ᵀ + σ²I, for Φ' as `Phi`:

        d/dK̃ = ½ [ C K̃⁻¹ − K̃⁻¹ A K̃⁻¹ ],   d/dΦ = 2 (d/dK̃) Φ.

    Padded points have a zero row in Φ and a one on the diagonal: they add nothing to any term.
    """
    C, u_noise, extra = terms.C[:, None, None], terms.u_noise[:, None], terms.C * terms.posterior_noise
    chol_K = cholesky(Phi @ Phi.mT, u_noise * terms.mask + (1 - terms.mask))
    root = inverse_lower(chol_K)
    inverse = root.mT @ root  # K̃⁻¹ [T, M, M]
    X = inverse @ terms.F  # K̃⁻¹ F
    trace = (terms.F * X).sum((1, 2)) + extra * (inverse.diagonal(dim1=1, dim2=2) * terms.mask).sum(1)
    value = 0.5 * (trace + terms.C * logdet_from_cholesky(chol_K)) + terms.constant
    gradient = (C * inverse - X @ X.mT - extra[:, None, None] * (inverse @ inverse)) @ Phi
    return value, gradient, X


def _kl_through_features(Phi: Tensor, terms: PriorKL) -> tuple[Tensor, Tensor, Tensor]:
    """The same with K×K algebra, B = ΦᵀΦ + σ²I, in a form without cancellation.

    FᵀK̃⁻¹F is the least value of ‖F − ΦX‖²/σ² + ‖X‖², reached at X = B⁻¹ΦᵀF, so

        tr(FᵀK̃⁻¹F) = ‖F − ΦX‖²/σ² + ‖X‖²,      its d/dΦ = −2 (F − ΦX) Xᵀ/σ²,
        log|K̃| = log|B| + (M − K) log σ²,        its d/dΦ = 2 Φ B⁻¹,
        tr K̃⁻¹ = (M − K)/σ² + tr B⁻¹,            its d/dΦ = −2 Φ B⁻²,

    and K̃⁻¹F = (F − ΦX)/σ².
    """
    u_noise, C, extra = terms.u_noise, terms.C[:, None, None], terms.C * terms.posterior_noise
    chol_B = cholesky(Phi.mT @ Phi, u_noise[:, None])
    root = inverse_lower(chol_B)
    inverse = root.mT @ root  # B⁻¹ [T, K, K]
    X = inverse @ (Phi.mT @ terms.F)
    rest = terms.F - Phi @ X
    missing = terms.mask.sum(1) - Phi.shape[2]  # M − K
    trace = rest.square().sum((1, 2)) / u_noise + X.square().sum((1, 2))
    trace = trace + extra * (missing / u_noise + inverse.diagonal(dim1=1, dim2=2).sum(1))
    logdet = logdet_from_cholesky(chol_B) + missing * u_noise.log()
    value = 0.5 * (trace + terms.C * logdet) + terms.constant
    weight = C * inverse - extra[:, None, None] * (inverse @ inverse)
    gradient = Phi @ weight - rest @ (X / u_noise[:, None, None]).mT
    return value, gradient, rest / u_noise[:, None, None]


@dataclass(frozen=True, eq=False)
class Head:
    """An old task's predictor under the current θ (Section 2.5): constant until θ moves.

    weights [K, C] = σ_w Φ'_Zᵀ K̃⁻¹ μ_u, the mean prediction for w; P [M, K] = K̃⁻¹ Φ'_Z.

    Variances are sums of squares, one block of `blocks` for each function, or one for all of them. For M > K a block
    [K, K] is a factor of the covariance of w, σ_w² (σ² B⁻¹ + Pᵀ cov(u_c) P), B = Φ'_ZᵀΦ'_Z + σ²I. For M ≤ K blocks are
    [M, M] and begin from s = L⁻¹Φ'_Z φ', with L Lᵀ = K̃ and root [K, M] = σ_w (L⁻¹Φ'_Z)ᵀ: L⁻¹L_c for each factor of
    q(u), L⁻¹ times the std of its noise, and I, since the prior variance left after observing u is ‖φ'‖² − ‖s‖².
    scale [C] are the t_c of q(u): then the blocks of M > K are two, one to be scaled and what all functions share.
    share [C] is the part of these variances that counts.
    """

    weights: Tensor
    P: Tensor
    root: Tensor | None
    blocks: Tensor
    prior_std: float
    scale: Tensor | None = None
    share: Tensor | None = None

    @cached_property
    def tensors(self) -> tuple[Tensor | None, ...]:
        """What moments are computed from."""
        if self.root is None:
            return self.weights, self.blocks, None, self.scale, self.share
        variances = self.weights.new_full((len(self.weights),), self.prior_std**2)
        return torch.cat([self.root, self.weights], 1), self.blocks, variances, self.scale, self.share

    @cached_property
    def arrays(self) -> tuple[Any, ...]:
        """The same as NumPy arrays, on a CPU."""
        return tuple(None if one is None else one.numpy() for one in self.tensors)

    @cached_property
    def single(self) -> tuple[Any, ...]:
        """The same with blocks of float32: half the memory to read, which is most of the time of one input."""
        first, blocks, *others = self.arrays
        return first, blocks.astype(np.float32), *others


def make_head(Phi_z: Tensor, belief: FunctionBelief) -> Head:
    """The head of a task from its features at Z [M, K] under the current θ."""
    std, Phi, factor = belief.prior_std, kernel_features(Phi_z.double(), belief.prior_std), belief.factor.double()
    root, scale = None, None if belief.scale is None else belief.scale.double()
    if Phi.shape[0] <= Phi.shape[1]:
        H = inverse_lower(cholesky(Phi @ Phi.mT, belief.u_noise))
        Q = H @ Phi
        P, root = H.mT @ Q, (std * Q.mT).contiguous()
        common = torch.stack([math.sqrt(belief.posterior_noise) * H, torch.eye(len(H)).to(H)])
        blocks = torch.cat([_squared(H @ factor), common])  # [C+2, M, M]
    else:
        Q = inverse_lower(cholesky(Phi.mT @ Phi, belief.u_noise))
        inverse = Q.mT @ Q
        P = Phi @ inverse
        spread = P.mT @ factor  # [C, K, R]
        common = belief.u_noise * inverse + belief.posterior_noise * (P.mT @ P)
        if scale is None:
            blocks = std * cholesky(spread @ spread.mT + common)
        else:
            blocks = std * torch.cat([_squared(spread), cholesky(common)[None]])
    weights = std * (P.mT @ belief.mean.double().mT)
    return Head(weights, P, root, blocks.movedim(0, 1).flatten(1), std, scale)


def _squared(H: Tensor) -> Tensor:
    """A matrix [..., M, M] with the same product with its transpose as H [..., M, R]."""
    M, R = H.shape[-2:]
    return lower_factor(H) if R > M else torch.nn.functional.pad(H, (0, M - R))


def recentred(head: Head, Phi_z: Tensor, belief: FunctionBelief, centre: Tensor) -> Head:
    """The head where the prior of w is N(v, σ_w² I) instead of N(0, σ_w² I), v [C, K] as `centre`: f ~ GP(φᵀv, k), so

        weights = v + σ_w Φ'_Zᵀ K̃⁻¹ (μ_u − Φ_Z v).

    Where μ_u = Φ_Z v the head is v itself; elsewhere the values at Z win, and v stands in far from them. The variance
    is that of the same summary: a posterior covariance does not depend on the mean of the prior.
    """
    v = centre.double().mT  # [K, C]
    moved = belief.mean.double().mT - Phi_z.double() @ v
    return replace(head, weights=v + belief.prior_std * (head.P.mT @ moved))


def head_moments(head: Head, Phi_x: Tensor) -> Moments:
    """Mean and variance of f at x, [B, C] each (Section 2.5); Phi_x [B, K]:

    μ = μ_uᵀ K̃⁻¹ k_Zx,   σ² = k(x,x) + k_Zxᵀ K̃⁻¹ [ cov(u) − K̃ ] K̃⁻¹ k_Zx.
    """
    mean, variance = raw_moments(Phi_x.double(), *head.tensors)
    return Moments(mean, variance.expand_as(mean))


def raw_moments(Phi: Any, first: Any, blocks: Any, variances: Any, scale: Any, share: Any) -> tuple[Any, Any]:
    """Means [B, C] and variances [B, C], or [B, 1] for a shared factor; of tensors or of arrays. See `Head`."""
    M, mean, s = blocks.shape[0], product(Phi, first), Phi
    if variances is not None:
        mean, s = mean[:, M:], mean[:, :M]
    each = product(s, blocks).reshape(s.shape[0], -1, M)
    variance = (each * each).sum(2)
    if variances is not None:
        left = ((Phi * Phi) @ variances - variance[:, -1]).clip(0.0)  # below zero by rounding only
        spread, noise = variance[:, :-2], variance[:, -2]
        variance = (spread if scale is None else spread * scale) + (left + noise)[:, None]
    elif scale is not None:
        variance = variance[:, :1] * scale + variance[:, 1:]
    return mean, variance if share is None else variance * share
