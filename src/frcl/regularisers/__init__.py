"""What keeps past tasks in place while a new one is learned: one protocol for all methods, one file each."""

from frcl.registry import import_modules
from frcl.regularisers.current_inputs import CurrentInputs
from frcl.regularisers.kronecker import KroneckerCurvature
from frcl.regularisers.memorable_past import MemorablePast
from frcl.regularisers.memory_targets import MemoryTargets
from frcl.regularisers.path import PathIntegral
from frcl.regularisers.protocol import REGULARISERS, FunctionalKL, Regulariser
from frcl.regularisers.quadratic import EWC, Curvature
from frcl.regularisers.recentred import RecentredKL
from frcl.regularisers.replay import Replay

__all__ = [
    "EWC", "REGULARISERS", "CurrentInputs", "Curvature", "FunctionalKL", "KroneckerCurvature", "MemorablePast",
    "MemoryTargets", "PathIntegral", "RecentredKL", "Regulariser", "Replay",
]  # fmt: skip

import_modules(__name__, __path__)
