"""Predictions that follow a drift of p(y | x) within the open task: heads that forget at different rates, averaged.

A head is Bayesian logistic regression on fixed features φ, one function per label, w_c ~ N(m_c, Λ_c⁻¹). It forgets and
learns once per minibatch with targets t_c ∈ {0, 1}, from m_c and Λ_c towards the prior N(0, I):

    Λ_c ← λ Λ_c + (1 − λ) I,    then Newton steps to the mode,    Λ_c ← Λ_c + Σ_n s_n (1 − s_n) φ_n φ_nᵀ,  s = σ(m_cᵀφ).

It remembers about 1/(1 − λ) minibatches. Its p(y = c | x) is in proportion to σ(μ_c / √(1 + π v_c/8)), μ and v the
moments of f_c. Heads and the learner's own prediction are averaged with weights in proportion to exp e_i, where
e_i ← e_i/10 + Σ_n log p_i(y_n | x_n): dynamic model averaging (Raftery, Kárný and Ettler, 2010). So whichever predicted
the last minibatches best predicts the next one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from frcl.boundary.profile import FEATURES
from frcl.inference import InputFeatures
from frcl.likelihoods import Label

FORGET = (0.5, 0.8, 0.95, 0.99)  # λ of the heads
KEPT = 0.1  # of the evidence for a model, per minibatch
NEWTON = 2  # steps
LEAST = 1e-4  # probability that any label has at least, where evidence is counted
FEW = 64  # inputs of at most this many numbers are features themselves


def relaxed(precision: Tensor, forget: Tensor) -> Tensor:
    """λ Λ + (1 − λ) I, [E, C, K, K] with λ [E]."""
    own = forget[:, None, None, None]
    return own * precision + (1 - own) * torch.eye(precision.shape[-1]).to(precision)


def learned(mean: Tensor, precision: Tensor, Phi: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and precision of each head after a minibatch, Phi [n, K], targets [n, C]: Laplace's approximation."""
    start, hessian = mean, precision
    for _ in range(NEWTON):
        s = torch.sigmoid(mean @ Phi.mT)  # [E, C, n]
        hessian = precision + (Phi.mT * (s * (1 - s))[..., None, :]) @ Phi
        gradient = (targets.mT - s) @ Phi - (precision @ (mean - start)[..., None])[..., 0]
        mean = mean + torch.linalg.solve(hessian, gradient)
    return mean, hessian


def predictive(mean: Tensor, precision: Tensor, Phi: Tensor) -> Tensor:
    """Class probabilities of each head, [E, n, C]."""
    root = torch.linalg.cholesky(precision)
    variance = torch.linalg.solve_triangular(root, Phi.mT.expand(*precision.shape[:2], *Phi.mT.shape), upper=False)
    scale = (1 + math.pi / 8 * variance.square().sum(-2)).rsqrt()
    s = torch.sigmoid(scale * (mean @ Phi.mT)).mT + 1e-12
    return s / s.sum(-1, keepdim=True)


@dataclass
class Heads:
    """Heads on one kind of features: means [E, C, K] and precisions [E, C, K, K], in float64."""

    mean: Tensor
    precision: Tensor


@dataclass
class Tracked:
    """The state of a `Tracker`: labels, heads on each kind of features, evidence for the learner (first) and heads."""

    labels: list[Label] = field(default_factory=list)
    heads: list[Heads] = field(default_factory=list)
    evidence: Tensor = field(default_factory=lambda: torch.zeros(1, dtype=torch.float64))


class Tracker:
    """Heads beside a learner that predict the next minibatch of a stream together with it.

    Their features are fixed random ones of the input, and the input itself where it has few numbers. Call `predict`
    with a minibatch and what the learner says of it, then `learn` with the same and its labels.
    """

    def __init__(self, seed: int = 0) -> None:
        self.state = Tracked()
        self._fixed = InputFeatures(FEATURES, "dense", seed).raw

    def predict(self, x: Tensor, own: Tensor, labels: Sequence[Label]) -> Tensor:
        """Probabilities [n, C] of `labels`, where the learner's are `own`; a label without a head has the learner's."""
        each = self._each(self._features(x), own, labels)
        return (torch.softmax(self.state.evidence, 0)[:, None, None] * each).sum(0)

    def learn(self, x: Tensor, y: Sequence[Label], own: Tensor | None, labels: Sequence[Label]) -> None:
        """Weigh the predictions of a minibatch, if there were any, and learn from it."""
        features, state = self._features(x), self.state
        rows = [row for row, label in enumerate(y) if label in labels]
        if state.heads and rows and own is not None:
            columns = [list(labels).index(y[row]) for row in rows]
            each = self._each(features, own, labels)[:, rows, columns]
            state.evidence = KEPT * state.evidence + each.clamp_min(LEAST).log().sum(1)
        self._grow(features, y)
        targets = torch.tensor([[float(label == one) for one in state.labels] for label in y], dtype=torch.float64)
        forget = torch.tensor(FORGET, dtype=torch.float64)
        for head, Phi in zip(state.heads, features, strict=True):
            head.mean, head.precision = learned(head.mean, relaxed(head.precision, forget), Phi, targets)

    def _features(self, x: Tensor) -> list[Tensor]:
        """Of each kind, with a bias, [n, K]."""
        flat = x.detach().double().flatten(1).cpu()
        kinds = [math.sqrt(3.0) * self._fixed(x.detach()).double().cpu(), *([flat] if flat.shape[1] <= FEW else [])]
        return [torch.cat([torch.ones(len(x), 1, dtype=torch.float64), part], 1) for part in kinds]

    def _each(self, features: Sequence[Tensor], own: Tensor, labels: Sequence[Label]) -> Tensor:
        """The probabilities of the learner and of each head, [1 + E, n, C]."""
        own, seen = own.double().cpu(), self.state.labels
        place = [seen.index(label) if label in seen else -1 for label in labels]
        known = torch.tensor([column >= 0 for column in place])
        every = [own[None]]
        for head, Phi in zip(self.state.heads, features, strict=True):
            found = torch.where(known, predictive(head.mean, head.precision, Phi)[..., place], own)
            every.append(found / found.sum(-1, keepdim=True))
        return torch.cat(every)

    def _grow(self, features: Sequence[Tensor], y: Sequence[Label]) -> None:
        """Heads for labels that were not seen before begin at the prior."""
        state = self.state
        new = [label for label in dict.fromkeys(y) if label not in state.labels]
        if not new:
            return
        E, before, labels = len(FORGET), len(state.labels), [*state.labels, *new]
        grown = []
        for number, Phi in enumerate(features):
            K = Phi.shape[1]
            mean = torch.zeros(E, len(labels), K, dtype=torch.float64)
            precision = torch.eye(K, dtype=torch.float64).expand(E, len(labels), K, K).clone()
            if before:
                mean[:, :before], precision[:, :before] = state.heads[number].mean, state.heads[number].precision
            grown.append(Heads(mean, precision))
        if not before:
            state.evidence = torch.zeros(1 + E * len(features), dtype=torch.float64)
        state.labels, state.heads = labels, grown
