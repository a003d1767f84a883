"""Jobs of a sweep on a Ray cluster, and searches by Ray Tune; the extra frcl[ray].

A machine, a process or the driver may be lost at any moment: a job goes on from its last checkpoint where the folder of
the sweep is shared by the machines, and starts again where it is not.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import socket
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from frcl.codec import from_json
from frcl.errors import DataError, FrclError, OptionError
from frcl.experiment.config import to_toml
from frcl.experiment.keeper import Observer
from frcl.experiment.results import RESULT, read_result
from frcl.experiment.sweep import Engine, Jobs, attempt, carry_out, job_name
from frcl.experiment.tune import Search, Trial
from frcl.files import write_atomically

SHARED = ".shared"  # holds a token by which a worker recognises the folder of the sweep
RETRIES = 20  # times that a job goes on after its machine or process was lost
LOCAL = "local"  # the address of a cluster that is started on this machine, and ended with the sweep


def imported(*, search: bool = False) -> Any:
    """The module ray, where it and what a `search` needs are installed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of ray's own imports
            import ray

            if search:
                import optuna  # noqa: F401
                import ray.tune
    except ImportError as error:
        raise OptionError(f"Ray cannot be imported ({error}): pip install 'frcl[ray]'") from error
    return ray


@contextlib.contextmanager
def connected(address: str) -> Iterator[Any]:
    """Inside, this process is the driver of a Ray cluster; yields the module ray."""
    ray = imported()
    own = {"include_dashboard": False} if address == LOCAL else {}
    host, colon, port = address.rpartition(":")
    try:
        if colon and port.isdigit() and "://" not in address:
            socket.create_connection((host, int(port)), timeout=10.0).close()  # Ray itself would try for minutes
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **own)
    except (OSError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(
            f"there is no Ray cluster at {address!r}: {reason}; start one with `ray start --head`"
        ) from error
    try:
        yield ray
    finally:
        ray.shutdown()


def on_ray(address: str, *, cpus: float = 1.0, gpus: float = 0.0) -> Engine:
    """Each job as a task of Ray that needs this many CPUs and GPUs, or fractions of them."""

    def engine(jobs: Jobs, folder: Path) -> Iterator[tuple[str, str | None]]:
        token = secrets.token_hex(16)
        write_atomically(folder / SHARED, token.encode())
        with connected(address) as ray:
            task = ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=RETRIES)(on_worker)
            left = {task.remote(text, str(folder.resolve() / name), token): name for name, text in jobs.items()}
            while left:
                (done, *_), _ = ray.wait(list(left))
                name = left.pop(done)
                try:
                    error, files = ray.get(done)
                except ray.exceptions.RayError as problem:
                    error, files = f"its process failed: {_last_line(problem)}", {}
                write_files(folder / name, files)
                yield name, error

    return engine


def _last_line(problem: Exception) -> str:
    return (str(problem).strip().splitlines() or [repr(problem)])[-1]


def on_worker(text: str, folder: str, token: str) -> tuple[str | None, dict[str, bytes]]:
    """Carry out a job: in its folder where this machine has it, else in a temporary one whose files are returned."""
    place = Path(folder)
    try:
        shared = (place.parent / SHARED).read_text() == token
    except OSError:
        shared = False
    if shared:
        return attempt(text, place), {}
    with tempfile.TemporaryDirectory() as temporary:
        own = Path(temporary) / place.name
        error = attempt(text, own)
        files = {str(path.relative_to(own)): path.read_bytes() for path in own.rglob("*") if path.is_file()}
        return error, {} if error else files


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write what another machine returned, the result last: without it the job is not finished."""
    for name in sorted(files, key=lambda name: name == RESULT):
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise DataError(f"a machine returned a file outside of the folder of its job: {name}")
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / name, files[name])


class Reporter(Observer):
    """Reports the mean accuracy of the first seed after each task to Ray Tune, which may end the trial then."""

    def __init__(self, report: Callable[[dict[str, float]], object], seed: int) -> None:
        self._report, self._seed = report, seed

    def evaluated(self, seed: int, task: int, row: list[float]) -> None:
        if seed == self._seed:
            self._report({"tasks": task + 1, "score": sum(row) / len(row)})


def trainable(options: dict[str, Any], *, plan: dict[str, Any], folder: str) -> None:
    """One trial of Ray Tune: a run in the folder of its name."""
    from ray import tune

    search = from_json(Search, plan)
    config = search.config(options)
    result = carry_out(to_toml(config), Path(folder) / job_name(options), Reporter(tune.report, config.seeds[0]))
    trial = Trial.of(options, result)
    tune.report({"tasks": len(result.tasks) + 1, "score": trial.merit(search.by)})


def search_on_ray(search: Search, folder: Path, address: str, *, cpus: float = 1.0, gpus: float = 0.0) -> list[Trial]:
    """The trials of Ray Tune, the best first: Optuna chooses among the values, ASHA ends poor trials early.

    ASHA compares accuracies after each task but the first; where something else decides, no trial is ended. The folder
    must be shared by the machines. Called again in the same folder, the search goes on.
    """
    with connected(address):
        import optuna
        from ray import tune
        from ray.tune.schedulers import ASHAScheduler, FIFOScheduler
        from ray.tune.search.optuna import OptunaSearch

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        plan = asdict(search)
        work = tune.with_resources(
            tune.with_parameters(trainable, plan=plan, folder=str(folder.resolve())), {"cpu": cpus, "gpu": gpus}
        )
        storage = folder.resolve() / "ray"
        if tune.Tuner.can_restore(str(storage / "search")):
            tuner = tune.Tuner.restore(str(storage / "search"), work, resume_unfinished=True, restart_errored=True)
        else:
            space = {name: tune.choice(values) for name, values in search.grid.items()}
            stopper = ASHAScheduler(time_attr="tasks", grace_period=2, max_t=1000, reduction_factor=2)
            settings = tune.TuneConfig(
                metric="score", mode="max", num_samples=search.count,
                search_alg=OptunaSearch(sampler=optuna.samplers.TPESampler(seed=0)),
                scheduler=stopper if search.by == "accuracy" else FIFOScheduler(),
            )  # fmt: skip
            tuner = tune.Tuner(
                work, param_space=space, tune_config=settings,
                run_config=tune.RunConfig(
                    name="search", storage_path=str(storage), verbose=0,
                    failure_config=tune.FailureConfig(max_failures=RETRIES),
                ),
            )  # fmt: skip
        with contextlib.redirect_stdout(sys.stderr):  # Ray prints even if asked not to
            grid = tuner.fit()
    return _trials(search, folder, [one.config for one in grid if one.config is not None])


def _trials(search: Search, folder: Path, tried: list[dict[str, Any]]) -> list[Trial]:
    """What the folder has of each combination that was tried."""
    found = {}
    for options in tried:
        path = folder / job_name(options) / RESULT
        found[job_name(options)] = Trial.of(options, read_result(path) if path.exists() else "ended early, or failed")
    if all(trial.error for trial in found.values()):
        raise FrclError(f"no trial was finished; see {folder / 'ray'}")
    return sorted(found.values(), key=lambda trial: -trial.merit(search.by))
