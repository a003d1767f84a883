"""Functional regularisation for continual learning with Gaussian processes."""

from frcl.boundary import BoundaryDetector
from frcl.errors import (
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
from frcl.learners.ensemble import Ensemble
from frcl.learners.frcl import FRCL
from frcl.learners.load import load
from frcl.learners.options import FRCLOptions
from frcl.learners.types import Prediction, StepLog, Summary

__version__ = "0.1.0"

__all__ = [
    "FRCL",
    "MLP",
    "BoundaryDetector",
    "CheckpointError",
    "ConvNet",
    "DataError",
    "Ensemble",
    "FRCLOptions",
    "FrclError",
    "LabelError",
    "NetworkError",
    "NumericalError",
    "OptionError",
    "Prediction",
    "StepLog",
    "Summary",
    "TaskError",
    "load",
]
