"""What a run writes while it goes on: logs, clock, checkpoints; and who is told about it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from frcl.engine.program import Values
from frcl.errors import CheckpointError, FrclError
from frcl.experiment.config import Config
from frcl.experiment.logs import CsvLog
from frcl.files import apart, load_state, save_state, side_by_side
from frcl.learners.protocol import Learner
from frcl.learners.types import StepLog

CHECKPOINT = "checkpoint.frcl"
PATIENCE = 20.0  # a checkpoint waits so many times what the last one took
LOG, PAST_LOG = "log.csv", "kl_past.csv"
PLACE = {"seed": "%d", "task": "%d", "step": "%d"}
COLUMNS = {
    LOG: PLACE | dict.fromkeys(("loss", "log_likelihood", "kl_now", "kl_past"), "%.7g"),
    PAST_LOG: PLACE | {"past_task": "%d", "kl": "%.7g"},
}


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
        "parts": {},  # the same after the last one, by kind
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

    position: int = 0  # seeds finished; the next of them are learned together
    task: int = 0  # tasks of the current seeds finished
    step: int = 0  # steps of the current task taken
    records: list[dict[str, Any]] = field(default_factory=list)  # one a seed; those of the current seeds are unfinished
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
        self._cost = 0.0  # seconds that the last checkpoint took
        self._logs = {LOG: CsvLog(folder / LOG, COLUMNS[LOG], progress.lengths.get(LOG))}
        if config.run.log_past_every:
            self._logs[PAST_LOG] = CsvLog(folder / PAST_LOG, COLUMNS[PAST_LOG], progress.lengths.get(PAST_LOG))

    def stepped(self, learners: Mapping[int, Learner], task: int, last: int, taken: Sequence[Sequence[Values]]) -> None:
        """Steps up to number `last` were taken: log their terms, look at the past and save where it is time.

        Where steps are taken many at a time, the observer is told of the last of them, and the past is seen as it is
        after it.
        """
        first = last - len(taken) + 1
        for step, each in enumerate(taken, first):
            for seed, values in zip(learners, each, strict=True):
                self._logs[LOG].add((seed, task, step, *values))
        for seed, values in zip(learners, taken[-1], strict=True):
            self.observer.step(seed, task, StepLog(task, last, *values))
        every = self.config.run.log_past_every
        if every and last // every > (first - 1) // every:
            for seed, learner in learners.items():
                for past, value in enumerate(learner.past_divergences()):
                    self._logs[PAST_LOG].add((seed, task, last, past, value))
        self.checkpoint_if_due(list(learners.values()))

    def checkpoint_if_due(self, learners: Sequence[Learner]) -> None:
        """A checkpoint if the last was long ago, in seconds and by what it cost, or if the run was asked to stop."""
        wait = max(self.config.run.checkpoint_seconds, PATIENCE * self._cost)
        if self._stop() or time.monotonic() - self._saved_at > wait:
            self.checkpoint(learners)

    def checkpoint(self, learners: Sequence[Learner]) -> None:
        """Write everything to disk; if the run was asked to stop, stop."""
        begin = time.monotonic()
        for name, log in self._logs.items():
            self.progress.lengths[name] = log.flush()
        states = [learner.state_dict() for learner in learners]
        meta = {"progress": asdict(self.progress), "learners": [state["meta"] for state in states]}
        save_state(self.folder / CHECKPOINT, meta, side_by_side(states))
        self._saved_at = time.monotonic()
        self._cost = self._saved_at - begin
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


def read_checkpoint(folder: Path) -> tuple[Progress, list[dict[str, Any]] | None]:
    """Where the run in a folder stands, and the states of its learners; the very beginning if there is none."""
    path = folder / CHECKPOINT
    if not path.is_file():
        return Progress(), None
    meta, tensors = load_state(path)
    try:
        progress = Progress(**meta["progress"])
        states = apart(meta["learners"], tensors)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise CheckpointError(f"{path} is not the checkpoint of a run: {error!r}") from error
    return progress, states or None
