"""What a run writes while it goes on: logs, clock, checkpoints; and who is told about it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from frcl.errors import CheckpointError, FrclError
from frcl.experiment.config import Config
from frcl.experiment.logs import CsvLog
from frcl.files import load_state, save_state
from frcl.learners.protocol import Learner
from frcl.learners.records import StepLog

CHECKPOINT = "checkpoint.frcl"
LOG, LOG_HEADER = "log.csv", ("seed", "task", "step", "loss", "log_likelihood", "kl_now", "kl_past")
PAST_LOG, PAST_HEADER = "kl_past.csv", ("seed", "task", "step", "past_task", "kl")


class Interrupted(FrclError):
    """The run was asked to stop; it can be taken up again."""


class Observer(Protocol):
    """Whoever watches a run: a progress display, a writer of events, a test."""

    def begin(self, config: Config, names: list[str]) -> None: ...
    def step(self, seed: int, task: int, log: StepLog) -> None: ...
    def evaluated(self, seed: int, task: int, row: list[float]) -> None: ...
    def end(self, result: dict[str, Any]) -> None: ...
    def close(self) -> None: ...


def new_record() -> dict[str, Any]:
    """What is found out about one seed, filled as it goes; plain values, so that a checkpoint can hold it."""
    return {
        "rows": [],  # of the accuracy matrix
        "bytes": [],  # kept after each task
        "alone": [],  # accuracy of a fresh learner on each task, where forward transfer is measured
        "learned_as": [],  # which of the learner's tasks stands for each task of the benchmark
        "score": "accuracy",  # what the matrix holds, or "r2"
        "final": None,  # NLL and so on, after the last task
        "true": [],  # hidden boundaries: where they are,
        "found": [],  # where the learner saw them,
        "statistic": [],  # and its test statistic at every minibatch
    }


@dataclass
class Progress:
    """Where a run stands: all that a checkpoint holds besides the learner."""

    position: int = 0  # seeds finished
    task: int = 0  # tasks of the current seed finished
    records: list[dict[str, Any]] = field(default_factory=list)  # one a seed; the last may be unfinished
    lengths: dict[str, int] = field(default_factory=dict)  # of the log files, in bytes
    seconds: dict[str, float] = field(default_factory=lambda: {"train": 0.0, "select": 0.0, "evaluate": 0.0})
    started: str = ""


class Keeper:
    """Writes the logs and checkpoints of the run in one folder."""

    def __init__(
        self, config: Config, folder: Path, progress: Progress, observer: Observer, stop: Callable[[], bool]
    ) -> None:
        self.config = config
        self.folder = folder
        self.progress = progress
        self.observer = observer
        self._stop = stop
        self._saved_at = time.monotonic()
        self._logs = {LOG: CsvLog(folder / LOG, LOG_HEADER, progress.lengths.get(LOG))}
        if config.run.log_past_every:
            self._logs[PAST_LOG] = CsvLog(folder / PAST_LOG, PAST_HEADER, progress.lengths.get(PAST_LOG))

    def step(self, learner: Learner, seed: int, task: int, log: StepLog) -> None:
        """Log one step, tell the observer, and write a checkpoint if it is time for one."""
        self._logs[LOG].add((seed, task, log.step, log.loss, log.log_likelihood, log.kl_now, log.kl_past))
        if PAST_LOG in self._logs and log.step % self.config.run.log_past_every == 0:
            for past, value in enumerate(learner.past_divergences()):
                self._logs[PAST_LOG].add((seed, task, log.step, past, value))
        self.observer.step(seed, task, log)
        if self._stop() or time.monotonic() - self._saved_at > self.config.run.checkpoint_seconds:
            self.checkpoint(learner)

    def checkpoint(self, learner: Learner | None) -> None:
        """Write everything to disk; if the run was asked to stop, stop."""
        for name, log in self._logs.items():
            self.progress.lengths[name] = log.flush()
        state = learner.state_dict() if learner is not None else {"meta": None, "tensors": {}}
        meta = {"progress": asdict(self.progress), "learner": state["meta"]}
        save_state(self.folder / CHECKPOINT, meta, state["tensors"])
        self._saved_at = time.monotonic()
        if self._stop():
            raise Interrupted(f"stopped; go on with: frcl resume {self.folder}")

    @contextmanager
    def timed(self, part: str) -> Iterator[None]:
        """Adds the time spent inside to one of the parts."""
        begin = time.monotonic()
        try:
            yield
        finally:
            self.progress.seconds[part] += time.monotonic() - begin


def read_checkpoint(folder: Path) -> tuple[Progress, dict[str, Any] | None]:
    """Where the run in a folder stands, and the state of its learner; the very beginning if there is none."""
    path = folder / CHECKPOINT
    if not path.is_file():
        return Progress(), None
    meta, tensors = load_state(path)
    try:
        progress = Progress(**meta["progress"])
        learner = None if meta["learner"] is None else {"meta": meta["learner"], "tensors": tensors}
    except (KeyError, TypeError) as error:
        raise CheckpointError(f"{path} is not the checkpoint of a run: {error!r}") from error
    return progress, learner
