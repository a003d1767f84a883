"""FRCL+ from Python."""

from collections.abc import Sequence
from typing import Any, Unpack

import torch
from torch import nn

from frcl.boundary import BoundaryDetector
from frcl.learners.frcl import FRCL
from frcl.learners.options import PLUS, FRCLKeywords
from frcl.likelihoods import Label
from frcl.options import changed, shows_options


@shows_options(PLUS)
def FRCLPlus(
    net: nn.Module,
    points: int | None = None,
    *,
    detector: BoundaryDetector | None = None,
    labels: Sequence[Label] | None = None,
    device: str | torch.device | None = None,
    **keywords: Unpack[FRCLKeywords],
) -> FRCL:
    """An `FRCL` learner with the options of FRCL+.

    Instead of the paper's KL at the inducing points it has predictions stored there, old functions held at current
    inputs that look like theirs, and the curvature of the shared weights; the learning rate decays.

    Parameters are those of `FRCL`, without `regularisers` and `options`.
    """
    given: dict[str, Any] = dict(keywords) if points is None else {"points": points, **keywords}
    return FRCL(net, detector=detector, labels=labels, device=device, options=changed(PLUS, given))
