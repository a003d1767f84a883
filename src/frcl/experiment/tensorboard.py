"""The terms of every step and the accuracies as TensorBoard events (optional extra `tensorboard`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from frcl.errors import OptionError
from frcl.experiment.config import Config
from frcl.experiment.results import Result
from frcl.learners.types import StepLog


class TensorBoard:
    """An observer that writes events into a folder, one sub-folder per seed."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise OptionError("--tensorboard needs the package tensorboard: pip install 'frcl[tensorboard]'") from error
        self._make = SummaryWriter
        self._folder = folder
        self._writers: dict[int, Any] = {}

    def begin(self, config: Config, names: list[str]) -> None:
        self._steps, self._names = config.learner.steps, names

    def step(self, seed: int, task: int, log: StepLog) -> None:
        at = task * self._steps + (log.step - 1) % self._steps
        for name in ("loss", "log_likelihood", "kl_now", "kl_past"):
            self._writer(seed).add_scalar(f"step/{name}", getattr(log, name), at)

    def evaluated(self, seed: int, task: int, row: list[float]) -> None:
        for on, value in enumerate(row):
            self._writer(seed).add_scalar(f"accuracy/{self._names[on]}", value, task)
        self._writer(seed).add_scalar("accuracy/average", sum(row) / len(row), task)

    def end(self, result: Result) -> None:
        self.close()

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()

    def _writer(self, seed: int) -> Any:
        if seed not in self._writers:
            self._writers[seed] = self._make(str(self._folder / f"seed-{seed}"))
        return self._writers[seed]
