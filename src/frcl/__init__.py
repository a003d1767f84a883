"""Functional regularisation for continual learning with Gaussian processes."""

import importlib
from typing import Any

from frcl.augment import CropFlip
from frcl.boundary import BoundaryDetector
from frcl.distributed import data_parallel
from frcl.errors import (
    BudgetError,
    CheckpointError,
    DataError,
    FrclError,
    LabelError,
    NetworkError,
    NumericalError,
    OptionError,
    TaskError,
)
from frcl.features import MLP, ConvNet
from frcl.frozen import FrozenFront, freeze_batch_norm
from frcl.image_networks import CifarNet, ResNet18
from frcl.inputs import MultiInput
from frcl.learners.ensemble import Ensemble, load
from frcl.learners.exact_gp import ExactGP
from frcl.learners.frcl import FRCL, FRCLPlus
from frcl.learners.options import FRCLOptions
from frcl.learners.types import Prediction, StepLog, Summary
from frcl.regularisers import (
    EWC,
    CurrentInputs,
    Curvature,
    FunctionalKL,
    KroneckerCurvature,
    MemorablePast,
    MemoryTargets,
    PathIntegral,
    RecentredKL,
    Regulariser,
    Replay,
)

__version__ = "0.2.0"

__all__ = [
    "EWC", "FRCL", "MLP", "BoundaryDetector", "BudgetError", "CheckpointError", "CifarNet", "ConvNet", "CropFlip",
    "CurrentInputs", "Curvature", "DataError", "Ensemble", "ExactGP", "FRCLOptions", "FRCLPlus", "FrclError",
    "FrozenFront", "FunctionalKL", "KroneckerCurvature", "LabelError", "MemorablePast", "MemoryTargets",
    "MultiInput", "NetworkError", "NumericalError", "OptionError", "PathIntegral", "Prediction", "RecentredKL",
    "Regulariser", "Replay", "ResNet18", "StepLog", "Summary", "TaskError", "data_parallel", "freeze_batch_norm",
    "load",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """`frcl.sklearn`, imported when it is first used."""
    if name == "sklearn":
        return importlib.import_module("frcl.sklearn")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
