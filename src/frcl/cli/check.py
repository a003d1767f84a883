"""`frcl check`: whether a checkpoint or the files of a run are whole."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument

from frcl.cli.console import say
from frcl.errors import CheckpointError, DataError, FrclError
from frcl.experiment.config import Config, read_toml, saved
from frcl.experiment.keeper import CHECKPOINT, POINTS, Progress, Written, read_checkpoint
from frcl.experiment.results import RESULT, read_result
from frcl.files import TEMPORARY, load_state
from frcl.learners.types import plural
from frcl.report import read_points

Check = tuple[str, Callable[[], str]]  # the name of a file, and a function that describes it or raises an error


def check(path: Annotated[Path, Argument(help="A checkpoint, or the folder of a run.")]) -> None:
    """Read a checkpoint, or every file of a run, completely; say what each is, and exit with 1 if one is damaged.

    Nothing is written, and a run that is in progress is not disturbed. Checksums detect accidents, not attackers.
    """
    if not path.exists():
        raise DataError(f"there is no file or folder {path}")
    damaged = 0
    for name, describe in _of_run(path) if path.is_dir() else [(path.name, lambda: _checkpoint(path))]:
        try:
            say(f"{name}: whole, {describe()}")
        except (FrclError, OSError) as error:
            damaged += 1
            say(f"{name}: damaged: {error}")
    say(f"{path} is {'damaged' if damaged else 'whole'}")
    if damaged:
        raise typer.Exit(1)


def _checkpoint(path: Path) -> str:
    """What a checkpoint holds; its checksum and its values are checked."""
    meta, tensors = load_state(path)
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise CheckpointError(f"{name!r} has values that are not finite")
    kinds = {"progress": "a run", "members": "an ensemble", "settings": "a learner"}
    kind = next((what for key, what in kinds.items() if isinstance(meta, dict) and key in meta), None)
    if kind is None:
        raise CheckpointError("it is the checkpoint of neither a run nor a learner")
    return f"the checkpoint of {kind} with {len(tensors)} tensors"


def _log(path: Path, written: Written) -> str:
    written.check(path)
    return "as the checkpoint describes it"


def _of_run(folder: Path) -> Iterator[Check]:
    """A check of each file of a run, and of whether they belong together."""
    found: list[Config] = []
    known: list[Progress] = []

    def config() -> str:
        found.append(saved(read_toml(folder / "config.toml")))
        return f"{found[0].method} on {found[0].benchmark}, seeds {', '.join(map(str, found[0].seeds))}"

    def checkpoint() -> str:
        shown = _checkpoint(folder / CHECKPOINT)
        progress, _ = read_checkpoint(folder)
        if found:
            progress.check_options(found[0])
        known.append(progress)
        return f"{shown}; seeds finished: {progress.position}, tasks after them: {progress.task}"

    def result() -> str:
        read = read_result(folder / RESULT)
        if found and (read.seeds, read.method) != (found[0].seeds, found[0].method):
            raise DataError("it is the result of a run with other seeds or another method than config.toml has")
        return f"the result of {plural(len(read.seeds), 'seed')} and {plural(len(read.tasks), 'task')}"

    yield "config.toml", config
    if (folder / CHECKPOINT).exists():
        yield CHECKPOINT, checkpoint
    for name, written in known[0].logs.items() if known else ():
        yield name, partial(_log, folder / name, written)
    if (folder / POINTS).exists() or (known and known[0].position):
        yield POINTS, lambda: f"inducing inputs of {plural(len(read_points(folder / POINTS, required=True)), 'task')}"
    if (folder / RESULT).exists():
        yield RESULT, result
    for path in folder.rglob(".*.tmp"):
        if TEMPORARY.fullmatch(path.name):
            yield str(path.relative_to(folder)), lambda: "left by a killed process; `frcl resume` removes it"
