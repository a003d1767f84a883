"""The options of the methods that FRCL is compared with, one dataclass each."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from frcl.errors import OptionError
from frcl.regularisers.fisher import FisherMode


@dataclass(frozen=True)
class TrainingOptions:
    """What every method has."""

    steps: int = 1000  # gradient steps a task
    batch_size: int = 128
    lr: float = 1e-3  # Adam's learning rate
    seed: int = 0

    batched_on_cpu: ClassVar[bool] = True  # whether several seeds are trained as one program on the CPU

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if name == "seed" or value is None or isinstance(value, bool | str):
                continue
            if not math.isfinite(value) or value < 0 or (name in POSITIVE and value <= 0):
                raise OptionError(
                    f"{name} must be a {'positive' if name in POSITIVE else 'non-negative'} number, not {value!r}"
                )
        for name, choices in CHOICES.items():
            value = getattr(self, name, None)
            if value is not None and value not in choices:
                raise OptionError(f"{name}={value!r} is unknown; choose one of {', '.join(choices)}")


POSITIVE = (
    "steps", "batch_size", "lr", "points", "points_per_class", "fisher_examples", "temperature", "damping",
    "prior_precision", "samples", "predict_samples", "initial_std", "prior_std", "adapt_steps",
    "compress_steps", "adapt_lr",
)  # fmt: skip
CHOICES = {"fisher": ("exact", "sampled", "empirical"), "coreset": ("none", "random", "kcenter")}


@dataclass(frozen=True)
class FinetuneOptions(TrainingOptions):
    """No protection: the network goes on learning."""


@dataclass(frozen=True)
class JointOptions(TrainingOptions):
    """All data so far at each task: an upper bound; keeps everything."""

    batched_on_cpu: ClassVar[bool] = False  # the data of all tasks and seeds would only take memory


@dataclass(frozen=True)
class SingleOptions(TrainingOptions):
    """A fresh network for each task: the other upper bound; keeps every network."""


@dataclass(frozen=True)
class ReplayOptions(TrainingOptions):
    """The paper's BASELINE (Appendix C): a buffer per task, its loss times N_i/M_i."""

    points: int = 40  # examples kept per task, balanced over its classes
    points_per_class: int | None = None  # instead of `points`
    past_tasks_per_step: int | None = None  # buffers looked at in a step; None: all


@dataclass(frozen=True)
class EWCOptions(TrainingOptions):
    """Elastic weight consolidation: one quadratic anchor per task."""

    strength: float = 1.0  # λ: 1 is the Laplace approximation, N_i times the Fisher information
    fisher: FisherMode = "exact"
    fisher_examples: int = 2000  # examples that the Fisher information is averaged over


@dataclass(frozen=True)
class OnlineEWCOptions(TrainingOptions):
    """EWC with one running anchor (Schwarz et al., 2018)."""

    strength: float = 1.0
    decay: float = 1.0  # γ: what remains of the old Fisher information when a task is added
    fisher: FisherMode = "exact"
    fisher_examples: int = 2000


@dataclass(frozen=True)
class DLPOptions(TrainingOptions):
    """Diagonal Laplace propagation: the posterior of one task is the prior of the next."""

    strength: float = 1.0
    prior_precision: float = 1.0  # of the very first prior, N(0, 1/precision)
    fisher: FisherMode = "exact"
    fisher_examples: int = 2000


@dataclass(frozen=True)
class SIOptions(TrainingOptions):
    """Synaptic intelligence (Zenke et al., 2017)."""

    strength: float = 0.1  # c
    damping: float = 0.1  # ξ


@dataclass(frozen=True)
class LwFOptions(TrainingOptions):
    """Learning without forgetting: old heads are held on the current inputs."""

    strength: float = 1.0
    temperature: float = 2.0


@dataclass(frozen=True)
class VCLOptions(TrainingOptions):
    """Variational continual learning, mean-field (Nguyen et al., 2018)."""

    coreset: Literal["none", "random", "kcenter"] = "none"
    points: int = 40  # examples of the coreset of a task, left out of its training
    points_per_class: int | None = None  # instead of `points`
    samples: int = 3  # networks drawn a step
    predict_samples: int = 20  # networks drawn for a prediction
    prior_std: float = 1.0  # of the first prior, and of each new head's
    initial_std: float = 0.03  # of the posterior at the start of each task
    adapt_steps: int = 500  # steps on the coreset before predicting
    adapt_lr: float = 1e-3


@dataclass(frozen=True)
class ProgressiveOptions(TrainingOptions):
    """Progressive networks: a new column per task, with lateral connections from the frozen ones."""


@dataclass(frozen=True)
class PnCOptions(TrainingOptions):
    """Progress & compress: an active column learns, then is distilled into the knowledge base (online EWC)."""

    compress_steps: int = 1000  # steps of distillation after the `steps` of the active column
    strength: float = 10.0  # of the online EWC penalty while compressing; 10 and 100 did best on the digits
    decay: float = 1.0  # γ: what remains of the old Fisher information when a task is added
    temperature: float = 1.0  # τ of the distillation
    fisher: FisherMode = "exact"
    fisher_examples: int = 2000
