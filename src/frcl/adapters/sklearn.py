"""FRCL as estimators of scikit-learn: `fit` learns one task, and every call of `partial_fit` one more.

The network is built from the width of the data, inputs are standardised by the first data, and predictions name no
task: the task of an input is inferred. Calculations are in float64, so that a prediction does not depend on the batch.
In a stream the first data are the minibatches of its first task, at most 1,000 rows.
"""

import copy
import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data
from torch import Tensor, nn

from frcl.boundary import BoundaryDetector
from frcl.errors import DataError, LabelError, OptionError
from frcl.experiment.prequential import RunningScaler
from frcl.features import MLP
from frcl.inference import FromSummaries
from frcl.learners.ensemble import restored
from frcl.learners.frcl import FRCL
from frcl.learners.options import PLUS, FRCLOptions
from frcl.learners.types import Prediction, plural
from frcl.likelihoods import all_labels
from frcl.options import changed
from frcl.seeding import fork

Array = NDArray[Any]
EPOCHS, FEWEST, MOST = 40, 200, 5000  # steps="auto": passes over the data, between these numbers of steps
LIMIT = 5.0  # standardised inputs are compressed from here on: a column may vary much more in later data
BIAS = 2.0  # biases of the network are uniform in ±2/√(inputs of the layer): few columns need kinks off the origin
AT_ANY_TIME = ("steps", "verbose")  # parameters that partial_fit reads again
NOTHING = -1  # code of the second label of a task with one class


def tabular_network(columns: int, widths: int | Sequence[int], seed: int) -> MLP:
    """Fully connected layers for standardised columns, in float64, with random biases."""
    net, generator = MLP(columns, np.atleast_1d(widths).tolist(), seed=seed), fork(seed, "biases")
    for layer in net.modules():
        if isinstance(layer, nn.Linear):
            most = BIAS / math.sqrt(layer.in_features)
            nn.init.uniform_(layer.bias, -most, most, generator=generator)
    return net.double()


class _Estimator(BaseEstimator):  # type: ignore[misc]
    """What both estimators share: their parameters, the learner, and its data.

    Parameters
    ----------
    hidden_layer_sizes : int or sequence of int
        Widths of the fully connected layers; the last one is the number of features.
    network : nn.Module, optional
        A feature network of your own instead, from [n, columns] to [n, K]; copied, and computed in float64.
    method : {"frcl-plus", "frcl"}
        The recommended options, or those of the paper.
    points : int
        Inducing points kept of each task; all rows where the first data are fewer.
    steps : int or "auto"
        Gradient steps of each task; "auto": 40 passes over its rows, but 200 to 5000 steps.
    batch_size : int
        Rows of a step.
    learning_rate : float
        That of Adam.
    task_inference : {"exact", "summaries", "both"}
        How the task of an input is inferred: from sums over all rows, from the points alone, or both.
    boundaries : {"calls", "detect"}
        Whether a call of `partial_fit` is a task, or a minibatch of a stream whose task boundaries are looked for.
    options : dict, optional
        Further options of `frcl.FRCL` by name.
    device : str, optional
        Where to compute; the CPU by default.
    verbose : bool
        Show a progress bar for each task.
    random_state : int, RandomState or None
        Seed of the weights and of everything random in learning; with an int the result is always the same.

    Attributes
    ----------
    learner_ : FRCL
        The learner, with its tasks in the order of the calls.
    """

    learner_: FRCL

    def __init__(
        self,
        hidden_layer_sizes: int | Sequence[int] = (100, 100),
        *,
        network: nn.Module | None = None,
        method: Literal["frcl-plus", "frcl"] = "frcl-plus",
        points: int = 40,
        steps: int | Literal["auto"] = "auto",
        batch_size: int = 128,
        learning_rate: float = 1e-3,
        task_inference: FromSummaries = "exact",
        boundaries: Literal["calls", "detect"] = "calls",
        options: Mapping[str, Any] | None = None,
        device: str | None = None,
        verbose: bool = False,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.hidden_layer_sizes = hidden_layer_sizes
        self.network = network
        self.method = method
        self.points = points
        self.steps = steps
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.task_inference = task_inference
        self.boundaries = boundaries
        self.options = options
        self.device = device
        self.verbose = verbose
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> Self:
        """Learn X [n, columns] and y [n] from the beginning, as one task."""
        return self._learn(X, y, None, first=True, stream=False)

    # -- learning -------------------------------------------------------------------------------------------

    def _learn(self, X: Any, y: Any, classes: Any, *, first: bool, stream: bool) -> Self:
        """Learn rows as a task or, in a `stream`, as a minibatch; after an error everything is as it was."""
        before = dict(self.__dict__)
        learner = None if first else self.learner_.state_dict()
        try:
            X, y = self._checked(X, y, reset=first, least=2 if first and not stream else 1)
            if first:
                self._scalers: dict[str, RunningScaler] = {}
            if first or (stream and not self.learner_.tasks):  # what is kept of a task is standardised as it was
                self._prepare(X, y)
            targets = self._targets(y, classes, first=first)
            if first:
                self.learner_ = self._new_learner(len(X), classes)
            rows = self._inputs(X)
            if stream:
                _observe(self.learner_, rows, targets)
            else:
                self._fit_task(rows, targets)
        except BaseException:
            self.__dict__ = before
            if learner is not None:
                self.learner_.load_state_dict(learner)
            raise
        return self

    def _partial(self, X: Any, y: Any, classes: Any = None) -> Self:
        first, boundaries = "learner_" not in self.__dict__, self.boundaries
        if not first:
            self._warn_of_changes()
            boundaries = self._made_with["boundaries"]
        return self._learn(X, y, classes, first=first, stream=boundaries == "detect")

    def _fit_task(self, rows: Tensor, targets: Tensor) -> None:
        """One task; where it has fewer rows than points they are repeated, and counted once."""
        learner, n = self.learner_, len(rows)
        auto = min(MOST, max(FEWEST, EPOCHS * math.ceil(n / learner.options.batch_size)))
        index = torch.arange(max(n, learner.options.points)) % n
        self._declare(targets)
        learner.fit(
            rows[index], targets[index], size=n, progress=bool(self.verbose),
            steps=auto if self.steps == "auto" else self.steps,
        )  # fmt: skip

    def _warn_of_changes(self) -> None:
        """Parameters that were set since the learner was made, and that it cannot follow."""
        for name, kept in self._made_with.items():
            if name not in AT_ANY_TIME and not np.array_equal(now := getattr(self, name), kept):
                text = f"{name} is {kept!r} in what has been learned; {now!r} needs fit(), from the start"
                warnings.warn(text, UserWarning, stacklevel=4)

    def _new_learner(self, rows: int, classes: Any) -> FRCL:
        self._made_with = self.get_params(deep=False)
        bases = {"frcl-plus": PLUS, "frcl": FRCLOptions()}
        if self.method not in bases:
            raise OptionError(f'method is "frcl-plus" or "frcl", not {self.method!r}')
        if self.boundaries not in ("calls", "detect"):
            raise OptionError(f'boundaries is "calls" or "detect", not {self.boundaries!r}')
        seed = int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))
        stream = self.boundaries == "detect"
        own = {
            "points": self.points if stream or not isinstance(self.points, int) else min(self.points, rows),
            "batch_size": self.batch_size, "lr": self.learning_rate, "task_inference": self.task_inference,
            "seed": seed, **(self.options or {}), **self._fixed,
        }  # fmt: skip
        if self.network is None:
            net: nn.Module = tabular_network(self.n_features_in_, self.hidden_layer_sizes, seed)
        else:
            net = copy.deepcopy(self.network).double()
        labels = None if classes is None or not stream else list(range(len(self._labels)))
        return FRCL(
            net, detector=BoundaryDetector() if stream else None, labels=labels,
            device=self.device, options=changed(bases[self.method], own),
        )  # fmt: skip

    def _inputs(self, X: Array) -> Tensor:
        """Standardised; what is beyond LIMIT grows by its logarithm."""
        z = (X - self._mean) / self._scale
        beyond = np.log1p(np.maximum(np.abs(z) - LIMIT, 0.0))
        return torch.from_numpy(np.clip(z, -LIMIT, LIMIT) + np.sign(z) * beyond)

    def _prepare(self, X: Array, y: Array) -> None:
        """Mean and scale of the columns; one that does not vary takes the mean scale of the others."""
        self._mean, scale = self._moments("inputs", X)
        if not (np.isfinite(self._mean).all() and np.isfinite(scale).all()):
            raise DataError("the inputs are too large to be standardised; scale them first")
        varies = scale > 10 * np.finfo(float).eps * np.abs(self._mean)
        self._scale = np.where(varies, scale, scale[varies].mean() if varies.any() else 1.0)

    def _moments(self, name: str, values: Array) -> tuple[Array, Array]:
        """Mean and standard deviation of columns with these rows, and with those of minibatches before."""
        scaler = copy.copy(self._scalers.get(name, RunningScaler()))
        scaler.learn(torch.tensor(values))
        self._scalers = {**self._scalers, name: scaler}
        own = scaler.state
        return own.mean.numpy(), (own.squares / own.count).sqrt().numpy()

    # -- prediction -----------------------------------------------------------------------------------------

    def _predicted(self, X: Any) -> Prediction:
        check_is_fitted(self)
        rows = self._inputs(validate_data(self, X, reset=False, dtype=np.float64))
        one = len(self.learner_.tasks) == 1 and not self.learner_.step  # nothing has to be inferred
        return self.learner_.predict(rows, task=0 if one else None)

    # -- copies ---------------------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = dict(super().__getstate__())
        if "learner_" in state:
            learner = state["learner_"]
            state |= {"learner_": (learner.state_dict(), copy.deepcopy(learner.net).cpu())}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "learner_" in state:
            own, net = state["learner_"]
            learner = restored(own, net, device=self.device)
            assert isinstance(learner, FRCL)
            self.learner_ = learner


def _observe(learner: FRCL, rows: Tensor, targets: Tensor) -> None:
    """A minibatch of a stream. A label that the open task does not have ends it; the next one has all labels so far."""
    try:
        learner.observe(rows, targets)
    except LabelError:
        if learner.step:
            learner.end_task()
        known = {label for one in learner.tasks for label in one.likelihood.classes or ()}
        labels = sorted(known | set(targets.tolist()))
        learner.start_task(labels=labels if len(labels) > 1 else [*labels, NOTHING])
        learner.observe(rows, targets)


class FRCLClassifier(ClassifierMixin, _Estimator):  # type: ignore[misc]
    __doc__ = f"""A classifier that learns tasks one after another and predicts over all labels ever seen.
{(_Estimator.__doc__ or "").partition("data.")[2]}
    classes_ : ndarray
        All labels seen, sorted; the columns of `predict_proba`.
    """

    _fixed: Mapping[str, Any] = {}

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> Self:
        """Learn one more task, or a minibatch of a stream; labels may be new in any call.

        `classes` are labels that may come, as scikit-learn's convention has it. It is not needed; in the first call of
        a stream it says which labels a task may have where a minibatch does not show all of them.
        """
        return self._partial(X, y, classes)

    def predict_proba(self, X: Any) -> Array:
        """Probabilities [n, classes], columns as in `classes_`."""
        found = self._predicted(X)
        assert found.probs is not None
        assert found.classes is not None
        probs = np.zeros((len(found.probs), len(self.classes_)))
        for column, code in zip(found.probs.cpu().numpy().T, found.classes, strict=True):
            if code != NOTHING:
                probs[:, np.searchsorted(self.classes_, self._labels[int(code)])] = column
        total = probs.sum(1, keepdims=True)
        return probs / np.where(total > 0, total, 1.0)

    def predict(self, X: Any) -> Array:
        """The most probable label of each row."""
        best = self.predict_proba(X).argmax(1)
        found: Array = self.classes_[best]
        return found

    def _checked(self, X: Any, y: Any, *, reset: bool, least: int) -> tuple[Array, Array]:
        X, y = validate_data(self, X, y, reset=reset, dtype=np.float64, ensure_min_samples=least)
        check_classification_targets(y)
        return X, column_or_1d(y)

    def _targets(self, y: Array, classes: Any, *, first: bool) -> Tensor:
        """The code of each label: labels are numbered as they come."""
        declared = [] if classes is None else [column_or_1d(classes)]
        known = [] if first else [self.classes_]
        all_labels(label for part in (y, *declared, *known) for label in np.unique(part).tolist())  # of one kind
        given = np.union1d(y, *declared) if declared else np.unique(y)
        self._labels: list[Any] = [] if first else list(self._labels)
        self.classes_: Array = given if first else np.union1d(self.classes_, given)
        self._labels += [label for label in given.tolist() if label not in self._labels]
        codes = {label: code for code, label in enumerate(self._labels)}
        return torch.tensor([codes[label] for label in y.tolist()])

    def _declare(self, targets: Tensor) -> None:
        """Give a task with a single class a second label, which no row has."""
        if len(labels := targets.unique().tolist()) == 1:
            self.learner_.start_task(labels=[NOTHING, *labels])


class FRCLRegressor(RegressorMixin, _Estimator):  # type: ignore[misc]
    __doc__ = f"""A regressor that learns tasks one after another; y may have several columns.
{(_Estimator.__doc__ or "").partition("data.")[2]}"""

    _fixed: Mapping[str, Any] = {"likelihood": "gaussian"}  # never by what the numbers look like

    def partial_fit(self, X: Any, y: Any) -> Self:
        """Learn one more task, or a minibatch of a stream."""
        return self._partial(X, y)

    def predict(self, X: Any, return_std: bool = False) -> Array | tuple[Array, Array]:
        """The mean of y for each row; with `return_std` its standard deviation too."""
        found = self._predicted(X)
        assert found.target_mean is not None
        assert found.target_variance is not None
        mean = self._y_mean + self._y_scale * found.target_mean.cpu().numpy()
        std = self._y_scale * found.target_variance.sqrt().cpu().numpy()
        mean, std = (part[:, 0] if self._flat else part for part in (mean, std))
        return (mean, std) if return_std else mean

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def _checked(self, X: Any, y: Any, *, reset: bool, least: int) -> tuple[Array, Array]:
        X, y = validate_data(
            self, X, y, reset=reset, dtype=np.float64, multi_output=True, y_numeric=True,
            ensure_min_samples=least,
        )  # fmt: skip
        y = np.asarray(y, dtype=np.float64)
        if reset:
            return X, y
        columns, known = y.size // len(y), self._y_mean.size
        if columns != known:
            raise DataError(f"y has {plural(columns, 'column')}, and {known} in what has been learned")
        return X, y.reshape(len(y), *self._y_mean.shape)

    def _prepare(self, X: Array, y: Array) -> None:
        super()._prepare(X, y)
        self._flat = y.ndim == 1
        self._y_mean, scale = self._moments("targets", y)
        if not (np.isfinite(self._y_mean).all() and np.isfinite(scale).all()):
            raise DataError("the targets are too large to be standardised; scale them first")
        self._y_scale = np.where(scale > 0, scale, 1.0)

    def _targets(self, y: Array, classes: Any, *, first: bool) -> Tensor:
        return torch.from_numpy((y - self._y_mean) / self._y_scale)

    def _declare(self, targets: Tensor) -> None:
        """Numbers need no labels."""
