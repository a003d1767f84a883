"""Opening a benchmark by its name, or your own data by the path of a .toml file."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from pathlib import Path

import torch

from frcl.data.download import Progress
from frcl.data.options import BenchmarkOptions
from frcl.data.own import own_tasks
from frcl.data.registry import BENCHMARKS, Request, Source
from frcl.data.tasks import Benchmark
from frcl.errors import DataError, OptionError
from frcl.registry import suggestion

# every module of this package is imported and registers its benchmarks, so that a new benchmark is one new file
for _module in pkgutil.iter_modules([str(Path(__file__).parent)]):
    import_module(f"{__package__}.{_module.name}")


def known_name(name: str) -> str:
    """The name of a benchmark, or the absolute path of a .toml file; an unknown name is refused."""
    if name.lower().endswith(".toml"):
        return str(Path(name).resolve())
    if name not in BENCHMARKS:
        raise OptionError(
            f"there is no benchmark {name!r}{suggestion(name, BENCHMARKS)} "
            "(or give the path of a .toml file that describes your own data)"
        )
    return name


def open_benchmark(
    name: str,
    options: BenchmarkOptions | None = None,
    *,
    seed: int,
    data: Path | str | None = None,
    device: torch.device | str = "cpu",
    on_progress: Progress | None = None,
) -> Benchmark:
    """The benchmark of that name, or your own data if `name` is the path of a .toml file; tensors on `device`.

    Files are looked for in `data`, FRCL_DATA and the user's cache folder, and downloaded if they are missing.
    """
    return benchmark_source(name, options, data=data, device=device, on_progress=on_progress)(seed)


def benchmark_source(
    name: str,
    options: BenchmarkOptions | None = None,
    *,
    data: Path | str | None = None,
    device: torch.device | str = "cpu",
    on_progress: Progress | None = None,
) -> Source:
    """The benchmark as a function of the seed. Files are read once, and tensors that all seeds share are kept once."""
    options = BenchmarkOptions() if options is None else options
    folder = None if data is None else Path(data)
    if folder is not None and not folder.is_dir():
        raise DataError(f"the data folder {folder} does not exist; create it, or leave it out to use the usual places")
    if name.lower().endswith(".toml"):
        options.check_for("your own data", ())
        return lambda seed: own_tasks(Path(name), options=options, seed=seed, device=device)
    spec = BENCHMARKS[known_name(name)]
    options.check_for(name, spec.options)
    return spec.build(Request(options, folder, device, on_progress))
