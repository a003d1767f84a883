"""Everything that the reproduction uses of `frcl` beyond its public names: the one file to adapt when those change."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from frcl import FRCL, Summary
from frcl.boundary import welch
from frcl.cli import run_app
from frcl.codec import to_json
from frcl.data.files import data_status
from frcl.data.streams import PermutedTasks
from frcl.data.tasks import Benchmark, Split
from frcl.errors import BusyError
from frcl.experiment import environment, metrics, runner
from frcl.experiment.config import PARTS, Config, parts_of, read_toml, resolve, saved, to_dict
from frcl.experiment.display import Live, Plain
from frcl.experiment.environment import check_device, describe, threads
from frcl.experiment.keeper import Interrupted, Observer, read_checkpoint
from frcl.experiment.metrics import Floats, declared_switches, delays_of, score_boundaries
from frcl.experiment.metrics import over_seeds as interval_over_seeds
from frcl.experiment.runner import benchmark_of, seeds_at_once, source_of, stream_labels
from frcl.files import write_atomically
from frcl.learners.types import plural
from frcl.posterior import Moments
from frcl.registry import suggestion
from frcl.report.drawing import LIGHT, SERIES, WIDTH, Drawing, name_in_figure, save, series, style
from frcl.report.figures import MARKERS, to_rgba
from frcl.report.numbers import number
from frcl.report.numbers import percent as share
from frcl.seeding import fork
from frcl.selection import Selected, random_start, run_searches
from frcl.selection.trace import trace_search
from frcl.summary import head_moments, make_head
from frcl.trees import detached

REGULARISERS = ("functional", "current_inputs", "memory_targets", "curvature")  # options that weigh one each


# -- runs -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Finished:
    """A finished run: the content of result.json, and the record of each seed."""

    result: dict[str, Any]
    records: list[dict[str, Any]]


def carry_out(config: Config, folder: Path, observer: Observer, *, resume: bool) -> Finished:
    """Run an experiment in a folder, or resume the one that is there."""
    try:
        result = runner.resume(folder, observer) if resume else runner.run(config, folder, observer, overwrite=True)
    finally:
        observer.close()
    return Finished(result.to_json(), [to_json(record) for record in read_checkpoint(folder)[0].records])


def over_seeds(values: Iterable[float | None]) -> dict[str, Any] | None:
    """Mean and standard deviation of one value per seed; None if one of them is not available."""
    found = interval_over_seeds(values)
    return None if found is None else {"mean": found.mean, "std": found.std, "per_seed": list(found.per_seed)}


def saved_config(folder: Path) -> Config:
    """The configuration of a run; an FrclError if it is missing or damaged."""
    return saved(read_toml(folder / "config.toml"))


def check_resumable(folder: Path) -> None:
    """Raise an FrclError if the checkpoint of a run is damaged."""
    read_checkpoint(folder)


def default_options(method: str) -> dict[str, dict[str, Any]]:
    """The defaults of every option, by section, before those of a benchmark or a preset apply."""
    options = parts_of(method)
    options["learner"] = type(options["learner"])()
    return {part: asdict(options[part]) for part in PARTS}


@contextmanager
def run_environment(config: Config) -> Iterator[None]:
    """Threads and precision of torch as in a run with this configuration."""
    with environment.threads(config.run.threads, tf32=config.run.tf32):
        yield


# -- inside a learner -------------------------------------------------------------------------------------------------


def new_frcl(config: Config, benchmark: Benchmark, seed: int) -> FRCL:
    """A new FRCL learner, as a run would create it."""
    learner = runner.new_learner(config, benchmark, seed)
    assert isinstance(learner, FRCL)
    return learner


def features_of(learner: FRCL, x: Tensor) -> Tensor:
    """σ_w Φ(x) under the current θ, [n, K], so that k(x, x') is the inner product of two rows.

    σ_w is that of the open task, or of the last one.
    """
    current, past = learner._state.current, learner.tasks
    std = past[-1].belief.prior_std if current is None else learner._model.prior.std(detached(current.params.posterior))
    return std * learner._model.features(x)


def predict_from_summary(learner: FRCL, summary: Summary, x: Tensor) -> Moments:
    """Mean and variance of a task's functions, from its summary and the features of `learner`."""
    head = make_head(learner._model.features(summary.Z), summary.belief)
    return head_moments(head, learner._model.features(x))


def summary_points(summary: Summary) -> tuple[Tensor, Tensor, Tensor]:
    """Z, and the means and standard deviations of u under q(u), [C, M]."""
    belief = summary.belief
    return summary.Z, belief.mean, (belief.factor.square().sum(2) + belief.posterior_noise).sqrt()
