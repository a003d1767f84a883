"""`frcl stream`: learn a file row by row, predicting first, and report what changed when."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from torch import Tensor
from typer import Argument, Option

from frcl import codec
from frcl.adapters.river import NAMES as RIVER
from frcl.adapters.river import found_in
from frcl.adapters.river import make as make_river_detector
from frcl.boundary import BoundaryDetector
from frcl.cli.console import bar, note, say, show_table
from frcl.cli.options import Json, Quiet, free_folder
from frcl.data.own import label_kind, read_csv
from frcl.errors import DataError, OptionError
from frcl.experiment.prequential import Evaluation, OtherDetector, RunningScaler, StreamResult, scored
from frcl.experiment.tracking import Tracker
from frcl.features import MLP
from frcl.files import alone_in, write_atomically
from frcl.learners.frcl import FRCL
from frcl.report.stream import other_table, stretch_table, write_stream_report

UNFINISHED = ("stream.frcl", "stream-options.json")  # while a stream is learned
SECONDS = 10.0  # between checkpoints


def stream(
    file: Annotated[Path, Argument(help="A .csv file whose first line has column names; rows in order of time.")],
    target: Annotated[str, Option("--target", help="Column with the labels.")],
    task: Annotated[
        str | None, Option("--task", help="Column with the true task, only to score what is found.")
    ] = None,
    batch: Annotated[int, Option("--batch", min=2, help="Rows per minibatch.")] = 32,
    steps: Annotated[int, Option("--steps", min=1, help="Gradient steps per minibatch (stream_steps).")] = 4,
    points: Annotated[int, Option("--points", min=1, help="Inducing points kept per task.")] = 40,
    width: Annotated[int, Option("--width", min=1, help="Units of each of the two hidden layers.")] = 100,
    lr: Annotated[float, Option("--lr", min=1e-9, help="Learning rate.")] = 1e-3,
    expected_run: Annotated[float, Option(help="Minibatches per false alarm.")] = BoundaryDetector.expected_run,
    seed: Annotated[int, Option("--seed", min=0, help="Root of every random stream.")] = 0,
    track: Annotated[
        bool, Option(help="Predict with heads that follow a drift within a task, beside the learner.")
    ] = True,
    river: Annotated[bool, Option("--river", help="Also report what detectors of River find in the scores.")] = False,
    folder: Annotated[
        Path | None, Option("--out", help="Folder for what is written; an interrupted stream in it goes on.")
    ] = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Predict each minibatch of a .csv file, then learn from it; find changes and tasks that return.

    Numbers are standardised by their first 1,000 rows. Writes report.html, stream.json and model.frcl, and meanwhile
    stream.frcl, with which the same command and --out goes on after an interruption.
    """
    x, y, true = _read(file, target, task, batch)
    settings = {
        "target": target, "batch": batch, "steps": steps, "points": points, "width": width, "lr": lr,
        "expected-run": expected_run, "seed": seed,
    }  # fmt: skip
    own = {**settings, "track": track, "river": river, "data": _digest(x, y)}
    out = folder or free_folder(f"{file.stem}-stream")
    if (out / "stream.json").exists():
        raise OptionError(f"{out} has the result of a stream already; name another folder with --out")
    if river:
        make_river_detector(RIVER[0])  # fails now where River is missing
    out.mkdir(parents=True, exist_ok=True)
    net, detector = MLP(x.shape[1], (width, width), seed=seed), BoundaryDetector(expected_run=expected_run)
    learner = FRCL(net, points, detector=detector, seed=seed, lr=lr, stream_steps=steps)
    run = Evaluation(learner, RunningScaler(), Tracker(seed) if track else None, keep_scores=river)
    with alone_in(out), bar("minibatches", math.ceil(len(x) / batch), quiet=quiet or as_json) as advance:
        _learn(run, list(_batches(x, y, batch)), out, own, advance)
        result = run.result(true)
        result.others = [_other(name, result, true) for name in RIVER] if river else []
        learner.save(out / "model.frcl")
        write_atomically(out / "stream.json", json.dumps(codec.to_json(result), indent=1).encode())
        for name in UNFINISHED:
            (out / name).unlink(missing_ok=True)
    shown = [f"--{name} {value}" for name, value in settings.items()]
    command = " ".join(
        ["frcl stream", file.name, *shown, *(["--river"] if river else []), *([] if track else ["--no-track"])]
    )
    page = write_stream_report(result, out / "report.html", f"Stream {file.name}", command)
    if as_json:
        typer.echo(json.dumps(codec.to_json(result)))
    elif not quiet:
        _show(result, page)


def _learn(
    run: Evaluation, stream: Sequence[tuple[Tensor, np.ndarray]], out: Path, own: dict[str, Any],
    advance: Callable[[], None],
) -> None:  # fmt: skip
    """Every minibatch that is left, with a checkpoint every few seconds."""
    state, options = (out / name for name in UNFINISHED)
    if options.exists() and state.exists():
        before = json.loads(options.read_text())
        wrong = [name for name in own if before.get(name) != own[name]]
        if wrong:
            raise OptionError(f"the stream in {out} was begun with another {wrong[0]}; give the same, or another --out")
        run.load(state)
        for _ in range(run.steps):
            advance()
    write_atomically(options, json.dumps(own).encode())
    saved = time.monotonic()
    for x, y in stream[run.steps :]:
        run.step(x, y)
        advance()
        if time.monotonic() - saved > SECONDS:
            run.save(state)
            saved = time.monotonic()


def _digest(x: Tensor, y: np.ndarray) -> str:
    """Identifies the data."""
    return hashlib.sha256(x.numpy().tobytes() + repr(y.tolist()).encode()).hexdigest()


def _other(name: str, result: StreamResult, true: list[int] | None) -> OtherDetector:
    """What a detector of River finds in the scores."""
    other = OtherDetector(name, found_in(name, result.scores))
    if true is not None:
        _, other.misses, other.false_alarms = scored(true, other.found, 10)
    return other


def _read(path: Path, target: str, task: str | None, batch: int) -> tuple[Tensor, np.ndarray, list[int] | None]:
    """Inputs [n, columns], labels, and the minibatches at which the true task changes."""
    table = read_csv(path, target, task)
    kind = label_kind(table["y"], str(path))
    if kind == "real":
        raise DataError(f"column {target!r} of {path} has numbers that are not whole; a stream is scored on labels")
    if not np.isfinite(table["x"]).all():
        raise DataError(f"{path} has values that are not finite; remove or replace them first")
    labels = table["y"].astype(np.int64) if kind == "whole" else table["y"]
    true = None
    if task is not None:
        changes = np.nonzero(table["task"][1:] != table["task"][:-1])[0] + 1
        true = sorted({int(row) // batch for row in changes})
    return torch.tensor(table["x"], dtype=torch.float32), labels, true


def _batches(x: Tensor, y: np.ndarray, batch: int) -> Iterator[tuple[Tensor, np.ndarray]]:
    """Minibatches in order; a last one of a single row is left out."""
    for at in range(0, len(x) - 1, batch):
        yield x[at : at + batch], y[at : at + batch]


def _show(result: StreamResult, page: Path) -> None:
    table = stretch_table(result)
    show_table(table.rows, *table.columns, title=table.caption, title_justify="left")
    say(f"prequential accuracy {100 * result.accuracy:.2f} %")
    say(f"{len(result.found)} changes found, {result.tasks} different tasks")
    if result.others:
        table = other_table(result)
        show_table(table.rows, *table.columns, title=table.caption, title_justify="left")
    if result.true is not None:
        say(f"of {len(result.true)} true changes {result.misses} missed; {result.false_alarms} false alarms")
    if not result.found:
        note("no change was found: the whole stream is one task")
    say(f"report: {page}")
