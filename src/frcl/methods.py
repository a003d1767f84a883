"""Every method by name: what it is, its options, and how a learner of it is made.

A new method is an entry here, and where it is a list of regularisers an options class. Other packages add theirs by the
entry point group `frcl.methods`, each a `Method`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import torch
from torch import nn

from frcl.baselines import options as baselines
from frcl.boundary import BoundaryDetector
from frcl.errors import OptionError
from frcl.learners.exact_gp import ExactGP, ExactGPOptions
from frcl.learners.frcl import FRCL
from frcl.learners.options import PLUS, FRCLOptions
from frcl.learners.types import Learner
from frcl.likelihoods import Label
from frcl.options import MethodOptions, changed
from frcl.registry import Registry

Make = Callable[..., Learner]  # (net, options, *, device, detector, labels)


@dataclass(frozen=True)
class Method:
    """A method of continual learning.

    `make` takes the network, the options, and by keyword a device and, for methods that find boundaries themselves, a
    detector and labels. The others have `needs_boundaries`: they must be told when a task ends. `defaults_of` names a
    method whose defaults of a benchmark this one has too, under its own. `grid` has the values of each option that
    `frcl tune` tries, where `experiment/grids.toml` has none.
    """

    name: str
    description: str
    options: MethodOptions
    make: Make
    needs_boundaries: bool = True
    defaults_of: str | None = None
    grid: Mapping[str, list[Any]] = field(default_factory=dict)


def baseline(place: str) -> Make:
    """Makes learners of the class at `place`, "module:class", which is imported when the first one is made."""
    module, name = place.split(":")

    def make(net: nn.Module, options: Any, *, device: Any, **_: Any) -> Learner:
        learner: Learner = getattr(import_module(module), name)(net, options, device=device)
        return learner

    return make


def _frcl(net: nn.Module, options: FRCLOptions, **settings: Any) -> Learner:
    return FRCL(net, options=options, **settings)


_penalised = baseline("frcl.baselines.penalised:Penalised")
_vcl = baseline("frcl.baselines.vcl:VCL")


def _exact_gp(net: nn.Module, options: ExactGPOptions, *, device: Any, **_: Any) -> Learner:
    return ExactGP(net if options.of_network else None, options=options, device=device)


METHODS: Registry[Method] = Registry("method", of=Method)

for _method in (
    Method("frcl", "functional regularisation at inducing points: the paper's method", FRCLOptions(), _frcl, False),
    Method("frcl-plus", "FRCL with three other regularisers: stored predictions, current inputs, curvature",
           PLUS, _frcl, False, defaults_of="frcl"),
    Method("exact-gp", "an exact Gaussian process on fixed features: random ones, or those of the network",
           ExactGPOptions(), _exact_gp),
    Method("finetune", "no protection", baselines.FinetuneOptions(), _penalised),
    Method("joint", "all data so far at each task: an upper bound", baselines.JointOptions(), _penalised),
    Method("single", "a fresh network per task: the other upper bound", baselines.SingleOptions(),
           baseline("frcl.baselines.single:Single")),
    Method("replay", "the paper's BASELINE: a buffer per task, its loss times N/M", baselines.ReplayOptions(),
           _penalised),
    Method("ewc", "elastic weight consolidation, one anchor per task, exact Fisher", baselines.EWCOptions(),
           _penalised),
    Method("online-ewc", "elastic weight consolidation with one running anchor", baselines.OnlineEWCOptions(),
           _penalised),
    Method("dlp", "diagonal Laplace propagation: one task's posterior is the next one's prior", baselines.DLPOptions(),
           _penalised),
    Method("si", "synaptic intelligence: importance from the path of each weight", baselines.SIOptions(), _penalised),
    Method("vcl", "variational continual learning, mean-field", baselines.VCLOptions(), _vcl),
    Method("vcl-random", "variational continual learning with a random coreset",
           baselines.VCLOptions(coreset="random"), _vcl),
    Method("vcl-kcenter", "variational continual learning with a k-centre coreset",
           baselines.VCLOptions(coreset="kcenter"), _vcl),
    Method("lwf", "learning without forgetting: old functions held at the current inputs", baselines.LwFOptions(),
           _penalised),
    Method("fromp", "functional regularisation of memorable past: a GP from the Laplace posterior",
           baselines.FROMPOptions(), _penalised),
    Method("sfsvi", "sequential function-space variational inference, mean-field", baselines.SFSVIOptions(),
           baseline("frcl.baselines.sfsvi:SFSVI")),
    Method("progressive", "progressive networks: frozen columns with lateral connections",
           baselines.ProgressiveOptions(), baseline("frcl.baselines.progressive:Progressive")),
    Method("pnc", "progress & compress: an active column, distilled under online EWC", baselines.PnCOptions(),
           baseline("frcl.baselines.progress_and_compress:ProgressAndCompress")),
    Method("er", "experience replay: one head, a reservoir of examples", baselines.EROptions(),
           baseline("frcl.baselines.er:ER")),
    Method("derpp", "dark experience replay ++: one head, a reservoir with logits", baselines.DERppOptions(),
           baseline("frcl.baselines.derpp:DERpp")),
    Method("agem", "A-GEM: one head, gradients that do not conflict with a reservoir", baselines.AGEMOptions(),
           baseline("frcl.baselines.agem:AGEM")),
    Method("gdumb", "GDumb: one head, a balanced memory and a network trained on it alone", baselines.GDumbOptions(),
           baseline("frcl.baselines.gdumb:GDumb")),
):  # fmt: skip
    METHODS.add(_method.name, _method)


def default_options(method: str) -> MethodOptions:
    """The options of a method as they are without any change."""
    return METHODS[method].options


def make_learner(
    net: nn.Module, options: MethodOptions, *, seed: int, device: str | torch.device = "cpu",
    detector: BoundaryDetector | None = None, labels: Sequence[Label] | None = None, method: str | None = None,
) -> Learner:  # fmt: skip
    """A fresh learner with these options, of the method named, or of the first one that has options of their class.

    `detector` and `labels` are for methods that find boundaries themselves.
    """
    same = [name for name, one in METHODS.items() if type(one.options) is type(options)] if method is None else [method]
    if not same:
        raise OptionError(f"no method has options of type {type(options).__name__}; give its name as `method`")
    entry = METHODS[same[0]]
    if detector is not None and entry.needs_boundaries:
        able = " or ".join(name for name, one in METHODS.items() if not one.needs_boundaries)
        raise OptionError(f"hidden boundaries are for method {able}: the others cannot notice a switch by themselves")
    return entry.make(net, changed(options, {"seed": seed}), device=device, detector=detector, labels=labels)
