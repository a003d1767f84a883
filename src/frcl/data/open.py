"""Benchmarks by name: the one place that knows them all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from frcl.data.digits import load_digits
from frcl.data.download import Progress
from frcl.data.mnist import mnist_task, read_mnist
from frcl.data.omniglot import load_omniglot, omniglot_tasks
from frcl.data.options import OMNIGLOT, PERMUTED, BenchmarkOptions, nearest
from frcl.data.own import own_tasks
from frcl.data.streams import permuted, split_by_label
from frcl.data.tasks import Benchmark, Task
from frcl.errors import DataError, OptionError

BENCHMARKS = (
    ("split-digits", "5 tasks, 0/1 to 8/9, of scikit-learn's 8×8 digits; nothing to download"),
    ("permuted-digits", "10 tasks, all ten 8×8 digits with permuted pixels; nothing to download"),
    ("split-mnist", "5 tasks, 0/1 to 8/9, of MNIST"),
    ("permuted-mnist", "10 tasks, all ten digits of MNIST with permuted pixels"),
    ("omniglot", "50 tasks, one for each alphabet, with 14 to 55 characters"),
)


def known_name(name: str) -> str:
    """The name of a benchmark, or the absolute path of a .toml file; an unknown name is refused."""
    if name.lower().endswith(".toml"):
        return str(Path(name).resolve())
    names = [known for known, _ in BENCHMARKS]
    if name not in names:
        raise OptionError(
            f"there is no benchmark {name!r}{nearest(name, names) or '.'} Known are {', '.join(names)}, or the "
            "path of a .toml file that describes your own data."
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
) -> Callable[[int], Benchmark]:
    """The benchmark as a function of the seed: files are read once, and what seeds have in common is in memory once."""
    options = BenchmarkOptions() if options is None else options
    folder = None if data is None else Path(data)
    if folder is not None and not folder.is_dir():
        raise DataError(f"the data folder {folder} does not exist; create it, or leave it out to use the usual places")
    match name:
        case "split-digits":
            options.check_for(name, ())
            return lambda seed: split_by_label(name, load_digits(seed, options.train_on).to(device), options)
        case "permuted-digits":
            options.check_for(name, PERMUTED)
            return lambda seed: permuted(name, load_digits(seed, options.train_on).to(device), options, seed)
        case "split-mnist":
            options.check_for(name, ())
            split = _mnist(options, folder, device, on_progress)
            return lambda seed: split_by_label(name, split(seed), options)
        case "permuted-mnist":
            options.check_for(name, PERMUTED)
            whole = _mnist(options, folder, device, on_progress)
            return lambda seed: permuted(name, whole(seed), options, seed)
        case "omniglot":
            options.check_for(name, OMNIGLOT)
            drawings = load_omniglot(folder, on_progress=on_progress)
            return lambda seed: omniglot_tasks(drawings, options, seed, device)
        case _ if name.lower().endswith(".toml"):
            options.check_for("your own data", ())
            return lambda seed: own_tasks(Path(name), options=options, seed=seed, device=device)
        case _:
            raise OptionError(f"there is no benchmark {known_name(name)!r}")


def _mnist(
    options: BenchmarkOptions, folder: Path | None, device: torch.device | str, on_progress: Progress | None
) -> Callable[[int], Task]:
    learning, test = (part.to(device) for part in read_mnist(folder, on_progress=on_progress))
    return lambda seed: mnist_task(learning, test, seed, options.train_on)
