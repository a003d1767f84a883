"""What keeps past tasks in place while a new one is learned: one file each, one protocol for all methods."""

from frcl.regularisers.current_inputs import CurrentInputs
from frcl.regularisers.functional import FunctionalKL
from frcl.regularisers.memory_targets import MemoryTargets
from frcl.regularisers.path import PathIntegral
from frcl.regularisers.protocol import REGULARISERS, Regulariser
from frcl.regularisers.quadratic import EWC, Curvature
from frcl.regularisers.replay import Replay

__all__ = [
    "EWC",
    "REGULARISERS",
    "CurrentInputs",
    "Curvature",
    "FunctionalKL",
    "MemoryTargets",
    "PathIntegral",
    "Regulariser",
    "Replay",
]
