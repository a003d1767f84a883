"""Dark experience replay ++: replayed examples with the logits that they had."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from frcl.baselines.common import plain_terms
from frcl.baselines.memory import Batch, weighted_mean
from frcl.baselines.options import DERppOptions
from frcl.baselines.penalised import Parameters
from frcl.baselines.rehearsal import Rehearsal, Replayed, replayed_loss
from frcl.engine.program import Loss, Terms
from frcl.trees import Params


def distance_to_logits(f: Tensor, old: Batch) -> Tensor:
    """Mean of (f − z)² over the logits that are there, of examples with a weight."""
    assert old.logits is not None
    assert old.there is not None
    return weighted_mean((f - old.logits).square(), old.there * old.weight[:, None])


class DERpp(Rehearsal[DERppOptions]):
    """Dark experience replay ++ (Buzzega et al., 2020): a reservoir with the logits z of its examples.

        loss = −1/B Σ_j log p(y_j | x_j) + α · mean (f(x') − z')² − β · mean log p(y'' | x'')

    with two minibatches drawn from the reservoir independently; the mean of squares is over examples and labels. A
    label that the head did not have when an example came by has no logit and does not count.
    """

    stores_logits: ClassVar[bool] = True
    batches: ClassVar[int] = 2

    def _loss(self) -> Loss:
        features, alpha, beta = self.features, self.options.alpha, self.options.beta

        def loss(params: Parameters, fixed: Params, x: Tensor, y: Tensor, draws: Replayed) -> Terms:
            dark, labelled = draws.batches
            sizes = [len(x), len(dark.x), len(labelled.x)]
            whole = torch.cat([x, dark.x, labelled.x])
            f, f_dark, f_labelled = (features({**fixed, **params.theta}, whole) @ params.head.mT).split(sizes)
            replayed = replayed_loss(f_labelled, labelled)
            return plain_terms(F.cross_entropy(f, y), alpha * distance_to_logits(f_dark, dark) + beta * replayed)

        return loss
