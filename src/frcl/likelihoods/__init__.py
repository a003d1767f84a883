"""Likelihoods p(y | f), each bound to the targets of one task. See `base.Likelihood` for the interface.

Every module of this package is imported here, and a module that defines a likelihood registers it. So a new likelihood
is one new file; the names below are the ones of the library's own that can be imported from here.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from torch import Tensor

from frcl.errors import OptionError
from frcl.likelihoods.base import LIKELIHOODS, Label, Labels, Likelihood, Params, Predictive, register
from frcl.likelihoods.bernoulli import Bernoulli
from frcl.likelihoods.gaussian import Gaussian
from frcl.likelihoods.poisson import Poisson
from frcl.likelihoods.robustmax import RobustMax
from frcl.likelihoods.softmax import Softmax
from frcl.likelihoods.targets import as_values, plain_labels, refuse_what_looks_like_labels, task_labels
from frcl.likelihoods.temperature import best_temperature, tempered

__all__ = [
    "LIKELIHOODS", "Bernoulli", "Gaussian", "Label", "Labels", "Likelihood", "Params", "Poisson", "Predictive",
    "RobustMax", "Softmax", "as_values", "best_temperature", "check_name", "likelihood_for", "likelihood_from_json",
    "plain_labels", "register", "tempered",
]  # fmt: skip


def import_modules() -> None:
    """Import every module of this package, so that its likelihoods are registered."""
    for module in pkgutil.iter_modules(__path__):
        import_module(f"{__name__}.{module.name}")


import_modules()


def check_name(name: str) -> None:
    """Refuse a likelihood that does not exist."""
    if name != "auto" and name not in LIKELIHOODS:
        raise OptionError(f"unknown likelihood {name!r}; choose one of auto, {', '.join(sorted(LIKELIHOODS))}")


def likelihood_for(
    y: Any, name: str = "auto", labels: Sequence[Label] | None = None, settings: Mapping[str, Any] | None = None
) -> Likelihood:
    """The likelihood of a task, from its targets and what the user declared.

    auto: gaussian for floats without labels, bernoulli for two labels, softmax for more.
    """
    check_name(name)
    values = as_values(y)
    if name == "auto":
        if labels is None and isinstance(values, Tensor) and values.is_floating_point():
            refuse_what_looks_like_labels(values)
            name = "gaussian"
        else:
            labels = task_labels(values, labels)
            name = "bernoulli" if len(labels) == 2 else "softmax"
    return LIKELIHOODS[name].from_targets(values, labels, settings or {})


def likelihood_from_json(data: Mapping[str, Any]) -> Likelihood:
    """The likelihood that `Likelihood.to_json` wrote, also after a round trip through JSON."""
    fields = {key: tuple(value) if isinstance(value, list) else value for key, value in data.items() if key != "name"}
    return LIKELIHOODS[data["name"]](**fields)
