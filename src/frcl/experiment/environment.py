"""The environment of a run: versions, machine, commit, device, peak memory."""

import os
import platform
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from frcl.distributed import processes
from frcl.errors import OptionError

COMMIT = "FRCL_COMMIT"  # overrides the commit, for a copy without its repository
MOST_THREADS = 1024


def describe(device: str) -> dict[str, str]:
    """Versions and machine, as text."""
    from frcl import __version__

    name = torch.cuda.get_device_name(device) if device.startswith("cuda") else platform.machine()
    return {
        "frcl": __version__,
        "commit": _commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "platform": platform.platform(),
        "device": f"{device} ({name})",
        "threads": str(torch.get_num_threads()),
        "processes": str(1 if (group := processes()) is None else group.size),
    }


@contextmanager
def threads(count: int, *, tf32: bool | None = None) -> Iterator[None]:
    """Inside, torch uses `count` CPU threads and, if `tf32` is given, TF32 or full precision for matrices on CUDA."""
    before, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    if count > MOST_THREADS:
        raise OptionError(f"threads={count} is too many; at most {MOST_THREADS} are possible")
    torch.set_num_threads(count)
    if tf32 is not None:
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
    try:
        yield
    finally:
        torch.set_num_threads(before)
        torch.set_float32_matmul_precision(precision)


def check_device(device: str) -> torch.device:
    """The device of that name; an error if this machine does not have it."""
    try:
        found = torch.device(device)
    except RuntimeError:
        found = None
    if found is None or found.type not in ("cpu", "cuda"):
        raise OptionError(f"unknown device {device!r}; use cpu, cuda or cuda:0")
    if found.type == "cuda" and not torch.cuda.is_available():
        raise OptionError("device cuda was asked for, but torch finds no CUDA device here; use --device cpu")
    return found


def peak_memory(device: torch.device) -> int:
    """Peak memory so far, in bytes: of the GPU if it is the device, else of the process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def _commit() -> str:
    """The commit of the checkout this package lies in, with "+" if it was changed since; "" if there is none."""
    if COMMIT in os.environ:
        return os.environ[COMMIT]
    root = Path(__file__).resolve().parents[3]
    if not (root / ".git").exists():
        return ""
    command = ["git", "describe", "--always", "--exclude=*", "--abbrev=12", "--dirty=+"]
    try:
        return subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""
