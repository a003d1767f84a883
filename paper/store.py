"""The result file of a cell: its content, reading, writing, and how it differs from the current options."""

from __future__ import annotations

import json
import math
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

from frcl import DataError
from paper.library import Config, Finished, default_options, metrics, to_dict, write_atomically

FORMAT, VERSION = "frcl-cell", 1
WHOLE = 10  # the largest number of tasks for which the whole accuracy matrix is kept
UNLEARNED = ("seeds", "device", "data", "run", "scenario")  # options that do not affect what is learned
INFERENCE = ("task_inference", "task_features", "task_kind")  # options of the learner for predictions without a task
OF_STREAMS = ("learner.task_size", "learner.window")  # what only observe() reads
RUN_KEYS = ("started", "seconds", "memory_bytes", "peak_memory_bytes", "environment")
Document = dict[str, Any]


def path_of(results: Path, table: str, name: str) -> Path:
    return results / table / f"{name}.json"


# -- content ----------------------------------------------------------------------------------------------------


def learned_options(config: Config) -> dict[str, Any]:
    """The options that determine what is learned; with predictions without a task in the headline, also of those."""
    values = {name: value for name, value in to_dict(config).items() if name not in UNLEARNED}
    if not config.hidden_boundaries:
        del values["detector"]
    if config.scenario != "class":
        values["learner"] = {name: value for name, value in values["learner"].items() if name not in INFERENCE}
    return values


def differences(stored: Document, config: Config) -> list[str]:
    """Options of a result file that differ from the current ones: "learner.points: 40 there, 10 here".

    An option that is not in the file did not exist when it was written, and counts as its default. Options of streams
    count where there is one.
    """
    there, here = _flat(stored["config"]), _flat(learned_options(config))
    before = _flat(json.loads(json.dumps(default_options(config.method)))) | there
    names = [*here, *(name for name in there if name not in here)]
    return [
        f"{name}: {_value(there, name)} there, {_value(here, name)} here"
        for name in names
        if before.get(name) != here.get(name) and (config.hidden_boundaries or name not in OF_STREAMS)
    ]


def _value(values: dict[str, Any], name: str) -> str:
    return json.dumps(values[name]) if name in values else "no such option"


def _flat(values: dict[str, Any]) -> dict[str, Any]:
    """{"learner": {"points": 40}} as {"learner.points": 40}."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= {f"{name}.{key}": one for key, one in value.items()} if isinstance(value, dict) else {name: value}
    return flat


def document(table: str, name: str, config: Config, run: Finished, command: str, *, quick: bool) -> Document:
    """The result of one run, in the format of a result file."""
    batch = {
        "seeds": list(config.seeds),
        "command": command,
        **{key: run.result[key] for key in RUN_KEYS},
        "run": to_dict(config)["run"],
        "tasks": run.result["tasks"],  # of the first seed; each seed has its own order of alphabets
    }
    return {
        "format": FORMAT,
        "version": VERSION,
        "table": table,
        "cell": name,
        "quick": quick,
        "benchmark": config.benchmark,
        "method": config.method,
        "config": learned_options(config),
        "seeds": [seed_entry(seed, record, config) for seed, record in zip(config.seeds, run.records, strict=True)],
        "batches": [batch],
    }


def seed_entry(seed: int, record: dict[str, Any], config: Config) -> dict[str, Any]:
    """Metrics of one seed."""
    rows, final = record["rows"], record["final"]
    R = metrics.accuracy_matrix(rows)
    entry: dict[str, Any] = {
        "seed": seed,
        **{metric.__name__: _finite(float(metric(R))) for metric in metrics.OF_MATRIX},
        **{name: _finite(final[name]) for name in ("nll", "brier", "ece", "auroc")},
        **_agnostic(record),
        "last_row": rows[-1],
        "diagonal": [row[-1] for row in rows],
    }
    if len(rows) <= WHOLE:
        entry["accuracy"] = rows
    if config.hidden_boundaries:
        entry["boundaries"] = _boundary_rows(record, config)
        entry["switches"] = {name: record[name] for name in ("true", "found")}  # that the learner acted on
    return entry


def _agnostic(record: dict[str, Any]) -> dict[str, float | None]:
    """Metrics where no task is named; empty if the tasks have no common targets."""
    rows, final = record["agnostic"], record["agnostic_final"]
    if len(rows) < len(record["rows"]):
        return {}
    novelty = [value for value in record["novelty_auroc"] if value is not None]
    return {
        "agnostic_accuracy": float(metrics.average_accuracy(metrics.accuracy_matrix(rows))),
        "task_accuracy": record["task_accuracy"][-1],
        **{f"agnostic_{name}": _finite(final[name]) for name in ("nll", "ece")},
        "novelty_auroc": sum(novelty) / len(novelty) if novelty else None,
    }


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _boundary_rows(record: dict[str, Any], config: Config) -> list[dict[str, Any]]:
    """Counts and scores at each threshold, replayed on the recorded statistic."""
    options, true = config.detector, record["true"]
    rows = []
    for threshold in options.thresholds:
        found = metrics.declared_switches(record["statistic"], threshold, options.waits.pause)
        score = asdict(metrics.score_boundaries(true, found, threshold, options.tolerance))
        counts = {"switches": len(true), "declared": len(found), "hits": round(score["recall"] * len(true))}
        rows.append({"threshold": threshold, **counts, **score})
    return rows


# -- files ------------------------------------------------------------------------------------------------------


def common_seeds(one: Document, other: Document) -> list[int]:
    """The seeds that both documents have."""
    return sorted({entry["seed"] for entry in one["seeds"]} & {entry["seed"] for entry in other["seeds"]})


def merged(stored: Document | None, new: Document) -> Document:
    """Both documents in one, independent of their order; no seed may be in both."""
    if stored is None:
        return new
    twice = common_seeds(stored, new)
    if twice:
        raise DataError(f"{new['cell']}: seeds {twice} are already in the results")
    return {
        **new,
        "seeds": sorted((*stored["seeds"], *new["seeds"]), key=lambda one: int(one["seed"])),
        "batches": sorted((*stored["batches"], *new["batches"]), key=lambda one: list(one["seeds"])),
    }


def read_document(path: Path, *, quick: bool) -> Document | None:
    """Read a result file; None if it does not exist. A file of another kind is refused."""
    if not path.is_file():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        known = (found["format"], found["version"]) == (FORMAT, VERSION)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} is not a result file of `python -m paper`, or is damaged: {error!r}") from error
    if not known:
        raise DataError(f"{path} is not a result file that this version reads (version {VERSION})")
    if found["quick"] != quick:
        made = "with" if found["quick"] else "without"
        raise DataError(f"{path} was made {made} --quick; use separate folders with --results")
    document: Document = found
    return document


def write_document(path: Path, content: Document) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, to_text(content).encode())


def to_text(content: Document) -> str:
    """JSON with each list of scalars on one line."""
    text = json.dumps(content, indent=1, allow_nan=False)
    return re.sub(r"\[[^][{}]*\]", lambda found: re.sub(r"\s*\n\s*", " ", found[0]), text) + "\n"
