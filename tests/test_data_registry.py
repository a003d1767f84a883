"""Benchmarks are registered in one place and are then known to the library, the runner and the command line."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
import torch

from frcl.cli import main
from frcl.data import (
    BENCHMARKS,
    Benchmark,
    BenchmarkOptions,
    BenchmarkSpec,
    Request,
    Split,
    Task,
    TaskList,
    open_benchmark,
)
from frcl.data.files import fetch
from frcl.data.registry import known_name
from frcl.errors import OptionError
from frcl.experiment.config import resolve
from frcl.seeding import fork


def two_blobs(request: Request, seed: int) -> Benchmark:
    """Two tasks, each with two well separated classes in the plane."""
    generator = fork(seed, "blobs")
    y = torch.arange(60) % 2
    tasks = []
    for number in range(2):
        x = 0.1 * torch.randn(60, 2, generator=generator) + (2.0 * y[:, None] - 1.0) * torch.eye(2)[number]
        part = Split(x, y).to(request.device)
        tasks.append(Task(f"blobs {number}", part, part, part, size=60))
    return TaskList("blobs", tuple(tasks[: request.options.tasks]))


SPEC = BenchmarkSpec(
    "2 tasks of two blobs",
    lambda request: lambda seed: two_blobs(request, seed),
    defaults={
        "network": {"widths": [8]},
        "training": {"steps": 60, "batch_size": 20, "lr": 0.01},
        "frcl": {"points": 4, "search_steps": 5},
        "replay": {"points": 3},
    },
)


@pytest.fixture
def blobs() -> Iterator[None]:
    """The benchmark, known for the duration of a test."""
    BENCHMARKS.add("blobs", SPEC)
    yield
    del BENCHMARKS.data["blobs"]


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["frcl", *arguments])
    with pytest.raises(SystemExit) as end:
        main()
    return int(end.value.code or 0)


@pytest.mark.usefixtures("blobs")
def test_a_registered_benchmark_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    assert call(monkeypatch, "run", "blobs", "--seeds", "2", "--out", str(folder), "--quiet") == 0
    result = json.loads((folder / "result.json").read_text())
    assert result["benchmark"] == "blobs"
    assert result["average_accuracy"]["mean"] > 0.9
    assert 'benchmark = "blobs"' in (folder / "config.toml").read_text()
    capsys.readouterr()
    assert call(monkeypatch, "list") == 0
    assert SPEC.description in capsys.readouterr().out


@pytest.mark.usefixtures("blobs")
def test_it_carries_its_defaults() -> None:
    config = resolve("blobs")
    assert config.network.widths == (8,)
    assert (config.learner.points, config.learner.steps, config.learner.lr) == (4, 60, 0.01)  # type: ignore[union-attr]
    assert resolve("blobs", {"method": "frcl-plus"}).learner.points == 4  # type: ignore[union-attr]
    assert resolve("blobs", {"method": "replay"}).learner.points == 3  # type: ignore[union-attr]
    assert resolve("blobs", {"method": "ewc"}).learner.steps == 60
    assert resolve("blobs", {"learner": {"steps": 7}}).learner.steps == 7


@pytest.mark.usefixtures("blobs")
def test_it_is_opened_by_name_with_the_options_it_has() -> None:
    assert len(open_benchmark("blobs", seed=0)) == 2
    assert len(open_benchmark("blobs", BenchmarkOptions(tasks=1), seed=0)) == 1
    assert open_benchmark("blobs", seed=0, device="meta").task(0).train.x.is_meta
    with pytest.raises(OptionError, match="augment=5 has no meaning for blobs; its options are tasks, train_on"):
        open_benchmark("blobs", BenchmarkOptions(augment=5), seed=0)
    assert fetch("blobs") == []
    with pytest.raises(OptionError, match="there is already a benchmark 'blobs'"):
        BENCHMARKS.add("blobs", SPEC)


def test_an_installed_package_adds_a_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry point of the group `frcl.benchmarks` is loaded as soon as an unknown name is asked for."""
    with pytest.raises(OptionError, match="there is no benchmark 'plugged'"):
        known_name("plugged")

    class Entry:
        name = "plugged"

        @staticmethod
        def load() -> BenchmarkSpec:
            return SPEC

    monkeypatch.setattr(metadata, "entry_points", lambda group: [Entry] if group == "frcl.benchmarks" else [])
    monkeypatch.setattr(BENCHMARKS, "_plugins_loaded", False)
    monkeypatch.setattr(BENCHMARKS, "data", dict(BENCHMARKS.data))
    assert known_name("plugged") == "plugged"
    assert resolve("plugged").network.widths == (8,)
    assert list(BENCHMARKS)[-1] == "plugged"
