"""The options of FRCL and FRCL+: what each means, its default, its range. One list for Python, help() and the CLI."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import ClassVar, Literal, TypedDict

from frcl.budget import parsed_bytes
from frcl.engine.train import Method, OptimiserOptions
from frcl.errors import OptionError
from frcl.exact.fixed import FeatureKind
from frcl.features import FeatureMap
from frcl.inference import FromSummaries, InputFeatures, Summaries, TaskInference, task_inference
from frcl.likelihoods import check_name
from frcl.options import NOT_NEGATIVE, POSITIVE, SHARE, option
from frcl.posterior import Covariance, Prior
from frcl.regularisers import (
    CurrentInputs,
    Curvature,
    FunctionalKL,
    KroneckerCurvature,
    MemoryTargets,
    RecentredKL,
    Regulariser,
)
from frcl.selection import Recipe, Search, Start

Inference = Literal["weight", "function"]
Predicted = Literal["summary", "head", "corrected"]
Structure = Literal["diagonal", "kronecker"]
Mean = Literal["auto", "aligned", "random", "zero"]
Dropped = Literal["trace", "random"]
RETURNING_FEATURES = 500  # random features of the input by which a stream knows a task that returns


@dataclass(frozen=True)
class FRCLOptions(OptimiserOptions):
    """Everything that can be set on an `FRCL` learner."""

    takes_new_labels: ClassVar[bool] = True

    points: int = option(40, "inducing points kept per task")
    points_per_class: int | None = option(None, "instead of `points`: this many for each class of a task")

    memory: int | str | None = option(
        None, "bytes kept of all tasks together, a number or as '2 MB': summaries give up points to fit; None: no bound"
    )
    memory_growth: float = option(0.0, "T tasks may take `memory` times T to this power; 0: a fixed total", SHARE)
    memory_drop: Dropped = option("trace", "which points are given up: those that the trace misses least, or 'random'")

    prior_std: float | Literal["learned"] = option(
        "learned",
        "σ_w, prior standard deviation of each last-layer weight; 'learned': by empirical Bayes (function space: 1)",
        POSITIVE,
    )
    u_noise: float = option(
        1e-3, "σ², variance of u around f(Z): with M > K it is the strength of the regulariser", POSITIVE
    )
    likelihood: str = option(
        "auto", "name of a likelihood; auto: bernoulli for 2 classes, softmax for more, gaussian for floats"
    )
    samples: int = option(8, "Monte Carlo samples per step (softmax)")
    predict_samples: int = option(64, "Monte Carlo samples of a prediction (softmax)")
    target_noise: float = option(0.1, "initial value of the learned noise variance of targets (gaussian)", POSITIVE)

    inference: Inference = option("weight", "weight space (Section 2.3), or function space (Sections 2.1 and 2.2)")
    learn_inputs: bool = option(False, "function space: learn Z as pseudo-inputs instead of keeping data points")
    covariance: Literal["auto"] | Covariance = option(
        "auto", "weight space: structure of each task's q(w); 'auto': full up to C K² = 4,000,000 (docs/maths.md)"
    )
    rank: int = option(4, "rank r of V with covariance='lowrank'")
    initial_mean: Mean = option(
        "auto",
        "weight space: the mean of q(w) as a task begins: zero, drawn around zero, or 'aligned' with the task's data, "
        "where fit() has them; 'auto': aligned in the first task, drawn in the others",
    )
    initial_std: float = option(
        0.3, "standard deviation of each function under q, and of its random mean, when a task begins", POSITIVE
    )
    prior_weight: float = option(
        1.0, "weight of the current task's own KL; the ELBO has 1, and above it q is wider", POSITIVE
    )

    past_tasks_per_step: int | None = option(None, "at most this many past tasks are regularised per step; None: all")

    functional: float = option(1.0, "weight of the paper's KL at the inducing points; 0: off", NOT_NEGATIVE)
    recentred: float = option(
        0.0, "weight of the paper's KL with priors centred on the kept heads, a few points counting as all examples",
        NOT_NEGATIVE,
    )  # fmt: skip
    current_inputs: float = option(
        0.0,
        "weight of old functions, as they were when the task began, at current inputs that look like old ones",
        NOT_NEGATIVE,
    )
    memory_targets: float = option(
        0.0, "weight of the predictive distributions stored at the points, which stand for N/M examples each",
        NOT_NEGATIVE,
    )  # fmt: skip
    curvature: float = option(0.0, "weight of a running Fisher anchor on the shared weights", NOT_NEGATIVE)
    curvature_structure: Structure = option(
        "diagonal",
        "of the Fisher information: 'diagonal', or 'kronecker' factors for linear layers and 2-d convolutions (K-FAC)",
    )
    curvature_decay: float = option(
        1.0, "γ: what remains of the old Fisher information when a task is added", NOT_NEGATIVE
    )
    fisher_examples: int = option(2000, "examples over which the Fisher information is averaged")
    train_heads: bool = option(True, "whether heads of old tasks are trained along where a regulariser uses them")
    prediction: Predicted = option(
        "summary", "of an old task: by its summary (Section 2.5), its 'head', or that 'corrected' by the summary"
    )
    head_variance: float = option(1.0, "where a head predicts: the share of its variance that counts", POSITIVE)

    held_out: float = option(
        0.0, "share of fit()'s examples, counted but not trained on, that serve to choose a temperature", SHARE, 0.5
    )

    task_inference: FromSummaries = option(
        "auto",
        "p(task | x) where no task is named: from the points alone ('summaries'), sums over all examples ('exact') or "
        "both; auto: sums of no more bytes than the first task has numbers, or the points (docs/scenarios.md)",
    )
    task_features: int = option(
        400,
        "fixed random features of the input for it, auto: at most; the sums take 2 bytes times its square. The sums of "
        "a network of which no weight is trained are of its own features instead",
    )
    task_kind: FeatureKind = option(
        "auto", "'image', or 'conv' without the brightness, 'smooth' for drawings, 'dense'; auto: by the shape"
    )

    selection: str = option("trace", "criterion by which inducing points are chosen: a name, see frcl.selection")
    search: Search = option("swap", "how it is minimised; 'greedy' is for the trace alone")
    search_steps: int = option(1000, "proposals of a swap search")
    search_examples: int = option(10_000, "a supervised criterion looks at no more than this many examples")
    start: Start = option("uniform", "where a search starts, and what 'random' keeps; or 'balanced' over classes")

    task_size: int | None = option(
        None, "N of a task learned by observe() when start_task() did not say; None: estimated while the stream runs"
    )
    window: int = option(2_000, "examples of the current task that observe() keeps to choose points from")
    stream_steps: int = option(
        1, "gradient steps of observe() per minibatch: the first on it, the others on examples of the window"
    )

    seed: int = option(0, "root of every random stream of the learner", NOT_NEGATIVE)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_name(self.likelihood)
        self.recipe.check()
        if self.memory is not None:
            parsed_bytes(self.memory)
        if self.inference == "function" and self.recipe.is_supervised:
            early = 'inference="function" chooses its points before learning'
            raise OptionError(f'{early}, so selection is "random" or "trace", not {self.selection!r}')
        if self.inference == "function" and self.covariance not in ("auto", "full"):
            raise OptionError(f'covariance="{self.covariance}" needs inference="weight"; q(u) is always full')
        if self.learn_inputs and self.inference != "function":
            raise OptionError('learn_inputs=True needs inference="function"')

    @property
    def prior(self) -> Prior:
        """The prior of the last-layer weights."""
        return Prior(1.0 if self.inference == "function" and self.prior_std == "learned" else self.prior_std)

    @property
    def recipe(self) -> Recipe:
        """How inducing points are chosen."""
        return Recipe(self.selection, self.search, self.search_steps, self.search_examples)

    def inference_of_task(self, map: FeatureMap) -> TaskInference:
        """How the task of an input is inferred; where memory is bounded all of it is for points by default."""
        name = "summaries" if self.task_inference == "auto" and self.memory is not None else self.task_inference
        return task_inference(name, self.task_features, self.task_kind, self.seed, map)

    def inference_by_points(self) -> Summaries:
        """How a stream knows a task that returns: from the points alone, whatever else is kept."""
        return Summaries(InputFeatures(RETURNING_FEATURES, self.task_kind, self.seed))

    def regularisers(self) -> list[Regulariser]:
        """The regularisers that the weights ask for, fresh."""
        heads, anchor = self.train_heads, KroneckerCurvature if self.curvature_structure == "kronecker" else Curvature
        every: list[Regulariser] = [
            FunctionalKL(self.functional),
            RecentredKL(self.recentred),
            CurrentInputs(self.current_inputs, train_heads=heads, trust=True),
            MemoryTargets(self.memory_targets, train_heads=heads),
            anchor(self.curvature, self.curvature_decay, self.fisher_examples),
        ]
        weights = (self.functional, self.recentred, self.current_inputs, self.memory_targets, self.curvature)
        return [one for one, weight in zip(every, weights, strict=True) if weight > 0]


PLUS = FRCLOptions(
    lr_decay=0.5, functional=0.0, current_inputs=0.3, memory_targets=1.0, curvature=1.0,
    curvature_structure="kronecker", initial_mean="aligned", train_heads=False, prediction="head", head_variance=0.1,
)  # fmt: skip
"""FRCL+: predictions stored at the points instead of the paper's KL there, current inputs, curvature; lr decays.

Old tasks are predicted by their heads, which stay as they were. One configuration, chosen on validation data of Split-
and Permuted-MNIST (docs/frcl-plus.md).
"""


def is_plus(options: FRCLOptions) -> bool:
    """Whether everything that FRCL+ changes is as in FRCL+."""
    usual = FRCLOptions()
    return all(
        getattr(options, one.name) == getattr(PLUS, one.name)
        for one in fields(PLUS)
        if getattr(PLUS, one.name) != getattr(usual, one.name)
    )


class FRCLKeywords(TypedDict, total=False):
    """The fields of `FRCLOptions` as keywords, for the type checker; a test holds the two equal."""

    steps: int
    batch_size: int
    lr: float
    backbone_lr: float | None
    optimiser: Method
    momentum: float
    weight_decay: float
    clip_norm: float | None
    warm_up: float
    lr_decay: float
    bfloat16: bool
    points_per_class: int | None
    memory: int | str | None
    memory_growth: float
    memory_drop: Dropped
    prior_std: float | Literal["learned"]
    u_noise: float
    likelihood: str
    samples: int
    predict_samples: int
    target_noise: float
    inference: Inference
    learn_inputs: bool
    covariance: Literal["auto"] | Covariance
    rank: int
    initial_mean: Mean
    initial_std: float
    prior_weight: float
    past_tasks_per_step: int | None
    functional: float
    recentred: float
    current_inputs: float
    memory_targets: float
    curvature: float
    curvature_structure: Structure
    curvature_decay: float
    fisher_examples: int
    train_heads: bool
    prediction: Predicted
    head_variance: float
    held_out: float
    task_inference: FromSummaries
    task_features: int
    task_kind: FeatureKind
    selection: str
    search: Search
    search_steps: int
    search_examples: int
    start: Start
    task_size: int | None
    window: int
    stream_steps: int
    seed: int
