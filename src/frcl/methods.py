"""Every method by name: what it is, its options, and how a learner of it is made. The one place that knows them all."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import torch
from torch import nn

from frcl.baselines.options import (
    DLPOptions,
    EWCOptions,
    FinetuneOptions,
    JointOptions,
    LwFOptions,
    OnlineEWCOptions,
    PnCOptions,
    ProgressiveOptions,
    ReplayOptions,
    SingleOptions,
    SIOptions,
    VCLOptions,
)
from frcl.baselines.penalised import Penalised
from frcl.baselines.single import Single
from frcl.boundary import BoundaryDetector
from frcl.errors import OptionError
from frcl.learners.frcl import FRCL
from frcl.learners.options import PLUS, FRCLOptions
from frcl.learners.protocol import Learner
from frcl.learners.targets import Label
from frcl.regularisers.distillation import Distillation
from frcl.regularisers.path import PathIntegral
from frcl.regularisers.quadratic import FisherRecipe, RunningAnchor, SeparateAnchors
from frcl.regularisers.replay import Buffer, Nothing

MethodOptions = (
    FRCLOptions
    | FinetuneOptions
    | JointOptions
    | SingleOptions
    | ReplayOptions
    | EWCOptions
    | OnlineEWCOptions
    | DLPOptions
    | SIOptions
    | LwFOptions
    | VCLOptions
    | ProgressiveOptions
    | PnCOptions
)

METHODS: tuple[tuple[str, str, MethodOptions], ...] = (
    ("frcl", "functional regularisation at inducing points: the paper's method", FRCLOptions()),
    ("frcl-plus", "FRCL and three more holds: current inputs, stored predictions, curvature of the weights", PLUS),
    ("finetune", "no protection", FinetuneOptions()),
    ("joint", "all data so far at each task: an upper bound", JointOptions()),
    ("single", "a fresh network per task: the other upper bound", SingleOptions()),
    ("replay", "the paper's BASELINE: a buffer per task, its loss times N/M", ReplayOptions()),
    ("ewc", "elastic weight consolidation, one anchor per task, exact Fisher", EWCOptions()),
    ("online-ewc", "elastic weight consolidation with one running anchor", OnlineEWCOptions()),
    ("dlp", "diagonal Laplace propagation: one task's posterior is the next one's prior", DLPOptions()),
    ("si", "synaptic intelligence: importance from the path of each weight", SIOptions()),
    ("vcl", "variational continual learning, mean-field", VCLOptions()),
    ("vcl-random", "variational continual learning with a random coreset", VCLOptions(coreset="random")),
    ("vcl-kcenter", "variational continual learning with a k-centre coreset", VCLOptions(coreset="kcenter")),
    ("lwf", "learning without forgetting: old heads held on the current inputs", LwFOptions()),
    ("progressive", "progressive networks: frozen columns with lateral connections", ProgressiveOptions()),
    ("pnc", "progress & compress: an active column, distilled under online EWC", PnCOptions()),
)


def default_options(method: str) -> MethodOptions:
    """The options of a method as they are without any change."""
    for name, _, options in METHODS:
        if name == method:
            return options
    raise OptionError(f"unknown method {method!r}; known are {', '.join(name for name, _, _ in METHODS)}")


def make_learner(
    net: nn.Module,
    options: MethodOptions,
    *,
    seed: int,
    device: str | torch.device = "cpu",
    detector: BoundaryDetector | None = None,
    labels: list[Label] | None = None,
) -> Learner:
    """A fresh learner with these options; `detector` and `labels` are for FRCL in a stream."""
    if not isinstance(options, FRCLOptions) and detector is not None:
        raise OptionError(
            "hidden boundaries are for method frcl or frcl-plus: the others cannot notice a switch by themselves"
        )
    given: Any = replace(options, seed=seed)
    match given:
        case FRCLOptions():
            return FRCL(net, detector=detector, labels=labels, device=device, **asdict(given))
        case SingleOptions():
            return Single(net, given, device=device)
        case VCLOptions():
            from frcl.baselines.vcl import VCL

            return VCL(net, given, device=device)
        case ProgressiveOptions():
            from frcl.baselines.progressive import Progressive

            return Progressive(net, given, device=device)
        case PnCOptions():
            from frcl.baselines.progress_and_compress import ProgressAndCompress

            return ProgressAndCompress(net, given, device=device)
        case FinetuneOptions():
            return Penalised(net, given, Nothing(), device=device)
        case JointOptions():
            return Penalised(net, given, Buffer(points=None, batch=given.batch_size), device=device)
        case ReplayOptions():
            buffer = Buffer(given.points, given.points_per_class, given.past_tasks_per_step)
            return Penalised(net, given, buffer, device=device)
        case EWCOptions():
            anchors = SeparateAnchors(given.strength, FisherRecipe(given.fisher, given.fisher_examples))
            return Penalised(net, given, anchors, device=device)
        case OnlineEWCOptions():
            recipe = FisherRecipe(given.fisher, given.fisher_examples)
            return Penalised(net, given, RunningAnchor(given.strength, given.decay, recipe), device=device)
        case DLPOptions():
            recipe = FisherRecipe(given.fisher, given.fisher_examples)
            posterior = RunningAnchor(given.strength, 1.0, recipe, given.prior_precision)
            return Penalised(net, given, posterior, device=device)
        case SIOptions():
            return Penalised(net, given, PathIntegral(given.strength, given.damping), device=device)
        case LwFOptions():
            return Penalised(net, given, Distillation(given.strength, given.temperature), device=device)
        case _:
            raise OptionError(f"unknown options {given!r}")
