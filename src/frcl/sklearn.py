"""Estimators for scikit-learn: `frcl.sklearn.FRCLClassifier` and `frcl.sklearn.FRCLRegressor`."""

from frcl.adapters.sklearn import FRCLClassifier, FRCLRegressor

__all__ = ["FRCLClassifier", "FRCLRegressor"]
