"""Where the time of a step of FRCL goes on the CPU, by operator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch.profiler import ProfilerActivity, profile

from frcl.bench.cpu import Sizes, timed_steps
from frcl.experiment import environment


class Operator(NamedTuple):
    """An operator of torch, what it takes of a step by itself, without those that it calls."""

    name: str
    calls: float
    microseconds: float
    share: float


def profile_step(size: Sizes, count: int = 15) -> Sequence[Operator]:
    """The operators that take most of the steps that are timed at once, the heaviest first."""
    with environment.threads(size.threads):
        steps = timed_steps(size, size.past, *size.data())
        steps()
        with profile(activities=[ProfilerActivity.CPU]) as recorded:
            steps()
    events = recorded.key_averages()
    total = sum(event.self_cpu_time_total for event in events)
    heaviest = sorted(events, key=lambda event: event.self_cpu_time_total, reverse=True)[:count]
    return [
        Operator(e.key, e.count / size.steps, e.self_cpu_time_total / size.steps, e.self_cpu_time_total / total)
        for e in heaviest
    ]
