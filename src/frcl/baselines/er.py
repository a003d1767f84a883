"""Experience replay from a reservoir."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from frcl.baselines.common import plain_terms
from frcl.baselines.options import EROptions
from frcl.baselines.penalised import Parameters
from frcl.baselines.rehearsal import Rehearsal, Replayed, replayed_loss
from frcl.engine.program import Loss, Terms
from frcl.trees import Params


class ER(Rehearsal[EROptions]):
    """Experience replay (Chaudhry et al., 2019, "On tiny episodic memories in continual learning").

        loss = −1/(B + k) (Σ_j log p(y_j | x_j) + Σ_i log p(ỹ_i | x̃_i))

    over the minibatch and k examples drawn from the reservoir without replacement.
    """

    def _loss(self) -> Loss:
        features = self.features

        def loss(params: Parameters, fixed: Params, x: Tensor, y: Tensor, draws: Replayed) -> Terms:
            (old,) = draws.batches
            f = features({**fixed, **params.theta}, torch.cat([x, old.x])) @ params.head.mT
            nll = F.cross_entropy(f[: len(x)], y)
            replayed = replayed_loss(f[len(x) :], old)
            return plain_terms(nll, draws.share * (replayed - nll))

        return loss
