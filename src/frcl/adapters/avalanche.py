"""Any learner of this library as a strategy of Avalanche: its benchmarks, its evaluation and its plugins.

Each experience is one task of the learner. Avalanche's task labels say how it is evaluated: where every experience has
a label of its own (multi-head) the label names the task, and where several experiences share one (single-head) the task
is inferred among them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from frcl.errors import DataError, OptionError, TaskError
from frcl.learners.ensemble import Ensemble
from frcl.learners.types import Learner, Prediction

try:
    from avalanche.core import BaseSGDPlugin, SupervisedPlugin
    from avalanche.training.plugins import EvaluationPlugin
    from avalanche.training.plugins.evaluation import default_evaluator
    from avalanche.training.templates import SupervisedTemplate
except ImportError as error:
    raise OptionError(f"Avalanche cannot be imported ({error}): pip install 'frcl[avalanche]'") from error

GRADIENT = ("before_backward", "after_backward", "before_update", "after_update")  # callbacks that are never called


class LearnerModel(nn.Module):
    """A learner as a module: log-probabilities of the classes, one column for each label from 0 on.

    `labels` has Avalanche's task label of each task that was learned.
    """

    def __init__(self, learner: Learner, labels: Sequence[int]) -> None:
        super().__init__()
        members: Sequence[object] = learner.members if isinstance(learner, Ensemble) else [learner]
        nets = [getattr(one, "net", None) for one in members]
        self.nets = nn.ModuleList([net for net in nets if isinstance(net, nn.Module)])
        self.learner, self.labels, self.columns = learner, list(labels), 1

    def train(self, mode: bool = True) -> LearnerModel:
        """Training or evaluation; the layers of the learner's network stay in the mode in which they were given."""
        self.training = mode
        return self

    def forward(self, x: Tensor, task_labels: Tensor | None = None) -> Tensor:
        """log p(y | x) [n, columns] for inputs with these task labels; without them, over everything learned."""
        if not self.labels:
            return torch.zeros(len(x), self.columns, device=x.device)
        if task_labels is None:
            return self._log_probs([self.learner.predict(x)], x)
        parts = {int(label): (task_labels == label).nonzero()[:, 0] for label in task_labels.unique()}
        found = [self._in_label(label, x[rows]) for label, rows in parts.items()]
        width = max(part.shape[1] for part in found)
        found = [nn.functional.pad(part, (0, width - part.shape[1]), value=float(part.min())) for part in found]
        return torch.cat(found)[torch.cat(list(parts.values())).argsort()]

    def _in_label(self, label: int, x: Tensor) -> Tensor:
        """p(y | x, label) = Σ_k p(k | x) p(y | x, k) / Σ_k p(k | x) over the tasks k with this label.

        A label that was never learned is as no label.
        """
        tasks = [k for k, own in enumerate(self.labels) if own == label]
        if len(tasks) == 1 < len(self.labels):
            return self._log_probs([self.learner.predict(x, task=tasks[0])], x)
        whole = self.learner.predict(x)
        if len(tasks) in (0, len(self.labels)) or whole.task_probs is None:
            return self._log_probs([whole], x)
        weights = whole.task_probs[:, tasks]
        return self._log_probs([self.learner.predict(x, task=k) for k in tasks], x, weights / weights.sum(1, True))

    def _log_probs(self, each: Sequence[Prediction], x: Tensor, weights: Tensor | None = None) -> Tensor:
        """The mixture of some predictions in the columns of their labels; a label that none of them has: next to −∞."""
        width = max(self.columns, *(1 + int(label) for one in each for label in one.classes or ()))
        probs = torch.zeros(len(x), width, device=x.device)
        for i, one in enumerate(each):
            assert one.probs is not None
            assert one.classes is not None
            columns = torch.tensor([int(label) for label in one.classes], device=x.device)
            own = one.probs.to(probs)
            probs.index_add_(1, columns, own if weights is None else own * weights[:, i, None].to(probs))
        return probs.clamp_min(torch.finfo(probs.dtype).tiny).log()


class FRCLStrategy(SupervisedTemplate):  # type: ignore[misc]
    """A learner, as FRCL, FRCLPlus or Ensemble, as a strategy of Avalanche for classification.

    `train(experience)` is one call of the learner's `fit` with the data of the experience in their order, so that the
    result is that of the learner alone; `eval(stream)` predicts. To plugins and metrics the training is one epoch: a
    pass over the data after the task was learned. Plugins that act on gradients, or that bring a data loader of their
    own, are refused, since they would have no effect.

    Parameters
    ----------
    learner : Learner
        What learns; its options have the steps, the learning rate and the minibatch size.
    eval_mb_size : int
        Inputs that are predicted at once.
    plugins, evaluator, eval_every
        As for every strategy of Avalanche.
    task_labels : sequence of int
        Avalanche's task label of each task that the learner knows already, as after `frcl.load`.
    """

    def __init__(
        self,
        *,
        learner: Learner,
        eval_mb_size: int = 512,
        plugins: Sequence[SupervisedPlugin] | None = None,
        evaluator: EvaluationPlugin = default_evaluator,
        eval_every: int = -1,
        task_labels: Sequence[int] = (),
    ) -> None:
        known = len(getattr(learner, "tasks", ()))
        if known != len(task_labels):
            raise OptionError(f"the learner knows {known} tasks; task_labels has {len(task_labels)}: give one for each")
        for plugin in plugins or ():
            acts = [name for name in GRADIENT if _overrides(plugin, name)]
            if acts:
                raise OptionError(
                    f"{type(plugin).__name__} acts on gradients ({', '.join(acts)}), which the learner computes "
                    "itself; leave it out, and use the learner's own regularisers"
                )
        self.learner = learner
        super().__init__(
            model=LearnerModel(learner, task_labels), optimizer=None, train_epochs=1, train_mb_size=eval_mb_size,
            eval_mb_size=eval_mb_size, device=_device(learner), plugins=plugins, evaluator=evaluator,
            eval_every=eval_every,
        )  # fmt: skip

    def check_model_and_optimizer(self, **kwargs: Any) -> None:
        """Nothing to adapt: the learner adds the labels of a task itself."""

    def model_adaptation(self, model: nn.Module | None = None) -> nn.Module:
        """The model, wide enough for all classes of the benchmark."""
        benchmark = getattr(self.experience, "benchmark", None)
        classes = getattr(self.experience, "classes_in_this_experience", None) or [0]
        most = max(int(getattr(benchmark, "n_classes", 0)), 1 + max(classes))
        self.model.columns = max(self.model.columns, most)
        return self.model if model is None else model

    def make_train_dataloader(self, num_workers: int = 0, **kwargs: Any) -> None:
        """The data of the experience, in their order and without a draw of the global random state."""
        data = self.adapted_dataset
        self.dataloader = self._own = DataLoader(
            data, self.train_mb_size, num_workers=num_workers, collate_fn=data.collate_fn, generator=torch.Generator()
        )  # fmt: skip

    def training_epoch(self, **kwargs: Any) -> None:
        """Learn the task, then show the plugins a pass over its data."""
        if self.dataloader is not self._own:
            raise OptionError("a plugin replaced the data loader; the learner learns the data of the experience alone")
        self.model_adaptation()
        batches = [list(batch) for batch in self.dataloader]
        x, y, *_, labels = (torch.cat(part) for part in zip(*batches, strict=True))
        if y.is_floating_point():
            raise DataError("the strategy is for classification; call fit() of the learner for numeric targets")
        if len(labels.unique()) > 1:
            raise TaskError(f"an experience has several task labels, {labels.unique().tolist()}; it must be one task")
        self.learner.fit(x, y)
        self.model.labels.append(int(labels[0]))
        with torch.no_grad():
            for self.mbatch in batches:
                self._unpack_minibatch()
                self._before_training_iteration(**kwargs)
                self._before_forward(**kwargs)
                self.mb_output = self.forward()
                self._after_forward(**kwargs)
                self.loss = self.criterion()
                self._after_training_iteration(**kwargs)

    def forward(self) -> Tensor:
        """log p(y | x) of the current minibatch."""
        output: Tensor = self.model(self.mb_x, self.mb_task_id)
        return output


def _device(learner: Learner) -> Any:
    one = learner.members[0] if isinstance(learner, Ensemble) else learner
    return getattr(one, "device", "cpu")


def _overrides(plugin: object, name: str) -> bool:
    """Whether a plugin does something in a callback."""
    own = getattr(type(plugin), name, None)
    return own is not None and own not in (getattr(SupervisedPlugin, name, None), getattr(BaseSGDPlugin, name, None))
