"""Reading back what a learner saved."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

from frcl.errors import CheckpointError
from frcl.files import load_state
from frcl.learners.checkpoint import settings
from frcl.learners.ensemble import Ensemble
from frcl.learners.frcl import FRCL


def load(
    path: str | Path, net: nn.Module | Sequence[nn.Module], *, device: str | torch.device | None = None
) -> FRCL | Ensemble:
    """The learner saved at `path`: an FRCL, or an Ensemble if it was one.

    `net` is a network of the same shape, whose weights do not matter; for an Ensemble one, or one for each member.
    """
    meta, tensors = load_state(path)
    each = meta.get("members") if isinstance(meta, dict) else None
    if each is not None and not (isinstance(each, list) and each and all(isinstance(one, dict) for one in each)):
        raise CheckpointError(f"{path} is not the state of an ensemble")
    options, detector, labels, chosen = settings(meta if each is None else each[0])
    learner: FRCL | Ensemble
    if each is not None:
        learner = Ensemble(net, len(each), regularisers=chosen, labels=labels, device=device, options=options)
    else:
        if not isinstance(net, nn.Module):
            raise CheckpointError(f"{path} holds one learner, not an ensemble; give one network")
        learner = FRCL(
            net, regularisers=chosen, detector=detector, labels=labels, device=device, options=options
        )  # fmt: skip
    learner.load_state_dict({"meta": meta, "tensors": tensors})
    return learner
