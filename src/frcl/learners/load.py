"""Reading back what a learner saved."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from frcl.errors import CheckpointError
from frcl.files import load_state
from frcl.learners.checkpoint import settings
from frcl.learners.frcl import FRCL


def load(path: str | Path, net: nn.Module | Sequence[nn.Module], *, device: str | torch.device | None = None) -> Any:
    """The learner saved at `path`, an FRCL, or an Ensemble if it had replicas.

    `net` is a network of the same shape, whose weights do not matter; for an Ensemble one, or one for each replica.
    """
    meta, tensors = load_state(path)
    each = meta.get("members")
    if each is not None and not (isinstance(each, list) and each and all(isinstance(one, dict) for one in each)):
        raise CheckpointError(f"{path} is not the state of an ensemble")
    options, detector, labels = settings(meta if each is None else each[0])
    members = None if each is None else len(each)
    make: Any = FRCL
    learner = make(net, members=members, detector=detector, labels=labels, device=device, **options)
    learner.load_state_dict({"meta": meta, "tensors": tensors})
    return learner
