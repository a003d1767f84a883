"""Likelihoods p(y | f), each bound to the targets of one task. See `base.Likelihood` for the interface.

Every module of this package is imported here, and registers the likelihood that it defines: a new one is one new file.
"""

from frcl.likelihoods.base import (
    LIKELIHOODS,
    Label,
    Labels,
    Likelihood,
    Predictive,
    all_labels,
    as_values,
    check_name,
    decoded,
    likelihood_for,
    likelihood_from_json,
    plain_labels,
    with_labels,
)  # fmt: skip
from frcl.likelihoods.bernoulli import Bernoulli
from frcl.likelihoods.gaussian import Gaussian
from frcl.likelihoods.poisson import Poisson
from frcl.likelihoods.robustmax import RobustMax
from frcl.likelihoods.softmax import Softmax
from frcl.likelihoods.temperature import best_temperature, tempered
from frcl.registry import import_modules

__all__ = [
    "LIKELIHOODS", "Bernoulli", "Gaussian", "Label", "Labels", "Likelihood", "Poisson", "Predictive", "RobustMax",
    "Softmax", "all_labels", "as_values", "best_temperature", "check_name", "decoded", "likelihood_for",
    "likelihood_from_json", "plain_labels", "tempered", "with_labels",
]  # fmt: skip

import_modules(__name__, __path__)
