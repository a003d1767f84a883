"""What a run writes while it is in progress: logs, times and checkpoints; and the base of its observers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from frcl.codec import from_json, to_json
from frcl.engine.program import Values
from frcl.errors import CheckpointError, FrclError
from frcl.experiment.config import Config
from frcl.experiment.results import Part, Result, Seconds, SeedRecord
from frcl.files import apart, load_state, save_state, side_by_side
from frcl.learners.protocol import Learner
from frcl.learners.types import StepLog

CHECKPOINT = "checkpoint.frcl"
PATIENCE = 20.0  # a checkpoint waits at least this many times as long as writing the last one took
LOG, PAST_LOG = "log.csv", "kl_past.csv"
PLACE = {"seed": "%d", "task": "%d", "step": "%d"}
COLUMNS = {
    LOG: PLACE | dict.fromkeys(("loss", "log_likelihood", "kl_now", "kl_past"), "%.7g"),
    PAST_LOG: PLACE | {"past_task": "%d", "kl": "%.7g"},
}


class Interrupted(FrclError):
    """The run was asked to stop; it can be resumed."""


class Observer:
    """Receives the events of a run, and ignores them: the base of progress displays and event writers."""

    def begin(self, config: Config, names: list[str]) -> None: ...
    def step(self, seed: int, task: int, log: StepLog) -> None: ...
    def evaluated(self, seed: int, task: int, row: list[float]) -> None: ...
    def end(self, result: Result) -> None: ...
    def close(self) -> None: ...


@dataclass
class Progress:
    """How far a run is: everything in a checkpoint besides the learners."""

    position: int = 0  # finished seeds
    task: int = 0  # finished tasks of the current seeds
    step: int = 0  # steps taken in the current task
    records: list[SeedRecord] = field(default_factory=list)  # one per seed; those of the current seeds are unfinished
    lengths: dict[str, int] = field(default_factory=dict)  # of the log files, in bytes
    seconds: Seconds = field(default_factory=Seconds)
    started: str = ""

    def spent(self, part: Part, seconds: float) -> None:
        """Add time to one of the parts and to the total."""
        now = self.seconds
        self.seconds = replace(now, **{part: getattr(now, part) + seconds}, total=now.total + seconds)


class Keeper:
    """Writes the logs and checkpoints of the run in one folder. The logs of a resumed run continue at `lengths`."""

    def __init__(
        self, config: Config, folder: Path, progress: Progress, observer: Observer, stop: Callable[[], bool]
    ) -> None:
        self.config, self.folder, self.progress, self.observer, self._stop = config, folder, progress, observer, stop
        self._saved_at = time.monotonic()
        self._cost = 0.0  # seconds that the last checkpoint took
        self._rows: dict[str, list[str]] = {}  # of each log, not written yet
        for name in (LOG, PAST_LOG) if config.run.log_past_every else (LOG,):
            length = progress.lengths.get(name)
            self._rows[name] = [",".join(COLUMNS[name])] if length is None else []
            try:
                with (folder / name).open("wb" if length is None else "r+b") as file:
                    file.truncate(length or 0)
            except FileNotFoundError as error:
                raise CheckpointError(f"{folder / name} is missing: without it the run cannot be resumed") from error

    def _log(self, name: str, *row: object) -> None:
        self._rows[name].append(",".join(COLUMNS[name].values()) % row)

    def stepped(self, learners: Mapping[int, Learner], task: int, last: int, taken: Sequence[Sequence[Values]]) -> None:
        """Log the terms of the steps up to number `last`, log the KL of past tasks and save a checkpoint where due.

        Where several steps are taken at a time, the observer and the log of past tasks see the state after the last.
        """
        first = last - len(taken) + 1
        for step, each in enumerate(taken, first):
            for seed, values in zip(learners, each, strict=True):
                self._log(LOG, seed, task, step, *values)
        for seed, values in zip(learners, taken[-1], strict=True):
            self.observer.step(seed, task, StepLog(task, last, *values))
        every = self.config.run.log_past_every
        if every and last // every > (first - 1) // every:
            for seed, learner in learners.items():
                for past, value in enumerate(learner.past_divergences()):
                    self._log(PAST_LOG, seed, task, last, past, value)
        self.checkpoint_if_due(list(learners.values()))

    def checkpoint_if_due(self, learners: Sequence[Learner]) -> None:
        """Save a checkpoint if the last one is old, also relative to its cost, or if the run was asked to stop."""
        wait = max(self.config.run.checkpoint_seconds, PATIENCE * self._cost)
        if self._stop() or time.monotonic() - self._saved_at > wait:
            self.checkpoint(learners)

    def checkpoint(self, learners: Sequence[Learner]) -> None:
        """Write everything to disk; if the run was asked to stop, stop."""
        begin = time.monotonic()
        for name, rows in self._rows.items():
            with (self.folder / name).open("ab") as file:
                file.write("".join(f"{row}\n" for row in rows).encode())
                self.progress.lengths[name] = file.tell()
            rows.clear()
        states = [learner.state_dict() for learner in learners]
        meta = {"progress": to_json(self.progress), "learners": [state["meta"] for state in states]}
        save_state(self.folder / CHECKPOINT, meta, side_by_side(states))
        self._saved_at = time.monotonic()
        self._cost = self._saved_at - begin
        if self._stop():
            raise Interrupted(f"stopped; go on with: frcl resume {self.folder}")

    @contextmanager
    def timed(self, part: Part) -> Iterator[None]:
        """Add the time spent inside to one of the parts."""
        begin = time.monotonic()
        try:
            yield
        finally:
            self.progress.spent(part, time.monotonic() - begin)


def read_checkpoint(folder: Path) -> tuple[Progress, list[dict[str, Any]] | None]:
    """The progress of the run in a folder and the states of its learners; a new progress if there is no checkpoint."""
    path = folder / CHECKPOINT
    if not path.is_file():
        return Progress(), None
    meta, tensors = load_state(path)
    try:
        return from_json(Progress, meta["progress"], "progress"), apart(meta["learners"], tensors) or None
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise CheckpointError(f"{path} is not the checkpoint of a run: {error!r}") from error
