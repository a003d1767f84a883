"""What figures that look into a learner share: sheets with rows of several kinds, and the learner itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from frcl.data.tasks import Benchmark
from frcl.experiment import environment, runner
from frcl.experiment.config import Config
from frcl.learners.frcl import FRCL
from paper.figures.base import Sheet, sheet

SETTING = "setting"


class Rows:
    """Rows of a sheet that holds things of several kinds: each names its kind and fills some of the columns."""

    def __init__(self, settings: Mapping[str, object], *columns: str) -> None:
        self.columns = ("kind", "name", "value", *columns)
        self._rows: list[list[object]] = []
        for name, value in settings.items():
            self.add(SETTING, name=name, value=value)

    def add(self, kind: str, **fields: object) -> None:
        unknown = set(fields) - set(self.columns)
        if unknown:
            raise ValueError(f"the sheet has no column {', '.join(sorted(unknown))}; it has {', '.join(self.columns)}")
        given = {"kind": kind, **fields}
        self._rows.append([given.get(name, "") for name in self.columns])

    def sheet(self) -> Sheet:
        return sheet(self.columns, self._rows)


def settings(numbers: Sheet) -> dict[str, str]:
    """What a sheet says of how it was measured."""
    found = numbers.where(kind=SETTING)
    return dict(zip(found.column("name"), found.column("value"), strict=True))


@contextmanager
def as_in_a_run(config: Config) -> Iterator[None]:
    """Inside, torch computes as it does in a run with these options."""
    with environment.threads(config.run.threads), environment.products(tf32=config.run.tf32):
        yield


def frcl_learner(config: Config, benchmark: Benchmark, seed: int) -> FRCL:
    """A fresh learner as a run would make it."""
    learner = runner.new_learner(config, benchmark, seed)
    assert isinstance(learner, FRCL)
    return learner
