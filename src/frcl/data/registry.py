"""The benchmarks by name, what describes one of them, and opening one. Other packages add one by an entry point."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from frcl.data.options import IMAGES, BenchmarkOptions
from frcl.data.own import own_tasks
from frcl.data.tasks import Benchmark, Device, Progress, validation_only
from frcl.errors import DataError, OptionError
from frcl.registry import Registry, suggestion

Source = Callable[[int], Benchmark]  # a benchmark as a function of the seed


@dataclass(frozen=True)
class Request:
    """The arguments that a benchmark is built from, except for the seed."""

    options: BenchmarkOptions
    data: Path | None = None  # the folder to look for files in first
    device: Device = "cpu"
    on_progress: Progress | None = None  # called during downloads


@dataclass(frozen=True)
class BenchmarkSpec:
    """One benchmark. `build` is called once per run; whatever the seeds share is loaded there."""

    description: str
    build: Callable[[Request], Source]
    options: tuple[str, ...] = ()  # the fields of BenchmarkOptions that it uses besides `COMMON`
    datasets: tuple[str, ...] = ()  # the data sets whose files it needs; see `frcl data`
    defaults: Mapping[str, Any] = field(default_factory=dict)  # as a section of experiment/defaults.toml


BENCHMARKS: Registry[BenchmarkSpec] = Registry("benchmark", of=BenchmarkSpec)


def known_name(name: str) -> str:
    """The name of a benchmark, or the absolute path of a .toml file or a folder; an unknown name is refused."""
    if is_own(name):
        return str(Path(name).resolve())
    if name not in BENCHMARKS:
        other = "(or give the path of a folder of your own data, or of a .toml file that describes it)"
        raise OptionError(f"there is no benchmark {name!r}{suggestion(name, BENCHMARKS)} {other}")
    return name


def is_own(name: str) -> bool:
    """Whether this is the path of your own data: a .toml file, or a folder that is not called like a benchmark."""
    return name.lower().endswith(".toml") or (name not in BENCHMARKS and Path(name).is_dir())


def open_benchmark(
    name: str, options: BenchmarkOptions | None = None, *, seed: int, data: Path | str | None = None,
    device: Device = "cpu", on_progress: Progress | None = None,
) -> Benchmark:  # fmt: skip
    """The benchmark of that name, or your own data if `name` is a path (see `own_tasks`); tensors on `device`.

    Files are looked for in `data`, FRCL_DATA and the user's cache folder, and downloaded if they are missing.
    """
    return benchmark_source(name, options, data=data, device=device, on_progress=on_progress)(seed)


def benchmark_source(
    name: str, options: BenchmarkOptions | None = None, *, data: Path | str | None = None,
    device: Device = "cpu", on_progress: Progress | None = None,
) -> Source:  # fmt: skip
    """The benchmark as a function of the seed. Files are read once, and tensors that all seeds share are kept once."""
    options = options or BenchmarkOptions()
    folder = None if data is None else Path(data)
    if folder is not None and not folder.is_dir():
        raise DataError(f"the data folder {folder} does not exist; create it, or leave it out to use the usual places")
    source: Source = lambda seed: own_tasks(name, options=options, seed=seed, device=device)  # noqa: E731
    if is_own(name):
        options.check_for("your own data", IMAGES)
    else:
        spec = BENCHMARKS[known_name(name)]
        options.check_for(name, spec.options)
        source = spec.build(Request(options, folder, device, on_progress))
    return source if options.test_on == "test" else lambda seed: validation_only(source(seed))
