"""The options of the methods with one head for all labels and a memory of examples."""

from __future__ import annotations

from dataclasses import dataclass

from frcl.baselines.options import TrainingOptions
from frcl.options import NOT_NEGATIVE, SHARE, option


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
