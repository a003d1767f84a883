"""Benchmarks by name: the one place that knows them all."""

from __future__ import annotations

from pathlib import Path

import torch

from frcl.benchmarks.digits import load_digits
from frcl.benchmarks.download import Progress
from frcl.benchmarks.mnist import load_mnist
from frcl.benchmarks.omniglot import load_omniglot, omniglot_tasks
from frcl.benchmarks.options import OMNIGLOT, PERMUTED, BenchmarkOptions, nearest
from frcl.benchmarks.own import own_tasks
from frcl.benchmarks.streams import permuted, split_by_label
from frcl.benchmarks.tasks import Benchmark
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
    options = BenchmarkOptions() if options is None else options
    folder = None if data is None else Path(data)
    if folder is not None and not folder.is_dir():
        raise DataError(f"the data folder {folder} does not exist; create it, or leave it out to use the usual places")
    match name:
        case "split-digits":
            options.check_for(name, ())
            return split_by_label(name, load_digits(seed, options.train_on).to(device), options)
        case "permuted-digits":
            options.check_for(name, PERMUTED)
            return permuted(name, load_digits(seed, options.train_on).to(device), options, seed)
        case "split-mnist":
            options.check_for(name, ())
            mnist = load_mnist(seed, options.train_on, data=folder, on_progress=on_progress)
            return split_by_label(name, mnist.to(device), options)
        case "permuted-mnist":
            options.check_for(name, PERMUTED)
            mnist = load_mnist(seed, options.train_on, data=folder, on_progress=on_progress)
            return permuted(name, mnist.to(device), options, seed)
        case "omniglot":
            options.check_for(name, OMNIGLOT)
            return omniglot_tasks(load_omniglot(folder, on_progress=on_progress), options, seed, device)
        case _ if name.lower().endswith(".toml"):
            options.check_for("your own data", ())
            return own_tasks(Path(name), options=options, seed=seed, device=device)
        case _:
            raise OptionError(f"there is no benchmark {known_name(name)!r}")
