"""The time of a step of FRCL on the CPU, by operator."""

from __future__ import annotations

from typing import NamedTuple

from rich.table import Table
from torch.profiler import ProfilerActivity, profile

from frcl.bench.cpu import Sizes, timed_steps
from frcl.bench.results import table
from frcl.experiment import environment


class Operator(NamedTuple):
    """An operator of torch and its own time per step, without the operators that it calls."""

    name: str
    calls: float
    microseconds: float
    share: float


def profile_step(size: Sizes, count: int = 15) -> list[Operator]:
    """The operators that take most time, the most expensive first."""
    with environment.threads(size.threads):
        steps = timed_steps(size, size.past, *size.data())
        steps()
        with profile(activities=[ProfilerActivity.CPU]) as recorded:
            steps()
    events = sorted(recorded.key_averages(), key=lambda event: -event.self_cpu_time_total)
    total = sum(event.self_cpu_time_total for event in events)
    return [
        Operator(e.key, e.count / size.steps, e.self_cpu_time_total / size.steps, e.self_cpu_time_total / total)
        for e in events[:count]
    ]


def profile_table(size: Sizes) -> Table:
    """The most expensive operators of a step."""
    rows = table("operator", "calls per step", "µs per step", "share", title=f"{size.steps} FRCL steps: {size.step()}")
    for one in profile_step(size):
        rows.add_row(one.name, f"{one.calls:.1f}", f"{one.microseconds:.0f}", f"{100 * one.share:.1f} %")
    return rows
