"""The options of the methods that FRCL is compared with, and the regularisers that they stand for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, cast

from frcl.engine.train import OptimiserOptions
from frcl.errors import OptionError
from frcl.exact.fixed import FeatureKind
from frcl.features import FeatureMap
from frcl.inference import FromHeads, TaskInference, task_inference
from frcl.options import NOT_NEGATIVE, POSITIVE, SHARE, option
from frcl.regularisers import EWC, CurrentInputs, Curvature, MemorablePast, PathIntegral, Regulariser, Replay
from frcl.regularisers.fisher import FisherMode
from frcl.regularisers.mean_field import Coreset


@dataclass(frozen=True)
class TrainingOptions(OptimiserOptions):
    """What every method has."""

    shares_weights: ClassVar[bool] = True  # whether the network's weights are trained as they are
    is_one_network: ClassVar[bool] = True  # without further columns
    past_tasks_per_step = cast("int | None", None)  # at most this many are regularised per step; None: all
    shared_head = False  # whether labels that tasks have in common are one row of one head

    task_inference: FromHeads = option(
        "heads", "p(task | x) where no task is named: from the largest probability of each head, or sums over examples"
    )
    task_features: int = option(500, "exact: random features of the input; their sums take 2 bytes times its square")
    task_kind: FeatureKind = option(
        "auto", "exact: 'image', or 'conv' without the brightness, 'smooth' for drawings, 'dense'; auto: by the shape"
    )
    seed: int = option(0, "root of every random stream of the learner", NOT_NEGATIVE)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bfloat16 and not self.is_one_network:
            raise OptionError(f"bfloat16 is for methods with one network; {type(self).__name__} is not one of them")
        if not self.shares_weights and (self.weight_decay or self.backbone_lr is not None):
            raise OptionError(
                f"weight_decay and backbone_lr are for weights that all tasks share, and {type(self).__name__} trains "
                "others: leave them out"
            )

    def inference_of_task(self, map: FeatureMap) -> TaskInference:
        """How the task of an input is inferred."""
        return task_inference(self.task_inference, self.task_features, self.task_kind, self.seed, map)

    def regularisers(self) -> list[Regulariser]:
        """The regularisers of the method, fresh."""
        return []


@dataclass(frozen=True)
class FinetuneOptions(TrainingOptions):
    """No protection: the network goes on learning."""


@dataclass(frozen=True)
class JointOptions(TrainingOptions):
    """All data so far at each task: an upper bound; keeps everything."""

    batched_on_cpu: ClassVar[bool] = False  # the data of all tasks and seeds would only take memory

    def regularisers(self) -> list[Regulariser]:
        return [Replay(points=None, batch=self.batch_size)]


@dataclass(frozen=True)
class SingleOptions(TrainingOptions):
    """A fresh network for each task: the other upper bound; keeps every network."""


@dataclass(frozen=True)
class PointsOptions(TrainingOptions):
    """What the methods that keep some examples of each task have."""

    points: int = option(
        40, "examples kept of each task: a buffer, memorable points, a coreset, or those that context is drawn from"
    )
    points_per_class: int | None = option(None, "instead of `points`: this many for each class of a task")


@dataclass(frozen=True)
class ReplayOptions(PointsOptions):
    """The paper's BASELINE (Appendix C): a buffer per task, its loss times N_i/M_i."""

    past_tasks_per_step: int | None = option(None, "at most this many buffers are used per step; None: all")

    def regularisers(self) -> list[Regulariser]:
        return [Replay(points=self.points, points_per_class=self.points_per_class)]


SHARED_HEAD = "labels that tasks have in common are one row of one head; else each task has a head of its own"
STRENGTH = "λ: 1 is the Laplace approximation, N_i times the Fisher information"


@dataclass(frozen=True)
class FisherOptions(TrainingOptions):
    """What the methods with a Fisher information have."""

    strength: float = option(100.0, STRENGTH, NOT_NEGATIVE)
    fisher: FisherMode = option("exact", "over which targets the Fisher information is the mean")
    fisher_examples: int = option(2000, "examples over which the Fisher information is averaged")


@dataclass(frozen=True)
class EWCOptions(FisherOptions):
    """Elastic weight consolidation: one quadratic anchor per task."""

    def regularisers(self) -> list[Regulariser]:
        return [EWC(self.strength, self.fisher_examples, self.fisher)]


@dataclass(frozen=True)
class OnlineEWCOptions(FisherOptions):
    """EWC with one running anchor (Schwarz et al., 2018)."""

    decay: float = option(1.0, "γ: what remains of the old Fisher information when a task is added", NOT_NEGATIVE)

    def regularisers(self) -> list[Regulariser]:
        return [Curvature(self.strength, self.decay, self.fisher_examples, self.fisher)]


@dataclass(frozen=True)
class DLPOptions(FisherOptions):
    """Diagonal Laplace propagation: the posterior of one task is the prior of the next."""

    strength: float = option(1.0, STRENGTH, NOT_NEGATIVE)
    prior_precision: float = option(1.0, "of the very first prior, N(0, 1/precision)", POSITIVE)

    def regularisers(self) -> list[Regulariser]:
        return [Curvature(self.strength, 1.0, self.fisher_examples, self.fisher, self.prior_precision)]


@dataclass(frozen=True)
class SIOptions(TrainingOptions):
    """Synaptic intelligence (Zenke et al., 2017)."""

    strength: float = option(0.1, "c", NOT_NEGATIVE)
    damping: float = option(1e-3, "ξ, added to squared displacements", POSITIVE)

    def regularisers(self) -> list[Regulariser]:
        return [PathIntegral(self.strength, self.damping)]


@dataclass(frozen=True)
class LwFOptions(TrainingOptions):
    """Learning without forgetting: old functions are held at the current inputs."""

    strength: float = option(1.0, "weight of the distillation", NOT_NEGATIVE)
    temperature: float = option(2.0, "τ of the distillation", POSITIVE)

    def regularisers(self) -> list[Regulariser]:
        return [CurrentInputs(self.strength, self.temperature, train_heads=True)]


@dataclass(frozen=True)
class FROMPOptions(PointsOptions):
    """Functional regularisation of memorable past (Pan et al., 2020)."""

    tau: float = option(1.0, "τ: weight of the regulariser beside the mean loss, the paper's over N", NOT_NEGATIVE)
    prior_precision: float = option(1e-3, "δ: precision of each weight before any data", POSITIVE)
    jitter: float = option(1e-5, "ε: added to the diagonal of the kernel of a class", POSITIVE)
    fisher_examples: int | None = option(None, "examples over which Gauss–Newton matrices are averaged; None: all")
    clip_norm: float | None = option(1.0, "largest norm of a gradient, which is scaled down to it", POSITIVE)
    shared_head: bool = option(False, SHARED_HEAD)

    def regularisers(self) -> list[Regulariser]:
        settings = self.points, self.points_per_class, self.prior_precision, self.jitter, self.fisher_examples
        return [MemorablePast(self.tau, *settings)]


@dataclass(frozen=True)
class VCLOptions(PointsOptions):
    """Variational continual learning, mean-field (Nguyen et al., 2018)."""

    shares_weights: ClassVar[bool] = False

    coreset: Coreset = option("none", "how the coreset of a task, which is left out of its training, is chosen")
    samples: int = option(3, "networks drawn per step")
    predict_samples: int = option(20, "networks drawn for a prediction")
    prior_std: float = option(1.0, "σ₀ of the first prior, and of each new head's", POSITIVE)
    initial_std: float = option(0.03, "of the posterior at the start of each task", POSITIVE)
    adapt_steps: int = option(500, "steps on the coreset before predicting")
    adapt_lr: float = option(1e-3, "learning rate of these steps", POSITIVE)


@dataclass(frozen=True)
class SFSVIOptions(PointsOptions):
    """Sequential function-space variational inference, mean-field (Rudner et al., 2022)."""

    shares_weights: ClassVar[bool] = False

    context: int = option(40, "context points per step: of each past task, or drawn at random in the first task")
    kl_weight: float = option(1.0, "κ: weight of the mean KL of a context point beside the mean loss", NOT_NEGATIVE)
    prior_variance: float = option(10.0, "v₀: variance of the functions in the prior of the first task", POSITIVE)
    samples: int = option(5, "networks drawn per step")
    predict_samples: int = option(20, "networks drawn for a prediction")
    initial_std: float = option(0.011, "of the posterior at the start; of each new head's too", POSITIVE)
    shared_head: bool = option(False, SHARED_HEAD)


@dataclass(frozen=True)
class ProgressiveOptions(TrainingOptions):
    """Progressive networks: a new column per task, with lateral connections from the frozen ones."""

    shares_weights: ClassVar[bool] = False
    is_one_network: ClassVar[bool] = False


@dataclass(frozen=True)
class PnCOptions(OnlineEWCOptions):
    """Progress & compress: an active column learns, then is distilled into the knowledge base (online EWC)."""

    shares_weights: ClassVar[bool] = False
    is_one_network: ClassVar[bool] = False

    strength: float = option(10.0, "of the online EWC penalty; 10 and 100 did best on the digits", NOT_NEGATIVE)
    compress_steps: int = option(1000, "steps of distillation after the `steps` of the active column")
    temperature: float = option(1.0, "τ of the distillation", POSITIVE)


@dataclass(frozen=True)
class SharedHeadOptions(TrainingOptions):
    """What the methods with one head for all labels have."""

    points: int = option(200, "examples kept of all tasks together")
    momentum: float = option(0.0, "of 'sgd', which the authors of these methods use without it", SHARE)
    classes: int | None = option(
        None, "the head has the labels 0 to classes − 1 from the beginning; None: it grows with the labels"
    )


@dataclass(frozen=True)
class EROptions(SharedHeadOptions):
    """Experience replay: every minibatch is joined by one from a reservoir (Chaudhry et al., 2019)."""

    memory_batch: int = option(32, "examples of the memory per step")


@dataclass(frozen=True)
class DERppOptions(SharedHeadOptions):
    """Dark experience replay ++: a reservoir with the logits of its examples (Buzzega et al., 2020)."""

    memory_batch: int = option(32, "examples of the memory per step and term")
    alpha: float = option(0.5, "weight of the squared distance to the stored logits", NOT_NEGATIVE)
    beta: float = option(0.5, "weight of the loss on stored examples", NOT_NEGATIVE)


@dataclass(frozen=True)
class AGEMOptions(SharedHeadOptions):
    """A-GEM: a step does not raise the loss on the memory of past tasks (Chaudhry et al., 2019)."""

    memory_batch: int = option(128, "examples of the memory per step")


@dataclass(frozen=True)
class GDumbOptions(SharedHeadOptions):
    """GDumb: a greedy balanced memory; a new network is trained on it alone after each task (Prabhu et al., 2020)."""
