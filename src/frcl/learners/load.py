"""Reading back what a learner saved."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from frcl.errors import CheckpointError, OptionError
from frcl.files import load_state
from frcl.learners.checkpoint import settings
from frcl.learners.ensemble import Ensemble
from frcl.learners.exact_gp import ExactGP
from frcl.learners.exact_options import ExactGPOptions
from frcl.learners.frcl import FRCL
from frcl.options import changed


def load(
    path: str | Path, net: nn.Module | Sequence[nn.Module] | None = None, *, device: str | torch.device | None = None
) -> FRCL | Ensemble | ExactGP:
    """The learner saved at `path`: an FRCL, or an Ensemble or an ExactGP if it was one.

    `net` is a network of the same shape, whose weights do not matter; for an Ensemble one, or one for each member. An
    ExactGP needs none for random features, and otherwise its frozen network with its weights.
    """
    meta, tensors = load_state(path)
    if isinstance(meta, dict) and "exact_gp" in meta:
        return _exact_gp(path, {"meta": meta, "tensors": tensors}, net, device)
    if net is None:
        raise CheckpointError(f"{path} holds a learner with a network; give one of the same shape")
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


def _exact_gp(path: str | Path, state: dict[str, Any], net: Any, device: str | torch.device | None) -> ExactGP:
    own = state["meta"].get("own_network")
    if own is True and not isinstance(net, nn.Module):
        raise CheckpointError(f"{path} holds an ExactGP on the features of a network; give that network")
    try:
        options = changed(ExactGPOptions(), dict(state["meta"]["exact_gp"]))
    except (TypeError, ValueError, OptionError) as error:
        raise CheckpointError(f"the checkpoint's options cannot be read: {error}") from error
    learner = ExactGP(net if own is True else None, device=device, options=options)
    learner.load_state_dict(state)
    return learner
